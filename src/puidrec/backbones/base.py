"""What a rating model is here: one representation per user and per item, r̂_ui = ⟨l_u, r_i⟩, biases folded in.

Representations are computed once per step, never per pair, so a backbone costs (users + items) whatever the log; and
because r̂ is an inner product, losses over all pairs have the identities of `objective.whole_space`.
A backbone is made of *towers*, each mapping every entity of a side to a vector and a bias; a side is their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from puidrec.backbones.features import Design
from puidrec.backbones.low_rank import LowRank
from puidrec.errors import InputError

Span = tuple[int, int]
"""Rows start..stop−1."""
DRAW_BLOCK = 65_536
"""Rows drawn at once."""


@dataclass(frozen=True)
class RowShard:
    """The rows of a side that a process holds: those of `spans`, of `n_rows` in all, by their numbers among all."""

    spans: tuple[Span, ...]
    n_rows: int

    def __len__(self) -> int:
        return self._offsets[-1]

    @cached_property
    def _offsets(self) -> list[int]:
        return list(accumulate((b - a for a, b in self.spans), initial=0))

    def locate(self, rows: slice) -> slice:
        """Where rows start..stop−1, all of one span, are among the rows held here."""
        start, stop, _ = rows.indices(self.n_rows)
        for (a, b), offset in zip(self.spans, self._offsets, strict=False):
            if a <= start and stop <= b:
                return slice(offset + start - a, offset + stop - a)
        raise IndexError(f"rows {start} to {stop} belong to another process")

    def take(self, everyone: Tensor, axis: int = 0) -> Tensor:
        """This process's rows, out of all rows."""
        return torch.cat([everyone.narrow(axis, a, b - a) for a, b in self.spans], axis)

    def draw(self, width: int, spread: float, generator: torch.Generator) -> Tensor:
        """The rows held here of the N(0, spread²) values that one process would draw for all rows.

        Torch's generator cannot skip ahead, so rows of other processes are drawn and dropped, a block at a time.
        """
        own = torch.zeros(len(self), width)
        start = 0
        while start < self.n_rows:
            stop = min(start + DRAW_BLOCK, self.n_rows)
            stop += stop + 1 == self.n_rows  # torch draws a single row in another order
            block = torch.empty(stop - start, width + 1)[:, :width].normal_(0.0, spread, generator=generator)
            for (a, b), offset in zip(self.spans, self._offsets, strict=False):
                low, high = max(a, start), min(b, stop)
                if low < high:
                    own[offset + low - a : offset + high - a] = block[low - start : high - start]
            start = stop
        return own


class Penalty(NamedTuple):
    """Mean squared norms: of what belongs to single entities, and of what is shared through features."""

    user_ids: Tensor
    item_ids: Tensor
    user_features: Tensor
    item_features: Tensor

    @property
    def ids(self) -> Tensor:
        """Both sides' entities."""
        return self.user_ids + self.item_ids

    @property
    def features(self) -> Tensor:
        """Both sides' feature weights."""
        return self.user_features + self.item_features


class RowShares(NamedTuple):
    """Rows of each user and of each item, or the sums of their weights, against their means."""

    users: Tensor
    items: Tensor

    def to(self, device: str) -> RowShares:
        """The same on another device."""
        return RowShares(self.users.to(device), self.items.to(device))


def row_factor(share: Tensor, growing: float) -> Tensor:
    """What the L2 of each entity's vector is multiplied by, given its share of the log."""
    return 1.0 - growing + growing * share


class PenaltyFactors(NamedTuple):
    """L2 penalty factors of vectors against biases: of ID embeddings, and of the feature weights of either side."""

    ids: float = 1.0
    user_features: float = 1.0
    item_features: float = 1.0
    edge_share: float = 1.0
    """`ids` as a share of the edge of noise: the L2 at which vectors cannot grow on noise. New columns must be worth
    that."""
    growing: float = 0.0
    """The part of the L2 of ID vectors that grows with the number of an entity's rows."""


class Tower(nn.Module):
    """One way to represent the entities of a side: `forward(rows)` gives [vector, bias] per entity, [n, dim + 1]."""

    n_rows: int
    dim: int
    uses_ids: bool = False
    penalty_factor: float = 1.0
    """L2 penalty factor of its vectors; its biases count once. A tower without vectors of its own ignores it."""
    edge_share: float = 1.0
    """As of `PenaltyFactors`, for vectors of IDs."""
    at_edge: float = 1.0
    """`penalty_factor` at the edge of noise."""

    def forward(self, rows: slice) -> Tensor:
        """Vectors and biases of a range of entities."""
        raise NotImplementedError

    def cold(self, design: Design) -> Tensor | None:
        """Vectors and biases of entities known by their features only; None where features say nothing."""
        return None

    def penalty(self) -> Tensor:
        """Mean over entities of the squared norm of the parameters each one uses, vectors times `penalty_factor`."""
        raise NotImplementedError

    def keep_rows(self, shard: RowShard) -> None:
        """Drop the parameters of all other entities. By default there are none: feature weights are shared."""

    def grow_penalty(self, share: Tensor, growing: float) -> None:
        """Let a part of the L2 of own vectors grow with each entity's share of the log; others have no such vectors."""

    def entity_axes(self) -> dict[str, int]:
        """Parameters that are split by entity among processes: name → axis of the entities."""
        return {}

    def column_factor(self, weight: Tensor) -> Tensor:
        """What each column of [vector, bias] counts in the penalty."""
        factor = weight.new_full((weight.shape[1],), self.penalty_factor)
        factor[-1] = 1.0
        return factor


class Backbone(nn.Module):
    """Users and items as sums of towers, and a global mean. With columns [z, b_u, 1] and [z, 1, b_i + μ], r̂ is the
    inner product (`eq:prediction`)."""

    def __init__(self, user_towers: Sequence[Tower], item_towers: Sequence[Tower], mean: float = 0.0) -> None:
        super().__init__()
        dims = {tower.dim for tower in (*user_towers, *item_towers)}
        if not user_towers or not item_towers or len(dims) != 1:
            raise InputError("a backbone needs towers of one dimension on both sides", found=sorted(dims))
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
        """The scores of a block of users against all items."""
        return LowRank.of(self.users(users), self.items())

    def cold_users(self, design: Design) -> Tensor:
        """Representations of users never seen in training, from features (zero where the model has none)."""
        total = self._cold(self.user_towers, design)
        return torch.cat([total, torch.ones_like(total[:, :1])], 1)

    def cold_items(self, design: Design) -> Tensor:
        """Representations of items never seen in training."""
        return self._as_items(self._cold(self.item_towers, design))

    def penalty(self) -> Penalty:
        """Mean over a side's entities of squared norms, apart for both sides and for what features share.

        Means, not sums: an average user's share of a mean loss is 1/users, so one weight suits logs of any size.
        """
        zero = torch.zeros((), dtype=self.mean.dtype, device=self.mean.device)

        def side(towers: nn.ModuleList, uses_ids: bool) -> Tensor:
            own = [tower for tower in towers if isinstance(tower, Tower) and tower.uses_ids is uses_ids]
            return _sum([zero, *(tower.penalty() for tower in own)])

        users, items = self.user_towers, self.item_towers
        return Penalty(side(users, True), side(items, True), side(users, False), side(items, False))

    def set_penalty_factors(self, factors: PenaltyFactors, shares: RowShares | None = None) -> Self:
        """Set how much more vectors count than biases in the penalty.

        shares: what `factors.growing` refers to.
        """
        sides = ((self.user_towers, factors.user_features), (self.item_towers, factors.item_features))
        for k, (towers, features) in enumerate(sides):
            for tower in towers:
                if isinstance(tower, Tower):
                    tower.penalty_factor = factors.ids if tower.uses_ids else features
                    tower.edge_share = factors.edge_share if tower.uses_ids else 1.0
                    tower.at_edge = tower.penalty_factor / tower.edge_share
                    if shares is not None:
                        tower.grow_penalty(shares[k], factors.growing)
        return self

    @property
    def edge_share(self) -> float:
        """The L2 of ID vectors as a share of that at which they cannot grow on noise; 1 without such vectors."""
        towers = (*self.user_towers, *self.item_towers)
        return min((tower.edge_share for tower in towers if isinstance(tower, Tower)), default=1.0)

    def set_edge_share(self, share: float) -> None:
        """Change the L2 of ID vectors to this share."""
        for tower in (*self.user_towers, *self.item_towers):
            if isinstance(tower, Tower) and tower.uses_ids:
                tower.penalty_factor, tower.edge_share = tower.at_edge * share, share

    def keep_users(self, shard: RowShard) -> None:
        """Drop the parameters of all other users."""
        for tower in self.user_towers:
            if isinstance(tower, Tower):
                tower.keep_rows(shard)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of given pairs, for a few pairs; training uses sampled products instead."""
        return (self.users().index_select(0, users) * self.items().index_select(0, items)).sum(1)

    def _as_items(self, total: Tensor) -> Tensor:
        return torch.cat([total[:, :-1], torch.ones_like(total[:, :1]), total[:, -1:] + self.mean], 1)

    def _cold(self, towers: nn.ModuleList, design: Design) -> Tensor:
        zero = torch.zeros(design.n_rows, self.dim + 1, dtype=self.mean.dtype, device=self.mean.device)
        parts = [tower.cold(design) for tower in towers if isinstance(tower, Tower)]
        return _sum([zero, *(part for part in parts if part is not None)])


def squared_norm(weight: Tensor, factor: Tensor | None = None) -> Tensor:
    """Σ w², columns times `factor`, in one pass forward and one back: a penalty must not cost as much as its loss."""
    value: Tensor = _SquaredNorm.apply(weight, factor)  # type: ignore[no-untyped-call]
    return value


class _SquaredNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, factor: Tensor | None) -> Tensor:
        scaled = weight if factor is None else weight * factor
        ctx.save_for_backward(scaled)
        return torch.dot(weight.flatten(), scaled.flatten())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * (2.0 * upstream), None


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
