"""Which users and items are most affected: where Γ is large, ranges are wide, recommendations
change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from puidrec.auditing.envelope import Pairs, sharp_by_stratum
from puidrec.auditing.inputs import AuditArrays
from puidrec.exposure.bounds import bin_mean
from puidrec.features.bins import ColumnBins, bin_column

N_BINS = 4
MAX_ROWS = 200
MAX_SORTED = 1_000_000
"""Rows behind the envelopes of segments; every k-th one of more."""
LARGEST = 10
"""Single users and items shown."""


@dataclass(frozen=True)
class SegmentSide:
    """Users or items: their table, activity, and mean log Γ."""

    name: str
    """`user` or `item`."""
    frame: pl.DataFrame | None
    degree: np.ndarray
    mean_log_gamma: np.ndarray
    ids: pl.Series

    def columns(self) -> list[ColumnBins]:
        """Bins of every column, and of activity (users) or popularity (items), which is always
        known."""
        table = [] if self.frame is None else self.frame.get_columns()
        found = [bin_column(column, N_BINS) for column in table if column.name != f"{self.name}_id"]
        word = "activity" if self.name == "user" else "popularity"
        return [*found, bin_column(pl.Series(f"{word} (ratings)", self.degree), N_BINS)]


def segment_side(
    side: SegmentSide, arrays: AuditArrays, strength: float, change: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """One record per bin of every column, the largest mean Γ first.

    strength: Γ of the ranges. change: named values per entity (NaN where unknown), averaged within
    bins.
    """
    own = arrays.user if side.name == "user" else arrays.item
    part = slice(None, None, -(-own.size // MAX_SORTED))
    value, propensity = arrays.main.value[part], arrays.main.propensity[part]
    ordered = Pairs(value, propensity).pooled
    n_entities = side.degree.size
    count = np.bincount(own, minlength=n_entities)
    moved = (
        None
        if arrays.against is None
        else np.bincount(own, arrays.model - arrays.against, minlength=n_entities)
    )
    records: list[dict[str, Any]] = []
    for column in side.columns():
        n = len(column.labels)
        row_bin = column.codes[own[part]]
        entities = np.bincount(column.codes, minlength=n)
        rows = np.bincount(column.codes, count, minlength=n)
        gamma = np.exp(bin_mean(side.mean_log_gamma, column.codes, n))
        high = np.exp(grouped_quantile(side.mean_log_gamma, column.codes, n, 0.95))
        curve = sharp_by_stratum(Pairs(value, propensity, row_bin), strength, ordered.by(row_bin))
        shift = (
            None
            if moved is None
            else np.bincount(column.codes, moved, minlength=n) / np.maximum(rows, 1)
        )
        averages = {name: grouped_mean(value, column.codes, n) for name, value in change.items()}
        for k in np.flatnonzero(entities):
            known = bool(k < curve.low.size and np.isfinite(curve.low[k]))
            records.append(
                {
                    "column": column.name,
                    "segment": column.labels[k],
                    "n": int(rows[k]),
                    "entities": int(entities[k]),
                    "gamma_mean": float(gamma[k]),
                    "gamma_p95": float(high[k]),
                    "low": float(curve.low[k]) if known else None,
                    "high": float(curve.high[k]) if known else None,
                    "width": float(curve.high[k] - curve.low[k]) if known else None,
                    **(
                        {"score_shift": float(shift[k]) if rows[k] else None}
                        if shift is not None
                        else {}
                    ),
                    **{name: _number(value[k]) for name, value in averages.items()},
                }
            )
    return sorted(records, key=lambda record: -record["gamma_mean"])[:MAX_ROWS]


def changes(
    users: np.ndarray, lists: tuple[np.ndarray, np.ndarray | None], n_users: int, n_items: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What recommendations change, per user and per item.

    Users: share of a list that both models recommend. Items: how often each is recommended per 100
    users.
    """

    def per_100(items: np.ndarray) -> np.ndarray:
        count: np.ndarray = np.bincount(items[items >= 0], minlength=n_items) * (
            100.0 / max(users.size, 1)
        )
        return count

    own, other = lists
    items = {"recommended_per_100": per_100(own)}
    if other is None:
        return {}, items
    same = np.array([np.intersect1d(a[a >= 0], b).size for a, b in zip(own, other, strict=True)])
    overlap = np.full(n_users, np.nan)
    overlap[users] = same / own.shape[1]
    return {"overlap": overlap}, {
        **items,
        "against_per_100": per_100(other),
        "change_per_100": per_100(own) - per_100(other),
    }


def largest(
    side: SegmentSide, rows: np.ndarray, change: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """The single users or items with the largest mean Γ, under the caller's own ids as text."""
    order = np.argsort(-side.mean_log_gamma, kind="stable")[:LARGEST]
    count = np.bincount(rows, minlength=side.degree.size)
    return [
        {
            "id": str(side.ids[int(k)]),
            "gamma_mean": float(np.exp(side.mean_log_gamma[k])),
            "ratings": int(side.degree[k]),
            "n": int(count[k]),
            **{name: _number(value[k]) for name, value in change.items()},
        }
        for k in order
    ]


def grouped_mean(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """Mean of the known values of each group; NaN where none is known."""
    known = ~np.isnan(values)
    size = np.bincount(group[known], minlength=n)
    total = np.bincount(group[known], values[known], minlength=n)
    mean: np.ndarray = np.where(size > 0, total / np.maximum(size, 1), np.nan)
    return mean


def grouped_quantile(values: np.ndarray, group: np.ndarray, n: int, level: float) -> np.ndarray:
    """The smallest value of each group with at least `level` of the group at or below it; 0 where a
    group is empty."""
    order = np.lexsort((values, group))
    size = np.bincount(group, minlength=n)
    start = np.cumsum(size) - size
    at = start + np.maximum(np.ceil(level * size).astype(np.int64) - 1, 0)
    quantile: np.ndarray = np.where(size > 0, values[order][np.minimum(at, values.size - 1)], 0.0)
    return quantile


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
