"""How commands speak: tables for people, JSON for machines, progress only on a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

console = Console(highlight=False)


def spoken_for() -> bool:
    """Whether this is one of several processes of a run (`torchrun`) and another one speaks for all."""
    several = "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    return several and os.environ.get("RANK", "0") != "0"


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
    """A progress bar on standard error that stays silent when it is not a terminal."""
    terminal = Console(stderr=True)
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=terminal, transient=True, disable=not terminal.is_terminal or spoken_for(),
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
