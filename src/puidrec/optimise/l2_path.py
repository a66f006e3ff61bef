"""`dim` and L2 chosen together on held-out logged rows, as people do by hand.

A nested path: dim 1, 2, 4, …, 32 and around each the L2 at ½, 1 and 2 times the last one's (further where the edge
wins), each fit warm-started from its neighbour and rough, judged by the error of held-out rows; it stops growing when
two dims in a row do not gain. Neither alone will do: L2 cannot tell a strong column from noise, dim takes nothing off.
Few rows choose badly, so that small logs are divided into five folds, each held out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from puidrec.losses.pair_loss import Objective
from puidrec.optimise.least_squares import LeastSquares, grown
from puidrec.optimise.model import Model, Point
from puidrec.scores.log import Column, exact_sum

DIMS = (1, 2, 4, 8, 16, 32)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What L2 is multiplied by."""
ROUGH = LeastSquares(tolerance=2e-3, max_sweeps=30)
"""Fits that are compared only."""
MARGIN = 1e-4
"""Share of the error that a fit must gain: less is rounding."""
MISSES = 2
"""Dims in a row that do not gain, after which the path ends."""


class Fold(NamedTuple):
    """Which rows train and which judge: weights 1 and 0, and 0 and 1."""

    kept: Column
    held_out: Column


@dataclass(frozen=True)
class Choice:
    """The dim and the factor of L2 that held-out rows chose, and the path walked."""

    dim: int
    factor: float
    error: float
    tried: tuple[tuple[int, float, float], ...] = ()
    """(dim, factor, error of held-out rows)."""

    def describe(self) -> dict[str, Any]:
        """For reports, in plain values."""
        return {"dim": self.dim, "l2_factor": self.factor, "tried": len(self.tried)}


def choose(
    objective: Objective,
    model_of: Callable[[int, float], Model],
    start: Point,
    folds: Sequence[Fold],
    *,
    dims: Sequence[int] = DIMS,
    factors: Sequence[float] = FACTORS,
    progress: Callable[[int, float], None] | None = None,
) -> Choice:
    """Walk the path.

    objective: of all rows. model_of: (dim, factor of L2) → a model. start: a point of vectors without columns.
    """
    problems = [_on(objective, fold) for fold in folds]
    points = [ROUGH.minimise(problem, model_of(0, 1.0), start).point for problem in problems]
    tried: list[tuple[int, float, float]] = []
    best = Choice(dims[0], 1.0, float("inf"))
    at, misses = factors.index(1.0), 0
    for dim in dims:
        wide = [
            grown(problem, model_of(dim, factors[at]), point) for problem, point in zip(problems, points, strict=True)
        ]
        known: dict[int, tuple[float, list[Point]]] = {}

        def error_at(k: int, wide: list[Point], dim: int = dim, known: dict[int, Any] = known) -> float:
            if k not in known:
                model = model_of(dim, factors[k])
                fitted = [
                    ROUGH.minimise(problem, model, point).point for problem, point in zip(problems, wide, strict=True)
                ]
                pairs = zip(problems, folds, fitted, strict=True)
                known[k] = sum(_error(problem, fold, model, point) for problem, fold, point in pairs), fitted
                tried.append((dim, factors[k], known[k][0]))
                if progress is not None:
                    progress(dim, known[k][0])
            return float(known[k][0])

        here = error_at(at, wide)
        for way in (-1, 1):
            while 0 <= at + way < len(factors) and error_at(at + way, known[at][1]) < here * (1.0 - MARGIN):
                at, here = at + way, error_at(at + way, known[at][1])
        points = known[at][1]
        if here < best.error * (1.0 - MARGIN):
            best, misses = Choice(dim, factors[at], here), 0
        else:
            misses += 1
            if misses == MISSES:
                break
    return replace(best, tried=tuple(tried))


def _on(objective: Objective, fold: Fold) -> Objective:
    """The same objective of the rows that train."""
    log, columns = objective.log, dict(objective.columns)
    for end in ("a", "b"):
        columns[end] = log.map(torch.mul, columns[end], fold.kept)
    return replace(objective, columns=columns, scale=1.0 / max(float(log.sum(exact_sum, columns["b"])), 1.0))


def _error(problem: Objective, fold: Fold, model: Model, point: Point) -> float:
    """Σ of the loss of the rows that judge."""
    factors = model.factors(point)
    s = problem.log.scores(factors.lefts[0], factors.rights[0])
    columns = {**problem.columns, "a": fold.held_out, "b": fold.held_out}
    judged = replace(problem, columns=columns)
    value = judged.on_rows(lambda s, row: exact_sum(judged.loss.value(s, row)))
    return float(problem.log.sum(value, s, *columns.values()))
