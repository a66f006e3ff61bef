"""Sums of low-rank scores with weights that may vary by user or by item, and their compression to
few columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank

ROWS = 16_384
"""Entities whose factors are turned at a time; side by side they have some hundred columns."""


@dataclass(frozen=True, eq=False)
class Term:
    """weight · user_scale_u · item_scale_i · scores_ui; at most one scale varies."""

    name: str
    scores: LowRank
    """In one part."""
    weight: float = 1.0
    user_scale: np.ndarray | None = None
    item_scale: np.ndarray | None = None
    stage: str = ""
    """The stage of training that made the scores; empty where no parameters did."""

    def at(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Values of pairs."""
        values = self.weight * pair_scores(self.scores, user, item).astype(np.float64)
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


def one(n_users: int, n_items: int) -> Term:
    """The score 1 of every pair."""
    return Term("one", LowRank.of(torch.ones(n_users, 1), torch.ones(n_items, 1)))


def spread(terms: Sequence[Term]) -> float:
    """Standard deviation of a sum over all pairs: exact, by Gram matrices."""
    left, right = (torch.cat([*_rows(terms, side)]) for side in ("left", "right"))
    left, mean = left - left.mean(0), left.mean(0)
    within = ((left.T @ left) * (right.T @ right)).sum() / (len(left) * len(right))
    return float((within + (right @ mean).var(correction=0)).clamp_min(0.0).sqrt())


def root_mean_square(term: Term) -> float:
    """Of its values over all pairs."""
    left, right = term.left(), term.right()
    squares = ((left.T @ left) * (right.T @ right)).sum() / (len(left) * len(right))
    return float(squares.clamp_min(0.0).sqrt())


def gathered(terms: Sequence[Term]) -> list[Term]:
    """The same sum with one term per scores, or two where weights vary by user and by item."""
    first: dict[tuple[int, bool], Term] = {}
    scales: dict[tuple[int, bool], np.ndarray] = {}
    for term in terms:
        by_item = term.item_scale is not None
        size = term.scores.n_items if by_item else term.scores.n_users
        own = term.item_scale if by_item else term.user_scale
        key = id(term.scores), by_item
        first.setdefault(key, term)
        own = term.weight * (np.ones(size) if own is None else own)
        scales[key] = scales.get(key, np.zeros(size)) + own
    return [
        replace(
            first[key],
            weight=1.0,
            user_scale=None if key[1] else scale,
            item_scale=scale if key[1] else None,
        )
        for key, scale in scales.items()
    ]


class Compressed(NamedTuple):
    """Scores of fewer columns, the maps that took the long rows of both sides there, and the share
    of squares kept."""

    scores: LowRank
    users: Tensor
    items: Tensor
    kept: float


def compress(terms: Sequence[Term], most: int) -> Compressed:
    """The sum of terms as factors of at most so many columns, the leading singular vectors of users
    × items.

    With L and R the sides of all terms side by side and their QR decompositions L = Q_l T_l, R =
    Q_r T_r, the small core T_l T_rᵀ = U S Vᵀ gives L Rᵀ = (Q_l U) S (Q_r V)ᵀ. Since L T_rᵀ V = Q_l
    U S, the factors Q_l U S^½ = L (T_rᵀ V S^-½) and Q_r V S^½ = R (T_lᵀ U S^-½) need neither Q nor
    an inverse of T.
    """
    t_left, t_right = (_triangle(_rows(terms, side)) for side in ("left", "right"))
    u, s, v = torch.linalg.svd(t_left @ t_right.T, full_matrices=False)
    rank = max(min(most, int((s > 1e-9 * s[0]).sum())), 1)
    root = s[:rank].clamp_min(1e-300).sqrt()
    to_users, to_items = t_right.T @ v[:rank].T / root, t_left.T @ u[:, :rank] / root
    right = torch.cat([rows @ to_items for rows in _rows(terms, "right")])
    # the largest of each column is made positive, else rounding may turn a direction round
    sign = right.gather(0, right.abs().argmax(0, keepdim=True)).sign()
    left = torch.cat([rows @ (to_users * sign) for rows in _rows(terms, "left")])
    kept = float((s[:rank] ** 2).sum() / (s**2).sum().clamp_min(1e-300))
    found = LowRank.of(left.float(), (right * sign).float())
    return Compressed(found, to_users * sign, to_items * sign, kept)


def _rows(terms: Sequence[Term], side: Literal["left", "right"]) -> Iterator[Tensor]:
    """One side of all terms, side by side, some entities at a time."""
    scores = terms[0].scores
    for start in range(0, scores.n_users if side == "left" else scores.n_items, ROWS):
        yield torch.cat([getattr(term, side)(slice(start, start + ROWS)) for term in terms], 1)


def _triangle(blocks: Iterator[Tensor]) -> Tensor:
    """T of the QR decomposition of rows that come block by block."""
    found: Tensor = torch.linalg.qr(next(blocks), mode="r")[1]
    for block in blocks:
        found = torch.linalg.qr(torch.cat([found, block]), mode="r")[1]
    return found


def _scaled(rows: Tensor, scale: np.ndarray | None) -> Tensor:
    rows = rows.cpu().double()
    return rows if scale is None else rows * torch.from_numpy(scale)[:, None]
