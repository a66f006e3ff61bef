"""How much of each score to take: ridge regression centred on a prior, as strong as leave-one-out errors can bear.

    minimise Σ_rows (y − prior − x c − b)² + α ‖c‖² + κ b²

The columns x are standardised. α is the largest one whose squared leave-one-out errors exceed those of the best α by no
more than one standard error of their paired difference. α = ∞, the prior itself, is among the candidates, so that few
rows change little. Everything here sees arrays.

The level b has a penalty of its own: under an α that a few hundred rows ask for, an error of the mean that they clearly
show would stay. κ = 1/(t² − 1) per row leaves the share 1 − 1/t² of a mean residual at t standard errors, the share
that is not chance; below `CLEAR_LEVEL` it leaves none.

Squared error rewards what moves few large scores, and may pay for it with the order of all others: where uniform rows
show that of two scores one orders the items of a user clearly worse (`rank_gain`), that one is not taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from puidrec.evaluation.auc import user_auc

ALPHAS = np.concatenate([np.logspace(-1.0, 6.0, 36), [np.inf]])
Z95 = 1.959964
CLEAR_LEVEL = 2.0
"""t of the mean residual from which the level is moved."""


class Mixture(NamedTuple):
    """Coefficients, and what they are worth."""

    coefficient: np.ndarray
    alpha: float
    left_out: np.ndarray
    """What is left of `residual` in each row by the fit to the others."""
    gain: Interval
    """Mean squared error of the prior less that of the mixture, by leave-one-out."""
    level: float = 0.0
    """b."""

    @property
    def error(self) -> np.ndarray:
        """Squared leave-one-out error of each row."""
        return np.asarray(self.left_out**2)


class Interval(NamedTuple):
    """A mean and its 95 % interval; rows of one user are not independent."""

    mean: float
    low: float
    high: float

    @property
    def standard_error(self) -> float:
        """Half the interval over 1.96."""
        return (self.high - self.low) / (2.0 * Z95)


def fit_mixture(
    x: np.ndarray, residual: np.ndarray, user: np.ndarray, *, level: bool = False, still: np.ndarray | None = None
) -> Mixture:
    """Coefficients of x for `residual` = y − prior, by the paired one-standard-error rule; `level`: with b.

    still: columns of other pairs, at which the prior is to stay; they add Σ (x c)² to what is minimised.
    """
    n, width = x.shape
    if n < 2:
        return Mixture(np.zeros(width), np.inf, residual, Interval(0.0, 0.0, 0.0))
    share = level_share(residual, user) if level else 0.0
    moved = x - share * x.mean(0)
    square = x.T @ x - share * n * np.multiply.outer(x.mean(0), x.mean(0))
    values, axes = np.linalg.eigh(square if still is None else square + still.T @ still)
    z, values = moved @ axes, np.maximum(values, 0.0)
    base = residual - share * residual.mean()
    moments = axes.T @ (x.T @ base)
    left_out = np.stack([_leave_one_out(z, values, moments, base, alpha, share / n) for alpha in ALPHAS])
    errors = left_out**2
    chosen = _largest_bearable(errors, user)
    alpha = float(ALPHAS[chosen])
    coefficient = axes @ (moments / (values + alpha)) if np.isfinite(alpha) else np.zeros(width)
    gain = paired_interval(residual**2 - errors[chosen], user)
    return Mixture(coefficient, alpha, left_out[chosen], gain, share * float(np.mean(residual - x @ coefficient)))


def level_share(residual: np.ndarray, user: np.ndarray) -> float:
    """n/(n + κ): the share of the mean residual that the level takes up; 0 where chance may have made it."""
    mean = paired_interval(residual, user)
    chance, seen = mean.standard_error**2, mean.mean**2
    return 1.0 - chance / seen if seen > CLEAR_LEVEL**2 * chance else 0.0


def _leave_one_out(
    z: np.ndarray, values: np.ndarray, moments: np.ndarray, residual: np.ndarray, alpha: float, own: float = 0.0
) -> np.ndarray:
    """Errors of each row by the fit to the others, in closed form: e / (1 − h); own: what the level adds to h."""
    shrunk = 1.0 / (values + alpha) if np.isfinite(alpha) else np.zeros_like(values)
    hat = (z**2) @ shrunk + own
    return np.asarray((residual - z @ (moments * shrunk)) / np.maximum(1.0 - hat, 1e-6))


def _largest_bearable(errors: np.ndarray, user: np.ndarray) -> int:
    """The last α whose errors are within one standard error of the best one's."""
    best = int(np.argmin(errors.mean(1)))
    for k in range(len(errors) - 1, best, -1):
        excess = paired_interval(errors[k] - errors[best], user)
        if excess.mean <= excess.standard_error:
            return k
    return best


def pays(base: np.ndarray, richer: np.ndarray, user: np.ndarray) -> Interval:
    """What the richer of two mixtures gains, by the leave-one-out errors of both."""
    return paired_interval(base - richer, user)


def paired_interval(difference: np.ndarray, user: np.ndarray) -> Interval:
    """Mean of paired differences; the standard error counts users, not rows."""
    mean = float(difference.mean())
    code = np.unique(user, return_inverse=True)[1]
    sums = np.bincount(code, difference - mean)
    clusters = max(sums.size, 2)
    error = float(np.sqrt(np.sum(sums**2) * clusters / (clusters - 1))) / difference.size
    return Interval(mean, mean - Z95 * error, mean + Z95 * error)


def rank_gain(user: np.ndarray, liked: np.ndarray, score: np.ndarray, base: np.ndarray) -> Interval:
    """AUC within users of one score less that of another; 0 without users who have rows of both labels."""
    own, other = (user_auc(user, values, liked) for values in (score, base))
    return paired_interval(own.values - other.values, own.users) if own.users.size > 1 else Interval(0.0, 0.0, 0.0)
