"""Logistic regression of exposure over all of D when users and items fall into classes: `logistic`,
and what `two-way` is fitted with.

    logit p_kl = cell[bin of k, bin of l] + offset_k + (X a)_k + offset_l + (Z b)_l

for classes k of users and l of items. The likelihood of all |users| × |items| pairs is a sum over
the K × L table of classes weighted by their sizes, and the data enter through sums only: observed
pairs per user class, per item class and per cell. Newton's method, its linear systems by conjugate
gradients.

`logistic` has a class per distinct feature row and no bins. Where numbers make nearly every row
distinct, it is fitted on a case-control sample whose intercept is moved back to D.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, logit

from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, FittedPropensity, one_hot
from puidrec.rng import generator

MAX_STEPS = 60
MAX_HALVINGS = 30
TABLE_BUDGET = 2_000_000
"""Largest table of user classes × item classes."""
RIDGE = 1.0
"""L2 of the slopes of `logistic`."""
FREE = 1e-9
"""Ridge of its intercept; above 0 only so that an empty table stays finite."""
SAMPLE = 200_000
"""Seen pairs of a case-control sample, and unseen ones."""
SCORE_LEVELS = 1000


@dataclass(frozen=True)
class ClassSide:
    """Classes of users (or of items) that the model cannot tell apart."""

    size: np.ndarray
    """Members of each class."""
    observed: np.ndarray
    """Observed pairs of each class, all members together."""
    bin: np.ndarray
    design: sparse.csr_array
    """Features [classes, columns]: coefficients to effects."""
    weight: np.ndarray
    """How many effects share each coefficient: what its ridge penalty is multiplied with."""
    offset: np.ndarray | float = 0.0
    """Known part of the log-odds of each class."""

    @classmethod
    def of_members(
        cls, size: np.ndarray, observed: np.ndarray, bins: np.ndarray, offset: np.ndarray | float
    ) -> ClassSide:
        """Every member has an effect of its own, equal within a class."""
        return cls(size, observed, bins, sparse.eye_array(size.size, format="csr"), size, offset)

    @cached_property
    def turned(self) -> sparse.csc_array:
        """Made once: Newton's method asks for thousands of products with it."""
        return self.design.T

    @cached_property
    def by_bin(self) -> sparse.csc_array:
        """Sums over the classes of each bin, [bins, classes]."""
        return one_hot(self.bin).T


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

    users: ClassSide
    items: ClassSide
    cells: np.ndarray
    """Observed pairs per (user bin, item bin)."""
    centre: float
    """Overall log-odds."""

    def split(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cells, coefficients of users, coefficients of items."""
        ends = [self.cells.size, self.cells.size + self.users.weight.size]
        cell, user, item = np.split(point, ends)
        return cell.reshape(self.cells.shape), user, item

    def effects(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cells, effects of user classes, effects of item classes."""
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

    def from_centre(self, point: np.ndarray) -> np.ndarray:
        """A point seen from where the penalties are 0: all cells at `centre`."""
        return point - np.where(np.arange(point.size) < self.cells.size, self.centre, 0.0)

    def logit(self, point: np.ndarray) -> np.ndarray:
        """Log-odds of every pair of classes."""
        cell, user, item = self.effects(point)
        table: np.ndarray = cell[np.ix_(self.users.bin, self.items.bin)]
        table += (user + self.users.offset)[:, None]
        table += item + self.items.offset
        return table

    def value(self, point: np.ndarray, ridge: Ridge) -> float:
        """The loss itself, up to a constant (the observed pairs' offsets)."""
        u, i = self.users, self.items
        cell, user, item = self.effects(point)
        loss = u.size @ np.logaddexp(0.0, self.logit(point)) @ i.size
        loss -= (self.cells * cell).sum() + u.observed @ user + i.observed @ item
        off = self.from_centre(point)
        return float(loss + 0.5 * off @ self.pull(off, ridge))

    def state(self, point: np.ndarray, ridge: Ridge) -> State:
        """Gradient and curvature at a point."""
        u, i = self.users, self.items
        logit = self.logit(point)
        p = expit(logit, out=logit)
        expected = p * u.size[:, None]
        expected *= i.size
        rows, columns = expected.sum(axis=1), expected.sum(axis=0)
        cells = u.by_bin @ (i.by_bin @ expected.T).T
        gradient = self.gather(cells - self.cells, rows - u.observed, columns - i.observed)
        gradient += self.pull(self.from_centre(point), ridge)
        np.subtract(1.0, p, out=p)
        expected *= p
        return State(self, ridge, gradient, expected)


@dataclass(frozen=True)
class State:
    """Gradient at a point, and the Hessian there as a product with a direction, never as a
    matrix."""

    problem: AdditiveProblem
    ridge: Ridge
    gradient: np.ndarray
    weight: np.ndarray
    """Binomial variance of each class pair, [user classes, item classes]."""

    @cached_property
    def user_information(self) -> np.ndarray:
        """Binomial variance per user class."""
        return self.weight.sum(axis=1)

    @cached_property
    def item_information(self) -> np.ndarray:
        """Binomial variance per item class."""
        return self.weight.sum(axis=0)

    @cached_property
    def cell_information(self) -> np.ndarray:
        """Binomial variance per (user bin, item bin)."""
        return self.problem.users.by_bin @ self._by_item_bin

    @cached_property
    def _by_item_bin(self) -> np.ndarray:
        return (self.problem.items.by_bin @ self.weight.T).T

    @cached_property
    def _by_user_bin(self) -> np.ndarray:
        return self.problem.users.by_bin @ self.weight

    def hessian(self, direction: np.ndarray) -> np.ndarray:
        """Hessian times direction: two products with the table of weights, the rest on bins."""
        u, i = self.problem.users, self.problem.items
        cell, user, item = self.problem.effects(direction)
        rows = self.user_information * user + self.weight @ item
        rows += (self._by_item_bin * cell[u.bin]).sum(axis=1)
        columns = self.item_information * item + user @ self.weight
        columns += (self._by_user_bin * cell[:, i.bin]).sum(axis=0)
        cells = self.cell_information * cell + u.by_bin @ (self._by_item_bin * user[:, None])
        cells += (i.by_bin @ (self._by_user_bin * item).T).T
        return self.problem.gather(cells, rows, columns) + self.problem.pull(direction, self.ridge)

    def diagonal(self) -> np.ndarray:
        """Diagonal of the Hessian: the preconditioner."""
        u, i, r = self.problem.users, self.problem.items, self.ridge
        parts = [
            self.cell_information.ravel() + r.cell + r.interaction,
            u.design.power(2).T @ self.user_information + r.user * u.weight,
            i.design.power(2).T @ self.item_information + r.item * i.weight,
        ]
        return np.concatenate(parts)

    def newton_direction(self) -> np.ndarray:
        """Solve Hessian · direction = −gradient."""
        shape = (self.gradient.size, self.gradient.size)
        operator = LinearOperator(shape, matvec=self.hessian, dtype=np.float64)
        jacobi = sparse.diags_array(1.0 / np.maximum(self.diagonal(), 1e-12))
        return cg(operator, -self.gradient, rtol=1e-4, maxiter=200, M=jacobi)[0]


def centred(cell: np.ndarray) -> np.ndarray:
    """The interaction part of a table: what row and column effects leave."""
    rows, columns = cell.mean(axis=1, keepdims=True), cell.mean(axis=0, keepdims=True)
    return cell - rows - columns + cell.mean()


def minimise(
    problem: AdditiveProblem, point: np.ndarray, ridge: Ridge, *, tolerance: float = 1e-12
) -> tuple[np.ndarray, State]:
    """Newton's method to the minimum (the problem is convex), halving steps that do not lower the
    loss.

    Stops when the Newton decrement, the loss still to gain twice over, is below `tolerance` ×
    observed pairs.
    """
    state = problem.state(point, ridge)
    limit = tolerance * max(float(problem.cells.sum()), 1.0)
    for _ in range(MAX_STEPS):
        direction = state.newton_direction()
        slope = float(state.gradient @ direction)
        if -slope < limit:
            break
        before: float | None = None
        step = 1.0
        for _ in range(MAX_HALVINGS):
            trial = point + step * direction
            reached = problem.state(trial, ridge)
            if float(reached.gradient @ direction) <= 0.0:
                break  # still descending there, so by convexity lower than here
            before = problem.value(point, ridge) if before is None else before
            if problem.value(trial, ridge) <= before + 1e-4 * step * slope + 1e-13 * abs(before):
                break
            step /= 2.0
        else:
            break  # no step lowers the loss: rounding decides from here on
        point, state = trial, reached
    return point, state


def calibrating_shift(log_odds: np.ndarray, pairs: np.ndarray, n_seen: float) -> float:
    """The δ with Σ pairs · σ(log_odds + δ) = n_seen: a model must expect as many seen pairs as
    there are."""
    from scipy.optimize import brentq  # takes long to import; most methods do without

    def surplus(shift: float) -> float:
        return float((pairs * expit(log_odds + shift)).sum()) - n_seen

    return float(brentq(surplus, -60.0, 60.0, xtol=1e-14))


@dataclass(frozen=True)
class AdditiveScore:
    """logit p = constant + user score + item score."""

    constant: float
    user: np.ndarray
    item: np.ndarray
    mode: Literal["cells", "sample"]


class Logistic(FittedPropensity):
    """Logistic regression of exposure on features; without side tables, on the one-hot bins."""

    name = "logistic"

    def _fit(self, data: Exposure) -> None:
        self.score_ = fit_scores(data)

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        score = self.score_
        return expit(score.constant + score.user[users] + score.item[items])

    def _details(self) -> dict[str, Any]:
        return {"mode": self.score_.mode, "ridge": RIDGE}


def feature_scores(data: Exposure) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What the features say of each user and of each item: log-odds, None for a side without
    features."""
    if data.user_features is None and data.item_features is None:
        return None, None
    score = fit_scores(data)
    return (
        None if data.user_features is None else score.user - score.user.mean(),
        None if data.item_features is None else score.item - score.item.mean(),
    )


def fit_scores(data: Exposure) -> AdditiveScore:
    """Over all of D through distinct feature rows where these are few, else on a sample."""
    counts = data.counts
    designs = [
        one_hot(bins) if features is None else features
        for features, bins in (
            (data.user_features, counts.user_bin),
            (data.item_features, counts.item_bin),
        )
    ]
    kinds = [_distinct_rows(design) for design in designs]
    if (int(kinds[0].max()) + 1) * (int(kinds[1].max()) + 1) > TABLE_BUDGET:
        return fit_sample(data, designs)
    degrees = (counts.user_degree, counts.item_degree)
    users, items = (_side(*side) for side in zip(designs, kinds, degrees, strict=True))
    problem = AdditiveProblem(
        users, items, np.full((1, 1), float(data.n_seen)), float(logit(data.rate))
    )
    start = np.zeros(1 + users.weight.size + items.weight.size)
    start[0] = problem.centre
    point, _ = minimise(problem, start, Ridge(RIDGE, RIDGE, 0.0, FREE))
    cell, user, item = problem.split(point)
    return AdditiveScore(float(cell[0, 0]), designs[0] @ user, designs[1] @ item, "cells")


def fit_sample(data: Exposure, designs: list[sparse.csr_array]) -> AdditiveScore:
    """Seen pairs against unseen ones drawn from D; slopes are those of D, the intercept is set by
    calibration."""
    from sklearn.linear_model import LogisticRegression

    if data.log is None:
        raise InputError(
            "too many distinct feature rows for counts alone",
            expected="the log itself",
            hint="Use the propensity 'cells'.",
        )
    random = generator(0, "propensity")
    log = np.sort(data.log.user.astype(np.int64) * data.counts.n_items + data.log.item)
    seen = log if log.size <= SAMPLE else log[random.choice(log.size, SAMPLE, replace=False)]
    pairs = np.concatenate([seen, _draw_unseen(log, data, random)])
    user, item = pairs // data.counts.n_items, pairs % data.counts.n_items
    rows = sparse.csr_array(sparse.hstack([designs[0][user], designs[1][item]], format="csr"))
    label = np.arange(user.size) < seen.size
    fitted = LogisticRegression(C=1.0 / RIDGE, max_iter=1000).fit(rows, label)
    slopes = np.split(fitted.coef_[0], [designs[0].shape[1]])
    scores = [design @ slope for design, slope in zip(designs, slopes, strict=True)]
    (u, n_u), (i, n_i) = (_levels(score) for score in scores)
    shift = calibrating_shift(u[:, None] + i, np.multiply.outer(n_u, n_i), float(data.n_seen))
    return AdditiveScore(shift, scores[0], scores[1], "sample")


def _draw_unseen(log: np.ndarray, data: Exposure, random: np.random.Generator) -> np.ndarray:
    """Uniform pairs of D (as sortable keys) that are not in the log, with replacement; fewer where
    few are unseen."""
    drawn = random.integers(0, data.n_pairs, int(SAMPLE / max(1.0 - data.rate, 0.1)))
    place = np.minimum(np.searchsorted(log, drawn), log.size - 1)
    drawn = drawn[log[place] != drawn][:SAMPLE]
    if not drawn.size:
        raise InputError("no unseen pair was drawn", found=f"{data.rate:.1%} of D seen")
    return drawn


def _levels(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores as at most `SCORE_LEVELS` values (means of neighbours) and how many entities have
    each."""
    parts = np.array_split(np.sort(score), min(SCORE_LEVELS, score.size))
    return np.array([part.mean() for part in parts]), np.array([float(part.size) for part in parts])


def _distinct_rows(design: sparse.csr_array) -> np.ndarray:
    """A number per distinct feature row, by a random projection that equal rows share to the last
    bit."""
    design.sort_indices()
    projected = design @ np.random.default_rng(20).standard_normal(design.shape[1])
    return np.unique(projected, return_inverse=True)[1]


def _side(design: sparse.csr_array, kind: np.ndarray, degree: np.ndarray) -> ClassSide:
    first = np.unique(kind, return_index=True)[1]
    size, observed = np.bincount(kind).astype(np.float64), np.bincount(kind, weights=degree)
    rows = sparse.csr_array(design[first])
    return ClassSide(size, observed, np.zeros(size.size, np.int64), rows, np.ones(rows.shape[1]))
