"""Propensities that balance: under the weights 1/p the log looks like all pairs, in what is known
of them.

`balanced` and `kernel` describe a pair by x = (x_u, x_i): the features of its user and item and the
logarithm of their numbers of rows, every column with variance 1. Sums over all pairs are exact
where they split into a user's and an item's part; the others are taken over all pairs of a small
population and `MEAN_PAIRS` random ones of a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError
from puidrec.exposure.base import Exposure, FittedPropensity
from puidrec.rng import generator

MEAN_PAIRS = 500_000
"""Pairs over which a mean that does not split is taken; all pairs of a smaller population."""
BALANCED_ROWS = 200_000
"""Logged rows whose kernels are balanced; of a longer log, evenly spaced ones."""
STEEPEST = 30.0
"""Log-odds beyond which an exponential is not followed."""
STRENGTH, RIDGE = 1.0, 1.0
"""Of `balanced`: weight of the balance, and L2 of β."""
ANCHORS = 10
"""Random pairs around which `kernel` balances."""
SLACK = 1e-8
"""Least v, in units of the moment's own variance: where no weights reach a target, they come near
it."""
STEPS, TOLERANCE = 200, 1e-10


Pairs = tuple[np.ndarray, np.ndarray]


class Tilt(NamedTuple):
    """w = scale · b · exp(−⟨η, m⟩), for pairs that were balanced and for any others."""

    eta: np.ndarray
    """Multipliers, one per moment."""
    log_scale: float

    def factor(self, moments: np.ndarray) -> np.ndarray:
        """w/b of pairs with these moments, [pairs, moments] or [pairs] where there is one."""
        rows = moments[:, None] if moments.ndim == 1 else moments
        return np.exp(self.log_scale - rows @ self.eta)


def entropy_balance(
    base: np.ndarray,
    moments: np.ndarray,
    target: np.ndarray | float,
    variance: np.ndarray | float = 0.0,
) -> Tilt:
    """The weights nearest to given ones whose weighted means are what they should be ("entropy
    balancing").

    min_w KL(w ‖ b) + ½ Σ_k (Σ w m_k/Σ w − t_k)²/v_k,   Σ w = Σ b

    b are base weights, m_k moments of the pairs, t_k their targets and v_k how exactly a target is
    known (its sampling variance; 0 asks for equality). The solution is a tilt, w ∝ b exp(−Σ_k η_k
    m_k): positive, and found by Newton's steps on the dual, log Σ b exp(−⟨η, m − t⟩) + ½ Σ v_k
    η_k², smooth and convex in as many numbers as there are moments. (Hainmueller, "Entropy
    balancing for causal effects", Political Analysis 2012; the quadratic slack is the dual of v.)

    One moment may be a vector, several are columns.
    """
    rows = (moments[:, None] if moments.ndim == 1 else moments).astype(np.float64)
    if base.shape != (rows.shape[0],) or not base.size or not (base >= 0).all() or not base.any():
        raise InputError("balancing needs one weight of at least 0 per pair", found=base.shape)
    if not np.isfinite(rows).all() or not np.isfinite(target).all():
        raise InputError("moments to balance are not finite")
    share = base / base.sum()
    mean = share @ rows
    spread = np.sqrt(np.maximum(share @ np.square(rows - mean), 0.0))
    used = spread > 1e-12 * np.maximum(np.abs(mean), 1e-300)  # a constant moment cannot be moved
    eta = np.zeros(rows.shape[1])
    if used.any():
        unit, goal = spread[used], np.broadcast_to(target, mean.shape)[used]
        slack = np.broadcast_to(variance, mean.shape)[used] / np.square(unit)
        eta[used] = _dual(share, (rows[:, used] - goal) / unit, np.maximum(slack, SLACK)) / unit
    exponent = -(rows @ eta)
    top = exponent.max()
    return Tilt(eta, -float(top + np.log(share @ np.exp(exponent - top))))


def _dual(share: np.ndarray, rows: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """argmin_η log Σ share exp(−rows η) + ½ Σ slack η², by a trust region's Newton steps."""

    def tilted(eta: np.ndarray) -> tuple[float, np.ndarray]:
        exponent = -(rows @ eta)
        top = exponent.max()
        weight = share * np.exp(exponent - top)
        return float(top + np.log(weight.sum())), weight / weight.sum()

    def value(eta: np.ndarray) -> tuple[float, np.ndarray]:
        log_sum, weight = tilted(eta)
        return log_sum + 0.5 * float(slack @ eta**2), slack * eta - weight @ rows

    def curve(eta: np.ndarray) -> np.ndarray:
        weight = tilted(eta)[1]
        mean = weight @ rows
        return (rows * weight[:, None]).T @ rows - np.outer(mean, mean) + np.diag(slack)

    found = minimize(
        value,
        np.zeros(rows.shape[1]),
        jac=True,
        hess=curve,
        method="trust-exact",
        options={"gtol": TOLERANCE, "maxiter": STEPS},
    )
    return np.asarray(found.x)


@dataclass(frozen=True)
class PairColumns:
    """x_u of all users and x_i of all items, and the log as sorted pairs."""

    users: sparse.csr_array
    items: sparse.csr_array
    user: np.ndarray
    item: np.ndarray

    @classmethod
    def of(cls, data: Exposure, name: str) -> PairColumns:
        """Columns that do not vary are left out; the order of the log does not matter."""
        if data.log is None:
            raise InputError(
                f"propensity {name} needs the log itself",
                found="counts only",
                expected="logged pairs",
            )
        n_items = data.counts.n_items
        pair = np.sort(np.asarray(data.log.user, dtype=np.int64) * n_items + data.log.item)
        users = _scaled(data.user_features, data.counts.user_degree)
        items = _scaled(data.item_features, data.counts.item_degree)
        return cls(users, items, pair // n_items, pair % n_items)

    @property
    def sides(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        """Columns of users, and of items."""
        return self.users, self.items

    @property
    def shape(self) -> tuple[int, int]:
        """Users and items."""
        return self.users.shape[0], self.items.shape[0]

    @property
    def n_pairs(self) -> int:
        """All pairs."""
        return self.shape[0] * self.shape[1]

    def some_pairs(self) -> Pairs:
        """All pairs of a small population, random ones of a large one."""
        pair = np.arange(min(self.n_pairs, MEAN_PAIRS))
        if self.n_pairs > MEAN_PAIRS:
            pair = generator(0, "all pairs").integers(self.n_pairs, size=MEAN_PAIRS)
        return pair // self.shape[1], pair % self.shape[1]


def _scaled(features: sparse.csr_array | None, degree: np.ndarray) -> sparse.csr_array:
    """Features and log(1 + rows), every column that varies divided by its standard deviation."""
    own = sparse.csr_array(np.log1p(degree.astype(np.float64))[:, None])
    both = (
        own if features is None else sparse.csr_array(sparse.hstack([features, own], format="csr"))
    )
    mean, square = (np.asarray(x.mean(0)).ravel() for x in (both, both.multiply(both)))
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    used = spread > 1e-9
    scale = sparse.diags_array(1.0 / spread[used])
    return sparse.csr_array(both[:, used] @ scale)


class Balanced(FittedPropensity):
    """logit p = c + βᵀx, fitted by likelihood and by balance of x:

        min_{c, β} mean_D CE(o, p) + strength · ‖mean_D (o/p − (1 − o)/(1 − p)) (x − x̄)‖² +
        ridge/(2|D|) · ‖β‖².

    The propensity of IPS-V2 and DR-V2 ("Propensity matters: towards measuring and enhancing
    balancing for recommendation", ICML 2023). Since 1/(1 − p) = 1 + exp(c + βᵀx) splits into users
    and items, the balance is exact over all pairs. Assumed: the functions to balance are the
    columns of x, centred, so that the number of seen pairs is left to the likelihood. Without
    strength it is logistic regression on x.
    """

    name = "balanced"

    def _fit(self, data: Exposure) -> None:
        problem = BalanceProblem(PairColumns.of(data, self.name))
        point = np.append(logit(data.rate), np.zeros(sum(problem.widths)))
        # likelihood first: far from it, 1/p is too steep to walk down
        for problem.strength in (0.0, STRENGTH):
            point = minimize(
                problem.value,
                point,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-7},
            ).x
        self.constant_, self.user_, self.item_ = found = problem.scores(point)
        self.imbalance_ = float(np.abs(np.concatenate(problem.moments(*found)[0])).max(initial=0.0))

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return expit(self.constant_ + self.user_[users] + self.item_[items])

    def _details(self) -> dict[str, Any]:
        return {"strength": STRENGTH, "ridge": RIDGE, "largest_imbalance": self.imbalance_}


class BalanceProblem:
    """The objective of `Balanced` and its gradient, in the parameters (c, β of users, β of
    items)."""

    strength = 0.0

    def __init__(self, columns: PairColumns) -> None:
        self.columns, self.n_pairs, self.shape = columns.sides, columns.n_pairs, columns.shape
        self.widths = columns.users.shape[1], columns.items.shape[1]
        self.means = [np.asarray(x.mean(0)).ravel() for x in self.columns]
        self.log, self.pairs = (columns.user, columns.item), columns.some_pairs()
        self.degrees = self._by_side(self.log, np.ones(columns.user.size))

    def _by_side(self, codes: Pairs, values: np.ndarray) -> list[np.ndarray]:
        """Sums of values of pairs by user, and by item."""
        return [np.bincount(code, values, n) for code, n in zip(codes, self.shape, strict=True)]

    def scores(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """c, βᵀx_u and βᵀx_i."""
        constant, *slopes = np.split(point, np.cumsum([1, self.widths[0]]))
        user, item = (x @ beta for x, beta in zip(self.columns, slopes, strict=True))
        return float(constant[0]), user, item

    def value(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Cross-entropy, balance and ridge, and their gradient."""
        constant, user, item = self.scores(point)
        eta = constant + user[self.pairs[0]] + item[self.pairs[1]]
        seen = self.degrees[0] @ (constant + user) + self.degrees[1] @ item
        ridge = RIDGE / self.n_pairs * np.append(0.0, point[1:])
        loss = np.mean(np.logaddexp(0.0, eta)) - seen / self.n_pairs + 0.5 * float(ridge @ point)
        expected = self._by_side(self.pairs, expit(eta) / eta.size)
        slopes = [e - d / self.n_pairs for e, d in zip(expected, self.degrees, strict=True)]
        if self.strength:
            moments, steep, odds = self.moments(constant, user, item)
            loss += self.strength * sum(float(m @ m) for m in moments)
            weight = [
                2.0 * self.strength / self.n_pairs * (x @ m - mean @ m)
                for x, m, mean in zip(self.columns, moments, self.means, strict=True)
            ]
            change = (weight[0][self.log[0]] + weight[1][self.log[1]]) * steep
            for k, moved in enumerate(self._by_side(self.log, change)):
                other = weight[k] * odds[1 - k].sum() + weight[1 - k] @ odds[1 - k]
                slopes[k] += moved - odds[k] * other
        parts = [x.T @ slope for x, slope in zip(self.columns, slopes, strict=True)]
        return float(loss), np.concatenate([[slopes[0].sum()], *parts]) + ridge

    def moments(
        self, constant: float, user: np.ndarray, item: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray, Pairs]:
        """mean_D (o/p − (1 − o)/(1 − p)) (x − x̄) of users' and of items' columns; the slope of
        o/p + o/(1 − p) of the log, and the odds by which 1/(1 − p) splits."""
        eta = np.clip(constant + user[self.log[0]] + item[self.log[1]], -STEEPEST, STEEPEST)
        up, down = np.exp(eta), np.exp(-eta)
        odds = tuple(np.exp(np.clip(x, -STEEPEST, STEEPEST)) for x in (constant + user, item))
        # o/p, and (1 − o)/(1 − p) taken off where it was counted for all pairs
        sums = self._by_side(self.log, 2.0 + up + down)
        found = []
        for k, logged in enumerate(sums):
            total = logged - self.shape[1 - k] - odds[k] * odds[1 - k].sum()
            found.append((self.columns[k].T @ total - self.means[k] * total.sum()) / self.n_pairs)
        return found, up - down, (odds[0], odds[1])


class Kernel(FittedPropensity):
    """Weights of most entropy under which kernels around some anchors have the means that they have
    over all pairs:

        min_w Σ_O w log w,   |Σ_O w K_j/Σ_O w − mean_D K_j| small for J anchors j;   1/p ∝ w.

    ("Debiased collaborative filtering with kernel-based causal balancing", ICLR 2024.) The kernel
    is Gaussian, K_j(u, i) = exp(−‖x_u − a_j‖²/h_u − ‖x_i − b_j‖²/h_i), a product of a user's and an
    item's part, so that its mean over all pairs is a product of means. Assumed: anchors are random
    pairs (the paper's random kernel balancing), h is the mean squared distance between two users or
    items, and a mean may differ by what chance alone makes of a log of this length. The scale of p
    is set by the number of seen pairs, p at most 1.
    """

    name = "kernel"

    def _fit(self, data: Exposure) -> None:
        columns = PairColumns.of(data, self.name)
        random = generator(0, "anchors")
        self.user_kernel_, self.item_kernel_ = (
            gaussian_kernels(x, random.integers(x.shape[0], size=ANCHORS))
            for x in (columns.users, columns.items)
        )
        step = -(-columns.user.size // BALANCED_ROWS)
        logged = self._kernels(columns.user[::step], columns.item[::step])
        mean, square = (
            np.mean(self.user_kernel_**power, 0) * np.mean(self.item_kernel_**power, 0)
            for power in (1, 2)
        )
        chance = np.maximum(square - mean**2, 0.0) / columns.user.size
        self.eta_ = entropy_balance(np.ones(len(logged)), logged, mean, chance).eta
        self.log_scale_ = self._scale(columns, float(data.n_seen))

    def _scale(self, columns: PairColumns, n_seen: float) -> float:
        """Σ_D min(p, 1) is the number of seen pairs."""
        users, items = columns.some_pairs()
        log_p = np.concatenate(
            [self._log_odds(users[part], items[part]) for part in row_slices(users.size)]
        )
        goal = min(n_seen / columns.n_pairs, 1.0)

        def excess(shift: float) -> float:
            return float(np.mean(np.exp(np.minimum(log_p + shift, 0.0)))) - goal

        low, high = np.log(goal) - log_p.max() - 1.0, -log_p.min() + 1.0
        return float(brentq(excess, low, high)) if excess(high) > 0.0 else float(high)

    def _kernels(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return self.user_kernel_[users] * self.item_kernel_[items]

    def _log_odds(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return self._kernels(users, items) @ self.eta_

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        return np.exp(np.minimum(self._log_odds(users, items) + self.log_scale_, 0.0))

    def _details(self) -> dict[str, Any]:
        return {"anchors": ANCHORS}


def gaussian_kernels(columns: sparse.csr_array, anchors: np.ndarray) -> np.ndarray:
    """exp(−‖x − x_anchor‖²/h), [entities, anchors], h the mean squared distance between two
    entities; 1 without any."""
    norm = np.asarray(columns.multiply(columns).sum(1)).ravel()
    mean = np.asarray(columns.mean(0)).ravel()
    width = 2.0 * float(norm.mean() - mean @ mean)
    if width <= 1e-12:
        return np.ones((columns.shape[0], anchors.size))
    product = np.asarray((columns @ columns[anchors].T).todense())
    return np.asarray(
        np.exp(-np.maximum(norm[:, None] + norm[anchors] - 2.0 * product, 0.0) / width)
    )
