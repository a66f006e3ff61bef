"""NDCG@K with 0/1 or graded gains, each user's own rows ranked; ties averaged, as scikit-learn's `ndcg_score` does."""

from __future__ import annotations

from typing import Literal

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.per_user import PerUser
from puidrec.evaluation.ranking import Blocks, dense_codes, rank_lists

Users = Literal["both-labels", "any-positive"]
"""Whose lists count: users with both labels (protocols of the field), or with at least one positive row."""

WHOLE_LIST = 10**9
"""A cut-off beyond any list."""


def discounts(k: int) -> np.ndarray:
    """Credit of the first 0, 1, …, k positions: the cumulated 1 / log2(position + 1)."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])


def credit_at(credit: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Credit down to a position, none beyond the table; between whole positions (weights) it is linear."""
    if position.dtype.kind == "f":
        at: np.ndarray = np.interp(position, np.arange(credit.size), credit)
    else:
        at = credit[np.minimum(position, credit.size - 1)]
    return at


def expected_gain(blocks: Blocks, credit: np.ndarray) -> np.ndarray:
    """Σ position credit × gain of each list, expected over the orders of tied rows.

    A block's rows share its positions evenly, so it earns its mean gain times the credit of the positions it spans
    (McSherry & Najork 2008). `credit` is cumulated over positions 0..k, as from `discounts`.
    """
    top = blocks.top(credit.size - 1)
    earned = credit_at(credit, top.end) - credit_at(credit, top.begin)
    return top.list_sum(top.gain / (top.end - top.begin) * earned)


def ratio(gained: np.ndarray, best: np.ndarray) -> np.ndarray:
    """What was gained over what could be; 0 where nothing can be gained."""
    share: np.ndarray = np.divide(gained, best, out=np.zeros_like(gained), where=best > 0)
    return share


def binary_ndcg(positive: Blocks, k: int) -> np.ndarray:
    """NDCG@k of each list with 0/1 gains; the ideal list has its m positive rows on top, so no second sort."""
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
        raise InputError("graded gains need relevance from 0 to 100", found=found, hint="Rescale it, for example 0..4.")
    gain: np.ndarray = np.exp2(relevance.astype(np.float64)) - 1.0
    return gain


def user_ndcg(
    user: np.ndarray,
    score: np.ndarray,
    label: np.ndarray,
    k: int = WHOLE_LIST,
    users: Users = "both-labels",
    weight: np.ndarray | None = None,
) -> PerUser:
    """NDCG@k with 0/1 gains of every counted user, ranking the rows given for that user."""
    ids, code = dense_codes(np.asarray(user))
    lists, label = rank_lists(code, np.asarray(score), weight), np.asarray(label)
    counted = counted_lists(lists.count(label), lists.rows, users)
    return PerUser(ids[counted], binary_ndcg(lists.blocks(label), k)[counted])


def user_graded_ndcg(
    user: np.ndarray, score: np.ndarray, relevance: np.ndarray, k: int = WHOLE_LIST, weight: np.ndarray | None = None
) -> PerUser:
    """NDCG@k with gains 2^relevance − 1 of every user; 0 where all relevance is 0."""
    users, code = dense_codes(np.asarray(user))
    gain = graded_gain(np.asarray(relevance))
    lists, ideal = rank_lists(code, np.asarray(score), weight), rank_lists(code, gain, weight)
    return PerUser(users, graded_ndcg(lists.blocks(gain), ideal.blocks(gain), k))


def counted_lists(n_positive: np.ndarray, rows: np.ndarray, users: Users) -> np.ndarray:
    """Mask of the lists that count under the `users` rule."""
    if users not in ("both-labels", "any-positive"):
        raise InputError("unknown choice of users", found=users, expected="both-labels or any-positive")
    some = n_positive > 0
    counted: np.ndarray = some if users == "any-positive" else some & (n_positive < rows)
    return counted
