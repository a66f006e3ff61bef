"""A sum of low-rank scores with weights that may vary by user and item, and its compression to few
columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank

ROWS = 16_384
"""Entities whose factors are turned at a time; side by side they have some hundred columns."""


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

    def left(self, users: slice = slice(None)) -> Tensor:
        """Users' side with the weight, float64."""
        scale = None if self.user_scale is None else self.user_scale[users]
        return self.weight * _scaled(self.scores.lefts[0][users], scale)

    def right(self, items: slice = slice(None)) -> Tensor:
        """Items' side, float64."""
        scale = None if self.item_scale is None else self.item_scale[items]
        return _scaled(self.scores.rights[0][items], scale)

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean over all items of each user, and over all users of each item."""
        left, right = self.left(), self.right()
        return (left @ right.mean(0)).numpy(), (right @ left.mean(0)).numpy()


class Compressed(NamedTuple):
    """Scores of fewer columns, the maps that took the long rows of both sides there, and the share
    of squares kept."""

    scores: LowRank
    users: Tensor
    items: Tensor
    kept: float


def one(n_users: int, n_items: int) -> LowRank:
    """The score 1 of every pair."""
    return LowRank.of(torch.ones(n_users, 1), torch.ones(n_items, 1))


def spread(scores: LowRank, less: LowRank | None = None) -> float:
    """Standard deviation of scores, or of a difference of two, over all pairs: exact, by Gram
    matrices."""
    both = (scores,) if less is None else (scores, less)
    left = torch.cat([part.lefts[0].cpu().double() for part in both], 1)
    right = torch.cat(
        [part.rights[0].cpu().double() * (1.0 - 2.0 * k) for k, part in enumerate(both)], 1
    )
    left, mean = left - left.mean(0), left.mean(0)
    pairs = left.shape[0] * right.shape[0]
    within = ((left.T @ left) * (right.T @ right)).sum() / pairs
    return float((within + (right @ mean).var(correction=0)).clamp_min(0.0).sqrt())


def compress(terms: Sequence[Term], most: int) -> Compressed:
    """The sum of terms as factors of at most so many columns, the leading singular vectors of users
    × items.

    With L and R the sides of all terms side by side and their QR decompositions L = Q_l T_l, R =
    Q_r T_r, the small core T_l T_rᵀ = U S Vᵀ gives L Rᵀ = (Q_l U) S (Q_r V)ᵀ. Since L T_rᵀ V = Q_l
    U S, the factors Q_l U S^½ = L (T_rᵀ V S^-½) and Q_r V S^½ = R (T_lᵀ U S^-½) need neither Q nor
    an inverse of T.
    """
    users, items = terms[0].scores.n_users, terms[0].scores.n_items
    t_left = _triangle(torch.cat([term.left(rows) for term in terms], 1) for rows in _blocks(users))
    t_right = _triangle(
        torch.cat([term.right(rows) for term in terms], 1) for rows in _blocks(items)
    )
    u, s, v = torch.linalg.svd(t_left @ t_right.T, full_matrices=False)
    rank = max(min(most, int((s > 1e-9 * s[0]).sum())), 1)
    root = s[:rank].clamp_min(1e-300).sqrt()
    to_users, to_items = t_right.T @ v[:rank].T / root, t_left.T @ u[:, :rank] / root
    right = torch.cat(
        [torch.cat([term.right(rows) for term in terms], 1) @ to_items for rows in _blocks(items)]
    )
    largest = right.gather(0, right.abs().argmax(0, keepdim=True))
    sign = torch.where(
        largest < 0.0, -1.0, 1.0
    ).double()  # else rounding may turn a direction round
    to_users, to_items = to_users * sign, to_items * sign
    left = torch.cat(
        [
            (torch.cat([term.left(rows) for term in terms], 1) @ to_users).float()
            for rows in _blocks(users)
        ]
    )
    kept = float((s[:rank] ** 2).sum() / (s**2).sum().clamp_min(1e-300))
    return Compressed(
        LowRank.of(left.contiguous(), (right * sign).float().contiguous()), to_users, to_items, kept
    )


def _blocks(n: int) -> list[slice]:
    return [slice(start, start + ROWS) for start in range(0, n, ROWS)]


def _triangle(blocks: Iterator[Tensor]) -> Tensor:
    """T of the QR decomposition of rows that come block by block."""
    found: Tensor = torch.linalg.qr(next(blocks), mode="r")[1]
    for block in blocks:
        found = torch.linalg.qr(torch.cat([found, block]), mode="r")[1]
    return found


def _scaled(rows: Tensor, scale: np.ndarray | None) -> Tensor:
    rows = rows.cpu().double()
    return rows if scale is None else rows * torch.from_numpy(scale)[:, None]
