from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from puidrec.cli import options
from puidrec.cli.command import Options, add_commands, command, option

Refusal = Callable[..., str]


@given(
    st.one_of(
        st.integers(-(2**62), 2**62),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
    )
)
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
    refusal(
        lambda: options.parse_settings([text], ("data", "gamma")),
        "unknown setting",
        "data.KEY or gamma.KEY",
    )


def test_sections_are_told_apart() -> None:
    settings = options.parse_settings(["data.a=1", "gamma.a=2"], ("data", "gamma"))
    assert (options.section(settings, "data"), options.section(settings, "gamma")) == (
        {"a": 1},
        {"a": 2},
    )


def test_help_names_every_method_propensity_source_and_metric() -> None:
    from puidrec.data.sources import SOURCES
    from puidrec.data.split import PROTOCOLS
    from puidrec.evaluation.metrics import METRICS
    from puidrec.exposure import PROPENSITIES
    from puidrec.methods import METHODS

    assert re.split(r", | or ", options.METHODS.removesuffix(".")) == list(METHODS)
    assert re.split(r", | or ", options.PROPENSITIES) == list(PROPENSITIES)
    assert set(re.split(r", | or ", options.SOURCES.removesuffix("."))) == set(SOURCES)
    names = [name.removesuffix("@K") for name in options.METRICS.split(";")[0].split(", ")]
    assert [name for name in names if name != "catalogue-recall"] == list(METRICS)
    assert all(f"{name} (" in options.PROTOCOLS for name in PROTOCOLS)


def test_the_scale() -> None:
    assert options.parse_scale(None) is None
    assert options.parse_scale("1,5") == (1.0, 5.0)


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b", ""])
def test_what_is_no_scale_is_refused(text: str, refusal: Refusal) -> None:
    refusal(lambda: options.parse_scale(text), "not a rating scale", "LOW,HIGH")


def test_file_options_need_files(refusal: Refusal) -> None:
    refusal(
        options.DataOptions("coat", logged=Path("x.csv")).load, "--logged belongs to --data files"
    )


def test_a_table_named_twice_is_refused(refusal: Refusal) -> None:
    named = options.DataOptions("files", logged=Path("b.csv"), settings=["data.logged=a.csv"])
    refusal(named.load, "given twice", "--set data.logged")


def test_the_order_of_settings() -> None:
    context = SimpleNamespace(meta={"settings": {"dim": 1, "lr": 1, "l2": 1}})
    data = options.ModelDataOptions(settings=["lr=2", "l2=2", "data.seed=3"])
    chosen = data.model_settings(context, l2=3, device=None)  # type: ignore[arg-type]
    assert chosen == {
        "dim": 1,
        "lr": 2,
        "l2": 3,
    }  # the file, then --set, then options that were given


@dataclass(frozen=True)
class Size(Options):
    width: int = option(2, "Width.")
    size: str = option("small", "A name that is also the group's.")


def test_a_group_becomes_options_of_the_command() -> None:
    seen: list[object] = []

    @command("puid paint --width 3")
    def paint(
        name: Annotated[str, typer.Argument(help="Name.")], size: Size, *, loud: bool = False
    ) -> None:
        """Paint."""
        seen.append((name, size, loud))

    app = typer.Typer()
    add_commands(app, paint)
    assert CliRunner().invoke(app, ["a", "--width", "3", "--loud"]).exit_code == 0
    assert CliRunner().invoke(app, ["b"]).exit_code == 0
    assert seen == [("a", Size(3), True), ("b", Size(2), False)]
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(
        part in shown
        for part in ("Paint.", "--width", "--size", "[default: 2]", "Example: puid paint")
    )


def test_an_option_of_two_groups_is_noticed_when_the_command_is_made() -> None:
    with pytest.raises(ValueError, match="duplicate parameter name"):

        @command("puid paint")
        def paint(size: Size, other: Size) -> None: ...
