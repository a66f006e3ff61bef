"""The mixture: what uniform ratings say of the weights of fitted models, as one Bayesian
regression.

    y_r = Σ_g Σ_{k in g} x_rk β_k + a_item(r) + b_user(r) + ε_r

    β_k ~ N(0, τ_g²/K_g)   the K_g columns of group g (level, members, exposure, slope, personal)
    a_i ~ N(0, τ_items²),   b_u ~ N(0, τ_users²),   ε_r ~ N(0, σ²)
    τ_g, σ ~ half-normal with the scales of `SCALES`; y is a rating in 0..1 less what the prior
    model predicts

Given the standard deviations everything is Gaussian and in closed form. They are averaged over, not
maximised, for with few rows their mode is 0: adaptive importance sampling draws sets of them, first
as wide as the prior, then three times around the sets that explain the rows, and weighs each by
prior × marginal likelihood over the mixture of all proposals. τ_items and τ_users enter through
their ratios to σ, which lie on a grid (`RATIOS`): the rows are whitened once per point of the grid
(`Crossed`), and a draw costs the Cholesky factor of a matrix as wide as there are columns.

Everything here sees arrays. Neither the order of rows nor that of users, items or columns matters,
up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse
from scipy.special import gammaln, logsumexp

SCALES = {
    "level": 0.3,
    "members": 0.06,
    "exposure": 0.06,
    "slope": 0.06,
    "personal": 0.04,
    "items": 0.04,
    "users": 0.06,
    "noise": 0.3,
}
"""Half-normal priors of standard deviations, for ratings in 0..1."""
RATIOS = np.array([0.0, 0.1, 0.2, 0.35, 0.6, 1.0])
"""Standard deviation of user or item effects over that of the noise."""
POINTS = RATIOS.size**2
"""Points of the grid: a ratio of users and one of items, numbered row by row."""
ROUNDS, DRAWS = 4, 150
MOST_ROUNDS, ENOUGH = 8, 100.0
"""Rounds go on up to this many, where there are fewer effective draws than this."""
FEWEST = 25.0
"""Effective draws that a proposal is made from."""
FREEDOM = 5.0
"""Degrees of freedom of the proposals: tails wider than the posterior's."""
MOST_INNER = 2_000
"""Entities of the smaller side that have effects, those with the most rows; a Cholesky factor has
as many rows."""
NEGLIGIBLE = 0.02
"""Share of the weight below which a point of the grid is left out of the means of effects."""


class Side(NamedTuple):
    """Effects of users or of items, given the coefficients β: mean at the posterior mean of β, and
    how they move."""

    mean: np.ndarray
    """[entities]; 0 for an entity without rows."""
    variance: np.ndarray
    """Around the mean that β gives, [entities]."""
    slope: np.ndarray
    """−∂ effect/∂β: what a column says of an entity's rows is not said again by its effect,
    [entities, columns]."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Coefficients, effects and noise, averaged over the standard deviations."""

    coefficient: np.ndarray
    covariance: np.ndarray
    users: Side
    items: Side
    """Of no entities where there are no effects."""
    noise: float
    """Posterior mean of σ²."""
    deviations: dict[str, float]
    """Posterior mean of the standard deviation of each group, `users`, `items` and `noise`."""
    effective_draws: float
    log_evidence: float
    """Log marginal likelihood of the rows."""


def fit_mixture(
    columns: Mapping[str, np.ndarray],
    y: np.ndarray,
    rng: np.random.Generator,
    *,
    user: np.ndarray | None = None,
    item: np.ndarray | None = None,
    sizes: tuple[int, int] = (0, 0),
    known: tuple[np.ndarray, float] | None = None,
) -> Posterior:
    """The posterior of the mixture.

    columns: by group, [rows, K_g]. user, item: codes below `sizes`, for effects; None: there are no
    effects. known: columns of pairs at which y is known to be 0, times the root of their weight,
    and the sum of their weights.
    """
    widths = np.array([x.shape[1] for x in columns.values()])
    rows = Crossed(np.column_stack([*columns.values(), y]), user, item, sizes)
    likelihood = Likelihood(rows, tuple(columns), widths, known)
    draws = importance_sample(likelihood, rng)
    return likelihood.posterior(draws)


class Draws(NamedTuple):
    """Sets of standard deviations with their weights."""

    log_scale: np.ndarray
    """log τ_g/σ, [draws, groups]."""
    log_sigma: np.ndarray
    point: np.ndarray
    """Of the grid, [draws]."""
    weight: np.ndarray
    """Sum 1."""
    log_evidence: float


@dataclass(frozen=True, eq=False)
class Whitened:
    """Rows with user and item effects of given ratios integrated out: W = I + ρ_u² Z_u Z_uᵀ + ρ_i²
    Z_i Z_iᵀ."""

    gram: np.ndarray
    """AᵀW⁻¹A of A = [X, y]."""
    log_det: float
    """log |W|."""


class Crossed:
    """Rows A = [X, y] of users × items, ready to be whitened. The side with more entities is
    eliminated by its diagonal:

    D = I + ρ_o² Z_o Z_oᵀ has D⁻¹ = I − Z_o diag(s) Z_oᵀ with s = ρ_o²/(1 + n ρ_o²), and W = D + ρ²
    Z Zᵀ is solved through H = I + ρ² Zᵀ D⁻¹ Z. All of it needs sums of rows by entity, not the
    rows.
    """

    def __init__(
        self,
        a: np.ndarray,
        user: np.ndarray | None,
        item: np.ndarray | None,
        sizes: tuple[int, int],
    ) -> None:
        self.n, self.sizes, self.gram = len(a), sizes, a.T @ a
        self.crossed = user is not None and item is not None
        self._made: dict[int, Whitened] = {}
        self._eliminated: dict[float, tuple[np.ndarray, sparse.csr_array, np.ndarray]] = {}
        if user is None or item is None:
            return
        codes = [np.unique(side, return_inverse=True) for side in (user, item)]
        self.swapped = codes[0][0].size < codes[1][0].size  # then items are the outer side
        (self.outer, p), (self.inner, q) = codes[::-1] if self.swapped else codes
        count = np.bincount(q)
        if (
            count.size > MOST_INNER
        ):  # ties at the edge are left out together, so that labels do not decide
            kept = count > np.sort(count)[-MOST_INNER - 1]
            self.inner, new = self.inner[kept], np.cumsum(kept) - 1
            inside = np.flatnonzero(kept[q])
        else:
            new, inside = np.arange(count.size), np.arange(q.size)
        shape = (self.n, self.outer.size), (self.n, self.inner.size)
        outer = sparse.csr_array((np.ones(self.n), (np.arange(self.n), p)), shape=shape[0])
        inner = sparse.csr_array((np.ones(inside.size), (inside, new[q[inside]])), shape=shape[1])
        self.outer_count = np.bincount(p).astype(float)
        self.inner_count = np.bincount(new[q[inside]], minlength=self.inner.size).astype(float)
        self.outer_sum, self.inner_sum = outer.T @ a, inner.T @ a
        self.both = sparse.csr_array(outer.T @ inner)

    def whitened(self, point: int) -> Whitened:
        """At a point of the grid."""
        if not self.crossed:
            return Whitened(self.gram, 0.0)
        if point not in self._made:
            s, factor, moved, rho = self._solved(point)
            gram = self.gram - (self.outer_sum.T * s) @ self.outer_sum
            half = linalg.solve_triangular(factor, moved, lower=True) * rho
            log_det = 2.0 * np.log(np.diag(factor)).sum()
            log_det += np.log1p(self.outer_count * self._rho(point)[0] ** 2).sum()
            self._made[point] = Whitened(gram - half.T @ half, float(log_det))
        return self._made[point]

    def effects(self, point: int) -> tuple[Side, Side]:
        """User and item effects given β, for σ = 1: `slope` has a column per column of A, the last
        for y itself."""
        if not self.crossed:
            none = np.zeros(0)
            return (Side(none, none, np.zeros((0, len(self.gram) - 1))),) * 2
        s, factor, moved, rho = self._solved(point)
        lower = linalg.lapack.dpotri(factor, lower=True)[0]
        inverse = rho**2 * (lower + np.tril(lower, -1).T)
        inner = inverse @ moved
        outer = s[:, None] * (self.outer_sum - self.both @ inner)
        p, q = self.both.nonzero()
        turned = self.both.data * np.asarray(self.both @ inverse)[p, q]
        spread = np.bincount(p, turned, self.outer.size)
        outer_size, inner_size = self.sizes[::-1] if self.swapped else self.sizes
        prior = self._rho(point)
        found = (
            _of_all(outer_size, self.outer, outer, s + s**2 * spread, prior[0] ** 2),
            _of_all(inner_size, self.inner, inner, np.diag(inverse), prior[1] ** 2),
        )
        return found[::-1] if self.swapped else found

    def _rho(self, point: int) -> tuple[float, float]:
        """Ratios of the outer and of the inner side."""
        ratio = divmod(point, RATIOS.size)
        outer, inner = ratio[::-1] if self.swapped else ratio
        return float(RATIOS[outer]), float(RATIOS[inner])

    def _solved(self, point: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """s, the Cholesky factor of H, ZᵀD⁻¹A, and ρ of the inner side."""
        outer, rho = self._rho(point)
        if outer not in self._eliminated:
            s = outer**2 / (1.0 + outer**2 * self.outer_count)
            weighted = sparse.csr_array(self.both.T.multiply(s))
            left = sparse.diags_array(self.inner_count) - weighted @ self.both
            self._eliminated[outer] = s, left, self.inner_sum - weighted @ self.outer_sum
        s, left, moved = self._eliminated[outer]
        h = (rho**2 * left).toarray()
        h[np.diag_indices_from(h)] += 1.0
        return s, np.linalg.cholesky(h), moved, rho


def _of_all(size: int, entity: np.ndarray, on_a: np.ndarray, own: np.ndarray, prior: float) -> Side:
    """Effects of all entities from those that have rows; the others are as the prior has them."""
    slope, variance = np.zeros((size, on_a.shape[1])), np.full(size, prior)
    slope[entity], variance[entity] = on_a, own
    return Side(slope[:, -1], variance, slope[:, :-1])


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Prior and marginal likelihood of sets of standard deviations."""

    rows: Crossed
    groups: tuple[str, ...]
    widths: np.ndarray
    known: tuple[np.ndarray, float] | None

    @cached_property
    def rough_sigma(self) -> float:
        """What a ridge regression leaves of y."""
        gram = self.rows.gram
        x, b, yy = gram[:-1, :-1], gram[:-1, -1], float(gram[-1, -1])
        ridge = np.trace(x) / max(len(x), 1) * 0.1 + 1e-12
        left = yy - b @ np.linalg.solve(x + ridge * np.eye(len(x)), b) if len(x) else yy
        return float(np.clip(np.sqrt(left / self.rows.n), 1e-3, 1.0))

    def log_prior(
        self, log_scale: np.ndarray, log_sigma: np.ndarray, points: np.ndarray
    ) -> np.ndarray:
        """Of log τ_g/σ, log σ and the points, whose ratios stand for the stretch of the grid around
        them."""
        result = _half_normal(log_sigma, SCALES["noise"])
        for k, name in enumerate(self.groups):
            result = result + _half_normal(log_scale[:, k] + log_sigma, SCALES[name])
        if self.rows.crossed:
            for name, ratio in zip(("users", "items"), np.divmod(points, RATIOS.size), strict=True):
                table = self.log_ratio_prior(name, np.exp(log_sigma))
                result = result + table[np.arange(len(ratio)), ratio]
        return result

    @staticmethod
    def log_ratio_prior(name: str, sigma: np.ndarray) -> np.ndarray:
        """Log probability of every point of the grid given σ, [draws, ratios]."""
        edges = np.concatenate([[0.0], (RATIOS[1:] + RATIOS[:-1]) / 2.0, [1.5 * RATIOS[-1]]])
        density = -0.5 * (sigma[:, None] * RATIOS / SCALES[name]) ** 2 + np.log(np.diff(edges))
        return np.asarray(density - logsumexp(density, axis=1, keepdims=True))

    def given(
        self, log_scale: np.ndarray, points: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Q and log |V| of y ~ N(0, σ²V), and the number of rows.

        V = W + X S² Xᵀ with S = diag(τ_g/σ √K_g), by M = I + S XᵀW⁻¹X S: log |V| = log |W| + log
        |M|, and Q = yᵀV⁻¹y = yᵀW⁻¹y − ‖M^-½ S XᵀW⁻¹y‖².
        """
        quadratic, volume, n = np.zeros(len(log_scale)), np.zeros(len(log_scale)), 0.0
        for point, at in _by_point(points):
            gram, n, log_det = self._gram(point)
            m, c, _ = self._scaled(log_scale[at], gram)
            factor = np.linalg.cholesky(m)
            half = np.linalg.solve(factor, c[..., None])[..., 0]
            quadratic[at] = np.maximum(gram[-1, -1] - (half**2).sum(1), 1e-12)
            volume[at] = 2.0 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1) + log_det
        return quadratic, volume, n

    def _gram(self, point: int) -> tuple[np.ndarray, float, float]:
        """AᵀW⁻¹A with the known pairs, the number of rows, log |W|."""
        white = self.rows.whitened(point)
        if self.known is None:
            return white.gram, self.rows.n, white.log_det
        gram, (fixed, weight) = white.gram.copy(), self.known
        gram[:-1, :-1] += fixed.T @ fixed
        return gram, self.rows.n + weight, white.log_det

    def _scaled(
        self, log_scale: np.ndarray, gram: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """M, S XᵀW⁻¹y and the diagonal of S of each draw."""
        s = np.exp(np.repeat(log_scale, self.widths, axis=1)) / np.sqrt(
            np.repeat(self.widths, self.widths)
        )
        m = np.eye(s.shape[1]) + s[:, :, None] * gram[:-1, :-1] * s[:, None, :]
        return m, s * gram[:-1, -1], s

    def posterior(self, draws: Draws) -> Posterior:
        """Moments of coefficients and effects over the draws: β has mean S M⁻¹ S XᵀW⁻¹y and
        covariance σ² S M⁻¹ S."""
        width, sigma2 = int(self.widths.sum()), np.exp(2.0 * draws.log_sigma)
        mean, second = np.zeros(width), np.zeros((width, width))
        sides, counted = list[list[Side]](), 0.0
        for point, at in _by_point(draws.point):
            m, c, s = self._scaled(draws.log_scale[at], self._gram(point)[0])
            inverse, w = np.linalg.inv(m), draws.weight[at]
            beta = s * (inverse @ c[..., None])[..., 0]
            second += np.einsum("d,dk,dkl,dl->kl", w * sigma2[at], s, inverse, s)
            second += (beta.T * w) @ beta
            mean += w @ beta
            if (share := float(w.sum())) > NEGLIGIBLE:
                counted += share
                sides.append(
                    [
                        Side(
                            share * one.mean - one.slope @ (w @ beta),
                            one.variance * (w @ sigma2[at]),
                            share * one.slope,
                        )
                        for one in self.rows.effects(point)
                    ]
                )
        users, items = (
            Side(*(sum(part) / counted for part in zip(*side, strict=True)))
            for side in zip(*sides, strict=True)
        )
        sds = {
            name: draws.weight @ np.exp(draws.log_scale[:, k] + draws.log_sigma)
            for k, name in enumerate(self.groups)
        }
        if self.rows.crossed:
            for name, ratio in zip(
                ("users", "items"), np.divmod(draws.point, RATIOS.size), strict=True
            ):
                sds[name] = draws.weight @ (RATIOS[ratio] * np.exp(draws.log_sigma))
        sds["noise"] = draws.weight @ np.exp(draws.log_sigma)
        return Posterior(
            mean,
            second - np.outer(mean, mean),
            users,
            items,
            float(draws.weight @ sigma2),
            {name: float(sd) for name, sd in sds.items()},
            float(1.0 / np.sum(draws.weight**2)),
            draws.log_evidence,
        )


def _by_point(point: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The points of the grid among draws, and which draws are at each."""
    return [(int(one), np.flatnonzero(point == one)) for one in np.unique(point)]


def _half_normal(log_sd: np.ndarray, scale: float) -> np.ndarray:
    """Log density of log τ where τ is half-normal."""
    return np.asarray(
        0.5 * np.log(2.0 / np.pi) - np.log(scale) - 0.5 * (np.exp(log_sd) / scale) ** 2 + log_sd
    )


class Proposal(NamedTuple):
    """Where a round draws from: a Student distribution of log τ_g/σ, and a table of the points of
    the grid."""

    centre: np.ndarray
    factor: np.ndarray
    """Cholesky factor of the scale matrix."""
    table: np.ndarray
    """Probabilities of the points, [`POINTS`]."""

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n draws of log τ_g/σ, and of points of the grid."""
        normal = rng.standard_normal((n, self.centre.size)) @ self.factor.T
        stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, n))
        point = np.searchsorted(np.cumsum(self.table)[:-1], rng.random(n))
        return self.centre + normal * stretch[:, None], point

    def log_density(self, log_scale: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Of draws."""
        d = self.centre.size
        z = linalg.solve_triangular(self.factor, (log_scale - self.centre).T, lower=True)
        student = _log_student((z**2).sum(0), d) - np.log(np.diag(self.factor)).sum()
        return np.asarray(student + np.log(self.table[point]))


def importance_sample(likelihood: Likelihood, rng: np.random.Generator) -> Draws:
    """Adaptive importance sampling: `ROUNDS` of `DRAWS` or more, each around the draws so far; all
    are weighed together.

    What is drawn are τ_g/σ and the point of the grid. They leave a quadratic form Q of the rows, so
    that σ² is close to Q/n: log σ is drawn around that, however many rows there are.
    """
    first = _first_proposal(likelihood)
    proposals, parts = [first], list[tuple[np.ndarray, ...]]()
    while True:
        log_scale, point = proposals[-1].draw(rng, DRAWS)
        quadratic, volume, n = likelihood.given(log_scale, point)
        width = 1.0 / np.sqrt(2.0 * n)
        step = rng.standard_t(FREEDOM, DRAWS)
        log_sigma = 0.5 * np.log(quadratic / n) + width * step
        explained = (
            quadratic * np.exp(-2.0 * log_sigma)
            + volume
            + n * (2.0 * log_sigma + np.log(2.0 * np.pi))
        )
        target = likelihood.log_prior(log_scale, log_sigma, point) - 0.5 * explained
        target -= _log_student(step**2, 1) - np.log(width)
        parts.append((log_scale, log_sigma, point, target))
        log_scale, log_sigma, point, target = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        density = logsumexp(
            [one.log_density(log_scale, point) for one in proposals], axis=0
        ) - np.log(len(proposals))
        log_weight = target - density
        weight = _normal(log_weight)
        if len(parts) == MOST_ROUNDS or (
            len(parts) >= ROUNDS and 1.0 / np.sum(weight**2) >= ENOUGH
        ):
            evidence = float(logsumexp(log_weight) - np.log(log_weight.size))
            return Draws(log_scale, log_sigma, point, weight, evidence)
        proposals.append(_around(log_scale, point, log_weight, first))


def _first_proposal(likelihood: Likelihood) -> Proposal:
    """As wide as the priors, for a σ that a ridge regression of the rows leaves."""
    scales = np.array([SCALES[name] for name in likelihood.groups])
    sigma = likelihood.rough_sigma
    centre = np.log(scales / sigma) - 0.6
    if not likelihood.rows.crossed:
        return Proposal(centre, 1.1 * np.eye(scales.size), np.eye(1, POINTS)[0])
    points, every = np.arange(POINTS), np.ones((POINTS, 1))
    quadratic, volume, n = likelihood.given(centre * every, points)
    log_table = likelihood.log_prior(centre * every, np.full(POINTS, np.log(sigma)), points)
    log_table -= 0.5 * (n * np.log(quadratic) + volume)
    return Proposal(centre, 1.1 * np.eye(scales.size), _mixed(_normal(0.5 * log_table)))


def _around(
    log_scale: np.ndarray, point: np.ndarray, log_weight: np.ndarray, first: Proposal
) -> Proposal:
    """Around the weighted draws. Weights are tempered as far as few draws have most of them: a
    proposal that is too wide costs draws, one that is too narrow costs the truth."""
    power, weight = 1.0, _normal(log_weight)
    while 1.0 / np.sum(weight**2) < FEWEST:
        power *= 0.8
        weight = _normal(power * log_weight)
    d, effective = log_scale.shape[1], 1.0 / np.sum(weight**2)
    trust = effective / (effective + d + 1.0)
    covariance = np.cov(log_scale.T, aweights=weight, ddof=0).reshape(d, d)
    factor = np.linalg.cholesky(covariance + 1e-8 * np.eye(d))
    seen = np.bincount(point, _normal(log_weight), POINTS)
    return Proposal(weight @ log_scale, factor, trust * seen + (1.0 - trust) * first.table)


def _mixed(table: np.ndarray) -> np.ndarray:
    """A table with a little of everything, so that nothing is out of reach."""
    return np.asarray(0.95 * table + 0.05 / table.size)


def _normal(log_weight: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(log_weight - logsumexp(log_weight)))


def _log_student(square: np.ndarray, d: int) -> np.ndarray:
    """Log density of the standard Student distribution in d dimensions at this squared length."""
    constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
    return np.asarray(constant - (FREEDOM + d) / 2 * np.log1p(square / FREEDOM))
