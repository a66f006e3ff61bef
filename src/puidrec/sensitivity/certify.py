"""How much hidden confounding do some uniform ratings prove? The smallest Γ that fits them, with a lower limit.

If the ratio of unseen to seen rating distributions lies within [1/Γ, Γ] given the features, so does the ratio of every
event's probability. The uniform mean reveals the unseen mean, hence a ratio, hence a Γ below which the data refute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from puidrec.errors import InputError
from puidrec.rng import Rng, bootstrap_counts, generator

LEVELS_MAX = 50
Part = tuple[np.ndarray, np.ndarray | None, np.ndarray]
"""Values, propensities (None: nothing is adjusted for) and users of some rows of a log."""


@dataclass(frozen=True)
class LevelCertificate:
    """What one event (a label, a rating level) says."""

    level: float
    seen: float
    """q: its share among seen pairs, reweighted to unseen pairs by 1/p - 1 where adjusted."""
    unseen: float
    """q₀: its share among unseen pairs, implied by the uniform sample."""
    gamma: float
    lower: float
    """Lower confidence limit of Γ, simultaneous over the levels; 1 where nothing is proved."""


@dataclass(frozen=True)
class Certificate:
    """The smallest Γ consistent with uniform data: the largest over the levels."""

    gamma: float
    lower: float
    adjusted: bool
    """Whether what the features explain was taken out (weights 1/p - 1)."""
    confidence: float
    levels: tuple[LevelCertificate, ...]


def certify(
    logged_value: np.ndarray,
    uniform_value: np.ndarray,
    *,
    mean_propensity: float,
    logged_propensity: np.ndarray | None = None,
    logged_user: np.ndarray | None = None,
    uniform_user: np.ndarray | None = None,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
    rng: Rng = 0,
) -> Certificate:
    """Γ_min from seen and uniform values: labels 0/1, or rating levels (each level is an event).

    With μ the uniform share, q the seen share reweighted by 1/p - 1, q_obs the plain seen share and p̄ the mean
    propensity, q₀ = (μ - p̄ q_obs)/(1 - p̄) and Γ_min = max(q/q₀, q₀/q, (1-q)/(1-q₀), (1-q₀)/(1-q)). The limit comes
    from resampling users (rows, where users are not given) in both samples together; each of L levels has the
    confidence 1 - (1 - confidence)/L. Without `logged_propensity` nothing is adjusted for.
    """
    _check(logged_value, uniform_value, logged_propensity, mean_propensity)
    if (logged_user is None) != (uniform_user is None):
        raise InputError("give the users of both samples, or of neither")
    if logged_user is None or uniform_user is None:
        logged_user, uniform_user = np.arange(logged_value.size), logged_value.size + np.arange(uniform_value.size)
    everyone, code = np.unique(np.concatenate([logged_user, uniform_user]), return_inverse=True)
    own, drawn = np.split(code, [logged_value.size])
    return certify_parts(
        [(logged_value, logged_propensity, own)], uniform_value, drawn, n_users=everyone.size,
        logged_levels=logged_value, mean_propensity=mean_propensity, n_bootstrap=n_bootstrap, confidence=confidence,
        rng=rng,
    )  # fmt: skip


def certify_parts(
    parts: Iterable[Part],
    uniform_value: np.ndarray,
    uniform_user: np.ndarray,
    *,
    n_users: int,
    logged_levels: np.ndarray,
    mean_propensity: float,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
    rng: Rng = 0,
) -> Certificate:
    """`certify` for a log that comes in parts (value, propensity or None, user code), each seen once.

    `logged_levels` are the values that occur in the log. Users are codes below `n_users`, in both samples.
    """
    levels = _levels(logged_levels, uniform_value)
    width = levels.size + 1
    # per user: Σw, Σw·1[level] of seen rows (w = 1/p − 1), then n, Σ1[level] of these, then the same of uniform rows
    sums, adjusted = np.zeros((n_users, 3 * width)), False
    sums[:, 2 * width :] = _tally(uniform_user, uniform_value, np.ones(uniform_value.size), levels, n_users)
    for value, propensity, user in parts:
        _check(value, uniform_value, propensity, mean_propensity)
        one = np.ones(value.size)
        adjusted = propensity is not None
        sums[:, :width] += _tally(user, value, one if propensity is None else 1.0 / propensity - 1.0, levels, n_users)
        sums[:, width : 2 * width] += _tally(user, value, one, levels, n_users)
    if not sums[:, 0].sum() > 0.0:  # every pair is seen for certain: nothing unseen to reweight to
        sums[:, :width] = sums[:, width : 2 * width]
    present = sums[:, width] + sums[:, 2 * width] > 0.0
    return _certificate(
        sums[present], levels, uniform_value.size, mean_propensity, adjusted, n_bootstrap, confidence, rng
    )


def _certificate(
    sums: np.ndarray,
    levels: np.ndarray,
    n_uniform: int,
    mean_propensity: float,
    adjusted: bool,
    n_bootstrap: int,
    confidence: float,
    rng: Rng,
) -> Certificate:
    """Shares, ratios and their limits from sums per user."""
    floor = 0.5 / n_uniform
    seen, unseen = _shares(sums.sum(axis=0, keepdims=True), levels.size, mean_propensity, floor)
    draws = _bootstrap(sums, n_bootstrap, generator(rng, "certify"))
    drawn_seen, drawn_unseen = _shares(draws, levels.size, mean_propensity, floor)
    tail = (1.0 - confidence) / levels.size / 2.0
    gamma = np.exp(np.abs(_log_ratios(seen, unseen)).max(axis=0))[0]
    low, high = np.quantile(_log_ratios(drawn_seen, drawn_unseen), [tail, 1.0 - tail], axis=1)
    lower = np.exp(np.maximum(np.maximum(low, -high), 0.0).max(axis=0))
    rows = tuple(
        LevelCertificate(float(level), float(seen[0, k]), float(unseen[0, k]), float(gamma[k]), float(lower[k]))
        for k, level in enumerate(levels)
    )
    top = max(row.gamma for row in rows)
    return Certificate(top, max(row.lower for row in rows), adjusted, confidence, rows)


def _levels(logged: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The events: value 1 for labels 0/1; every level otherwise."""
    found = np.unique(np.concatenate([np.unique(logged), np.unique(uniform)]))
    if found.size > LEVELS_MAX:
        raise InputError("too many rating levels to certify", found=found.size, expected=f"at most {LEVELS_MAX}")
    return np.array([1.0]) if np.isin(found, (0.0, 1.0)).all() else found.astype(np.float64)


def _check(logged: np.ndarray, uniform: np.ndarray, propensity: np.ndarray | None, mean_propensity: float) -> None:
    if logged.size == 0 or uniform.size == 0:
        raise InputError("a certificate needs logged and uniform ratings", found=(logged.size, uniform.size))
    if not (np.isfinite(logged).all() and np.isfinite(uniform).all()):
        raise InputError("ratings must be finite numbers", found="NaN or infinite values")
    if not 0.0 < mean_propensity < 1.0:
        raise InputError("mean propensity out of range", found=mean_propensity, expected="between 0 and 1")
    if propensity is not None:
        if propensity.shape != logged.shape:
            raise InputError("one propensity per logged rating", found=propensity.shape, expected=f"{logged.shape}")
        if not ((propensity > 0.0) & (propensity <= 1.0)).all():
            raise InputError("propensity out of range", expected="in (0, 1]", hint="Clip the propensities first.")


def _tally(users: np.ndarray, values: np.ndarray, scale: np.ndarray, levels: np.ndarray, n: int) -> np.ndarray:
    """Per user: Σ scale and Σ scale·1[level], [users, 1 + levels]."""
    events = [np.bincount(users, scale * (values == level), minlength=n) for level in levels]
    return np.stack([np.bincount(users, scale, minlength=n), *events], axis=1)


def _shares(sums: np.ndarray, n: int, mean_propensity: float, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """q and q₀ per level from rows of sums, kept off 0 and 1 by half a rating so that a ratio always exists."""
    weighted, plain, uniform = (sums[:, k * (n + 1) : (k + 1) * (n + 1)] for k in range(3))
    q, q_obs, mu = (part[:, 1:] / np.maximum(part[:, :1], 1e-12) for part in (weighted, plain, uniform))
    unseen = (mu - mean_propensity * q_obs) / (1.0 - mean_propensity)
    return np.clip(q, floor, 1.0 - floor), np.clip(unseen, floor, 1.0 - floor)


def _log_ratios(q: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """log q/q₀ and log (1-q)/(1-q₀), [2, draws, levels]; signed, so that an interval around 0 proves nothing."""
    return np.stack([np.log(q / q0), np.log((1.0 - q) / (1.0 - q0))])


def _bootstrap(sums: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Sums of resampled users, [n, columns]; one draw at a time keeps memory linear in users."""
    return np.concatenate([bootstrap_counts(1, sums.shape[0], rng) @ sums for _ in range(n)])
