from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.cli import options

Refusal = Callable[..., str]


@given(st.one_of(st.integers(-(2**62), 2**62), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_setting_keeps_the_type_of_its_value(value: object) -> None:
    read = options.parse_settings([f"data.key={json.dumps(value)}"])
    assert read == {"data.key": value}
    assert type(read["data.key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("'1'", "1"),
        ("[1, 2]", [1, 2]),
        ("{a = 'b'}", {"a": "b"}),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_is_toml_or_text(text: str, value: object) -> None:
    assert options.parse_settings([f"data.key={text}"]) == {"data.key": value}


@pytest.mark.parametrize("text", ["", "data.key", "=1"])
def test_what_is_no_setting_is_refused(text: str, refusal: Refusal) -> None:
    refusal(lambda: options.parse_settings([text]), "not a setting", "KEY=VALUE")


@pytest.mark.parametrize("text", ["key=1", "date.key=1", "data.=1", "data=1"])
def test_a_key_of_no_section_is_refused(text: str, refusal: Refusal) -> None:
    refusal(lambda: options.parse_settings([text], ("data", "gamma")), "unknown setting", "data.KEY or gamma.KEY")


def test_sections_are_told_apart() -> None:
    settings = options.parse_settings(["data.a=1", "gamma.a=2"], ("data", "gamma"))
    assert (options.section(settings, "data"), options.section(settings, "gamma")) == ({"a": 1}, {"a": 2})


def test_help_names_every_method_propensity_and_metric() -> None:
    from puidrec.evaluation.metrics import METRICS
    from puidrec.methods import METHODS
    from puidrec.propensity import PROPENSITIES

    assert re.split(r", | or ", options.METHODS.removesuffix(".")) == list(METHODS)
    assert re.split(r", | or ", options.PROPENSITIES) == list(PROPENSITIES)
    shown = options.Metrics.__metadata__[0].help.removesuffix(".").partition(": ")[2]  # type: ignore[attr-defined]
    assert [name.removesuffix("@K") for name in shown.split(", ")] == list(METRICS)


def test_the_scale() -> None:
    assert options.parse_scale(None) is None
    assert options.parse_scale("1,5") == (1.0, 5.0)


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", ""])
def test_what_is_no_scale_is_refused(text: str, refusal: Refusal) -> None:
    refusal(lambda: options.parse_scale(text), "not a rating scale", "LOW,HIGH")


def test_file_options_need_files(refusal: Refusal) -> None:
    refusal(lambda: options.open_dataset("coat", None, {}, logged=Path("x.csv")), "--logged belongs to --data files")


def test_a_table_named_twice_is_refused(refusal: Refusal) -> None:
    call = lambda: options.open_dataset("files", None, {"data.logged": "a.csv"}, logged=Path("b.csv"))  # noqa: E731
    refusal(call, "given twice", "--set data.logged")
