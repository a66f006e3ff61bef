"""How two models rank items: credits of rated pairs for DCG@K, and how recommendations change.

DCG is linear in the labels once ranks are given: a user's DCG@K is the sum over all items of label × rank credit.
So a logged pair has the value label × credit, and envelopes of DCG are envelopes of a mean over D. Where a model can
score every pair, a pair's rank is that among all items (but those its fit has seen); where only the rated pairs have
scores, it is the rank among the user's rated items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from puidrec.evaluation.ndcg import discounts
from puidrec.evaluation.ranking import mask_seen, ranges, top_k
from puidrec.rng import Rng, generator

Scorer = Callable[[np.ndarray], np.ndarray]
"""Scores of all items for some users (codes): [users, items]."""
SeenItems = tuple[np.ndarray, np.ndarray]
"""(start, item) of rows sorted by user: items of user u are item[start[u]:start[u + 1]]."""
TILE = 2_000_000
"""Pairs scored at a time."""
MAX_PAIRS = 10_000_000
"""Pairs ranked in all; users are sampled where all of them would be more."""
TOP = 10


@dataclass(frozen=True)
class Recommended:
    """What recommendations of the sampled users say; the second model's part is None where there is one model."""

    users: np.ndarray
    """Codes of the users that were ranked, ascending."""
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


def seen_items(user: np.ndarray, item: np.ndarray, n_users: int) -> SeenItems:
    """Rows sorted by user as the items of each."""
    return np.searchsorted(user, np.arange(n_users + 1)), item


def catalogue_credits(
    users: np.ndarray, row_user: np.ndarray, row_item: np.ndarray, scorer: Scorer, k: int, seen: SeenItems | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows of `users`, and the credit of each row's rank among all items but those that were seen."""
    order = np.argsort(row_user, kind="stable")
    first = np.searchsorted(row_user[order], users)
    last = np.searchsorted(row_user[order], users, side="right")
    rows = order[ranges(first, last)]
    block_of = np.repeat(np.arange(users.size), last - first)
    credit = np.zeros(rows.size)
    for start, block, scores in _tiles(users, scorer):
        inside = slice(*np.searchsorted(block_of, (start, start + block.size)))
        if seen is not None:
            mask_seen(scores, block, *seen)
        credit[inside] = rank_credits(scores, k)[block_of[inside] - start, row_item[rows[inside]]]
    return rows, credit


def recommended(users: np.ndarray, seen: SeenItems, scorers: tuple[Scorer, Scorer | None], n_items: int) -> Recommended:
    """The ten best unseen items of each user by both models."""
    models = [scorer for scorer in scorers if scorer is not None]
    top = min(TOP, n_items)
    overlap, slots = np.zeros(users.size), np.zeros((len(models), n_items), np.int64)
    for tiles in zip(*(_tiles(users, scorer, n_items) for scorer in models), strict=True):
        chosen = []
        for m, (_, block, scores) in enumerate(tiles):
            mask_seen(scores, block, *seen)
            chosen.append(_best(scores, top))
            slots[m] += chosen[m].sum(axis=0)
        start = tiles[0][0]
        overlap[start : start + block.size] = (chosen[0] & chosen[-1]).sum(axis=1) / top
    two = len(models) > 1
    return Recommended(users, overlap if two else None, slots[0], slots[1] if two else None)


def _tiles(
    users: np.ndarray, scorer: Scorer, n_items: int | None = None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Blocks of users with the scores of all items: (first position, users, a copy of their scores)."""
    n_items = scorer(users[:1]).shape[1] if n_items is None else n_items
    step = max(1, TILE // n_items)
    for start in range(0, users.size, step):
        block = users[start : start + step]
        yield start, block, np.array(scorer(block), np.float64)


def rank_credits(scores: np.ndarray, k: int | None = None) -> np.ndarray:
    """1 / log2(rank + 1) of every item down to rank k, [users, items]; ties share the credits of their ranks evenly."""
    order = np.argsort(-scores, axis=1)
    ordered = np.take_along_axis(scores, order, 1)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.arange(0, scores.size, scores.shape[1])
    result = np.empty(scores.shape)
    np.put_along_axis(result, order, _shared(first, new.ravel(), k).reshape(scores.shape), axis=1)
    return result


def rated_credits(user: np.ndarray, score: np.ndarray, k: int | None = None) -> np.ndarray:
    """The same for rated rows, each ranked among the rows of its user."""
    order = np.lexsort((-score, user))
    own, ordered = user[order], score[order]
    begins = np.ones(order.size, bool)
    begins[1:] = own[1:] != own[:-1]
    new = begins.copy()
    new[1:] |= ordered[1:] != ordered[:-1]
    result = np.empty(order.size)
    result[order] = _shared(np.flatnonzero(begins), new, k)
    return result


def _shared(first: np.ndarray, new: np.ndarray, k: int | None) -> np.ndarray:
    """Credits of rows in order of their lists and scores.

    first: where lists begin. new: where a row differs from the one before in list or score; rows that do not are tied.
    """
    start = np.flatnonzero(new)
    length = np.diff(np.append(start, new.size))
    position = start - first[np.searchsorted(first, start, side="right") - 1]
    longest = int(np.diff(np.append(first, new.size)).max(initial=0))
    total = discounts(longest if k is None else min(k, longest))
    last = total.size - 1
    earned = total[np.minimum(position + length, last)] - total[np.minimum(position, last)]
    shared: np.ndarray = np.repeat(earned / length, length)
    return shared


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Mask of each user's k best items, ties as in `Recommender.recommend`; what was seen is never among them."""
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, top_k(scores, k)[0], True, axis=1)
    mask &= np.isfinite(scores)
    return mask
