"""Exposure factors: what "who was shown what" says of taste.

Rank-r reconstructions of D_u^-½ O D_i^-½, O the matrix of logged pairs and D the counts plus 1. Hidden tastes drive
exposure, so exposure carries them. The leading direction is activity times popularity; it is taken off, since members
and modulators have both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import svds
from sklearn.utils.extmath import svd_flip

from puidrec.backbones.low_rank import LowRank
from puidrec.data.row_matrix import RowMatrix

RANKS = (4, 16, 48)
RATED_RANK = 16


@dataclass(frozen=True, eq=False)
class ExposureFactors:
    """Singular vectors of scaled exposure and of scaled ratings, as scores of all pairs."""

    seen: LowRank
    """Exposure alone, the leading direction taken off; columns by falling strength."""
    rated: LowRank
    """The same with ratings in [0, 1] in place of ones."""

    @property
    def named(self) -> dict[str, LowRank]:
        """The reconstructions, from coarse to fine."""
        left, right = self.seen.lefts[0], self.seen.rights[0]
        cuts = [rank - 1 for rank in RANKS if rank - 1 < left.shape[1]] + [left.shape[1]]
        parts = {f"exposure {cut + 1}": LowRank.of(left[:, :cut], right[:, :cut]) for cut in dict.fromkeys(cuts) if cut}
        return parts | ({"exposure × rating": self.rated} if self.rated.lefts[0].shape[1] else {})


def exposure_factors(ratings: RowMatrix, seed: int) -> ExposureFactors:
    """Factors of a log; `ratings` are its targets in [0, 1]."""
    seen = _leading(ratings.map(lambda part: np.ones(part.values.size)), max(RANKS), seed)
    rated = _leading(ratings, RATED_RANK, seed)
    return ExposureFactors(_scores(seen, 1), _scores(rated, 1))


def _leading(matrix: RowMatrix, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular vectors of D_u^-½ M D_i^-½ by falling strength."""
    users = 1.0 / np.sqrt(np.diff(matrix.row_start) + 1.0)
    items = 1.0 / np.sqrt(matrix.item_count + 1.0)
    scaled = matrix.map(lambda part: part.values * users[part.user] * items[part.item])
    rank = min(rank, min(matrix.shape) - 1)
    if rank < 1 or not scaled.any():
        return np.zeros((matrix.shape[0], 0)), np.zeros(0), np.zeros((0, matrix.shape[1]))
    start = np.random.default_rng(seed).standard_normal(min(matrix.shape))
    left, strength, right = svds(scaled.operator, k=rank, v0=start, tol=1e-3)
    left, right = svd_flip(left, right, u_based_decision=False)  # else rounding may turn a direction round
    order = np.argsort(-strength)
    return left[:, order], strength[order], right[order]


def _scores(found: tuple[np.ndarray, np.ndarray, np.ndarray], without: int) -> LowRank:
    """The reconstruction without its first directions, brought back to the scale of a rating's residuals."""
    left, strength, right = (found[0][:, without:], found[1][without:], found[2][without:])
    size = np.sqrt(strength)
    return LowRank.of(torch.from_numpy(left * size).float(), torch.from_numpy((right.T * size).copy()).float())
