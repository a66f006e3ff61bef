"""How much of each score to take: ridge regression centred on a prior, as strong as leave-one-out errors can bear.

    minimise Σ_rows (y − prior − x c)² + α ‖c‖²

The columns x are standardised. α is the largest one whose squared leave-one-out errors exceed those of the best α by no
more than one standard error of their paired difference. α = ∞, the prior itself, is among the candidates, so that few
rows change little. Everything here sees arrays.

Squared error rewards what moves few large scores, and may pay for it with the order of all others: where uniform rows
show that of two scores one orders the items of a user clearly worse (`rank_gain`), that one is not taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from puidrec.evaluation.auc import user_auc

ALPHAS = np.concatenate([np.logspace(-1.0, 6.0, 36), [np.inf]])
Z95 = 1.959964


class Mixture(NamedTuple):
    """Coefficients, and what they are worth."""

    coefficient: np.ndarray
    alpha: float
    left_out: np.ndarray
    """What is left of `residual` in each row by the fit to the others."""
    gain: Interval
    """Mean squared error of the prior less that of the mixture, by leave-one-out."""

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


def fit_mixture(x: np.ndarray, residual: np.ndarray, user: np.ndarray) -> Mixture:
    """Coefficients of x for `residual` = y − prior, by the paired one-standard-error rule."""
    n, width = x.shape
    if n < 2 or width == 0:
        return Mixture(np.zeros(width), np.inf, residual, Interval(0.0, 0.0, 0.0))
    values, axes = np.linalg.eigh(x.T @ x)
    z, values = x @ axes, np.maximum(values, 0.0)
    moments = z.T @ residual
    left_out = np.stack([_leave_one_out(z, values, moments, residual, alpha) for alpha in ALPHAS])
    errors = left_out**2
    chosen = _largest_bearable(errors, user)
    alpha = float(ALPHAS[chosen])
    coefficient = axes @ (moments / (values + alpha)) if np.isfinite(alpha) else np.zeros(width)
    return Mixture(coefficient, alpha, left_out[chosen], paired_interval(errors[-1] - errors[chosen], user))


def _leave_one_out(
    z: np.ndarray, values: np.ndarray, moments: np.ndarray, residual: np.ndarray, alpha: float
) -> np.ndarray:
    """Errors of each row by the fit to the others, in closed form: e / (1 − h)."""
    if not np.isfinite(alpha):
        return residual
    shrunk = 1.0 / (values + alpha)
    hat = (z**2) @ shrunk
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
