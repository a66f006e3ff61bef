"""What commands print: tables for people, JSON for machines, progress only on a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from puidrec.experiments.job import Result
    from puidrec.experiments.study import Event

console = Console(highlight=False)


def another_process_prints() -> bool:
    """Whether this is one of several processes of a run (`torchrun`), of which the first one prints."""
    several = "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    return several and os.environ.get("RANK", "0") != "0"


def say(text: str, *, bold: bool = False, wrap: bool = True) -> None:
    """Print text as it is, without markup. wrap=False leaves long lines to the terminal: paths can then be copied."""
    console.print(text, style="bold" if bold else None, markup=False, soft_wrap=not wrap)


def print_json(content: Any) -> None:
    """Write JSON to standard output; numbers that are not finite become null."""
    sys.stdout.write(json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell).replace("[", r"\[") for cell in row))
    console.print(table)


def progress_bar() -> Progress:
    """A progress bar on standard error; none where that is not a terminal."""
    terminal = Console(stderr=True)
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=terminal, transient=True, disable=not terminal.is_terminal or another_process_prints(),
    )  # fmt: skip


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

    On standard error, only where that is a terminal, and gone when the study is done. Call it with each event.
    """

    def __init__(self, words: str, metrics: Sequence[str] = (), console: Console | None = None) -> None:
        self.words, self.metrics = words, list(metrics)
        self.done, self.total, self.fresh = 0, 0, 0
        self.values: dict[str, list[Result]] = {}
        self.failed: dict[str, int] = {}
        self.started = time.monotonic()
        terminal = console or Console(stderr=True)
        self.live = Live(
            get_renderable=self.render, console=terminal, transient=True, auto_refresh=True, refresh_per_second=2
        )
        self.shown = terminal.is_terminal

    def __enter__(self) -> Self:
        if self.shown:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.live.stop()

    def __call__(self, event: Event) -> None:
        """Take note of a job that ended."""
        from puidrec.experiments.job import Result

        self.done, self.total = event.done, event.total
        self.fresh += not event.resumed
        outcome, name = event.outcome, event.outcome.job.name
        if isinstance(outcome, Result):
            self.values.setdefault(name, []).append(outcome)
        else:
            self.failed[name] = self.failed.get(name, 0) + 1

    def render(self) -> Group:
        """What is known so far."""
        line = Text(f"{self.words}: {self.done} of {self.total or '?'} jobs, {self._time_left()}")
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method")
        for column in ("done", "failed", *self.metrics):
            table.add_column(column, justify="right")
        for name in dict.fromkeys([*self.values, *self.failed]):
            results = self.values.get(name, [])
            means = [_mean(results, metric) for metric in self.metrics]
            table.add_row(Text(name), str(len(results)), str(self.failed.get(name, 0) or ""), *means)
        return Group(line, ProgressBar(total=max(self.total, 1), completed=self.done, width=40), table)

    def _time_left(self) -> str:
        """From the pace of the jobs that ran just now; those found finished took no time."""
        if not self.fresh or self.done >= self.total:
            return "time left unknown" if self.done < self.total or not self.total else "writing"
        seconds = (time.monotonic() - self.started) / self.fresh * (self.total - self.done)
        minutes, rest = divmod(round(seconds), 60)
        return f"about {minutes}:{rest:02d} left"


def _mean(results: Sequence[Result], metric: str) -> str:
    """The mean over the seeds done; `validation` is a score like a metric."""
    values = [r.validation if metric == "validation" else r.metrics.get(metric) for r in results]
    known = [value for value in values if value is not None]
    return f"{fmean(known):.4f}" if known else ""
