"""Recall@K, precision@K and average precision of each list, expected over the orders of tied rows."""

from __future__ import annotations

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.ndcg import expected_gain, ratio
from puidrec.evaluation.ranking import Blocks


def hits(positive: Blocks, k: int) -> np.ndarray:
    """Expected positive rows among each list's first k: a gain whose every position earns 1."""
    return expected_gain(positive, np.arange(positive.cutoff(k) + 1, dtype=np.float64))


def recall(positive: Blocks, k: int) -> np.ndarray:
    """Share of each list's positive rows that reach its first k; 0 where it has none."""
    return ratio(hits(positive, k), positive.total)


def precision(positive: Blocks, k: int) -> np.ndarray:
    """Positive rows among the first k, over k, also where a list is shorter: a missing row is not a hit."""
    return hits(positive, k) / k


def average_precision(positive: Blocks) -> np.ndarray:
    """Mean over positive rows of the precision at their position.

    For a block of n rows, c of them positive, below r rows with q positive, the expected precision at its j-th row,
    if that is positive, is (q + 1 + (j − 1)(c − 1)/(n − 1)) / (r + j). With H the harmonic numbers and
    h = H(r + n) − H(r), the block's sum is c/n · [(q + 1) h + (c − 1)/(n − 1) · (n − (r + 1) h)].
    """
    if positive.begin.dtype.kind == "f":
        raise InputError("map has no weighted form", hint="Use uauc, ndcg@k, recall@k or precision@k with weights.")
    c, r, m = positive.gain, positive.begin, positive.total
    n = positive.end - r
    q = np.cumsum(c) - c - (np.cumsum(m) - m)[positive.list_of]
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, positive.rows.max() + 1))])
    h = harmonic[positive.end] - harmonic[r]
    slope = (c - 1.0) / np.maximum(n - 1, 1)
    block = c / n * ((q + 1.0) * h + slope * (n - (r + 1.0) * h))
    return ratio(positive.list_sum(block), m)
