"""Propensities that are counted or given, with nothing to solve for: `cells`, `naive-bayes` and
`given`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, logit

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, ExposureCounts, FittedPropensity

SMOOTHING = 1.0
"""Pseudo-ratings that `naive-bayes` spreads evenly over the rating levels."""


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
