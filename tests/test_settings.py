from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Literal

import pytest

from puidrec.exposure.gamma import PRESETS
from puidrec.methods import METHODS
from puidrec.model import Recommender
from puidrec.settings import Parameters, Settings


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_settings_that_survive_json(method) -> None:
    settings = Settings.of(method)
    assert settings.spec.name == method
    assert Settings.of(**json.loads(json.dumps(settings.model_dump()))) == settings
    assert settings.replace() == settings


def test_every_field_says_what_it_means() -> None:
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize(
    ("key", "near"), [("dims", "dim"), ("learning", None), ("epoch", "epochs"), ("gama", "gamma")]
)
def test_an_unknown_key_suggests_the_near_one(key, near, refusal) -> None:
    message = refusal(lambda: Settings.of("ips", **{key: 1}), "unknown setting", key)
    assert near is None or message.endswith(f"Did you mean {near}?")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dim", 0),
        ("dim", "many"),
        ("dim", 2.5),
        ("epochs", 0),
        ("lr", 0),
        ("lr", -1),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("l2", -0.1),
        ("min_propensity", 0),
        ("min_propensity", 1),
        ("alpha", -1),
        ("target", "stars"),
        ("select", "best"),
        ("ids", "some"),
        ("patience", -1),
        ("seed", -1),
        ("seed", "x"),
        ("block_users", -5),
        ("checkpoint_every", 0),
        ("gamma", None),
        ("gamma", []),
        ("unseen_weight", -1),
        ("backbone", "cnn"),
        ("loss", "hinge"),
        ("head", "tail"),
        ("propensity", "guess"),
        ("metric", "recall"),
        ("backbone", {"deep": [[[]]]}),
        ("dim", "1\n2"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_setting(key, value, refusal) -> None:
    words = {"metric": "validation metric"}.get(key, key)
    refusal(lambda: Settings.of("puid-dr", **{key: value}), words)


@pytest.mark.parametrize("hostile", ["cls", "self", "__class__", "model_config", "spec", ""])
def test_names_of_python_are_unknown_keys_like_any_other(hostile, refusal) -> None:
    refusal(lambda: Settings.of("ips", **{hostile: 1}), "unknown setting")


@pytest.mark.parametrize("method", ["rd-ips", "rd-dr", "brd-ips", "brd-dr", "signed-rd"])
def test_a_rule_for_all_pairs_is_refused_where_one_number_is_meant(method, refusal) -> None:
    other = method.replace("rd", "puid")
    refusal(
        lambda: Settings.of(method, gamma="information"), "one Γ", "information", f"use {other}"
    )
    assert Settings.of(other, gamma="information").gamma == "information"
    assert Settings.of(method, gamma=2).gamma == 2.0


@pytest.mark.parametrize("gamma", [0.99, 0, -1, float("nan"), float("inf"), "0.5", "nan", "-inf"])
def test_gamma_below_one_is_refused(gamma, refusal) -> None:
    message = refusal(lambda: Settings.of("rd-ips", gamma=gamma))
    assert "Γ" in message or "gamma" in message


def test_a_number_written_as_text_is_none(refusal) -> None:
    for name in ("gamma", "dim", "l2"):
        refusal(lambda name=name: Settings.of("puid-dr", **{name: "1.5"}), "1.5")


def test_unknown_rules_are_refused_before_training(refusal) -> None:
    refusal(lambda: Settings.of("puid-dr", gamma="informations"), "unknown Γ rule", "information")
    assert all(Settings.of("puid-dr", gamma=rule).gamma == rule for rule in PRESETS)


@pytest.mark.parametrize("method", ["signed-rd", "multi-ips", "multi-dr"])
def test_combinations_without_an_objective_are_refused_with_a_sentence(method, refusal) -> None:
    refusal(lambda: Settings.of(method, loss="absolute"), method, "loss squared")
    refusal(lambda: Settings.of("ips", loss="absolute").replace(method=method), method)


def test_replace_checks_and_leaves_the_original_alone(refusal) -> None:
    settings = Settings.of("ips", dim=4)
    assert settings.replace(dim=8, method="dr") == Settings.of("dr", dim=8)
    assert settings.dim == 4
    refusal(lambda: settings.replace(dimm=8), "Did you mean dim")
    refusal(lambda: settings.replace(method="nope"), "unknown method")


def test_spectrum_is_trained_where_no_method_is_named() -> None:
    for settings in (Settings(), Settings.of(), Recommender().settings):
        assert settings.method == "spectrum"


def test_the_method_is_given_by_position_or_by_name() -> None:
    assert Settings.of("ips") == Settings.of(method="ips")


def test_the_constructor_is_typed_as_the_settings_are() -> None:
    from typing import get_type_hints

    own = {
        name: field.annotation for name, field in Settings.model_fields.items() if name != "method"
    }
    for spec in METHODS.values():  # methods of this package that have parameters of their own
        kind = spec.own_params
        own |= (
            {}
            if kind is None
            else {name: one.annotation for name, one in kind.model_fields.items()}
        )
    number = {"dim": int | Literal["auto"], "l2": float | Literal["auto"]}
    assert get_type_hints(Parameters) == {**own, **number}


def test_a_type_checker_is_asked_to_follow_what_users_write() -> None:
    """By `make lint`; `Recommender(dimm=4)` used to fail only when run."""
    root = Path(__file__).parents[1]
    mypy = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert mypy["strict"], "an ignore that ignores nothing is an error"
    assert "tests/typed_calls.py" in mypy["files"]
    calls = (root / "tests" / "typed_calls.py").read_text(encoding="utf-8")
    assert calls.count("dimm=4)  # type: ignore[call-arg]") == 1
