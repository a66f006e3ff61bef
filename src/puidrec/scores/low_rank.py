"""Scores of all pairs, held as factors: s_ui = Σ_k ⟨l_k,u , r_k,i⟩, never as a users × items
matrix.

A difference of two models (r̂ − g), a rescaled model (q/Γ with Γ_ui = exp(s_u + s_i)) and a sum of
both are again such scores, so every quadratic loss over D stays within reach of `whole_space`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from puidrec.errors import InputError


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
