"""Entropy balancing: the weights nearest to given ones whose weighted means are what they should
be.

    min_w KL(w ‖ b) + ½ Σ_k (Σ w m_k/Σ w − t_k)²/v_k,   Σ w = Σ b

b are base weights, m_k moments of the pairs, t_k their targets and v_k how exactly a target is
known (its sampling variance; 0 asks for equality). The solution is a tilt, w ∝ b exp(−Σ_k η_k m_k):
positive, and found by Newton's steps on the dual, log Σ b exp(−⟨η, m − t⟩) + ½ Σ v_k η_k², smooth
and convex in as many numbers as there are moments. (Hainmueller, "Entropy balancing for causal
effects", Political Analysis 2012; the quadratic slack is the dual of v.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from puidrec.errors import InputError

SLACK = 1e-8
"""Least v, in units of the moment's own variance: where no weights reach a target, they come near
it."""
STEPS, TOLERANCE = 200, 1e-10


class Tilt(NamedTuple):
    """w = scale · b · exp(−⟨η, m⟩), for pairs that were balanced and for any others."""

    eta: np.ndarray
    """Multipliers, one per moment."""
    log_scale: float

    def factor(self, moments: np.ndarray) -> np.ndarray:
        """w/b of pairs with these moments, [pairs, moments] or [pairs] where there is one."""
        rows = moments[:, None] if moments.ndim == 1 else moments
        return np.asarray(np.exp(self.log_scale - rows @ self.eta))


def entropy_balance(
    base: np.ndarray,
    moments: np.ndarray,
    target: np.ndarray | float,
    variance: np.ndarray | float = 0.0,
) -> Tilt:
    """Balance pairs with weights `base`; one moment may be a vector, several are columns."""
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
    """argmin_η log Σ share exp(−rows η) + ½ Σ slack η², by Newton's steps, halved until the value
    falls."""

    def value(eta: np.ndarray) -> tuple[float, np.ndarray]:
        exponent = -(rows @ eta)
        top = exponent.max()
        weight = share * np.exp(exponent - top)
        total = weight.sum()
        return float(top + np.log(total) + 0.5 * np.sum(slack * eta * eta)), weight / total

    eta = np.zeros(rows.shape[1])
    now, weight = value(eta)
    for _ in range(STEPS):
        mean = weight @ rows
        slope = slack * eta - mean
        curve = (rows * weight[:, None]).T @ rows - np.outer(mean, mean) + np.diag(slack)
        step = np.linalg.solve(curve, -slope)
        if -(slope @ step) < TOLERANCE:
            break
        size = 1.0
        while size > 1e-12:
            then, other = value(eta + size * step)
            if then <= now + 1e-4 * size * float(slope @ step):
                break
            size *= 0.5
        else:
            break
        eta, now, weight = eta + size * step, then, other
    return eta
