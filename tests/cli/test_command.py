"""What commands print: JSON, tables, steps, and how far a study is."""

from __future__ import annotations

import io
import json
import re
import threading
import unicodedata

import pytest
from rich.console import Console

from puidrec.cli import command as output
from puidrec.comparing.job import DataSpec, Job, Result
from puidrec.comparing.run import Event, Failure


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json(
        {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": (-float("inf"), "Γ")}}
    )
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": [None, 1.5],
        "c": {"d": [None, "Γ"]},
    }


@pytest.mark.parametrize("width", [80, 120])
def test_tables_keep_to_the_terminal_and_show_brackets(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output.console, "width", width)
    output.print_table(
        "title", ("name", "figure"), [("[bold]x[/bold] " * 20, "1.5"), ("[/]", "\\[2]")]
    )
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown
    assert "[/]" in shown
    longest = max(map(len, shown.splitlines()))
    assert width - 10 < longest <= width


def test_a_title_is_not_broken_at_the_width_of_its_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    title = "spectrum on a log of ratings, protocol rd, seed 0"
    output.print_table(title, ("metric", "test"), [("mse", "0.1")])
    assert title in capsys.readouterr().out.splitlines()


def test_steps_are_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with output.steps("reading") as step:
        step("writing")
    assert capsys.readouterr() == ("", "")


JOB = Job(DataSpec("coat"), "mf", label="mf [x]")


EVENTS = [
    Event(1, 2, Result(JOB, {"uauc": 0.7}, {}, 0.25, {}, {}), resumed=True),
    Event(2, 2, Failure(JOB, "no"), resumed=False),
]


def test_a_line_of_progress_after_two_seconds_and_then_every_thirty() -> None:
    stream, waited = io.StringIO(), []

    def over(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > 3

    words = iter(["reading", "mf\x1b[2J", "writing"])
    output.tell(lambda: next(words), Console(file=stream), over)
    assert waited == [2.0, 30.0, 30.0, 30.0]
    assert stream.getvalue() == "puid: reading\npuid: mf\\x1b[2J\npuid: writing\n"


@pytest.mark.parametrize(("shown", "terminal"), [(True, False), (False, False), (True, True)])
def test_lines_are_for_pipes_and_not_with_quiet(
    shown: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    monkeypatch.setattr(output, "FIRST_LINE", 0.0)
    monkeypatch.setattr(output, "_progress", "shown" if shown else "quiet")
    stream = io.StringIO()

    def line() -> str:
        told.set()
        return "reading"

    with output.progress_lines(line, Console(file=stream, force_terminal=terminal)):
        if shown and not terminal:
            assert told.wait(60)
    assert told.is_set() == (shown and not terminal)
    assert set(stream.getvalue().splitlines()) == (
        {"puid: reading"} if shown and not terminal else set()
    )


def test_a_bar_in_words() -> None:
    with output.progress_bar() as bar:
        task = bar.add_task("reading", total=None)
        assert output._task_line(bar) == "reading, 0:00"
        bar.update(task, description="mf", completed=1200, total=3000)
        assert output._task_line(bar) == "mf, 1,200 of 3,000, 0:00"


def test_quiet_hides_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_progress", "quiet")
    with output.progress_bar() as bar:
        assert bar.disable


def test_verbose_is_a_line_per_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_progress", "verbose")
    with output.steps("reading") as step:
        step("measuring")
        step("measuring")
        step("writing \x1b[2J")
    told = re.sub(r"\d+:\d\d", "0:00", capsys.readouterr().err)
    assert told == "puid: measuring, 0:00\npuid: writing \\x1b[2J, 0:00\n"
    with output.jobs_bar("coat") as note:
        for event in EVENTS:
            note(event)
    told = re.sub(r"\d+:\d\d", "0:00", capsys.readouterr().err)
    assert told == (
        "puid: coat, job 1: mf [x], seed 0, 1 of 2, 0:00\n"
        "puid: coat, job 2: mf [x], seed 0, 2 of 2, 0:00\n"
    )


HOSTILE = "a\x1b]0;owned\x07\x9b2J\u202eb\rc"


def test_control_characters_are_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(HOSTILE, ("name", HOSTILE), [(HOSTILE, "95\u00a0%")])
    output.say(f"{HOSTILE}\nnext")
    output.print_json({"id": HOSTILE})
    shown = capsys.readouterr().out
    assert not {c for c in shown if unicodedata.category(c) == "Cc"} - {"\n"}
    assert r"a\x1b]0;owned\x07\x9b2J\u202eb\rc" in shown
    assert "95\u00a0%" in shown
    assert json.loads(shown[shown.index("{") :])["id"] == HOSTILE
