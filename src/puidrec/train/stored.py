"""Training on a log that stays on disk: rows, propensities and Γ of a block of users are made when it is asked for.

What is fitted once (propensity, Γ, noise) goes over the log some rows at a time. What a block needs in every epoch
(targets, weights) is made in the first and kept beside the log, in files that are gone with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from puidrec.backbones.sparse import LogPattern
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import Scratch, StoredInteractions, row_slices
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.features.counts import count_codes
from puidrec.objective.blocks import user_blocks
from puidrec.objective.estimators import Observed
from puidrec.objective.worst_case import Box
from puidrec.settings import Settings
from puidrec.train.prepare import Prepared, Weights
from puidrec.train.problem import Log
from puidrec.train.row_matrix import RowMatrix

PIECE_PAIRS = 2_000_000
"""Logged pairs in memory at once: about 500 MB with all that is made of them."""


def prepare(data: Dataset, split: Split, settings: Settings) -> Prepared:
    """A data set through a method's settings, in memory or on disk."""
    prepared = Prepared.of(data, split, settings)
    if not isinstance(split.train, StoredInteractions):
        return prepared
    if settings.propensity == "given":
        raise InputError("propensity needs the log in memory", found="given", expected="one that is estimated")
    return StoredPrepared(data, split, settings, prepared.scale, PIECE_PAIRS)


@dataclass(frozen=True, eq=False)
class StoredLog:
    """The logged pairs of any block of users: weighted when first asked for, read again afterwards."""

    prepared: StoredPrepared
    weights: Weights
    _made: set[tuple[int, int]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.prepared.rows)

    def rows(self, start: int, stop: int) -> Observed:
        """Those of users start..stop−1."""
        crow = self.prepared.crow
        rows = slice(int(crow[start]), int(crow[stop]))
        if (start, stop) in self._made:
            target, a, b = (self.prepared.tensor(np.array(column.values[rows])) for column in self._columns)
            return Observed(self.prepared.block_pattern(start, stop), target, Box(a, b))
        observed = self.prepared.block(start, stop, self.weights)
        for column, values in zip(self._columns, (observed.target, *observed.bounds), strict=True):
            column.write(rows.start, values.cpu().numpy())
        self._made.add((start, stop))
        return observed

    @cached_property
    def _columns(self) -> tuple[Scratch, ...]:
        """Target, a and b of each row."""
        return tuple(self.prepared.scratch(np.float32) for _ in range(3))


@dataclass(frozen=True)
class StoredPrepared(Prepared):
    """A data set whose log is on disk."""

    def first_stage(self, settings: Settings) -> Prepared:
        """The same data for the model a method builds on; what both need is computed once."""
        other = replace(self, settings=settings)
        shared = ["crow", "target_mean", "encoders", "designs", "evidence"]
        shared += ["propensity"] if settings.spec.estimator != "naive" else []
        shared += ["noise"] if settings.l2_vectors == "auto" else []
        other.__dict__.update({name: getattr(self, name) for name in shared})
        return other

    @cached_property
    def target(self) -> np.ndarray:
        """Never all at once."""
        raise TypeError("the targets of a log on disk are made part by part")

    @cached_property
    def crow(self) -> np.ndarray:
        """Training rows before each user, and all of them."""
        return np.concatenate([[0], np.cumsum(count_codes(self.rows.user, self.data.n_users))])

    @property
    def items(self) -> np.ndarray:
        """Item of each training row: the file itself, or a copy of it where rows were left out."""
        item = self.rows.item
        if isinstance(item, np.ndarray):
            return item
        room = self.scratch(np.int32)
        for rows in row_slices(len(self.rows)):
            room.write(rows.start, item[rows])
        return room.values

    def parts(self, *known: str) -> Iterator[Prepared]:
        """The same settings seeing the rows of some users at a time, in memory."""
        for start, stop in user_blocks(torch.from_numpy(self.crow), self.piece_pairs):
            yield self._part(start, stop, *known)

    def matrix(self, values: Callable[[Prepared], np.ndarray]) -> RowMatrix:
        """A number per training row, made part by part and kept on disk."""
        room, start = self.scratch(), 0
        for part in self.parts():
            room.write(start, values(part))
            start += len(part.rows)
        return RowMatrix(self.crow, self.rows.item, room.values, self.data.n_items, self.piece_pairs, self.scratch)

    def log(self, weights: Weights) -> Log:
        """The log block by block."""
        return StoredLog(self, weights)

    def block(self, start: int, stop: int, weights: Weights) -> Observed:
        """The training rows of users start..stop−1 with the box of their weights."""
        known = {"unit": (), "box": ("propensity", "gamma"), "inverse": ("propensity", "inverse_mean")}[weights]
        part = self._part(start, stop, *known)
        part.__dict__["pattern"] = self.block_pattern(start, stop)
        return part.observed(weights)

    def block_pattern(self, start: int, stop: int) -> LogPattern:
        """Where these rows are, as a matrix of these users."""
        crow = torch.from_numpy((self.crow[start : stop + 1] - self.crow[start]).astype(np.int32))
        item = torch.from_numpy(np.array(self.rows.item[int(self.crow[start]) : int(self.crow[stop])]))
        return LogPattern(crow, item, self.data.n_items).to(self.settings.device)

    def scratch(self, dtype: type = np.float64) -> Scratch:
        """Room on disk for a number per training row."""
        assert isinstance(self.rows, StoredInteractions)  # noqa: S101 (`prepare` says so)
        return self.rows.scratch(dtype)

    def _part(self, start: int, stop: int, *known: str) -> Prepared:
        """The same settings seeing the rows of users start..stop−1, and what only the whole can know."""
        assert isinstance(self.rows, StoredInteractions)  # noqa: S101 (`prepare` says so)
        rows = self.rows.part(slice(int(self.crow[start]), int(self.crow[stop])))
        part = Prepared(self.data, replace(self.split, train=rows), self.settings, self.scale)
        part.__dict__.update({name: getattr(self, name) for name in known})
        return part
