"""Γ from traces: wide for a pair whose user or item was exposed unlike its features, narrow where nothing is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puidrec.sensitivity.fitted import Gamma, bin_max, bin_mean, not_separable, require_pairs
from puidrec.sensitivity.shift import Trace, folded_quantile

SAMPLE = 64
"""Partners over which the mean Γ of an entity is taken, since it has no closed form."""


@dataclass(frozen=True)
class TraceGamma(Gamma):
    """log Γ_ui: the `level` quantile of |shift| where shift ~ N(cell + user + item means, sum of their variances)."""

    cell: np.ndarray
    """Log-odds shift common to a cell, [user bins, item bins]."""
    user: Trace
    item: Trace
    level: float

    separable = False

    def log_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Log Γ from the posterior of the pair's shift."""
        require_pairs(users, items)
        cell = self.cell[self.user_bin[users], self.item_bin[items]]
        mean = cell + self.user.mean[users] + self.item.mean[items]
        deviation = np.sqrt(self.user.variance[users] + self.item.variance[items])
        log_gamma: np.ndarray = np.minimum(folded_quantile(mean, deviation, self.level), np.log(self.cap))
        return log_gamma

    @property
    def log_user(self) -> np.ndarray:
        """Refused: |user + item| is no sum of parts."""
        raise not_separable()

    @property
    def log_item(self) -> np.ndarray:
        """Refused."""
        raise not_separable()

    def user_mean_log(self) -> np.ndarray:
        """Over items spread evenly over bins and means; exact where there are few."""
        return self._mean(np.arange(self.user_bin.size), _spread(self.item_bin, self.item.mean), by_user=True)

    def item_mean_log(self) -> np.ndarray:
        """Over users spread evenly over bins and means; exact where there are few."""
        return self._mean(np.arange(self.item_bin.size), _spread(self.user_bin, self.user.mean), by_user=False)

    def cell_mean_log(self) -> np.ndarray:
        """Over users and items spread evenly over each bin."""
        users, items = (_spread(b, t.mean, per_bin=16) for b, t in self._sides())
        size = tuple(int(b.max()) + 1 for b, _ in self._sides())
        key = self.user_bin[users][:, None] * size[1] + self.item_bin[items][None]
        value = self.log_at(*(axis.ravel() for axis in np.meshgrid(users, items, indexing="ij")))
        return bin_mean(value, key.ravel(), size[0] * size[1]).reshape(size)

    @cached_property
    def max(self) -> float:
        """An upper limit: the extreme means and the largest variances of each cell together, or the cap."""
        ends = []
        for sign in (1.0, -1.0):
            tops = [bin_max(sign * t.mean, b) for b, t in self._sides()]
            ends.append(sign * self.cell[: tops[0].size, : tops[1].size] + np.add.outer(*tops))
        variance = np.add.outer(*(bin_max(t.variance, b) for b, t in self._sides()))
        filled = np.isfinite(variance)
        mean = np.maximum(*ends)[filled]
        return min(self.cap, float(np.exp(folded_quantile(mean, np.sqrt(variance[filled]), self.level).max())))

    def _sides(self) -> tuple[tuple[np.ndarray, Trace], tuple[np.ndarray, Trace]]:
        return (self.user_bin, self.user), (self.item_bin, self.item)

    def _mean(self, own: np.ndarray, other: np.ndarray, *, by_user: bool) -> np.ndarray:
        parts = []
        for block in np.array_split(own, max(1, own.size * other.size // 2_000_000)):
            pair = np.repeat(block, other.size), np.tile(other, block.size)
            value = self.log_at(*pair) if by_user else self.log_at(*pair[::-1])
            parts.append(value.reshape(block.size, other.size).mean(axis=1))
        return np.concatenate(parts)


def _spread(bins: np.ndarray, value: np.ndarray, per_bin: int | None = None) -> np.ndarray:
    """Codes of entities spread evenly over the order (bin, value): `SAMPLE` in all, or some of every bin."""
    order: np.ndarray = np.lexsort((value, bins))
    if per_bin is None:
        take = min(SAMPLE, order.size)
        return order[((np.arange(take) + 0.5) * order.size / take).astype(np.int64)]
    size = np.bincount(bins)
    rank = np.arange(order.size) - (np.cumsum(size) - size)[bins[order]]
    step = np.maximum(size // per_bin, 1)[bins[order]]
    chosen: np.ndarray = order[rank % step == step // 2]
    return chosen
