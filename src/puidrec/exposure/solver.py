"""Logistic regression over all of D when users and items fall into classes: the solver of `two-way`
and `logistic`.

    logit p_kl = cell[bin of k, bin of l] + offset_k + (X a)_k + offset_l + (Z b)_l

for classes k of users and l of items. The likelihood of all |users| × |items| pairs is a sum over
the K × L table of classes weighted by their sizes, and the data enter through sums only: observed
pairs per user class, per item class and per cell. Newton's method, its linear systems by conjugate
gradients.

Without features, entities of equal bin and equal degree are one class, since exposure cannot tell
them apart; neighbouring degrees share a class where the table of classes would grow too large
(`DegreeClasses`, `fit_budget`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit

MAX_STEPS = 60
MAX_HALVINGS = 30
TABLE_BUDGET = 2_000_000
"""Largest table of user classes × item classes; beyond it, neighbouring degrees share a class."""
OFFSET_LEVELS = 180
"""Levels that known offsets are cut into, all bins together (at least four in each)."""


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
        total: np.ndarray = self.problem.users.by_bin @ self._by_item_bin
        return total

    @cached_property
    def _by_item_bin(self) -> np.ndarray:
        total: np.ndarray = (self.problem.items.by_bin @ self.weight.T).T
        return total

    @cached_property
    def _by_user_bin(self) -> np.ndarray:
        total: np.ndarray = self.problem.users.by_bin @ self.weight
        return total

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
class Strata:
    """Entities by bin and, where part of their log-odds is known beforehand, by level of that
    offset within the bin."""

    of: np.ndarray
    """Stratum of each entity."""
    bin: np.ndarray
    offset: np.ndarray
    """Mean offset of each stratum."""
    n_bins: int

    @classmethod
    def build(cls, bins: np.ndarray, n_bins: int, offset: np.ndarray | None = None) -> Strata:
        """Cut offsets at quantiles within each bin; equal offsets are never parted."""
        if offset is None:
            return cls(bins, np.arange(n_bins), np.zeros(n_bins), n_bins)
        levels = max(4, OFFSET_LEVELS // n_bins)
        order = np.lexsort((offset, bins))
        sorted_bin, sorted_offset = bins[order].astype(np.int64), offset[order]
        new = np.concatenate([[True], (np.diff(sorted_bin) != 0) | (np.diff(sorted_offset) != 0)])
        first = np.maximum.accumulate(np.where(new, np.arange(order.size), 0))
        size = np.bincount(bins, minlength=n_bins)
        rank = first - (np.cumsum(size) - size)[sorted_bin]
        key = np.empty(order.size, np.int64)
        key[order] = sorted_bin * levels + rank * levels // size[sorted_bin]
        found, of, count = np.unique(key, return_inverse=True, return_counts=True)
        return cls(of, found // levels, np.bincount(of, weights=offset) / count, n_bins)


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
        return ClassSide(
            size,
            observed,
            self.strata.bin[stratum],
            self.strata.n_bins,
            offset=self.strata.offset[stratum],
        )

    def _class_stratum(self) -> np.ndarray:
        stratum: np.ndarray = self.kind_stratum[np.unique(self.class_of, return_index=True)[1]]
        return stratum

    def to_entities(self, values: np.ndarray) -> np.ndarray:
        """Values of classes to values of entities.

        A class's value belongs to its mean degree; other degrees are read off a monotone curve
        through the classes of the stratum, over log(1 + degree).
        """
        if self.n_classes == self.kind_size.size:
            direct: np.ndarray = values[self.kind_of]
            return direct
        from scipy.interpolate import (
            PchipInterpolator,
        )  # takes long to import; small logs do without

        side, stratum = self.side(), self._class_stratum()
        x, wanted = np.log1p(side.observed / side.size), np.log1p(self.kind_degree)
        # Classes and kinds are sorted by stratum, so each stratum is a slice of both.
        found = np.unique(stratum)
        nodes, kinds = (
            np.stack(
                [np.searchsorted(s, found, "left"), np.searchsorted(s, found, "right")], axis=1
            )
            for s in (stratum, self.kind_stratum)
        )
        read = np.empty(wanted.size)
        for (n0, n1), (k0, k1) in zip(nodes.tolist(), kinds.tolist(), strict=True):
            curve = PchipInterpolator(x[n0:n1], values[n0:n1]) if n1 - n0 > 1 else None
            read[k0:k1] = values[n0] if curve is None else curve(wanted[k0:k1])
        entities: np.ndarray = read[self.kind_of]
        return entities


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
