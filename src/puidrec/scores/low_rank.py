"""Scores of all pairs, held as factors: s_ui = Σ_k ⟨l_k,u , r_k,i⟩, never as a users × items
matrix; and their sums over all pairs D (identity 2).

A difference of two models (r̂ − g), a rescaled model (q/Γ with Γ_ui = exp(s_u + s_i)) and a sum of
both are again such scores, and Σ_ui ⟨p_u, q_i⟩² = ⟨PᵀP, QᵀQ⟩: every quadratic loss over D costs
(users + items)·d², exact, in place of users·items·d. Gram matrices are summed in float64: Σ over
D∖O is a difference of large numbers, and float32 would lose the small one. Errors without such an
identity (absolute, cross-entropy) are summed tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from puidrec.errors import InputError

TILE = (1024, 2048)
TileFunction = Callable[..., Tensor]
"""f(rows, columns, tile of scores₁, tile of scores₂, …) → values of the pairs of the tile (any
shape, summed)."""


@dataclass(frozen=True)
class LowRank:
    """A sum of parts. Parts are kept apart rather than concatenated: no copy of all users' rows,
    and a part that is held constant costs no gradient."""

    lefts: tuple[Tensor, ...]
    """Per part, one row per user."""
    rights: tuple[Tensor, ...]
    """Per part, one row per item, as wide as its left."""

    def __post_init__(self) -> None:
        users, items = {x.shape[0] for x in self.lefts}, {x.shape[0] for x in self.rights}
        widths = [(a.shape[1], b.shape[1]) for a, b in zip(self.lefts, self.rights, strict=True)]
        if len(users) != 1 or len(items) != 1 or any(a != b for a, b in widths):
            shapes = [tuple(x.shape) for x in (*self.lefts, *self.rights)]
            raise InputError(
                "factors do not fit together",
                found=shapes,
                expected="[users, d_k] and [items, d_k]",
            )

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Self:
        """Scores ⟨l_u, r_i⟩."""
        return cls((left,), (right,))

    @property
    def n_users(self) -> int:
        """Rows on the left."""
        return int(self.lefts[0].shape[0])

    @property
    def n_items(self) -> int:
        """Rows on the right."""
        return int(self.rights[0].shape[0])

    @property
    def n_pairs(self) -> int:
        """Pairs these scores speak of."""
        return self.n_users * self.n_items

    def minus(self, other: LowRank) -> LowRank:
        """s − t: P = [L, M], Q = [R, −N]. The sign sits on the item side, the smaller one."""
        return LowRank(
            self.lefts + other.lefts, self.rights + tuple(-right for right in other.rights)
        )

    def complement(self) -> LowRank:
        """1 − s."""
        left, right = self.lefts[0], self.rights[0]
        return LowRank.of(left.new_ones(left.shape[0], 1), right.new_ones(right.shape[0], 1)).minus(
            self
        )

    def scaled(self, users: Tensor | None = None, items: Tensor | None = None) -> LowRank:
        """α_u β_i s_ui, for instance q/Γ with α = exp(−s_u), β = exp(−s_i) (`signed` methods)."""
        lefts = self.lefts if users is None else tuple(users[:, None] * left for left in self.lefts)
        rights = (
            self.rights if items is None else tuple(items[:, None] * right for right in self.rights)
        )
        return LowRank(lefts, rights)

    def detach(self) -> LowRank:
        """The same scores, held constant."""
        return LowRank(
            tuple(x.detach() for x in self.lefts), tuple(x.detach() for x in self.rights)
        )

    def without_zeros(self) -> LowRank:
        """The same scores without columns of 0, which L2 leaves in models with more columns than
        they need."""
        kept = [~(right == 0.0).all(0) for right in self.rights]
        lefts = tuple(left[:, k] for left, k in zip(self.lefts, kept, strict=True))
        return LowRank(
            lefts, tuple(right[:, k] for right, k in zip(self.rights, kept, strict=True))
        )

    def tile(self, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor:
        """The scores of one tile as a matrix; all of D only in tests."""
        tile = self.lefts[0][rows] @ self.rights[0][columns].T
        for left, right in zip(self.lefts[1:], self.rights[1:], strict=True):
            tile = torch.addmm(tile, left[rows], right[columns].T)
        return tile


def square_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui², as a float64 scalar (`eq:dr`, first term, with s = r̂ − g)."""
    left, right = _in_float64(scores)
    return ((left.T @ left) * (right.T @ right)).sum()


def linear_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui = ⟨Σ_u l_u, Σ_i r_i⟩, as a float64 scalar: what an imputation model of ê itself
    needs."""
    left, right = _in_float64(scores)
    return left.sum(0) @ right.sum(0)


def inner_sum(scores: LowRank, others: LowRank) -> Tensor:
    """Σ_D s_ui t_ui = ⟨PᵀM, QᵀN⟩, as a float64 scalar."""
    (left, right), (other_left, other_right) = _in_float64(scores), _in_float64(others)
    return ((left.T @ other_left) * (right.T @ other_right)).sum()


def _in_float64(scores: LowRank) -> tuple[Tensor, Tensor]:
    """P = [part₁, part₂, …] and Q."""
    left, right = (
        torch.cat([part.double() for part in parts], 1) for parts in (scores.lefts, scores.rights)
    )
    return left, right


def tiled_sum(function: TileFunction, *scores: LowRank, tile: tuple[int, int] = TILE) -> Tensor:
    """Σ over tiles of function(rows, columns, *tiles of scores), as a float64 scalar that can be
    differentiated in the factors of `scores`.

    `rows` and `columns` are the slices of users and items of the tile, so that Γ, p or weights can
    be evaluated for them from small tables. Tiles are made anew for the gradient: one is alive at a
    time.
    """
    if len({(s.n_users, s.n_items) for s in scores}) != 1:
        raise InputError(
            "tiles need scores of one shape", found=[(s.n_users, s.n_items) for s in scores]
        )
    users, items = scores[0].n_users, scores[0].n_items
    # split once: the gradient of a slice would be as large as all of its factor
    cut = [
        [
            [torch.split(x, n) for x in side]
            for side, n in zip((s.lefts, s.rights), tile, strict=True)
        ]
        for s in scores
    ]

    def values(k: int, m: int) -> Tensor:
        rows, columns = (slice(j * n, (j + 1) * n) for j, n in zip((k, m), tile, strict=True))
        tiles = (
            LowRank(tuple(x[k] for x in lefts), tuple(x[m] for x in rights)).tile()
            for lefts, rights in cut
        )
        return function(rows, columns, *tiles).sum(dtype=torch.float64)

    total = torch.zeros((), dtype=torch.float64, device=scores[0].lefts[0].device)
    for k in range(-(-users // tile[0])):
        for m in range(-(-items // tile[1])):
            total = total + checkpoint(values, k, m, use_reentrant=False, preserve_rng_state=False)
    return total
