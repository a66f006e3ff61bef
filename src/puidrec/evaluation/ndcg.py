"""Metrics of the top of a list: NDCG@K with 0/1 or graded gains, recall@K, precision@K and average
precision.

Each user's own rows are ranked. Where scores tie, the value is its mean over the orders of the tied
rows, as in scikit-learn's `ndcg_score`.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.ranking import Blocks

Users = Literal["both-labels", "any-positive", "all"]
"""Whose lists count: users with both labels (most protocols), with at least one positive row, or
all: then NDCG is 1 where there is no positive row, and other metrics of lists leave such users out.
"""

WHOLE_LIST = 10**9
"""A cut-off beyond any list."""


def discounts(k: int) -> np.ndarray:
    """Credit of the first 0, 1, …, k positions: the cumulated 1 / log2(position + 1)."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])


def credit_at(credit: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Credit down to a position, none beyond the table; between whole positions (weights) it is
    linear."""
    if position.dtype.kind == "f":
        at: np.ndarray = np.interp(position, np.arange(credit.size), credit)
    else:
        at = credit[np.minimum(position, credit.size - 1)]
    return at


def expected_gain(blocks: Blocks, credit: np.ndarray) -> np.ndarray:
    """Σ position credit × gain of each list, expected over the orders of tied rows.

    A block's rows share its positions evenly, so it earns its mean gain times the credit of the
    positions it spans (McSherry & Najork 2008). `credit` is cumulated over positions 0..k, as from
    `discounts`.
    """
    top = blocks.top(credit.size - 1)
    earned = credit_at(credit, top.end) - credit_at(credit, top.begin)
    return top.list_sum(top.gain / (top.end - top.begin) * earned)


def ratio(gained: np.ndarray, best: np.ndarray) -> np.ndarray:
    """What was gained over what could be; 0 where nothing can be gained."""
    share: np.ndarray = np.divide(gained, best, out=np.zeros_like(gained), where=best > 0)
    return share


def binary_ndcg(positive: Blocks, k: int) -> np.ndarray:
    """NDCG@k of each list with 0/1 gains; the ideal list has its m positive rows on top, so no
    second sort."""
    credit = discounts(positive.cutoff(k))
    return ratio(expected_gain(positive, credit), credit_at(credit, positive.total))


def graded_ndcg(ranked: Blocks, ideal: Blocks, k: int) -> np.ndarray:
    """NDCG@k of each list with any gains; `ideal` is the same rows ranked by gain."""
    credit = discounts(ranked.cutoff(k))
    return ratio(expected_gain(ranked, credit), expected_gain(ideal, credit))


def graded_gain(relevance: np.ndarray) -> np.ndarray:
    """The gain 2^relevance − 1, for relevance from 0 up."""
    if relevance.min() < 0 or relevance.max() > 100:
        found = f"{relevance.min():g}..{relevance.max():g}"
        raise InputError(
            "graded gains need relevance from 0 to 100",
            found=found,
            hint="Rescale it, for example 0..4.",
        )
    gain: np.ndarray = np.exp2(relevance.astype(np.float64)) - 1.0
    return gain


def hits(positive: Blocks, k: int) -> np.ndarray:
    """Expected positive rows among each list's first k: a gain whose every position earns 1."""
    return expected_gain(positive, np.arange(positive.cutoff(k) + 1, dtype=np.float64))


def recall(positive: Blocks, k: int) -> np.ndarray:
    """Share of each list's positive rows that reach its first k; 0 where it has none."""
    return ratio(hits(positive, k), positive.total)


def precision(positive: Blocks, k: int) -> np.ndarray:
    """Positive rows among the first k, over k, also where a list is shorter: a missing row is not a
    hit."""
    return hits(positive, k) / k


def average_precision(positive: Blocks) -> np.ndarray:
    """Mean over positive rows of the precision at their position.

    For a block of n rows, c of them positive, below r rows with q positive, the expected precision
    at its j-th row, if that is positive, is (q + 1 + (j − 1)(c − 1)/(n − 1)) / (r + j). With H the
    harmonic numbers and h = H(r + n) − H(r), the block's sum is c/n · [(q + 1) h + (c − 1)/(n − 1)
    · (n − (r + 1) h)].
    """
    if positive.begin.dtype.kind == "f":
        raise InputError(
            "map has no weighted form",
            hint="Use uauc, ndcg@k, recall@k or precision@k with weights.",
        )
    c, r, m = positive.gain, positive.begin, positive.total
    n = positive.end - r
    q = np.cumsum(c) - c - (np.cumsum(m) - m)[positive.list_of]
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, positive.rows.max() + 1))])
    h = harmonic[positive.end] - harmonic[r]
    slope = (c - 1.0) / np.maximum(n - 1, 1)
    block = c / n * ((q + 1.0) * h + slope * (n - (r + 1.0) * h))
    return ratio(positive.list_sum(block), m)


def counted_lists(n_positive: np.ndarray, rows: np.ndarray, users: Users) -> np.ndarray:
    """Mask of the lists that count under the `users` rule."""
    if users not in get_args(Users):
        raise InputError(
            "unknown choice of users", found=users, expected=" or ".join(get_args(Users))
        )
    if users == "all":
        return np.ones(n_positive.shape, bool)
    some = n_positive > 0
    counted: np.ndarray = some if users == "any-positive" else some & (n_positive < rows)
    return counted
