"""The k best of each row by a partial sort in two levels, ties by position.

Reading all scores once is unavoidable; sorting them is not. Columns are cut into groups; the k groups with the largest
maxima hold the k best scores of a row (a group left out comes after k maxima at least as large as its own), so only
their members are looked at again. Exact, and ties fall to the first column, whatever the groups.
"""

from __future__ import annotations

import numpy as np
import torch

WORTH_GROUPING = 4
"""Groups pay off when the members looked at again are at most 1/4 of the columns."""


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of the min(k, columns) best scores of each row, best first."""
    n_rows, n_columns = scores.shape
    k = min(k, n_columns)
    size = max(1, int((n_columns / max(k, 1)) ** 0.5))
    if k * size * WORTH_GROUPING > n_columns or n_rows == 0:
        return _sorted(scores, _best(scores, k))
    whole = n_columns // size * size
    largest = torch.from_numpy(scores)[:, :whole].reshape(n_rows, -1, size).amax(2).numpy()
    if whole < n_columns:
        largest = np.concatenate([largest, scores[:, whole:].max(1, keepdims=True)], 1)
    columns = (_best(largest, k)[:, :, None] * size + np.arange(size)).reshape(n_rows, -1)
    outside = columns >= n_columns  # the last group may be a part of one
    candidates = np.take_along_axis(scores, np.where(outside, 0, columns), 1)
    candidates[outside] = -np.inf
    position, value = _sorted(candidates, _best(candidates, k))
    return np.take_along_axis(columns, position, 1), value


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k best of each row, in order of position; of those that tie at the edge, the first."""
    n_rows, n_columns = scores.shape
    if k in (0, n_columns):
        return np.broadcast_to(np.arange(k), (n_rows, k))
    edge = np.partition(scores, n_columns - k, axis=1)[:, n_columns - k, None]
    above, tied = scores > edge, scores == edge
    chosen = above | (tied & (np.cumsum(tied, 1) <= k - above.sum(1, keepdims=True)))
    return np.nonzero(chosen)[1].reshape(n_rows, k)


def _sorted(scores: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value = np.take_along_axis(scores, position, 1)
    order = np.argsort(-value, axis=1, kind="stable")
    return np.take_along_axis(position, order, 1), np.take_along_axis(value, order, 1)
