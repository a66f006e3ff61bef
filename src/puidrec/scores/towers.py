"""What a rating model is here: one representation per user and per item, r̂_ui = ⟨l_u, r_i⟩, biases
folded in.

Representations are computed once per step, never per pair, so a backbone costs (users + items)
whatever the log; and because r̂ is an inner product, losses over all pairs have the identities of
`scores.low_rank`. A backbone is made of *towers*, each mapping every entity of a side to a
vector and a bias; a side is their sum: free parameters per entity (`mf`), linear features
(`mf-linear`: what lifts small logs with real features; they serve users and items without a
history), or the paper's network on features (`mf-mlp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from puidrec.errors import InputError
from puidrec.scores.log import LogPattern, sparse_matmul
from puidrec.scores.low_rank import LowRank

EXPOSURE, RATING, IMPUTATION = range(3)
"""Heads of Multi-IPS and Multi-DR."""
INIT_SD = 0.1
"""Initial spread of embeddings: small against ratings, large enough to break the symmetry of z_u
and z_i at once."""
OWN_SD = 0.01
"""The same of biases that heads have for themselves. At 0 the slope of an entity without rows is a
rounding error, which Adam follows as it does any other: scores moved by .005 with the kernels."""


@dataclass(frozen=True)
class Design:
    """A sparse matrix of features, a row per entity; `design @ W` is differentiable in W."""

    pattern: LogPattern
    values: Tensor

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> Design:
        """The tensors of a matrix that `features.encode` made."""
        start, column = (
            torch.from_numpy(part.astype(np.int32)) for part in (matrix.indptr, matrix.indices)
        )
        return cls(
            LogPattern(start, column, matrix.shape[1]),
            torch.from_numpy(matrix.data.astype(np.float32)),
        )

    @property
    def n_rows(self) -> int:
        """Entities."""
        return self.pattern.n_users

    @property
    def n_columns(self) -> int:
        """Encoded features."""
        return self.pattern.n_items

    def __matmul__(self, weight: Tensor) -> Tensor:
        return sparse_matmul(self.pattern, self.values.to(weight.dtype), weight)

    def rows(self, rows: slice) -> Design:
        """A range of entities, or every k-th."""
        if rows.indices(self.n_rows) == (0, self.n_rows, 1):
            return self
        parts = (x.cpu().numpy() for x in (self.values, self.pattern.col, self.pattern.row_start))
        matrix = sparse.csr_array(tuple(parts), shape=(self.n_rows, self.n_columns))
        return Design.of(matrix[rows]).to(self.values.device, self.values.dtype)

    def column_power(self) -> Tensor:
        """Mean over entities of x², per column: how much of the population a weight serves."""
        power = torch.zeros(self.n_columns, dtype=torch.float64)
        power.index_add_(0, self.pattern.col.long().cpu(), self.values.double().square().cpu())
        return power / max(self.n_rows, 1)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Design:
        """The design on another device, or in another precision."""
        return Design(self.pattern.to(device), self.values.to(device, dtype))


class Penalty(NamedTuple):
    """Mean squared norms: of what belongs to single entities, and of what is shared through
    features."""

    ids: Tensor
    features: Tensor


class Tower(nn.Module):
    """One way to represent the entities of a side: `forward(rows)` gives [vector, bias] per entity,
    [n, dim + 1]."""

    n_rows: int
    dim: int
    uses_ids: bool = False

    def forward(self, rows: slice) -> Tensor:
        """Vectors and biases of a range of entities."""
        raise NotImplementedError

    def cold(self, design: Design) -> Tensor | None:
        """Vectors and biases of entities known by their features only; None where features say
        nothing."""
        return None

    def penalty(self) -> Tensor:
        """Mean over entities of the squared norm of the parameters each one uses."""
        raise NotImplementedError


class IdTower(Tower):
    """A free vector and bias per entity; `vectors=False` keeps only the bias (`eq:prediction` on
    features alone)."""

    uses_ids = True

    def __init__(
        self, n_rows: int, dim: int, generator: torch.Generator, *, vectors: bool = True
    ) -> None:
        super().__init__()
        self.n_rows, self.dim, self.vectors = n_rows, dim, vectors
        weight = torch.zeros(n_rows, dim + 1 if vectors else 1)
        if vectors:
            weight[:, :dim].normal_(0.0, INIT_SD, generator=generator)
        self.weight = nn.Parameter(weight)

    def forward(self, rows: slice) -> Tensor:
        """The entities' own parameters."""
        everyone = rows.indices(self.n_rows) == (0, self.n_rows, 1)
        own = self.weight if everyone else self.weight[rows]  # a slice copies its gradient
        return own if self.vectors else nn.functional.pad(own, (self.dim, 0))

    def penalty(self) -> Tensor:
        """Mean squared norm of an entity's parameters."""
        return squared_norm(self.weight) / max(self.n_rows, 1)


class LinearTower(Tower):
    """X W: every category, list value and number has a vector and a bias; the design is encoded
    once."""

    def __init__(self, design: Design, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_rows, self.dim, self.design = design.n_rows, dim, design
        weight = torch.zeros(design.n_columns, dim + 1)
        weight[:, :dim].normal_(0.0, INIT_SD, generator=generator)
        self.weight = nn.Parameter(weight)
        self.power: Tensor
        self.register_buffer("power", design.column_power().to(weight.dtype), persistent=False)

    def forward(self, rows: slice) -> Tensor:
        """Sums over an entity's features."""
        return self.design.rows(rows) @ self.weight

    def cold(self, design: Design) -> Tensor:
        """New entities use the same weights."""
        return design @ self.weight

    def penalty(self) -> Tensor:
        """Mean over entities of Σ_k x_k² ‖w_k‖²: a weight counts by the share of entities that use
        it."""
        return (self.power * self.weight.square().sum(1)).sum()


class MlpTower(Tower):
    """z = W₂ relu(W₁ x + c₁) + c₂ (`eq:mlp`), one pass over the entities per step.

    The second layer is linear (a ReLU there would confine factors to the positive orthant) and has
    one more output, the bias, so that a model without IDs still has one. The first layer is a
    sparse product: wide one-hot features cost their non-zeros only.
    """

    def __init__(
        self, design: Design, dim: int, generator: torch.Generator, hidden: int = 64
    ) -> None:
        super().__init__()
        self.n_rows, self.dim, self.design = design.n_rows, dim, design
        active = float(design.column_power().sum())
        first = torch.zeros(design.n_columns, hidden).normal_(
            0.0, (2.0 / max(active, 1.0)) ** 0.5, generator=generator
        )
        second = torch.zeros(hidden, dim + 1).normal_(
            0.0, (0.1 / hidden) ** 0.5, generator=generator
        )
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.first_bias, self.second_bias = (
            nn.Parameter(torch.zeros(hidden)),
            nn.Parameter(torch.zeros(dim + 1)),
        )

    def forward(self, rows: slice) -> Tensor:
        """The network on the entities' features."""
        return self.cold(self.design.rows(rows))

    def cold(self, design: Design) -> Tensor:
        """The network on any features."""
        hidden = torch.relu(design @ self.first + self.first_bias)
        return torch.addmm(self.second_bias, hidden, self.second)

    def penalty(self) -> Tensor:
        """Weight decay of both layers, per hidden unit."""
        return (self.first.square().sum() + self.second.square().sum()) / self.first.shape[1]


class Backbone(nn.Module):
    """Users and items as sums of towers, and a global mean. With columns [z, b_u, 1] and [z, 1, b_i
    + μ], r̂ is the inner product (`eq:prediction`)."""

    def __init__(
        self, user_towers: Sequence[Tower], item_towers: Sequence[Tower], mean: float = 0.0
    ) -> None:
        super().__init__()
        dims = {tower.dim for tower in (*user_towers, *item_towers)}
        if not user_towers or not item_towers or len(dims) != 1:
            raise InputError(
                "a backbone needs towers of one dimension on both sides", found=sorted(dims)
            )
        self.user_towers, self.item_towers = nn.ModuleList(user_towers), nn.ModuleList(item_towers)
        self.mean = nn.Parameter(torch.tensor(float(mean)))
        self.n_users, self.n_items = user_towers[0].n_rows, item_towers[0].n_rows
        self.dim = dims.pop()

    def users(self, rows: slice = slice(None)) -> Tensor:
        """[z_u, b_u, 1] of a range of users, [n, dim + 2]."""
        total = _sum([tower(rows) for tower in self.user_towers])
        return torch.cat([total, torch.ones_like(total[:, :1])], 1)

    def items(self, rows: slice = slice(None)) -> Tensor:
        """[z_i, 1, b_i + μ] of a range of items, [n, dim + 2]."""
        return self._as_items(_sum([tower(rows) for tower in self.item_towers]))

    def factors(self, users: slice = slice(None)) -> LowRank:
        """The scores of a range of users against all items."""
        return LowRank.of(self.users(users), self.items())

    def cold_users(self, design: Design) -> Tensor:
        """Representations of users never seen in training, from features (zero where the model has
        none)."""
        total = self._cold(self.user_towers, design)
        return torch.cat([total, torch.ones_like(total[:, :1])], 1)

    def cold_items(self, design: Design) -> Tensor:
        """Representations of items never seen in training."""
        return self._as_items(self._cold(self.item_towers, design))

    def penalty(self) -> Penalty:
        """Mean over a side's entities of squared norms, apart for what single entities have and
        what features share.

        Means, not sums: an average user's share of a mean loss is 1/users, so one weight suits logs
        of any size.
        """
        zero = torch.zeros((), dtype=self.mean.dtype, device=self.mean.device)
        towers = [
            tower for tower in (*self.user_towers, *self.item_towers) if isinstance(tower, Tower)
        ]
        return Penalty(
            *(
                _sum([zero, *(tower.penalty() for tower in towers if tower.uses_ids is uses_ids)])
                for uses_ids in (True, False)
            )
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of given pairs, for a few pairs; training uses sampled products instead."""
        return (self.users().index_select(0, users) * self.items().index_select(0, items)).sum(1)

    def _as_items(self, total: Tensor) -> Tensor:
        return torch.cat(
            [total[:, :-1], torch.ones_like(total[:, :1]), total[:, -1:] + self.mean], 1
        )

    def _cold(self, towers: nn.ModuleList, design: Design) -> Tensor:
        zero = torch.zeros(
            design.n_rows, self.dim + 1, dtype=self.mean.dtype, device=self.mean.device
        )
        parts = [tower.cold(design) for tower in towers if isinstance(tower, Tower)]
        return _sum([zero, *(part for part in parts if part is not None)])


def squared_norm(weight: Tensor) -> Tensor:
    """Σ w² in one pass forward and one back: a penalty must not cost as much as its loss."""
    value: Tensor = _SquaredNorm.apply(weight)  # type: ignore[no-untyped-call]
    return value


class _SquaredNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return torch.dot(weight.flatten(), weight.flatten())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        scaled: Tensor = weight * (2.0 * upstream)
        return scaled


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class SharedHeads(nn.Module):
    """Several heads on shared representations, what Multi-IPS and Multi-DR train: every head scores
    ⟨z_u W_h, z_i⟩ + biases, so each stays low-rank and is summed over D exactly.

    A backbone, and per head a map of the user factors, gains of the shared biases, a mean, and
    (`own`) biases."""

    def __init__(self, backbone: Backbone, means: tuple[float, ...], *, own: bool) -> None:
        super().__init__()
        self.backbone = backbone
        n_heads, shape = len(means), (backbone.n_users, backbone.n_items) if own else (0, 0)
        self.maps = nn.Parameter(torch.eye(backbone.dim).repeat(n_heads, 1, 1))
        self.gains = nn.Parameter(torch.ones(n_heads, 2))
        self.means = nn.Parameter(torch.tensor(means))
        generator = torch.Generator().manual_seed(0)
        self.user_bias, self.item_bias = (
            nn.Parameter(OWN_SD * torch.randn(n_heads, n, generator=generator)) for n in shape
        )
        _draw_biases(backbone)

    def factors(self, head: int) -> LowRank:
        """The scores of one head."""
        users, items = self.backbone.users(), self.backbone.items()
        if not self.item_bias.numel():
            return LowRank.of(self.user_factors(head, users), self.item_factors(head, items))
        left = self.user_factors(head, users, self.user_bias[head, :, None])
        return LowRank.of(left, self.item_factors(head, items, self.item_bias[head, :, None]))

    def user_factors(self, head: int, users: Tensor, own_bias: Tensor | float = 0.0) -> Tensor:
        """Users' factors of one head from their shared representations [z, b, 1] and biases of the
        head's own."""
        dim = self.backbone.dim
        bias = self.gains[head, 0] * users[:, dim : dim + 1] + own_bias
        return torch.cat([users[:, :dim] @ self.maps[head], bias, torch.ones_like(bias)], 1)

    def item_factors(self, head: int, items: Tensor, own_bias: Tensor | float = 0.0) -> Tensor:
        """Items' factors of one head, likewise."""
        dim = self.backbone.dim
        bias = self.gains[head, 1] * items[:, dim + 1 :] + self.means[head] + own_bias
        return torch.cat([items[:, :dim], torch.ones_like(bias), bias], 1)

    def map_penalty(self) -> Tensor:
        """How far the maps are from the identity: free ones would grow where the penalty lets
        vectors shrink."""
        return (
            self.maps - torch.eye(self.backbone.dim).to(self.maps)
        ).square().sum() / self.backbone.dim

    def bias_penalty(self) -> Tensor:
        """Mean squared biases over entities, all heads; 0 where heads have none of their own."""
        if not self.item_bias.numel():
            return self.means.new_zeros(())
        users = self.user_bias.square().sum(1) / self.backbone.n_users
        return users.sum() + self.item_bias.square().mean(1).sum()


@torch.no_grad()
def _draw_biases(backbone: Backbone) -> None:
    """Let shared biases start as random as vectors are, by what their own vectors hold.

    At biases of 0 gains have no slope at all. Adam's first step has its full size however small a
    slope is, so that what is not quite 0 on another machine would send it anywhere.
    """
    for tower in (*backbone.user_towers, *backbone.item_towers):
        if isinstance(tower, IdTower | LinearTower) and tower.weight.shape[1] > 1:
            tower.weight[:, -1] = tower.weight[:, :-1].sum(1) / backbone.dim**0.5
