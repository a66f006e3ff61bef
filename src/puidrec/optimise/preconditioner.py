"""What slopes become steps by: an approximate inverse of the curvature of one side, the other
fixed.

With one side fixed J is quadratic in the other, row by row (or has a parabola above it), with the
matrices

    A_u + ρ,   A_u = v FᵀF + Σ_{i∈O_u} c_ui f_i f_iᵀ,   f_i = (z_i, 1), c half the curvature of f.

Where columns or rows are few these are formed and inverted. Elsewhere A_u is taken to be what it
would be if every row had met the others in proportion to how often they are met at all:

    M_u = v FᵀF + ρ + C_u S,   C_u = Σ_{i∈O_u} c_ui,   S = Σ_i C_i f_i f_iᵀ / Σ_i C_i:

one d × d decomposition inverts M_u for all rows.

Weights W of features and own parameters explain each other: z = own + x W. A change of one that the
other takes back costs L2 only, so their blocks must not be inverted apart. They are eliminated like
any block matrix: W faces what own parameters leave,

    P + Σ_u x_u x_uᵀ ⊗ H_u,   H_u = A_u − A_u (A_u + ρ)⁻¹ A_u,

of which a Kronecker product is taken (`feature_axes`), and own parameters follow.

Bends make single pairs stiff, which no typical row resembles. Where there is a sum over D, pairs
are solved for themselves instead (`step_by_pairs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import scipy.sparse as sp
import torch
from torch import Tensor

from puidrec.errors import PuidError
from puidrec.losses.pair_loss import Factors, Objective, gram
from puidrec.optimise.model import FeatureAxes, Features, Metric, Model, Point, Reduce, Side
from puidrec.scores.log import Column, Log, exact_sum

NARROW = 12
"""Columns, biases among them, up to which the matrices of all rows are formed and inverted."""
FEW_COLUMNS, FEW_NUMBERS = 24, 2_000_000
"""The same for few rows: columns, and numbers that matrices of both sides would have."""
SLIGHT = 1e-12
"""Share of the mean diagonal that preconditioners add to it."""
MANY_FEATURES = 600
"""Encoded features of a side from which what they share is left out of the preconditioner."""
PAIR_STEPS = 16
"""Steps of conjugate gradients over logged pairs in a sweep; 8 and 20 are as good per second."""
TINY = 1e-300
"""Keeps quotients of 0 by 0 finite."""


class UnsolvableError(PuidError):
    """The problem has no finite optimum, or the numbers left the range of floats."""


@dataclass(frozen=True, eq=False)
class View:
    """One side as the other sees it: what the curvature of its rows is made of."""

    side: Side
    total: Reduce
    """Σ over processes of what is summed over this side's rows."""
    fixed: Tensor
    """f of the other side's rows, [m, dim + 1]."""
    weights: Tensor
    """C of this side's rows."""
    others: Tensor
    """C of the other side's rows."""
    others_total: Reduce
    everywhere: Tensor | None
    """v FᵀF."""
    products: tuple[Log, Column]
    """The log, and c of its pairs, for matrices of single rows."""

    @cached_property
    def usual(self) -> float:
        """C̄ over the rows of all processes."""
        count = torch.full_like(self.weights[:1].sum().double(), len(self.weights))
        summed, n = self.total(torch.stack([self.weights.sum(dtype=torch.float64), count]))
        return float(summed / n.clamp_min(1.0))

    @cached_property
    def typical(self) -> Tensor:
        """S: Σ C f fᵀ / Σ C over the fixed rows f, 0 where nothing has a weight."""
        summed = self.others_total(self.others.sum(dtype=torch.float64))
        squares = self.others_total(gram(self.fixed, self.others[:, None] * self.fixed))
        return squares / summed.clamp_min(torch.finfo(torch.float32).tiny)

    def matrices(self) -> Tensor:
        """A of each row, [n, width, width]."""
        width = self.fixed.shape[1]
        a, b = torch.triu_indices(width, width, device=self.fixed.device)
        pairs = self.fixed[:, a] * self.fixed[:, b]
        log, c = self.products
        summed = log.to_users(c, pairs) if self.side.name == "user" else log.to_items(c, pairs)
        matrices = summed.new_empty(len(summed), width, width)
        matrices[:, a, b] = matrices[:, b, a] = summed
        return matrices if self.everywhere is None else matrices + self.everywhere.to(matrices)


def views(objective: Objective, model: Model, s: Column, at: Factors) -> tuple[View, View]:
    """Users as items see them, and items as users do."""
    half, (left, right), log = 0.5 * objective.scale, at, objective.log
    c = log.map(lambda c: half * c, objective.curvature(s))
    of_items, of_users = right[:, :-1], torch.cat([left[:, :-2], left[:, -1:]], 1)
    ones = right.new_ones(log.n_items, 1)
    c_users = log.to_users(c, ones)[:, 0].clamp_min(0.0)
    c_items = log.to_items(c, right.new_ones(log.n_users, 1))[:, 0].clamp_min(0.0)
    (users, total), (items, same) = model.sides
    grams: tuple[Tensor | None, ...] = (None, None)
    if objective.v:
        grams = (
            objective.v * gram(of_items, of_items),
            objective.v * log.total(gram(of_users, of_users)),
        )
    return (
        View(users, total, of_items, c_users, c_items, same, grams[0], (log, c)),
        View(items, same, of_users, c_items, c_users, total, grams[1], (log, c)),
    )


def metric_of(objective: Objective, model: Model, s: Column, at: Factors) -> dict[str, Tensor]:
    """The preconditioner of both sides at the scores of a point."""
    found: dict[str, Tensor] = {}
    both = views(objective, model, s, at)
    few = _few(model, objective.log)
    for view in both:
        regular = few and bool((view.side.penalty > 0.0).all())
        own = {"inverse": inverse_rows(view)} if regular else similar_axes(view)
        if view.side.features is not None:
            own |= feature_axes(view, view.side.features)._asdict()
        found |= {f"{view.side.name}.{key}": x.contiguous() for key, x in own.items()}
    return found


def _few(model: Model, log: Log) -> bool:
    """Whether the matrices of all rows are small enough to be formed."""
    width = model.dim + 1
    numbers = (log.all_users + log.n_items) * width**2
    return width <= NARROW or (width <= FEW_COLUMNS and numbers <= FEW_NUMBERS)


def metric_width(metric: Metric) -> int:
    """The columns, biases among them, that a metric was made for."""
    return next(
        (x.shape[-1] for key, x in metric.items() if key in ("item.inverse", "item.axes")), 0
    )


def inverse_rows(view: View) -> Tensor:
    """(A + ρ)⁻¹ of each row, [n, width, width]."""
    side, matrices = view.side, view.matrices()
    if not bool(side.free.all()):
        matrices = matrices * (side.free[:, None] * side.free) + torch.diag(1.0 - side.free)
    matrices.diagonal(dim1=1, dim2=2).add_(side.cost)
    inverse, failed = torch.linalg.inv_ex(matrices)
    if bool(failed.any()) or not bool(torch.isfinite(inverse).all()):
        raise UnsolvableError("a side of the model is singular; set l2 above 0, or lower dim")
    found: Tensor = inverse
    return found


def similar_axes(view: View) -> dict[str, Tensor]:
    """X, μ and x_u such that M_u⁻¹ = X diag(μ + x_u (1 − μ))⁻¹ Xᵀ: Xᵀ (B + C̄S) X = I, Xᵀ B X =
    diag(μ)."""
    side, free = view.side, view.side.free.double()
    base = torch.diag(side.cost.double() + 1.0 - free)
    if view.everywhere is not None:
        base += free[:, None] * view.everywhere * free
    whole = base + view.usual * (free[:, None] * view.typical * free)
    whole.diagonal().add_(
        SLIGHT * free * float((free * whole.diagonal()).sum() / free.sum().clamp_min(1.0))
    )
    factor = cholesky(whole)
    half = torch.linalg.solve_triangular(factor, base, upper=False)
    mu, axes = torch.linalg.eigh(torch.linalg.solve_triangular(factor, half.T, upper=False))
    axes = free[:, None] * torch.linalg.solve_triangular(factor.T, axes, upper=True)
    share = view.weights / view.usual if view.usual > 0.0 else view.weights
    mu = mu.clamp(1e-9, 1.0)  # a row without logged pairs and without L2 must not divide by 0
    return {"axes": axes.to(share), "mu": mu.to(share), "share": share}


def cholesky(whole: Tensor) -> Tensor:
    """The Cholesky factor of what all rows of a side share."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(whole)
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        raise UnsolvableError("a side of the model is singular; set l2 above 0, or lower dim")
    return factor


def feature_axes(view: View, features: Features) -> FeatureAxes:
    """Axes of G ⊗ T + P, G = Σ_u h_u x_u x_uᵀ: T is H of a typical row, h_u T stands for H_u."""
    left, share = _left_by_own(view)
    shared = view.total(_weighted_products(features, share))
    power = features.penalty[:, -1].double()
    diagonal = shared if shared.ndim == 1 else shared.diagonal()
    power = power + SLIGHT * diagonal.mean() + torch.finfo(torch.float32).tiny
    scale = power.rsqrt()
    if shared.ndim == 1:
        strength, axes = shared * scale.square(), scale
    else:
        strength, turned = torch.linalg.eigh(scale[:, None] * shared * scale)
        axes = scale[:, None] * turned
    curvature, columns = torch.linalg.eigh(left)
    found = (axes, strength.clamp_min(0.0), columns, curvature.clamp_min(0.0))
    return FeatureAxes(*(x.to(features.penalty) for x in found))


def _left_by_own(view: View) -> tuple[Tensor, Tensor]:
    """H of a row with the mean weight of logged pairs, [width, width], and h of every row; both A
    where a side has no own parameters.

    h_u is a_u ρ/(a_u + ρ), against that of the typical row, with a and ρ means of diagonals.
    """
    own, logged = view.weights.double(), view.usual * view.typical
    whole = logged if view.everywhere is None else logged + view.everywhere
    free, cost = view.side.free.double(), view.side.cost.double()
    both = free[:, None] * whole * free + torch.diag(cost + 1.0 - free)
    both.diagonal().add_(SLIGHT * both.diagonal().mean())
    left = whole - (whole * free) @ torch.linalg.solve(both, free[:, None] * whole)
    mean, power = logged.diagonal().mean(), whole.diagonal().mean().clamp_min(TINY)
    share = (power - mean + mean * own / max(view.usual, TINY)) / power
    if bool(free.any()):
        price = cost.mean() / power
        share = share * (1.0 + price) / (share + price).clamp_min(TINY)
    return 0.5 * (left + left.T), share


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


def by_pairs(objective: Objective, model: Model) -> bool:
    """Whether single pairs can be stiff, and all else is the same for all rows."""
    return (
        objective.v > 0.0
        and not objective.loss.quadratic
        and not _few(model, objective.log)
        and all(side.features is None and bool(side.free.all()) for side, _ in model.sides)
    )


def step_by_pairs(
    objective: Objective, model: Model, s: Column, at: Factors, slope: Point
) -> Point:
    """About (B + Jᵀ C J)⁻¹ times the slope: J is how logged scores change, C half their curvature,
    B the rest, v FᵀF + ρ of each row.

    That is B⁻¹ − B⁻¹ Jᵀ H K⁻¹ H J B⁻¹ with H = C^½, K = 1 + H J B⁻¹ Jᵀ H (Woodbury), a matrix of
    logged pairs: conjugate gradients need a few sparse products a step.
    """
    log, half = objective.log, 0.5 * objective.scale
    root = log.map(lambda c: (half * c).clamp_min(0.0).sqrt_(), objective.curvature(s))
    left, right = torch.cat([at[0][:, :-2], at[0][:, -1:]], 1), at[1][:, :-1]
    axes, fixed, turned = [], [], []
    squares = gram(right, right), log.total(gram(left, left))
    for (side, _), other, square in zip(model.sides, (right, left), squares, strict=True):
        whole = objective.v * square + torch.diag(side.cost.double())
        axes.append(torch.linalg.inv(cholesky(whole)).T.to(other))
        fixed.append(other @ axes[-1])
        turned.append(slope[f"{side.name}s"] @ axes[-1])

    def spread(users: Tensor, items: Tensor) -> Column:
        return log.map(torch.add, log.scores(users, fixed[0]), log.scores(fixed[1], items))

    def gathered(p: Column) -> tuple[Tensor, Tensor]:
        weighted = log.map(torch.mul, root, p)
        return log.to_users(weighted, fixed[0]), log.to_items(weighted, fixed[1])

    def dot(p: Column, q: Column) -> float:
        return float(log.sum(lambda p, q: exact_sum(p * q), p, q))

    own = [x.square().sum(1, keepdim=True) for x in fixed]
    ones = [torch.ones_like(x) for x in own]
    diagonal = log.scores(torch.cat([ones[1], own[1]], 1), torch.cat([own[0], ones[0]], 1))
    inverse = log.map(lambda h, d: (1.0 + h.square() * d).reciprocal_(), root, diagonal)
    left_over = log.map(torch.mul, root, spread(*turned))
    p = z = log.map(torch.mul, inverse, left_over)
    found, size = log.map(torch.zeros_like, z), dot(left_over, z)
    for _ in range(PAIR_STEPS):
        if not size > TINY:
            break
        q = log.map(torch.addcmul, p, root, spread(*gathered(p)))
        t = size / dot(p, q)
        found = log.map(partial(torch.add, alpha=t), found, p)
        left_over = log.map(partial(torch.add, alpha=-t), left_over, q)
        z = log.map(torch.mul, inverse, left_over)
        last, size = size, dot(left_over, z)
        p = log.map(partial(torch.add, alpha=size / last), z, p)
    users, items = (
        (x - y) @ axis.T for x, y, axis in zip(turned, gathered(found), axes, strict=True)
    )
    return {"mean": torch.zeros_like(slope["mean"]), "users": users, "items": items}
