"""The tipping point: how strong must what is hidden be before the better model need no longer be the better one?

Gaps δ are oriented so that δ > 0 where the model does better. With k = 1/p - 1, T = Σδ, S₊ = Σ_{δ>0} kδ and
S₋ = Σ_{δ<0} k|δ|, the least favourable weights within Γ give T + S₊/Γ - S₋Γ, which is 0 at

    Γ* = (T + √(T² + 4 S₋S₊)) / (2 S₋).

Dividing by the weights' sum moves no sign, so box and normalised envelopes tip at the same Γ*; the sharp one later.
Γ* = 1: the weighted log shows no lead to begin with. Γ* = ∞: the model does better on every pair.

The interval of Γ* inverts a test: its lower end is the largest Γ at which the worst case is still above 0 beyond
chance, with users as independent clusters. A few users who carry all of a lead do not make it certain: Student's
quantile is taken with as many degrees of freedom as users effectively contribute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from puidrec.auditing.envelope import Pairs, sharp
from puidrec.auditing.estimates import BOOTSTRAP, Bootstrap, Limits, limits, sums_by_user
from puidrec.evaluation.significance import resampled_sums
from puidrec.rng import generator

MAX_GAMMA = 1e6
"""A Γ* beyond this is called infinite."""
MAX_LOG = float(np.log(MAX_GAMMA))
STEPS = 24
"""Points of log Γ between which a limit is bracketed."""
WorstCase = Callable[[float], Limits]
"""Γ → the least favourable value of a lead, with its confidence limits."""


@dataclass(frozen=True)
class Tipping:
    """Γ* with its interval, the lead if nothing is hidden, and the Γ* of the sharp set; infinite values are `inf`."""

    gamma: float
    low: float
    high: float
    lead: Limits
    """The mean gap over all pairs at Γ = 1."""
    sharp: float | None = None
    sums: tuple[float, float, float] | None = None
    """T, S₊ and S₋ of the closed form, where there is one."""
    kappa: tuple[float, float, float] | None = None
    """κ* at which Γ_ui^κ tips the comparison, with its interval, where Γ differs from pair to pair."""


@dataclass(frozen=True)
class PersonalTipping:
    """κ* at which Γ_ui^κ tips the comparison, with its interval; 0 where it is tipped to begin with."""

    kappa: float
    low: float
    high: float


def tipping_gamma(T: np.ndarray, S_plus: np.ndarray, S_minus: np.ndarray) -> np.ndarray:
    """Γ* from the three sums, elementwise; 1 where the weighted log shows no lead, or where no pair differs."""
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
    own = sums_by_user(user, pairs.value, np.maximum(moved, 0.0), np.maximum(-moved, 0.0)).T / pairs.nominal

    def worst(gamma: float) -> Limits:
        return limits(own[0] + own[1] / gamma - own[2] * gamma, level)

    star = float(tipping_gamma(*(np.array(x) for x in (pairs.seen, plus, minus))))
    low, high = tipping_interval(worst)
    return Tipping(star, low, high, worst(1.0), sharp_tipping(pairs), (pairs.seen, plus, minus))


def tipping_interval(worst: WorstCase) -> tuple[float, float]:
    """Between which Γ the worst case is neither above nor below 0 beyond chance; 1 where it is not above at Γ = 1."""
    low, high = (
        first_zero(lambda log_gamma, end=end: worst(float(np.exp(log_gamma)))[end])  # type: ignore[misc]
        for end in (1, 2)
    )
    return low, high


def first_zero(curve: Callable[[float], float]) -> float:
    """The Γ at which a curve over log Γ, above 0 at the start, first reaches 0; 1 where it never was above, else ∞."""
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
    """Where a curve leaves the values above 0, between two points; it may be infinite there, so no secant."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if curve(middle) > 0.0 else (low, middle)
    return low


def tipping_of(worst: WorstCase, lead: Limits) -> Tipping:
    """Γ* of a quantity without a closed form, from its worst case; lead: its estimate if nothing is hidden."""
    star = first_zero(lambda log_gamma: worst(float(np.exp(log_gamma))).value)
    return Tipping(star, *tipping_interval(worst), lead)


def sharp_tipping(pairs: Pairs) -> float:
    """Γ at which the sharp envelope reaches 0: a root on log Γ; 1 where the log shows no lead."""
    if pairs.point <= 0.0:
        return 1.0

    def lowest(log_gamma: float) -> float:
        return sharp(pairs, float(np.exp(log_gamma))).low

    if lowest(MAX_LOG) > 0.0:
        return float("inf")
    return float(np.exp(brentq(lowest, 0.0, MAX_LOG, xtol=1e-12, rtol=1e-14)))


def tipping_kappa(
    pairs: Pairs, log_gamma: np.ndarray, user: np.ndarray | None = None, bootstrap: Bootstrap = BOOTSTRAP
) -> PersonalTipping:
    """κ* with T + Σ_{δ>0} kδ Γ_ui^-κ - Σ_{δ<0} k|δ| Γ_ui^κ = 0; infinite where Γ_ui = 1 leaves nothing to tip with.

    The sum falls as κ grows, so a bracket and a root suffice. Replicates take one Newton step from κ* each, by the
    users' own parts of the sum and of its slope.
    """
    moved = pairs.odds * pairs.value
    largest = float(log_gamma.max(initial=0.0))
    if pairs.seen + float(moved.sum()) <= 0.0:
        return PersonalTipping(0.0, 0.0, 0.0)

    worst = np.where(moved > 0.0, -log_gamma, log_gamma)

    def lowest(kappa: float) -> float:
        return pairs.seen + float(moved @ np.exp(kappa * worst))

    limit = MAX_LOG / largest if largest > 0.0 else 0.0
    if limit == 0.0 or lowest(limit) > 0.0:
        return PersonalTipping(float("inf"), float("inf"), float("inf"))
    star = float(brentq(lowest, 0.0, limit, xtol=1e-13, rtol=1e-14))
    if user is None or bootstrap.replicates == 0:
        return PersonalTipping(star, star, star)
    at = moved * np.exp(star * worst)
    sums = sums_by_user(user, pairs.value + at, np.abs(at) * log_gamma)
    value, fall = resampled_sums(sums, bootstrap.replicates, generator(bootstrap.rng, "tipping-kappa")).T
    return PersonalTipping(star, *percentiles(newton(star, value, fall), bootstrap.level))


def newton(kappa: float, value: np.ndarray, fall: np.ndarray) -> np.ndarray:
    """One step to the root of a falling function: up where it is still above 0; never below 0."""
    step = np.divide(value, fall, out=np.zeros_like(value), where=fall > 0.0)
    moved: np.ndarray = np.maximum(kappa + step, 0.0)
    return moved


def percentiles(draws: np.ndarray, level: float) -> tuple[float, float]:
    """The central share `level` of draws, some of which may be infinite: by order statistics, outward."""
    tail = (1.0 - level) / 2.0
    low = np.quantile(draws, tail, axis=0, method="lower")
    high = np.quantile(draws, 1.0 - tail, axis=0, method="higher")
    return float(low), float(high)
