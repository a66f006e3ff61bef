"""Bins of one column: quantiles, or equal width or zero / non-zero where ties defeat them; categories; lists."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from puidrec.errors import InputError

MAX_LEVELS = 16
"""Categories kept by name; the rarer ones are one bin, `other`."""


@dataclass(frozen=True)
class ColumnBins:
    """The bins of one column; a missing value is a bin of its own, since who leaves a field empty is informative."""

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

    Numbers: their own values where there are at most `n_bins`; else quantiles; where ties make quantiles collapse, zero
    against the rest if the ties are zeros, else the more even of the collapsed quantiles and equal width. Text: by
    category. Lists: by the value of the list that is most common in the column. Missing values form the last bin.
    """
    if n_bins < 2:
        raise InputError("too few bins", found=n_bins, expected="n_bins >= 2")
    dtype = column.dtype
    if dtype.is_numeric():
        return _numeric(column, n_bins)
    if isinstance(dtype, pl.List):
        return _categorical(_leading_value(column))
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
        return _categorical(column.cast(pl.String))
    raise InputError(
        "cannot be binned", column=column.name, found=str(dtype), expected="numbers, text, or lists of text"
    )


def _numeric(column: pl.Series, n_bins: int) -> ColumnBins:
    values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    present = np.isfinite(values)
    found = values[present]
    distinct = np.unique(found)
    if distinct.size <= n_bins:
        codes, labels = np.searchsorted(distinct, found), tuple(f"{v:g}" for v in distinct)
    else:
        edges = _edges(found, n_bins)
        codes, labels = np.searchsorted(edges, found, side="right"), _interval_labels(edges)
    return _with_missing(column.name, codes, labels, present)


def _edges(values: np.ndarray, n_bins: int) -> np.ndarray:
    """Inner edges: bin k is [edge k-1, edge k)."""
    quantiles: np.ndarray = np.unique(np.quantile(values, np.arange(1, n_bins) / n_bins, method="higher"))
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


def _interval_labels(edges: np.ndarray) -> tuple[str, ...]:
    inner = tuple(f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges))
    return (f"below {edges[0]:.4g}", *inner, f"{edges[-1]:.4g} or more")


def _leading_value(column: pl.Series) -> pl.Series:
    """One value per list: the one most common in the column (ties by name); `none` for an empty list."""
    lists = pl.DataFrame({"row": np.arange(column.len()), "value": column.cast(pl.List(pl.String))})
    values = lists.filter(pl.col("value").list.len() > 0).explode("value").drop_nulls()
    rank = values.group_by("value").len().sort(["len", "value"], descending=[True, False]).with_row_index("rank")
    best = values.join(rank.select("value", "rank"), on="value").sort("row", "rank").unique("row", keep="first")
    joined = lists.select("row").join(best.select("row", "value"), on="row", how="left", maintain_order="left")
    empty = pl.when(column.is_null()).then(None).otherwise(pl.col("value").fill_null("none"))
    return joined.select(empty.alias(column.name)).to_series()


def _categorical(column: pl.Series) -> ColumnBins:
    """One bin per category, most common first (ties by name); past `MAX_LEVELS` the rest is `other`."""
    table = column.drop_nulls().rename("value").to_frame().group_by("value").len()
    names = table.sort(["len", "value"], descending=[True, False])["value"].to_list()
    many = len(names) > MAX_LEVELS
    labels = (*names[: MAX_LEVELS - 1], "other") if many else tuple(names)
    code = {name: min(k, MAX_LEVELS - 1) for k, name in enumerate(names)}
    present = column.is_not_null().to_numpy()
    mapped = column.drop_nulls().replace_strict(code, return_dtype=pl.Int32) if code else pl.Series([], dtype=pl.Int32)
    return _with_missing(column.name, mapped.to_numpy(), labels, present)


def _with_missing(name: str, found: np.ndarray, labels: tuple[str, ...], present: np.ndarray) -> ColumnBins:
    """Put codes of present values in place; drop bins nobody is in; missing is the last bin."""
    occupied, compact = np.unique(found, return_inverse=True)
    codes = np.full(present.size, occupied.size, np.int32)
    codes[present] = compact
    kept = tuple(labels[k] for k in occupied.tolist())
    return ColumnBins(name, codes, kept if present.all() else (*kept, "missing"))


def _joined(labels: tuple[str, ...]) -> str:
    return " or ".join(labels) if len(labels) <= 3 else f"{labels[0]} … {labels[-1]}"
