"""Classes of entities that exposure cannot tell apart: equal bin and equal degree, or nearly so for large logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from puidrec.propensity.additive import Side

TABLE_BUDGET = 2_000_000
"""Largest table of user classes × item classes; beyond it, neighbouring degrees share a class."""


@dataclass(frozen=True)
class DegreeClasses:
    """Entities by (bin, degree), and these kinds grouped into classes of similar degree within a bin."""

    kind_of: np.ndarray
    """Kind of each entity."""
    kind_bin: np.ndarray
    kind_degree: np.ndarray
    kind_size: np.ndarray
    class_of: np.ndarray
    """Class of each kind."""
    n_bins: int

    @classmethod
    def build(cls, bins: np.ndarray, degree: np.ndarray, n_bins: int) -> DegreeClasses:
        """One class per kind."""
        width = int(degree.max()) + 1
        key, kind_of, size = np.unique(bins.astype(np.int64) * width + degree, return_inverse=True, return_counts=True)
        return cls(kind_of, key // width, key % width, size.astype(np.float64), np.arange(key.size), n_bins)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.class_of[-1]) + 1

    def at_most(self, limit: int) -> DegreeClasses:
        """Group degrees in steps of equal ratio, the finest ladder of steps that leaves at most `limit` classes."""
        grouped, step = self, 0.005
        while grouped.n_classes > max(limit, self.n_bins) and step < 50.0:
            rung = np.floor(np.log1p(self.kind_degree) / step).astype(np.int64)
            key = self.kind_bin * (int(rung.max()) + 1) + rung
            class_of = np.unique(key, return_inverse=True)[1]
            grouped = DegreeClasses(
                self.kind_of, self.kind_bin, self.kind_degree, self.kind_size, class_of, self.n_bins
            )
            step *= 1.25
        return grouped

    def side(self) -> Side:
        """The classes as one side of the exposure model; degree totals are exact whatever the grouping."""
        size = np.bincount(self.class_of, weights=self.kind_size)
        observed = np.bincount(self.class_of, weights=self.kind_size * self.kind_degree)
        first = np.unique(self.class_of, return_index=True)[1]
        return Side(size, observed, self.kind_bin[first], self.n_bins)

    def to_entities(self, values: np.ndarray) -> np.ndarray:
        """Values of classes to values of entities.

        A class's value belongs to its mean degree; other degrees are read off a monotone curve through the classes
        of the bin, over log(1 + degree).
        """
        if self.n_classes == self.kind_size.size:
            direct: np.ndarray = values[self.kind_of]
            return direct
        side = self.side()
        x = np.log1p(side.observed / side.size)
        wanted = np.log1p(self.kind_degree)
        kinds = np.empty(wanted.size)
        for b in np.unique(self.kind_bin):
            nodes, rows = side.bin == b, self.kind_bin == b
            many = nodes.sum() > 1
            kinds[rows] = PchipInterpolator(x[nodes], values[nodes])(wanted[rows]) if many else values[nodes]
        read: np.ndarray = kinds[self.kind_of]
        return read


def fit_budget(
    users: DegreeClasses, items: DegreeClasses, budget: int = TABLE_BUDGET
) -> tuple[DegreeClasses, DegreeClasses]:
    """Group degrees so that the class table stays within the budget; the smaller side is kept whole if it can."""
    if users.n_classes * items.n_classes <= budget:
        return users, items
    root = int(budget**0.5)
    users = users.at_most(max(root, budget // items.n_classes))
    return users, items.at_most(budget // users.n_classes)
