"""Estimates over users: a value, what each user moves it by, and the confidence limits that follow.

Users are independent clusters. Sums and differences of estimates from the same users keep what they
have in common, since influences add up user by user.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from puidrec.evaluation.ranking import dense_codes

End = Literal["low", "high"]


@dataclass(frozen=True)
class Curve:
    """A range over a grid of strengths."""

    low: np.ndarray
    high: np.ndarray


class Limits(NamedTuple):
    """An estimate with its confidence limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A value and the influence of each user on it."""

    value: float
    influence: np.ndarray
    slack: float = 0.0
    """Variance that too few rows cannot show (a share of 0 or 1 has no spread)."""
    units: float | None = None
    """Users that it effectively rests on; None: as the influences say."""

    @property
    def variance(self) -> float:
        """Of the value, with users as clusters."""
        n = int(np.count_nonzero(self.influence))
        square = float(self.influence @ self.influence)
        return (square * n / (n - 1) if n > 1 else square) + self.slack

    @property
    def effective(self) -> float:
        """Users that it effectively rests on: (Σ|v|)² / Σv²."""
        if self.units is not None:
            return self.units
        square = float(self.influence @ self.influence)
        return float(np.abs(self.influence).sum()) ** 2 / square if square > 0.0 else np.inf

    def limits(self, level: float) -> Limits:
        """Two-sided, by Student's quantile; one user alone makes nothing certain."""
        variance, units = self.variance, self.effective
        if variance == 0.0:
            return Limits(self.value, self.value, self.value)
        if units <= 1.0 + 1e-9:
            return Limits(self.value, -np.inf, np.inf)
        reach = quantile(level, round(min(units - 1.0, 1e6), 3)) * float(np.sqrt(variance))
        return Limits(self.value, self.value - reach, self.value + reach)

    def __add__(self, other: Estimate | float) -> Estimate:
        if not isinstance(other, Estimate):
            return Estimate(self.value + other, self.influence, self.slack, self.units)
        parts = [(one.variance, one.effective) for one in (self, other)]
        below = sum(v**2 / u for v, u in parts if v > 0.0)
        units = (
            sum(v for v, _ in parts) ** 2 / below if below > 0.0 else np.inf
        )  # Welch and Satterthwaite
        return Estimate(
            self.value + other.value,
            self.influence + other.influence,
            self.slack + other.slack,
            units,
        )

    def __mul__(self, factor: float) -> Estimate:
        return Estimate(
            factor * self.value, factor * self.influence, factor**2 * self.slack, self.units
        )

    __rmul__ = __mul__

    def __sub__(self, other: Estimate) -> Estimate:
        return self + other * -1.0


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
    """Σ numerator / Σ denominator of users' sums, linearised."""
    total = float(denominator.sum())
    value = float(numerator.sum()) / total
    return Estimate(value, (numerator - value * denominator) / total)


def limits(value: np.ndarray, level: float) -> Limits:
    """The sum of users' values with its limits; few users that matter count as few."""
    total, square = float(value.sum()), float(value @ value)
    if square == 0.0:
        return Limits(0.0, 0.0, 0.0)
    effective = float(np.abs(value).sum()) ** 2 / square
    if effective <= 1.0 + 1e-9:
        return Limits(total, -np.inf, np.inf)
    return Estimate(total, value - total / value.size, 0.0, effective).limits(level)


@lru_cache(maxsize=4096)
def quantile(level: float, degrees: float) -> float:
    """Student's two-sided quantile."""
    return float(stdtrit(degrees, 0.5 + level / 2.0))


def sums_by_user(user: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Σ of each value over the rows of every user that has some, [users, values]."""
    code = dense_codes(user)[1]
    return np.stack([np.bincount(code, value) for value in values], axis=1)
