"""The parameters of low-rank scores, and how one side of them is improved while the other is fixed.

    s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ,   z = own vector and bias + x W

With one side fixed a quadratic loss is quadratic in the other, row by row:

    A_u = v FᵀF + Σ_{i∈O_u} c_ui f_i f_iᵀ + ρ,   f_i = (z_i, 1).

Rows are improved by a few steps of conjugate gradients, all at once and without forming A_u. They are preconditioned by
what A_u would be if every row had met the others in proportion to how often they are met at all:

    M_u = v FᵀF + ρ + C_u S,   C_u = Σ_{i∈O_u} c_ui,   S = Σ_i C_i f_i f_iᵀ / Σ_i C_i.

L2 may grow with an entity's part of the log, ρ_u = ρ (1 − β + β n_u/n̄): C_u and n_u are proportional, or nearly so. One
d × d decomposition then inverts M_u for all rows, and it is A_u itself where c = 0. With few columns, where all
parameters move at once, A_u is inverted instead, and weights of features have a preconditioner of their own
(`FeatureAxes`).

L2 may also pull vectors to those of a given point, ρ ‖z − z⁰‖² (`Model.around`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from puidrec.backbones.base import row_factor
from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import LogPattern
from puidrec.errors import PuidError
from puidrec.train.quadratic import Quadratic, Reduce, Rows, alone, both_slopes, exact_sum

NARROW = 12
"""Columns, biases among them, up to which the matrices of all rows are formed and inverted."""
STEPS = 2
"""Steps of conjugate gradients per side and sweep: the next sweep starts where they end."""
START_SD = 0.1
"""Spread of the items' first vectors; users start at 0, so a start does not depend on how users are divided."""
SLIGHT = 1e-12
"""Share of the mean diagonal that preconditioners add to it."""
MANY_FEATURES = 600
"""Encoded features of a side from which what they share is left out of the preconditioner."""
FEATURE_STEPS = 2
"""Times as many steps for a side with features, whose weights and own parameters explain each other."""
Point = dict[str, Tensor]
"""`users` and `items`: own vectors and biases, [n, dim + 1]; `user_features`, `item_features`: the same per feature,
where there are features; `mean`: μ."""


Metric = Mapping[str, Tensor]
"""The inverse matrices of users and of items, or their `SimilarAxes`, by name."""


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
    share: Tensor | None = None
    """What the L2 of each entity's vector grows with, mean 1, [n]: its part of the logged rows; None: with nothing."""
    growing: float = 0.0
    """The part of the L2 of vectors that grows with `share`."""
    centre: Tensor | None = None
    """What L2 pulls the entities' own parameters to, [n, dim + 1]; None: 0."""

    @property
    def free(self) -> Tensor:
        """1 where entities have a parameter of their own, else 0."""
        return torch.isfinite(self.penalty).to(self.penalty)

    @property
    def cost(self) -> Tensor:
        """The penalty, 0 where there is no parameter."""
        return torch.where(torch.isfinite(self.penalty), self.penalty, 0.0)

    @cached_property
    def row_factor(self) -> Tensor | None:
        """What the L2 of each entity's vector is multiplied by, [n, 1]; None: 1 for all."""
        if self.share is None or self.growing == 0.0:
            return None
        return row_factor(self.share, self.growing)[:, None]

    def weighted(self, own: Tensor) -> Tensor:
        """L2 times a change of the entities' own parameters."""
        total = self.cost * own
        if self.row_factor is not None:
            total[:, :-1] *= self.row_factor
        return total

    def growing_cost(self) -> tuple[Tensor, Tensor]:
        """L2 per column: the part that is the same for all entities, and the part that grows with `share`."""
        growing = torch.zeros_like(self.cost)
        if self.row_factor is not None:
            growing[:-1] = self.growing * self.cost[:-1]
        return self.cost - growing, growing

    def narrowed(self, width: int) -> Side:
        """The same side with vectors of `width` − 1 numbers; the penalty does not tell one from another."""
        features = self.features and self.features._replace(penalty=self.features.penalty[:, -width:])
        centre = None if self.centre is None else self.centre[:, -width:]
        return replace(self, penalty=self.penalty[-width:], features=features, centre=centre)

    def rows(self, own: Tensor, weights: Tensor | None) -> Tensor:
        """Vectors and biases of all entities, [n, dim + 1]."""
        return own if self.features is None or weights is None else own + self.features.times(weights)


@dataclass(frozen=True, eq=False)
class Model:
    """Both sides. Scores are inner products of [z_u, b_u, 1] and [z_i, 1, b_i + μ], as in `backbones.base`."""

    users: Side
    items: Side
    reduce: Reduce = alone
    edge_share: float = 1.0
    """The L2 of vectors as a share of what a new column must be worth."""

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
        point["mean"] = torch.tensor(mean, dtype=torch.float64)
        return {name: value.to(self.users.penalty) for name, value in point.items()}

    @property
    def anchored(self) -> bool:
        """Whether L2 pulls to something other than 0: then the columns are those of what it pulls to."""
        return self.users.centre is not None

    def around(self, centre: Mapping[str, Tensor], share: float = 1.0) -> Model:
        """The same model with an L2 that pulls own vectors to this share of those of a point; all else to 0."""
        users, items = (_vectors(centre[name], share) for name in ("users", "items"))
        return replace(self, users=replace(self.users, centre=users), items=replace(self.items, centre=items))

    def from_centre(self, point: Mapping[str, Tensor]) -> Point:
        """The point less what L2 pulls it to."""
        sides = (("users", self.users), ("items", self.items))
        return {**point, **{name: point[name] - side.centre for name, side in sides if side.centre is not None}}

    @property
    def by_rows(self) -> bool:
        """Whether every entity has a vector of its own and nothing is shared: then columns may come and go."""
        sides = (self.users, self.items)
        return all(side.features is None and bool(torch.isfinite(side.penalty).all()) for side in sides)

    @property
    def penalised(self) -> bool:
        """Whether L2 keeps all own parameters from being undetermined."""
        return all(bool((side.penalty > 0.0).all()) for side in (self.users, self.items))

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
        """Coefficients of t¹ and t² of the penalty at point + t · step, after a 0 for t⁰."""
        return self._penalty_along(self.from_centre(point), step)

    def _penalty_along(self, point: Point, step: Point) -> np.ndarray:
        own = self.reduce(_products(self.users.weighted(step["users"]), (point["users"], step["users"]))).cpu()
        shared = _products(self.items.weighted(step["items"]), (point["items"], step["items"])).cpu()
        for name, side in (("user_features", self.users), ("item_features", self.items)):
            if side.features is not None:
                weighted = side.features.penalty * step[name]
                shared = shared + _products(weighted, (point[name], step[name])).cpu()
        linear, square = (own + shared).tolist()
        return np.array([0.0, 2.0 * linear, square])

    def penalty(self, point: Point) -> float:
        """The penalty of a point."""
        off = self.from_centre(point)
        return float(self._penalty_along(off, off)[2])


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
    """M⁻¹ times the slope, M without what sides, rows and features share: one pass over the log for all parameters.

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
            metric |= {f"{name}s.{key}": x for key, x in _metric(rows, side, reduce).items()}
        own = {key.removeprefix(f"{name}s."): x for key, x in metric.items() if key.startswith(f"{name}s.")}
        slope[f"{name}s"] = residual = (of_rows - side.weighted(off[f"{name}s"])) * side.free
        if "inverse" in own:
            change[f"{name}s"] = torch.bmm(own["inverse"], residual[:, :, None])[:, :, 0]
        else:
            axes = SimilarAxes(*(own[key] for key in SimilarAxes._fields))
            change[f"{name}s"] = axes.solver(_shares(rows, side))([residual])[0]
        if side.features is not None:
            key = f"{name}_features"
            slope[key] = reduce(side.features.transposed(of_rows)) - side.features.penalty * point[key]
            change[key] = FeatureAxes(*(own[part] for part in FeatureAxes._fields)).solve(slope[key])
    return JointStep(centred(model, change), slope, known)


def _metric(rows: Rows, side: Side, reduce: Reduce) -> Metric:
    """What M⁻¹ of a side is made of: of its rows' own parameters, and of the weights of its features."""
    own = {"inverse": inverse_rows(rows, side)} if rows.width <= NARROW else similar_axes(rows, side)._asdict()
    if side.features is not None:
        own |= feature_axes(rows, side.features, reduce)._asdict()
    return {name: x.contiguous() for name, x in own.items()}  # as they will be read from a checkpoint


def metric_width(metric: Metric) -> int:
    """The columns, biases among them, that a metric was made for."""
    return next((x.shape[-1] for key, x in metric.items() if key in ("users.inverse", "users.axes")), 0)


def _improve(rows: Rows, model: Model, point: Point, name: str, reduce: Reduce, steps: int) -> None:
    """Lower J in one side's parameters; rows are solved apart unless features (and then the mean) join them."""
    side = model.users if rows.own_users else model.items
    own, slope, off = point[f"{name}s"], rows.slope(), model.from_centre(point)
    residual = [(slope - side.weighted(off[f"{name}s"])) * side.free]
    if side.features is None:
        solve_similar = similar_rows(rows, side)
        if rows.quadratic.same_matrix:
            point[f"{name}s"] = own + solve_similar(residual)[0]
            return
        matrix = lambda v: [rows.times(v[0]).add_(side.weighted(v[0]))]  # noqa: E731
        point[f"{name}s"] = own + conjugate_gradients(matrix, residual, solve_similar, _row_dots, steps)[0]
        return
    diagonal = rows.diagonal()
    inverse = [side.free / _positive(diagonal + side.weighted(torch.ones_like(own)), side.free)]
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


Solve = Callable[[Sequence[Tensor]], list[Tensor]]
"""Residuals → what a matrix similar to A takes to them."""


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


def inverse_rows(rows: Rows, side: Side) -> Tensor:
    """A⁻¹ of each row, [n, width, width]."""
    matrices = rows.matrices()
    if not bool(side.free.all()):
        matrices = matrices * (side.free[:, None] * side.free) + torch.diag(1.0 - side.free)
    matrices.diagonal(dim1=1, dim2=2).add_(side.weighted(torch.ones_like(rows.own[:, :-1])))
    _positive(matrices.diagonal(dim1=1, dim2=2), side.free)
    inverse, failed = torch.linalg.inv_ex(matrices)
    if bool(failed.any()) or not bool(torch.isfinite(inverse).all()):
        raise UnsolvableError("a side of the model is singular; set l2 above 0, or lower dim")
    found: Tensor = inverse
    return found


class SimilarAxes(NamedTuple):
    """M_u⁻¹ = X diag(μ + x_u (1 − μ))⁻¹ Xᵀ for all rows u of a side: X and μ."""

    axes: Tensor
    mu: Tensor

    def solver(self, shares: Tensor) -> Solve:
        """r ↦ M⁻¹ r of each row, given x."""
        inverse = torch.addcmul(self.mu, shares[:, None], 1.0 - self.mu).reciprocal_()
        return lambda residual: [(residual[0] @ self.axes).mul_(inverse) @ self.axes.T]


class FeatureAxes(NamedTuple):
    """(G ⊗ T + P)⁻¹ of the weights of features: G what features share, T the typical matrix of a row, P their L2.

    In axes Y and Q, YᵀGY = diag(λ), QᵀTQ = diag(σ), and P becomes 1.
    """

    features: Tensor
    """Y, [features, features]; a vector where G is taken to be diagonal."""
    strength: Tensor
    """λ, [features]."""
    columns: Tensor
    """Q, [columns, columns]."""
    curvature: Tensor
    """σ, [columns]."""

    def solve(self, residual: Tensor) -> Tensor:
        """What the matrix takes to the residual, [features, columns]."""
        inner = self._turned(residual, back=False) @ self.columns
        inner /= torch.addcmul(torch.ones_like(inner), self.strength[:, None], self.curvature)
        return self._turned(inner @ self.columns.T, back=True)

    def _turned(self, weights: Tensor, *, back: bool) -> Tensor:
        if self.features.ndim == 1:
            return self.features[:, None] * weights
        return (self.features if back else self.features.T) @ weights


def feature_axes(rows: Rows, features: Features, reduce: Reduce) -> FeatureAxes:
    """Axes of Σ_u x_u x_uᵀ ⊗ A_u + P, with A_u in proportion to what the row has of the log."""
    own = rows.weights()[0].double()
    total, count = reduce(torch.stack([own.sum(), torch.full_like(own.sum(), len(own))]))
    mean = total / count
    typical = mean * rows.typical()
    if rows.gram is not None:
        typical = typical + rows.gram[:-1]
    share = own / mean if float(mean) > 0.0 else torch.ones_like(own)
    shared = reduce(_weighted_products(features, share))
    power, by_column = features.penalty[:, -1].double(), features.penalty.double().amax(0)
    power = (
        power + SLIGHT * (shared if shared.ndim == 1 else shared.diagonal()).mean() + torch.finfo(torch.float32).tiny
    )
    by_column = by_column / by_column[-1] if float(by_column[-1]) > 0.0 else torch.ones_like(by_column)
    scale, root = power.rsqrt(), by_column.rsqrt()
    if shared.ndim == 1:
        strength, axes = shared * scale.square(), scale
    else:
        strength, turned = torch.linalg.eigh(scale[:, None] * shared * scale)
        axes = scale[:, None] * turned
    curvature, turned = torch.linalg.eigh(root[:, None] * typical * root)
    found = (axes, strength.clamp_min(0.0), root[:, None] * turned, curvature.clamp_min(0.0))
    return FeatureAxes(*(x.to(features.penalty) for x in found))


def _weighted_products(features: Features, share: Tensor) -> Tensor:
    """Σ_u share_u x_u x_uᵀ, [features, features]; its diagonal alone where features are many."""
    if features.pattern.n_items > MANY_FEATURES:
        squares = features._replace(values=features.values.square())
        return squares.transposed(share[:, None].to(features.values))[:, 0].double()
    pattern = features.pattern
    parts = [x.cpu().numpy() for x in (features.values.double(), pattern.col, pattern.row_start)]
    x = sp.csr_matrix(tuple(parts), shape=(pattern.n_users, pattern.n_items))
    products = (x.multiply(share.cpu().numpy()[:, None]).T @ x).toarray()
    return torch.from_numpy(products).to(share)


def similar_rows(rows: Rows, side: Side) -> Solve:
    """r ↦ M⁻¹ r of each row, M_u = B + x_u G: B holds v FᵀF and the L2 that rows share, G C̄ S and the L2 that grows."""
    return similar_axes(rows, side).solver(_shares(rows, side))


def _shares(rows: Rows, side: Side) -> Tensor:
    """x: C_u/C̄; where logged pairs have no curvature, what L2 grows with."""
    own = rows.weights()[0]
    if not rows.quadratic.same_matrix:
        return own / float(own.mean()) if bool(own.any()) else own
    return torch.zeros_like(own) if side.share is None else side.share.to(own)


def similar_axes(rows: Rows, side: Side) -> SimilarAxes:
    """X such that Xᵀ (B + G) X = I and Xᵀ B X = diag(μ)."""
    free = side.free.double()
    fixed, growing = (cost.double() for cost in side.growing_cost())
    base = torch.diag(fixed + 1.0 - free)
    if rows.gram is not None:
        base += free[:, None] * rows.gram[:-1] * free
    own = rows.weights()[0]
    if bool((base.diagonal() <= 0.0).any()):
        _positive(own[:, None], torch.ones_like(own[:1]))
    whole = base + float(own.mean()) * (free[:, None] * rows.typical() * free) + torch.diag(growing)
    if bool((side.cost > 0.0).all()):  # columns of 0 under an L2 of next to nothing are not singular
        whole.diagonal().add_(SLIGHT * free * float((free * whole.diagonal()).sum() / free.sum().clamp_min(1.0)))
    factor, failed = torch.linalg.cholesky_ex(whole)
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        raise UnsolvableError("a side of the model is singular; set l2 above 0, or lower dim")
    half = torch.linalg.solve_triangular(factor, base, upper=False)
    mu, axes = torch.linalg.eigh(torch.linalg.solve_triangular(factor, half.T, upper=False))
    axes = (free[:, None] * torch.linalg.solve_triangular(factor.T, axes, upper=True)).to(own)
    return SimilarAxes(axes, mu.clamp(0.0, 1.0).to(own))


def _vectors(own: Tensor, share: float) -> Tensor:
    """A share of vectors, without their biases."""
    scaled = share * own
    scaled[:, -1] = 0.0
    return scaled


def _row_dots(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return (a[0] * b[0]).sum(1, keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a/b, 0 where b is not positive: such a row is solved already."""
    return torch.where(b > 0.0, a / b.clamp_min(torch.finfo(b.dtype).tiny), 0.0)


def _positive(diagonal: Tensor, free: Tensor) -> Tensor:
    """The diagonal where there are parameters, 1 elsewhere; refused where a parameter has no weight at all."""
    diagonal = torch.where(free > 0, diagonal, 1.0)
    if not bool((diagonal > 0).all()):
        rows = int((diagonal <= 0).any(1).sum())
        raise UnsolvableError(
            f"{rows} users or items have no rows and no L2, so nothing fixes their parameters; set l2 above 0"
        )
    return diagonal


def centred(model: Model, point: Point) -> Point:
    """Move, in place, what all own biases of a side share into the mean: the same scores at a lower penalty."""
    for name, side, reduce in (("users", model.users, model.reduce), ("items", model.items, alone)):
        biases = point[name][:, -1]
        own = biases.sum(dtype=torch.float64)
        total, count = reduce(torch.stack([own, torch.full_like(own, len(biases))]))
        shift = (total / count.clamp_min(1.0)).to(biases) * side.free[-1]
        biases -= shift
        point["mean"] = point["mean"] + shift
    return point


def _products(weighted: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Σ x y for each y."""
    return torch.stack([exact_sum(weighted * other) for other in others])
