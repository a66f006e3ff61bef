"""A sum of low-rank scores with weights that may vary by user and item; its compression, and its cold start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank

LOST = 1e-7
"""Share of Σ_D s² that compression may lose: an error of about 0.0002 on ratings in [0, 1]."""
ROWS = 16_384
"""Users whose factors are turned at a time; side by side they have some hundred columns."""


@dataclass(frozen=True, eq=False)
class Term:
    """weight · user_scale_u · item_scale_i · scores_ui."""

    name: str
    scores: LowRank
    """In one part."""
    weight: float = 1.0
    user_scale: np.ndarray | None = None
    item_scale: np.ndarray | None = None
    stage: str = ""
    """The stage of training that made the scores; empty where no parameters did."""

    def at(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Values of pairs, without the weight."""
        values = pair_scores(self.scores, user, item).astype(np.float64)
        for scale, code in ((self.user_scale, user), (self.item_scale, item)):
            values = values if scale is None else values * scale[code]
        return values

    @property
    def left(self) -> Tensor:
        """Users' side with the weight, float64."""
        return self.left_of(slice(None))

    def left_of(self, users: slice) -> Tensor:
        """The same of some users."""
        scale = None if self.user_scale is None else self.user_scale[users]
        return self.weight * _scaled(self.scores.lefts[0][users], scale)

    @property
    def right(self) -> Tensor:
        """Items' side, float64."""
        return _scaled(self.scores.rights[0], self.item_scale)


class Compressed(NamedTuple):
    """Scores of fewer columns, the maps that took the long rows of both sides there, and the share of squares lost."""

    scores: LowRank
    users: Tensor
    items: Tensor
    lost: float


def one(n_users: int, n_items: int) -> LowRank:
    """The score 1 of every pair."""
    return LowRank.of(torch.ones(n_users, 1), torch.ones(n_items, 1))


def compress(terms: Sequence[Term], lost: float = LOST, most: int | None = None) -> Compressed:
    """The sum of terms as factors of the least rank that loses no more than `lost` of Σ_D s².

    With L and R the sides of all terms side by side and RᵀR = E S Eᵀ, L Rᵀ = (L E S^½)(R E S^-½)ᵀ, whose right
    factor is orthonormal; so the leading axes V of S^½ Eᵀ LᵀL E S^½ keep the most. Where items are fewer than columns,
    RRᵀ = Q S Qᵀ has the same S, and E S^½ = RᵀQ.
    """
    rights = torch.cat([term.right for term in terms], 1)
    by_item = rights.shape[0] < rights.shape[1]
    values, axes = torch.linalg.eigh(rights @ rights.T if by_item else rights.T @ rights)
    kept = values > 1e-12 * values[-1].clamp_min(1e-300)
    values, axes = values[kept], axes[:, kept]
    to_users = rights.T @ axes if by_item else axes * values.sqrt()
    to_items = to_users / values
    blocks = [slice(start, start + ROWS) for start in range(0, terms[0].scores.n_users, ROWS)]
    gram = torch.zeros(rights.shape[1], rights.shape[1], dtype=torch.float64)
    for block in blocks:
        lefts = _side_by_side(terms, block)
        gram += lefts.T @ lefts
    energy, turned = torch.linalg.eigh(to_users.T @ gram @ to_users)
    energy, turned = energy.clamp_min(0.0).flip(0), turned.flip(1)
    total = energy.sum().clamp_min(1e-300)
    rest = 1.0 - torch.cumsum(energy, 0) / total
    rank = min(int((rest > lost).sum()) + 1, len(energy), most or len(energy))
    turned = turned[:, :rank]
    to_users, to_items = to_users @ turned, to_items @ turned
    right = rights @ to_items
    largest = right.gather(0, right.abs().argmax(0, keepdim=True))
    sign = torch.where(largest < 0.0, -1.0, 1.0).double()  # else rounding may turn a direction round
    to_users, to_items = to_users * sign, to_items * sign
    left = torch.cat([(_side_by_side(terms, block) @ to_users).float() for block in blocks])
    scores = LowRank.of(left.contiguous(), (right * sign).float().contiguous())
    return Compressed(scores, to_users, to_items, max(float(rest[rank - 1]), 0.0))


def _side_by_side(terms: Sequence[Term], users: slice) -> Tensor:
    return torch.cat([term.left_of(users) for term in terms], 1)


def _scaled(rows: Tensor, scale: np.ndarray | None) -> Tensor:
    rows = rows.cpu().double()
    return rows if scale is None else rows * torch.from_numpy(scale)[:, None]
