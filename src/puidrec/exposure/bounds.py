"""Intervals of the inverse true propensity that a sensitivity Γ allows around a nominal propensity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from puidrec.errors import InputError


@dataclass(frozen=True)
class Bounds:
    """A box [a, b] of inverse propensities, 1 <= a <= b, one interval per pair; an invalid one
    cannot be built."""

    a: np.ndarray
    b: np.ndarray

    def __post_init__(self) -> None:
        if self.a.shape != self.b.shape:
            raise InputError("a and b must have one shape", found=(self.a.shape, self.b.shape))
        _require(
            np.isfinite(self.a) & (self.a >= 1.0), self.a, "lower bound", "finite and at least 1"
        )
        _require(np.isfinite(self.b), self.b, "upper bound", "finite")
        _require(
            self.a <= self.b, self.b - self.a, "upper minus lower bound", "not negative (a <= b)"
        )

    def contains(self, weight: np.ndarray) -> np.ndarray:
        """Whether inverse propensities lie in their interval, for coverage against a known truth."""
        tolerance = 1e-12 * self.b
        return (weight >= self.a - tolerance) & (weight <= self.b + tolerance)

    @property
    def log_width(self) -> np.ndarray:
        """log b - log a: 0 where Γ = 1."""
        width: np.ndarray = np.log(self.b) - np.log(self.a)
        return width


def bounds(propensity: np.ndarray, gamma: np.ndarray | float) -> Bounds:
    """The box of `eq:bound_ab` (one Γ) and `eq:aui_bui` (Γ per pair): a = 1 + (1/p - 1)/Γ, b = 1 +
    (1/p - 1)·Γ.

    It is the set of 1/p̃ whose odds differ from those of p by at most the factor Γ, either way.
    """
    p = np.asarray(propensity, np.float64)
    factor = np.asarray(gamma, np.float64)
    if factor.ndim and factor.shape != p.shape:
        raise InputError(
            "one Γ per propensity, or one for all", found=factor.shape, expected=f"{p.shape}"
        )
    _require((p > 0.0) & (p <= 1.0), p, "propensity", "in (0, 1]")
    _require(np.isfinite(factor) & (factor >= 1.0), factor, "Γ", "finite and at least 1")
    odds = 1.0 / p - 1.0
    return Bounds(1.0 + odds / factor, 1.0 + odds * factor)


def _require(valid: np.ndarray, values: np.ndarray, what: str, expected: str) -> None:
    """Refuse invalid values, saying how many there are and the smallest of them."""
    if valid.all():
        return
    wrong = np.atleast_1d(values)[~np.atleast_1d(valid)]
    smallest = "NaN" if np.isnan(wrong).all() else f"{np.nanmin(wrong):.6g}"
    raise InputError(
        f"invalid {what} in {wrong.size:,} of {valid.size:,} pairs",
        found=f"smallest {smallest}",
        expected=expected,
    )
