"""Prefix sums over sorted pairs: a threshold on z becomes a look-up, so one sort serves every Γ of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

PART = 2**17
"""Steps at a time: 1 MiB for each of the few numbers kept of them."""


@dataclass(frozen=True)
class Ladder:
    """Pairs in ascending order of (stratum, z)."""

    order: np.ndarray
    """Position of each step in the caller's arrays."""
    value: np.ndarray
    odds: np.ndarray
    edge: np.ndarray
    """Steps of stratum s are edge[s] to edge[s + 1]."""

    @classmethod
    def of(cls, value: np.ndarray, odds: np.ndarray) -> Ladder:
        """All pairs in one stratum."""
        order = np.argsort(value).astype(np.int32 if value.size < 2**31 else np.int64)
        return cls(order, value[order].astype(np.float64), odds[order], np.array([0, value.size]))

    def by(self, stratum: np.ndarray) -> Ladder:
        """The same pairs by stratum (codes of the caller's rows), in each of which they keep their order."""
        size = np.bincount(stratum)
        small = stratum.astype(np.uint16) if size.size <= 2**16 else stratum  # 16 bits: a radix sort
        moved = np.argsort(small[self.order], kind="stable")
        edge = np.concatenate([[0], np.cumsum(size)])
        return Ladder(self.order[moved], self.value[moved], self.odds[moved], edge)

    @cached_property
    def plain(self) -> tuple[np.ndarray, np.ndarray]:
        """Running Σ k and Σ k z."""
        return running(self.odds), running(self.odds * self.value)

    def lifts(self, gamma: float | np.ndarray) -> Lifts:
        """The pairs at l = 1/Γ, and what raising them to l = Γ adds; one Γ for all only scales what is there."""
        if isinstance(gamma, np.ndarray):
            return self.lifts_by(lambda part: gamma[self.order[part]])
        k, kz = (np.diff(sums[self.edge]) for sums in self.plain)
        return Lifts(self, self.plain, gamma - 1.0 / gamma, k / gamma, kz / gamma)

    def lifts_by(self, strength: Callable[[slice], np.ndarray]) -> Lifts:
        """The same for a Γ of each step, asked for part by part: a part fits in the cache, where the work is done."""
        n = self.value.size
        raises = np.zeros((2, n + 1))
        floors = np.zeros((2, self.edge.size))
        total = np.zeros(4)
        for start in range(0, n, PART):
            part = slice(start, min(start + PART, n))
            own, k, z = strength(part), self.odds[part], self.value[part]
            floor = k / own
            room = k * own - floor
            first, last = np.searchsorted(self.edge, (part.start, part.stop), side="right")
            ends = self.edge[first:last] - part.start - 1
            for j, weight in enumerate((room, room * z, floor, floor * z)):
                sums = np.cumsum(weight)
                sums += total[j]
                total[j] = sums[-1]
                if j < 2:
                    raises[j, part.start + 1 : part.stop + 1] = sums
                else:
                    floors[j - 2, first:last] = sums[ends]
        base, base_z = np.diff(floors, axis=1)
        return Lifts(self, (raises[0], raises[1]), 1.0, base, base_z)


@dataclass(frozen=True)
class Lifts:
    """A ladder under one strength: every pair starts at l = 1/Γ, and may be raised to Γ."""

    ladder: Ladder
    raises: tuple[np.ndarray, np.ndarray]
    """Running k(Γ - 1/Γ), and that times z, in units of `room`."""
    room: float
    base: np.ndarray
    """Σ k/Γ per stratum."""
    base_z: np.ndarray
    """Σ z k/Γ per stratum."""

    def above(self, level: float) -> tuple[float, float]:
        """Mass, and mass times z, of raising the pairs with z above a level."""
        step = int(np.searchsorted(self.ladder.value, level, side="right"))
        mass, mass_z = (self.room * float(sums[-1] - sums[step]) for sums in self.raises)
        return mass, mass_z

    def below(self, level: float) -> tuple[float, float]:
        """The same for the pairs below it."""
        step = int(np.searchsorted(self.ladder.value, level, side="left"))
        mass, mass_z = (self.room * float(sums[step]) for sums in self.raises)
        return mass, mass_z

    @cached_property
    def needed(self) -> np.ndarray:
        """Raise of each stratum that brings Σ k·l back to Σ k, in units of the running mass."""
        edge = self.ladder.edge
        available = np.diff(self.raises[0][edge])
        if self.room <= 0.0:
            return np.zeros_like(available)
        short = np.diff(self.ladder.plain[0][edge]) - self.base
        needed: np.ndarray = np.clip(short / self.room, 0.0, available)
        return needed

    def balanced(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest Σ k·l·z of each stratum: the raise goes to one end of the order, as far as it lasts."""
        mass, mass_z = self.raises
        start, end = self.ladder.edge[:-1], self.ladder.edge[1:]
        bottom = np.interp(mass[start] + self.needed, mass, mass_z) - mass_z[start]
        top = mass_z[end] - np.interp(mass[end] - self.needed, mass, mass_z)
        return self.base_z + self.room * bottom, self.base_z + self.room * top

    def thresholds(self, *, high: bool) -> np.ndarray:
        """The z at which the raise of each stratum ends: the multiplier of its balance; 0 in an empty stratum."""
        mass = self.raises[0]
        start, end = self.ladder.edge[:-1], self.ladder.edge[1:]
        at = mass[end] - self.needed if high else mass[start] + self.needed
        step = np.clip(np.searchsorted(mass, at, side="right") - 1, start, np.maximum(end - 1, start))
        level = self.ladder.value[np.minimum(step, self.ladder.value.size - 1)]
        return np.where(end > start, level, 0.0)


def running(values: np.ndarray) -> np.ndarray:
    """0, v₀, v₀ + v₁, …"""
    sums = np.zeros(values.size + 1)
    np.cumsum(values, out=sums[1:])
    return sums
