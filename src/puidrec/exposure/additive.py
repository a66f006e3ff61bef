"""Logistic regression of exposure over all of D by a score of the user and one of the item:
`logistic`, and `two-way`, which has an effect of every user and item as well.

    logit p_ui = cell[bin of u, bin of i] + offset_u + (X a)_u + offset_i + (Z b)_i

The likelihood of all |users| × |items| pairs needs the log through sums alone: seen pairs per user,
per item and per cell. What the model expects depends on scores only, so D is a table of *levels*
of scores: one per distinct score where these are few, else narrow ranges, within which expected
numbers of pairs follow the slope of their level. Newton's method, its linear systems by conjugate
gradients.

A hidden confounder that belongs to the user or to the item is a fixed effect of exposure, so
`two-way` recovers it from degrees; only what varies from pair to pair stays hidden. It takes the
feature scores of `logistic` as offsets, so that differences which bins are too coarse to show are
not taken for a hidden trait.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, logit

from puidrec.exposure.base import Exposure, FittedPropensity
from puidrec.exposure.counts import ExposureCounts, one_hot

MAX_STEPS = 60
LEVELS = 1_400
"""Most levels of scores of a side, all bins together."""
RIDGE = 1.0
"""L2 of the slopes of `logistic`."""
FREE = 1e-9
"""Ridge of its intercept; above 0 only so that an empty table stays finite."""
MIN_VARIANCE, MAX_VARIANCE = 1e-5, 25.0
CELL_RIDGE = 1e-3
MAX_ROUNDS = 12
GRID, ZOOMS = 9, 9
"""Variances compared at a time, and how often the interval between the best one's neighbours is
looked at more closely: log v is found to 3e-5."""


@dataclass(frozen=True)
class Side:
    """Users (or items), or kinds of them that the model cannot tell apart."""

    bin: np.ndarray
    size: np.ndarray
    """Members of each kind."""
    seen: np.ndarray
    """Seen pairs of each kind, all members together."""
    offset: np.ndarray
    """Known part of the log-odds."""
    design: sparse.csr_array
    """Features [kinds, columns]: coefficients to scores."""
    weight: np.ndarray
    """How many effects share each coefficient: what its ridge penalty is multiplied with."""

    @cached_property
    def turned(self) -> sparse.csc_array:
        """Made once: Newton's method asks for thousands of products with it."""
        return self.design.T


@dataclass(frozen=True)
class Levels:
    """Kinds with nearly the same score, within a bin."""

    of: np.ndarray
    """Level of each kind."""
    bins: sparse.csr_array
    """Indicators of the bin of each level."""
    value: np.ndarray
    """Score of each level: exact for the sum of rare pairs, whose odds are their chances."""
    size: np.ndarray
    shift: np.ndarray
    """Score of each kind less that of its level."""

    @classmethod
    def cut(cls, side: Side, score: np.ndarray) -> Levels:
        """One per distinct score, else ranges of equal width."""
        of = kinds_of(side.bin, score)
        if of.max() >= LEVELS:
            steps = max(LEVELS // (int(side.bin.max()) + 1), 1)
            place = (score - score.min()) / max(float(np.ptp(score)), 1e-300) * steps
            of = kinds_of(side.bin, np.minimum(place.astype(np.int64), steps - 1))
        first, size = np.unique(of, return_index=True)[1], np.bincount(of, side.size)
        value = score[first]
        value = value + np.log(np.bincount(of, side.size * np.exp(score - value[of])) / size)
        bins = one_hot(side.bin[first], int(side.bin.max()) + 1)
        return cls(of, bins, value, size, score - value[of])

    @property
    def bin(self) -> np.ndarray:
        """Bin of each level."""
        return self.bins.indices


def kinds_of(*columns: np.ndarray) -> np.ndarray:
    """A number per distinct row of the columns, in their order."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(order.size, bool)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    found = np.empty(order.size, np.int64)
    found[order] = np.cumsum(new)
    return found


@dataclass(frozen=True)
class Ridge:
    """Penalties ½·ridge·effect²: per user effect, per item effect, on interactions of bins, on
    cells as such."""

    user: float
    item: float
    interaction: float
    cell: float
    """Pulls every cell towards `AdditiveProblem.centre`; tiny, it only keeps empty bins finite."""


@dataclass(frozen=True)
class AdditiveProblem:
    """Minimise the penalised negative log-likelihood of exposure over D.

    A point is one vector: the table of cells, the coefficients of users, those of items.
    """

    users: Side
    items: Side
    cells: np.ndarray
    """Seen pairs per (user bin, item bin)."""
    centre: float
    """Overall log-odds."""

    def split(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cells, coefficients of users, coefficients of items."""
        ends = [self.cells.size, self.cells.size + self.users.weight.size]
        cell, user, item = np.split(point, ends)
        return cell.reshape(self.cells.shape), user, item

    def effects(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cells, scores of users, scores of items."""
        cell, user, item = self.split(point)
        return cell, self.users.design @ user, self.items.design @ item

    def gather(self, cell: np.ndarray, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Adjoint of `effects`."""
        return np.concatenate([cell.ravel(), self.users.turned @ user, self.items.turned @ item])

    def pull(self, point: np.ndarray, ridge: Ridge) -> np.ndarray:
        """The gradient of the penalties around 0, which is linear in the point."""
        cell, user, item = self.split(point)
        cells = ridge.interaction * centred(cell) + ridge.cell * cell
        user, item = ridge.user * self.users.weight * user, ridge.item * self.items.weight * item
        return np.concatenate([cells.ravel(), user, item])


class SideState:
    """What the model expects of each user (or item), from what it expects of their levels."""

    def __init__(self, side: Side, levels: Levels, seen: np.ndarray, total: np.ndarray) -> None:
        # numbers follow the slope of their logarithm within a level, and add up to the level's
        slope = total / np.maximum(seen, 1e-300)
        factor = np.exp(levels.shift * slope[levels.of])
        factor /= (np.bincount(levels.of, side.size * factor) / levels.size)[levels.of]
        self.of, self.total, self.members = levels.of, total, side.size * factor
        self.information = factor * total[levels.of]
        """Variance per user."""
        self.excess = self.members * seen[levels.of] - side.seen
        """Expected pairs less the seen ones, all members of a kind together."""

    def lumped(self, move: np.ndarray) -> np.ndarray:
        """Changes of scores, summed by level."""
        return np.bincount(self.of, self.members * move)

    def moved(self, move: np.ndarray, across: np.ndarray) -> np.ndarray:
        """How expected pairs change with a kind's own score, and with what is across."""
        return self.members * (self.total[self.of] * move + across[self.of])


class State:
    """Gradient at a point, and the Hessian there as a product with a direction, never as a
    matrix."""

    def __init__(self, problem: AdditiveProblem, point: np.ndarray, ridge: Ridge) -> None:
        self.problem, self.ridge = problem, ridge
        cell, user, item = problem.effects(point)
        self.levels = u, i = (
            Levels.cut(problem.users, user + problem.users.offset),
            Levels.cut(problem.items, item + problem.items.offset),
        )
        table = cell[np.ix_(u.bin, i.bin)]
        table += u.value[:, None]
        table += i.value
        p = expit(table, out=table)
        expected = u.bins.T @ (u.size[:, None] * (p * i.size @ i.bins))
        seen = p @ i.size, u.size @ p
        p -= p * p
        self.weight = p
        """Variance of a pair of levels."""
        # sums of it by bin of the other side
        self.by_item_bin = p * i.size @ i.bins
        self.by_user_bin = (u.size[:, None] * p).T @ u.bins
        self.users = SideState(problem.users, u, seen[0], p @ i.size)
        self.items = SideState(problem.items, i, seen[1], u.size @ p)
        self.cell_information = u.bins.T @ (u.size[:, None] * self.by_item_bin)
        """Variance per (user bin, item bin)."""
        excess = problem.gather(expected - problem.cells, self.users.excess, self.items.excess)
        off = np.where(np.arange(point.size) < problem.cells.size, problem.centre, 0.0)
        self.gradient = excess + problem.pull(point - off, ridge)

    def hessian(self, direction: np.ndarray) -> np.ndarray:
        """Hessian times direction: two products with the table of weights, the rest on bins."""
        cell, to_user, to_item = self.problem.effects(direction)
        user, item, (u, i) = self.users.lumped(to_user), self.items.lumped(to_item), self.levels
        rows = self.weight @ item + (self.by_item_bin * cell[u.bin]).sum(axis=1)
        columns = user @ self.weight + (self.by_user_bin * cell.T[i.bin]).sum(axis=1)
        cells = self.cell_information * cell
        cells += u.bins.T @ (self.by_item_bin * user[:, None])
        cells += (i.bins.T @ (self.by_user_bin * item[:, None])).T
        own = self.users.moved(to_user, rows), self.items.moved(to_item, columns)
        return self.problem.gather(cells, *own) + self.problem.pull(direction, self.ridge)

    def newton_direction(self) -> np.ndarray:
        """Solve Hessian · direction = −gradient, preconditioned by the diagonal."""
        u, i, ridge = self.problem.users, self.problem.items, self.ridge
        diagonal = [
            self.cell_information.ravel() + ridge.cell + ridge.interaction,
            u.turned.power(2) @ (u.size * self.users.information) + ridge.user * u.weight,
            i.turned.power(2) @ (i.size * self.items.information) + ridge.item * i.weight,
        ]
        jacobi = sparse.diags_array(1.0 / np.maximum(np.concatenate(diagonal), 1e-12))
        shape = (self.gradient.size, self.gradient.size)
        operator = LinearOperator(shape, matvec=self.hessian, dtype=np.float64)
        return cg(operator, -self.gradient, rtol=1e-4, maxiter=200, M=jacobi)[0]


def centred(cell: np.ndarray) -> np.ndarray:
    """The interaction part of a table: what row and column effects leave."""
    rows, columns = cell.mean(axis=1, keepdims=True), cell.mean(axis=0, keepdims=True)
    return cell - rows - columns + cell.mean()


def minimise(
    problem: AdditiveProblem, point: np.ndarray, ridge: Ridge, *, tolerance: float = 1e-12
) -> tuple[np.ndarray, State]:
    """Newton's method to the minimum: the problem is convex, so a step is short enough where the
    slope along it has not turned to more than half its size.

    The last step is the one whose Newton decrement, the loss still to gain twice over, is below
    `tolerance` × seen pairs.
    """
    state = State(problem, point, ridge)
    limit = tolerance * max(float(problem.cells.sum()), 1.0)
    for _ in range(MAX_STEPS):
        direction = state.newton_direction()
        slope, step = float(state.gradient @ direction), 1.0
        last = -slope < limit
        while step > 1e-9:
            reached = State(problem, point + step * direction, ridge)
            after = float(reached.gradient @ direction)
            if last or after <= -0.5 * slope:
                break
            step *= max(slope / (slope - after), 0.1)  # where a parabola would have its minimum
        point, state = point + step * direction, reached
        if last:
            break
    return point, state


class Logistic(FittedPropensity):
    """Logistic regression of exposure on features; without side tables, on the one-hot bins."""

    name = "logistic"

    def _fit(self, data: Exposure) -> None:
        self.constant_, self.user_, self.item_ = fit_scores(data)

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return expit(self.constant_ + self.user_[users] + self.item_[items])

    def _details(self) -> dict[str, Any]:
        return {"ridge": RIDGE}


def fit_scores(data: Exposure) -> tuple[float, np.ndarray, np.ndarray]:
    """Constant, and what the features say of each user and each item, in log-odds."""
    counts = data.counts

    def side(features: sparse.csr_array | None, bins: np.ndarray, degree: np.ndarray) -> Side:
        design = one_hot(bins) if features is None else features
        none, one = np.zeros(bins.size), np.ones(bins.size)
        width = np.ones(design.shape[1])
        return Side(np.zeros(bins.size, int), one, degree, none, design, width)

    problem = AdditiveProblem(
        side(data.user_features, counts.user_bin, counts.user_degree),
        side(data.item_features, counts.item_bin, counts.item_degree),
        np.full((1, 1), float(data.n_seen)),
        float(logit(data.rate)),
    )
    start = np.zeros(1 + problem.users.weight.size + problem.items.weight.size)
    start[0] = problem.centre
    point, _ = minimise(problem, start, Ridge(RIDGE, RIDGE, 0.0, FREE))
    cell, user, item = problem.effects(point)
    return float(cell[0, 0]), user, item


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
) -> TwoWayEffects:
    """Maximise the penalised likelihood of exposure over D = users × items.

    ridge: None takes empirical Bayes, 1/variance of the effects beyond what sampling explains, for
    users, items, and cells beyond row and column effects of bins. Offsets: log-odds of each user
    and item known beforehand.
    """
    user_offset = np.zeros(counts.n_users) if user_offset is None else user_offset
    item_offset = np.zeros(counts.n_items) if item_offset is None else item_offset
    users, user_kind = _kinds(counts.user_bin, counts.user_degree, user_offset)
    items, item_kind = _kinds(counts.item_bin, counts.item_degree, item_offset)
    overall = float(logit((counts.cells.sum() + 0.5) / (counts.pairs.sum() + 1.0)))
    problem = AdditiveProblem(users, items, counts.cells.astype(np.float64), overall)
    start = _start(problem, counts.pairs)
    fit = _fit_ridges(problem, start) if ridge is None else minimise(problem, start, ridge)
    point, state = fit
    used, (cell, user, item) = state.ridge, problem.split(point)
    user_variance = 1.0 / (state.users.information + used.user)
    item_variance = 1.0 / (state.items.information + used.item)
    return TwoWayEffects(
        cell,
        user[user_kind],
        item[item_kind],
        user_variance[user_kind],
        item_variance[item_kind],
        counts.user_bin,
        counts.item_bin,
        used,
        user_offset,
        item_offset,
    )


def _kinds(bins: np.ndarray, degree: np.ndarray, offset: np.ndarray) -> tuple[Side, np.ndarray]:
    """Entities of equal bin, degree and offset share an effect; and the kind of each entity."""
    of = kinds_of(bins, degree, offset)
    first, size = np.unique(of, return_index=True)[1], np.bincount(of).astype(np.float64)
    same = sparse.eye_array(size.size, format="csr")
    return Side(bins[first], size, size * degree[first], offset[first], same, size), of


def _start(problem: AdditiveProblem, pairs: np.ndarray) -> np.ndarray:
    """Smoothed cell rates and log degree ratios: the Poisson solution, close where exposure is
    rare."""
    total, whole = problem.cells.sum(), pairs.sum()
    rate = (problem.cells + 10.0 * (total + 0.5) / (whole + 1.0)) / (pairs + 10.0)
    parts = [logit(np.clip(rate, 1e-9, 1 - 1e-9)).ravel()]
    for side in (problem.users, problem.items):
        mean = np.bincount(side.bin, side.seen) / np.maximum(np.bincount(side.bin, side.size), 1.0)
        parts.append(np.log((side.seen / side.size + 1.0) / (mean[side.bin] + 1.0)))
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
    ridge, (cell, user, item) = state.ridge, problem.split(point)
    parts = (
        (user, 1.0 / state.users.information, problem.users.size, ridge.user),
        (item, 1.0 / state.items.information, problem.items.size, ridge.item),
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
        user = item = None
        if data.user_features is not None or data.item_features is not None:
            _, user, item = fit_scores(data)
            # a side without features says nothing beyond its bins
            user = None if data.user_features is None else user - user.mean()
            item = None if data.item_features is None else item - item.mean()
        self.effects_ = fit_two_way(data.counts, user_offset=user, item_offset=item)

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return expit(self.effects_.logit(users, items))

    def _details(self) -> dict[str, Any]:
        ridge = self.effects_.ridge
        return {"user_effect_sd": ridge.user**-0.5, "item_effect_sd": ridge.item**-0.5}
