"""What a Γ rule may look at: exposure counts under feature bins and what follows from them, made
when asked for; and how strong a recorded feature is.

For the latter each is hidden in turn, and measured is how far the nominal odds of exposure move. A
hidden confounder as strong as feature j needs a Γ of that size: a yardstick for Γ, and where `auto`
takes α and β from. Rates of small cells move by chance as well; that part is estimated and shrunk
away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from scipy.special import expit, logit

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import row_slices
from puidrec.data.tables import row_starts
from puidrec.errors import InputError
from puidrec.exposure.additive import TwoWayEffects, fit_two_way
from puidrec.exposure.counts import (
    Estimator,
    ExposureCounts,
    Gains,
    bernoulli_kl,
    information_gains,
)
from puidrec.features.bins import SideBins, bin_side, cross
from puidrec.features.encode import binned_design
from puidrec.rng import Rng, generator

SideName = Literal["user", "item"]
N_SHUFFLES = 4


@dataclass(frozen=True)
class Evidence:
    """A log seen through bins: of the log and side tables (`from_log`), or counts alone. Then
    calibration hides whole sides, and only bins stand for features."""

    counts: ExposureCounts
    user_bins: SideBins | None = None
    item_bins: SideBins | None = None
    users: pl.DataFrame | None = None
    items: pl.DataFrame | None = None
    log: tuple[np.ndarray, np.ndarray] | None = None
    _gains: dict[tuple[str, int, int], Gains] = field(default_factory=dict, repr=False)

    @classmethod
    def from_log(
        cls,
        user: np.ndarray,
        item: np.ndarray,
        *,
        n_users: int,
        n_items: int,
        users: pl.DataFrame | None = None,
        items: pl.DataFrame | None = None,
    ) -> Evidence:
        """Bin both sides (columns that explain degrees first) and count the log. Row k of a table
        is code k."""
        sides = []
        for frame, key, n, codes in (
            (users, "user_id", n_users, user),
            (items, "item_id", n_items, item),
        ):
            degree = np.diff(row_starts(codes, n)).astype(np.float64)
            sides.append(bin_side(frame, id_column=key, n_entities=n, relevance=degree))
        counts = ExposureCounts.from_pairs(user, item, sides[0].codes, sides[1].codes)
        return cls(counts, sides[0], sides[1], users, items, (user, item))

    @classmethod
    def of_rows(
        cls, data: Dataset, rows: Interactions, calibration_rows: int | None = None
    ) -> Evidence:
        """Of some rows of a data set, with its side tables.

        calibration_rows: how many of them suffice to hide features in; odds ratios do not depend on
        their number.
        """
        found = cls.from_log(
            rows.user,
            rows.item,
            users=data.users,
            items=data.items,
            n_users=data.n_users,
            n_items=data.n_items,
        )
        step = 1 if calibration_rows is None else -(-len(rows) // calibration_rows)
        return found if step <= 1 else replace(found, log=(rows.user[::step], rows.item[::step]))

    def gains(self, estimator: Estimator, n_permutations: int, rng: Rng = 0) -> Gains:
        """Entropies and information gains; kept, so that several rules and a report share one
        estimate."""
        if not isinstance(rng, int):
            return information_gains(self.counts, estimator, n_permutations, rng)
        key = (estimator, n_permutations, rng)
        if key not in self._gains:
            self._gains[key] = information_gains(self.counts, estimator, n_permutations, rng)
        return self._gains[key]

    @cached_property
    def two_way(self) -> TwoWayEffects:
        """Effects of every user and item on exposure beyond their bins."""
        return fit_two_way(self.counts)

    @cached_property
    def calibration(self) -> Calibration:
        """The odds-ratio shift that hiding features causes."""
        return calibrate_sides(self.counts) if self.log is None else calibrate(self)

    @cached_property
    def designs(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Features of users and of items, one by one, at a finer resolution than the composite
        bins."""
        return binned_design(self.users, "user_id"), binned_design(self.items, "item_id")


@dataclass(frozen=True)
class FeatureShift:
    """One row: hiding this feature multiplies the odds of exposure by `gamma_mean` or its inverse,
    typically."""

    feature: str
    side: SideName
    gamma_mean: float
    """exp of the mean |logit p with - logit p without| over D."""
    gamma_90: float
    """exp of its 90 % quantile over D."""
    gain: float
    """H(o | without) - H(o | with) in nats, without the part that is chance."""


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
        numbers = dict.fromkeys(("gamma_mean", "gamma_90", "gain"), pl.Float64)
        schema = {"feature": pl.String, "side": pl.String, **numbers}
        frame = pl.DataFrame([asdict(row) for row in self.rows], schema=schema)
        return frame.sort("gamma_mean", descending=True, maintain_order=True)


@dataclass(frozen=True)
class BinCounts:
    """Observed and possible pairs of one side's bins against fixed bins of the other side, [bins,
    other bins]."""

    observed: np.ndarray
    pairs: np.ndarray

    @property
    def rate(self) -> np.ndarray:
        """Exposure rate, smoothed by one expected observation at the overall rate; never 0 or 1."""
        overall = min(max(self.observed.sum() / self.pairs.sum(), 1e-12), 0.5)
        return (self.observed + 1.0) / (self.pairs + 1.0 / overall)


def calibrate(
    evidence: Evidence, groups: Mapping[str, Sequence[str]] | None = None, rng: Rng = 0
) -> Calibration:
    """Hide every feature of both sides in turn (or every named group of columns) and measure the
    shift of the odds. Needs the log.

    Bins without the feature are made from the others; bins with it split these by the feature, so
    that nothing else changes. How far rates move by chance is measured with the feature permuted
    within the bins, and shrunk away.
    """
    assert evidence.log is not None  # noqa: S101 (asked for above)
    sides: tuple[SideName, SideName] = ("user", "item")
    codes, frames = evidence.log, (evidence.users, evidence.items)
    sizes = evidence.counts.n_users, evidence.counts.n_items
    degree = [np.diff(row_starts(c, n)) for c, n in zip(codes, sizes, strict=True)]
    draw = generator(rng, "calibrate")

    def binned(k: int, frame: pl.DataFrame | None) -> np.ndarray:
        activity, key = degree[k].astype(np.float64), f"{sides[k]}_id"
        return bin_side(frame, id_column=key, n_entities=sizes[k], relevance=activity).codes

    whole = [binned(k, frame) for k, frame in enumerate(frames)]
    rows: list[FeatureShift] = []
    for k, frame in enumerate(frames):
        if frame is None:
            continue
        features = frame.drop(f"{sides[k]}_id", strict=False)
        seen = _profile(codes[k], codes[1 - k], whole[1 - k], sizes[k])
        for name, columns in _groups(features, groups).items():
            hidden, feature = binned(k, features.drop(columns)), binned(k, features.select(columns))
            count = partial(_count, codes[k], codes[1 - k], other_bin=whole[1 - k])
            split = partial(_moves, count, hidden, degree=degree[k])
            chance = [split(_shuffled(feature, hidden, seen, draw)) for _ in range(N_SHUFFLES)]
            rows.append(_worth(name, sides[k], split(feature), chance))
    return Calibration(tuple(rows))


def calibrate_sides(counts: ExposureCounts) -> Calibration:
    """`calibrate` from counts alone: each side's features are hidden all at once (no pass over the
    log)."""
    rows: list[FeatureShift] = []
    sides: tuple[tuple[SideName, np.ndarray, np.ndarray, np.ndarray, np.ndarray], ...] = (
        ("user", counts.cells, counts.pairs, counts.user_bin, counts.user_degree),
        ("item", counts.cells.T, counts.pairs.T, counts.item_bin, counts.item_degree),
    )
    for side, cells, pairs, bins, degree in sides:
        if pairs.shape[0] > 1:
            whole = BinCounts(cells.sum(axis=0, keepdims=True), pairs.sum(axis=0, keepdims=True))
            moves = _compare(BinCounts(cells, pairs), whole, bins, np.zeros_like(bins), degree)
            rows.append(_worth(f"all {side} features", side, moves))
    return Calibration(tuple(rows))


def entity_variance(degree: np.ndarray, bins: np.ndarray) -> float:
    """Variance of log activity among entities of one bin, by moments: degrees vary more than
    Poisson counts would."""
    size = np.bincount(bins).astype(np.float64)
    mean = np.bincount(bins, degree) / np.maximum(size, 1.0)
    spread = np.bincount(bins, (degree - mean[bins]) ** 2) * size / np.maximum(size - 1.0, 1.0)
    scale = float((size * mean**2)[size > 1].sum())
    return max(0.0, float((spread - size * mean)[size > 1].sum()) / scale) if scale > 0.0 else 0.0


def _groups(
    features: pl.DataFrame, groups: Mapping[str, Sequence[str]] | None
) -> dict[str, list[str]]:
    if groups is None:
        return {name: [name] for name in features.columns}
    found = {
        name: [c for c in columns if c in features.columns] for name, columns in groups.items()
    }
    return {name: columns for name, columns in found.items() if columns}


def _count(
    own: np.ndarray, other: np.ndarray, own_bin: np.ndarray, other_bin: np.ndarray
) -> BinCounts:
    """Cells of one side's bins against the other's, by one pass over the log."""
    if own.shape != other.shape:
        raise InputError(
            "user and item codes must be vectors of one length", found=(own.shape, other.shape)
        )
    size, width = np.bincount(own_bin), np.bincount(other_bin)
    observed = np.zeros(size.size * width.size, np.int64)
    for part in row_slices(own.size):
        key = own_bin[own[part]].astype(np.int64) * width.size + other_bin[other[part]]
        observed += np.bincount(key, minlength=observed.size)
    return BinCounts(
        observed.reshape(size.size, width.size),
        np.multiply.outer(size.astype(np.float64), width.astype(np.float64)),
    )


class Moves(NamedTuple):
    """Shift of the log-odds of every (shown bin, hidden bin, other bin) that exists, its variance
    by chance if traits were log-normal and tastes equal, and its weight in D."""

    weight: np.ndarray
    moved: np.ndarray
    noise: np.ndarray
    rate: np.ndarray


def _moves(
    count: Callable[..., BinCounts], hidden: np.ndarray, feature: np.ndarray, degree: np.ndarray
) -> Moves:
    """Split the hidden bins by a feature and see how rates move."""
    shown = cross(hidden, feature)
    return _compare(count(own_bin=shown), count(own_bin=hidden), shown, hidden, degree)


def _profile(own: np.ndarray, other: np.ndarray, other_bin: np.ndarray, n: int) -> np.ndarray:
    """A number of each entity that says which bins of the other side its rows are of, whatever
    their order: the sum of a random integer per bin, exact in float64."""
    value = (
        np.random.default_rng(0).integers(1, 1 << 20, int(other_bin.max()) + 1).astype(np.float64)
    )
    found = np.zeros(n)
    for part in row_slices(own.size):
        found += np.bincount(own[part], value[other_bin[other[part]]], minlength=n)
    return found


def _shuffled(
    feature: np.ndarray, within: np.ndarray, profile: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """A feature permuted among the entities of a bin: the same splits, without any information.

    Entities come in the order of their rows' profile, values in their own: what entities are called
    decides nothing.
    """
    result = np.empty_like(feature)
    values = feature[np.lexsort((feature, within))]
    result[np.lexsort((profile, within))] = values[
        np.lexsort((rng.random(feature.size), np.sort(within)))
    ]
    return result


def _compare(
    shown: BinCounts,
    hidden: BinCounts,
    shown_bin: np.ndarray,
    hidden_bin: np.ndarray,
    degree: np.ndarray,
) -> Moves:
    n_hidden = hidden.pairs.shape[0]
    joint = np.bincount(
        shown_bin.astype(np.int64) * n_hidden + hidden_bin,
        minlength=shown.pairs.shape[0] * n_hidden,
    )
    used = np.flatnonzero(joint)
    b, h = np.divmod(used, n_hidden)
    width = shown.pairs.sum(axis=0) / max(shown.pairs.sum(), 1.0)
    weight = np.multiply.outer(joint[used] / joint.sum(), width)
    p, q = shown.rate[b], hidden.rate[h]
    size = np.bincount(shown_bin, minlength=shown.pairs.shape[0])[b]
    noise = 1.0 / (shown.pairs[b] * q + 1.0) + (entity_variance(degree, shown_bin) / size)[:, None]
    return Moves(weight, logit(p) - logit(q), noise, q)


def _worth(name: str, side: SideName, moves: Moves, chance: Sequence[Moves] = ()) -> FeatureShift:
    """Distribution over D of the shift, shrunk by empirical Bayes: shift ~ N(0, τ²), seen through
    noise, which is scaled to the moves that permuted features make by chance."""
    weight, moved, noise, rate = moves
    if chance:
        square = sum(float((by.weight * by.moved**2).sum()) for by in chance)
        noise = (
            noise * square / max(sum(float((by.weight * by.noise).sum()) for by in chance), 1e-300)
        )
    true = max(0.0, float((weight * (moved**2 - noise)).sum()))
    signed = moved * true / (true + noise) if true > 0.0 else np.zeros_like(moved)
    shrunk = np.abs(signed)
    gain = float((weight * bernoulli_kl(expit(logit(rate) + signed), rate)).sum())
    mean, high = float((weight * shrunk).sum()), _quantile(shrunk, weight, 0.9)
    return FeatureShift(
        name, side, float(np.exp(mean)), float(np.exp(high)), gain if true > 0.0 else 0.0
    )


def _quantile(values: np.ndarray, weight: np.ndarray, level: float) -> float:
    """Weighted quantile: the smallest value with at least `level` of the weight at or below it."""
    order = np.argsort(values, axis=None)
    reached = np.cumsum(weight.ravel()[order])
    position = int(np.searchsorted(reached, level * reached[-1]))
    return float(values.ravel()[order[min(position, order.size - 1)]])
