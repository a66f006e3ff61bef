"""`dim` and L2 chosen together on held-out logged rows, as people do by hand.

A nested path: dim 1, 2, 4, …, 32 and around each the L2 at ½, 1 and 2 times the last one's (further
where the edge wins), each fit warm-started from its neighbour and rough, judged by the error of
held-out rows; it stops growing when two dims in a row do not gain. Neither alone will do: L2 cannot
tell a strong column from noise, dim takes nothing off. Few rows choose badly, so that small logs
are divided into five folds, each held out once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
ROUGH = LeastSquares(tolerance=5e-3, max_sweeps=15)
"""Fits that are compared only."""
MARGIN = 1e-4
"""Share of the error that a fit must gain: less is rounding."""
HOPELESS = 0.01
"""Share of the best error so far above which no other L2 is tried at a dim."""
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

    objective: of all rows. model_of: (dim, factor of L2) → a model. start: a point of vectors
    without columns.
    """
    walks = [_Walk(_on(objective, fold), fold, start) for fold in folds]
    for walk in walks:
        walk.point = ROUGH.minimise(walk.objective, model_of(0, 1.0), start).point
    tried: list[tuple[int, float, float]] = []
    best = Choice(dims[0], 1.0, float("inf"))
    at, misses = factors.index(1.0), 0
    for dim in dims:
        errors: dict[int, float] = {}

        def error_at(k: int, dim: int = dim, errors: dict[int, float] = errors) -> float:
            if k not in errors:
                model = model_of(dim, factors[k])
                errors[k] = sum(walk.fitted(model, k) for walk in walks)
                tried.append((dim, factors[k], errors[k]))
                if progress is not None:
                    progress(dim, errors[k])
            return errors[k]

        if (
            dim == dims[0]
        ):  # all of them: an L2 that leaves no vectors says nothing of its neighbour
            at = min(range(len(factors)), key=lambda k: (error_at(k), abs(k - at)))
        here = error_at(at)
        for way in (-1, 1) if here < best.error * (1.0 + HOPELESS) else ():
            while 0 <= at + way < len(factors) and error_at(at + way) < here * (1.0 - MARGIN):
                at, here = at + way, error_at(at + way)
        for walk in walks:
            walk.settle(at)
        if here < best.error * (1.0 - MARGIN):
            best, misses = Choice(dim, factors[at], here), 0
        else:
            misses += 1
            if misses == MISSES:
                break
    return replace(best, tried=tuple(tried))


class _Walk:
    """One fold's way along the path: each fit starts at its neighbour, with its preconditioner."""

    def __init__(self, objective: Objective, fold: Fold, start: Point) -> None:
        self.objective, self.fold, self.point = objective, fold, start
        self.fits: dict[int, Point] = {}
        self.metric: Mapping[str, torch.Tensor] = {}

    def fitted(self, model: Model, k: int) -> float:
        """Fit at factor k; returns the error of the rows held out."""
        near = min(self.fits, key=lambda other: abs(other - k), default=None)
        start = grown(self.objective, model, self.point) if near is None else self.fits[near]
        found = ROUGH.minimise(self.objective, model, start, metric=self.metric)
        self.fits[k], self.metric = found.point, found.metric
        return _error(self.objective, self.fold, model, found.point)

    def settle(self, k: int) -> None:
        """Go on from the fit at factor k."""
        self.point, self.fits = self.fits[k], {}


def _on(objective: Objective, fold: Fold) -> Objective:
    """The same objective of the rows that train."""
    log, columns = objective.log, dict(objective.columns)
    for end in ("a", "b"):
        columns[end] = log.map(torch.mul, columns[end], fold.kept)
    return replace(
        objective, columns=columns, scale=1.0 / max(float(log.sum(exact_sum, columns["b"])), 1.0)
    )


def _error(problem: Objective, fold: Fold, model: Model, point: Point) -> float:
    """Σ of the loss of the rows that judge."""
    s = problem.log.scores(*model.factors(point))
    columns = {**problem.columns, "a": fold.held_out, "b": fold.held_out}
    value = problem.log.sum(lambda s, row: exact_sum(problem.loss.value(s, row)), s, row=columns)
    return float(value)
