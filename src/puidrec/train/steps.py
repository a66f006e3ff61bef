"""Steps of the solver: what the slope of the objective says that the parameters should change by.

Either all parameters at once (`joint_step`), or users and items in turns (`sweep`): a few steps of conjugate gradients
for all rows of a side at once, without forming their matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.train.preconditioner import Solve, metric_of, positive, precondition, similar_rows
from puidrec.train.quadratic import Quadratic, Reduce, Rows, alone, both_slopes
from puidrec.train.sides import Model, Point, centred

STEPS = 2
"""Steps of conjugate gradients per side and sweep: the next sweep starts where they end."""
FEATURE_STEPS = 2
"""Times as many steps for a side with features, whose weights and own parameters explain each other."""


def sweep(quadratic: Quadratic, model: Model, point: Point, steps: int = STEPS) -> Point:
    """Users given items, items given users, then the mean; each lowers J."""
    point = dict(point)
    _improve(Rows.of_users(quadratic, model.scores(point)), model, point, "user", model.reduce, steps)
    _improve(Rows.of_items(quadratic, model.scores(point)), model, point, "item", alone, steps)
    return centred(model, point)


class JointStep(NamedTuple):
    """A change of both sides at once, what it was made of, and the scores of the logged pairs that were on the way."""

    change: Point
    slope: Point
    """−½ ∂J/∂parameters."""
    known: dict[int, Tensor]


def joint_step(
    quadratic: Quadratic, model: Model, point: Point, scores: LowRank, metric: dict[str, Tensor]
) -> JointStep:
    """M⁻¹ times the slope, M without what users and items share: one pass over the log for all parameters.

    scores: those of the point. metric: what M⁻¹ is made of; where that is missing it is made and put in.
    """
    users, items = Rows.of_users(quadratic, scores), Rows.of_items(quadratic, scores)
    of_users, of_items, known = both_slopes(quadratic, users, items, scores)
    off = model.from_centre(point)
    slope = {"mean": model.reduce(of_users[:, -1].sum(dtype=torch.float64)).to(of_users)}
    change = {"mean": torch.zeros_like(point["mean"])}
    sides = (("user", users, model.users, of_users, model.reduce), ("item", items, model.items, of_items, alone))
    for name, rows, side, of_rows, reduce in sides:
        if not any(key.startswith(f"{name}s.") for key in metric):
            metric |= {f"{name}s.{key}": x for key, x in metric_of(rows, side, reduce).items()}
        own = {key.removeprefix(f"{name}s."): x for key, x in metric.items() if key.startswith(f"{name}s.")}
        slope[f"{name}s"] = (of_rows - side.weighted(off[f"{name}s"])) * side.free
        if side.features is not None:
            weights = side.features.penalty * point[f"{name}_features"]
            slope[f"{name}_features"] = reduce(side.features.transposed(of_rows)) - weights
        moved = precondition(own, rows, side, slope[f"{name}s"], slope.get(f"{name}_features"), reduce)
        change |= {key: x for key, x in zip((f"{name}s", f"{name}_features"), moved, strict=True) if x is not None}
    return JointStep(centred(model, change), slope, known)


def _improve(rows: Rows, model: Model, point: Point, name: str, reduce: Reduce, steps: int) -> None:
    """Lower J in one side's parameters; rows are solved apart unless features (and then the mean) join them."""
    side = model.users if rows.own_users else model.items
    own, slope, off = point[f"{name}s"], rows.slope(), model.from_centre(point)
    residual = [(slope - side.weighted(off[f"{name}s"])) * side.free]
    if side.features is None:
        solve_similar = similar_rows(rows, side, reduce)
        if rows.quadratic.same_matrix:
            point[f"{name}s"] = own + solve_similar(residual)[0]
            return
        matrix = lambda v: [rows.times(v[0]).add_(side.weighted(v[0]))]  # noqa: E731
        point[f"{name}s"] = own + conjugate_gradients(matrix, residual, solve_similar, _row_dots, steps)[0]
        return
    diagonal = rows.diagonal()
    inverse = [side.free / positive(diagonal + side.weighted(torch.ones_like(own)), side.free)]
    features, weights = side.features, point[f"{name}_features"]
    residual += [reduce(features.transposed(slope)) - features.penalty * weights, reduce(slope[:, -1].sum())]
    squares = features._replace(values=features.values.square())
    powers = reduce(squares.transposed(diagonal)) + features.penalty
    inverse += [1.0 / powers.clamp_min(torch.finfo(powers.dtype).tiny), 1.0 / reduce(diagonal[:, -1].sum())]

    def joint(v: Sequence[Tensor]) -> list[Tensor]:
        z = v[0] + features.times(v[1])
        z[:, -1] += v[2]
        moved = rows.times(z)
        shared = reduce(features.transposed(moved)) + features.penalty * v[1]
        return [(moved + side.weighted(v[0])) * side.free, shared, reduce(moved[:, -1].sum())]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        own_part = reduce(torch.sum(a[0] * b[0], dtype=torch.float64))
        total = own_part + torch.sum(a[1] * b[1], dtype=torch.float64) + (a[2] * b[2]).double()
        return total.to(a[0])

    def solve_diagonal(v: Sequence[Tensor]) -> list[Tensor]:
        return [r * m for r, m in zip(v, inverse, strict=True)]

    change = conjugate_gradients(joint, residual, solve_diagonal, dot, FEATURE_STEPS * steps)
    point |= {f"{name}s": own + change[0], f"{name}_features": weights + change[1], "mean": point["mean"] + change[2]}


def conjugate_gradients(
    matrix: Callable[[Sequence[Tensor]], list[Tensor]],
    residual: list[Tensor],
    precondition: Solve,
    dot: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor],
    steps: int,
) -> list[Tensor]:
    """A few steps towards A x = residual from x = 0.

    `dot` gives one number, or one per row where the rows are systems of their own.
    """
    direction = scaled = precondition(residual)
    size, x = dot(residual, scaled), list[Tensor]()
    for step in range(steps):
        product = matrix(direction)
        length = _ratio(size, dot(direction, product))
        moves = [length * p for p in direction]
        x = [a.add_(p) for a, p in zip(x, moves, strict=True)] if x else moves
        if step + 1 == steps:
            break
        residual = [torch.addcmul(r, length, q, value=-1) for r, q in zip(residual, product, strict=True)]
        scaled = precondition(residual)
        size, before = dot(residual, scaled), size
        beta = _ratio(size, before)
        direction = [torch.addcmul(y, beta, p) for y, p in zip(scaled, direction, strict=True)]
    return x


def _row_dots(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return (a[0] * b[0]).sum(1, keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a/b, 0 where b is not positive: such a row is solved already."""
    return torch.where(b > 0.0, a / b.clamp_min(torch.finfo(b.dtype).tiny), 0.0)
