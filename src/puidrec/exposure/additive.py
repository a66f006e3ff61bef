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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, logit

from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, FittedPropensity
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
    n_bins: int
    design: sparse.csr_array | None = None
    """Features [classes, columns]; None gives every member an effect of its own, equal within a
    class."""
    offset: np.ndarray | float = 0.0
    """Known part of the log-odds of each class."""

    @cached_property
    def weight(self) -> np.ndarray:
        """How many effects share one coefficient: what its ridge penalty is multiplied with."""
        return self.size if self.design is None else np.ones(self.design.shape[1])

    @cached_property
    def by_bin(self) -> sparse.csc_array:
        """Sums over the classes of each bin, [bins, classes]."""
        rows = np.arange(self.size.size)
        return sparse.csr_array(
            (np.ones(rows.size), (rows, self.bin)), shape=(rows.size, self.n_bins)
        ).T

    @cached_property
    def _turned_design(self) -> sparse.csc_array | None:
        """Made once: Newton's method asks for thousands of products with it."""
        return None if self.design is None else self.design.T

    def spread(self, coefficients: np.ndarray) -> np.ndarray:
        """Coefficients to effects per class."""
        return coefficients if self.design is None else self.design @ coefficients

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Adjoint of `spread`."""
        return rows if self._turned_design is None else self._turned_design @ rows

    def gather_squared(self, rows: np.ndarray) -> np.ndarray:
        """Diagonal of designᵀ · diag(rows) · design."""
        return rows if self.design is None else self.design.power(2).T @ rows


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
class Parameters:
    """A point of the model, or a direction."""

    cell: np.ndarray
    user: np.ndarray
    item: np.ndarray

    def pack(self) -> np.ndarray:
        """As one vector."""
        return np.concatenate([self.cell.ravel(), self.user, self.item])

    def unpack(self, vector: np.ndarray) -> Parameters:
        """A vector in the shape of this point."""
        cell, user, item = np.split(vector, [self.cell.size, self.cell.size + self.user.size])
        return Parameters(cell.reshape(self.cell.shape), user, item)


@dataclass(frozen=True)
class AdditiveProblem:
    """Minimise the penalised negative log-likelihood of exposure over D."""

    users: ClassSide
    items: ClassSide
    cells: np.ndarray
    """Observed pairs per (user bin, item bin)."""
    centre: float
    """Overall log-odds."""

    def logit(self, at: Parameters) -> np.ndarray:
        """Log-odds of every pair of classes."""
        u, i = self.users, self.items
        table: np.ndarray = at.cell[np.ix_(u.bin, i.bin)]
        table += (u.spread(at.user) + u.offset)[:, None]
        table += i.spread(at.item) + i.offset
        return table

    def value(self, at: Parameters, ridge: Ridge) -> float:
        """The loss itself, up to a constant (the observed pairs' offsets)."""
        u, i = self.users, self.items
        loss = u.size @ np.logaddexp(0.0, self.logit(at)) @ i.size - (self.cells * at.cell).sum()
        loss -= u.observed @ u.spread(at.user) + i.observed @ i.spread(at.item)
        loss += 0.5 * (ridge.user * u.weight @ at.user**2 + ridge.item * i.weight @ at.item**2)
        loss += 0.5 * (ridge.interaction * (centred(at.cell) ** 2).sum())
        return float(loss + 0.5 * ridge.cell * ((at.cell - self.centre) ** 2).sum())

    def state(self, at: Parameters, ridge: Ridge) -> State:
        """Gradient and curvature at a point."""
        u, i = self.users, self.items
        logit = self.logit(at)
        p = expit(logit, out=logit)
        expected = p * u.size[:, None]
        expected *= i.size
        gradient = Parameters(
            u.by_bin @ (i.by_bin @ expected.T).T
            - self.cells
            + ridge.interaction * centred(at.cell)
            + ridge.cell * (at.cell - self.centre),
            u.gather(expected.sum(axis=1) - u.observed) + ridge.user * u.weight * at.user,
            i.gather(expected.sum(axis=0) - i.observed) + ridge.item * i.weight * at.item,
        )
        np.subtract(1.0, p, out=p)
        expected *= p
        return State(self, ridge, gradient, expected)


@dataclass(frozen=True)
class State:
    """Gradient at a point, and the Hessian there as a product with a direction, never as a matrix."""

    problem: AdditiveProblem
    ridge: Ridge
    gradient: Parameters
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

    def hessian(self, d: Parameters) -> Parameters:
        """Hessian times direction: two products with the table of weights, the rest on bins."""
        u, i, r = self.problem.users, self.problem.items, self.ridge
        user, item = u.spread(d.user), i.spread(d.item)
        rows = (
            self.user_information * user
            + self.weight @ item
            + (self._by_item_bin * d.cell[u.bin]).sum(axis=1)
        )
        columns = self.item_information * item + user @ self.weight
        columns += (self._by_user_bin * d.cell[:, i.bin]).sum(axis=0)
        cell = (
            u.by_bin @ (self._by_item_bin * user[:, None])
            + (i.by_bin @ (self._by_user_bin * item).T).T
        )
        cell += (self.cell_information + r.cell) * d.cell + r.interaction * centred(d.cell)
        return Parameters(
            cell,
            u.gather(rows) + r.user * u.weight * d.user,
            i.gather(columns) + r.item * i.weight * d.item,
        )

    def diagonal(self) -> Parameters:
        """Diagonal of the Hessian: the preconditioner."""
        u, i, r = self.problem.users, self.problem.items, self.ridge
        return Parameters(
            self.cell_information + r.cell + r.interaction,
            u.gather_squared(self.user_information) + r.user * u.weight,
            i.gather_squared(self.item_information) + r.item * i.weight,
        )

    def newton_direction(self, rtol: float = 1e-4) -> np.ndarray:
        """Solve Hessian · direction = −gradient."""
        shape = self.gradient
        size = shape.pack().size
        product: Callable[[np.ndarray], np.ndarray] = lambda v: self.hessian(shape.unpack(v)).pack()  # noqa: E731
        scale = 1.0 / np.maximum(self.diagonal().pack(), 1e-12)
        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        jacobi = LinearOperator((size, size), matvec=lambda v: scale * v, dtype=np.float64)
        return cg(operator, -shape.pack(), rtol=rtol, maxiter=200, M=jacobi)[0]


def centred(cell: np.ndarray) -> np.ndarray:
    """The interaction part of a table: what row and column effects leave."""
    rows, columns = cell.mean(axis=1, keepdims=True), cell.mean(axis=0, keepdims=True)
    return cell - rows - columns + cell.mean()


def minimise(
    problem: AdditiveProblem, start: Parameters, ridge: Ridge, *, tolerance: float = 1e-12
) -> tuple[Parameters, State]:
    """Newton's method to the minimum (the problem is convex), halving steps that do not lower the
    loss.

    Stops when the Newton decrement, the loss still to gain twice over, is below `tolerance` ×
    observed pairs.
    """
    point, state = start, problem.state(start, ridge)
    limit = tolerance * max(float(problem.cells.sum()), 1.0)
    for _ in range(MAX_STEPS):
        direction = state.newton_direction()
        slope = float(state.gradient.pack() @ direction)
        if -slope < limit:
            break
        before: float | None = None
        step = 1.0
        for _ in range(MAX_HALVINGS):
            trial = start.unpack(point.pack() + step * direction)
            reached = problem.state(trial, ridge)
            if float(reached.gradient.pack() @ direction) <= 0.0:
                break  # still descending there, so by convexity lower than here: no need to compute the loss
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
    there are.

    Newton's method, kept inside a shrinking bracket.
    """
    low, high, shift = -60.0, 60.0, 0.0
    for _ in range(100):
        p = expit(log_odds + shift)
        gap, slope = float((pairs * p).sum()) - n_seen, float((pairs * p * (1.0 - p)).sum())
        if abs(gap) <= 1e-12 * n_seen or high - low < 1e-14:
            break
        low, high = (low, shift) if gap > 0 else (shift, high)
        trial = shift - gap / slope if slope > 0 else high
        shift = trial if low < trial < high else (low + high) / 2.0
    return shift


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


def one_hot(codes: np.ndarray) -> sparse.csr_array:
    """Codes as indicator columns, [entities, largest code + 1]."""
    return sparse.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)))


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
    centre = float(logit(data.rate))
    start = Parameters(np.full((1, 1), centre), *(np.zeros(d.shape[1]) for d in designs))
    problem = AdditiveProblem(users, items, np.full((1, 1), float(data.n_seen)), centre)
    point, _ = minimise(problem, start, Ridge(RIDGE, RIDGE, 0.0, FREE))
    constant = float(point.cell[0, 0])
    return AdditiveScore(constant, designs[0] @ point.user, designs[1] @ point.item, "cells")


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
    return ClassSide(size, observed, np.zeros(size.size, np.int64), 1, rows)
