"""`logistic`: log-odds linear in user and item features, plus cells of bins as interactions if
asked for.

Over all of D, through the table of distinct user rows × distinct item rows (`mode="cells"`), or,
where numbers make nearly every row distinct, on a case-control sample whose intercept is moved back
to D (`mode="sample"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.special import expit, logit

from puidrec.errors import InputError
from puidrec.exposure.base import DEFAULT_LOW, Exposure, FittedPropensity
from puidrec.exposure.solver import (
    TABLE_BUDGET,
    AdditiveProblem,
    ClassSide,
    Parameters,
    Ridge,
    calibrating_shift,
    minimise,
)
from puidrec.rng import Rng, generator

Mode = Literal["auto", "cells", "sample"]
FREE = 1e-9
"""Ridge of what is not penalised; above 0 only so that an empty bin stays finite."""
SCORE_LEVELS = 1000


@dataclass(frozen=True)
class AdditiveScore:
    """logit p = cell[bins] + user score + item score: what both modes fit, and all that prediction
    needs."""

    cell: np.ndarray
    user: np.ndarray
    item: np.ndarray


class Logistic(FittedPropensity):
    """Logistic regression of exposure on features; without side tables, on the one-hot bins."""

    name = "logistic"

    def __init__(
        self,
        *,
        mode: Mode = "auto",
        ridge: float = 1.0,
        interactions: bool = False,
        n_sample: int = 200_000,
        rng: Rng = 0,
        low: float = DEFAULT_LOW,
    ) -> None:
        super().__init__(low=low)
        if mode not in ("auto", "cells", "sample"):
            raise InputError(
                "unknown mode of logistic", found=mode, expected="auto, cells or sample"
            )
        if not ridge > 0:
            raise InputError("ridge out of range", found=ridge, expected="a number > 0")
        if interactions and mode == "sample":
            raise InputError("interactions need mode='cells'", found=mode)
        self.mode, self.ridge, self.interactions = mode, ridge, interactions
        self.n_sample, self.rng = n_sample, rng

    def _fit(self, data: Exposure) -> None:
        counts = data.counts
        # A population with one bin and no features still needs a matrix; its single column is
        # constant.
        designs = [
            one_hot(bins) if features is None else features
            for features, bins in (
                (data.user_features, counts.user_bin),
                (data.item_features, counts.item_bin),
            )
        ]
        bins = [
            b if self.interactions else np.zeros_like(b) for b in (counts.user_bin, counts.item_bin)
        ]
        kinds = [_distinct_rows(d, b) for d, b in zip(designs, bins, strict=True)]
        table = (int(kinds[0].max()) + 1) * (int(kinds[1].max()) + 1)
        self.mode_ = (
            self.mode if self.mode != "auto" else ("cells" if table <= TABLE_BUDGET else "sample")
        )
        if self.mode_ == "sample" and self.interactions:
            raise InputError(
                "interactions need fewer distinct feature rows",
                found=f"{table:,} combinations",
                expected=f"at most {TABLE_BUDGET:,}",
                hint="Use the propensity 'cells'.",
            )
        if self.mode_ == "cells":
            self.score_ = fit_cells(data, designs, bins, kinds, self.ridge)
        else:
            self.score_ = fit_sample(data, designs, self.ridge, self.n_sample, self.rng)
        self.user_bin_, self.item_bin_ = bins

    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        score = self.score_
        cell = score.cell[self.user_bin_[users], self.item_bin_[items]]
        p: np.ndarray = expit(cell + score.user[users] + score.item[items])
        return p

    def _details(self) -> dict[str, Any]:
        return {"mode": self.mode_, "ridge": self.ridge, "interactions": self.interactions}


def one_hot(codes: np.ndarray) -> sparse.csr_array:
    """Codes as indicator columns, [entities, largest code + 1]."""
    return sparse.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)))


def feature_scores(data: Exposure) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What the features say of each user and of each item: log-odds, None for a side without
    features."""
    if data.user_features is None and data.item_features is None:
        return None, None
    score = Logistic().fit(data).score_
    return (
        None if data.user_features is None else score.user - score.user.mean(),
        None if data.item_features is None else score.item - score.item.mean(),
    )


def fit_cells(
    data: Exposure,
    designs: list[sparse.csr_array],
    bins: list[np.ndarray],
    kinds: list[np.ndarray],
    ridge: float,
) -> AdditiveScore:
    """Penalised likelihood of all of D, exactly, through distinct rows. The intercept is free."""
    counts = data.counts
    sides = [
        _side(design, bin_, kind, degree)
        for design, bin_, kind, degree in zip(
            designs, bins, kinds, (counts.user_degree, counts.item_degree), strict=True
        )
    ]
    whole = bool(bins[0].max() or bins[1].max())
    cells = (counts.cells if whole else counts.cells.sum(keepdims=True)).astype(np.float64)
    centre = float(logit(data.rate))
    start = Parameters(np.full(cells.shape, centre), *(np.zeros(d.shape[1]) for d in designs))
    point, _ = minimise(
        AdditiveProblem(sides[0], sides[1], cells, centre), start, Ridge(ridge, ridge, ridge, FREE)
    )
    return AdditiveScore(point.cell, designs[0] @ point.user, designs[1] @ point.item)


def fit_sample(
    data: Exposure, designs: list[sparse.csr_array], ridge: float, n_sample: int, rng: Rng
) -> AdditiveScore:
    """Seen pairs against unseen ones drawn from D; slopes are those of D, the intercept is set by
    calibration."""
    from sklearn.linear_model import LogisticRegression

    if data.log is None:
        raise InputError(
            "mode='sample' needs the log itself",
            found="counts only",
            hint="Use mode='cells' on bins.",
        )
    random = generator(rng, "propensity")
    log = np.sort(data.log.user.astype(np.int64) * data.counts.n_items + data.log.item)
    seen = log if log.size <= n_sample else log[random.choice(log.size, n_sample, replace=False)]
    pairs = np.concatenate([seen, _draw_unseen(log, data, n_sample, random)])
    user, item = pairs // data.counts.n_items, pairs % data.counts.n_items
    rows = sparse.csr_array(sparse.hstack([designs[0][user], designs[1][item]], format="csr"))
    label = np.arange(user.size) < seen.size
    fitted = LogisticRegression(C=1.0 / ridge, max_iter=1000).fit(rows, label)
    slopes = np.split(fitted.coef_[0], [designs[0].shape[1]])
    scores = [design @ slope for design, slope in zip(designs, slopes, strict=True)]
    (u, n_u), (i, n_i) = (_levels(score) for score in scores)
    shift = calibrating_shift(u[:, None] + i, np.multiply.outer(n_u, n_i), float(data.n_seen))
    return AdditiveScore(np.full((1, 1), shift), *scores)


def _draw_unseen(
    log: np.ndarray, data: Exposure, size: int, random: np.random.Generator
) -> np.ndarray:
    """Uniform pairs of D (as sortable keys) that are not in the log, with replacement; fewer where
    few are unseen."""
    drawn = random.integers(0, data.n_pairs, int(size / max(1.0 - data.rate, 0.1)))
    place = np.minimum(np.searchsorted(log, drawn), log.size - 1)
    drawn = np.asarray(drawn[log[place] != drawn][:size])
    if not drawn.size:
        raise InputError(
            "no unseen pair was drawn", found=f"{data.rate:.1%} of D seen", hint="Use mode='cells'."
        )
    return drawn


def _levels(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores as at most `SCORE_LEVELS` values (means of neighbours) and how many entities have
    each."""
    parts = np.array_split(np.sort(score), min(SCORE_LEVELS, score.size))
    return np.array([part.mean() for part in parts]), np.array([float(part.size) for part in parts])


def _distinct_rows(design: sparse.csr_array, bins: np.ndarray) -> np.ndarray:
    """A number per distinct (bin, feature row), by a random projection that equal rows share to the
    last bit."""
    design.sort_indices()
    projection = np.random.default_rng(20).standard_normal(design.shape[1] + 1)
    kind: np.ndarray = np.unique(
        design @ projection[1:] + bins * projection[0], return_inverse=True
    )[1]
    return kind


def _side(
    design: sparse.csr_array, bins: np.ndarray, kind: np.ndarray, degree: np.ndarray
) -> ClassSide:
    first = np.unique(kind, return_index=True)[1]
    size, observed = np.bincount(kind).astype(np.float64), np.bincount(kind, weights=degree)
    return ClassSide(
        size, observed, bins[first], int(bins.max()) + 1, sparse.csr_array(design[first])
    )
