"""`naive-bayes`: P(o = 1 | r) = P(r | o = 1) · P(o = 1) / P(r), with P(r) from uniformly drawn
ratings."""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError
from puidrec.exposure.base import DEFAULT_LOW, Exposure, FittedPropensity


class NaiveBayes(FittedPropensity):
    """Exposure as the rating itself explains it; needs uniform rows, and says so in every report.

    Pairs are told apart by their rating only, so `predict` wants `rating=`. Without it the rating
    is unknown, and the mean of P(o | r) over P(r) is the overall rate P(o).
    """

    name = "naive-bayes"
    uses_uniform = True

    def __init__(self, *, smoothing: float = 1.0, low: float = DEFAULT_LOW) -> None:
        super().__init__(low=low)
        if not smoothing > 0:
            raise InputError("smoothing out of range", found=smoothing, expected="a number > 0")
        self.smoothing = smoothing

    def _fit(self, data: Exposure) -> None:
        if data.uniform is None or not data.uniform.rating.size:
            raise InputError(
                "naive-bayes needs uniformly drawn ratings, and there are none",
                expected="a data set with uniform rows, and a protocol that holds some of them out",
                hint="Choose two-way, cells or logistic instead.",
            )
        if data.log is None:
            raise InputError("naive-bayes needs the ratings of the log", found="counts only")
        log, uniform = data.log.rating, data.uniform.rating
        parts = [np.unique(log[part]) for part in row_slices(log.size)]
        self.levels_ = np.unique(np.concatenate([*parts, uniform]))
        seen, drawn = self._distribution(log), self._distribution(uniform)
        everywhere = data.rate * seen + (1.0 - data.rate) * drawn if data.uniform_unseen else drawn
        self.by_level_ = seen / everywhere * data.rate
        self.overall_ = data.rate

    def _distribution(self, rating: np.ndarray) -> np.ndarray:
        """Share of each level, `smoothing` pseudo-ratings spread evenly over the levels; some rows
        at a time."""
        count = np.zeros(self.levels_.size)
        for part in row_slices(rating.size):
            count += np.bincount(
                np.searchsorted(self.levels_, rating[part]), minlength=self.levels_.size
            )
        share: np.ndarray = (count + self.smoothing / self.levels_.size) / (
            rating.size + self.smoothing
        )
        return share

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        if rating is None:
            return np.full(users.size, self.overall_)
        rating = np.asarray(rating)
        level = np.minimum(np.searchsorted(self.levels_, rating), self.levels_.size - 1)
        unknown = self.levels_[level] != rating
        if unknown.any():
            raise InputError(
                f"{int(unknown.sum()):,} ratings are of a level never seen in fitting",
                found=float(rating[unknown][0]),
                expected=f"one of {', '.join(f'{v:g}' for v in self.levels_[:10])}",
            )
        p: np.ndarray = self.by_level_[level]
        return p

    def _details(self) -> dict[str, Any]:
        return {
            "by_level": {
                f"{r:g}": float(p) for r, p in zip(self.levels_, self.by_level_, strict=True)
            }
        }
