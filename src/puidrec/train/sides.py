"""The parameters of low-rank scores, their L2, and what scores they make.

    s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ,   z = own vector and bias + x W

L2 may grow with an entity's part of the log, ρ_u = ρ (1 − β + β n_u/n̄), and it may pull vectors to those of a given
point, ρ ‖z − z⁰‖² (`Model.around`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.base import row_factor
from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import LogPattern
from puidrec.errors import PuidError
from puidrec.train.quadratic import Reduce, alone, exact_sum

START_SD = 0.1
"""Spread of the items' first vectors; users start at 0, so a start does not depend on how users are divided."""
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
    share: Tensor | None = None
    """What the L2 of each entity's vector grows with, mean 1, [n]: its part of the logged rows; None: with nothing."""
    growing: float = 0.0
    """The part of the L2 of vectors that grows with `share`."""
    centre: Tensor | None = None
    """What L2 pulls the entities' own parameters to, [n, dim + 1]; None: 0."""

    @cached_property
    def free(self) -> Tensor:
        """1 where entities have a parameter of their own, else 0."""
        return torch.isfinite(self.penalty).to(self.penalty)

    @cached_property
    def cost(self) -> Tensor:
        """The penalty, 0 where there is no parameter."""
        return torch.where(torch.isfinite(self.penalty), self.penalty, 0.0)

    @cached_property
    def penalised(self) -> bool:
        """Whether L2 keeps all own parameters from being undetermined."""
        return bool((self.penalty > 0.0).all())

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
        return self.users.penalised and self.items.penalised

    def narrowed(self, width: int) -> Model:
        """The same model with fewer columns; itself where they are as many."""
        if width == self.users.penalty.numel():
            return self
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


def _vectors(own: Tensor, share: float) -> Tensor:
    """A share of vectors, without their biases."""
    scaled = share * own
    scaled[:, -1] = 0.0
    return scaled


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
