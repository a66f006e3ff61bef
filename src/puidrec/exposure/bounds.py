"""Γ of any pair, and the interval of its inverse propensity that Γ allows.

Γ ≥ 1 says by which factor the true odds of being seen may differ from the estimated ones, either
way. It is kept as tables of bins, users and items, never as a table of all pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from puidrec.errors import InputError
from puidrec.rng import Rng, generator


@dataclass(frozen=True)
class Bounds:
    """A box [a, b] of inverse propensities, 1 <= a <= b, one interval per pair; an invalid one
    cannot be built."""

    a: np.ndarray
    b: np.ndarray

    def __post_init__(self) -> None:
        if self.a.shape != self.b.shape:
            raise InputError("a and b must have one shape", found=(self.a.shape, self.b.shape))
        _require(
            np.isfinite(self.a) & (self.a >= 1.0), self.a, "lower bound", "finite and at least 1"
        )
        _require(np.isfinite(self.b), self.b, "upper bound", "finite")
        _require(
            self.a <= self.b, self.b - self.a, "upper minus lower bound", "not negative (a <= b)"
        )

    def contains(self, weight: np.ndarray) -> np.ndarray:
        """Whether inverse propensities lie in their interval, for coverage against a known
        truth."""
        tolerance = 1e-12 * self.b
        return (weight >= self.a - tolerance) & (weight <= self.b + tolerance)


def bounds(propensity: np.ndarray, gamma: np.ndarray | float) -> Bounds:
    """The box of `eq:bound_ab` (one Γ) and `eq:aui_bui` (Γ per pair): a = 1 + (1/p - 1)/Γ, b = 1 +
    (1/p - 1)·Γ.

    It is the set of 1/p̃ whose odds differ from those of p by at most the factor Γ, either way.
    """
    p = np.asarray(propensity, np.float64)
    factor = np.asarray(gamma, np.float64)
    if factor.ndim and factor.shape != p.shape:
        raise InputError(
            "one Γ per propensity, or one for all", found=factor.shape, expected=f"{p.shape}"
        )
    _require((p > 0.0) & (p <= 1.0), p, "propensity", "in (0, 1]")
    _require(np.isfinite(factor) & (factor >= 1.0), factor, "Γ", "finite and at least 1")
    odds = 1.0 / p - 1.0
    return Bounds(1.0 + odds / factor, 1.0 + odds * factor)


def _require(valid: np.ndarray, values: np.ndarray, what: str, expected: str) -> None:
    """Refuse invalid values, saying how many there are and the smallest of them."""
    if valid.all():
        return
    wrong = np.atleast_1d(values)[~np.atleast_1d(valid)]
    smallest = "NaN" if np.isnan(wrong).all() else f"{np.nanmin(wrong):.6g}"
    raise InputError(
        f"invalid {what} in {wrong.size:,} of {valid.size:,} pairs",
        found=f"smallest {smallest}",
        expected=expected,
    )


@dataclass(frozen=True)
class Gamma(ABC):
    """Γ_ui >= 1 for every pair of D. Subclasses say what log Γ is made of."""

    user_bin: np.ndarray
    item_bin: np.ndarray
    cap: float
    """No Γ is larger than this."""
    share_clipped: float
    """Share of D whose printed value was below 1 and was raised to 1."""

    @abstractmethod
    def log_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Log Γ of pairs of codes."""

    @property
    def additive_parts(self) -> tuple[np.ndarray, np.ndarray] | None:
        """`users` and `items` with log Γ_ui = users[u] + items[i] for all pairs; None where Γ does
        not split so."""
        return None

    @abstractmethod
    def user_mean_log(self) -> np.ndarray:
        """Mean log Γ over items, per user."""

    @abstractmethod
    def item_mean_log(self) -> np.ndarray:
        """Mean log Γ over users, per item."""

    @property
    @abstractmethod
    def max(self) -> float:
        """The largest Γ of any pair (at most `cap`)."""

    def at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Γ of pairs of codes, float64."""
        return np.exp(self.log_at(users, items))

    def sample(self, n: int, rng: Rng = 0) -> np.ndarray:
        """Γ of n pairs drawn uniformly from D, for histograms and quantiles."""
        draw = generator(rng, "gamma-sample")
        return self.at(
            draw.integers(0, self.user_bin.size, n), draw.integers(0, self.item_bin.size, n)
        )

    @cached_property
    def mean_log(self) -> float:
        """Mean log Γ over D."""
        return float(self.user_mean_log().mean())

    def user_table(self) -> pl.DataFrame:
        """Per user code: its bin and its geometric mean Γ."""
        return _entity_table("user", self.user_bin, self.user_mean_log())

    def item_table(self) -> pl.DataFrame:
        """Per item code: its bin and its geometric mean Γ."""
        return _entity_table("item", self.item_bin, self.item_mean_log())

    def bin_table(self) -> pl.DataFrame:
        """Per user bin and item bin: how many there are, and the geometric mean Γ of their
        pairs."""
        mean = self.cell_mean_log()
        rows = np.bincount(self.user_bin, minlength=mean.shape[0])
        columns = np.bincount(self.item_bin, minlength=mean.shape[1])
        u, i = (axis.ravel() for axis in np.indices(mean.shape))
        table = {
            "user_bin": u,
            "item_bin": i,
            "n_users": rows[u],
            "n_items": columns[i],
            "gamma": np.exp(mean).ravel(),
        }
        return pl.DataFrame(table).filter((pl.col("n_users") > 0) & (pl.col("n_items") > 0))

    def cell_mean_log(self) -> np.ndarray:
        """Mean log Γ per (user bin, item bin): by the means of users and items where Γ is no
        table."""
        user, item = self.user_mean_log(), self.item_mean_log()
        sums = np.add.outer(bin_mean(user, self.user_bin), bin_mean(item, self.item_bin))
        return np.maximum(sums - user.mean(), 0.0)


@dataclass(frozen=True)
class TableGamma(Gamma):
    """log Γ_ui = cell[B_u, B_i] + user[u] + item[i], at most log cap by construction (`make`)."""

    cell: np.ndarray
    user: np.ndarray
    item: np.ndarray

    @classmethod
    def make(
        cls,
        bins: tuple[np.ndarray, np.ndarray],
        cell: np.ndarray,
        parts: tuple[np.ndarray, np.ndarray] | None = None,
        *,
        cap: float,
        share_clipped: float = 0.0,
    ) -> TableGamma:
        """Cap the table, then the parts by one common level such that no sum exceeds the cap: still
        a sum."""
        user, item = (
            parts if parts is not None else (np.zeros(bins[0].size), np.zeros(bins[1].size))
        )
        table = np.minimum(cell, np.log(cap))
        room = np.log(cap) - float(table.max())
        level = _common_limit(float(user.max()), float(item.max()), room)
        return cls(
            *bins, cap, share_clipped, table, np.minimum(user, level), np.minimum(item, level)
        )

    def log_at(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Log Γ by three look-ups."""
        require_pairs(users, items)
        return (
            self.cell[self.user_bin[users], self.item_bin[items]]
            + self.user[users]
            + self.item[items]
        )

    @cached_property
    def additive_parts(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Own parts and those of bins, where the table of bins is itself a sum of a row and a
        column part."""
        row, column = self.cell[:, 0], self.cell[0] - self.cell[0, 0]
        if np.abs(self.cell - np.add.outer(row, column)).max() >= 1e-12:
            return None
        return self.user + row[self.user_bin], self.item + column[self.item_bin]

    def user_mean_log(self) -> np.ndarray:
        """Exact."""
        return (self.cell @ self._shares()[1])[self.user_bin] + self.user + self.item.mean()

    def item_mean_log(self) -> np.ndarray:
        """Exact."""
        return (self._shares()[0] @ self.cell)[self.item_bin] + self.item + self.user.mean()

    def cell_mean_log(self) -> np.ndarray:
        """Exact."""
        parts = (
            bin_mean(self.user, self.user_bin, self.cell.shape[0]),
            bin_mean(self.item, self.item_bin, self.cell.shape[1]),
        )
        return self.cell + np.add.outer(*parts)

    @property
    def max(self) -> float:
        """Exact: the best of each cell's table entry, user and item."""
        tops = np.add.outer(
            bin_max(self.user, self.user_bin, self.cell.shape[0]),
            bin_max(self.item, self.item_bin, self.cell.shape[1]),
        )
        return float(np.exp((self.cell + tops).max()))

    def _shares(self) -> tuple[np.ndarray, np.ndarray]:
        rows = np.bincount(self.user_bin, minlength=self.cell.shape[0])
        columns = np.bincount(self.item_bin, minlength=self.cell.shape[1])
        return rows / rows.sum(), columns / columns.sum()


def _common_limit(first: float, second: float, room: float) -> float:
    """The largest level c with min(first, c) + min(second, c) <= room."""
    if first + second <= room:
        return max(first, second)
    return max(room / 2.0, room - min(first, second))


def bin_mean(value: np.ndarray, bins: np.ndarray, n: int = 0) -> np.ndarray:
    """Mean of a value per bin; 0 where a bin is empty."""
    size = np.bincount(bins, minlength=n)
    return np.bincount(bins, value, minlength=n) / np.maximum(size, 1)


def bin_max(value: np.ndarray, bins: np.ndarray, n: int = 0) -> np.ndarray:
    """Largest value per bin; -inf where a bin is empty."""
    top = np.full(max(n, int(bins.max()) + 1), -np.inf)
    np.maximum.at(top, bins, value)
    return top


def _entity_table(side: str, bins: np.ndarray, mean_log: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {side: np.arange(bins.size), f"{side}_bin": bins, "gamma": np.exp(mean_log)}
    )


def require_pairs(users: np.ndarray, items: np.ndarray) -> None:
    """Refuse users and items that do not pair up one to one."""
    if users.shape != items.shape:
        raise InputError("users and items must pair up", found=(users.shape, items.shape))
