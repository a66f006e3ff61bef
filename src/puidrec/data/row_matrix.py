"""Sparse matrices of users × items: the leading directions of one, and draws of its rows.

Draws depend neither on what users and items are called nor on the order of rows. A row's draw is a
hash of what the row *is*: its rating, and what its user and its item did. A user's key is the sum
of hashes over its rows of (rating, key of the item), an item's likewise; after three rounds two
users have one key only if they saw the same ratings of items that were seen alike (colour
refinement, Weisfeiler and Leman). Rows with equal keys are drawn alike, which favours none of them;
in an order they come as they stand, and who swaps two of them gets another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, svds

from puidrec.rng import GOLDEN, mix64

PAIRS = 5_000_000
"""Rows whose hashes are made together: the log may be on disk."""


def user_blocks(row_start: np.ndarray, max_pairs: int) -> list[tuple[int, int]]:
    """Cut users into ranges of at most `max_pairs` logged pairs each (one user may exceed it
    alone).

    row_start: logged pairs before each user, and all of them, [users + 1].
    """
    edges, last = [0], row_start.size - 1
    while edges[-1] < last:
        limit = int(row_start[edges[-1]]) + max_pairs
        stop = int(np.searchsorted(row_start, limit, side="right")) - 1
        edges.append(min(max(stop, edges[-1] + 1), last))
    return list(pairwise(edges))


def leading_svd(
    matrix: sp.csr_matrix | sp.csr_array | LinearOperator,
    rank: int,
    start: np.ndarray,
    tol: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first `rank` singular directions by falling strength: left [rows, k], strength [k], right
    [k, columns].

    The largest entry of each right vector is positive, else rounding may turn a direction round.
    """
    left, strength, right = svds(matrix, k=rank, v0=start, tol=tol)
    order = np.argsort(-strength, kind="stable")
    left, strength, right = left[:, order], strength[order], right[order]
    largest = right[np.arange(rank), np.abs(right).argmax(1)]
    sign = np.where(largest < 0.0, -1.0, 1.0)
    return left * sign, strength, right * sign[:, None]


def item_count(matrix: sp.csr_array) -> np.ndarray:
    """Values per item."""
    return np.bincount(matrix.indices, minlength=matrix.shape[1])


def with_values(matrix: sp.csr_array, values: np.ndarray) -> sp.csr_array:
    """Other values for the same pairs."""
    return sp.csr_array((values, matrix.indices, matrix.indptr), matrix.shape)


def centred(
    matrix: sp.csr_array, user: np.ndarray | float = 0.0, item: np.ndarray | float = 0.0
) -> sp.csr_array:
    """Values less a number of their user and one of their item."""
    of_user = np.repeat(np.broadcast_to(user, matrix.shape[0]), np.diff(matrix.indptr))
    of_item = np.broadcast_to(item, matrix.shape[1])[matrix.indices]
    return with_values(matrix, matrix.data - of_user - of_item)


ROUNDS = 3
Keys = tuple[np.ndarray, np.ndarray]
"""A number of 64 bits per user and per item, as random as a hash."""


def entity_keys(
    ratings: sp.csr_array, seed: int, known: Keys | None = None, rounds: int = ROUNDS
) -> Keys:
    """What users and items did, as numbers; `known`: keys of theirs from elsewhere, which count
    too."""
    users_known, items_known = known or (np.uint64(0), np.uint64(0))
    users = mix64(np.diff(ratings.indptr).astype(np.uint64) + users_known)
    items = np.zeros(ratings.shape[1], np.uint64)
    for _ in range(rounds):
        totals = np.zeros(ratings.shape[1], np.uint64)
        for own, count, item, value in _runs(ratings, seed):
            # uint64 sums are modulo 2⁶⁴: exact in any order
            np.add.at(totals, item, mix64(value + GOLDEN * np.repeat(users[own], count)))
        items = mix64(totals + items_known)
        sums = [
            _sums(mix64(value + GOLDEN * items[item]), count)
            for _, count, item, value in _runs(ratings, seed)
        ]
        users = mix64(np.concatenate(sums) + users_known)
    return users, items


def row_hashes(ratings: sp.csr_array, seed: int, known: Keys | None = None) -> np.ndarray:
    """A 64-bit hash of each row of a log."""
    users, items = entity_keys(ratings, seed, known)
    hashes = [
        mix64(value ^ mix64(np.repeat(users[own], count)) ^ (GOLDEN * items[item]))
        for own, count, item, value in _runs(ratings, seed)
    ]
    return np.concatenate(hashes)


def _runs(
    ratings: sp.csr_array, seed: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Some users at a time: which they are, their numbers of rows, and items and hashes of the
    ratings of these rows."""
    salt = mix64(np.array([seed], dtype=np.uint64) + GOLDEN)
    for first, last in user_blocks(ratings.indptr, PAIRS):
        start = ratings.indptr[first : last + 1]
        rows = slice(int(start[0]), int(start[-1]))
        bits = np.ascontiguousarray(ratings.data[rows], dtype=np.float64).view(np.uint64)
        yield slice(first, last), np.diff(start), ratings.indices[rows], mix64(bits ^ salt)


def _sums(values: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Σ of each run of values, modulo 2⁶⁴; 0 where a run is empty."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    end = np.cumsum(count)
    return total[end] - total[end - count]
