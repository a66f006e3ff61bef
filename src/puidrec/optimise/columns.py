"""Columns of vectors: where they start, when L2 has emptied them, and when they are missed.

L2 of both sides takes a price off every column: what is left of a singular value σ of the slope E
(E = −½ ∂J/∂s) is σ − √(ρ_u ρ_i). Where there are more columns than pay, most of them end at 0 and
cost time until then. So they leave while the solver runs; at the end the slope is asked whether one
is missing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from puidrec.losses.pair_loss import Factors, Objective, gram
from puidrec.optimise.model import Model, Point
from puidrec.scores.log import Column

POWER_STEPS, SPARE = 4, 8
"""Products with EᵀE for the leading directions of a slope E, and directions looked for beyond those
wanted."""
KEPT_NUMBERS = 5_000_000
"""Where vectors of all products have at most so many numbers, the directions are sought among all
of them (a Krylov space) and not among the last ones alone: then they hardly depend on the random
vectors begun with."""
FAINT = 0.02
"""Length of a new column, against the strongest, where the slope gives it none: L2 will settle it.
"""
PAYS = 1e-4
"""How much the slope of a missing column is above its price, at least."""


@torch.no_grad()
def grown(objective: Objective, model: Model, point: Point) -> Point:
    """The point with as many columns as the model has: new ones along the leading directions of the
    slope E.

    A new column t p qᵀ (|p| = |q| = 1, sides balanced) changes J by −2 t (σ − √(ρ_u ρ_i)) + t² κ, κ
    its curvature.
    """
    width = point["users"].shape[1]
    count = model.dim + 1 - width
    if count <= 0:
        return point
    at = model.narrowed(width - 1).factors(point)
    s = objective.log.scores(*at)
    p, sigma, q, kappa = _leading(objective, s, at, point["items"][:, :-1], count)
    prices = [float(side.cost[:-1].mean()) if model.dim else 0.0 for side, _ in model.sides]
    price = (prices[0] * prices[1]) ** 0.5
    profit = torch.maximum(
        sigma - price, FAINT * sigma[:1].clamp_min(torch.finfo(sigma.dtype).tiny)
    )
    size = (profit / kappa).sqrt()
    balance = (prices[1] / prices[0]) ** 0.25 if min(prices) > 0.0 else 1.0
    vectors = {"user": p * (size * balance), "item": q * (size / balance)}
    wider = {"mean": point["mean"]}
    for side, total in model.sides:
        new, own = vectors[side.name], point[f"{side.name}s"]
        free = side.free[:-1].any() if model.dim else True
        columns = new if bool(free) else torch.zeros_like(new)
        wider[f"{side.name}s"] = torch.cat([columns.to(own), own], 1)
        if side.features is not None:
            weights = point[f"{side.name}_features"]
            shared = weights.new_zeros(len(weights), count)
            if not bool(
                free
            ):  # no vectors of its own: features take the direction as far as they can
                turned = total(side.features.transposed(new.to(weights)))
                made = side.features.times(turned)
                lengths = [
                    total(exact.square().sum(0, dtype=torch.float64)).sqrt()
                    for exact in (new, made)
                ]
                shared = turned * (lengths[0] / lengths[1].clamp_min(1e-12)).to(turned)
            wider[f"{side.name}_features"] = torch.cat([shared, weights], 1)
    return wider


def _leading(
    objective: Objective, s: Column, at: Factors, columns: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Leading singular vectors p, values σ, vectors q of E = −½ ∂J/∂s, away from items' columns,
    and κ of each."""
    log, half, v = objective.log, 0.5 * objective.scale, objective.v
    slope = log.map(objective.loss.slope, s, row=objective.columns)
    m, n = (torch.cat(pair, 1) for pair in zip(at, objective.pull, strict=True))

    def times(items: Tensor) -> Tensor:
        found = log.to_users(slope, items).mul_(-half)
        return found - m @ (v * gram(n, items)).to(m) if v else found

    def transposed(users: Tensor) -> Tensor:
        found = log.to_items(slope, users).mul_(-half)
        return found - n @ (v * log.total(gram(m, users))).to(n) if v else found

    wide = min(count + SPARE, log.n_items)
    used = torch.linalg.qr(columns.double())[0].to(columns)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(log.n_items, wide, generator=generator).to(columns)
    keep = (log.all_users + log.n_items) * wide * (POWER_STEPS + 1) <= KEPT_NUMBERS
    kept: list[Tensor] = []
    for _ in range(POWER_STEPS):
        q = torch.linalg.qr((q - used @ (used.T @ q)).double())[0].to(columns)
        kept += [q] if keep else []
        q = transposed(times(q))
    q = torch.cat([*kept, torch.linalg.qr(q.double())[0].to(columns)], 1)
    q = torch.linalg.qr((q - used @ (used.T @ q)).double())[0].to(columns)
    p = times(q)
    squares, axes = torch.linalg.eigh(log.total(gram(p, p)))
    sigma = squares.clamp_min(torch.finfo(p.dtype).tiny).sqrt().flip(0)[:count]
    axes = axes.flip(1)[:, :count]
    p, q = p @ (axes / sigma).to(p), q @ axes.to(q)
    if (lacking := count - q.shape[1]) > 0:  # more columns than items
        p, q = (torch.nn.functional.pad(x, (0, lacking)) for x in (p, q))
        sigma = torch.nn.functional.pad(sigma, (0, lacking))
    curvature = half * log.to_users(objective.curvature(s), q.square()) + v * q.square().sum(0)
    kappa = log.total((p.square() * curvature).sum(0, dtype=torch.float64))
    return p, sigma.to(p), q, kappa.to(p).clamp_min(torch.finfo(p.dtype).eps)


def emptied(model: Model, point: Point, least: float) -> Callable[[Point], Point] | None:
    """What turns points to the principal axes of this one, less the empty ones; None where there
    are none. Empty is what costs at most a share `least` of the L2 of the largest one; with 0,
    columns of 0 are taken out and nothing is turned.

    The axes are those of L2's share, which neither scores nor L2 can tell from any others. Only for
    vectors of own parameters that are pulled to 0: features or a centre would have to be turned
    with them.
    """
    plain = [s.features is None and s.centre is None and bool(s.free.all()) for s, _ in model.sides]
    if not model.dim or not all(plain):
        return None
    total = torch.zeros(model.dim, model.dim, dtype=torch.float64, device=point["items"].device)
    for side, complete in model.sides:
        own = point[f"{side.name}s"][:, :-1]
        total += float(side.cost[0]) * complete(gram(own, own))
    share, axes = total.diagonal(), torch.eye(model.dim).to(total)
    if least:
        share, axes = (x.flip(-1) for x in torch.linalg.eigh(total))
    axes = axes[:, share > least * share.max()]
    if axes.shape[1] == model.dim:
        return None
    return lambda old: {
        name: x if x.ndim == 0 else torch.cat([x[:, :-1] @ axes.to(x), x[:, -1:]], 1)
        for name, x in old.items()
    }


def padded(point: Point, dim: int) -> Point:
    """A point with columns of 0 where some were left out."""
    return {
        name: x
        if x.ndim == 0
        else torch.cat([x[:, :-1], x.new_zeros(len(x), dim + 1 - x.shape[1]), x[:, -1:]], 1)
        for name, x in point.items()
    }


def misses_a_column(objective: Objective, model: Model, point: Point) -> bool:
    """Whether a column beyond those of the point would lower J."""
    at = model.factors(point)
    items = point["items"][:, :-1]
    _, sigma, _, _ = _leading(objective, objective.log.scores(*at), at, items, 1)
    price = float((model.users.cost[0] * model.items.cost[0]).sqrt())
    return float(sigma[0]) > (1.0 + PAYS) * price
