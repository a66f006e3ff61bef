from __future__ import annotations

import pytest

from puidrec.methods import METHODS, MethodSpec, get_method
from puidrec.settings import Settings

GRID = {
    "mf": ("naive", "none", False),
    "ips": ("ips", "none", False),
    "dr": ("dr", "none", False),
    "rd-ips": ("ips", "global", False),
    "rd-dr": ("dr", "global", False),
    "brd-ips": ("ips", "global", True),
    "brd-dr": ("dr", "global", True),
    "puid-ips": ("ips", "personalised", False),
    "puid-dr": ("dr", "personalised", False),
    "bpuid-ips": ("ips", "personalised", True),
    "bpuid-dr": ("dr", "personalised", True),
}
OTHERS = (
    "multi-ips",
    "multi-dr",
    "signed-rd",
    "signed-puid",
    "item-rate",
    "bias",
    "popularity",
    "pure-svd",
    "all-rank",
    "ease",
    "spectrum",
)
REWEIGHTED = (
    "mrdr",
    "dr-mse",
    "tdr",
    "d-ips",
    "d-dr",
    "stable-dr",
    "bal-ips",
    "bal-dr",
    "res-ips",
    "res-dr",
    "ips-v2",
    "dr-v2",
    "kernel-ips",
    "kernel-dr",
)
"""IPS and DR with other weights, from the field."""
FIELD = (*REWEIGHTED, "dcf", "idcf", "auto-debias", "cvib")


@pytest.mark.parametrize("name", GRID)
def test_the_grid_is_three_axes(name: str) -> None:
    spec = METHODS[name]
    assert (spec.estimator, spec.uncertainty, spec.benchmark) == GRID[name]


def test_the_table_has_these_methods_and_no_others() -> None:
    assert set(METHODS) == {*GRID, *OTHERS, *FIELD}


def test_what_other_modules_may_ask_of_a_row() -> None:
    rows = METHODS.values()
    assert {spec.name for spec in rows if not spec.trains} == {
        "item-rate",
        "bias",
        "popularity",
        "pure-svd",
        "ease",
    }
    assert {spec.name for spec in rows if spec.uses_propensity is True} == {*GRID, *REWEIGHTED} - {
        "mf"
    }
    assert {spec.name for spec in rows if spec.calibrates_gamma} == {
        n for n in OTHERS if n.startswith("signed")
    }
    for spec in rows:
        own = spec.own_params
        fields = {*Settings.model_fields, *(() if own is None else own.model_fields)}
        assert set(spec.search_space) <= fields
        assert bool(spec.search_space) is spec.trains
        assert ("gamma" in spec.search_space) <= (spec.uncertainty != "none")
        assert Settings.of(spec.name).loss == spec.losses[0]
        assert spec.needs


def test_a_model_without_ids_is_weighted_by_signed_methods() -> None:
    signed = METHODS["signed-rd"]
    assert not signed.weighs_rows(Settings.of("signed-rd"))
    assert signed.weighs_rows(Settings.of("signed-rd", ids=False))
    assert METHODS["ips"].weighs_rows(Settings.of("ips"))
    assert not METHODS["mf"].weighs_rows(Settings.of("mf", ids=False))


def test_only_doubly_robust_methods_impute() -> None:
    names = {name for name in METHODS if "dr" in name} - {
        "stable-dr"
    }  # it imputes in its first stage only
    assert {name for name, spec in METHODS.items() if spec.imputes} == names


@pytest.mark.parametrize("spec", METHODS.values(), ids=list(METHODS))
def test_every_method_says_what_it_is(spec: MethodSpec) -> None:
    assert METHODS[spec.name] is spec
    assert len(spec.description) > 10
    assert get_method(spec) is get_method(spec.name) is spec


def test_a_vacuous_benchmark_is_refused(refusal) -> None:
    refusal(lambda: MethodSpec("b-ips", "", "", "ips", "none", True), "vacuous", "b-ips", "BRD")
    refusal(lambda: MethodSpec("b-mf", "", "", "naive", "global", True), "needs the estimator")


@pytest.mark.parametrize("name", ["puid", "PUID_DR", "", None, [], {}, 3])
def test_an_unknown_method_is_refused_with_the_list(name, refusal) -> None:
    message = refusal(lambda: get_method(name), "unknown method", "bpuid-dr")
    if name == "PUID_DR":
        assert message.endswith("Did you mean puid-dr?")


def test_rows_are_frozen() -> None:
    with pytest.raises(AttributeError):
        METHODS["ips"].benchmark = True  # type: ignore[misc]
    assert not METHODS["ips"].benchmark


@pytest.mark.parametrize(
    ("method", "gamma", "kept"),
    [
        ("dr", 2.0, {"dim"}),
        ("rd-dr", 2.0, {"dim", "gamma"}),
        ("rd-dr", "certified", {"dim", "gamma"}),
        ("rd-dr", "recovered", {"dim"}),
        ("puid-dr", "recovered", {"dim", "gamma", "alpha", "beta"}),
        ("signed-rd", "auto", {"dim", "gamma"}),
        ("bias", "auto", {"dim"}),
    ],
)
def test_settings_of_a_comparison_reach_the_methods_that_have_them(method, gamma, kept) -> None:
    given = {"dim": 8, "gamma": gamma, "alpha": 1.0, "beta": 2.0}
    own = get_method(method).own_settings(given)
    assert own == {key: given[key] for key in kept}
    Settings.of(method, **own)
