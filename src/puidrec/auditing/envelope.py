"""Envelopes: what the mean of a quantity over all pairs D may be, if hidden confounding has strength Γ.

Of every logged pair there is a value z (an error, or the gap between two models) and a nominal propensity p, with odds
k = 1/p - 1. The true weight of the pair is w = 1 + k·l: the pair itself, which was seen, and k·l unseen ones like it,
where l is the likelihood ratio of unseen to seen given all that is known; Γ says 1/Γ <= l <= Γ. Three sets of weights:

box         every w in [a, b] = [1 + k/Γ, 1 + kΓ], whatever the others are; Σ w z over the nominal Σ 1/p
normalised  the same w, divided by what they themselves add up to (Hájek): Σ w z / Σ w
sharp       w in the box, and Σ k·l = Σ k within every stratum of what is known: likelihood ratios average to 1

Why the last is sharp: (r̂_A - r)² - (r̂_B - r)² is linear in the rating r, so given the predictions only the mean of
unseen ratings matters. Strata of the predictions hold these (nearly) constant; ordering a stratum by z then is ordering
it by r, and the extreme l gives Γ to the mass 1/(1 + Γ) at one end and 1/Γ to the rest: the quantile form, which for
two rating levels is [max(q/Γ, 1 - Γ(1 - q)), min(Γq, 1 - (1 - q)/Γ)]. For one model's loss z is taken as it is.
All three start at Γ = 1 from one point estimate, Σ z/p / Σ 1/p; the sharp set lies in both others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from puidrec.auditing.ladder import Ladder, Lifts
from puidrec.errors import InputError

Kind = Literal["box", "normalised", "sharp"]
KINDS: tuple[Kind, ...] = ("box", "normalised", "sharp")
End = Literal["low", "high"]
Strength = float | np.ndarray
"""Γ: one number, or one per pair."""


@dataclass(frozen=True)
class Interval:
    """Lowest and highest value."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """High minus low."""
        return self.high - self.low


@dataclass(frozen=True)
class Curve:
    """An envelope over a grid of strengths."""

    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """Values of logged pairs and what makes them speak for D; sorted when an envelope first needs it."""

    value: np.ndarray
    propensity: np.ndarray
    stratum: np.ndarray | None = None
    """Codes 0, 1, 2, …; None: all pairs in one stratum."""
    total: float | None = None
    """What box and sharp divide by; Σ 1/p where not given (|D|, for the plain IPS mean)."""

    def __post_init__(self) -> None:
        shapes = {np.shape(x) for x in (self.value, self.propensity, self.stratum) if x is not None}
        if len(shapes) != 1 or self.value.ndim != 1 or self.value.size == 0:
            raise InputError("values, propensities and strata must be vectors of one length, not empty", found=shapes)
        if not np.isfinite(self.value).all():
            raise InputError("values must be finite numbers", found="NaN or infinite values")
        if not ((self.propensity > 0.0) & (self.propensity <= 1.0)).all():
            raise InputError("propensity out of range", expected="in (0, 1]", hint="Clip the propensities first.")

    @cached_property
    def odds(self) -> np.ndarray:
        """k = 1/p - 1: unseen pairs that a seen one stands for."""
        k: np.ndarray = 1.0 / self.propensity.astype(np.float64) - 1.0
        return k

    @cached_property
    def nominal(self) -> float:
        """What envelopes divide by."""
        return float(self.value.size + self.odds.sum()) if self.total is None else self.total

    @cached_property
    def seen(self) -> float:
        """Σ z: the part that is known, whatever is hidden."""
        return float(self.value.sum(dtype=np.float64))

    @cached_property
    def signed(self) -> tuple[float, float]:
        """S₊ = Σ_{z>0} k z and S₋ = Σ_{z<0} k|z|: all that a box of one Γ depends on, beside Σ z."""
        moved = self.odds * self.value
        return float(moved[moved > 0.0].sum()), float((-moved[moved < 0.0]).sum())

    @property
    def point(self) -> float:
        """The estimate if nothing is hidden: Σ z/p over the total."""
        return (self.seen + float(self.odds @ self.value)) / self.nominal

    @cached_property
    def pooled(self) -> Ladder:
        """All pairs in order of z."""
        return Ladder.of(self.value, self.odds)

    @cached_property
    def stratified(self) -> Ladder:
        """Pairs in order of z within their stratum."""
        return self.pooled if self.stratum is None else self.pooled.by(self.stratum)


def box(pairs: Pairs, gamma: Strength = 1.0) -> Interval:
    """The extremes of Σ w z / total over w in [a, b]: each pair takes its own worst end."""
    if isinstance(gamma, np.ndarray):
        return _box(pairs, pairs.pooled.lifts(gamma))
    plus, minus = pairs.signed
    down, up = plus / gamma - minus * gamma, plus * gamma - minus / gamma
    return Interval((pairs.seen + down) / pairs.nominal, (pairs.seen + up) / pairs.nominal)


def normalised(pairs: Pairs, gamma: Strength = 1.0) -> Interval:
    """The extremes of Σ w z / Σ w over the box: a linear-fractional program, solved by a threshold on z.

    At the optimum λ, pairs with z above it take one end of the box and those below it the other; Dinkelbach's steps
    λ ← Σ w z / Σ w reach it exactly after a few look-ups in prefix sums.
    """
    return _normalised(pairs, pairs.pooled.lifts(gamma))


def sharp(pairs: Pairs, gamma: Strength = 1.0) -> Interval:
    """The extremes of Σ w z / total over the box with likelihood ratios that average to 1 in every stratum."""
    return _sharp(pairs, pairs.stratified.lifts(gamma))


def _box(pairs: Pairs, lifts: Lifts) -> Interval:
    """A threshold at 0: what is below it is raised for the low end, what is above it for the high one."""
    low, high = (
        (pairs.seen + float(lifts.base_z.sum()) + raised(0.0)[1]) / pairs.nominal
        for raised in (lifts.below, lifts.above)
    )
    return Interval(low, high)


def _normalised(pairs: Pairs, lifts: Lifts) -> Interval:
    base, base_z = pairs.value.size + float(lifts.base.sum()), pairs.seen + float(lifts.base_z.sum())

    def solve(raised: Callable[[float], tuple[float, float]], sign: float) -> float:
        level, better = base_z / base, -np.inf
        while sign * level > better:  # each step improves, until rounding is all that is left
            better = sign * level
            mass, mass_z = raised(level)
            level = (base_z + mass_z) / (base + mass)
        return sign * better

    return Interval(solve(lifts.below, -1.0), solve(lifts.above, 1.0))


def _sharp(pairs: Pairs, lifts: Lifts) -> Interval:
    low, high = ((pairs.seen + float(end.sum())) / pairs.nominal for end in lifts.balanced())
    return Interval(low, high)


def sharp_by_stratum(pairs: Pairs, gamma: Strength = 1.0, ladder: Ladder | None = None) -> Curve:
    """The sharp interval of the mean of z within every stratum; NaN where a stratum has no pair.

    ladder: the pairs sorted by their strata, where the caller has that already.
    """
    codes = np.zeros(pairs.value.size, np.int64) if pairs.stratum is None else pairs.stratum
    seen, unseen = np.bincount(codes, pairs.value), np.bincount(codes, pairs.odds)
    low, high = (ladder or pairs.stratified).lifts(gamma).balanced()
    size = np.bincount(codes) + unseen
    with np.errstate(invalid="ignore"):
        return Curve((seen + low) / size, (seen + high) / size)


ENVELOPES: dict[Kind, Callable[[Pairs, Strength], Interval]] = {"box": box, "normalised": normalised, "sharp": sharp}


def over_grid(pairs: Pairs, kind: Kind, grid: np.ndarray) -> Curve:
    """An envelope for every Γ of a grid, one number for all pairs."""
    return _curve([ENVELOPES[kind](pairs, checked(float(gamma))) for gamma in grid])


def over_kappa(pairs: Pairs, log_gamma: np.ndarray, kappas: np.ndarray) -> dict[Kind, Curve]:
    """All envelopes for the personalised shape Γ_ui^κ, for every κ of a grid: two passes over the pairs for each."""
    ladders = pairs.pooled, pairs.stratified
    ordered = [log_gamma[ladder.order] for ladder in ladders]
    found: dict[Kind, list[Interval]] = {kind: [] for kind in KINDS}

    def lifts(k: int, kappa: float) -> Lifts:
        return ladders[k].lifts_by(lambda part: personalised(ordered[k][part], kappa))

    for kappa in kappas:
        pooled = lifts(0, float(kappa))
        found["box"].append(_box(pairs, pooled))
        found["normalised"].append(_normalised(pairs, pooled))
        found["sharp"].append(_sharp(pairs, lifts(1, float(kappa))))
    return {kind: _curve(intervals) for kind, intervals in found.items()}


def personalised(log_gamma: np.ndarray, kappa: float) -> np.ndarray:
    """Γ_ui^κ."""
    if kappa < 0.0 or (log_gamma.size and log_gamma.min() < 0.0):
        raise InputError("κ and log Γ must not be negative", found=kappa, expected="κ >= 0, Γ >= 1")
    strength: np.ndarray = np.exp(kappa * log_gamma)
    return strength


def checked(gamma: float) -> float:
    """One Γ, finite and at least 1."""
    if not 1.0 <= gamma < np.inf:
        raise InputError("Γ out of range", found=gamma, expected="finite and at least 1")
    return gamma


def gamma_grid(limit: float, size: int = 41) -> np.ndarray:
    """Strengths from 1 to a limit, in equal steps of log Γ."""
    if not 1.0 < limit <= 1e6:
        raise InputError("Γ limit out of range", found=limit, expected="above 1, at most 1,000,000")
    grid: np.ndarray = np.geomspace(1.0, limit, size)
    grid[0], grid[-1] = 1.0, limit
    return grid


def _curve(intervals: list[Interval]) -> Curve:
    return Curve(np.array([i.low for i in intervals]), np.array([i.high for i in intervals]))
