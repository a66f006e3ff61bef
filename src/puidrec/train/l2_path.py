"""The strength of L2, chosen along a path from strong to weak instead of by stopping early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from puidrec.errors import InputError
from puidrec.train.quadratic import Objective
from puidrec.train.solver import TOLERANCE, Model, Point, Sweep, solve

MAX_STRENGTHS = 8
"""More points on a path than this would be choosing noise."""


class PathPoint(NamedTuple):
    """A strength of L2, its solution, and how good the caller found it."""

    strength: float
    solution: Sweep
    judgement: float


def solve_path(
    at: Callable[[float], tuple[Objective, Model]],
    strengths: Sequence[float],
    judge: Callable[[Point], float],
    start: Callable[[Model], Point],
    *,
    margin: float = 0.0,
    patience: int = 2,
    rough: float = 3e-3,
    tolerance: float = TOLERANCE,
) -> tuple[PathPoint, list[PathPoint]]:
    """Solve from the strongest L2 to the weakest, each from the solution before, and take the best judged one.

    at: problem and model of a strength. judge: higher is better; within `margin` of the best the strongest L2 wins, and
    after `patience` strengths without a better one the rest is left out. Points are solved to `rough`, the chosen one
    to `tolerance`. Returns the chosen point and all that were tried.
    """
    if not 1 <= len(strengths) <= MAX_STRENGTHS:
        raise InputError("a path needs a few strengths", found=len(strengths), expected=f"1 to {MAX_STRENGTHS}")
    tried: list[PathPoint] = []
    for strength in sorted(strengths, reverse=True):
        problem, model = at(strength)
        fresh = start(model)
        solution = solve(problem, model, _revived(tried[-1].solution.point, fresh) if tried else fresh, tolerance=rough)
        tried.append(PathPoint(strength, solution, judge(solution.point)))
        best = max(point.judgement for point in tried)
        chosen = next(point for point in tried if point.judgement >= best - margin)
        if len(tried) - tried.index(chosen) > patience:
            break
    problem, model = at(chosen.strength)
    final = solve(problem, model, chosen.solution.point, tolerance=tolerance)
    return chosen._replace(solution=final, judgement=judge(final.point)), tried


def _revived(point: Point, fresh: Point) -> Point:
    """The items' empty columns drawn anew: from exactly 0 on both sides a column could never grow again."""
    empty = point["items"].abs().amax(0) == 0.0
    empty[-1] = False
    revive = {name for name in ("items", "item_features") if name in point}
    return {name: torch.where(empty, fresh[name], x) if name in revive else x for name, x in point.items()}
