"""What a propensity is fitted on, what it can be asked, and what all of them share: checks, and the
only place where propensities are clipped. And those that are counted or given, with nothing to
solve for: `cells`, `naive-bayes`, `given`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse
from scipy.special import expit, logit

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError, not_fitted
from puidrec.exposure.counts import ExposureCounts, check_pairs
from puidrec.features.bins import bin_side
from puidrec.features.encode import exposure_design

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset, Interactions


DEFAULT_LOW = 1e-6
"""A guard, not variance control: raise it (`low=0.01`) to cap the weights 1/p of an estimator."""
SMOOTHING = 1.0
"""Pseudo-ratings that `naive-bayes` spreads evenly over the rating levels."""


def check_limits(low: float, high: float = 1.0) -> None:
    """Refuse limits under which a propensity could leave (0, 1]."""
    if not 0.0 < low <= high <= 1.0:
        raise InputError(
            "clipping limits out of range",
            found=f"[{low:g}, {high:g}]",
            expected="0 < low <= high <= 1",
            hint="Inverse propensity weights need p above 0.",
        )


def clip(p: np.ndarray, low: float = DEFAULT_LOW, high: float = 1.0) -> np.ndarray:
    """Propensities moved into [low, high]; NaN is an error, since no limit could be right for
    it."""
    check_limits(low, high)
    values = np.asarray(p, dtype=np.float64)
    missing = int(np.isnan(values).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {values.size:,} propensities are not a number",
            expected="probabilities in (0, 1]",
            hint="Check the column or file they come from.",
        )
    return values.clip(low, high)


@dataclass(frozen=True)
class Rated:
    """Rated pairs as arrays: codes of users and items, and the rating of each."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray


@dataclass(frozen=True)
class Exposure:
    """Which pairs of D = users × items were seen, and what a propensity may explain that with.

    `counts` suffices for `cells`, `two-way` and (on bins) `logistic`, so a log too large for memory
    is fitted from one streaming pass. "Seen" means: a training row. A rating that the protocol
    drops does not count as seen.
    """

    counts: ExposureCounts
    log: Rated | None = None
    user_features: sparse.csr_array | None = None
    """Design matrix [users, columns]; see `features.encode.exposure_design`."""
    item_features: sparse.csr_array | None = None
    uniform: Rated | None = None
    """Uniformly drawn ratings held out for propensities. Only those with `uses_uniform` look at
    them."""
    uniform_unseen: bool = False
    """Whether the uniform ratings are of unseen pairs alone: rows that repeat a logged pair were
    dropped."""
    given: np.ndarray | None = None
    """Propensities that came with the log, one per pair of `given_pairs`."""
    given_pairs: tuple[np.ndarray, np.ndarray] | None = None
    """Users and items that `given` speaks of: all logged rows, held-out ones included; None: the
    rows of `log`."""

    @classmethod
    def from_log(
        cls,
        user: np.ndarray,
        item: np.ndarray,
        *,
        user_bin: np.ndarray,
        item_bin: np.ndarray,
        rating: np.ndarray | None = None,
        **parts: Any,
    ) -> Self:
        """From codes in memory and the bin of every user and item (zeros where there are no
        features)."""
        counts = ExposureCounts.from_pairs(user, item, user_bin, item_bin)
        return cls(
            counts, Rated(user, item, np.ones(user.size) if rating is None else rating), **parts
        )

    @classmethod
    def from_rows(
        cls,
        data: Dataset,
        rows: Interactions,
        uniform: Interactions | None = None,
        counts: ExposureCounts | None = None,
    ) -> Self:
        """From rows that count as seen, and uniform rows held out for propensities.

        counts: of the rows under bins of the side tables, where they are known; else the tables are
        binned here.
        """
        if counts is None:
            sides = ((data.users, "user_id", data.n_users), (data.items, "item_id", data.n_items))
            bins = [bin_side(frame, id_column=key, n_entities=n).codes for frame, key, n in sides]
            counts = ExposureCounts.from_pairs(rows.user, rows.item, *bins)
        if (counts.n_users, counts.n_items) != (data.n_users, data.n_items):
            raise InputError(
                "counts of another population",
                found=f"{counts.n_users} users and {counts.n_items} items",
                expected=f"{data.n_users} users and {data.n_items} items",
            )
        return cls(
            counts,
            Rated(rows.user, rows.item, rows.rating),
            user_features=exposure_design(data.users, "user_id"),
            item_features=exposure_design(data.items, "item_id"),
            uniform=Rated(uniform.user, uniform.item, uniform.rating)
            if uniform is not None
            else None,
            uniform_unseen=data.overlap.dropped > 0,
            given=data.logged.propensity,
            given_pairs=(data.logged.user, data.logged.item),
        )

    @property
    def n_seen(self) -> int:
        """Observed pairs."""
        return self.counts.n_observed

    @property
    def n_pairs(self) -> int:
        """The size of D."""
        return self.counts.n_users * self.counts.n_items

    @property
    def rate(self) -> float:
        """Share of D that was seen, kept inside (0, 1) by half a pair."""
        return (self.n_seen + 0.5) / (self.n_pairs + 1.0)


class FittedPropensity(ABC):
    """P(o = 1 | what is known of the pair), fitted once, asked for any pairs. Checks before,
    clipping after: a propensity writes `_fit` and `_raw` and gets the rest here.

    Inherited rather than composed because the order (check, compute, clip) is what must not vary.
    """

    name: str
    uses_uniform: bool = False
    """Whether fitting looks at uniform rows; reports say so."""

    def __init__(self, *, low: float = DEFAULT_LOW) -> None:
        check_limits(low)
        self.low = low

    @abstractmethod
    def _fit(self, data: Exposure) -> None:
        """Learn; sets attributes that end in `_`."""

    @abstractmethod
    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        """Propensities before clipping, for codes that were checked."""

    def _details(self) -> dict[str, Any]:
        """What `describe` adds for this kind."""
        return {}

    def fit(self, data: Exposure) -> Self:
        """Learn from the seen and unseen pairs of D."""
        if data.n_seen == 0:
            raise InputError(
                "no pair was seen, so there is no propensity to learn",
                expected="at least one log row",
            )
        self._fit(data)
        self.shape_ = (data.counts.n_users, data.counts.n_items)
        self.rate_ = data.rate
        self.log_summary_ = {} if data.log is None else self._summary(data.log)
        return self

    def _summary(self, log: Rated) -> dict[str, Any]:
        """What clipping does to the log, some rows at a time."""
        moved, smallest = 0, 1.0
        for part in row_slices(log.user.size):
            raw = self._raw(log.user[part], log.item[part], log.rating[part])
            clipped = clip(raw, self.low)
            moved += int((clipped != raw).sum())
            smallest = min(smallest, float(clipped.min()))
        return {"share_clipped": moved / log.user.size, "smallest": smallest}

    def predict(
        self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None = None
    ) -> np.ndarray:
        """Propensities in (0, 1] of pairs given as codes, float64. `rating` matters to
        `naive-bayes` only."""
        self._require_fitted()
        users, items = np.asarray(users), np.asarray(items)
        check_pairs(users, items, *self.shape_)
        if rating is not None and np.shape(rating) != users.shape:
            raise InputError(
                "one rating per pair", found=np.shape(rating), expected=f"{users.shape}"
            )
        return clip(self._raw(users, items, rating), self.low)

    def describe(self) -> dict[str, Any]:
        """Name, use of uniform data, overall rate, and what clipping did to the log rows."""
        self._require_fitted()
        general = {
            "name": self.name,
            "uses_uniform": self.uses_uniform,
            "rate": self.rate_,
            "low": self.low,
        }
        return {**general, **self.log_summary_, **self._details()}

    def _require_fitted(self) -> None:
        if not hasattr(self, "shape_"):
            raise not_fitted(f"propensity {self.name}")


def independent_rates(counts: ExposureCounts) -> np.ndarray:
    """Rates if the user bin and the item bin act apart: log-odds of row + column − overall, [user
    bins, item bins]."""
    seen, pairs = counts.cells, counts.pairs
    overall = (seen.sum() + 0.5) / (pairs.sum() + 1.0)
    row = logit((seen.sum(axis=1) + overall) / (pairs.sum(axis=1) + 1.0))
    column = logit((seen.sum(axis=0) + overall) / (pairs.sum(axis=0) + 1.0))
    return _calibrated(row[:, None] + column - logit(overall), counts)


def calibrating_shift(log_odds: np.ndarray, pairs: np.ndarray, n_seen: float) -> float:
    """The δ with Σ pairs · σ(log_odds + δ) = n_seen: a model must expect as many seen pairs as
    there are."""
    from scipy.optimize import brentq  # takes long to import; most methods do without

    def surplus(shift: float) -> float:
        return float((pairs * expit(log_odds + shift)).sum()) - n_seen

    return float(brentq(surplus, -60.0, 60.0, xtol=1e-14))


def _calibrated(log_odds: np.ndarray, counts: ExposureCounts) -> np.ndarray:
    """Rates of cells that expect as many seen pairs as there are; half a pair short of a full D,
    whose log-odds would be infinite."""
    total = min(float(counts.n_observed), float(counts.pairs.sum()) - 0.5)
    return expit(log_odds + calibrating_shift(log_odds, counts.pairs, total))


def overdispersion(counts: ExposureCounts, rates: np.ndarray) -> float:
    """ρ of a beta-binomial around `rates`, by moments: E χ² = Σ (1 + (n − 1)ρ) over the free cells;
    floored at 0."""
    rows, columns = counts.cells.shape
    free = max((rows - 1) * (columns - 1), 0)
    pairs = np.maximum(counts.pairs, 1.0)
    chi2 = (counts.cells - counts.pairs * rates) ** 2 / (pairs * rates * (1.0 - rates))
    surplus = float(chi2.sum()) - free
    return min(max(surplus / max(float((pairs - 1.0).sum()), 1.0), 0.0), 1.0) if free else 0.0


def smoothed_rates(counts: ExposureCounts) -> tuple[np.ndarray, float]:
    """(seen + k · independent rate) / (pairs + k), calibrated in the large, and the k used.

    k is in pairs of D, the empirical-Bayes value 1/ρ − 1: infinite when cells differ from
    independence no more than chance makes them.
    """
    prior = independent_rates(counts)
    rho = overdispersion(counts, prior)
    if rho <= 0.0:
        return prior, float("inf")
    k, pairs = 1.0 / rho - 1.0, counts.pairs
    rate = np.where(
        pairs + k > 0, (counts.cells + k * prior) / np.maximum(pairs + k, 1e-300), prior
    )
    return _calibrated(logit(np.clip(rate, 1e-15, 1.0 - 1e-15)), counts), k


class Cells(FittedPropensity):
    """Smoothed bin × bin rates: exposure as the features explain it, and nothing else."""

    name = "cells"

    def _fit(self, data: Exposure) -> None:
        self.rates_, self.pseudo_count_ = smoothed_rates(data.counts)
        self.user_bin_, self.item_bin_ = data.counts.user_bin, data.counts.item_bin

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return self.rates_[self.user_bin_[users], self.item_bin_[items]]

    def _details(self) -> dict[str, Any]:
        k = self.pseudo_count_
        return {
            "bins": list(self.rates_.shape),
            "pseudo_count": k if np.isfinite(k) else "infinite",
        }


class NaiveBayes(FittedPropensity):
    """Exposure as the rating itself explains it: P(o = 1 | r) = P(r | o = 1) · P(o = 1) / P(r),
    with P(r) from uniform rows; every report says so.

    Pairs are told apart by their rating only, so `predict` wants `rating=`. Without it the rating
    is unknown, and the mean of P(o | r) over P(r) is the overall rate P(o).
    """

    name = "naive-bayes"
    uses_uniform = True

    def _fit(self, data: Exposure) -> None:
        if data.uniform is None or not data.uniform.rating.size:
            raise InputError(
                "naive-bayes needs uniformly drawn ratings, and there are none",
                expected="a data set with uniform rows, and a protocol that holds some of them out",
                hint="Choose two-way, cells or logistic instead.",
            )
        if data.log is None:
            raise InputError("naive-bayes needs the ratings of the log", found="counts only")
        log, uniform = data.log.rating, data.uniform.rating
        parts = [np.unique(log[part]) for part in row_slices(log.size)]
        self.levels_ = np.unique(np.concatenate([*parts, uniform]))
        seen, drawn = self._distribution(log), self._distribution(uniform)
        everywhere = data.rate * seen + (1.0 - data.rate) * drawn if data.uniform_unseen else drawn
        self.by_level_ = seen / everywhere * data.rate
        self.overall_ = data.rate

    def _distribution(self, rating: np.ndarray) -> np.ndarray:
        """Share of each level, some rows at a time."""
        count = np.zeros(self.levels_.size)
        for part in row_slices(rating.size):
            level = np.searchsorted(self.levels_, rating[part])
            count += np.bincount(level, minlength=count.size)
        return (count + SMOOTHING / count.size) / (rating.size + SMOOTHING)

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        if rating is None:
            return np.full(users.size, self.overall_)
        rating = np.asarray(rating)
        level = np.minimum(np.searchsorted(self.levels_, rating), self.levels_.size - 1)
        unknown = self.levels_[level] != rating
        if unknown.any():
            raise InputError(
                f"{int(unknown.sum()):,} ratings are of a level never seen in fitting",
                found=float(rating[unknown][0]),
                expected=f"one of {', '.join(f'{v:g}' for v in self.levels_[:10])}",
            )
        return self.by_level_[level]

    def _details(self) -> dict[str, Any]:
        levels = zip(self.levels_.tolist(), self.by_level_.tolist(), strict=True)
        return {"by_level": {f"{rating:g}": p for rating, p in levels}}


class Given(FittedPropensity):
    """The log's own column `propensity`, for its pairs alone; nothing is estimated."""

    name = "given"

    def _fit(self, data: Exposure) -> None:
        if data.given is None or data.log is None:
            raise InputError(
                "no propensities were given",
                expected="a column `propensity` in the log",
                hint="Or choose a propensity that is estimated: two-way, cells, logistic.",
            )
        user, item = data.given_pairs or (data.log.user, data.log.item)
        self.n_items_ = data.counts.n_items
        key = user.astype(np.int64) * self.n_items_ + item
        self.key_, first = np.unique(key, return_index=True)
        self.value_ = data.given[first]

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        key = users.astype(np.int64) * self.n_items_ + items
        place = np.minimum(np.searchsorted(self.key_, key), self.key_.size - 1)
        unknown = self.key_[place] != key
        if unknown.any():
            raise InputError(
                f"no propensity was given for {int(unknown.sum()):,} of {key.size:,} pairs",
                found=f"codes {int(users[unknown][0])}, {int(items[unknown][0])}",
                expected="a propensity for every pair asked for",
                hint="Choose a propensity that is estimated.",
            )
        return self.value_[place]
