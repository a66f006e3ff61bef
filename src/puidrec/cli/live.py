"""A table that grows while a study runs: on a terminal only, on standard error, and gone when the study is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from puidrec.experiments.job import Result

if TYPE_CHECKING:
    from puidrec.experiments.study import Event


class LiveTable:
    """Shows jobs done, running means per method, and the time left. Call it with each event of a study."""

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
    return f"{np.mean(known):.4f}" if known else ""
