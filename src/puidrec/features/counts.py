"""Exposure counts: all that propensities, entropies and Γ need of a log, in tables much smaller than it.

One pass over the log gives the observed pairs per (user bin, item) and per user. Cells of bins, item degrees and
every permutation of feature rows follow from these without touching the log again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

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
    def from_pairs(cls, user: np.ndarray, item: np.ndarray, user_bin: np.ndarray, item_bin: np.ndarray) -> Self:
        """Count a log held in memory: codes of users and items, and the bin of every user and item."""
        return cls.from_batches([(user, item)], user_bin, item_bin)

    @classmethod
    def from_batches(
        cls, batches: Iterable[tuple[np.ndarray, np.ndarray]], user_bin: np.ndarray, item_bin: np.ndarray
    ) -> Self:
        """Count a log that arrives in batches of (user codes, item codes)."""
        n_users, n_items = user_bin.size, item_bin.size
        n_bins = int(user_bin.max()) + 1
        degree, table = np.zeros(n_users, np.int64), np.zeros(n_bins * n_items, np.int64)
        for user, item in batches:
            if user.shape != item.shape or user.ndim != 1:
                raise InputError("user and item codes must be vectors of one length", found=(user.shape, item.shape))
            degree += np.bincount(user, minlength=n_users)
            table += np.bincount(user_bin[user].astype(np.int64) * n_items + item, minlength=table.size)
        return cls(user_bin, item_bin, degree, table.reshape(n_bins, n_items))

    @property
    def n_users(self) -> int:
        """Users of the population."""
        return self.user_bin.size

    @property
    def n_items(self) -> int:
        """Items of the population."""
        return self.item_bin.size

    @cached_property
    def item_degree(self) -> np.ndarray:
        """Observed pairs of each item."""
        degree: np.ndarray = self.by_item.sum(axis=0)
        return degree

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
        """Pairs of D per (user bin, item bin), as float64 (they exceed int64 nowhere, but divide often)."""
        return np.multiply.outer(self.users_in_bin.astype(np.float64), self.items_in_bin.astype(np.float64))


def group_columns(table: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Sum the columns of a table by group: [rows, columns] → [rows, groups]."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(int(group.max()) + 1))
    return np.add.reduceat(table[:, order], starts, axis=1)
