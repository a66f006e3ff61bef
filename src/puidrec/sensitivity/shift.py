"""Traces of hidden traits: what users' and items' own exposure says beyond their features, and how surely.

A trait that nobody recorded but that drives exposure makes its owner seen more, or less, than features predict. The
`two-way` effects measure that. How strong traits are is not the same everywhere, and the log says where: their variance
is fitted to the squared gaps as a sum of a constant, a part that grows with what features tell about the entity (the
paper's proportionality), and a part for each field that some entities left empty (the paper's completeness).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtr

from puidrec.propensity.two_way import MIN_VARIANCE, effect_variance
from puidrec.sensitivity.entropy import bernoulli_kl

VARIANCE_ROUNDS = 4
CURVE_STEPS = 1024
"""Resolution of the tabulated quantile."""
MAX_FIELDS = 30
"""Fields with missing values that may have a variance of their own."""


@dataclass(frozen=True)
class Levels:
    """Log-odds of exposure of one side's entities as the log shows them, before any shrinkage."""

    value: np.ndarray
    """Level of each entity, or its gap to its bin's."""
    noise: np.ndarray
    """Sampling variance of `value`."""


@dataclass(frozen=True)
class Trace:
    """Posterior of one side's hidden log-odds shift."""

    mean: np.ndarray
    variance: np.ndarray
    prior: np.ndarray
    """Variance of traits among entities like this one: how much could be hidden at all."""

    def centred_at(self, mean: np.ndarray) -> Trace:
        """The same uncertainty around other means."""
        return replace(self, mean=mean)


def unshrunk(effect: np.ndarray, variance: np.ndarray, ridge: float, level: np.ndarray | float = 0.0) -> Levels:
    """Undo the common shrinkage of two-way effects: from posterior and prior precision to estimate and noise."""
    kept = np.maximum(1.0 - ridge * variance, 1e-6)
    return Levels(effect / kept + level, variance / kept)


def fitted_level(levels: Levels, design: np.ndarray | None, bins: np.ndarray) -> np.ndarray:
    """E[level | features]: weighted ridge regression on the design, or the mean of the bin without one."""
    overall = effect_variance(levels.value - levels.value.mean(), levels.noise, np.ones_like(levels.noise))
    weight = 1.0 / (overall + levels.noise)
    if design is None:
        mean = np.bincount(bins, weight * levels.value) / np.maximum(np.bincount(bins, weight), 1e-300)
        by_bin: np.ndarray = mean[bins]
        return by_bin
    centred = design - np.average(design, axis=0, weights=weight)
    gram = (centred * weight[:, None]).T @ centred
    penalty = weight.mean() * np.maximum(centred.var(axis=0), 1e-12)  # one average entity per column
    slope = np.linalg.solve(gram + np.diag(penalty), (centred * weight[:, None]).T @ levels.value)
    fitted: np.ndarray = np.average(levels.value, weights=weight) + centred @ slope
    return fitted


def local_gain(fitted: np.ndarray, rate: float) -> np.ndarray:
    """KL of each entity's exposure rate given features to the average one, relative to its mean; 0 if there is none."""
    ratio = np.exp(fitted - fitted.max())
    own = np.minimum(rate * ratio / max(ratio.mean(), 1e-300), 1.0 - 1e-9)
    gain = bernoulli_kl(own, min(rate, 1.0 - 1e-9))
    mean = float(gain.mean())
    relative: np.ndarray = gain / mean if mean > 1e-12 else np.zeros_like(gain)
    return relative


def trait_trace(gap: Levels, gain: np.ndarray | None = None, missing: np.ndarray | None = None) -> Trace:
    """Shrink gaps with a prior variance fitted to their squares; more could be hidden where more was."""
    prior = _variance(gap, _components(gap.value.size, gain, missing))
    share = prior / (prior + gap.noise)
    return Trace(gap.value * share, gap.noise * share, prior)


def _components(n: int, gain: np.ndarray | None, missing: np.ndarray | None) -> np.ndarray:
    """Non-negative parts a variance may be made of: constant; gain and its square; fields empty, fields filled."""
    parts = [np.ones(n)]
    if gain is not None:
        capped = np.minimum(gain, np.quantile(gain, 0.95))
        parts.extend([capped, capped**2])
    if missing is not None:
        empty = missing[:, :MAX_FIELDS].astype(np.float64)
        parts.extend([*empty.T, *(1.0 - empty).T])
    return np.stack(parts, axis=1)


def _variance(gap: Levels, components: np.ndarray) -> np.ndarray:
    """Fit E[gap² - noise] = components @ c, c >= 0, weighted by the variance of a squared normal."""
    target = gap.value**2 - gap.noise
    prior = np.full(target.size, effect_variance(gap.value, gap.noise, np.ones_like(target)))
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
    """The smallest g with P(|X| <= g) >= level for X ~ N(mean, deviation²); |mean| where deviation is 0."""
    curve, size = _quantile_curve(level), np.abs(mean)
    safe = np.maximum(deviation, 1e-9)
    nearest = np.minimum(size / safe * CURVE_STEPS, curve.size - 1).astype(np.int32)
    quantile: np.ndarray = size + safe * curve[nearest]
    return quantile


@lru_cache
def _quantile_curve(level: float) -> np.ndarray:
    """g - |mean| for deviation 1 and |mean| in 0..4, by bisection; beyond 4 the far tail no longer matters."""
    ratio = (np.arange(4 * CURVE_STEPS) + 0.5) / CURVE_STEPS
    low, high = np.zeros_like(ratio), ratio + 10.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = ndtr(middle - ratio) - ndtr(-middle - ratio) >= level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    curve: np.ndarray = high - ratio
    return curve
