"""Calibration in the large: a model of exposure must expect as many seen pairs as there are."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

MAX_STEPS = 100


def calibrating_shift(log_odds: np.ndarray, pairs: np.ndarray, n_seen: float) -> float:
    """The δ with Σ pairs · σ(log_odds + δ) = n_seen: Newton's method, kept inside a shrinking bracket."""
    low, high, shift = -60.0, 60.0, 0.0
    for _ in range(MAX_STEPS):
        p = expit(log_odds + shift)
        gap, slope = float((pairs * p).sum()) - n_seen, float((pairs * p * (1.0 - p)).sum())
        if abs(gap) <= 1e-12 * n_seen or high - low < 1e-14:
            break
        low, high = (low, shift) if gap > 0 else (shift, high)
        trial = shift - gap / slope if slope > 0 else high
        shift = trial if low < trial < high else (low + high) / 2.0
    return shift
