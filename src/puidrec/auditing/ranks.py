"""Where two models rank items, user block by user block: credits of logged pairs, and how recommendations change.

DCG is linear in the labels once ranks are given: a user's DCG is the sum over all items of label × credit of the rank.
So a logged pair has the value label × credit, and envelopes of DCG are envelopes of a mean over D, times the items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from puidrec.evaluation.ndcg import discounts
from puidrec.evaluation.ranking import mask_seen, ranges, top_k
from puidrec.rng import Rng, generator

Scorer = Callable[[np.ndarray], np.ndarray]
"""Scores of all items for some users (codes): [users, items]."""
TILE = 2_000_000
"""Pairs scored at a time."""
MAX_PAIRS = 10_000_000
"""Pairs ranked in all; users are sampled where all of them would be more."""
TOP = 10


@dataclass(frozen=True)
class Ranked:
    """What rankings say of the sampled users; the second model's part is None where there is one model."""

    users: np.ndarray
    """Codes of the users that were ranked, ascending."""
    rows: np.ndarray
    """Positions of the logged rows of these users."""
    credit: np.ndarray
    """1 / log2(rank + 1) of each of these rows under the model; ties share the credit of the ranks they span."""
    against_credit: np.ndarray | None
    overlap: np.ndarray | None
    """Per user: share of the ten recommendations that both models make."""
    slots: np.ndarray
    """Per item: recommendations of it by the model."""
    against_slots: np.ndarray | None


def sample_users(user: np.ndarray, n_items: int, rng: Rng, most: int = MAX_PAIRS) -> np.ndarray:
    """The users of the rows; where ranking all items for all of them is too much, as many as are not."""
    present = np.flatnonzero(np.bincount(user))
    wanted = max(1, most // n_items)
    if present.size <= wanted:
        return present
    return np.sort(generator(rng, "ranks").choice(present, wanted, replace=False))


def rank(
    users: np.ndarray,
    row_user: np.ndarray,
    row_item: np.ndarray,
    seen: tuple[np.ndarray, np.ndarray],
    scorers: tuple[Scorer, Scorer | None],
    n_items: int,
) -> Ranked:
    """Rank all items for each of `users`; credits of their rows, and their ten best items among the unseen.

    seen: (start, item) of the log sorted by user: items of user u are item[start[u]:start[u + 1]].
    """
    order = np.argsort(row_user, kind="stable")
    first = np.searchsorted(row_user[order], users)
    last = np.searchsorted(row_user[order], users, side="right")
    rows = order[ranges(first, last)]
    block_of = np.repeat(np.arange(users.size), last - first)
    models = [scorer for scorer in scorers if scorer is not None]
    credit = np.zeros((len(models), rows.size))
    overlap, slots = np.zeros(users.size), np.zeros((len(models), n_items), np.int64)
    top = min(TOP, n_items)
    for start in range(0, users.size, step := max(1, TILE // n_items)):
        block = users[start : start + step]
        inside = slice(*np.searchsorted(block_of, (start, start + block.size)))
        chosen = []
        for m, scorer in enumerate(models):
            scores = scorer(block)
            credit[m, inside] = rank_credits(scores)[block_of[inside] - start, row_item[rows[inside]]]
            mask_seen(scores, block, *seen)
            chosen.append(_recommended(scores, top))
            slots[m] += chosen[m].sum(axis=0)
        overlap[start : start + block.size] = (chosen[0] & chosen[-1]).sum(axis=1) / top
    two = len(models) > 1
    return Ranked(
        users, rows, credit[0], credit[1] if two else None, overlap if two else None, slots[0],
        slots[1] if two else None,
    )  # fmt: skip


def rank_credits(scores: np.ndarray) -> np.ndarray:
    """1 / log2(rank + 1) of every item, [users, items]; items that tie share the credits of their ranks evenly."""
    n = scores.shape[1]
    order = np.argsort(-scores, axis=1)
    ordered = np.take_along_axis(scores, order, 1)
    position = np.arange(n)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begin = np.maximum.accumulate(np.where(new, position, 0), axis=1)
    ends = np.ones(ordered.shape, bool)
    ends[:, :-1] = new[:, 1:]
    end = np.minimum.accumulate(np.where(ends, position + 1, n)[:, ::-1], axis=1)[:, ::-1]
    total = discounts(n)
    result = np.empty(scores.shape)
    np.put_along_axis(result, order, (total[end] - total[begin]) / (end - begin), axis=1)
    return result


def _recommended(scores: np.ndarray, k: int) -> np.ndarray:
    """Mask of each user's k best items, ties as in `Recommender.recommend`; what was seen is never among them."""
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, top_k(scores, k)[0], True, axis=1)
    mask &= np.isfinite(scores)
    return mask
