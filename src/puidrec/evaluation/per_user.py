"""A metric keeps its value per user: means, intervals and paired tests all start from these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from puidrec.errors import InputError


@dataclass(frozen=True)
class PerUser:
    """One value per counted user. The metric is their mean, weighted by `size` where there is one."""

    users: np.ndarray
    """Codes or ids, sorted."""
    values: np.ndarray
    size: np.ndarray | None = None
    """Rows (or row weight) behind each value, for metrics that average over rows; None: every user counts alike."""

    def __post_init__(self) -> None:
        shapes = {np.shape(part) for part in (self.users, self.values, self.size) if part is not None}
        if len(shapes) != 1 or self.users.ndim != 1:
            raise InputError("users, values and sizes must be vectors of one length", found=shapes)

    def __len__(self) -> int:
        return self.users.size

    @property
    def weight(self) -> np.ndarray:
        """The share of each user in the mean; the shares add up to 1."""
        size = np.ones(len(self)) if self.size is None else self.size
        weight: np.ndarray = size / size.sum()
        return weight

    @property
    def mean(self) -> float:
        """The metric; NaN where no user counts, since no number would be true."""
        return float(np.sum(self.weight * self.values)) if len(self) else float("nan")


def join(parts: Sequence[PerUser]) -> PerUser:
    """Put parts with different users together."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.size for part in parts if part.size is not None]
    return PerUser(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate(sizes) if sizes else None,
    )


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error, and its interval at some level."""

    value: float
    low: float
    high: float
    standard_error: float
    n_users: int


def mean_interval(per_user: PerUser, level: float = 0.95) -> Estimate:
    """The mean and its normal interval with users as independent clusters, by the delta method.

    Σ s_u v_u / Σ s_u is a ratio when sizes vary (SNIPS is one), so its linearised residuals s_u (v_u − V) / Σ s
    carry the variance; with equal sizes this is the usual sd / √n. One user alone gives no interval (NaN).
    """
    share, n, value = checked_level(level), len(per_user), per_user.mean
    if n < 2:
        return Estimate(value, float("nan"), float("nan"), float("nan"), n)
    residual = per_user.weight * (per_user.values - value)
    error = float(np.sqrt(n / (n - 1) * np.sum(residual**2)))
    reach = NormalDist().inv_cdf(0.5 + share / 2) * error
    return Estimate(value, value - reach, value + reach, error, n)


def checked_level(level: float) -> float:
    """A confidence level lies strictly between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise InputError("confidence level out of range", found=level, expected="0 < level < 1", hint="Try 0.95.")
    return level
