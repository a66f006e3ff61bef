"""Tuning: the trials of one method, ranked by validation rows alone; test rows are never looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.atomic import atomic_files, write_json, write_text
from puidrec.errors import PuidError
from puidrec.experiments.cells import Cell
from puidrec.experiments.run import to_toml
from puidrec.experiments.search import trials
from puidrec.experiments.study import Progress, run_study


@dataclass(frozen=True)
class Trial:
    """One setting and what the validation rows say of it."""

    number: int
    """0 is the settings as given; the others are drawn."""
    settings: dict[str, Any]
    """In which it departs from the method's defaults."""
    scores: dict[int, float | None]
    """Validation score by seed; a seed that failed is not there, one that nothing validates has None."""
    error: str | None = None
    """Why a seed failed, where one did."""

    @property
    def score(self) -> float | None:
        """The mean over seeds; None where a seed failed or nothing was validated."""
        values = [value for value in self.scores.values() if value is not None]
        complete = self.error is None and len(values) == len(self.scores)
        return float(np.mean(values)) if complete and values else None

    def plain(self) -> dict[str, Any]:
        """A row of `trials.json`."""
        scores = {str(seed): score for seed, score in self.scores.items()}
        return {
            "trial": self.number, "settings": self.settings, "validation": self.score, "seeds": scores,
            "error": self.error,
        }  # fmt: skip


def tune(
    cell: Cell,
    seeds: Sequence[int],
    out: Path | None = None,
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Try `cell.budget` settings under every seed; the trials from best to worst.

    The draws are those of the first seed, so that all seeds judge the same settings. Equal scores keep the order of
    the draws: the settings as given come first.
    """
    by_seed = [trials(replace(cell, seed=seed), draws_seed=seeds[0]) for seed in seeds]
    done = run_study([t for part in by_seed for t in part], out, engine=engine, workers=workers, progress=progress)
    scores = {result.cell.key: result.validation for result in done}
    errors = {failure.cell.key: failure.error for failure in done.failures}
    found = []
    for number, same in enumerate(zip(*by_seed, strict=True)):
        settled = {trial.seed: scores[trial.key] for trial in same if trial.key in scores}
        error = next((errors[trial.key] for trial in same if trial.key in errors), None)
        found.append(Trial(number, dict(same[0].settings), settled, error))
    if all(trial.error is not None for trial in found):
        raise PuidError(f"every trial of {cell.method} failed; the first: {found[0].error}")
    return sorted(found, key=lambda trial: (trial.error is not None, -np.inf if trial.score is None else -trial.score))


def write_tuning(out: Path, cell: Cell, ranked: Sequence[Trial]) -> None:
    """Write trials.json, and best.toml, which `puid train -c` takes as it is; both or neither."""
    chosen = {"method": cell.method, "protocol": cell.protocol, **ranked[0].settings}
    with atomic_files(out) as stage:
        write_json(stage / "trials.json", [trial.plain() for trial in ranked])
        write_text(stage / "best.toml", to_toml(chosen))
