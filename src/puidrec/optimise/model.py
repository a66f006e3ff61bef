"""The parameters of low-rank scores as least squares sees them, their L2, and what scores they
make.

    s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ,   z = own vector and bias + x W

Plain L2: ρ ‖own‖² per entity, and ρ_W ‖W‖²; with `shrink_to` own vectors are pulled to a given
point instead of 0.

Columns of vectors leave and come: L2 of both sides takes a price off every column, and what is left
of a singular value σ of the slope E (E = −½ ∂J/∂s) is σ − √(ρ_u ρ_i). Where there are more columns
than pay, most of them end at 0 and cost time until then. So they leave while the solver runs
(`emptied`); at the end the slope is asked whether one is missing (`misses_a_column`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from puidrec.losses.pair_loss import Factors, Objective, gram
from puidrec.scores.log import Column, LogPattern, exact_sum
from puidrec.scores.towers import Backbone, IdTower, LinearTower

Point = dict[str, Tensor]
"""`users` and `items`: own vectors and biases, [n, dim + 1]; `user_features`, `item_features`: the
same per feature, where there are features; `mean`: μ. Users are those of this process."""
Reduce = Callable[[Tensor], Tensor]
Metric = Mapping[str, Tensor]
"""What preconditions both sides, as tensors by name: those of a side begin with its name."""


class Features(NamedTuple):
    """A sparse design, and the L2 of its weights per feature, [features, 1]."""

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
    """What the entities of a side are made of: z = own vector and bias + x W, and what their
    squares cost."""

    name: str
    penalty: Tensor
    """L2 of an entity's own parameters, per column, [dim + 1]; infinite where there is no such
    parameter."""
    features: Features | None = None
    centre: Tensor | None = None
    """What L2 pulls own parameters to, [n, dim + 1]; None: 0."""

    @cached_property
    def free(self) -> Tensor:
        """1 where entities have a parameter of their own, else 0."""
        return torch.isfinite(self.penalty).to(self.penalty)

    @cached_property
    def cost(self) -> Tensor:
        """The penalty, 0 where there is no parameter."""
        return torch.where(torch.isfinite(self.penalty), self.penalty, 0.0)


@dataclass(frozen=True, eq=False)
class Model:
    """Both sides. Scores are inner products of [z_u, b_u, 1] and [z_i, 1, b_i + μ], as of
    `scores.towers`."""

    users: Side
    items: Side
    total: Reduce
    """Σ over processes, each of which holds some users."""

    @cached_property
    def sides(self) -> tuple[tuple[Side, Reduce], ...]:
        """Both sides, and how sums over their entities are completed."""
        return (self.users, self.total), (self.items, torch.clone)

    @cached_property
    def dim(self) -> int:
        """Columns of vectors."""
        return self.users.penalty.numel() - 1

    @cached_property
    def costs(self) -> Point:
        """L2 of all parameters, as broad as they are or to be broadcast."""
        found = {"mean": torch.zeros_like(self.users.cost[0])}
        for side, _ in self.sides:
            found[f"{side.name}s"] = side.cost
            if side.features is not None:
                found[f"{side.name}_features"] = side.features.penalty
        return found

    def factors(self, point: Mapping[str, Tensor], *, step: bool = False) -> Factors:
        """The scores of a point, or (`step`) the change of factors that a change of parameters
        makes."""
        z = []
        for side, _ in self.sides:
            own = point[f"{side.name}s"]
            if side.features is not None:
                own = own + side.features.times(point[f"{side.name}_features"])
            z.append(own)
        users, items = z
        ones = torch.zeros_like if step else torch.ones_like
        left = torch.cat([users, ones(users[:, :1])], 1)
        right = torch.cat([items[:, :-1], ones(items[:, :1]), items[:, -1:] + point["mean"]], 1)
        return left, right

    @cached_property
    def pulled(self) -> Mapping[str, Tensor]:
        """The L2 of own parameters times what it pulls them to, where that is not 0."""
        return {f"{s.name}s": s.cost * s.centre for s, _ in self.sides if s.centre is not None}

    def penalty(self, point: Point) -> float:
        """The penalty of a point."""
        centres = {f"{s.name}s": s.centre for s, _ in self.sides if s.centre is not None}
        off = {**point, **{name: point[name] - centre for name, centre in centres.items()}}
        return self.dot({name: cost * off[name] for name, cost in self.costs.items()}, off)

    def slopes(self, point: Point, of_users: Tensor, of_items: Tensor) -> Point:
        """−½ ∂(J + penalty)/∂parameters, given −½ ∂J/∂factors."""
        found = {"mean": of_items[:, -1].sum(dtype=torch.float64).to(of_items)}
        rows = (of_users[:, :-1], torch.cat([of_items[:, :-2], of_items[:, -1:]], 1))
        for (side, total), slope in zip(self.sides, rows, strict=True):
            name = f"{side.name}s"
            own = slope - side.cost * point[name] + self.pulled.get(name, 0.0)
            found[name] = own * side.free
            if side.features is not None:
                name = f"{side.name}_features"
                shared = total(side.features.transposed(slope))
                found[name] = shared - side.features.penalty * point[name]
        return found

    def centred(self, point: Point) -> Point:
        """Move, in place, what all own biases of a side share into the mean: the same scores at a
        lower penalty."""
        for side, total in self.sides:
            biases = point[f"{side.name}s"][:, -1]
            own = biases.sum(dtype=torch.float64)
            summed, count = total(torch.stack([own, torch.full_like(own, len(biases))]))
            shift = (summed / count.clamp_min(1.0)).to(biases) * side.free[-1]
            biases -= shift
            point["mean"] = point["mean"] + shift
        return point

    def dot(self, first: Point, second: Point) -> float:
        """Σ over all parameters of two points, of all processes."""
        parts = {name: exact_sum(x * second[name]) for name, x in first.items()}
        return float(self.total(parts.pop("users"))) + float(torch.stack([*parts.values()]).sum())

    def around(self, centre: Mapping[str, Tensor]) -> Model:
        """The same model with an L2 that pulls own vectors to those of a point; biases and all else
        to 0."""
        users, items = (centre[name].clone() for name in ("users", "items"))
        users[:, -1] = items[:, -1] = 0.0
        return replace(
            self, users=replace(self.users, centre=users), items=replace(self.items, centre=items)
        )

    def narrowed(self, dim: int) -> Model:
        """The same model with vectors of `dim` columns, all of one L2, pulled to 0."""
        sides = [
            replace(s, penalty=torch.cat([s.penalty[:1].expand(dim), s.penalty[-1:]]), centre=None)
            for s, _ in self.sides
        ]
        return replace(self, users=sides[0], items=sides[1])

    def step(self, metric: Metric, slope: Point) -> Point:
        """M⁻¹ times the slope: a step of all parameters, M without what users and items share."""
        step = {"mean": torch.zeros_like(slope["mean"])}
        for side, total in self.sides:
            own = slope[f"{side.name}s"]
            change = _solve_rows(metric, side.name, own)
            if side.features is not None:
                # A (A + ρ)⁻¹ times the slope of own parameters
                explained = (own - side.cost * change) * side.free
                axes = FeatureAxes(*(metric[f"{side.name}.{part}"] for part in FeatureAxes._fields))
                left = slope[f"{side.name}_features"] - total(side.features.transposed(explained))
                weights = axes.solve(left)
                taken = side.features.times(weights) * side.free
                # − (A + ρ)⁻¹ A x W
                change = change - taken + _solve_rows(metric, side.name, side.cost * taken)
                step[f"{side.name}_features"] = weights
            step[f"{side.name}s"] = change
        return self.centred(step)


def _solve_rows(metric: Metric, name: str, residual: Tensor) -> Tensor:
    """M⁻¹ of each row of a side times its residual."""
    if f"{name}.inverse" in metric:
        return torch.bmm(metric[f"{name}.inverse"], residual[:, :, None])[:, :, 0]
    axes, mu, share = (metric[f"{name}.{key}"] for key in ("axes", "mu", "share"))
    inverse = torch.addcmul(mu, share[:, None], 1.0 - mu).reciprocal_()
    return (residual @ axes).mul_(inverse) @ axes.T


class FeatureAxes(NamedTuple):
    """(G ⊗ T + P)⁻¹ of the weights of features: G what they share, T what own parameters leave of a
    row, P their L2.

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
        flat, y = self.features.ndim == 1, self.features
        inner = (y[:, None] * residual if flat else y.T @ residual) @ self.columns
        inner /= torch.addcmul(torch.ones_like(inner), self.strength[:, None], self.curvature)
        found = inner @ self.columns.T
        return y[:, None] * found if flat else y @ found


def linear_model(
    backbone: Backbone, l2: float, l2_features: float, users: slice, total: Reduce
) -> Model:
    """A backbone of IDs and linear features with its L2, for some of its users.

    The penalty is a mean over entities, so that an entity's share of it is l2/n: ρ = l2 × mean rows
    per entity where the loss is a sum over rows.
    """

    def side(name: str, towers: nn.ModuleList, rows: slice) -> Side:
        penalty, features = backbone.mean.detach().new_full((backbone.dim + 1,), torch.inf), None
        for tower in towers:
            if isinstance(tower, IdTower):
                count = (
                    tower.n_rows
                    if rows.step in (None, 1)
                    else len(range(*rows.indices(tower.n_rows)))
                )
                penalty[0 if tower.vectors else backbone.dim :] = l2 / max(count, 1)
            elif isinstance(tower, LinearTower):
                design = tower.design.rows(rows)
                features = Features(
                    design.pattern, design.values, l2_features * tower.power[:, None]
                )
        return Side(name, penalty, features)

    return Model(
        side("user", backbone.user_towers, users),
        side("item", backbone.item_towers, slice(None)),
        total,
    )


def point_of(backbone: Backbone, users: slice = slice(None)) -> Point:
    """The parameters of a backbone as the solver has them, for some of its users."""
    point = {"mean": backbone.mean.detach().clone()}
    for name, towers, rows in (
        ("user", backbone.user_towers, users),
        ("item", backbone.item_towers, slice(None)),
    ):
        count = len(range(*rows.indices(backbone.n_users if name == "user" else backbone.n_items)))
        point[f"{name}s"] = backbone.mean.detach().new_zeros(count, backbone.dim + 1)
        for tower in towers:
            if isinstance(tower, IdTower):
                point[f"{name}s"][:, 0 if tower.vectors else backbone.dim :] = (
                    tower.weight.detach()[rows]
                )
            elif isinstance(tower, LinearTower):
                point[f"{name}_features"] = tower.weight.detach().clone()
    return point


@torch.no_grad()
def load_point(backbone: Backbone, point: Point) -> None:
    """Put the solver's parameters, those of all users, into the backbone."""
    backbone.mean.copy_(point["mean"])
    for name, towers in (("user", backbone.user_towers), ("item", backbone.item_towers)):
        for tower in towers:
            if isinstance(tower, IdTower):
                tower.weight.copy_(
                    point[f"{name}s"] if tower.vectors else point[f"{name}s"][:, backbone.dim :]
                )
            elif isinstance(tower, LinearTower):
                tower.weight.copy_(point[f"{name}_features"])


def is_linear(backbone: Backbone) -> bool:
    """Whether vectors and biases are linear in the parameters: IDs, and at most one linear map of
    features a side."""
    for towers in (backbone.user_towers, backbone.item_towers):
        shared = [tower for tower in towers if not isinstance(tower, IdTower)]
        if len(shared) > 1 or not all(isinstance(tower, LinearTower) for tower in shared):
            return False
    return True


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
