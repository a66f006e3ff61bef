"""A sparse matrix of users × items whose values may be on disk: products and sums go over it some
users at a time; and draws of its rows.

Draws depend neither on what users and items are called nor on the order of rows. A row's draw is a
hash of what the row *is*: its rating, and what its user and its item did. A user's key is the sum of
hashes over its rows of (rating, key of the item), an item's likewise; after three rounds two users
have one key only if they saw the same ratings of items that were seen alike (colour refinement,
Weisfeiler and Leman). Rows with equal keys are drawn alike, which favours none of them; in an order
they come as they stand, and who swaps two of them gets another order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, svds

from puidrec.data.on_disk import Scratch
from puidrec.rng import GOLDEN, mix64


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


class Part(NamedTuple):
    """The rows of some users."""

    users: slice
    rows: slice
    """Which values of the whole these are."""
    matrix: sp.csr_matrix

    @property
    def user(self) -> np.ndarray:
        """User of each value."""
        return np.repeat(np.arange(self.users.start, self.users.stop), np.diff(self.matrix.indptr))

    def of_users(self, numbers: np.ndarray) -> np.ndarray:
        """A number of every user of the whole, for each value."""
        return np.repeat(numbers[self.users], np.diff(self.matrix.indptr))

    def sum_by_user(self, values: np.ndarray) -> np.ndarray:
        """Sums over the values of each user of this part; `values` are as many as the part has."""
        start = self.matrix.indptr[:-1]
        there, total = np.diff(self.matrix.indptr) > 0, np.zeros(start.size)
        if there.any():
            total[there] = np.add.reduceat(values, start[there], dtype=np.float64)
        return total

    @property
    def item(self) -> np.ndarray:
        """Item of each value."""
        return self.matrix.indices

    @property
    def values(self) -> np.ndarray:
        """The values, by user."""
        return self.matrix.data


@dataclass(frozen=True, eq=False)
class RowMatrix:
    """Values of the logged pairs. In memory it is one part; on disk, parts of at most `max_pairs`
    values."""

    row_start: np.ndarray
    """Values before each user, and all of them, [users + 1]."""
    item: np.ndarray
    values: np.ndarray
    n_items: int
    max_pairs: int = sys.maxsize
    scratch: Callable[[], Scratch] | None = None
    """Makes room for as many values on disk; None: they fit in memory."""

    @classmethod
    def of(cls, matrix: sp.csr_matrix) -> RowMatrix:
        """A matrix in memory."""
        return cls(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Users and items."""
        return self.row_start.size - 1, self.n_items

    @property
    def nnz(self) -> int:
        """Logged pairs."""
        return int(self.row_start[-1])

    def parts(self) -> Iterator[Part]:
        """The matrix, some users at a time; on disk each part is read when its turn comes."""
        return iter(self._in_memory) if self.scratch is None else self._read()

    @cached_property
    def _in_memory(self) -> list[Part]:
        """Views of the values: made once, since iterative solvers ask for the parts hundreds of
        times."""
        return list(self._read())

    def _read(self) -> Iterator[Part]:
        for start, stop in self._spans:
            rows = slice(int(self.row_start[start]), int(self.row_start[stop]))
            inside = (
                self.values[rows],
                self.item[rows],
                self.row_start[start : stop + 1] - self.row_start[start],
            )
            yield Part(
                slice(start, stop), rows, sp.csr_matrix(inside, shape=(stop - start, self.n_items))
            )

    def map(self, change: Callable[[Part], np.ndarray]) -> RowMatrix:
        """Other values for the same pairs, made part by part."""
        if self.scratch is None:
            return replace(self, values=np.concatenate([change(part) for part in self.parts()]))
        room = self.scratch()
        for part in self.parts():
            room.write(part.rows.start, change(part))
        return replace(self, values=room.values)

    def any(self) -> bool:
        """Whether a value differs from 0."""
        return any(bool(np.any(part.values)) for part in self.parts())

    def sum_by_item(self, values: Callable[[Part], np.ndarray]) -> np.ndarray:
        """Sums over users of what is made of each part, [items]."""
        total = np.zeros(self.n_items)
        for part in self.parts():
            total += np.bincount(part.item, weights=values(part), minlength=self.n_items)
        return total

    @cached_property
    def item_count(self) -> np.ndarray:
        """Values per item."""
        counts = (np.bincount(part.item, minlength=self.n_items) for part in self.parts())
        return sum(counts, np.zeros(self.n_items, np.int64))

    @property
    def operator(self) -> LinearOperator:
        """Products with vectors and blocks of them, for iterative solvers."""
        functions = {
            "matvec": self._times,
            "matmat": self._times,
            "rmatvec": self._turned,
            "rmatmat": self._turned,
        }
        return LinearOperator(self.shape, **functions, dtype=np.float64)

    def _times(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([part.matrix @ x for part in self.parts()])

    def _turned(self, x: np.ndarray) -> np.ndarray:
        return sum(part.matrix.T @ x[part.users] for part in self.parts())

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        whole = self.nnz <= self.max_pairs
        return [(0, self.shape[0])] if whole else user_blocks(self.row_start, self.max_pairs)


ROUNDS = 3
Keys = tuple[np.ndarray, np.ndarray]
"""A number of 64 bits per user and per item, as random as a hash."""


def entity_keys(
    ratings: RowMatrix, seed: int, known: Keys | None = None, rounds: int = ROUNDS
) -> Keys:
    """What users and items did, as numbers; `known`: keys of theirs from elsewhere, which count
    too."""
    users_known, items_known = known or (np.uint64(0), np.uint64(0))
    users = mix64(np.diff(ratings.row_start).astype(np.uint64) + users_known)
    items = np.zeros(ratings.n_items, np.uint64)
    for _ in range(rounds):
        totals = np.zeros(ratings.n_items, np.uint64)
        for part in ratings.parts():  # uint64 sums are modulo 2⁶⁴: exact in any order
            own = mix64(_values(part, seed) + GOLDEN * part.of_users(users))
            np.add.at(totals, part.item, own)
        items = mix64(totals + items_known)
        sums = [
            _sums(mix64(_values(part, seed) + GOLDEN * items[part.item]), part.matrix.indptr)
            for part in ratings.parts()
        ]
        users = mix64(np.concatenate(sums) + users_known)
    return users, items


def row_hashes(ratings: RowMatrix, seed: int, known: Keys | None = None) -> np.ndarray:
    """A 64-bit hash of each row of a log."""
    users, items = entity_keys(ratings, seed, known)
    hashes = [
        mix64(_values(part, seed) ^ mix64(part.of_users(users)) ^ (GOLDEN * items[part.item]))
        for part in ratings.parts()
    ]
    return np.concatenate(hashes)


def _values(part: Part, seed: int) -> np.ndarray:
    """Hashes of the ratings."""
    bits = np.ascontiguousarray(part.values, dtype=np.float64).view(np.uint64)
    return mix64(bits ^ mix64(np.array([seed], dtype=np.uint64) + GOLDEN))


def _sums(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Σ of each run of values, modulo 2⁶⁴; 0 where a run is empty."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    return total[start[1:]] - total[start[:-1]]
