"""What slopes become steps by: an approximate inverse of the curvature of one side, the other fixed.

With one side fixed a quadratic loss is quadratic in the other, row by row, with the matrices

    A_u + ρ_u,   A_u = v FᵀF + Σ_{i∈O_u} c_ui f_i f_iᵀ,   f_i = (z_i, 1).

Where columns or rows are few these are formed and inverted. Elsewhere A_u is taken to be what it would be if every row
had met the others in proportion to how often they are met at all:

    M_u = v FᵀF + ρ_u + C_u S,   C_u = Σ_{i∈O_u} c_ui,   S = Σ_i C_i f_i f_iᵀ / Σ_i C_i.

An L2 that grows with an entity's rows is proportional to C_u, or nearly so: one d × d decomposition inverts M_u for all
rows, and exactly where c = 0.

Weights W of features and own parameters explain each other: z = own + x W. A change of one that the other takes back
costs L2 only, so their blocks must not be inverted apart. They are eliminated like any block matrix: W faces what own
parameters leave,

    P + Σ_u x_u x_uᵀ ⊗ H_u,   H_u = A_u − A_u (A_u + ρ_u)⁻¹ A_u,

of which a Kronecker product is taken (`feature_axes`), and own parameters follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import scipy.sparse as sp
import torch
from torch import Tensor

from puidrec.train.quadratic import Reduce, Rows, alone
from puidrec.train.sides import Features, Side, UnsolvableError

NARROW = 12
"""Columns, biases among them, up to which the matrices of all rows are formed and inverted."""
FEW_COLUMNS, FEW_NUMBERS = 24, 2_000_000
"""The same for few rows: columns, and numbers that matrices of both sides would have."""
SLIGHT = 1e-12
"""Share of the mean diagonal that preconditioners add to it."""
MANY_FEATURES = 600
"""Encoded features of a side from which what they share is left out of the preconditioner."""
TINY = 1e-300
"""Keeps quotients of 0 by 0 finite."""
Metric = Mapping[str, Tensor]
"""What a side's preconditioner is made of: `inverse`, the matrices of all rows, or `SimilarAxes`; and `FeatureAxes`
where there are features. Those of both sides have `users.` and `items.` before their names."""
Solve = Callable[[Sequence[Tensor]], list[Tensor]]
"""Residuals → what a matrix similar to A + ρ takes to them."""


def metric_of(rows: Rows, side: Side, reduce: Reduce) -> Metric:
    """The preconditioner of a side at the scores that its rows were made for."""
    few = _few(rows, side, reduce)
    own = {"inverse": inverse_rows(rows, side)} if few else similar_axes(rows, side, reduce)._asdict()
    if side.features is not None:
        own |= feature_axes(rows, side, side.features, reduce)._asdict()
    return {name: x.contiguous() for name, x in own.items()}  # as they will be read from a checkpoint


def _few(rows: Rows, side: Side, reduce: Reduce) -> bool:
    """Whether the matrices of all rows are worth forming, in all processes or in none; and have an inverse."""
    if rows.quadratic.same_matrix or rows.width > FEW_COLUMNS or not side.penalised:
        return False
    own, fixed = (rows.own.new_full((), len(x), dtype=torch.float64) for x in (rows.own, rows.fixed))
    numbers = (float(reduce(own)) + float(rows.reduce(fixed))) * rows.width**2
    return rows.width <= NARROW or numbers <= FEW_NUMBERS


def metric_width(metric: Metric) -> int:
    """The columns, biases among them, that the metrics of both sides were made for."""
    return next((x.shape[-1] for key, x in metric.items() if key in ("users.inverse", "users.axes")), 0)


def precondition(
    metric: Metric, rows: Rows, side: Side, own: Tensor, of_features: Tensor | None, reduce: Reduce
) -> tuple[Tensor, Tensor | None]:
    """Steps of a side's own parameters and of the weights of its features, given their slopes."""
    solve_rows = _row_solver(metric, rows, side, reduce)
    change = solve_rows(own)
    if side.features is None or of_features is None:
        return change, None
    explained = (own - side.weighted(change)) * side.free  # A (A + ρ)⁻¹ times the slope of own parameters
    axes = FeatureAxes(*(metric[part] for part in FeatureAxes._fields))
    weights = axes.solve(of_features - reduce(side.features.transposed(explained)))
    taken = side.features.times(weights) * side.free
    return change - taken + solve_rows(side.weighted(taken)), weights  # − (A + ρ)⁻¹ A x W


def _row_solver(metric: Metric, rows: Rows, side: Side, reduce: Reduce) -> Callable[[Tensor], Tensor]:
    """r ↦ M⁻¹ r of each row of a side."""
    if "inverse" in metric:
        return lambda residual: torch.bmm(metric["inverse"], residual[:, :, None])[:, :, 0]
    axes = SimilarAxes(*(metric[key] for key in SimilarAxes._fields))
    solve_similar = axes.solver(_shares(rows, side, reduce))
    return lambda residual: solve_similar([residual])[0]


def inverse_rows(rows: Rows, side: Side) -> Tensor:
    """(A + ρ)⁻¹ of each row, [n, width, width]."""
    matrices = rows.matrices()
    if not bool(side.free.all()):
        matrices = matrices * (side.free[:, None] * side.free) + torch.diag(1.0 - side.free)
    matrices.diagonal(dim1=1, dim2=2).add_(side.weighted(torch.ones_like(rows.own[:, :-1])))
    positive(matrices.diagonal(dim1=1, dim2=2), side.free)
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


def similar_rows(rows: Rows, side: Side, reduce: Reduce) -> Solve:
    """r ↦ M⁻¹ r of each row, M_u = B + x_u G: B holds v FᵀF and the L2 that rows share, G C̄ S and the L2 that grows."""
    return similar_axes(rows, side, reduce).solver(_shares(rows, side, reduce))


def _mean_weight(rows: Rows, reduce: Reduce) -> float:
    """C̄ over the rows of all processes."""
    own = rows.weights()[0]
    total, count = reduce(torch.stack([own.sum(dtype=torch.float64), own.new_full((), len(own), dtype=torch.float64)]))
    return float(total / count.clamp_min(1.0))


def _shares(rows: Rows, side: Side, reduce: Reduce) -> Tensor:
    """x: C_u/C̄; where logged pairs have no curvature, what L2 grows with."""
    own = rows.weights()[0]
    if not rows.quadratic.same_matrix:
        mean = _mean_weight(rows, reduce)
        return own / mean if mean > 0.0 else own
    return torch.zeros_like(own) if side.share is None else side.share.to(own)


def similar_axes(rows: Rows, side: Side, reduce: Reduce = alone) -> SimilarAxes:
    """X such that Xᵀ (B + G) X = I and Xᵀ B X = diag(μ)."""
    free = side.free.double()
    fixed, growing = (cost.double() for cost in side.growing_cost())
    base = torch.diag(fixed + 1.0 - free)
    if rows.gram is not None:
        base += free[:, None] * rows.gram[:-1] * free
    own = rows.weights()[0]
    if bool((base.diagonal() <= 0.0).any()):
        positive(own[:, None], torch.ones_like(own[:1]))
    whole = base + _mean_weight(rows, reduce) * (free[:, None] * rows.typical() * free) + torch.diag(growing)
    if bool((side.cost > 0.0).all()):  # columns of 0 under an L2 of next to nothing are not singular
        whole.diagonal().add_(SLIGHT * free * float((free * whole.diagonal()).sum() / free.sum().clamp_min(1.0)))
    factor, failed = torch.linalg.cholesky_ex(whole)
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        raise UnsolvableError("a side of the model is singular; set l2 above 0, or lower dim")
    half = torch.linalg.solve_triangular(factor, base, upper=False)
    mu, axes = torch.linalg.eigh(torch.linalg.solve_triangular(factor, half.T, upper=False))
    axes = (free[:, None] * torch.linalg.solve_triangular(factor.T, axes, upper=True)).to(own)
    return SimilarAxes(axes, mu.clamp(0.0, 1.0).to(own))


class FeatureAxes(NamedTuple):
    """(G ⊗ T + P)⁻¹ of the weights of features: G what they share, T what own parameters leave of a row, P their L2.

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


def feature_axes(rows: Rows, side: Side, features: Features, reduce: Reduce) -> FeatureAxes:
    """Axes of G ⊗ T + P with G = Σ_u h_u x_u x_uᵀ: T is H of a typical row, h_u T stands for H_u."""
    left, share = _left_by_own(rows, side, reduce)
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
    curvature, turned = torch.linalg.eigh(root[:, None] * left * root)
    found = (axes, strength.clamp_min(0.0), root[:, None] * turned, curvature.clamp_min(0.0))
    return FeatureAxes(*(x.to(features.penalty) for x in found))


def _left_by_own(rows: Rows, side: Side, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """H of a row with the mean weight of logged pairs, [width, width], and h of every row; both A where a side has no
    own parameters.

    h_u is a_u ρ_u/(a_u + ρ_u), against that of the typical row, with a and ρ means of diagonals.
    """
    own, usual = rows.weights()[0].double(), _mean_weight(rows, reduce)
    logged = usual * rows.typical()
    whole = logged if rows.gram is None else logged + rows.gram[:-1]
    free, cost = side.free.double(), side.cost.double()
    both = free[:, None] * whole * free + torch.diag(cost + 1.0 - free)
    both.diagonal().add_(SLIGHT * both.diagonal().mean())
    left = whole - (whole * free) @ torch.linalg.solve(both, free[:, None] * whole)
    mean, power = logged.diagonal().mean(), whole.diagonal().mean().clamp_min(TINY)
    share = (power - mean + mean * own / max(usual, TINY)) / power
    if bool(free.any()):
        price = cost.mean() / power
        factor = 1.0 if side.row_factor is None else side.row_factor[:, 0].double()
        share = share * factor * (1.0 + price) / (share + factor * price).clamp_min(TINY)
    return left, share


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


def positive(diagonal: Tensor, free: Tensor) -> Tensor:
    """The diagonal where there are parameters, 1 elsewhere; refused where a parameter has no weight at all."""
    diagonal = torch.where(free > 0, diagonal, 1.0)
    if not bool((diagonal > 0).all()):
        rows = int((diagonal <= 0).any(1).sum())
        raise UnsolvableError(
            f"{rows} users or items have no rows and no L2, so nothing fixes their parameters; set l2 above 0"
        )
    return diagonal
