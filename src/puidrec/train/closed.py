"""Baselines without training: what any table must show before it claims anything."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds

from puidrec.objective.low_rank import LowRank
from puidrec.train.noise import largest, noise_like

SHRINK = 10.0
"""Ratings a mean is worth before it has any of its own."""
SWEEPS = 10


def closed_form(
    name: str, user: np.ndarray, item: np.ndarray, target: np.ndarray, shape: tuple[int, int], dim: int, seed: int
) -> LowRank:
    """Scores of `item-rate`, `bias` or `pure-svd`, as factors [dim + 2] like any other model."""
    mean = float(target.mean())
    user_bias, item_bias = np.zeros(shape[0]), np.zeros(shape[1])
    left, right = np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    if name == "item-rate":
        item_bias = _shrunk_mean(target - mean, item, shape[1])
    else:
        for _ in range(SWEEPS):
            item_bias = _shrunk_mean(target - mean - user_bias[user], item, shape[1])
            user_bias = _shrunk_mean(target - mean - item_bias[item], user, shape[0])
    if name == "pure-svd":
        residual = target - mean - user_bias[user] - item_bias[item]
        left, right = _truncated_svd(user, item, residual, shape, dim, seed)
    ones = (np.ones(shape[0]), np.ones(shape[1]))
    lefts = np.column_stack([left, user_bias, ones[0]])
    rights = np.column_stack([right, ones[1], item_bias + mean])
    return LowRank.of(torch.from_numpy(lefts).float(), torch.from_numpy(rights).float())


def _shrunk_mean(values: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    total = np.bincount(group, weights=values, minlength=size)
    return total / (np.bincount(group, minlength=size) + SHRINK)


def _truncated_svd(
    user: np.ndarray, item: np.ndarray, values: np.ndarray, shape: tuple[int, int], dim: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Best fit of the residuals, zero where nothing was rated, by the first `dim` directions that rise above noise."""
    matrix = sp.csr_matrix((values, (user, item)), shape=shape)
    rank = min(dim, min(shape) - 1)
    if rank < 1 or not np.any(values):  # nothing to decompose
        return np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    start = np.random.default_rng(seed).standard_normal(min(shape))
    left, strength, right = svds(matrix, k=rank, v0=start)
    kept = strength > np.mean([largest(noise) for noise in noise_like(matrix, seed)])
    root = np.sqrt(strength[kept])
    return left[:, kept] * root, right[kept].T * root
