"""Random draws of rows that do not depend on what users and items are called, nor on the order of
rows.

A row's draw is a hash of what the row *is*: its rating, and what its user and its item did. A
user's key is the sum of hashes over its rows of (rating, key of the item), an item's likewise;
after three rounds two users have one key only if they saw the same ratings of items that were seen
alike (colour refinement, Weisfeiler and Leman). Rows with equal keys are drawn alike, which favours
none of them; in an order they come as they stand, and who swaps two of them gets another order.
"""

from __future__ import annotations

import numpy as np

from puidrec.data.row_matrix import Part, RowMatrix

ROUNDS = 3
_ODD = np.uint64(0x9E3779B97F4A7C15)
Keys = tuple[np.ndarray, np.ndarray]
"""A number of 64 bits per user and per item, as random as a hash."""


def entity_keys(
    ratings: RowMatrix, seed: int, known: Keys | None = None, rounds: int = ROUNDS
) -> Keys:
    """What users and items did, as numbers; `known`: keys of theirs from elsewhere, which count
    too."""
    users_known, items_known = known or (np.uint64(0), np.uint64(0))
    users = _mixed(np.diff(ratings.row_start).astype(np.uint64) + users_known)
    items = np.zeros(ratings.n_items, np.uint64)
    for _ in range(rounds):
        totals = np.zeros(ratings.n_items, np.uint64)
        for part in ratings.parts():  # uint64 sums are modulo 2⁶⁴: exact in any order
            own = _mixed(_values(part, seed) + _ODD * part.of_users(users))
            np.add.at(totals, part.item, own)
        items = _mixed(totals + items_known)
        sums = [
            _sums(_mixed(_values(part, seed) + _ODD * items[part.item]), part.matrix.indptr)
            for part in ratings.parts()
        ]
        users = _mixed(np.concatenate(sums) + users_known)
    return users, items


def row_hashes(ratings: RowMatrix, seed: int, known: Keys | None = None) -> np.ndarray:
    """A 64-bit hash of each row of a log."""
    users, items = entity_keys(ratings, seed, known)
    hashes = [
        _mixed(_values(part, seed) ^ _mixed(part.of_users(users)) ^ (_ODD * items[part.item]))
        for part in ratings.parts()
    ]
    return np.concatenate(hashes)


def _values(part: Part, seed: int) -> np.ndarray:
    """Hashes of the ratings."""
    bits = np.ascontiguousarray(part.values, dtype=np.float64).view(np.uint64)
    return _mixed(bits ^ _mixed(np.array([seed], dtype=np.uint64) + _ODD))


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
