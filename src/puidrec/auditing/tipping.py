"""The tipping point: how strong must what is hidden be before the better model need no longer be
the better one?

Gaps δ are oriented so that δ > 0 where the model does better. With k = 1/p - 1, T = Σδ, S₊ =
Σ_{δ>0} kδ and S₋ = Σ_{δ<0} k|δ|, the least favourable weights within Γ give T + S₊/Γ - S₋Γ, which
is 0 at

    Γ* = (T + √(T² + 4 S₋S₊)) / (2 S₋).

Dividing by the weights' sum moves no sign, so box and normalised envelopes tip at the same Γ*; the
sharp one later. Γ* = 1: the weighted log shows no lead to begin with. Γ* = ∞: the model does better
on every pair.

The interval of Γ* inverts a test: its lower end is the largest Γ at which the worst case is still
above 0 beyond chance, with users as independent clusters. A few users who carry all of a lead do
not make it certain: Student's quantile is taken with as many degrees of freedom as users
effectively contribute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from puidrec.auditing.envelope import Pairs, sharp
from puidrec.auditing.estimates import Limits, limits, sums_by_user

MAX_GAMMA = 1e6
"""A Γ* beyond this is called infinite."""
MAX_LOG = float(np.log(MAX_GAMMA))
STEPS = 24
"""Points of log Γ between which a limit is bracketed."""
WorstCase = Callable[[float], Limits]
"""Γ → the least favourable value of a lead, with its confidence limits."""


@dataclass(frozen=True)
class Tipping:
    """Γ* with its interval, the lead if nothing is hidden, and the Γ* of the sharp set; infinite
    values are `inf`."""

    gamma: float
    low: float
    high: float
    lead: Limits
    """The mean gap over all pairs at Γ = 1."""
    sharp: float | None = None
    sums: tuple[float, float, float] | None = None
    """T, S₊ and S₋ of the closed form, where there is one."""


def tipping_gamma(T: np.ndarray, S_plus: np.ndarray, S_minus: np.ndarray) -> np.ndarray:
    """Γ* from the three sums, elementwise; 1 where the weighted log shows no lead, or where no pair
    differs."""
    root = np.sqrt(T**2 + 4.0 * S_minus * S_plus)
    with np.errstate(divide="ignore", invalid="ignore"):
        # the two forms are equal; each is used where it does not cancel
        gamma = np.where(T >= 0.0, (T + root) / (2.0 * S_minus), 2.0 * S_plus / (root - T))
    nothing = (T == 0.0) & (S_plus == 0.0) & (S_minus == 0.0)
    result: np.ndarray = np.where(nothing, 1.0, np.maximum(gamma, 1.0))
    return np.where(result > MAX_GAMMA, np.inf, result)


def tipping_point(pairs: Pairs, user: np.ndarray, level: float = 0.95) -> Tipping:
    """Γ* of the gaps in `pairs`, its interval over users, and the Γ* of the sharp set."""
    plus, minus = pairs.signed
    moved = pairs.odds * pairs.value
    own = (
        sums_by_user(user, pairs.value, np.maximum(moved, 0.0), np.maximum(-moved, 0.0)).T
        / pairs.nominal
    )

    def worst(gamma: float) -> Limits:
        return limits(own[0] + own[1] / gamma - own[2] * gamma, level)

    star = float(tipping_gamma(*(np.array(x) for x in (pairs.seen, plus, minus))))
    low, high = tipping_interval(worst)
    return Tipping(star, low, high, worst(1.0), sharp_tipping(pairs), (pairs.seen, plus, minus))


def tipping_interval(worst: WorstCase) -> tuple[float, float]:
    """Between which Γ the worst case is neither above nor below 0 beyond chance; 1 where it is not
    above at Γ = 1."""
    low, high = (
        first_zero(lambda log_gamma, end=end: worst(float(np.exp(log_gamma)))[end])  # type: ignore[misc]
        for end in (1, 2)
    )
    return low, high


def first_zero(curve: Callable[[float], float]) -> float:
    """The Γ at which a curve over log Γ, above 0 at the start, first reaches 0; 1 where it never
    was above, else ∞."""
    grid = np.linspace(0.0, MAX_LOG, STEPS)
    before = 0.0
    if not curve(0.0) > 0.0:
        return 1.0
    for at in grid[1:]:
        if not curve(float(at)) > 0.0:
            return float(np.exp(bisect(curve, before, float(at))))
        before = float(at)
    return float("inf")


def bisect(curve: Callable[[float], float], low: float, high: float) -> float:
    """Where a curve leaves the values above 0, between two points; it may be infinite there, so no
    secant."""
    for _ in range(40):  # far below what Γ* is printed with
        middle = 0.5 * (low + high)
        low, high = (middle, high) if curve(middle) > 0.0 else (low, middle)
    return low


def tipping_of(worst: WorstCase, lead: Limits) -> Tipping:
    """Γ* of a quantity without a closed form, from its worst case; lead: its estimate if nothing is
    hidden."""
    star = first_zero(lambda log_gamma: worst(float(np.exp(log_gamma))).value)
    return Tipping(star, *tipping_interval(worst), lead)


def sharp_tipping(pairs: Pairs) -> float:
    """Γ at which the sharp envelope reaches 0; 1 where the log shows no lead."""
    return first_zero(lambda log_gamma: sharp(pairs, float(np.exp(log_gamma))).low)
