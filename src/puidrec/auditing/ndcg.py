"""The range of a difference in NDCG@K if hidden confounding has strength Γ: exact, user by user.

A user's NDCG@K is DCG@K over that of the best order, which depends on how many items the user likes in all: unknown,
since most are unseen. Both come from the same weights. With c the difference of two models' rank credits and w the
weight of a liked row (the items that it stands for), the user's difference is

    N(w) / I(M(w)),   N = Σ w c,   M = Σ w,   I(M) = Σ_{j <= min(M, K)} 1/log2(j + 1), linear between whole numbers,

and Γ allows w in [s(1 + k/Γ), s(1 + kΓ)]. For a given M the extreme N gives the larger weights to the smallest c (a
fractional knapsack), so that all candidates lie on one path of M per user. On that path N and I are piecewise linear,
their ratio is monotone between the points where either bends, and the extreme is at one of these points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from puidrec.auditing.envelope import End, running_sum
from puidrec.evaluation.ndcg import discounts
from puidrec.evaluation.ranking import dense_codes


@dataclass(frozen=True)
class LikedRows:
    """The liked rows of an audit, sorted by user."""

    code: np.ndarray
    """Codes 0, 1, 2, … of the users that have some."""
    credit: np.ndarray
    """Credit of a row's rank by the model minus that by the other (or the credit itself, for one model)."""
    odds: np.ndarray
    """k = 1/p - 1."""
    scale: float
    """s: what brings weights to the size of a list, so that a user's weights add up to the items of it."""
    k: int

    @classmethod
    def of(cls, user: np.ndarray, credit: np.ndarray, odds: np.ndarray, scale: float, k: int) -> LikedRows:
        """Rows in any order."""
        code = dense_codes(user)[1]
        order = np.argsort(code, kind="stable")
        return cls(code[order], credit[order], odds[order], scale, k)

    @property
    def n_users(self) -> int:
        """Users with a liked row."""
        return int(self.code[-1]) + 1 if self.code.size else 0

    def extreme(self, gamma: float, end: End) -> np.ndarray:
        """The lowest or highest difference of every user; a difference of two NDCG lies between -1 and 1."""
        sign = 1.0 if end == "low" else -1.0
        found: np.ndarray = np.clip(sign * self._lowest(sign * self.credit, gamma), -1.0, 1.0)
        return found

    def _lowest(self, credit: np.ndarray, gamma: float) -> np.ndarray:
        order = np.lexsort((credit, self.code))
        c, odds, code = credit[order], self.odds[order], self.code
        base, rise = self.scale * (1.0 + odds / gamma), self.scale * odds * (gamma - 1.0 / gamma)
        first = np.searchsorted(code, np.arange(self.n_users + 1))
        mass, value = (np.bincount(code, w, self.n_users) for w in (base, base * c))
        rises, rises_c = running_sum(rise), running_sum(rise * c)
        ideal = discounts(self.k)

        def ratio(m: np.ndarray, n: np.ndarray) -> np.ndarray:
            share: np.ndarray = n / np.interp(m, np.arange(self.k + 1), ideal)
            return share

        start = first[:-1]
        best = ratio(mass, value)
        ends = ratio(mass[code] + rises[1:] - rises[start][code], value[code] + rises_c[1:] - rises_c[start][code])
        best = np.minimum(best, np.minimum.reduceat(ends, start))
        top = mass + rises[first[1:]] - rises[start]
        for whole in range(1, self.k + 1):  # where the ideal list bends
            inside = np.flatnonzero((mass < whole) & (whole < top))
            if inside.size:
                at = rises[start[inside]] + whole - mass[inside]
                found = value[inside] + np.interp(at, rises, rises_c) - rises_c[start[inside]]
                best[inside] = np.minimum(best[inside], found / ideal[whole])
        lowest: np.ndarray = best
        return lowest
