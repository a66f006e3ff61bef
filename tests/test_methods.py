from __future__ import annotations

import pytest

from puidrec.methods import METHODS, MethodSpec, get_method

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
OTHERS = {
    "multi-ips": "multi", "multi-dr": "multi", "item-rate": "closed", "bias": "closed", "pure-svd": "closed",
    "signed-rd": "unseen", "signed-puid": "unseen", "sharp-rd": "unseen", "sharp-puid": "unseen",
}  # fmt: skip


@pytest.mark.parametrize("name", GRID)
def test_the_grid_is_three_axes(name: str) -> None:
    spec = METHODS[name]
    assert spec.family == "grid"
    assert (spec.estimator, spec.uncertainty, spec.benchmark) == GRID[name]


@pytest.mark.parametrize("name", OTHERS)
def test_methods_outside_the_grid_have_a_family(name: str) -> None:
    assert METHODS[name].family == OTHERS[name]


def test_the_methods_are_those_listed_here() -> None:
    assert set(GRID) | set(OTHERS) == set(METHODS)


def test_ends_and_uncertainty_of_the_sharp_family() -> None:
    columns = {name: (spec.end, spec.uncertainty) for name, spec in METHODS.items() if spec.family == "unseen"}
    expected = {
        "signed-rd": ("signed", "global"), "signed-puid": ("signed", "personalised"),
        "sharp-rd": ("worst", "global"), "sharp-puid": ("worst", "personalised"),
    }  # fmt: skip
    assert columns == expected


def test_only_doubly_robust_methods_impute() -> None:
    assert all(spec.imputes == name.split("-")[-1].startswith("dr") for name, spec in METHODS.items())


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
