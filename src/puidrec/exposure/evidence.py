"""What a Γ rule may look at: exposure counts under feature bins, and what follows from them, made
when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, Interactions
from puidrec.exposure.calibrate import Calibration, calibrate, calibrate_sides
from puidrec.exposure.entropy import Estimator, Gains, information_gains
from puidrec.exposure.two_way import TwoWayEffects, fit_two_way
from puidrec.features.bins import SideBins, bin_side
from puidrec.features.counts import ExposureCounts, count_codes
from puidrec.features.encode import binned_design, missing_fields
from puidrec.rng import Rng


@dataclass(frozen=True)
class Evidence:
    """A log seen through bins. Built from the log and side tables, or from counts alone
    (`from_counts`)."""

    counts: ExposureCounts
    user_bins: SideBins | None = None
    item_bins: SideBins | None = None
    users: pl.DataFrame | None = None
    items: pl.DataFrame | None = None
    log: tuple[np.ndarray, np.ndarray] | None = None
    exclude: tuple[str, ...] = ()
    _gains: dict[tuple[str, int, int], Gains] = field(default_factory=dict, repr=False)

    @classmethod
    def from_log(
        cls,
        user: np.ndarray,
        item: np.ndarray,
        *,
        n_users: int,
        n_items: int,
        users: pl.DataFrame | None = None,
        items: pl.DataFrame | None = None,
        exclude: Sequence[str] = (),
    ) -> Evidence:
        """Bin both sides (columns that explain degrees first) and count the log. Row k of a table
        is code k."""
        sides = []
        for frame, key, n, codes in (
            (users, "user_id", n_users, user),
            (items, "item_id", n_items, item),
        ):
            degree = count_codes(codes, n).astype(np.float64)
            sides.append(
                bin_side(frame, id_column=key, n_entities=n, exclude=exclude, relevance=degree)
            )
        counts = ExposureCounts.from_pairs(user, item, sides[0].codes, sides[1].codes)
        return cls(counts, sides[0], sides[1], users, items, (user, item), tuple(exclude))

    @classmethod
    def of_rows(
        cls, data: Dataset, rows: Interactions, calibration_rows: int | None = None
    ) -> Evidence:
        """Of some rows of a data set, with its side tables.

        calibration_rows: how many of them suffice to hide features in; odds ratios do not depend on
        their number.
        """
        found = cls.from_log(
            rows.user,
            rows.item,
            users=data.users,
            items=data.items,
            n_users=data.n_users,
            n_items=data.n_items,
        )
        step = 1 if calibration_rows is None else -(-len(rows) // calibration_rows)
        return found if step <= 1 else replace(found, log=(rows.user[::step], rows.item[::step]))

    @classmethod
    def from_counts(cls, counts: ExposureCounts) -> Evidence:
        """Counts alone: calibration hides whole sides, and only bins stand for features."""
        return cls(counts)

    def gains(self, estimator: Estimator, n_permutations: int, rng: Rng = 0) -> Gains:
        """Entropies and information gains; kept, so that several rules and a report share one
        estimate."""
        if not isinstance(rng, int):
            return information_gains(self.counts, estimator, n_permutations, rng)
        key = (estimator, n_permutations, rng)
        if key not in self._gains:
            self._gains[key] = information_gains(self.counts, estimator, n_permutations, rng)
        return self._gains[key]

    @cached_property
    def two_way(self) -> TwoWayEffects:
        """Effects of every user and item on exposure beyond their bins."""
        return fit_two_way(self.counts)

    @cached_property
    def calibration(self) -> Calibration:
        """The odds-ratio shift that hiding features causes."""
        if self.log is None:
            return calibrate_sides(self.counts)
        n_users, n_items = self.counts.n_users, self.counts.n_items
        user, item = self.log
        return calibrate(
            user,
            item,
            self.users,
            self.items,
            n_users=n_users,
            n_items=n_items,
            exclude=self.exclude,
        )

    @cached_property
    def designs(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Features of users and of items, one by one, at a finer resolution than the composite
        bins."""
        user, item = (binned_design(*side, self.exclude) for side in self._sides)
        return user, item

    @cached_property
    def missing(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Which users, and which items, left which fields empty."""
        user, item = (missing_fields(*side, self.exclude) for side in self._sides)
        return user, item

    @property
    def _sides(self) -> tuple[tuple[pl.DataFrame | None, str], tuple[pl.DataFrame | None, str]]:
        return (self.users, "user_id"), (self.items, "item_id")
