"""What is to be run: the cells of the tables, how many, and about how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puidrec.experiments.cells import Cell
from puidrec.methods import get_method

SECONDS = {"coat": (0.1, 1.5), "yahoo-r3": (0.5, 8.0), "kuairec": (2.5, 20.0)}
"""Of an evaluation, and of 300 epochs of a plain fit, on one quiet core; imputation and benchmarks take longer."""
LARGE = ("yahoo-r3", "kuairec")
"""Data sets of hundreds of thousands of rows: under the paper's settings their tables take the first seed only."""

QUICK_EPOCHS = {"coat": 40, "yahoo-r3": 15, "kuairec": 15}


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    seeds: int = 3
    quick: bool = False

    def limits(self, data: str) -> Mapping[str, Any]:
        """Settings that shorten training; a quick run shows that everything works, and no more."""
        return {"epochs": QUICK_EPOCHS[data], "patience": 0} if self.quick else {}

    def repeats(self, data: str, preset: str) -> range:
        """The seeds of a preset on a data set."""
        return range(1 if data in LARGE and preset != "own" else self.seeds)

    def pick(self, everything: Sequence[Any], few: Sequence[Any]) -> Sequence[Any]:
        """All of something, or the few that a quick run takes."""
        return few if self.quick else everything


@dataclass(frozen=True)
class Planned:
    """The cells of one question, and the lines that say what is left out."""

    experiment: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = field(default=())


Folders = Mapping[str, Path]


def estimated_seconds(cells: Sequence[Cell], workers: int) -> float:
    """A rough guess, so that someone knows whether to wait or to come back."""
    return sum(_seconds(cell) for cell in {cell.key: cell for cell in cells}.values()) / max(1, workers)


def _seconds(cell: Cell) -> float:
    spec = get_method(cell.method)
    evaluation, training = SECONDS.get(cell.data.name, (0.1, 1.0))
    if spec.family == "closed":
        return evaluation
    factor = (1.5 if spec.imputes else 1.0) * (1.7 if spec.benchmark else 1.0)
    return evaluation + training * factor * cell.resolved.epochs / 300
