"""Least squares of low-rank scores, solved to the optimum: sides take turns, each by matrix-free conjugate gradients.

    minimise  J = Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant + penalty,   s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ

O are the logged pairs, D all pairs, m constant and of low rank. With one side fixed J is quadratic in the other:

    A_u = v FᵀF + Σ_{i∈O_u} c_ui f_i f_iᵀ + ρ,   f_i = (z_i, 1),

so a *sweep* (users, then items, a few steps of conjugate gradients each, then the mean) lowers it. Sweeps alone have a
long tail. So the sweep only proposes a direction: it is combined with the last one as in nonlinear conjugate gradients,
and J along it, a polynomial of degree four in the step, is minimised exactly. J therefore never rises.

Robust weights depend on the scores: such a problem gives, at the current scores, a quadratic that lies above its loss
and touches it there (`train.majorise`); lowering one lowers the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import LogPattern
from puidrec.errors import PuidError
from puidrec.train.quadratic import Objective, Quadratic, Reduce, Rows, alone, gram

STEPS = 2
"""Steps of conjugate gradients per side and sweep: the next sweep starts where they end."""
START_SD = 0.1
"""Spread of the items' first vectors; users start at 0, so a start does not depend on how users are divided."""
SETTLED = 2
"""Sweeps in a row that must gain less than the tolerance."""
FEATURE_STEPS = 2
"""Times as many steps for a side with features, whose weights and own parameters explain each other."""
HALVINGS = 4
NARROW_EVERY, NEGLIGIBLE, RISE = 2, 1e-3, 1e-8
"""Sweeps after which columns are looked at; the length, against the longest, below which a shrinking one is left out;
the share of the objective that this may cost, which is the rounding error of the objective itself."""
Point = dict[str, Tensor]
"""`users` and `items`: own vectors and biases, [n, dim + 1]; `user_features`, `item_features`: the same per feature,
where there are features; `mean`: μ."""


class UnsolvableError(PuidError):
    """The problem has no finite optimum, or the numbers left the range of floats."""


class Features(NamedTuple):
    """A sparse design, and the L2 of its weights per feature and column, [features, dim + 1]."""

    pattern: LogPattern
    values: Tensor
    penalty: Tensor

    def times(self, weights: Tensor) -> Tensor:
        """X W."""
        return self.pattern.matmul(self.values, weights)

    def transposed(self, rows: Tensor) -> Tensor:
        """Xᵀ T."""
        return self.pattern.matmul_transposed(self.values, rows)


@dataclass(frozen=True, eq=False)
class Side:
    """What the entities of a side are made of: z = own vector and bias + x W, and what their squares cost."""

    penalty: Tensor
    """L2 of an entity's own parameters, per column, [dim + 1]; infinite where there is no such parameter."""
    features: Features | None = None

    @property
    def free(self) -> Tensor:
        """1 where entities have a parameter of their own, else 0."""
        return torch.isfinite(self.penalty).to(self.penalty)

    @property
    def cost(self) -> Tensor:
        """The penalty, 0 where there is no parameter."""
        return torch.where(torch.isfinite(self.penalty), self.penalty, 0.0)

    def narrowed(self, width: int) -> Side:
        """The same side with vectors of `width` − 1 numbers; the penalty does not tell one from another."""
        features = self.features and self.features._replace(penalty=self.features.penalty[:, -width:])
        return Side(self.penalty[-width:], features)

    def rows(self, own: Tensor, weights: Tensor | None) -> Tensor:
        """Vectors and biases of all entities, [n, dim + 1]."""
        return own if self.features is None or weights is None else own + self.features.times(weights)


@dataclass(frozen=True, eq=False)
class Model:
    """Both sides. Scores are inner products of [z_u, b_u, 1] and [z_i, 1, b_i + μ], as in `backbones.base`."""

    users: Side
    items: Side
    reduce: Reduce = alone

    def start(self, n_users: int, n_items: int, mean: float, generator: torch.Generator) -> Point:
        """Users at 0, items drawn at random, the mean as given."""
        width = self.users.penalty.numel()
        point = {"users": torch.zeros(n_users, width), "items": torch.zeros(n_items, width)}
        for name, side in (("user_features", self.users), ("item_features", self.items)):
            if side.features is not None:
                point[name] = torch.zeros(side.features.pattern.n_items, width)
        for name in ("items", "item_features"):
            if name in point:
                point[name][:, :-1].normal_(0.0, START_SD, generator=generator)
        point["items"] *= self.items.free.cpu()
        point["mean"] = torch.tensor(mean)
        return {name: value.to(self.users.penalty) for name, value in point.items()}

    def narrowed(self, width: int) -> Model:
        """The same model with fewer columns."""
        return replace(self, users=self.users.narrowed(width), items=self.items.narrowed(width))

    def padded(self, point: Point) -> Point:
        """A point of a narrowed model, with zeros for the columns it did without."""
        missing = self.users.penalty.numel() - point["users"].shape[1]
        return {k: x if x.ndim == 0 else torch.nn.functional.pad(x, (missing, 0)) for k, x in point.items()}

    def scores(self, point: Mapping[str, Tensor], *, step: bool = False) -> LowRank:
        """The scores of a point, or (`step`) the change of factors that a change of parameters makes."""
        users = self.users.rows(point["users"], point.get("user_features"))
        items = self.items.rows(point["items"], point.get("item_features"))
        ones = torch.zeros_like if step else torch.ones_like
        left = torch.cat([users, ones(users[:, :1])], 1)
        right = torch.cat([items[:, :-1], ones(items[:, :1]), items[:, -1:] + point["mean"]], 1)
        return LowRank.of(left, right)

    def penalty_along(self, point: Point, step: Point) -> np.ndarray:
        """Coefficients of t⁰, t¹, t² of the penalty at point + t · step."""
        own, shared = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        own += self.reduce(_penalty_polynomial(self.users.cost, point["users"], step["users"])).cpu()
        shared += _penalty_polynomial(self.items.cost, point["items"], step["items"]).cpu()
        for name, side in (("user_features", self.users), ("item_features", self.items)):
            if side.features is not None:
                shared += _penalty_polynomial(side.features.penalty, point[name], step[name]).cpu()
        return (own + shared).numpy()

    def penalty(self, point: Point) -> float:
        """The penalty of a point."""
        return float(self.penalty_along(point, {name: torch.zeros_like(x) for name, x in point.items()})[0])


class Sweep(NamedTuple):
    """Where the solver stands after a sweep: enough to go on to the same bits on the same machine."""

    number: int
    objective: float
    point: Point
    direction: Point
    proposal: Point
    """What the last sweep alone would have changed."""
    settled: int
    """Sweeps in a row whose gain was below the tolerance."""


def solve(
    problem: Objective,
    model: Model,
    start: Point | Sweep,
    *,
    tolerance: float = 1e-8,
    max_sweeps: int = 200,
    steps: int = STEPS,
    after: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Minimise problem + penalty, until `SETTLED` sweeps in a row lower it by less than `tolerance` of its value.

    start: a point, or the sweep to go on from. after: called after every sweep, to keep a history or a checkpoint.
    Columns that L2 has shrunk to nothing are left out of the work (`Model.padded` puts them back).
    """
    state = start if isinstance(start, Sweep) else _first(problem, model, start)
    while state.settled < SETTLED and state.number < max_sweeps:
        width = state.point["users"].shape[1]
        state = _next(problem, model.narrowed(width), state, tolerance, steps)
        if state.number % NARROW_EVERY == 0:
            state = _narrowed(problem, model.narrowed(width), state)
        if after is not None:
            after(state)
    return state._replace(point=model.padded(state.point), direction={}, proposal={})


def _narrowed(problem: Objective, model: Model, state: Sweep) -> Sweep:
    """Turn the vectors to their principal axes, which changes neither scores nor penalty, and drop those that are
    negligible and still shrinking."""
    rows, steps = model.scores(state.point), model.scores(state.direction, step=True)
    power, growth = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for x, dx, reduce in (
        (rows.lefts[0], steps.lefts[0], model.reduce), (rows.rights[0], steps.rights[0], alone),
    ):  # fmt: skip
        squares, cross = reduce(torch.stack([gram(x, x), gram(x, dx)]))
        scale = squares.diagonal().sum().clamp_min(1e-300)
        power, growth = power + squares[:-2, :-2] / scale, growth + cross[:-2, :-2] / scale
    values, axes = torch.linalg.eigh(power)
    growing = torch.einsum("ik,ij,jk->k", axes, growth, axes) > 0.0
    large = values > NEGLIGIBLE**2 * values[-1].clamp_min(1e-6)  # 1 is the share of all columns, biases among them
    large[-1] = True
    kept = axes[:, large | growing].to(state.point["users"])

    def turned(point: Point) -> Point:
        return {k: x if x.ndim == 0 else torch.cat([x[:, :-1] @ kept, x[:, -1:]], 1) for k, x in point.items()}

    if kept.shape[1] == axes.shape[1]:
        return state
    point, narrow = turned(state.point), model.narrowed(kept.shape[1] + 1)
    objective = problem.value(narrow.scores(point)) + narrow.penalty(point)
    if objective > state.objective * (1.0 + RISE):
        return state
    return state._replace(
        objective=min(objective, state.objective), point=point, direction=turned(state.direction),
        proposal=turned(state.proposal),
    )  # fmt: skip


def _first(problem: Objective, model: Model, point: Point) -> Sweep:
    objective = problem.value(model.scores(point)) + model.penalty(point)
    _check_finite(objective, "at the start")
    return Sweep(0, objective, point, {}, {}, 0)


def _next(problem: Objective, model: Model, state: Sweep, tolerance: float, steps: int) -> Sweep:
    """One sweep, the direction it gives, and the best step along it."""
    scores = model.scores(state.point)
    quadratic = problem.at(scores)
    proposal = _change(sweep(quadratic, model, state.point, steps), state.point)
    t, gain, direction = 0.0, 0.0, proposal
    for direction in (_direction(model, proposal, state), proposal):
        polynomial = quadratic.along(scores, model.scores(direction, step=True))
        polynomial[:3] += model.penalty_along(state.point, direction)
        t, gain = best_step(polynomial)
        if gain < 0.0:
            break
    if not isinstance(problem, Quadratic):
        t, gain = _guarded(problem, model, state, direction, t)
    _check_finite(gain, f"in sweep {state.number + 1}")
    point = {name: x + t * direction[name] for name, x in state.point.items()} if gain < 0.0 else state.point
    objective = state.objective + min(gain, 0.0)
    settled = state.settled + 1 if -gain <= tolerance * max(abs(objective), 1e-12) else 0
    return Sweep(state.number + 1, objective, point, direction, proposal, settled)


def _guarded(problem: Objective, model: Model, state: Sweep, direction: Point, t: float) -> tuple[float, float]:
    """The step, halved until the loss itself (not only the quadratic in its place) falls; 0 if it does not."""
    for _ in range(HALVINGS):
        point = {name: x + t * direction[name] for name, x in state.point.items()}
        gain = problem.value(model.scores(point)) + model.penalty(point) - state.objective
        if gain < 0.0:
            return t, gain
        t *= 0.5
    return 0.0, 0.0


def _direction(model: Model, proposal: Point, state: Sweep) -> Point:
    """The sweep's proposal plus what remains of the last direction (Polak–Ribière, never negative)."""
    if not state.proposal:
        return proposal
    difference = {name: x - state.proposal[name] for name, x in proposal.items()}
    before = _inner(model, state.proposal, state.proposal)
    beta = max(_inner(model, proposal, difference) / before, 0.0) if before > 0.0 else 0.0
    return {name: x + beta * state.direction[name] for name, x in proposal.items()} if beta else proposal


def _inner(model: Model, first: Point, second: Point) -> float:
    """Mean product of the changes of users' rows plus that of items' rows."""
    means = []
    for name, side, reduce in (("user", model.users, model.reduce), ("item", model.items, alone)):
        a, b = (side.rows(point[f"{name}s"], point.get(f"{name}_features")) for point in (first, second))
        count = torch.tensor(len(a), dtype=torch.float64, device=a.device)
        total, count = reduce(torch.stack([torch.sum(a * b, dtype=torch.float64), count]))
        means.append(float(total / count.clamp_min(1.0)))
    return sum(means)


def best_step(polynomial: np.ndarray) -> tuple[float, float]:
    """argmin over t of Σ p_k t^k (degree four at most), and the change of value from t = 0."""
    gains = np.concatenate([[0.0], polynomial[1:]])
    if not np.isfinite(gains).all():
        return 0.0, float("nan")
    roots = np.polynomial.polynomial.polyroots(np.trim_zeros(np.polynomial.polynomial.polyder(gains), "b"))
    real = [0.0, *(float(root.real) for root in np.atleast_1d(roots) if abs(root.imag) <= 1e-6 * (1 + abs(root)))]
    values = np.polynomial.polynomial.polyval(np.array(real), gains)
    best = int(np.argmin(values))
    return real[best], float(values[best])


def sweep(quadratic: Quadratic, model: Model, point: Point, steps: int = STEPS) -> Point:
    """Users given items, items given users, then the mean; each lowers J."""
    point = dict(point)
    scores = model.scores(point)
    _improve(Rows.of_users(quadratic, scores), model.users, point, "user", model.reduce, steps)
    scores = model.scores(point)
    _improve(Rows.of_items(quadratic, scores), model.items, point, "item", alone, steps)
    return _centred(model, point)


def _improve(rows: Rows, side: Side, point: Point, name: str, reduce: Reduce, steps: int) -> None:
    """Lower J in one side's parameters; rows are solved apart unless features (and then the mean) join them."""
    own, slope = point[f"{name}s"], rows.slope()
    residual = [(slope - side.cost * own) * side.free]
    if side.features is None and rows.quadratic.same_matrix and rows.gram is not None:
        point[f"{name}s"] = own + _solve_same(rows.gram[:-1], side, residual[0])
        return
    diagonal = rows.diagonal()
    inverse = [side.free / _positive(diagonal + side.cost, side.free)]
    if side.features is None:
        matrix = lambda v: [(rows.times(v[0]) + side.cost * v[0]) * side.free]  # noqa: E731
        point[f"{name}s"] = own + conjugate_gradients(matrix, residual, inverse, _row_dots, steps)[0]
        return
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
        return [(moved + side.cost * v[0]) * side.free, shared, reduce(moved[:, -1].sum())]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        own_part = reduce(torch.sum(a[0] * b[0], dtype=torch.float64))
        total = own_part + torch.sum(a[1] * b[1], dtype=torch.float64) + (a[2] * b[2]).double()
        return total.to(a[0])

    change = conjugate_gradients(joint, residual, inverse, dot, FEATURE_STEPS * steps)
    point |= {f"{name}s": own + change[0], f"{name}_features": weights + change[1], "mean": point["mean"] + change[2]}


def conjugate_gradients(
    matrix: Callable[[Sequence[Tensor]], list[Tensor]],
    residual: list[Tensor],
    inverse: list[Tensor],
    dot: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor],
    steps: int,
) -> list[Tensor]:
    """A few steps towards A x = residual from x = 0, preconditioned by `inverse` of the diagonal.

    `dot` gives one number, or one per row where the rows are systems of their own.
    """
    x = [torch.zeros_like(r) for r in residual]
    scaled = [r * m for r, m in zip(residual, inverse, strict=True)]
    direction, size = scaled, dot(residual, scaled)
    for step in range(steps):
        product = matrix(direction)
        length = _ratio(size, dot(direction, product))
        x = [a + length * p for a, p in zip(x, direction, strict=True)]
        if step + 1 == steps:
            break
        residual = [r - length * q for r, q in zip(residual, product, strict=True)]
        scaled = [r * m for r, m in zip(residual, inverse, strict=True)]
        size, before = dot(residual, scaled), size
        direction = [y + _ratio(size, before) * p for y, p in zip(scaled, direction, strict=True)]
    return x


def _row_dots(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return (a[0] * b[0]).sum(1, keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a/b, 0 where b is not positive: such a row is solved already."""
    return torch.where(b > 0.0, a / b.clamp_min(torch.finfo(b.dtype).tiny), 0.0)


def _solve_same(matrix: Tensor, side: Side, residual: Tensor) -> Tensor:
    """(A + ρ)⁻¹ residual of all rows at once, columns without parameters left at 0."""
    free = side.free.double()
    whole = free[:, None] * matrix * free + torch.diag(side.cost.double() + (1.0 - free))
    factor, failed = torch.linalg.cholesky_ex(whole)
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        raise UnsolvableError("a side of the model is singular; set l2 above 0, or lower dim")
    return residual @ torch.cholesky_inverse(factor).to(residual)


def _positive(diagonal: Tensor, free: Tensor) -> Tensor:
    """The diagonal where there are parameters, 1 elsewhere; refused where a parameter has no weight at all."""
    diagonal = torch.where(free > 0, diagonal, 1.0)
    if not bool((diagonal > 0).all()):
        rows = int((diagonal <= 0).any(1).sum())
        raise UnsolvableError(
            f"{rows} users or items have no rows and no L2, so nothing fixes their parameters; set l2 above 0"
        )
    return diagonal


def _centred(model: Model, point: Point) -> Point:
    """Move what all own biases of a side share into the mean: the same scores at a lower penalty."""
    for name, side, reduce in (("users", model.users, model.reduce), ("items", model.items, alone)):
        biases = point[name][:, -1]
        total, count = reduce(torch.stack([biases.sum(dtype=torch.float64), biases.new_tensor(len(biases)).double()]))
        shift = (total / count.clamp_min(1.0)).to(biases) * side.free[-1]
        point[name] = torch.cat([point[name][:, :-1], (biases - shift)[:, None]], 1)
        point["mean"] = point["mean"] + shift
    return point


def _penalty_polynomial(cost: Tensor, values: Tensor, step: Tensor) -> Tensor:
    """Coefficients of Σ cost (x + t y)²."""
    terms = (values * values, 2.0 * values * step, step * step)
    return torch.stack([torch.sum(cost * term, dtype=torch.float64) for term in terms])


def _change(after: Point, before: Point) -> Point:
    return {name: after[name] - x for name, x in before.items()}


def _check_finite(value: float, when: str) -> None:
    if not np.isfinite(value):
        raise UnsolvableError(
            f"the objective is not a finite number {when}; check the ratings and weights, or raise l2"
        )
