from __future__ import annotations

import json

import pytest

from puidrec.cli import output


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (-float("inf"), "Γ")}})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": {"d": [None, "Γ"]}}


@pytest.mark.parametrize("width", [80, 120])
def test_tables_keep_to_the_terminal_and_show_brackets(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.console, "width", width)
    output.print_table("title", ("name", "figure"), [("[bold]x[/bold] " * 20, "1.5"), ("[/]", "\\[2]")])
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown
    assert "[/]" in shown
    longest = max(map(len, shown.splitlines()))
    assert width - 10 < longest <= width


def test_steps_are_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with output.steps("reading") as step:
        step("writing")
    assert capsys.readouterr() == ("", "")
