"""Random draws of rows that do not depend on what users and items are called, nor on the order of
rows.

A row's draw is a hash of what the row *is*: its rating, and what its user and its item did. A
user's signature is the sum of hashes over its rows of (rating, signature of the item), an item's
likewise; after three rounds two users have one signature only if they saw the same ratings of items
that were seen alike (colour refinement, Weisfeiler and Leman). Rows with equal signatures are drawn
alike, which favours none of them.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 3
_ODD = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(
    row_start: np.ndarray, item: np.ndarray, rating: np.ndarray, n_items: int, seed: int
) -> np.ndarray:
    """A 64-bit hash of each row of a log sorted by user; `row_start` rows before each user, and all
    of them."""
    item = np.asarray(item, dtype=np.int64)
    counts = np.diff(row_start)
    value = _mixed(
        np.ascontiguousarray(rating, dtype=np.float64).view(np.uint64) ^ _mixed(_seeded(seed))
    )
    users, items = _mixed(counts.astype(np.uint64)), np.zeros(n_items, np.uint64)
    order = np.argsort(item, kind="stable")
    item_start = np.concatenate([[0], np.cumsum(np.bincount(item, minlength=n_items))])
    for _ in range(ROUNDS):
        own = _mixed(value + _ODD * np.repeat(users, counts))
        items = _mixed(_sums(own[order], item_start))
        users = _mixed(_sums(_mixed(value + _ODD * items[item]), row_start))
    return _mixed(value ^ _mixed(np.repeat(users, counts)) ^ (_ODD * items[item]))


def folds_of(
    row_start: np.ndarray, item: np.ndarray, rating: np.ndarray, n_items: int, folds: int, seed: int
) -> np.ndarray:
    """A fold in 0..folds−1 for each row."""
    return (row_hashes(row_start, item, rating, n_items, seed) % np.uint64(folds)).astype(np.int64)


def _seeded(seed: int) -> np.ndarray:
    return np.array([seed], dtype=np.uint64) + _ODD


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every bit of the result depends on every bit of x."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _sums(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Σ of each run of values, modulo 2⁶⁴; 0 where a run is empty."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    return np.asarray(total[start[1:]] - total[start[:-1]])
