"""`cells`: the rate of exposure per (user bin, item bin), shrunk towards what the two bins say
apart."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy.special import expit, logit

from puidrec.errors import InputError
from puidrec.exposure.base import DEFAULT_LOW, Exposure, FittedPropensity
from puidrec.exposure.solver import calibrating_shift
from puidrec.features.counts import ExposureCounts

PseudoCount = float | Literal["auto"]


def independent_rates(counts: ExposureCounts) -> np.ndarray:
    """Rates if the user bin and the item bin act apart: log-odds of row + column − overall, [user
    bins, item bins]."""
    seen, pairs = counts.cells, counts.pairs
    overall = (seen.sum() + 0.5) / (pairs.sum() + 1.0)
    row = logit((seen.sum(axis=1) + overall) / (pairs.sum(axis=1) + 1.0))
    column = logit((seen.sum(axis=0) + overall) / (pairs.sum(axis=0) + 1.0))
    log_odds = row[:, None] + column - logit(overall)
    rates: np.ndarray = expit(log_odds + calibrating_shift(log_odds, pairs, _total(counts)))
    return rates


def _total(counts: ExposureCounts) -> float:
    """Seen pairs to be expected; half a pair short of a full D, whose log-odds would be infinite."""
    return min(float(counts.n_observed), float(counts.pairs.sum()) - 0.5)


def overdispersion(counts: ExposureCounts, rates: np.ndarray) -> float:
    """ρ of a beta-binomial around `rates`, by moments: E χ² = Σ (1 + (n − 1)ρ) over the free cells;
    floored at 0."""
    rows, columns = counts.cells.shape
    free = max((rows - 1) * (columns - 1), 0)
    pairs = np.maximum(counts.pairs, 1.0)
    chi2 = (counts.cells - counts.pairs * rates) ** 2 / (pairs * rates * (1.0 - rates))
    surplus = float(chi2.sum()) - free
    return min(max(surplus / max(float((pairs - 1.0).sum()), 1.0), 0.0), 1.0) if free else 0.0


def smoothed_rates(
    counts: ExposureCounts, pseudo_count: PseudoCount = "auto"
) -> tuple[np.ndarray, float]:
    """(seen + k · independent rate) / (pairs + k), calibrated in the large, and the k used.

    k is in pairs of D. `auto` takes the empirical-Bayes value 1/ρ − 1: infinite when cells differ
    from independence no more than chance makes them.
    """
    prior = independent_rates(counts)
    if pseudo_count == "auto":
        rho = overdispersion(counts, prior)
        k = 1.0 / rho - 1.0 if rho > 0 else float("inf")
    elif isinstance(pseudo_count, int | float) and pseudo_count >= 0:
        k = float(pseudo_count)
    else:
        raise InputError(
            "pseudo_count out of range", found=pseudo_count, expected="a number >= 0, or 'auto'"
        )
    if k == float("inf"):
        return prior, k
    pairs = counts.pairs
    rate = np.where(
        pairs + k > 0, (counts.cells + k * prior) / np.maximum(pairs + k, 1e-300), prior
    )
    log_odds = logit(np.clip(rate, 1e-15, 1.0 - 1e-15))
    return expit(log_odds + calibrating_shift(log_odds, pairs, _total(counts))), k


class Cells(FittedPropensity):
    """Smoothed bin × bin rates: exposure as the features explain it, and nothing else."""

    name = "cells"

    def __init__(self, *, pseudo_count: PseudoCount = "auto", low: float = DEFAULT_LOW) -> None:
        super().__init__(low=low)
        self.pseudo_count = pseudo_count

    def _fit(self, data: Exposure) -> None:
        self.rates_, self.pseudo_count_ = smoothed_rates(data.counts, self.pseudo_count)
        self.user_bin_, self.item_bin_ = data.counts.user_bin, data.counts.item_bin

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        p: np.ndarray = self.rates_[self.user_bin_[users], self.item_bin_[items]]
        return p

    def _details(self) -> dict[str, Any]:
        return {
            "bins": list(self.rates_.shape),
            "pseudo_count": self.pseudo_count_ if np.isfinite(self.pseudo_count_) else "infinite",
        }
