"""Errors of single predictions: squared, absolute, cross-entropy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from puidrec.errors import InputError


def squared_error(score: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(score − target)², in float64."""
    error: np.ndarray = np.square(np.subtract(score, target, dtype=np.float64))
    return error


def absolute_error(score: np.ndarray, target: np.ndarray) -> np.ndarray:
    """|score − target|, in float64."""
    error: np.ndarray = np.abs(np.subtract(score, target, dtype=np.float64))
    return error


def cross_entropy(score: np.ndarray, target: np.ndarray) -> np.ndarray:
    """−log of the probability given to the label, with probabilities kept one rounding step from 0 and 1."""
    low, high = float(score.min()), float(score.max())
    if low < 0.0 or high > 1.0:
        raise InputError(
            "logloss needs probabilities",
            found=f"scores from {low:.3g} to {high:.3g}",
            expected="scores in [0, 1]",
            hint="Use mse, or a model trained with the cross-entropy loss.",
        )
    step = float(np.finfo(score.dtype).eps)
    given = np.where(target > 0.5, score, 1.0 - score).astype(np.float64)
    error: np.ndarray = -np.log(np.clip(given, step, 1.0 - step))
    return error


POINTWISE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mse": squared_error,
    "mae": absolute_error,
    "logloss": cross_entropy,
}
"""Metrics that average an error over rows."""
