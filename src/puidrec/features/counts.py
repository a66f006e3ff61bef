"""Exposure counts: all that propensities, entropies and Γ need of a log, in tables much smaller
than it.

One pass over the log gives the observed pairs per (user bin, item) and per user. Cells of bins,
item degrees and every permutation of feature rows follow from these without touching the log again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError


@dataclass(frozen=True)
class ExposureCounts:
    """Observed pairs by bins, against the population D = users × items."""

    user_bin: np.ndarray
    """Bin of each user (int32)."""
    item_bin: np.ndarray
    """Bin of each item (int32)."""
    user_degree: np.ndarray
    """Observed pairs of each user (int64)."""
    by_item: np.ndarray
    """Observed pairs, [user bins, items] (int64)."""

    @classmethod
    def from_pairs(
        cls, user: np.ndarray, item: np.ndarray, user_bin: np.ndarray, item_bin: np.ndarray
    ) -> Self:
        """Count a log in memory: codes of users and items, and the bin of every user and item."""
        if user.shape != item.shape:
            check_pairs(user, item, user_bin.size, item_bin.size)
        return cls.from_batches(
            ((user[part], item[part]) for part in row_slices(user.size)), user_bin, item_bin
        )

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[tuple[np.ndarray, np.ndarray]],
        user_bin: np.ndarray,
        item_bin: np.ndarray,
    ) -> Self:
        """Count a log that arrives in batches of (user codes, item codes)."""
        for name, codes in (("user_bin", user_bin), ("item_bin", item_bin)):
            if codes.ndim != 1 or codes.size == 0 or codes.min() < 0:
                raise InputError(
                    "bins must be a vector of codes from 0", column=name, found=codes.shape
                )
        n_users, n_items = user_bin.size, item_bin.size
        n_bins = int(user_bin.max()) + 1
        offset = user_bin.astype(np.int64) * n_items
        degree, table = np.zeros(n_users, np.int64), np.zeros(n_bins * n_items, np.int64)
        for user, item in batches:
            check_pairs(user, item, n_users, n_items)
            degree += np.bincount(user, minlength=n_users)
            table += np.bincount(offset[user] + item, minlength=table.size)
        return cls(user_bin, item_bin, degree, table.reshape(n_bins, n_items))

    @property
    def n_users(self) -> int:
        """Users of the population."""
        return int(self.user_bin.size)

    @property
    def n_items(self) -> int:
        """Items of the population."""
        return int(self.item_bin.size)

    @cached_property
    def n_observed(self) -> int:
        """Observed pairs: the size of O."""
        return int(self.user_degree.sum())

    @property
    def rate(self) -> float:
        """Share of D that was observed."""
        return self.n_observed / (self.n_users * self.n_items)

    @cached_property
    def item_degree(self) -> np.ndarray:
        """Observed pairs of each item."""
        return self.by_item.sum(axis=0)

    @cached_property
    def cells(self) -> np.ndarray:
        """Observed pairs per (user bin, item bin)."""
        return group_columns(self.by_item, self.item_bin)

    @cached_property
    def users_in_bin(self) -> np.ndarray:
        """Users per user bin."""
        return np.bincount(self.user_bin, minlength=self.by_item.shape[0])

    @cached_property
    def items_in_bin(self) -> np.ndarray:
        """Items per item bin."""
        return np.bincount(self.item_bin)

    @cached_property
    def pairs(self) -> np.ndarray:
        """Pairs of D per (user bin, item bin), as float64 (they exceed int64 nowhere, but divide
        often)."""
        return np.multiply.outer(
            self.users_in_bin.astype(np.float64), self.items_in_bin.astype(np.float64)
        )


def group_columns(table: np.ndarray, group: np.ndarray, n_groups: int | None = None) -> np.ndarray:
    """Sum the columns of a table by group: [rows, columns] → [rows, groups]; a group of no column
    sums to 0."""
    size = np.bincount(group, minlength=n_groups or 0)
    result = np.zeros((table.shape[0], size.size), table.dtype)
    occupied = np.flatnonzero(size)
    order = np.argsort(group, kind="stable")
    starts = (np.cumsum(size) - size)[
        occupied
    ]  # reduceat returns a neighbour's entry for an empty group
    result[:, occupied] = np.add.reduceat(table[:, order], starts, axis=1)
    return result


def check_pairs(user: np.ndarray, item: np.ndarray, n_users: int, n_items: int) -> None:
    """Refuse codes that do not pair up or lie outside the population: they would count in another
    cell."""
    if user.shape != item.shape or user.ndim != 1:
        raise InputError(
            "user and item codes must be vectors of one length",
            found=f"{user.shape} and {item.shape}",
        )
    for name, codes, size in (("user", user, n_users), ("item", item, n_items)):
        if codes.dtype.kind not in "iu":
            raise InputError(f"{name} codes must be integers", found=str(codes.dtype))
        if codes.size and (codes.min() < 0 or codes.max() >= size):
            worst = codes.min() if codes.min() < 0 else codes.max()
            raise InputError(
                f"{name} code out of range", found=int(worst), expected=f"0 to {size - 1}"
            )
