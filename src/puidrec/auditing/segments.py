"""Which users and items are most affected: where Γ is large, ranges are wide, recommendations
change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from puidrec.auditing.envelope import Pairs, sharp_by_stratum
from puidrec.auditing.inputs import AuditArrays
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
    ordered, n_entities = Pairs(value, propensity).pooled, side.degree.size
    entities = pl.DataFrame({"n": np.bincount(own, minlength=n_entities), **change}).with_columns(
        log_gamma=side.mean_log_gamma
    )
    averages = [pl.mean(name) for name in change]
    if arrays.against is not None:
        moved = np.bincount(own, arrays.model - arrays.against, minlength=n_entities)
        entities = entities.with_columns(moved=moved)
        averages = [(pl.sum("moved") / pl.sum("n")).alias("score_shift"), *averages]
    found = []
    for column in side.columns():
        row_bin, n = column.codes[own[part]], len(column.labels)
        curve = sharp_by_stratum(Pairs(value, propensity, row_bin), strength, ordered.by(row_bin))
        ends = {name: getattr(curve, name)[:n] for name in ("low", "high")}
        ranges = pl.DataFrame({"code": np.arange(len(curve.low))[:n], **ends})
        labels = pl.DataFrame({"code": np.arange(n), "segment": list(map(str, column.labels))})
        table = entities.with_columns(code=column.codes.astype(np.int64)).fill_nan(None)
        table = table.group_by("code").agg(
            pl.sum("n"),
            *averages,
            entities=pl.len(),
            gamma_mean=pl.mean("log_gamma").exp(),
            gamma_p95=pl.quantile("log_gamma", 0.95, "higher").exp(),
        )
        table = table.join(labels, on="code").join(ranges, on="code", how="left")
        found.append(table.sort("code").with_columns(column=pl.lit(column.name)))
    records = pl.concat(found).drop("code").with_columns(width=pl.col("high") - pl.col("low"))
    shown = records.fill_nan(None).sort("gamma_mean", descending=True, maintain_order=True)
    return shown.head(MAX_ROWS).to_dicts()


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
            **{
                name: float(value[k]) if np.isfinite(value[k]) else None
                for name, value in change.items()
            },
        }
        for k in order
    ]
