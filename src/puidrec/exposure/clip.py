"""The one place where propensities are clipped, and counted when they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from puidrec.errors import InputError

DEFAULT_LOW = 1e-6
"""A guard, not variance control: raise it (`low=0.01`) to cap the weights 1/p of an estimator."""


Values = TypeVar("Values", bound=Any)


def clip_values(p: Values, low: float, high: float = 1.0) -> Values:
    """Propensities moved into [low, high]: arrays, and tensors of a model that learns them."""
    return p.clip(low, high)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Clipped:
    """Propensities inside [low, high], and how many had to be moved there."""

    values: np.ndarray
    n_low: int
    n_high: int

    @property
    def share(self) -> float:
        """Share of the values that were moved; every report prints it."""
        return (self.n_low + self.n_high) / self.values.size if self.values.size else 0.0


def check_limits(low: float, high: float = 1.0) -> None:
    """Refuse limits under which a propensity could leave (0, 1]."""
    if not 0.0 < low <= high <= 1.0:
        raise InputError(
            "clipping limits out of range",
            found=f"[{low:g}, {high:g}]",
            expected="0 < low <= high <= 1",
            hint="Inverse propensity weights need p above 0.",
        )


def clip(p: np.ndarray, low: float = DEFAULT_LOW, high: float = 1.0) -> Clipped:
    """Move propensities into [low, high]; NaN is an error, since no limit could be right for it."""
    check_limits(low, high)
    values = np.asarray(p, dtype=np.float64)
    missing = int(np.isnan(values).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {values.size:,} propensities are not a number",
            expected="probabilities in (0, 1]",
            hint="Check the column or file they come from.",
        )
    n_low, n_high = int((values < low).sum()), int((values > high).sum())
    return Clipped(clip_values(values, low, high), n_low, n_high)
