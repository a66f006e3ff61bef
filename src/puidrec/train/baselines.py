"""Baselines without training: what any table must show before it claims anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import svds

from puidrec.backbones.low_rank import LowRank
from puidrec.data.row_matrix import RowMatrix
from puidrec.train.problem import Fitted, Stage
from puidrec.train.regularisation import largest_singular_value, noise_like

if TYPE_CHECKING:
    from puidrec.train.blocks import UserPartition
    from puidrec.train.prepare import Prepared

SHRINK = 10.0
"""Ratings a mean is worth before it has any of its own."""
SWEEPS = 10


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """A single stage that needs no training; every process computes it."""
    settings = prepared.settings
    return [
        Stage(
            "main", lambda done: Fitted(closed_form(settings.method, prepared.log.ratings, settings.dim, settings.seed))
        )
    ]


def closed_form(name: str, ratings: RowMatrix, dim: int, seed: int) -> LowRank:
    """Scores of `item-rate`, `bias` or `pure-svd`, as factors [dim + 2] like any other model."""
    shape = ratings.shape
    mean = sum(float(part.values.sum()) for part in ratings.parts()) / ratings.nnz
    user_bias, item_bias = np.zeros(shape[0]), np.zeros(shape[1])
    left, right = np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    if name == "item-rate":
        item_bias = _item_bias(ratings, mean, user_bias)
    else:
        for _ in range(SWEEPS):
            item_bias = _item_bias(ratings, mean, user_bias)
            user_bias = _user_bias(ratings, mean, item_bias)
    if name == "pure-svd":
        residual = ratings.map(lambda part: part.values - mean - user_bias[part.user] - item_bias[part.item])
        left, right = _truncated_svd(residual, dim, seed)
    ones = (np.ones(shape[0]), np.ones(shape[1]))
    lefts = np.column_stack([left, user_bias, ones[0]])
    rights = np.column_stack([right, ones[1], item_bias + mean])
    return LowRank.of(torch.from_numpy(lefts).float(), torch.from_numpy(rights).float())


def _item_bias(ratings: RowMatrix, mean: float, user_bias: np.ndarray) -> np.ndarray:
    """Shrunk means of what users leave unexplained."""
    total = ratings.sum_by_item(lambda part: part.values - mean - user_bias[part.user])
    return total / (ratings.item_count + SHRINK)


def _user_bias(ratings: RowMatrix, mean: float, item_bias: np.ndarray) -> np.ndarray:
    """Shrunk means of what items leave unexplained; all rows of a user are in one part."""
    totals = [
        np.bincount(
            part.user - part.users.start, part.values - mean - item_bias[part.item], part.users.stop - part.users.start
        )
        for part in ratings.parts()
    ]
    bias: np.ndarray = np.concatenate(totals) / (np.diff(ratings.row_start) + SHRINK)
    return bias


def _truncated_svd(residual: RowMatrix, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Best fit of the residuals, zero where nothing was rated, by the first `dim` directions that rise above noise."""
    from sklearn.utils.extmath import svd_flip

    shape = residual.shape
    rank = min(dim, min(shape) - 1)
    if rank < 1 or not residual.any():  # nothing to decompose
        return np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    start = np.random.default_rng(seed).standard_normal(min(shape))
    left, strength, right = svds(residual.operator, k=rank, v0=start)
    left, right = svd_flip(left, right, u_based_decision=False)  # else rounding may turn a direction round
    kept = strength > np.mean([largest_singular_value(noise) for noise in noise_like(residual, seed)])
    root = np.sqrt(strength[kept])
    return left[:, kept] * root, right[kept].T * root
