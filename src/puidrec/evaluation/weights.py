"""What inverse propensities do to a sample of rows: how many rows it is worth, and how thin its
support is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from puidrec.errors import InputError


@dataclass(frozen=True)
class Weights:
    """What inverse propensities do to a sample of rows."""

    rows: int
    effective_rows: float
    """(Σ w)² / Σ w²: equally weighted rows that would be as precise."""
    smallest: float
    """The smallest propensity: pairs below it are not represented."""
    largest_share: float
    """Share of all weight that the heaviest row has."""

    @classmethod
    def of(cls, propensity: np.ndarray) -> Weights:
        """From the propensities of rows; refused where they are all one, for then weighting changes
        nothing."""
        p = propensity.astype(np.float64)
        if p.size > 1 and float(p.max() - p.min()) <= 1e-12 * float(p.max()):
            raise InputError(
                "the propensity is a constant: weighting by it changes nothing",
                found=f"{p[0]:.3g} in all {p.size:,} rows",
                hint="Leave propensity out, or fit one that tells pairs apart (two-way, logistic).",
            )
        w = 1.0 / p
        return cls(
            p.size, float(w.sum() ** 2 / np.sum(w**2)), float(p.min()), float(w.max() / w.sum())
        )

    def __str__(self) -> str:
        return (
            f"weighted: {self.rows:,} rows worth {self.effective_rows:,.0f} equal ones, smallest propensity "
            f"{self.smallest:.3g}, heaviest row {self.largest_share:.1%} of all weight"
        )
