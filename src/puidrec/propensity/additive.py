"""Logistic regression over all of D when users and items fall into classes: the solver of `two-way` and `logistic`.

    logit p_kl = cell[bin of k, bin of l] + offset_k + (X a)_k + offset_l + (Z b)_l

for classes k of users and l of items. The likelihood of all |users| × |items| pairs is a sum over the K × L table of
classes weighted by their sizes, and the data enter through sums only: observed pairs per user class, per item class
and per cell. Newton's method, its linear systems by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit

MAX_STEPS = 60
MAX_HALVINGS = 30


@dataclass(frozen=True)
class Side:
    """Classes of users (or of items) that the model cannot tell apart."""

    size: np.ndarray
    """Members of each class."""
    observed: np.ndarray
    """Observed pairs of each class, all members together."""
    bin: np.ndarray
    n_bins: int
    design: sparse.csr_array | None = None
    """Features [classes, columns]; None gives every member an effect of its own, equal within a class."""
    offset: np.ndarray | float = 0.0
    """Known part of the log-odds of each class."""

    @cached_property
    def weight(self) -> np.ndarray:
        """How many effects share one coefficient: what its ridge penalty is multiplied with."""
        return self.size if self.design is None else np.ones(self.design.shape[1])

    @cached_property
    def membership(self) -> sparse.csr_array:
        """One-hot bins, [classes, bins]."""
        rows = np.arange(self.size.size)
        return sparse.csr_array((np.ones(rows.size), (rows, self.bin)), shape=(rows.size, self.n_bins))

    def spread(self, coefficients: np.ndarray) -> np.ndarray:
        """Coefficients to effects per class."""
        return coefficients if self.design is None else self.design @ coefficients

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Adjoint of `spread`."""
        return rows if self.design is None else self.design.T @ rows

    def gather_squared(self, rows: np.ndarray) -> np.ndarray:
        """Diagonal of designᵀ · diag(rows) · design."""
        return rows if self.design is None else self.design.power(2).T @ rows


@dataclass(frozen=True)
class Ridge:
    """Penalties ½·ridge·effect²: per user effect, per item effect, on interactions of bins, on cells as such."""

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

    users: Side
    items: Side
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
            u.membership.T @ (expected @ i.membership) - self.cells
            + ridge.interaction * centred(at.cell) + ridge.cell * (at.cell - self.centre),
            u.gather(expected.sum(axis=1) - u.observed) + ridge.user * u.weight * at.user,
            i.gather(expected.sum(axis=0) - i.observed) + ridge.item * i.weight * at.item,
        )  # fmt: skip
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
        total: np.ndarray = self.weight.sum(axis=1)
        return total

    @cached_property
    def item_information(self) -> np.ndarray:
        """Binomial variance per item class."""
        total: np.ndarray = self.weight.sum(axis=0)
        return total

    @cached_property
    def cell_information(self) -> np.ndarray:
        """Binomial variance per (user bin, item bin)."""
        total: np.ndarray = self.problem.users.membership.T @ self._by_item_bin
        return total

    @cached_property
    def _by_item_bin(self) -> np.ndarray:
        total: np.ndarray = self.weight @ self.problem.items.membership
        return total

    @cached_property
    def _by_user_bin(self) -> np.ndarray:
        total: np.ndarray = self.problem.users.membership.T @ self.weight
        return total

    def hessian(self, d: Parameters) -> Parameters:
        """Hessian times direction: two products with the table of weights, the rest on bins."""
        u, i, r = self.problem.users, self.problem.items, self.ridge
        user, item = u.spread(d.user), i.spread(d.item)
        rows = self.user_information * user + self.weight @ item + (self._by_item_bin * d.cell[u.bin]).sum(axis=1)
        columns = self.item_information * item + user @ self.weight
        columns += (self._by_user_bin * d.cell[:, i.bin]).sum(axis=0)
        cell = u.membership.T @ (self._by_item_bin * user[:, None]) + (self._by_user_bin * item) @ i.membership
        cell += (self.cell_information + r.cell) * d.cell + r.interaction * centred(d.cell)
        return Parameters(
            cell, u.gather(rows) + r.user * u.weight * d.user, i.gather(columns) + r.item * i.weight * d.item
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
        direction: np.ndarray = cg(operator, -shape.pack(), rtol=rtol, maxiter=200, M=jacobi)[0]
        return direction


def centred(cell: np.ndarray) -> np.ndarray:
    """The interaction part of a table: what row and column effects leave."""
    rows, columns = cell.mean(axis=1, keepdims=True), cell.mean(axis=0, keepdims=True)
    interaction: np.ndarray = cell - rows - columns + cell.mean()
    return interaction


def minimise(
    problem: AdditiveProblem, start: Parameters, ridge: Ridge, *, tolerance: float = 1e-12
) -> tuple[Parameters, State]:
    """Newton's method to the minimum (the problem is convex), halving steps that do not lower the loss.

    Stops when the Newton decrement, the loss still to gain twice over, is below `tolerance` × observed pairs.
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
