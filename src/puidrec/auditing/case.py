"""The rows an audit speaks from, as arrays: predictions of one or two models, outcomes, propensities, Γ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puidrec.auditing.envelope import Pairs

ROWS_PER_STRATUM = 200
MAX_STRATA = 50


@dataclass(frozen=True)
class Case:
    """Logged pairs with all that envelopes, tipping points and segments need of them."""

    user: np.ndarray
    item: np.ndarray
    outcome: np.ndarray
    """Ratings, or labels, in [0, 1]."""
    label: np.ndarray
    """1 where the protocol calls the rating positive, else 0."""
    model: np.ndarray
    """Predictions on the scale of the outcome."""
    against: np.ndarray | None
    propensity: np.ndarray
    log_gamma: np.ndarray
    """log Γ_ui by the Γ rule."""

    @property
    def name(self) -> str:
        """The quantity that decides: the gap of two models, or the loss of one."""
        return "model_loss" if self.against is None else "loss_gap"

    @cached_property
    def personal(self) -> bool:
        """Whether Γ_ui is above 1 anywhere."""
        return bool(self.log_gamma.max() > 1e-9)

    @cached_property
    def main(self) -> Pairs:
        """The pairs of that quantity."""
        return self.losses(self.model) if self.against is None else self.gaps

    @cached_property
    def gaps(self) -> Pairs:
        """Squared error of `against` minus that of `model`: above 0 where the model does better.

        Given the difference of the predictions the gap is linear in the rating, so that difference makes the strata.
        """
        assert self.against is not None  # noqa: S101 (asked for with two models only)
        value = (self.against - self.outcome) ** 2 - (self.model - self.outcome) ** 2
        return Pairs(value, self.propensity, strata(self.model - self.against))

    def losses(self, prediction: np.ndarray) -> Pairs:
        """Squared error of one model; strata of its predictions."""
        return Pairs((prediction - self.outcome) ** 2, self.propensity, strata(prediction))


def strata(known: np.ndarray, per_stratum: int = ROWS_PER_STRATUM, most: int = MAX_STRATA) -> np.ndarray:
    """Groups of about equal size by a number that is known of seen and unseen pairs alike; ties stay together.

    Few enough that a balance within each is estimated, not assumed: at least `per_stratum` rows on average.
    """
    n = int(np.clip(known.size // per_stratum, 1, most))
    sample = known if known.size <= 1_000_000 else known[:: known.size // 1_000_000 + 1]
    edges = np.unique(np.quantile(sample, np.arange(1, n) / n)) if n > 1 else np.zeros(0)
    codes: np.ndarray = np.searchsorted(edges, known, side="left").astype(np.uint8)
    return codes
