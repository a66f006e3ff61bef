"""Ranking within a user: the one sort that every ranking metric shares, and the K best items of all
(`top_k`).

Metrics rank each user's rows by falling score, equal scores in one block. Where scores tie, the
order is a toss-up, so every ranking metric here is its expectation over all orders of the tied
rows. That needs only blocks: what a block holds, and where in its list it begins and ends.

With weights a row stands for `weight` rows of its user (normalised to mean 1 per user), and
positions are measured
in that mass instead of in rows: a list of a biased log then has the make-up of a uniform one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puidrec.errors import InputError


@dataclass(frozen=True)
class Blocks:
    """The blocks of ranked lists that hold some gain; metrics are sums over these."""

    gain: np.ndarray
    """Gain (times weight) summed over the block's rows."""
    list_of: np.ndarray
    """The list of each block."""
    begin: np.ndarray
    """Rows (mass) of the list ranked above the block."""
    end: np.ndarray
    """`begin` plus the block's own rows (mass)."""
    rows: np.ndarray
    """Rows of each list, which is also its mass, whether they gain or not."""

    def list_sum(self, values: np.ndarray) -> np.ndarray:
        """Sum a value per block over each list."""
        sums = np.bincount(self.list_of, weights=values, minlength=self.rows.size)
        return sums.astype(np.float64)  # integers where there is nothing to add

    @cached_property
    def total(self) -> np.ndarray:
        """The gain of each list."""
        return self.list_sum(self.gain)

    def cutoff(self, k: int) -> int:
        """The last position that can count: k, or the end of the longest list."""
        return min(k, int(self.rows.max()))


@dataclass(frozen=True)
class RankedLists:
    """Lists of rows (one per user), cut into blocks of equal score."""

    order: np.ndarray
    """Positions of the caller's rows, by list and falling score."""
    start: np.ndarray
    """First row of each block within `order`."""
    list_of: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    rows: np.ndarray
    """Rows of each list."""
    weight: np.ndarray
    """Normalised weight of each row, in `order`."""

    def blocks(self, gain: np.ndarray) -> Blocks:
        """The blocks where the caller's rows gain something."""
        sums = np.add.reduceat(gain[self.order] * self.weight, self.start)
        some = np.flatnonzero(sums)
        at = self.list_of[some], self.begin[some], self.end[some]
        return Blocks(sums[some], *at, self.rows)


def rank_lists(
    code: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None
) -> RankedLists:
    """Rank each user's rows; `code` numbers the users 0, 1, 2, … without gaps (see `dense_codes`).

    Which of two equal scores comes first does not matter: they share a block.
    """
    order, rows = np.lexsort((-score, code)), np.bincount(code)
    own, ranked = code[order], score[order]
    mass = np.ones(code.size)
    if weight is not None:
        mass = weight[order] * (rows / np.bincount(code, weight))[own]
    new = np.append(True, (ranked[1:] != ranked[:-1]) | (own[1:] != own[:-1]))
    start = np.flatnonzero(new)
    list_of, size = own[start], np.add.reduceat(mass, start)
    end = np.cumsum(size)
    end -= (end - size)[np.searchsorted(list_of, np.arange(rows.size))][list_of]
    return RankedLists(order, start, list_of, end - size, end, rows, mass)


def dense_codes(user: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct users, sorted, and each row's position among them; any ids will do."""
    if (
        user.dtype.kind in "iu"
        and user.size
        and user.min() >= 0
        and user.max() < 4 * user.size + 1024
    ):
        present = np.bincount(user) > 0
        users = np.flatnonzero(present)
        if users.size == present.size:
            return users, user
        return users, (np.cumsum(present, dtype=np.int32) - 1)[user]
    users, code = np.unique(user, return_inverse=True)
    return users, code


WORTH_GROUPING = 4
"""Groups of columns pay off in `top_k` when the members looked at again are at most 1/4 of the
columns."""


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of the min(k, columns) best scores of each row, best first; ties by
    position.

    A partial sort in two levels. Reading all scores once is unavoidable; sorting them is not.
    Columns are cut into groups; the k groups with the largest maxima hold the k best scores of a
    row (a group left out comes after k maxima at least as large as its own), so only their members
    are looked at again. Exact, and ties fall to the first column.
    """
    n_rows, n_columns = scores.shape
    k = min(k, n_columns)
    size = max(1, int((n_columns / max(k, 1)) ** 0.5))
    if k * size * WORTH_GROUPING > n_columns or n_rows == 0:
        return _by_value(scores, _best(scores, k))
    largest = np.maximum.reduceat(scores, np.arange(0, n_columns, size), axis=1)
    columns = (_best(largest, k)[:, :, None] * size + np.arange(size)).reshape(n_rows, -1)
    outside = columns >= n_columns  # the last group may be a part of one
    candidates = np.take_along_axis(scores, np.where(outside, 0, columns), 1)
    candidates[outside] = -np.inf
    position, value = _by_value(candidates, _best(candidates, k))
    return np.take_along_axis(columns, position, 1), value


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k best of each row, in order of position; of those that tie at the edge, the
    first."""
    n_rows, n_columns = scores.shape
    if k in (0, n_columns):
        return np.broadcast_to(np.arange(k), (n_rows, k))
    edge = np.partition(scores, n_columns - k, axis=1)[:, n_columns - k, None]
    above, tied = scores > edge, scores == edge
    chosen = above | (tied & (np.cumsum(tied, 1) <= k - above.sum(1, keepdims=True)))
    return np.nonzero(chosen)[1].reshape(n_rows, k)


def _by_value(scores: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and their values, best first; equal values stay in order of position."""
    value = np.take_along_axis(scores, position, 1)
    order = np.argsort(-value, axis=1, kind="stable")
    return np.take_along_axis(position, order, 1), np.take_along_axis(value, order, 1)


def mask_seen(
    scores: np.ndarray,
    users: np.ndarray,
    row_start: np.ndarray,
    items: np.ndarray,
    columns: np.ndarray | None = None,
) -> None:
    """Set the scores of what each user has seen to −inf, in place: nobody is recommended it again.

    The log is sorted by user: items of user u are items[row_start[u]:row_start[u + 1]]. Users from
    row_start.size − 1 on (cold start) have seen nothing. columns: the column of `scores` that each
    item has, −1 where it has none; without it, columns are items.
    """
    scores[places_of(users, row_start, items, columns)] = -np.inf


def places_of(
    users: np.ndarray, row_start: np.ndarray, items: np.ndarray, columns: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the pairs of some users in an array of scores, as `mask_seen` has them."""
    known = row_start.size - 1
    first, last = row_start[np.minimum(users, known)], row_start[np.minimum(users + 1, known)]
    row, column = np.repeat(np.arange(users.size), last - first), items[ranges(first, last)]
    if columns is not None:
        column = columns[column]
        row, column = row[column >= 0], column[column >= 0]
    return row, column


def ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """All positions of the half-open ranges first[k]:last[k], one after another."""
    size = last - first
    positions: np.ndarray = np.repeat(first - (np.cumsum(size) - size), size) + np.arange(
        int(size.sum())
    )
    return positions


def check_rows(
    name: str, values: np.ndarray, n: int, *, kind: str = "finite numbers", positive: bool = False
) -> None:
    """Refuse an input that is not one finite number per row (above 0 if `positive`); nothing
    broadcasts."""
    if values.shape != (n,):
        raise InputError(
            f"{name} must have one entry per row", found=values.shape, expected=f"({n},)"
        )
    if n == 0:
        raise InputError(
            f"{name}: nothing to evaluate", found="0 rows", hint="Check the split or the filter."
        )
    bad = ~np.isfinite(values)
    if positive:
        bad |= values <= 0
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{name}: bad value in {int(bad.sum()):,} row(s)",
            row=row + 1,
            found=values[row],
            expected=kind,
        )
