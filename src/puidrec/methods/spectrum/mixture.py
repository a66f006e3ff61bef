"""The mixture: what uniform ratings say of the weights of fitted models, as one Bayesian
regression.

    y_r = Σ_g Σ_{k in g} x_rk β_k + a_user(r) + b_item(r) + ε_r

    β_k ~ N(0, τ_g²/K_g)   the K_g columns of group g (level, members, exposure, slope, personal)
    a_u ~ N(0, τ_users²),   b_i ~ N(0, τ_items²),   ε_r ~ N(0, σ² v_r), v known
    τ, σ ~ half-normal with the scales of `SCALES`, those of columns times λ ~ uniform(0, 2);
    y is a rating in 0..1 less what the prior model predicts

λ is how much is hidden at all: rows that ask for no change of the level ask for little else, and a
large change licenses others.

Given the ratios τ/σ everything is Gaussian and in closed form. They are averaged over, not
maximised, for with few rows their mode is 0: adaptive importance sampling draws sets of ratios,
first as wide as the prior, then around the sets that explain the rows, and weighs each by prior ×
marginal likelihood over the mixture of all proposals. The likelihood takes the ratios of user and
item effects at the nearest of `RATIOS`: so the rows are whitened once per pair of these, and a draw
costs the Cholesky factor of a matrix as wide as there are columns.

Everything here sees arrays. Neither the order of rows nor that of users, items or columns matters,
up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    "users": 0.06,
    "items": 0.04,
    "noise": 0.3,
}
"""Half-normal priors of standard deviations, for ratings in 0..1."""
HIDDEN = (np.arange(10) + 0.5) / 5.0
"""λ, evenly spaced."""
RATIOS = np.array([0.0, 0.1, 0.2, 0.35, 0.6, 1.0])
"""τ/σ of user and item effects, as the likelihood has them."""
ROUNDS, MOST_ROUNDS, DRAWS = 4, 20, 200
ENOUGH, FEWEST = 100.0, 25.0
"""Effective draws at which rounds end, and of which a proposal is made at least."""
FREEDOM = 5.0
"""Degrees of freedom of the proposals: tails wider than the posterior's."""
MOST_INNER = 2_000
"""Entities of the smaller side that have effects, those with the most rows; a Cholesky factor has
as many rows."""
NEGLIGIBLE = 0.02
"""Share of the weight below which a pair of ratios is left out of the means of effects."""


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
    sides: tuple[Side, ...]
    """Effects of users and of items; empty where there are none."""
    noise: float
    """Posterior mean of σ²."""
    deviations: dict[str, float]
    """Posterior mean of the standard deviation of each group, `users`, `items` and `noise`."""
    effective_draws: float
    log_evidence: float
    """Log marginal likelihood of the rows."""


class Codes(NamedTuple):
    """Users and items of rows, of so many each."""

    user: np.ndarray
    item: np.ndarray
    sizes: tuple[int, int]


class Rows:
    """Rows A = [X, y] whose effects are integrated out: W = I + ρ_o² Z_o Z_oᵀ + ρ_i² Z_i Z_iᵀ, with
    the indicators Z of the outer side (of more entities) and of the inner one. All are multiplied
    by `root` = v^-½, so that noise is alike.

    The outer side is eliminated by its diagonal: D = I + ρ_o² Z_o Z_oᵀ has D⁻¹ = I − Z_o diag(s)
    Z_oᵀ with s = ρ_o²/(1 + n ρ_o²), and W = D + ρ_i² Z_i Z_iᵀ is solved through H = I + ρ_i² Z_iᵀ
    D⁻¹ Z_i. All of it needs sums of rows by entity, not the rows.
    """

    def __init__(self, a: np.ndarray, codes: Codes | None, root: np.ndarray) -> None:
        a = a * root[:, None]
        self.gram, self.codes = a.T @ a, codes
        self._known: dict[tuple[int, ...], tuple[np.ndarray, float]] = {}
        if codes is None:
            return
        users = np.unique(codes.user).size >= np.unique(codes.item).size
        self.order = (0, 1) if users else (1, 0)
        code = codes.user, codes.item
        z = [_indicators(code[k], codes.sizes[k], root) for k in self.order]
        count = np.bincount(code[self.order[1]], minlength=codes.sizes[self.order[1]])
        if np.count_nonzero(count) > MOST_INNER:  # ties at the edge are left out together
            z[1] = z[1] @ sparse.diags_array((count > np.sort(count)[-MOST_INNER - 1]) * 1.0)
        self.used = [np.flatnonzero(one.sum(0)) for one in z]
        outer, inner = (one[:, used] for one, used in zip(z, self.used, strict=True))
        self.count = [(one**2).sum(0) for one in (outer, inner)]
        self.total = [outer.T @ a, inner.T @ a]
        self.both = sparse.csr_array(outer.T @ inner)

    def whitened(self, at: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """AᵀW⁻¹A and log |W|, at these places of `RATIOS`."""
        if self.codes is None:
            return self.gram, 0.0
        if at not in self._known:
            (outer, rho), s, factor, moved = self._solved(at)
            half = linalg.solve_triangular(factor, moved, lower=True) * rho
            gram = self.gram - (self.total[0].T * s) @ self.total[0] - half.T @ half
            log_det = np.log1p(self.count[0] * outer**2).sum() + 2 * np.log(np.diag(factor)).sum()
            self._known[at] = gram, float(log_det)
        return self._known[at]

    def effects(self, at: tuple[int, ...]) -> list[Side]:
        """User and item effects for σ = 1 and β = 0; `slope` is how each column of X would do."""
        if self.codes is None:
            return []
        (outer, rho), s, factor, moved = self._solved(at)
        lower = linalg.lapack.dpotri(factor, lower=True)[0]
        inverse = rho**2 * (lower + np.tril(lower, -1).T)  # ρ² H⁻¹
        on_inner = inverse @ moved
        on_outer = s[:, None] * (self.total[0] - self.both @ on_inner)
        p, q = self.both.nonzero()
        moves = np.bincount(p, self.both.data * np.asarray(self.both @ inverse)[p, q], s.size)
        own = [(on_outer, s + s**2 * moves, outer), (on_inner, np.diag(inverse), rho)]
        found = []
        for k, (on_a, variance, ratio) in enumerate(own):
            size = self.codes.sizes[self.order[k]]
            # entities without rows are as the prior has them
            whole = np.zeros((size, on_a.shape[1])), np.full(size, ratio**2)
            whole[0][self.used[k]], whole[1][self.used[k]] = on_a, variance
            found.append(Side(whole[0][:, -1], whole[1], whole[0][:, :-1]))
        return [found[k] for k in self.order]

    def _solved(
        self, at: tuple[int, ...]
    ) -> tuple[tuple[float, float], np.ndarray, np.ndarray, np.ndarray]:
        """ρ_o and ρ_i, s, the Cholesky factor of H, and Z_iᵀD⁻¹A."""
        outer, rho = (float(RATIOS[at[k]]) for k in self.order)
        s = outer**2 / (1.0 + outer**2 * self.count[0])
        weighted = sparse.csr_array(self.both.T.multiply(s))
        h = rho**2 * (sparse.diags_array(self.count[1]) - weighted @ self.both).toarray()
        factor = np.linalg.cholesky(h + np.eye(len(h)))
        return (outer, rho), s, factor, self.total[1] - weighted @ self.total[0]


def _indicators(code: np.ndarray, size: int, values: np.ndarray) -> sparse.csr_array:
    return sparse.csr_array((values, (np.arange(code.size), code)), (code.size, size))


class Draws(NamedTuple):
    """Sets of standard deviations, and what each makes of the rows."""

    log_ratio: np.ndarray
    """log τ/σ of the groups and, where there are effects, of users and items: [draws, ratios]."""
    log_sigma: np.ndarray
    log_weight: np.ndarray
    mean: np.ndarray
    """Of β, [draws, columns]."""
    covariance: np.ndarray
    """Of β for σ = 1, [draws, columns, columns]."""

    @property
    def weight(self) -> np.ndarray:
        """Sum 1."""
        return _share(self.log_weight)


class Given(NamedTuple):
    """What the rows say under given ratios: y ~ N(0, σ²V), and β with σ = 1."""

    quadratic: np.ndarray
    """yᵀV⁻¹y."""
    log_det: np.ndarray
    """log |V|."""
    mean: np.ndarray
    covariance: np.ndarray


def _by_place(log_ratio: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """The places of `RATIOS` that ratios of effects are nearest to, and the draws at each."""
    place = np.searchsorted((RATIOS[1:] + RATIOS[:-1]) / 2.0, np.exp(log_ratio))
    different, which = np.unique(place, axis=0, return_inverse=True)
    for k, at in enumerate(different):
        yield tuple(map(int, at)), np.flatnonzero(which.ravel() == k)


@dataclass(frozen=True, eq=False)
class Regression:
    """The rows and the groups of their columns."""

    rows: Rows
    n: float
    widths: Mapping[str, int]
    """Columns of each group."""

    @property
    def names(self) -> tuple[str, ...]:
        """What has a standard deviation, but for the noise."""
        return (*self.widths, *(("users", "items") if self.rows.codes is not None else ()))

    def given(self, log_ratio: np.ndarray) -> Given:
        """With S = diag(τ_g/σ √K_g), V = W + X S² Xᵀ and M = I + S XᵀW⁻¹X S: β has covariance C = S
        M⁻¹ S and mean C XᵀW⁻¹y, yᵀV⁻¹y = yᵀW⁻¹y − yᵀW⁻¹X C XᵀW⁻¹y, and |V| = |W| |M|."""
        width = np.array([*self.widths.values()])
        s = np.repeat(np.exp(log_ratio[:, : width.size]) / np.sqrt(width), width, axis=1)
        n, k = s.shape
        found = Given(np.zeros(n), np.zeros(n), np.zeros((n, k)), np.zeros((n, k, k)))
        for place, at in _by_place(log_ratio[:, width.size :]):
            gram, log_det = self.rows.whitened(place)
            x, c, yy = gram[:-1, :-1], gram[:-1, -1], gram[-1, -1]
            scale = s[at][:, :, None] * s[at][:, None]
            m = np.eye(k) + scale * x
            found.covariance[at] = scale * np.linalg.inv(m)
            found.mean[at] = found.covariance[at] @ c
            found.quadratic[at] = np.maximum(yy - found.mean[at] @ c, 1e-12)
            found.log_det[at] = np.linalg.slogdet(m)[1] + log_det
        return found

    def log_prior(self, log_sd: np.ndarray) -> np.ndarray:
        """Log densities of the logarithms of standard deviations, averaged over λ."""
        z = log_sd - np.log([SCALES[name] for name in (*self.names, "noise")])
        z, others = np.split(z, [len(self.widths)], axis=1)
        given = [_half_normal(z - np.log(share)) for share in HIDDEN]
        return np.asarray(logsumexp(given, axis=0) - np.log(len(given)) + _half_normal(others))

    def posterior(self, draws: Draws) -> Posterior:
        """Moments over the draws."""
        weight, sigma2 = draws.weight, np.exp(2.0 * draws.log_sigma)
        mean = weight @ draws.mean
        second = np.einsum("d,dkl->kl", weight * sigma2, draws.covariance)
        second += (draws.mean.T * weight) @ draws.mean
        parts, counted = (list[Side](), list[Side]()), 0.0
        for place, at in _by_place(draws.log_ratio[:, len(self.widths) :]):
            w, share = weight[at], float(weight[at].sum())
            if share > NEGLIGIBLE:
                counted += share
                for found, one in zip(parts, self.rows.effects(place), strict=False):
                    moved = share * one.mean - one.slope @ (w @ draws.mean[at])
                    found.append(Side(moved, one.variance * (w @ sigma2[at]), share * one.slope))
        sds = np.exp(np.column_stack([draws.log_ratio, 0.0 * weight]) + draws.log_sigma[:, None])
        return Posterior(
            mean,
            second - np.outer(mean, mean),
            tuple(
                Side(*(np.sum(x, axis=0) / counted for x in zip(*one, strict=True)))
                for one in parts
                if one
            ),
            float(weight @ sigma2),
            dict(zip((*self.names, "noise"), (weight @ sds).tolist(), strict=True)),
            _effective(weight),
            float(logsumexp(draws.log_weight) - np.log(weight.size)),
        )


def fit_mixture(
    columns: Mapping[str, np.ndarray],
    y: np.ndarray,
    rng: np.random.Generator,
    codes: Codes | None = None,
    known: tuple[np.ndarray, float] | None = None,
    variance: np.ndarray | None = None,
) -> Posterior:
    """The posterior of the mixture.

    columns: by group, [rows, K_g]. codes: users and items of the rows; None: there are no effects.
    known: columns of pairs at which y is known to be 0, times the root of their weight, and the sum
    of their weights. variance: v of each row; None: 1.
    """
    root = np.ones(y.size) if variance is None else 1.0 / np.sqrt(variance)
    rows, n = Rows(np.column_stack([*columns.values(), y]), codes, root), float(y.size)
    if known is not None:
        rows.gram[:-1, :-1] += known[0].T @ known[0]
        n += known[1]
    regression = Regression(rows, n, {name: x.shape[1] for name, x in columns.items()})
    return regression.posterior(importance_sample(regression, rng))


def _half_normal(z: np.ndarray) -> np.ndarray:
    """Log densities of the logarithms of half-normal variables of scale 1, summed over columns."""
    return np.asarray((z - 0.5 * np.exp(2.0 * z) + 0.5 * np.log(2.0 / np.pi)).sum(1))


class Proposal(NamedTuple):
    """Where a round draws log τ/σ from: a Student distribution."""

    centre: np.ndarray
    factor: np.ndarray
    """Cholesky factor of the scale matrix."""

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """`DRAWS` draws."""
        normal = rng.standard_normal((DRAWS, self.centre.size)) @ self.factor.T
        return self.centre + normal * np.sqrt(FREEDOM / rng.chisquare(FREEDOM, (DRAWS, 1)))

    def log_density(self, log_ratio: np.ndarray) -> np.ndarray:
        """Of draws, up to a constant that all proposals share."""
        z = linalg.solve_triangular(self.factor, (log_ratio - self.centre).T, lower=True)
        return _log_student((z**2).sum(0), len(z)) - np.log(np.diag(self.factor)).sum()


def _log_student(square: np.ndarray, d: int) -> np.ndarray:
    """Log density of the standard Student distribution in d dimensions at this squared length."""
    constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
    return np.asarray(constant - (FREEDOM + d) / 2 * np.log1p(square / FREEDOM))


def importance_sample(regression: Regression, rng: np.random.Generator) -> Draws:
    """Adaptive importance sampling: rounds of draws, each around those so far, weighed together.

    Ratios leave a quadratic form Q of the rows, so that σ² is close to Q/n: log σ is drawn around
    that, however many rows there are.
    """
    n, scale = regression.n, np.array([SCALES[name] for name in regression.names])
    sigma = np.clip(np.sqrt(regression.rows.gram[-1, -1] / n), 1e-3, 1.0)
    proposals = [Proposal(np.log(scale / sigma) - 0.6, 1.1 * np.eye(scale.size))]
    rounds = list[Draws]()
    while True:
        log_ratio = proposals[-1].draw(rng)
        given = regression.given(log_ratio)
        step, width = rng.standard_t(FREEDOM, DRAWS), 1.0 / np.sqrt(2.0 * n)
        log_sigma = 0.5 * np.log(given.quadratic / n) + width * step
        log_sd = np.column_stack([log_ratio + log_sigma[:, None], log_sigma])
        target = regression.log_prior(log_sd) - 0.5 * (
            given.quadratic * np.exp(-2.0 * log_sigma)
            + given.log_det
            + n * (2.0 * log_sigma + np.log(2.0 * np.pi))
        )
        target -= _log_student(step**2, 1) - np.log(width)
        rounds.append(Draws(log_ratio, log_sigma, target, given.mean, given.covariance))
        draws = Draws(*(np.concatenate(part) for part in zip(*rounds, strict=True)))
        density = logsumexp([one.log_density(draws.log_ratio) for one in proposals], axis=0)
        draws = draws._replace(log_weight=draws.log_weight - density + np.log(len(proposals)))
        enough = len(rounds) >= ROUNDS and _effective(draws.weight) >= ENOUGH
        if enough or len(rounds) == MOST_ROUNDS:
            return draws
        proposals.append(_around(draws.log_ratio, draws.log_weight))


def _around(log_ratio: np.ndarray, log_weight: np.ndarray) -> Proposal:
    """Around the weighted draws. Weights are tempered as far as few draws have most of them: a
    proposal that is too wide costs draws, one that is too narrow costs the truth."""
    while _effective(weight := _share(log_weight)) < FEWEST:
        log_weight = 0.8 * log_weight
    d = log_ratio.shape[1]
    covariance = np.cov(log_ratio.T, aweights=weight, ddof=0).reshape(d, d) + 1e-8 * np.eye(d)
    return Proposal(weight @ log_ratio, np.linalg.cholesky(covariance))


def _share(log_weight: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(log_weight - logsumexp(log_weight)))


def _effective(weight: np.ndarray) -> float:
    """How many draws of equal weight these are worth."""
    return float(1.0 / np.sum(weight**2))
