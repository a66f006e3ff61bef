"""Classes of entities that exposure cannot tell apart: equal bin and equal degree, or nearly so for large logs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import PchipInterpolator

from puidrec.propensity.additive import Side

TABLE_BUDGET = 2_000_000
"""Largest table of user classes × item classes; beyond it, neighbouring degrees share a class."""
OFFSET_LEVELS = 180
"""Levels that known offsets are cut into, all bins together (at least four in each)."""


@dataclass(frozen=True)
class Strata:
    """Entities by bin and, where part of their log-odds is known beforehand, by level of that offset within the bin."""

    of: np.ndarray
    """Stratum of each entity."""
    bin: np.ndarray
    offset: np.ndarray
    """Mean offset of each stratum."""
    n_bins: int

    @classmethod
    def build(cls, bins: np.ndarray, n_bins: int, offset: np.ndarray | None = None) -> Strata:
        """Cut offsets at quantiles within each bin; equal offsets are never parted."""
        if offset is None:
            return cls(bins, np.arange(n_bins), np.zeros(n_bins), n_bins)
        levels = max(4, OFFSET_LEVELS // n_bins)
        order = np.lexsort((offset, bins))
        sorted_bin, sorted_offset = bins[order].astype(np.int64), offset[order]
        new = np.concatenate([[True], (np.diff(sorted_bin) != 0) | (np.diff(sorted_offset) != 0)])
        first = np.maximum.accumulate(np.where(new, np.arange(order.size), 0))
        size = np.bincount(bins, minlength=n_bins)
        rank = first - (np.cumsum(size) - size)[sorted_bin]
        key = np.empty(order.size, np.int64)
        key[order] = sorted_bin * levels + rank * levels // size[sorted_bin]
        found, of, count = np.unique(key, return_inverse=True, return_counts=True)
        return cls(of, found // levels, np.bincount(of, weights=offset) / count, n_bins)


@dataclass(frozen=True)
class DegreeClasses:
    """Entities by (stratum, degree), and these kinds grouped into classes of similar degree within a stratum."""

    strata: Strata
    kind_of: np.ndarray
    """Kind of each entity."""
    kind_stratum: np.ndarray
    kind_degree: np.ndarray
    kind_size: np.ndarray
    class_of: np.ndarray
    """Class of each kind."""

    @classmethod
    def build(cls, strata: Strata, degree: np.ndarray) -> DegreeClasses:
        """One class per kind."""
        width = int(degree.max()) + 1
        key = strata.of.astype(np.int64) * width + degree
        found, kind_of, size = np.unique(key, return_inverse=True, return_counts=True)
        return cls(strata, kind_of, found // width, found % width, size.astype(np.float64), np.arange(found.size))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.class_of[-1]) + 1

    def at_most(self, limit: int) -> DegreeClasses:
        """Group degrees in steps of equal ratio, the finest ladder of steps that leaves at most `limit` classes."""
        grouped, step = self, 0.005
        while grouped.n_classes > limit and step < 50.0:
            rung = np.floor(np.log1p(self.kind_degree) / step).astype(np.int64)
            key = self.kind_stratum * (int(rung.max()) + 1) + rung
            grouped = replace(self, class_of=np.unique(key, return_inverse=True)[1])
            step *= 1.25
        return grouped

    def side(self) -> Side:
        """The classes as one side of the exposure model; degree totals are exact whatever the grouping."""
        size = np.bincount(self.class_of, weights=self.kind_size)
        observed = np.bincount(self.class_of, weights=self.kind_size * self.kind_degree)
        stratum = self._class_stratum()
        return Side(size, observed, self.strata.bin[stratum], self.strata.n_bins, offset=self.strata.offset[stratum])

    def _class_stratum(self) -> np.ndarray:
        stratum: np.ndarray = self.kind_stratum[np.unique(self.class_of, return_index=True)[1]]
        return stratum

    def to_entities(self, values: np.ndarray) -> np.ndarray:
        """Values of classes to values of entities.

        A class's value belongs to its mean degree; other degrees are read off a monotone curve through the classes
        of the stratum, over log(1 + degree).
        """
        if self.n_classes == self.kind_size.size:
            direct: np.ndarray = values[self.kind_of]
            return direct
        side, stratum = self.side(), self._class_stratum()
        x, wanted = np.log1p(side.observed / side.size), np.log1p(self.kind_degree)
        # Classes and kinds are sorted by stratum, so each stratum is a slice of both.
        found = np.unique(stratum)
        nodes, kinds = (
            np.stack([np.searchsorted(s, found, "left"), np.searchsorted(s, found, "right")], axis=1)
            for s in (stratum, self.kind_stratum)
        )
        read = np.empty(wanted.size)
        for (n0, n1), (k0, k1) in zip(nodes.tolist(), kinds.tolist(), strict=True):
            curve = PchipInterpolator(x[n0:n1], values[n0:n1]) if n1 - n0 > 1 else None
            read[k0:k1] = values[n0] if curve is None else curve(wanted[k0:k1])
        entities: np.ndarray = read[self.kind_of]
        return entities


def fit_budget(
    users: DegreeClasses, items: DegreeClasses, budget: int = TABLE_BUDGET
) -> tuple[DegreeClasses, DegreeClasses]:
    """Group degrees so that the class table stays within the budget; the smaller side is kept whole if it can."""
    if users.n_classes * items.n_classes <= budget:
        return users, items
    root = int(budget**0.5)
    users = users.at_most(max(root, budget // items.n_classes))
    return users, items.at_most(budget // users.n_classes)
