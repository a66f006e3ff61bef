"""What commands print: tables for people, JSON for machines, progress as a bar or as lines."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from puidrec.comparing.job import Result
    from puidrec.comparing.run import Event

console = Console(highlight=False)
FIRST_LINE, NEXT_LINE = 2.0, 30.0
"""Seconds to the first line of progress where there is no terminal, and from one to the next."""
_progress: Literal["shown", "quiet", "verbose"] = "shown"


def show_progress(how: Literal["shown", "quiet", "verbose"]) -> None:
    """How progress is told from now on: `--quiet` turns it off, `--verbose` writes every step on a
    line of its own."""
    global _progress  # noqa: PLW0603 (the command line of this process, read once)
    _progress = how


def is_verbose() -> bool:
    """Whether every step is told."""
    return _progress == "verbose"


def visible(text: str, keep: str = "") -> str:
    """Text that is safe on a terminal: control characters, which ids may hold, are spelt out as in
    \\x1b."""

    def safe(c: str) -> bool:
        return c.isprintable() or c in keep or unicodedata.category(c) == "Zs"

    return text if text.isprintable() else "".join(c if safe(c) else ascii(c)[1:-1] for c in text)


def another_process_prints() -> bool:
    """Whether this is one of several processes of a run (`torchrun`), of which the first one
    prints."""
    several = "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    return several and os.environ.get("RANK", "0") != "0"


def say(text: str, *, bold: bool = False, wrap: bool = True) -> None:
    """Print text as it is, without markup. wrap=False leaves long lines to the terminal: paths can
    then be copied."""
    console.print(
        visible(text, keep="\n"), style="bold" if bold else None, markup=False, soft_wrap=not wrap
    )


def print_json(content: Any) -> None:
    """Write JSON to standard output; numbers that are not finite become null."""
    text = json.dumps(_finite(content), indent=2, ensure_ascii=False)
    sys.stdout.write(
        "".join(f"\\u{ord(c):04x}" if "\x7f" <= c <= "\x9f" else c for c in text) + "\n"
    )


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(
        title=visible(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for position, column in enumerate(columns):
        table.add_column(
            visible(column), justify="left" if position == 0 else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(*(visible(str(cell)).replace("[", r"\[") for cell in row))
    console.print(table)


def print_page(template: str, **values: Any) -> None:
    """Print what `report/templates/terminal/TEMPLATE.md.j2` says: its tables, and its words as
    paragraphs, each with an empty line after it unless the template says otherwise."""
    from puidrec.report.page import clip_text, markdown_page

    def words(caller: Callable[[], str], end: str = "\n", indent: str = "", **how: Any) -> str:
        say(indent + re.sub(r"[ \t]*\n\s*", " ", caller().strip()) + end, **how)
        return ""

    tools = {"table": print_table, "clip": clip_text, "words": words}
    markdown_page(f"terminal/{template}", **tools, **values)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on standard error; where that is not a terminal, lines now and then; with
    --quiet, nothing."""
    terminal = Console(stderr=True)
    bar = _Steps(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal or not tells_progress() or is_verbose(),
    )
    with bar, progress_lines(lambda: _task_line(bar), terminal):
        yield bar


class _Steps(Progress):
    """A bar that with --verbose is lines instead: one whenever its words change."""

    _told = ""

    def update(self, *args: Any, **changes: Any) -> None:
        super().update(*args, **changes)
        if (
            is_verbose()
            and changes.get("description", self._told) != self._told
            and tells_progress()
        ):
            self._told = changes["description"]
            write_line(_task_line(self), self.console)


def tells_progress() -> bool:
    """Whether this process tells its progress at all."""
    return _progress != "quiet" and not another_process_prints()


def _task_line(bar: Progress) -> str:
    """The tasks of a bar in words: what is done, how far, since when."""
    parts = []
    for task in bar.tasks:
        far = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f}"
        parts.append(f"{task.description}{far}, {_clock(task.elapsed or 0.0)}")
    return "; ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def progress_lines(line: Callable[[], str], terminal: Console) -> Iterator[None]:
    """Write a line on standard error now and then, if that is not a terminal: a log shows that work
    goes on."""
    if terminal.is_terminal or not tells_progress() or is_verbose():
        yield
        return
    over = threading.Event()
    teller = threading.Thread(target=tell, args=(line, terminal, over.wait), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def tell(line: Callable[[], str], terminal: Console, over: Callable[[float], bool]) -> None:
    """Write lines until `over`, which waits for so many seconds, says that the work is done."""
    pause = FIRST_LINE
    while not over(pause):
        write_line(line(), terminal)
        pause = NEXT_LINE


def write_line(words: str, terminal: Console) -> None:
    """A line of progress, unless there is nothing to say."""
    with contextlib.suppress(OSError, ValueError):  # the reader has left: the work goes on without
        terminal.file.write(f"puid: {visible(words)}\n" if words else "")
        terminal.file.flush()


@contextlib.contextmanager
def steps(first: str) -> Iterator[Callable[[str], None]]:
    """Show the step that is under way; call the yielded function with the name of the next one."""
    with progress_bar() as bar:
        task = bar.add_task(first, total=None)
        yield lambda name: bar.update(task, description=name)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


class LiveTable:
    """A table that grows while a study runs: jobs done, means per method so far, and the time left.

    On standard error, and gone when the study is done; where that is not a terminal, only a line
    now and then. Call it with each event.
    """

    def __init__(
        self, words: str, metrics: Sequence[str] = (), console: Console | None = None
    ) -> None:
        self.words, self.metrics = words, list(metrics)
        self.done, self.total, self.fresh = 0, 0, 0
        self.values: dict[str, list[Result]] = {}
        self.failed: dict[str, int] = {}
        self.started = time.monotonic()
        terminal = console or Console(stderr=True)
        self.live = Live(
            get_renderable=self.render,
            console=terminal,
            transient=True,
            auto_refresh=True,
            refresh_per_second=2,
        )
        self.shown = terminal.is_terminal and tells_progress() and not is_verbose()
        self.terminal = terminal
        self.lines = progress_lines(self.line, terminal)

    def __enter__(self) -> Self:
        if self.shown:
            self.live.start()
        self.lines.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.__exit__(None, None, None)
        if self.shown:
            self.live.stop()

    def __call__(self, event: Event) -> None:
        """Take note of a job that ended."""
        from puidrec.comparing.job import Result

        self.done, self.total = event.done, event.total
        self.fresh += not event.resumed
        outcome, name = event.outcome, event.outcome.job.name
        if isinstance(outcome, Result):
            self.values.setdefault(name, []).append(outcome)
        else:
            self.failed[name] = self.failed.get(name, 0) + 1
        if is_verbose() and tells_progress():
            write_line(f"{self.line()}; {name}, seed {outcome.job.seed}", self.terminal)

    def line(self) -> str:
        """How far the study is."""
        return f"{self.words}: {self.done} of {self.total or '?'} jobs, {self._time_left()}"

    def render(self) -> Group:
        """What is known so far."""
        line = Text(self.line())
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method")
        for column in ("done", "failed", *self.metrics):
            table.add_column(column, justify="right")
        for name in dict.fromkeys([*self.values, *self.failed]):
            results = self.values.get(name, [])
            means = [_mean(results, metric) for metric in self.metrics]
            table.add_row(
                Text(name), str(len(results)), str(self.failed.get(name, 0) or ""), *means
            )
        return Group(
            line, ProgressBar(total=max(self.total, 1), completed=self.done, width=40), table
        )

    def _time_left(self) -> str:
        """From the pace of the jobs that ran just now; those found finished took no time."""
        if not self.fresh or self.done >= self.total:
            return "time left unknown" if self.done < self.total or not self.total else "writing"
        seconds = (time.monotonic() - self.started) / self.fresh * (self.total - self.done)
        return f"about {_clock(seconds)} left"


def _mean(results: Sequence[Result], metric: str) -> str:
    """The mean over the seeds done; `validation` is a score like a metric."""
    values = [r.validation if metric == "validation" else r.metrics.get(metric) for r in results]
    known = [value for value in values if value is not None]
    return f"{fmean(known):.4f}" if known else ""
