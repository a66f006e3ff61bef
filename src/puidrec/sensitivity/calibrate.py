"""What is a feature worth? Hide each observed one in turn and see how far the nominal odds of exposure move.

A hidden confounder as strong as feature j would need Γ of that size: the scale on which Γ can be discussed, and from
which `auto` takes α and β. Rates of small cells move by chance as well; that part is estimated and shrunk away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from puidrec.errors import InputError
from puidrec.features.bins import bin_side
from puidrec.features.counts import ExposureCounts
from puidrec.sensitivity.entropy import conditional_entropy

SideName = Literal["user", "item"]


@dataclass(frozen=True)
class FeatureShift:
    """One row: hiding this feature multiplies the odds of exposure by `gamma_mean` or its inverse, typically."""

    feature: str
    side: SideName
    gamma_mean: float
    """exp of the mean |logit p with - logit p without| over D."""
    gamma_90: float
    """exp of its 90 % quantile over D."""
    gain: float
    """H(o | without) - H(o | with), plug-in, in nats."""


@dataclass(frozen=True)
class Calibration:
    """The table of features, and the typical log odds-ratio shift of one feature per side."""

    rows: tuple[FeatureShift, ...]

    def shift(self, side: SideName) -> float:
        """Mean over the side's features of log `gamma_mean`; 0 without features."""
        shifts = [np.log(row.gamma_mean) for row in self.rows if row.side == side]
        return float(np.mean(shifts)) if shifts else 0.0

    def to_frame(self) -> pl.DataFrame:
        """The rows as a table, strongest feature first."""
        names = ("feature", "side", "gamma_mean", "gamma_90", "gain")
        schema = dict(zip(names, (pl.String, pl.String, pl.Float64, pl.Float64, pl.Float64), strict=True))
        rows = [{name: getattr(row, name) for name in names} for row in self.rows]
        return pl.DataFrame(rows, schema=schema).sort("gamma_mean", descending=True, maintain_order=True)


@dataclass(frozen=True)
class Cells:
    """Observed and possible pairs of one side's bins against fixed bins of the other side, [bins, other bins]."""

    observed: np.ndarray
    pairs: np.ndarray

    @property
    def rate(self) -> np.ndarray:
        """Exposure rate, smoothed by one expected observation at the overall rate; never 0 or 1."""
        overall = min(max(self.observed.sum() / self.pairs.sum(), 1e-12), 0.5)
        smoothed: np.ndarray = (self.observed + 1.0) / (self.pairs + 1.0 / overall)
        return smoothed


def calibrate(
    user: np.ndarray,
    item: np.ndarray,
    users: pl.DataFrame | None,
    items: pl.DataFrame | None,
    *,
    n_users: int,
    n_items: int,
    groups: Mapping[str, Sequence[str]] | None = None,
    exclude: Sequence[str] = (),
) -> Calibration:
    """Hide every feature of both sides in turn (or every named group of columns) and measure the shift.

    Bins with the feature are made with it first in line, bins without it from the others in the same order.
    """
    degree = np.bincount(user, minlength=n_users), np.bincount(item, minlength=n_items)
    whole = [
        bin_side(frame, id_column=key, n_entities=n, exclude=exclude, relevance=d.astype(np.float64)).codes
        for frame, key, n, d in ((users, "user_id", n_users, degree[0]), (items, "item_id", n_items, degree[1]))
    ]
    rows: list[FeatureShift] = []
    sides: tuple[tuple[SideName, pl.DataFrame | None], ...] = (("user", users), ("item", items))
    for k, (side, frame) in enumerate(sides):
        if frame is None:
            continue
        own, other = (user, item) if side == "user" else (item, user)
        other_bin = whole[1 - k]
        features = frame.drop([c for c in (f"{side}_id", *exclude) if c in frame.columns])
        for name, columns in _groups(features, groups).items():
            with_it = features.select(*columns, pl.exclude(columns))
            binned = [
                bin_side(table, id_column=f"{side}_id", n_entities=frame.height).codes
                for table in (with_it, features.drop(columns))
            ]
            cells = [_count(own, other, bins, other_bin) for bins in binned]
            rows.append(_shift(name, side, cells[0], cells[1], binned[0], binned[1], degree[k]))
    return Calibration(tuple(rows))


def calibrate_sides(counts: ExposureCounts) -> Calibration:
    """The same from counts alone: each side's features are hidden all at once (no pass over the log)."""
    cells = Cells(counts.cells, counts.pairs)
    rows: list[FeatureShift] = []
    sides: tuple[tuple[SideName, Cells, np.ndarray, np.ndarray], ...] = (
        ("user", cells, counts.user_bin, counts.user_degree),
        ("item", Cells(cells.observed.T, cells.pairs.T), counts.item_bin, counts.item_degree),
    )
    for side, own, bins, degree in sides:
        if own.pairs.shape[0] > 1:
            hidden = Cells(own.observed.sum(axis=0, keepdims=True), own.pairs.sum(axis=0, keepdims=True))
            rows.append(_shift(f"all {side} features", side, own, hidden, bins, np.zeros_like(bins), degree))
    return Calibration(tuple(rows))


def entity_variance(degree: np.ndarray, bins: np.ndarray) -> float:
    """Variance of log activity among entities of one bin, by moments: degrees vary more than Poisson counts would."""
    size = np.bincount(bins).astype(np.float64)
    mean = np.bincount(bins, degree) / np.maximum(size, 1.0)
    spread = np.bincount(bins, (degree - mean[bins]) ** 2) * size / np.maximum(size - 1.0, 1.0)
    scale = float((size * mean**2)[size > 1].sum())
    return max(0.0, float((spread - size * mean)[size > 1].sum()) / scale) if scale > 0.0 else 0.0


def _groups(features: pl.DataFrame, groups: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    if groups is None:
        return {name: [name] for name in features.columns}
    found = {name: [c for c in columns if c in features.columns] for name, columns in groups.items()}
    return {name: columns for name, columns in found.items() if columns}


def _count(own: np.ndarray, other: np.ndarray, own_bin: np.ndarray, other_bin: np.ndarray) -> Cells:
    """Cells of one side's bins against the other's, by one pass over the log."""
    if own.shape != other.shape:
        raise InputError("user and item codes must be vectors of one length", found=(own.shape, other.shape))
    size, width = np.bincount(own_bin), np.bincount(other_bin)
    key = own_bin[own].astype(np.int64) * width.size + other_bin[other]
    observed = np.bincount(key, minlength=size.size * width.size).reshape(size.size, width.size)
    return Cells(observed, np.multiply.outer(size.astype(np.float64), width.astype(np.float64)))


def _shift(
    name: str,
    side: SideName,
    shown: Cells,
    hidden: Cells,
    shown_bin: np.ndarray,
    hidden_bin: np.ndarray,
    degree: np.ndarray,
) -> FeatureShift:
    """Distribution over D of the shift, shrunk by empirical Bayes: shift ~ N(0, τ²), seen through noise v."""
    n_hidden = hidden.pairs.shape[0]
    joint = np.bincount(shown_bin.astype(np.int64) * n_hidden + hidden_bin, minlength=shown.pairs.shape[0] * n_hidden)
    used = np.flatnonzero(joint)
    b, h = np.divmod(used, n_hidden)
    width = shown.pairs.sum(axis=0) / max(shown.pairs.sum(), 1.0)
    weight = np.multiply.outer(joint[used] / joint.sum(), width)
    p, q = shown.rate[b], hidden.rate[h]
    moved = np.log(p / (1.0 - p)) - np.log(q / (1.0 - q))
    size = np.bincount(shown_bin, minlength=shown.pairs.shape[0])[b]
    noise = 1.0 / (shown.pairs[b] * q + 1.0) + (entity_variance(degree, shown_bin) / size)[:, None]
    true = max(0.0, float((weight * (moved**2 - noise)).sum()))
    shrunk = np.abs(moved) * true / (true + noise)
    gain = conditional_entropy(hidden.observed, hidden.pairs) - conditional_entropy(shown.observed, shown.pairs)
    mean = float((weight * shrunk).sum())
    return FeatureShift(name, side, float(np.exp(mean)), float(np.exp(_quantile(shrunk, weight, 0.9))), float(gain))


def _quantile(values: np.ndarray, weight: np.ndarray, level: float) -> float:
    """Weighted quantile: the smallest value with at least `level` of the weight at or below it."""
    order = np.argsort(values, axis=None)
    reached = np.cumsum(weight.ravel()[order])
    position = int(np.searchsorted(reached, level * reached[-1]))
    return float(values.ravel()[order[min(position, order.size - 1)]])
