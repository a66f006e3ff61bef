"""`two-way`: logit p = m(x_u, x_i) + s_u + t_i, ridge on s and t, over all of D.

m is a table over bins and, where side tables exist, the linear feature scores of a logistic
regression, so that differences which bins are too coarse to show are not taken for a hidden trait.

A hidden confounder that belongs to the user or to the item is a fixed effect of exposure, so it can
be recovered from degrees; only what varies from pair to pair stays hidden. Cells and degrees are
sufficient statistics, so users of equal bin and degree share s, items likewise, and the fit works
on a small table of classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import expit, logit

from puidrec.errors import InputError
from puidrec.exposure.base import DEFAULT_LOW, Exposure, FittedPropensity
from puidrec.exposure.logistic import feature_scores
from puidrec.exposure.solver import (
    TABLE_BUDGET,
    AdditiveProblem,
    ClassSide,
    DegreeClasses,
    Parameters,
    Ridge,
    State,
    Strata,
    centred,
    fit_budget,
    minimise,
)
from puidrec.features.counts import ExposureCounts

MIN_VARIANCE, MAX_VARIANCE = 1e-5, 25.0
CELL_RIDGE = 1e-3
MAX_ROUNDS = 12
GRID, ZOOMS = 9, 9
"""Variances compared at a time, and how often the interval between the best one's neighbours is
looked at more closely: log v is found to 3e-5."""

RidgeChoice = float | Literal["auto"]


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
        total: np.ndarray = cell + known + self.user_effect[users] + self.item_effect[items]
        return total


def fit_two_way(
    counts: ExposureCounts,
    ridge: RidgeChoice | tuple[float, float] = "auto",
    *,
    interaction_ridge: RidgeChoice = "auto",
    user_offset: np.ndarray | None = None,
    item_offset: np.ndarray | None = None,
    cell_ridge: float = CELL_RIDGE,
    budget: int = TABLE_BUDGET,
) -> TwoWayEffects:
    """Maximise the penalised likelihood of exposure over D = users × items.

    ridge: one number, (user, item), or `auto`: empirical Bayes, 1/variance of the effects beyond
    what sampling
    explains. interaction_ridge: the same for cells beyond row and column effects of bins. Offsets:
    log-odds of each user and item known beforehand (`logistic.feature_scores`), used to a few
    levels per bin.
    """
    n_user_bins, n_item_bins = counts.cells.shape
    user_strata = Strata.build(counts.user_bin, n_user_bins, user_offset)
    item_strata = Strata.build(counts.item_bin, n_item_bins, item_offset)
    users, items = fit_budget(
        DegreeClasses.build(user_strata, counts.user_degree),
        DegreeClasses.build(item_strata, counts.item_degree),
        budget,
    )
    overall = float(logit((counts.cells.sum() + 0.5) / (counts.pairs.sum() + 1.0)))
    problem = AdditiveProblem(users.side(), items.side(), counts.cells.astype(np.float64), overall)
    fixed = ridge if isinstance(ridge, tuple) else (ridge, ridge)
    point, state = _fit_ridges(
        problem, _start(problem, counts.pairs), (*fixed, interaction_ridge), cell_ridge
    )
    used = state.ridge
    return TwoWayEffects(
        point.cell,
        users.to_entities(point.user),
        items.to_entities(point.item),
        users.to_entities(1.0 / (state.user_information / problem.users.size + used.user)),
        items.to_entities(1.0 / (state.item_information / problem.items.size + used.item)),
        counts.user_bin,
        counts.item_bin,
        used,
        user_strata.offset[user_strata.of],
        item_strata.offset[item_strata.of],
    )


def _start(problem: AdditiveProblem, pairs: np.ndarray) -> Parameters:
    """Smoothed cell rates and log degree ratios: the Poisson solution, close where exposure is
    rare."""
    total, whole = problem.cells.sum(), pairs.sum()
    rate = (problem.cells + 10.0 * (total + 0.5) / (whole + 1.0)) / (pairs + 10.0)
    return Parameters(
        logit(np.clip(rate, 1e-9, 1 - 1e-9)),
        _log_degree_ratio(problem.users),
        _log_degree_ratio(problem.items),
    )


def _log_degree_ratio(side: ClassSide) -> np.ndarray:
    by_bin = side.by_bin @ np.stack([side.observed, side.size], axis=1)
    mean = (by_bin[:, 0] / np.maximum(by_bin[:, 1], 1.0))[side.bin]
    ratio: np.ndarray = np.log((side.observed / side.size + 1.0) / (mean + 1.0))
    return ratio


def _fit_ridges(
    problem: AdditiveProblem, point: Parameters, wanted: tuple[RidgeChoice, ...], cell_ridge: float
) -> tuple[Parameters, State]:
    """Alternate the fit and the empirical-Bayes variances of those ridges that are `auto`."""
    if any(
        choice != "auto" and not (isinstance(choice, int | float) and choice >= 0)
        for choice in wanted
    ):
        raise InputError("ridge out of range", found=wanted, expected="a number >= 0, or 'auto'")
    values = np.array([1.0 if choice == "auto" else float(choice) for choice in wanted])
    free = np.array([choice == "auto" for choice in wanted])
    for round_ in range(MAX_ROUNDS):
        rough = free.any() and round_ < MAX_ROUNDS - 1
        point, state = minimise(
            problem,
            point,
            Ridge(float(values[0]), float(values[1]), float(values[2]), cell_ridge),
            tolerance=1e-6 if rough else 1e-12,
        )
        if not rough:
            break
        updated = np.where(free, 1.0 / _effect_variances(problem, point, state), values)
        converged = np.abs(np.log(updated[free] / values[free])).max() < 0.01
        values = updated
        if converged:
            free = np.zeros_like(free)
    return point, state


def _effect_variances(problem: AdditiveProblem, point: Parameters, state: State) -> np.ndarray:
    """Variances of user effects, item effects and interactions at the current fit."""
    ridge, users, items = state.ridge, problem.users, problem.items
    one = np.ones(point.cell.size)
    parts = (
        (point.user, users.size / state.user_information, users.size, ridge.user),
        (point.item, items.size / state.item_information, items.size, ridge.item),
        (centred(point.cell).ravel(), 1.0 / state.cell_information.ravel(), one, ridge.interaction),
    )
    return np.array(
        [effect_variance(s * (1.0 + lam * noise), noise, size) for s, noise, size, lam in parts]
    )


def effect_variance(estimate: np.ndarray, noise: np.ndarray, size: np.ndarray) -> float:
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
    """Features through bins (and linear scores, unless `features=False`), and an effect of every
    user and item."""

    name = "two-way"

    def __init__(
        self,
        *,
        ridge: RidgeChoice | tuple[float, float] = "auto",
        interaction_ridge: RidgeChoice = "auto",
        features: bool = True,
        low: float = DEFAULT_LOW,
    ) -> None:
        super().__init__(low=low)
        self.ridge, self.interaction_ridge, self.features = ridge, interaction_ridge, features

    def _fit(self, data: Exposure) -> None:
        user, item = feature_scores(data) if self.features else (None, None)
        self.effects_ = fit_two_way(
            data.counts,
            self.ridge,
            interaction_ridge=self.interaction_ridge,
            user_offset=user,
            item_offset=item,
        )

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return expit(self.effects_.logit(users, items))

    def _details(self) -> dict[str, Any]:
        ridge = self.effects_.ridge
        return {
            "user_effect_sd": ridge.user**-0.5 if ridge.user else None,
            "item_effect_sd": ridge.item**-0.5 if ridge.item else None,
        }
