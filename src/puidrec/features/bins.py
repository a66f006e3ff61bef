"""Adaptive hybrid binning: one bin code per user (or item) from all its features, coarse enough to
count with.

A column becomes a few bins of its own (`bin_column`); columns are crossed into composite bins, and
combinations too rare to estimate a rate from join the most similar frequent one (`bin_side`). Same
table, same bins: nothing is drawn.

Before that, one of several columns that say the same is kept: groups by correlation, one
representative each (the paper's appendix).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from scipy.sparse.csgraph import connected_components

from puidrec.errors import InputError

FREQUENT_SHARE = 0.5
"""A column joins the composite only while this share of entities stays in combinations of
`min_count` or more."""
MIN_COUNT = 10
MAX_LEVELS = 16
"""Categories of a column kept by name; the rarer ones are one bin, `other`."""
ID_ROWS = 10
"""Fewer rows than this cannot tell an id from a feature that happens to differ everywhere."""


@dataclass(frozen=True)
class ColumnBins:
    """The bins of one column; a missing value is a bin of its own, since who leaves a field empty
    is informative."""

    name: str
    codes: np.ndarray
    """int32, in the order of `labels`."""
    labels: tuple[str, ...]

    def two_levels(self) -> ColumnBins:
        """The most even cut in two between neighbouring bins (missing counts as the last)."""
        if len(self.labels) <= 2:
            return self
        size = np.bincount(self.codes, minlength=len(self.labels))
        cut = int(np.abs(2 * np.cumsum(size)[:-1] - size.sum()).argmin())
        low, high = (_joined(self.labels[: cut + 1]), _joined(self.labels[cut + 1 :]))
        return ColumnBins(self.name, (self.codes > cut).astype(np.int32), (low, high))


def bin_column(column: pl.Series, n_bins: int = 4) -> ColumnBins:
    """Bin a column by its type.

    Numbers: their own values where there are at most `n_bins`; else quantiles; where ties make
    quantiles collapse, zero against the rest if the ties are zeros, else the more even of the
    collapsed quantiles and equal width. Text: by
    category. Lists: by the value of the list that is most common in the column. Missing values form
    the last bin.
    """
    if isinstance(column.dtype, pl.List):
        return _categorical(_leading_value(column))
    if not column.dtype.is_numeric():
        return _categorical(column.cast(pl.String))
    values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    present = np.isfinite(values)
    found = values[present]
    distinct = np.unique(found)
    if distinct.size <= n_bins:
        codes, labels = np.searchsorted(distinct, found), tuple(f"{v:g}" for v in distinct)
    else:
        edges = _edges(found, n_bins)
        inner = (f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges))
        labels = (f"below {edges[0]:.4g}", *inner, f"{edges[-1]:.4g} or more")
        codes = np.searchsorted(edges, found, side="right")
    return _with_missing(column.name, codes, labels, present)


def _edges(values: np.ndarray, n_bins: int) -> np.ndarray:
    """Inner edges: bin k is [edge k-1, edge k)."""
    quantiles: np.ndarray = np.unique(
        np.quantile(values, np.arange(1, n_bins) / n_bins, method="higher")
    )
    quantiles = quantiles[quantiles > values.min()]
    if quantiles.size == n_bins - 1:
        return quantiles
    if values.min() == 0.0 and np.mean(values == 0.0) > 1.0 / n_bins:
        return np.array([values[values > 0.0].min()])
    width = np.linspace(values.min(), values.max(), n_bins + 1)[1:-1]
    candidates: list[np.ndarray] = [edges for edges in (quantiles, width) if edges.size]
    return max(candidates, key=lambda edges: _evenness(values, edges))


def _evenness(values: np.ndarray, edges: np.ndarray) -> float:
    """Entropy of the bin occupancies: larger where bins are more, and more alike in size."""
    share = np.bincount(np.searchsorted(edges, values, side="right")) / values.size
    share = share[share > 0]
    return round(float(-(share * np.log(share)).sum()), 12)


def _leading_value(column: pl.Series) -> pl.Series:
    """One value per list: the one most common in the column (ties by name); `none` for an empty
    list."""
    lists = column.cast(pl.List(pl.String)).list.drop_nulls().alias("value")
    count = lists.explode().drop_nulls().value_counts(name="n")
    common = count.sort(["n", "value"], descending=[True, False])["value"]
    rank = pl.element().replace_strict(common, np.arange(common.len()), return_dtype=pl.Int64)
    best = common.gather(lists.list.eval(rank).list.min()).fill_null("none")
    return best.set(column.is_null(), None).alias(column.name)


def _categorical(column: pl.Series) -> ColumnBins:
    """One bin per category, most common first (ties by name); past `MAX_LEVELS` the rest is
    `other`."""
    table = column.drop_nulls().rename("value").to_frame().group_by("value").len()
    names = table.sort(["len", "value"], descending=[True, False])["value"].to_list()
    many = len(names) > MAX_LEVELS
    labels = (*names[: MAX_LEVELS - 1], "other") if many else tuple(names)
    code = {name: min(k, MAX_LEVELS - 1) for k, name in enumerate(names)}
    present = column.is_not_null().to_numpy()
    mapped = column.drop_nulls().replace_strict(code, default=0, return_dtype=pl.Int32)
    return _with_missing(column.name, mapped.to_numpy(), labels, present)


def _with_missing(
    name: str, found: np.ndarray, labels: tuple[str, ...], present: np.ndarray
) -> ColumnBins:
    """Put codes of present values in place; drop empty bins; missing is the last bin."""
    occupied, compact = np.unique(found, return_inverse=True)
    codes = np.full(present.size, occupied.size, np.int32)
    codes[present] = compact
    kept = tuple(labels[k] for k in occupied.tolist())
    return ColumnBins(name, codes, kept if present.all() else (*kept, "missing"))


def _joined(labels: tuple[str, ...]) -> str:
    return " or ".join(labels) if len(labels) <= 3 else f"{labels[0]} … {labels[-1]}"


@dataclass(frozen=True)
class SideBins:
    """The bins of one side (users or items)."""

    codes: np.ndarray
    """Bin of each entity (int32); every code from 0 to the number of labels - 1 occurs."""
    labels: tuple[str, ...]
    """What a bin is made of, for people: `gender=f, age=20 to 30`; rarer combinations joined the
    nearest one."""
    columns: tuple[str, ...]
    """The columns that make the bins."""

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.labels)


def bin_side(
    frame: pl.DataFrame | None,
    *,
    id_column: str,
    n_entities: int | None = None,
    min_count: int | None = None,
    max_bins: int = 64,
    relevance: np.ndarray | None = None,
) -> SideBins:
    """Cross the columns of a side table into composite bins of at least `min_count` entities each.

    Columns join one by one, at full resolution, else as two levels, else not at all, so that at
    least half of the entities stay in frequent combinations. They join in table order, or, given
    `relevance` (one number per entity, such as its degree), in order of how much of its variance
    their bins explain. Combinations rarer than `min_count` (default: 10, or 1 in 200), or beyond
    the `max_bins` most frequent, go to the frequent combination that differs in the fewest columns
    (ties: the larger one). Without a table there is one bin of `n_entities`: nothing recorded
    explains exposure.
    """
    columns = [] if frame is None else frame.drop(id_column, strict=False).get_columns()
    n = frame.height if frame is not None else n_entities or 0
    for column in columns:
        refuse_id(column, id_column)
    floor = min(max(MIN_COUNT, n // 200) if min_count is None else max(1, min_count), n)
    binned = [bin_column(column) for column in columns]
    if relevance is not None:
        binned.sort(key=lambda column: -_explained(column.codes, relevance))
    used, combination = _select(binned, floor)
    if not used:
        return SideBins(np.zeros(n, np.int32), ("all",), ())
    return _merge_rare(used, combination, floor, max_bins)


def cross(*codes: np.ndarray) -> np.ndarray:
    """Composite code of several codes (int32, compact): entities agree iff they agree in every
    one."""
    result = np.zeros(codes[0].size, np.int64)
    for code in codes:
        key = result * (int(code.max()) + 1) + code
        result = np.unique(key, return_inverse=True)[1]
    return result.astype(np.int32)


def _explained(codes: np.ndarray, target: np.ndarray) -> float:
    """Adjusted R² of a target given bins, at least 0 and rounded, so that columns of no use keep
    their order."""
    size = np.bincount(codes)
    mean = np.bincount(codes, target) / np.maximum(size, 1)
    residual = float(np.sum((target - mean[codes]) ** 2))
    total = float(np.sum((target - target.mean()) ** 2))
    left = codes.size - size.size
    if total <= 0.0 or left <= 0:
        return 0.0
    return max(0.0, round(1.0 - residual / left / (total / (codes.size - 1)), 9))


def refuse_id(column: pl.Series, id_column: str) -> None:
    """An id explains every exposure and generalises to none: as a feature it would make all gains
    spurious."""
    named = column.name.lower() in {"id", "user_id", "item_id", id_column.lower()}
    distinct = (
        column.len() >= ID_ROWS and column.null_count() == 0 and column.n_unique() == column.len()
    )
    if distinct and column.dtype.is_numeric():
        values = column.cast(pl.Float64).to_numpy()
        distinct = bool(np.ptp(values) == values.size - 1 and (values == np.round(values)).all())
    if named or (distinct and not isinstance(column.dtype, pl.List)):
        raise InputError(
            "an id cannot be a feature of a composite bin",
            column=column.name,
            found="the name of an id" if named else "a different value in every row",
            hint="Drop the column.",
        )


def _select(columns: list[ColumnBins], floor: int) -> tuple[list[ColumnBins], np.ndarray]:
    """Greedy forward choice of the columns (or their two-level forms) that keep combinations
    frequent."""
    used: list[ColumnBins] = []
    current = np.zeros(columns[0].codes.size if columns else 0, np.int32)
    for column in columns:
        for candidate in (column, column.two_levels()):
            if len(candidate.labels) < 2:
                continue
            crossed = cross(current, candidate.codes)
            size = np.bincount(crossed)
            if size[size >= floor].sum() >= FREQUENT_SHARE * crossed.size:
                used.append(candidate)
                current = crossed
                break
    return used, current


def _merge_rare(
    used: list[ColumnBins], combination: np.ndarray, floor: int, max_bins: int
) -> SideBins:
    """Give every rare combination to its nearest frequent one, by Hamming distance over the
    columns."""
    size = np.bincount(combination)
    first = np.zeros(size.size, np.int64)
    first[combination[::-1]] = np.arange(combination.size - 1, -1, -1)
    parts = np.stack([column.codes[first] for column in used])
    by_size = np.lexsort((np.arange(size.size), -size))
    kept = by_size[: max(1, min(max_bins, int((size >= floor).sum())))]
    target = np.empty(size.size, np.int32)
    for start in range(0, size.size, 1 << 16):
        block = slice(start, start + (1 << 16))
        distance = np.zeros((parts[0, block].size, kept.size), np.int16)
        for part in parts:
            distance += part[block, None] != part[None, kept]
        target[block] = distance.argmin(axis=1)  # first of equals: the largest
    order = np.lexsort(parts[::-1, kept])
    rank = np.empty(kept.size, np.int32)
    rank[order] = np.arange(kept.size, dtype=np.int32)
    labels = tuple(
        ", ".join(f"{c.name}={c.labels[parts[j, kept[k]]]}" for j, c in enumerate(used))
        for k in order.tolist()
    )
    return SideBins(rank[target][combination], labels, tuple(column.name for column in used))


def pearson(frame: pl.DataFrame) -> tuple[list[str], np.ndarray]:
    """Names of the numeric columns and their Pearson correlations, each pair over the rows where
    both are known.

    A column that does not vary (over the rows of a pair) is correlated with nothing: 0, not NaN.
    """
    numeric = frame.select(
        pl.col(name).cast(pl.Float64).fill_nan(None)
        for name, dtype in frame.schema.items()
        if dtype.is_numeric()
    )
    names = numeric.columns
    r = [[numeric.select(pl.corr(a, b)).item() for b in names] for a in names]
    return names, np.nan_to_num(np.array(r, np.float64).reshape(len(names), len(names)))


def correlation_groups(frame: pl.DataFrame, threshold: float) -> list[list[str]]:
    """Groups of two or more numeric columns linked by |Pearson| > threshold, in column order.

    Links chain: a column joins a group if it correlates with any member, so groups never overlap.
    The sign does not matter, for a column and its negative carry the same information.
    """
    if not 0.0 <= threshold < 1.0:
        raise InputError(
            "correlation threshold out of range", found=threshold, expected="0 <= threshold < 1"
        )
    names, r = pearson(frame)
    _, group = connected_components(np.abs(r) > threshold, directed=False)
    members = [
        [name for name, g in zip(names, group, strict=True) if g == k] for k in dict.fromkeys(group)
    ]
    return [columns for columns in members if len(columns) > 1]


def select_representatives(
    frame: pl.DataFrame, threshold: float, prefer: Sequence[str] = ()
) -> list[str]:
    """Columns to keep, in order: all that stand alone, and one per group (the first of `prefer`,
    else its first)."""
    unknown = [name for name in prefer if name not in frame.columns]
    if unknown:
        raise InputError(
            "no such column to prefer", column=unknown[0], found=", ".join(frame.columns)
        )
    gone: set[str] = set()
    for group in correlation_groups(frame, threshold):
        kept = next((name for name in prefer if name in group), group[0])
        gone.update(name for name in group if name != kept)
    return [name for name in frame.columns if name not in gone]
