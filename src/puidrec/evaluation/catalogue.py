"""Recall@K over the catalogue, from uniform rows: what share of a user's liked items would a list
of K have shown?

Recall@K of `metrics` ranks a user's own test rows, a few items. Here all items are ranked: a
positive row is found where its score is above that of the (K + 1)-th item. Uniform rows are a fair
sample of a user's liked items, so their share is a fair estimate of the recall of the whole list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.significance import PerUser

PREFIX = "catalogue-recall@"
PAIRS_AT_ONCE = 1_000_000
MOST_PAIRS = 50_000_000
"""More scores than this are not computed for one figure: the metric is then left out."""


def cutoff_of(name: str) -> int:
    """K of `catalogue-recall@K`."""
    tail = name.removeprefix(PREFIX)
    if not (tail.isascii() and tail.isdigit() and int(tail) > 0):
        raise InputError(
            "bad cut-off of a metric", found=name, expected=f"{PREFIX}k with a whole k from 1"
        )
    return int(tail)


def catalogue_recall(
    predict: Callable[[Any, Any], Any],
    user: np.ndarray,
    item: np.ndarray,
    catalogue: np.ndarray,
    k: int,
) -> PerUser:
    """Recall@k of each user with a positive row. user, item: of positive rows; catalogue: ids of
    all items.

    Ties with the (k + 1)-th item are not found. Where there are no more than k items, all are.
    Beyond `MOST_PAIRS` scores there is no value.
    """
    if user.size == 0 or np.unique(user).size * catalogue.size > MOST_PAIRS:
        return PerUser(user[:0], np.zeros(0))
    users, code = np.unique(user, return_inverse=True)
    if k >= catalogue.size:
        return PerUser(users, np.ones(users.size))
    own = np.asarray(predict(user, item))
    bar = np.empty(users.size, own.dtype)
    step = max(1, PAIRS_AT_ONCE // catalogue.size)
    for start in range(0, users.size, step):
        block = users[start : start + step]
        scores = np.asarray(
            predict(np.repeat(block, catalogue.size), np.tile(catalogue, block.size))
        )
        ranked = np.partition(scores.reshape(block.size, -1), catalogue.size - k - 1, axis=1)
        bar[start : start + step] = ranked[:, catalogue.size - k - 1]
    found = np.bincount(code, own > bar[code], users.size) / np.bincount(code, minlength=users.size)
    return PerUser(users, found)
