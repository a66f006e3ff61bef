"""Pairs in both the log and the uniform rows: data leakage, and the one rule for it.

A model that memorises its log answers such rows from memory, so their figures say nothing about
unseen pairs. By default they neither validate nor test nor calibrate: a data set leaves them out
when it is built (`Dataset.uniform` has none), keeps them apart (`Dataset.repeated`) and counts them
(`Dataset.overlap`). `overlap="keep"` leaves them in, for comparison with figures that were printed
so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from puidrec.data.schema import check_choice
from puidrec.errors import InputError

OverlapRule = Literal["drop", "keep"]
MOST_REPEATED = 0.5
"""Share of uniform rows that may be logged pairs; rows drawn at random repeat about the share of
pairs logged."""


@dataclass(frozen=True)
class Overlap:
    """How many uniform rows repeat a logged pair, and what was done with them."""

    rule: OverlapRule = "drop"
    rows: int = 0
    """Uniform rows as given."""
    in_log: int = 0
    """Those of them whose pair is in the log."""

    @property
    def dropped(self) -> int:
        """Uniform rows left out."""
        return self.in_log if self.rule == "drop" else 0

    def unseen_mean(self, uniform_mean: float, seen_mean: float, density: float) -> float:
        """The mean over unseen pairs: that of the uniform rows, or what it leaves once seen pairs
        are taken out."""
        if self.dropped or density >= 1.0:
            return uniform_mean
        return (uniform_mean - density * seen_mean) / (1.0 - density)

    def population_mean(self, uniform_mean: float, seen_mean: float, density: float) -> float:
        """The mean over all pairs: uniform rows outside the log lack the seen pairs, which are put
        back here."""
        return (
            density * seen_mean + (1.0 - density) * uniform_mean if self.dropped else uniform_mean
        )

    def plain(self) -> dict[str, Any]:
        """Plain values for run folders and reports."""
        return {"overlap": self.rule, "uniform_rows": self.rows, "uniform_rows_in_log": self.in_log}

    def __str__(self) -> str:
        return overlap_words(self.rule, self.rows, self.in_log)


def overlap_words(rule: str, rows: int, in_log: int) -> str:
    """What was found and done, for tables; nothing where there are no uniform rows."""
    if not rows:
        return ""
    if not in_log:
        return f"none of {rows:,} uniform rows is a logged pair"
    return f"{in_log:,} of {rows:,} uniform rows are logged pairs ({'dropped' if rule == 'drop' else 'kept'})"


def check_overlap(rule: str) -> None:
    """Refuse another word than `drop` or `keep`."""
    check_choice("overlap", rule, get_args(OverlapRule))


def require_fresh(
    rows: int, repeated: int, words: str, density: float = 0.0, file: Any = None
) -> None:
    """Refuse rows that are mostly known pairs: they were not drawn at random, whatever they are
    called.

    density: share of all pairs that is known; random rows repeat about that share, so a dense log
    is allowed more.
    """
    if repeated > max(MOST_REPEATED, 2.0 * density) * rows or 0 < repeated == rows:
        raise InputError(
            words,
            file=file,
            found=f"{repeated:,} of {rows:,}",
            expected="pairs drawn at random, most of them new",
            hint="Give other rows, or insist with overlap='keep' (--overlap keep).",
        )


def row_starts(user: np.ndarray, n_users: int, chunk: int = 1 << 20) -> np.ndarray:
    """Rows of a log before each user, and all of them, [users + 1]; some rows at a time, for logs
    on disk."""
    count = np.zeros(n_users, np.int64)
    for start in range(0, user.size, chunk):
        count += np.bincount(user[start : start + chunk], minlength=n_users)
    return np.concatenate([[0], np.cumsum(count)])


def pairs_in(user: np.ndarray, item: np.ndarray, n_items: int, parts: Iterable[Any]) -> np.ndarray:
    """Which pairs are in a log of any order, that comes in parts with `user` and `item`."""
    key = user.astype(np.int64) * n_items + item
    found = np.zeros(key.size, bool)
    for part in parts:
        found |= np.isin(key, part.user.astype(np.int64) * n_items + part.item)
    return found


def rows_outside(
    user: np.ndarray,
    item: np.ndarray,
    row_start: np.ndarray,
    items: np.ndarray,
    chunk: int = 1 << 17,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a log that another log lacks, by user: `row_start` and items, as the other log is
    given.

    Both are sorted by user and item, and may be on disk: each is read once, some rows at a time.
    """
    users, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for start in range(0, user.size, chunk):
        own_user, own_item = (
            np.asarray(column[start : start + chunk]).astype(np.int64) for column in (user, item)
        )
        first, last = int(own_user[0]), int(own_user[-1])
        other = np.asarray(items[int(row_start[first]) : int(row_start[last + 1])]).astype(np.int64)
        width = int(max(own_item.max(), other.max(initial=0))) + 1
        other += np.repeat(np.arange(first, last + 1), np.diff(row_start[first : last + 2])) * width
        key = own_user * width + own_item
        place = np.searchsorted(other, key)
        outside = np.append(other, -1)[place] != key
        users.append(own_user[outside])
        found.append(own_item[outside].astype(np.int32))
    return row_starts(np.concatenate(users), row_start.size - 1), np.concatenate(found)


def pairs_among(
    user: np.ndarray, item: np.ndarray, row_start: np.ndarray, items: np.ndarray
) -> np.ndarray:
    """Which pairs are in a log sorted by user and item; `row_start` and `items` are its rows by
    user.

    A binary search of all pairs at once, so that a log on disk is read only where it is asked for.
    """
    low, high = row_start[user].astype(np.int64), row_start[user + 1].astype(np.int64)
    end = high.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        below = np.asarray(items[middle]) < item[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
    found = np.zeros(user.size, bool)
    inside = np.flatnonzero(low < end)
    found[inside] = np.asarray(items[low[inside]]) == item[inside]
    return found
