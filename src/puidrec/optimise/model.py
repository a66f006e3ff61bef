"""The parameters of low-rank scores as least squares sees them, their L2, and what scores they
make.

    s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ,   z = own vector and bias + x W

Plain L2: ρ ‖own‖² per entity, and ρ_W ‖W‖²; with `shrink_to` own vectors are pulled to a given
point instead of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from puidrec.scores.log import exact_sum
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import LogPattern
from puidrec.scores.towers import Backbone, IdTower, LinearTower

Point = dict[str, Tensor]
"""`users` and `items`: own vectors and biases, [n, dim + 1]; `user_features`, `item_features`: the
same per feature, where there are features; `mean`: μ. Users are those of this process."""
Reduce = Callable[[Tensor], Tensor]


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

    def off(self, own: Tensor) -> Tensor:
        """Own parameters less what L2 pulls them to."""
        return own if self.centre is None else own - self.centre

    def rows(self, point: Mapping[str, Tensor]) -> Tensor:
        """Vectors and biases of all entities, [n, dim + 1]."""
        own = point[f"{self.name}s"]
        return (
            own
            if self.features is None
            else own + self.features.times(point[f"{self.name}_features"])
        )


@dataclass(frozen=True, eq=False)
class Model:
    """Both sides. Scores are inner products of [z_u, b_u, 1] and [z_i, 1, b_i + μ], as of
    `scores.towers`."""

    users: Side
    items: Side
    total: Reduce
    """Σ over processes, each of which holds some users."""

    @property
    def sides(self) -> tuple[tuple[Side, Reduce], ...]:
        """Both sides, and how sums over their entities are completed."""
        return (self.users, self.total), (self.items, lambda x: x)

    @property
    def dim(self) -> int:
        """Columns of vectors."""
        return self.users.penalty.numel() - 1

    def factors(self, point: Mapping[str, Tensor], *, step: bool = False) -> LowRank:
        """The scores of a point, or (`step`) the change of factors that a change of parameters
        makes."""
        users, items = self.users.rows(point), self.items.rows(point)
        ones = torch.zeros_like if step else torch.ones_like
        left = torch.cat([users, ones(users[:, :1])], 1)
        right = torch.cat([items[:, :-1], ones(items[:, :1]), items[:, -1:] + point["mean"]], 1)
        return LowRank.of(left, right)

    def penalty_along(self, point: Point, step: Point) -> np.ndarray:
        """Coefficients of t⁰, t¹ and t² of the penalty at point + t · step."""
        sums = torch.zeros(3, dtype=torch.float64)
        for side, total in self.sides:
            own, change = side.off(point[f"{side.name}s"]), step[f"{side.name}s"]
            found = total(_products(side.cost, own, change))
            if side.features is not None:
                key = f"{side.name}_features"
                found = found + _products(side.features.penalty, point[key], step[key])
            sums += found.cpu()
        return sums.numpy()

    def penalty(self, point: Point) -> float:
        """The penalty of a point."""
        return float(self.penalty_along(point, point)[0])

    def slopes(self, point: Point, of_users: Tensor, of_items: Tensor) -> Point:
        """−½ ∂(J + penalty)/∂parameters, given −½ ∂J/∂factors."""
        found = {"mean": of_items[:, -1].sum(dtype=torch.float64).to(of_items)}
        rows = (of_users[:, :-1], torch.cat([of_items[:, :-2], of_items[:, -1:]], 1))
        for (side, total), slope in zip(self.sides, rows, strict=True):
            own = slope - side.cost * side.off(point[f"{side.name}s"])
            found[f"{side.name}s"] = own * side.free
            if side.features is not None:
                shared = side.features.penalty * point[f"{side.name}_features"]
                found[f"{side.name}_features"] = total(side.features.transposed(slope)) - shared
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
        own = self.total(exact_sum(first["users"] * second["users"]))
        shared = sum(
            exact_sum(x * second[name])
            for name, x in first.items()
            if name not in ("users", "mean")
        )
        return float(own + shared) + float(first["mean"] * second["mean"])

    def around(self, centre: Mapping[str, Tensor]) -> Model:
        """The same model with an L2 that pulls own vectors to those of a point; biases and all else
        to 0."""
        users, items = (centre[name].clone() for name in ("users", "items"))
        users[:, -1] = items[:, -1] = 0.0
        return replace(
            self, users=replace(self.users, centre=users), items=replace(self.items, centre=items)
        )


def _products(cost: Tensor, own: Tensor, change: Tensor) -> Tensor:
    """Coefficients of Σ cost (own + t change)²."""
    weighted = cost * change
    return torch.stack(
        [exact_sum(cost * own * own), 2.0 * exact_sum(weighted * own), exact_sum(weighted * change)]
    )


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
