"""Envelopes: what the mean of a quantity over all pairs D may be, if hidden confounding has
strength Γ; and the tipping point, the Γ at which the better model need no longer be the better one.

Of every logged pair there is a value z (an error, or the gap between two models) and a nominal
propensity p, with odds k = 1/p - 1. The pair was seen itself, and it stands for k unseen pairs like
it. If something hidden drove exposure, it stands for k·l of them instead: its true weight is w = 1
+ k·l, where l is the likelihood ratio of unseen to seen given all that is recorded, and Γ says 1/Γ
<= l <= Γ. Three sets of weights:

box         every w in [a, b] = [1 + k/Γ, 1 + kΓ], whatever the others are; Σ w z over Σ 1/p
normalised  the same w, divided by what they themselves add up to (Hájek): Σ w z / Σ w
sharp       w in the box, and Σ k·l = Σ k within every stratum of what is known: likelihood ratios
            average to 1

Why the last is sharp: (r̂_A - r)² - (r̂_B - r)² is linear in the rating r, so given the predictions
only the mean of unseen ratings matters. Strata of the predictions hold these (nearly) constant;
ordering a stratum by z then is ordering it by r, and the extreme l gives Γ to the mass 1/(1 + Γ) at
one end and 1/Γ to the rest: the quantile form, which for two rating levels is [max(q/Γ, 1 - Γ(1 -
q)), min(Γq, 1 - (1 - q)/Γ)]. For one model's loss z is taken as it is. All three start at Γ = 1
from one point estimate, Σ z/p / Σ 1/p; the sharp set lies in both others.

All extremes put the largest weights on one side of a threshold on z. Sorted once, with running
sums, the pairs answer for every Γ of a grid by looking such thresholds up.

Tipping. Gaps δ are oriented so that δ > 0 where the model does better. With T = Σδ, S₊ = Σ_{δ>0} kδ
and S₋ = Σ_{δ<0} k|δ|, the least favourable weights within Γ give T + S₊/Γ - S₋Γ, which is 0 at

    Γ* = (T + √(T² + 4 S₋S₊)) / (2 S₋).

Dividing by the weights' sum moves no sign, so box and normalised envelopes tip at the same Γ*; the
sharp one later. Γ* = 1: the weighted log shows no lead to begin with. Γ* = ∞: the model does better
on every pair. The interval of Γ* inverts a test: its lower end is the largest Γ at which the worst
case is still above 0 beyond chance, with users as independent clusters. A few users who carry all
of a lead do not make it certain: Student's quantile is taken with as many degrees of freedom as
users effectively contribute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import bisect

from puidrec.auditing.estimates import (
    Curve,
    End,
    Limits,
    limits,
    sums_by_user,
)
from puidrec.errors import InputError
from puidrec.evaluation.ranking import dense_codes
from puidrec.evaluation.significance import resampled_sums
from puidrec.rng import Rng, generator

Kind = Literal["box", "normalised", "sharp"]
KINDS: tuple[Kind, ...] = ("box", "normalised", "sharp")


class Interval(NamedTuple):
    """Lowest and highest value."""

    low: float
    high: float


@dataclass(frozen=True)
class Pairs:
    """Finite values and propensities above 0 of logged pairs; sorted once an envelope needs it."""

    value: np.ndarray
    propensity: np.ndarray
    stratum: np.ndarray | None = None
    """Codes 0, 1, 2, …; None: all pairs in one stratum."""

    @cached_property
    def odds(self) -> np.ndarray:
        """k = 1/p - 1: unseen pairs that a seen one stands for."""
        k: np.ndarray = 1.0 / self.propensity.astype(np.float64) - 1.0
        return k

    @cached_property
    def nominal(self) -> float:
        """Σ 1/p: what box and sharp divide by."""
        return float(self.value.size + self.odds.sum())

    @cached_property
    def seen(self) -> float:
        """Σ z: the part that is known, whatever is hidden."""
        return float(self.value.sum(dtype=np.float64))

    @cached_property
    def signed(self) -> tuple[float, float]:
        """S₊ = Σ_{z>0} k z and S₋ = Σ_{z<0} k|z|: with Σ z all that a box of one Γ depends on."""
        moved = self.odds * self.value
        return float(moved[moved > 0.0].sum()), float((-moved[moved < 0.0]).sum())

    @property
    def point(self) -> float:
        """The estimate if nothing is hidden: Σ z/p / Σ 1/p."""
        return (self.seen + float(self.odds @ self.value)) / self.nominal

    @cached_property
    def pooled(self) -> SortedPairs:
        """All pairs in order of z."""
        return SortedPairs.of(self.value, self.odds)

    @cached_property
    def stratified(self) -> SortedPairs:
        """Pairs in order of z within their stratum."""
        return self.pooled if self.stratum is None else self.pooled.by(self.stratum)


@dataclass(frozen=True)
class SortedPairs:
    """Pairs in ascending order of (stratum, z)."""

    order: np.ndarray
    """Position of each pair in the caller's arrays."""
    value: np.ndarray
    odds: np.ndarray
    edge: np.ndarray
    """Pairs of stratum s are edge[s] to edge[s + 1]."""

    @classmethod
    def of(cls, value: np.ndarray, odds: np.ndarray) -> SortedPairs:
        """All pairs in one stratum."""
        order = np.argsort(value).astype(np.int32 if value.size < 2**31 else np.int64)
        return cls(order, value[order].astype(np.float64), odds[order], np.array([0, value.size]))

    def by(self, stratum: np.ndarray) -> SortedPairs:
        """The same pairs by stratum (codes of the caller's rows), in each of which they keep their
        order."""
        size = np.bincount(stratum)
        small = (
            stratum.astype(np.uint16) if size.size <= 2**16 else stratum
        )  # 16 bits: a radix sort
        moved = np.argsort(small[self.order], kind="stable")
        edge = np.concatenate([[0], np.cumsum(size)])
        return SortedPairs(self.order[moved], self.value[moved], self.odds[moved], edge)

    @cached_property
    def nominal(self) -> tuple[np.ndarray, np.ndarray]:
        """Running Σ k and Σ k z: what the pairs weigh if nothing is hidden."""
        return running_sum(self.odds), running_sum(self.odds * self.value)

    def floor(self, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """Σ k/Γ and Σ k z/Γ of every stratum: every l at the lower end of [1/Γ, Γ]."""
        k, kz = (np.diff(sums[self.edge]) / gamma for sums in self.nominal)
        return k, kz

    def risen(self, gamma: float, *, high: bool) -> tuple[np.ndarray, np.ndarray]:
        """Which pairs of each stratum have l = Γ where l averages to 1, and all others l = 1/Γ:
        from which running Σ k to which.

        From Σ k/Γ back to Σ k takes Γ − 1/Γ times a share 1/(1 + Γ) of Σ k, at the smallest z for
        the lowest Σ k·l·z, at the largest z for the highest.
        """
        start, end = (self.nominal[0][edge] for edge in (self.edge[:-1], self.edge[1:]))
        share = (end - start) / (1.0 + gamma)
        return (end - share, end) if high else (start, start + share)

    def balanced(self, gamma: float, *, high: bool) -> np.ndarray:
        """Lowest or highest Σ k·l·z of each stratum whose l average to 1."""
        first, last = self.risen(gamma, high=high)
        moved: np.ndarray = np.interp(last, *self.nominal) - np.interp(first, *self.nominal)
        return self.floor(gamma)[1] + (gamma - 1.0 / gamma) * moved

    def thresholds(self, gamma: float, *, high: bool) -> np.ndarray:
        """The z at which l changes in each stratum: the multiplier of its balance; 0 in an empty
        stratum."""
        turn = self.risen(gamma, high=high)[0 if high else 1]
        at = np.searchsorted(self.nominal[0], turn, side="right") - 1
        start, last = self.edge[:-1], self.edge[1:] - 1
        level = self.value[np.clip(at, np.minimum(start, last), np.maximum(last, 0))]
        return np.where(last >= start, level, 0.0)


def running_sum(values: np.ndarray) -> np.ndarray:
    """0, v₀, v₀ + v₁, …"""
    sums = np.zeros(values.size + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def box(pairs: Pairs, gamma: float = 1.0) -> Interval:
    """The extremes of Σ w z / Σ 1/p over w in [a, b]: each pair takes its own worst end."""
    plus, minus = pairs.signed
    down, up = plus / gamma - minus * gamma, plus * gamma - minus / gamma
    return Interval((pairs.seen + down) / pairs.nominal, (pairs.seen + up) / pairs.nominal)


def normalised(pairs: Pairs, gamma: float = 1.0) -> Interval:
    """The extremes of Σ w z / Σ w over the box: a linear-fractional program, solved by a threshold
    on z.

    At the optimum λ, pairs with z above it take one end of the box and those below it the other;
    Dinkelbach's steps λ ← Σ w z / Σ w reach it exactly after a few look-ups in running sums.
    """
    ordered, rise = pairs.pooled, gamma - 1.0 / gamma
    base = np.array([pairs.value.size, pairs.seen]) + np.ravel(ordered.floor(gamma))

    def solve(side: Literal["left", "right"], sign: float) -> float:
        weighted, better = base, -np.inf
        while sign * (level := weighted[1] / weighted[0]) > better:  # until rounding is all
            better = sign * level
            at = int(np.searchsorted(ordered.value, level, side))
            ends = (at, 0) if side == "left" else (-1, at)
            weighted = base + rise * np.array([m[ends[0]] - m[ends[1]] for m in ordered.nominal])
        return float(sign * better)

    return Interval(solve("left", -1.0), solve("right", 1.0))


def sharp(pairs: Pairs, gamma: float = 1.0) -> Interval:
    """The extremes of Σ w z / Σ 1/p over the box with likelihood ratios that average to 1 in every
    stratum."""
    low, high = (
        (pairs.seen + float(pairs.stratified.balanced(gamma, high=high).sum())) / pairs.nominal
        for high in (False, True)
    )
    return Interval(low, high)


def sharp_by_stratum(pairs: Pairs, gamma: float = 1.0) -> Curve:
    """The sharp interval of the mean of z within every stratum; NaN where a stratum has no pair."""
    codes = np.zeros(pairs.value.size, np.int64) if pairs.stratum is None else pairs.stratum
    seen, unseen = np.bincount(codes, pairs.value), np.bincount(codes, pairs.odds)
    low, high = (pairs.stratified.balanced(gamma, high=high) for high in (False, True))
    size = np.bincount(codes) + unseen
    with np.errstate(invalid="ignore"):
        return Curve((seen + low) / size, (seen + high) / size)


ENVELOPES: dict[Kind, Callable[[Pairs, float], Interval]] = {
    "box": box,
    "normalised": normalised,
    "sharp": sharp,
}


def over_grid(pairs: Pairs, kind: Kind, grid: np.ndarray) -> Curve:
    """An envelope for every Γ of a grid, one number for all pairs."""
    return Curve(*np.array([ENVELOPES[kind](pairs, float(gamma)) for gamma in grid]).T)


def gamma_grid(limit: float, size: int = 41) -> np.ndarray:
    """Strengths from 1 to a limit, in equal steps of log Γ."""
    if not 1.0 < limit <= 1e6:
        raise InputError("Γ limit out of range", found=limit, expected="above 1, at most 1,000,000")
    grid: np.ndarray = np.geomspace(1.0, limit, size)
    grid[0], grid[-1] = 1.0, limit
    return grid


def sums_of_users(
    pairs: Pairs, kind: Kind, strengths: np.ndarray, user: np.ndarray, end: End
) -> tuple[np.ndarray, np.ndarray]:
    """Numerators of every user, [users, strengths], and denominators, [users, strengths or 1]:
    their totals' ratio is that end of an envelope at each strength."""
    code = dense_codes(user)[1]
    z, k = pairs.value, pairs.odds
    up = strengths if end == "high" else 1.0 / strengths
    if kind == "sharp":
        tops = np.stack([np.bincount(code, row) for row in _sharp_rows(pairs, strengths, end)], 1)
        return tops, np.bincount(code, 1.0 + k)[:, None]
    cut = [getattr(normalised(pairs, g), end) if kind == "normalised" else 0.0 for g in strengths]
    cuts, at = np.unique(cut, return_inverse=True)
    # the number of cuts that a row lies beyond, where l is `up`; 1 / up elsewhere
    cell = np.searchsorted(cuts, z, side="left" if end == "high" else "right")
    cell += code * (cuts.size + 1)

    def weighted(values: np.ndarray) -> np.ndarray:
        by_cell = np.bincount(cell, values, minlength=seen.size * (cuts.size + 1))
        beyond = np.cumsum(by_cell.reshape(seen.size, -1)[:, ::-1], axis=1)[:, ::-1]
        lifted: np.ndarray = beyond[:, :1] / up + beyond[:, at + 1] * (up - 1.0 / up)
        return lifted

    seen, known = np.bincount(code), np.bincount(code, z)[:, None]
    size = weighted(k) if kind == "normalised" else np.bincount(code, k)[:, None]
    return known + weighted(k * z), seen[:, None] + size


def _sharp_rows(pairs: Pairs, strengths: np.ndarray, end: End) -> Iterator[np.ndarray]:
    """What each row adds to an end of the sharp envelope, strength by strength: thresholds differ
    by stratum."""
    z, k = pairs.value, pairs.odds
    for gamma in strengths:
        levels = pairs.stratified.thresholds(gamma, high=end == "high")
        level = levels[0] if pairs.stratum is None else levels[pairs.stratum]
        beyond = z - level  # where it is 0 the ratio does not count: one side serves both ends
        up = gamma if end == "high" else 1.0 / gamma
        ratio = np.where(beyond > 0.0, up, 1.0 / up)
        yield z + k * (level + beyond * ratio)


def band(
    pairs: Pairs,
    kind: Kind,
    strengths: np.ndarray,
    user: np.ndarray,
    replicates: int,
    level: float = 0.95,
    rng: Rng = 0,
) -> Curve:
    """The band of an envelope over resampled users, for all strengths at once
    (`simultaneous_band`).

    A replicate would sort its own rows; by the envelope theorem that is not needed. The thresholds
    of the whole sample are kept, and only the users' sums behind them are drawn again: wrong by the
    square of the sampling error only. For the sharp set the multipliers of the balance are kept
    (its dual), which errs outwards.
    """

    def drawn(end: End) -> tuple[np.ndarray, np.ndarray]:
        sums = np.concatenate(sums_of_users(pairs, kind, strengths, user, end), axis=1)
        draws = resampled_sums(sums, replicates, generator(rng, "band"))
        both = np.vstack([sums.sum(axis=0), draws])
        ends = both[:, : strengths.size] / both[:, strengths.size :]
        return ends[0], ends[1:]

    return simultaneous_band(drawn("low"), drawn("high"), level)


def simultaneous_band(
    low: tuple[np.ndarray, np.ndarray], high: tuple[np.ndarray, np.ndarray], level: float
) -> Curve:
    """A band that holds both ends of an envelope over the whole axis of Γ at once, with the level's
    probability.

    low, high: the end over the axis, and the same of resampled users, [replicates, strengths]. Each
    end has its own standard error at every strength; the factor by which these are multiplied
    (sup-t) is the level's quantile of the largest standardised deviation outwards, over all
    strengths and both ends.
    """
    deviations, errors = [], []
    for (centre, values), outwards in ((low, -1.0), (high, 1.0)):
        error = values.std(axis=0)
        errors.append(error)
        moved = outwards * (values - centre)
        deviations.append(
            np.divide(moved, error, out=np.zeros_like(moved), where=error > 0.0).max(axis=1)
        )
    factor = float(np.quantile(np.maximum(*deviations), level, method="higher"))
    return Curve(low[0] - factor * errors[0], high[0] + factor * errors[1])


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
    apart = first_zero(lambda gamma: sharp(pairs, gamma).low)
    sums = pairs.seen, plus, minus
    return Tipping(star, *tipping_interval(worst), worst(1.0), apart, sums)


def tipping_interval(worst: WorstCase) -> tuple[float, float]:
    """Between which Γ the worst case is neither above nor below 0 beyond chance; 1 where it is not
    above at Γ = 1."""
    return first_zero(lambda gamma: worst(gamma).low), first_zero(lambda gamma: worst(gamma).high)


def first_zero(curve: Callable[[float], float]) -> float:
    """The Γ at which a curve, above 0 at Γ = 1, first reaches 0; 1 where it is not above there, ∞
    where it never reaches it. It may be infinite on the way, so the bracket is halved."""
    grid = np.linspace(0.0, MAX_LOG, STEPS)
    below = next((at for at, x in enumerate(grid) if not curve(float(np.exp(x))) > 0.0), None)
    if below is None:
        return float("inf")
    if below == 0:
        return 1.0

    def sign(log_gamma: float) -> float:
        return 1.0 if curve(float(np.exp(log_gamma))) > 0.0 else -1.0

    return float(np.exp(bisect(sign, grid[below - 1], grid[below], xtol=1e-12)))


def tipping_of(worst: WorstCase, lead: Limits) -> Tipping:
    """Γ* of a quantity without a closed form, from its worst case; lead: its estimate if nothing is
    hidden."""
    return Tipping(first_zero(lambda gamma: worst(gamma).value), *tipping_interval(worst), lead)
