"""Training on a log that stays on disk: rows, propensities and Γ of a block of users are made when it is asked for.

What is fitted once (propensity, Γ) needs counts of the log only, and those are taken some rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from puidrec.backbones.sparse import LogPattern
from puidrec.data.dataset import Dataset
from puidrec.data.sharded import StoredInteractions, slices
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.features.counts import count_codes
from puidrec.objective.estimators import Observed
from puidrec.settings import Settings
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Log

PIECE_PAIRS = 2_000_000
"""Logged pairs in memory at once: about 500 MB with all that is made of them."""
PROPENSITIES = ("cells", "two-way", "logistic")
"""Propensities that are fitted on counts."""


def prepare(data: Dataset, split: Split, settings: Settings) -> Prepared:
    """A data set through a method's settings, in memory or on disk."""
    prepared = Prepared.of(data, split, settings)
    if not isinstance(split.train, StoredInteractions):
        return prepared
    _refuse_what_needs_memory(settings)
    return StoredPrepared(data, split, settings, prepared.scale, PIECE_PAIRS)


@dataclass(frozen=True)
class StoredLog:
    """The logged pairs of any block of users, read and weighted when asked for."""

    prepared: StoredPrepared
    weighted: bool

    def __len__(self) -> int:
        return len(self.prepared.rows)

    def rows(self, start: int, stop: int) -> Observed:
        """Those of users start..stop−1."""
        return self.prepared.block(start, stop, weighted=self.weighted)


@dataclass(frozen=True)
class StoredPrepared(Prepared):
    """A data set whose log is on disk."""

    def first_stage(self, settings: Settings) -> Prepared:
        """The same data for the model a method builds on; what both need is computed once."""
        other = replace(self, settings=settings)
        shared = ("crow", "target_mean", "encoders", "designs", "evidence")
        more = ("propensity",) if settings.spec.estimator != "naive" else ()
        other.__dict__.update({name: getattr(self, name) for name in (*shared, *more)})
        return other

    @cached_property
    def target(self) -> np.ndarray:
        """Never all at once."""
        raise InputError("this needs all ratings of the log in memory", found="a log on disk")

    @cached_property
    def target_mean(self) -> float:
        """The mean of the targets, summed some rows at a time."""
        total = sum(float(self._rows(rows).target.sum(dtype=np.float64)) for rows in slices(len(self.rows)))
        return total / len(self.rows)

    @cached_property
    def crow(self) -> np.ndarray:
        """Training rows before each user, and all of them."""
        return np.concatenate([[0], np.cumsum(count_codes(self.rows.user, self.data.n_users))])

    def log(self, *, weighted: bool) -> Log:
        """The log block by block."""
        return StoredLog(self, weighted)

    def block(self, start: int, stop: int, *, weighted: bool) -> Observed:
        """The training rows of users start..stop−1 with the box of their weights."""
        part = self._rows(slice(int(self.crow[start]), int(self.crow[stop])))
        crow = torch.from_numpy((self.crow[start : stop + 1] - self.crow[start]).astype(np.int32))
        item = torch.from_numpy(np.array(part.rows.item))
        known: dict[str, object] = {"pattern": LogPattern(crow, item, self.data.n_items).to(self.settings.device)}
        if weighted:
            known |= {"propensity": self.propensity, "gamma": self.gamma}
        part.__dict__.update(known)
        return part.observed(weighted=weighted)

    def _rows(self, rows: slice) -> Prepared:
        """The same settings seeing a few of the rows, in memory."""
        assert isinstance(self.rows, StoredInteractions)  # noqa: S101 (`prepare` says so)
        return Prepared(self.data, replace(self.split, train=self.rows.part(rows)), self.settings, self.scale)


def _refuse_what_needs_memory(settings: Settings) -> None:
    """One line for what would hold the log whole."""
    checks = (
        (settings.spec.family in ("grid", "multi"), "method", settings.method, "a method of the grid, such as puid-dr"),
        (settings.propensity in PROPENSITIES, "propensity", settings.propensity, ", ".join(PROPENSITIES)),
        (settings.gamma != "certified", "gamma", settings.gamma, "a number (puid gamma says which) or a rule"),
        (settings.l2_vectors != "auto", "l2_vectors", "auto", "a number (--set l2_vectors=1)"),
    )
    for fine, name, found, expected in checks:
        if not fine:
            raise InputError(f"{name} needs the log in memory", found=found, expected=f"{expected}, for a log on disk")
