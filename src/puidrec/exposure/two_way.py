"""`two-way`: logit p = m(x_u, x_i) + s_u + t_i, ridge on s and t, over all of D.

m is a table over bins and, where side tables exist, the linear feature scores of a logistic
regression, so that differences which bins are too coarse to show are not taken for a hidden trait.

A hidden confounder that belongs to the user or to the item is a fixed effect of exposure, so it can
be recovered from degrees; only what varies from pair to pair stays hidden. Cells and degrees are
sufficient statistics, so users of equal bin and degree share s, items likewise, and the fit works
on a small table of classes; neighbouring degrees share a class where it would grow too large.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, logit

from puidrec.exposure.additive import (
    TABLE_BUDGET,
    AdditiveProblem,
    ClassSide,
    Ridge,
    State,
    centred,
    feature_scores,
    minimise,
)
from puidrec.exposure.base import Exposure, ExposureCounts, FittedPropensity

OFFSET_LEVELS = 180
"""Levels that known offsets are cut into, all bins together (at least four in each)."""
MIN_VARIANCE, MAX_VARIANCE = 1e-5, 25.0
CELL_RIDGE = 1e-3
MAX_ROUNDS = 12
GRID, ZOOMS = 9, 9
"""Variances compared at a time, and how often the interval between the best one's neighbours is
looked at more closely: log v is found to 3e-5."""


@dataclass(frozen=True)
class Strata:
    """Entities by bin and, where part of their log-odds is known beforehand, by level of that
    offset within the bin."""

    of: np.ndarray
    """Stratum of each entity."""
    bin: np.ndarray
    offset: np.ndarray
    """Mean offset of each stratum."""

    @classmethod
    def build(cls, bins: np.ndarray, offset: np.ndarray | None = None) -> Strata:
        """Cut offsets at quantiles within each bin; equal offsets are never parted."""
        size = np.bincount(bins)
        if offset is None:
            return cls(bins, np.arange(size.size), np.zeros(size.size))
        levels = max(4, OFFSET_LEVELS // size.size)
        order = np.lexsort((offset, bins))
        sorted_bin, sorted_offset = bins[order].astype(np.int64), offset[order]
        new = np.concatenate([[True], (np.diff(sorted_bin) != 0) | (np.diff(sorted_offset) != 0)])
        first = np.maximum.accumulate(np.where(new, np.arange(order.size), 0))
        rank = first - (np.cumsum(size) - size)[sorted_bin]
        key = np.empty(order.size, np.int64)
        key[order] = sorted_bin * levels + rank * levels // size[sorted_bin]
        found, of, count = np.unique(key, return_inverse=True, return_counts=True)
        return cls(of, found // levels, np.bincount(of, weights=offset) / count)


@dataclass(frozen=True)
class DegreeClasses:
    """Entities by (stratum, degree), and these kinds grouped into classes of similar degree within
    a stratum."""

    strata: Strata
    kind_of: np.ndarray
    """Kind of each entity."""
    kind_stratum: np.ndarray
    kind_degree: np.ndarray
    kind_size: np.ndarray
    class_of: np.ndarray
    """Class of each kind."""

    @classmethod
    def build(cls, strata: Strata, degree: np.ndarray) -> DegreeClasses:
        """One class per kind."""
        width = int(degree.max()) + 1
        key = strata.of.astype(np.int64) * width + degree
        found, kind_of, size = np.unique(key, return_inverse=True, return_counts=True)
        return cls(
            strata,
            kind_of,
            found // width,
            found % width,
            size.astype(np.float64),
            np.arange(found.size),
        )

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.class_of[-1]) + 1

    def at_most(self, limit: int) -> DegreeClasses:
        """Group degrees in steps of equal ratio, the finest steps that leave at most `limit`
        classes."""
        grouped, step = self, 0.005
        while grouped.n_classes > limit and step < 50.0:
            level = np.floor(np.log1p(self.kind_degree) / step).astype(np.int64)
            key = self.kind_stratum * (int(level.max()) + 1) + level
            grouped = replace(self, class_of=np.unique(key, return_inverse=True)[1])
            step *= 1.25
        return grouped

    def side(self) -> ClassSide:
        """The classes as one side of the exposure model; degree totals are exact whatever the
        grouping."""
        size = np.bincount(self.class_of, weights=self.kind_size)
        observed = np.bincount(self.class_of, weights=self.kind_size * self.kind_degree)
        stratum = self._class_stratum()
        return ClassSide.of_members(
            size, observed, self.strata.bin[stratum], self.strata.offset[stratum]
        )

    def _class_stratum(self) -> np.ndarray:
        return self.kind_stratum[np.unique(self.class_of, return_index=True)[1]]

    def to_entities(self, values: np.ndarray) -> np.ndarray:
        """Values of classes to values of entities.

        A class's value belongs to its mean degree; other degrees are read off a monotone curve
        through the classes of the stratum, over log(1 + degree).
        """
        if self.n_classes == self.kind_size.size:
            return values[self.kind_of]
        # takes long to import; small logs do without
        from scipy.interpolate import PchipInterpolator

        side, of_class = self.side(), self._class_stratum()
        x, wanted = np.log1p(side.observed / side.size), np.log1p(self.kind_degree)
        read = np.empty(wanted.size)
        for stratum in np.unique(of_class):
            own, kinds = of_class == stratum, self.kind_stratum == stratum
            several = np.count_nonzero(own) > 1
            curve = PchipInterpolator(x[own], values[own]) if several else None
            read[kinds] = values[own][0] if curve is None else curve(wanted[kinds])
        return read[self.kind_of]


def fit_budget(
    users: DegreeClasses, items: DegreeClasses, budget: int = TABLE_BUDGET
) -> tuple[DegreeClasses, DegreeClasses]:
    """Group degrees so that the class table stays within the budget; the smaller side is kept whole
    if it can."""
    if users.n_classes * items.n_classes <= budget:
        return users, items
    root = int(budget**0.5)
    users = users.at_most(max(root, budget // items.n_classes))
    return users, items.at_most(budget // users.n_classes)


@dataclass(frozen=True)
class TwoWayEffects:
    """The fitted parts of logit p = cell_logit[bins] + offsets + user_effect + item_effect."""

    cell_logit: np.ndarray
    """m(x) as far as bins tell, [user bins, item bins]."""
    user_effect: np.ndarray
    """s_u, [users]: log-odds beyond the features, shrunk for sampling noise; sums to 0 within a
    user bin."""
    item_effect: np.ndarray
    """t_i, [items]."""
    user_variance: np.ndarray
    """What is still uncertain of s_u (posterior variance 1/(information + ridge)), [users]."""
    item_variance: np.ndarray
    user_bin: np.ndarray
    item_bin: np.ndarray
    ridge: Ridge
    """The ridges used; 1/ridge is the variance of the effects among entities."""
    user_offset: np.ndarray
    """The rest of m(x): the feature score of each user, 0 without."""
    item_offset: np.ndarray

    def logit(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Log-odds of exposure of pairs."""
        cell = self.cell_logit[self.user_bin[users], self.item_bin[items]]
        known = self.user_offset[users] + self.item_offset[items]
        return cell + known + self.user_effect[users] + self.item_effect[items]


def fit_two_way(
    counts: ExposureCounts,
    ridge: Ridge | None = None,
    *,
    user_offset: np.ndarray | None = None,
    item_offset: np.ndarray | None = None,
    budget: int = TABLE_BUDGET,
) -> TwoWayEffects:
    """Maximise the penalised likelihood of exposure over D = users × items.

    ridge: None takes empirical Bayes, 1/variance of the effects beyond what sampling explains, for
    users, items, and cells beyond row and column effects of bins. Offsets: log-odds of each user
    and item known beforehand (`feature_scores`), used to a few levels per bin.
    """
    user_strata = Strata.build(counts.user_bin, user_offset)
    item_strata = Strata.build(counts.item_bin, item_offset)
    users, items = fit_budget(
        DegreeClasses.build(user_strata, counts.user_degree),
        DegreeClasses.build(item_strata, counts.item_degree),
        budget,
    )
    overall = float(logit((counts.cells.sum() + 0.5) / (counts.pairs.sum() + 1.0)))
    problem = AdditiveProblem(users.side(), items.side(), counts.cells.astype(np.float64), overall)
    start = _start(problem, counts.pairs)
    fit = _fit_ridges(problem, start) if ridge is None else minimise(problem, start, ridge)
    point, state = fit
    used, (cell, user, item) = state.ridge, problem.split(point)
    return TwoWayEffects(
        cell,
        users.to_entities(user),
        items.to_entities(item),
        users.to_entities(1.0 / (state.user_information / problem.users.size + used.user)),
        items.to_entities(1.0 / (state.item_information / problem.items.size + used.item)),
        counts.user_bin,
        counts.item_bin,
        used,
        user_strata.offset[user_strata.of],
        item_strata.offset[item_strata.of],
    )


def _start(problem: AdditiveProblem, pairs: np.ndarray) -> np.ndarray:
    """Smoothed cell rates and log degree ratios: the Poisson solution, close where exposure is
    rare."""
    total, whole = problem.cells.sum(), pairs.sum()
    rate = (problem.cells + 10.0 * (total + 0.5) / (whole + 1.0)) / (pairs + 10.0)
    parts = [logit(np.clip(rate, 1e-9, 1 - 1e-9)).ravel()]
    for side in (problem.users, problem.items):
        mean = (side.by_bin @ side.observed) / (side.by_bin @ side.size)
        parts.append(np.log((side.observed / side.size + 1.0) / (mean[side.bin] + 1.0)))
    return np.concatenate(parts)


def _fit_ridges(problem: AdditiveProblem, point: np.ndarray) -> tuple[np.ndarray, State]:
    """Alternate the fit and the empirical-Bayes variances of its effects; the last fit is exact."""
    ridge = Ridge(1.0, 1.0, 1.0, CELL_RIDGE)
    for _ in range(MAX_ROUNDS - 1):
        point, state = minimise(problem, point, ridge, tolerance=1e-6)
        before, ridge = ridge, _effect_ridges(problem, point, state)
        if all(
            abs(np.log(a / b)) < 0.01 for a, b in zip(astuple(ridge), astuple(before), strict=True)
        ):
            break
    return minimise(problem, point, ridge)


def _effect_ridges(problem: AdditiveProblem, point: np.ndarray, state: State) -> Ridge:
    """1/variance of user effects, item effects and interactions at the current fit."""
    ridge, users, items = state.ridge, problem.users, problem.items
    cell, user, item = problem.split(point)
    parts = (
        (user, users.size / state.user_information, users.size, ridge.user),
        (item, items.size / state.item_information, items.size, ridge.item),
        (centred(cell), 1.0 / state.cell_information, 1.0, ridge.interaction),
    )
    user_ridge, item_ridge, interaction = (
        1.0 / effect_variance(s * (1.0 + lam * noise), noise, size) for s, noise, size, lam in parts
    )
    return Ridge(user_ridge, item_ridge, interaction, CELL_RIDGE)


def effect_variance(
    estimate: np.ndarray, noise: np.ndarray, size: np.ndarray | float = 1.0
) -> float:
    """Maximum likelihood variance v of effects seen through noise: estimate ~ N(0, v + noise),
    `size` times each.

    `estimate` is the unshrunk working value s + score/information. Effects no larger than their
    noise give the smallest variance, so that a ridge of 1/v removes them.
    """
    squares = estimate**2

    def deviance(v: float) -> float:
        spread = v + noise
        return float(np.sum(size * (np.log(spread) + squares / spread)))

    low, high = np.log(MIN_VARIANCE), np.log(MAX_VARIANCE)
    for _ in range(ZOOMS):  # SciPy's search takes longer to import than this takes
        grid = np.linspace(low, high, GRID)
        best = int(np.argmin([deviance(float(np.exp(log_v))) for log_v in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    return max(float(np.exp(grid[best])), MIN_VARIANCE)


class TwoWay(FittedPropensity):
    """Features through bins and linear scores, and an effect of every user and item."""

    name = "two-way"

    def _fit(self, data: Exposure) -> None:
        user, item = feature_scores(data)
        self.effects_ = fit_two_way(data.counts, user_offset=user, item_offset=item)

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return expit(self.effects_.logit(users, items))

    def _details(self) -> dict[str, Any]:
        ridge = self.effects_.ridge
        return {
            "user_effect_sd": ridge.user**-0.5 if ridge.user else None,
            "item_effect_sd": ridge.item**-0.5 if ridge.item else None,
        }
