"""Exposure residuals: how much more or less users and items were exposed than their features say,
and a Γ from them.

A hidden trait that drives exposure makes its owner seen more, or less, than features predict; the
`two-way` effects measure that. How strong such traits are differs between entities, and the log
says where: the variance of residuals is fitted to their squares as a sum of a constant, a part that
grows with what features tell about the entity (the paper's proportionality), and a part for each
field that some entities left empty (the paper's completeness). The posterior of a pair's residual
gives its Γ (`PosteriorGamma`): large where user or item was exposed unlike its features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from scipy.special import chndtrix, logit

from puidrec.exposure.additive import MIN_VARIANCE, TwoWayEffects, effect_variance
from puidrec.exposure.base import ExposureCounts
from puidrec.exposure.bounds import Gamma, bin_max, bin_mean, require_pairs
from puidrec.exposure.entropy import bernoulli_kl
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.rates import smoothed_rates

Around = Literal["features", "cells"]
"""The nominal propensity that the residuals are relative to."""
Spread = Literal["fitted", "even"]
"""Whether the variance of residuals is fitted to gain and completeness, or one for all entities."""
VARIANCE_ROUNDS = 4
CURVE_STEPS = 1024
"""Resolution of the tabulated quantile."""
MAX_FIELDS = 30
"""Fields with missing values that may have a variance of their own."""
SAMPLE = 64
"""Partners over which the mean Γ of an entity is taken, since it has no closed form."""


@dataclass(frozen=True)
class Levels:
    """Log-odds of exposure of one side's entities as the log shows them, before any shrinkage."""

    value: np.ndarray
    """Level of each entity, or its gap to its bin's."""
    noise: np.ndarray
    """Sampling variance of `value`."""


@dataclass(frozen=True)
class Residual:
    """Posterior of one side's hidden log-odds shift."""

    mean: np.ndarray
    variance: np.ndarray
    prior: np.ndarray
    """Variance of traits among entities like this one: how much could be hidden at all."""


def unshrunk(
    effect: np.ndarray, variance: np.ndarray, ridge: float, level: np.ndarray | float = 0.0
) -> Levels:
    """Undo the common shrinkage of two-way effects: from posterior and prior precision to estimate
    and noise."""
    kept = np.maximum(1.0 - ridge * variance, 1e-6)
    return Levels(effect / kept + level, variance / kept)


def fitted_level(levels: Levels, design: np.ndarray | None, bins: np.ndarray) -> np.ndarray:
    """E[level | features]: weighted ridge regression on the design, or the mean of the bin without
    one."""
    overall = effect_variance(levels.value - levels.value.mean(), levels.noise)
    weight = 1.0 / (overall + levels.noise)
    if design is None:
        mean = np.bincount(bins, weight * levels.value) / np.maximum(
            np.bincount(bins, weight), 1e-300
        )
        return mean[bins]
    centred = design - np.average(design, axis=0, weights=weight)
    gram = (centred * weight[:, None]).T @ centred
    penalty = weight.mean() * np.maximum(
        centred.var(axis=0), 1e-12
    )  # one average entity per column
    slope = np.linalg.solve(gram + np.diag(penalty), (centred * weight[:, None]).T @ levels.value)
    return np.average(levels.value, weights=weight) + centred @ slope


def local_gain(fitted: np.ndarray, rate: float) -> np.ndarray:
    """KL of each entity's exposure rate given features to the average one, relative to its mean; 0
    if there is none."""
    ratio = np.exp(fitted - fitted.max())
    own = np.minimum(rate * ratio / max(ratio.mean(), 1e-300), 1.0 - 1e-9)
    gain = bernoulli_kl(own, min(rate, 1.0 - 1e-9))
    mean = float(gain.mean())
    return gain / mean if mean > 1e-12 else np.zeros_like(gain)


def shrunk_residual(
    gap: Levels, gain: np.ndarray | None = None, missing: np.ndarray | None = None
) -> Residual:
    """Shrink residuals by a prior variance fitted to their squares: large where those of similar
    entities are large."""
    prior = _variance(gap, _components(gap.value.size, gain, missing))
    share = prior / (prior + gap.noise)
    return Residual(gap.value * share, gap.noise * share, prior)


def _components(n: int, gain: np.ndarray | None, missing: np.ndarray | None) -> np.ndarray:
    """Non-negative parts a variance may be made of: constant; gain and its square; fields empty,
    fields filled."""
    parts = [np.ones(n)]
    if gain is not None:
        capped = np.minimum(gain, np.quantile(gain, 0.95))
        parts.extend([capped, capped**2])
    if missing is not None:
        empty = missing[:, :MAX_FIELDS].astype(np.float64)
        parts.extend([*empty.T, *(1.0 - empty).T])
    return np.stack(parts, axis=1)


def _variance(gap: Levels, components: np.ndarray) -> np.ndarray:
    """Fit E[gap² - noise] = components @ c, c >= 0, weighted by the variance of a squared
    normal."""
    from scipy.optimize import nnls  # takes long to import; most methods do without

    target = gap.value**2 - gap.noise
    prior = np.full(target.size, effect_variance(gap.value, gap.noise))
    for _ in range(VARIANCE_ROUNDS):
        weight = 1.0 / (prior + gap.noise)
        scaled = components * weight[:, None]
        # normal equations keep it small: k columns instead of n rows
        gram, moment = scaled.T @ scaled, scaled.T @ (weight * target)
        root = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) * np.eye(gram.shape[0]))
        coefficient, _ = nnls(root.T, np.linalg.solve(root, moment))
        prior = np.maximum(components @ coefficient, MIN_VARIANCE)
    return prior


def folded_quantile(mean: np.ndarray, deviation: np.ndarray, level: float) -> np.ndarray:
    """The smallest g with P(|X| <= g) >= level for X ~ N(mean, deviation²); |mean| where deviation
    is 0."""
    curve, size = _quantile_curve(level), np.abs(mean)
    safe = np.maximum(deviation, 1e-9)
    nearest = np.minimum(size / safe * CURVE_STEPS, curve.size - 1).astype(np.int32)
    return size + safe * curve[nearest]


@lru_cache
def _quantile_curve(level: float) -> np.ndarray:
    """g - |mean| for deviation 1 and |mean| in 0..4, from X² ~ χ² with one degree of freedom and
    non-centrality mean²; beyond 4 the far tail no longer matters."""
    ratio = (np.arange(4 * CURVE_STEPS) + 0.5) / CURVE_STEPS
    return np.sqrt(chndtrix(level, 1.0, ratio**2)) - ratio


def exposure_residuals(
    evidence: Evidence, around: Around, spread: Spread = "fitted"
) -> tuple[Residual, Residual]:
    """What users and items show beyond their features: s_u - E[s|x_u] and t_i - E[t|x_i], shrunk.

    Around `cells`, E[·|x] is the level of the bin, so features too fine for bins count as hidden;
    else it is a regression on every feature. `spread`: whether the variance of traits is fitted to
    gain and completeness or even.
    """
    counts, effects = evidence.counts, evidence.two_way
    row = effects.cell_logit @ (counts.items_in_bin / counts.n_items)
    column = (counts.users_in_bin / counts.n_users) @ effects.cell_logit
    sides = (
        (effects.user_effect, effects.user_variance, effects.ridge.user, row, counts.user_bin),
        (effects.item_effect, effects.item_variance, effects.ridge.item, column, counts.item_bin),
    )
    found = []
    for k, (effect, variance, ridge, table, bins) in enumerate(sides):
        levels = unshrunk(effect, variance, ridge, table[bins])
        fitted = fitted_level(levels, evidence.designs[k], bins)
        centre = table[bins] if around == "cells" else fitted
        gap = Levels(levels.value - centre, levels.noise)
        gain = local_gain(fitted, counts.rate)
        even = spread == "even"
        found.append(
            shrunk_residual(gap) if even else shrunk_residual(gap, gain, evidence.missing[k])
        )
    return found[0], found[1]


def pair_shift(
    evidence: Evidence, around: Around, spread: Spread = "fitted"
) -> tuple[np.ndarray, Residual, Residual]:
    """The posterior of a pair's shift from the nominal propensity: logit p_true − logit p is
    cell[B_u, B_i] + user trait + item trait.

    `features`: p averages over traits, and a trait of variance v lifts that average: an entity
    without any sits about v/2 below p. `cells`: p is the rate of the cell.
    """
    user, item = exposure_residuals(evidence, around, spread)
    if around == "cells":
        return cell_shift(evidence.two_way, evidence.counts), user, item
    user, item = (replace(side, mean=side.mean - 0.5 * side.prior) for side in (user, item))
    return np.zeros(evidence.counts.cells.shape), user, item


def cell_shift(effects: TwoWayEffects, counts: ExposureCounts) -> np.ndarray:
    """Log-odds of a typical pair of a cell minus those of the cell's rate, which averages over
    traits."""
    rate, _ = smoothed_rates(counts)
    return effects.cell_logit - logit(np.clip(rate, 1e-12, 1.0 - 1e-12))


@dataclass(frozen=True)
class PosteriorGamma(Gamma):
    """log Γ_ui: the `level` quantile of |shift| where shift ~ N(cell + user + item means, sum of
    their variances)."""

    cell: np.ndarray
    """Log-odds shift common to a cell, [user bins, item bins]."""
    user: Residual
    item: Residual
    level: float

    def log_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Log Γ from the posterior of the pair's shift."""
        require_pairs(users, items)
        cell = self.cell[self.user_bin[users], self.item_bin[items]]
        mean = cell + self.user.mean[users] + self.item.mean[items]
        deviation = np.sqrt(self.user.variance[users] + self.item.variance[items])
        return np.minimum(folded_quantile(mean, deviation, self.level), np.log(self.cap))

    def user_mean_log(self) -> np.ndarray:
        """Over items spread evenly over bins and means; exact where there are few."""
        return self._mean(
            np.arange(self.user_bin.size), _spread(self.item_bin, self.item.mean), by_user=True
        )

    def item_mean_log(self) -> np.ndarray:
        """Over users spread evenly over bins and means; exact where there are few."""
        return self._mean(
            np.arange(self.item_bin.size), _spread(self.user_bin, self.user.mean), by_user=False
        )

    def cell_mean_log(self) -> np.ndarray:
        """Over users and items spread evenly over each bin."""
        users, items = (_spread(b, t.mean, per_bin=16) for b, t in self._sides())
        size = tuple(int(b.max()) + 1 for b, _ in self._sides())
        key = self.user_bin[users][:, None] * size[1] + self.item_bin[items][None]
        value = self.log_at(*(axis.ravel() for axis in np.meshgrid(users, items, indexing="ij")))
        return bin_mean(value, key.ravel(), size[0] * size[1]).reshape(size)

    @cached_property
    def max(self) -> float:
        """An upper limit: the extreme means and the largest variances of each cell together, or the
        cap."""
        ends = []
        for sign in (1.0, -1.0):
            tops = [bin_max(sign * t.mean, b) for b, t in self._sides()]
            ends.append(sign * self.cell[: tops[0].size, : tops[1].size] + np.add.outer(*tops))
        variance = np.add.outer(*(bin_max(t.variance, b) for b, t in self._sides()))
        filled = np.isfinite(variance)
        mean = np.maximum(*ends)[filled]
        return min(
            self.cap,
            float(np.exp(folded_quantile(mean, np.sqrt(variance[filled]), self.level).max())),
        )

    def _sides(self) -> tuple[tuple[np.ndarray, Residual], tuple[np.ndarray, Residual]]:
        return (self.user_bin, self.user), (self.item_bin, self.item)

    def _mean(self, own: np.ndarray, other: np.ndarray, *, by_user: bool) -> np.ndarray:
        parts = []
        for block in np.array_split(own, max(1, own.size * other.size // 2_000_000)):
            pair = np.repeat(block, other.size), np.tile(other, block.size)
            value = self.log_at(*pair) if by_user else self.log_at(*pair[::-1])
            parts.append(value.reshape(block.size, other.size).mean(axis=1))
        return np.concatenate(parts)


def _spread(bins: np.ndarray, value: np.ndarray, per_bin: int | None = None) -> np.ndarray:
    """Codes of entities spread evenly over the order (bin, value): `SAMPLE` in all, or some of
    every bin."""
    order: np.ndarray = np.lexsort((value, bins))
    if per_bin is None:
        take = min(SAMPLE, order.size)
        return order[((np.arange(take) + 0.5) * order.size / take).astype(np.int64)]
    size = np.bincount(bins)
    rank = np.arange(order.size) - (np.cumsum(size) - size)[bins[order]]
    step = np.maximum(size // per_bin, 1)[bins[order]]
    return order[rank % step == step // 2]
