"""What the features alone say: the nominal propensity p(x) = E[p_true | x], exact to about 1e-8.

Hidden h are cosines of uniform angles (bounded, mean 0, both camps well filled), so expectations over them are
Gauss–Chebyshev sums. p depends on a pair only through m(x) and its visible class: one spline per class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import expit, logit

_NODES = 20
_GRID = np.linspace(-30.0, 16.0, 46 * 16 + 1)


@dataclass(frozen=True)
class Strengths:
    """Weights of the hidden terms per class: t = user[c] h_u + gate[c] item[d] h_i + pair[c] h_ui.

    A user class c belongs to a group that the features tell; within it, classes have a share and are hidden.
    """

    user: np.ndarray
    gate: np.ndarray
    pair: np.ndarray
    group: np.ndarray
    share: np.ndarray
    item: np.ndarray

    @property
    def n_groups(self) -> int:
        """Groups of users that the features tell apart."""
        return int(self.group.max()) + 1

    def largest(self, user_class: np.ndarray, item_class: np.ndarray) -> np.ndarray:
        """The largest |t| that a pair of these classes can have."""
        top: np.ndarray = self.user[user_class] + self.gate[user_class] * self.item[item_class] + self.pair[user_class]
        return top


def hidden_from_uniform(uniform: np.ndarray) -> np.ndarray:
    """h in [-1, 1] from a uniform draw; its law is that of the Gauss–Chebyshev weights."""
    return np.cos(np.pi * uniform)


def mean_exposure(m: np.ndarray, amplitudes: tuple[float, ...]) -> np.ndarray:
    """E[sigmoid(m + Σ_k a_k h_k)] over independent h_k, for a vector m."""
    nodes = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    shift = np.zeros(1)
    for amplitude in amplitudes:
        if amplitude:
            shift = np.add.outer(shift, amplitude * nodes).ravel()
    total = np.zeros_like(m)
    for part in np.array_split(shift, max(1, shift.size // 500)):
        total += expit(np.add.outer(m, part)).sum(axis=1)
    return total / shift.size


class NominalTable:
    """logit p(x) as a function of m(x), by visible class of the user and class of the item."""

    def __init__(self, strengths: Strengths, exposure_strength: float) -> None:
        n_items = strengths.item.size
        shift = np.empty((_GRID.size, strengths.n_groups * n_items))
        for group in range(strengths.n_groups):
            for item in range(n_items):
                p = np.zeros_like(_GRID)
                for c in np.flatnonzero((strengths.group == group) & (strengths.share > 0)):
                    parts = (strengths.user[c], strengths.gate[c] * strengths.item[item], strengths.pair[c])
                    p += strengths.share[c] * mean_exposure(_GRID, tuple(exposure_strength * a for a in parts))
                shift[:, group * n_items + item] = logit(p) - _GRID
        self._coefficients = CubicSpline(_GRID, shift).c
        self._n_items = n_items

    def logit(self, m: np.ndarray, user_group: np.ndarray, item_class: np.ndarray) -> np.ndarray:
        """logit p(x) of pairs with exposure index m."""
        position = (m - _GRID[0]) * 16.0
        cell = np.clip(position.astype(np.int64), 0, _GRID.size - 2)
        column = user_group.astype(np.int64) * self._n_items + item_class
        x = (position - cell) / 16.0
        c3, c2, c1, c0 = (table[cell, column] for table in self._coefficients)
        value: np.ndarray = m + ((c3 * x + c2) * x + c1) * x + c0
        return value
