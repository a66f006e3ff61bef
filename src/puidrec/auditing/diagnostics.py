"""Is the log good enough for the answer (overlap, calibration of propensities, weights,
concentration of exposure), and which users and items are most affected: where Γ is large, ranges
are wide, recommendations change?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from puidrec.auditing.envelope import Pairs, sharp_by_stratum
from puidrec.auditing.inputs import AuditArrays, AuditInputs
from puidrec.errors import InputError
from puidrec.exposure.base import ExposureCounts
from puidrec.features.bins import ColumnBins, bin_column
from puidrec.rng import Rng, generator

Ask = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Propensities of pairs of codes."""
MAX_PAIRS = 200_000
"""Pairs of D looked at one by one; a larger D is sampled."""
N_BINS = 10
QUANTILES = {
    "min": 0.0,
    "p1": 0.01,
    "p5": 0.05,
    "median": 0.5,
    "p95": 0.95,
    "p99": 0.99,
    "max": 1.0,
}


def effective_size(weight: np.ndarray) -> float:
    """(Σw)² / Σw²: the number of equally weighted rows that would be as informative."""
    square = float(weight @ weight)
    return float(weight.sum()) ** 2 / square if square > 0.0 else 0.0


def weight_tails(propensity: np.ndarray) -> dict[str, Any]:
    """Weights 1/p of the rows: effective size, quantiles, and the share of all weight on the
    heaviest 1 %."""
    weight = 1.0 / propensity
    top = max(1, round(0.01 * weight.size))
    heaviest = np.partition(weight, weight.size - top)[weight.size - top :]
    ess = effective_size(weight)
    return {
        "ess": ess,
        "ess_share": ess / weight.size,
        **quantiles(weight),
        "top1_weight_share": float(heaviest.sum() / weight.sum()),
    }


def quantiles(values: np.ndarray) -> dict[str, float]:
    """The quantiles every report shows."""
    return dict(
        zip(QUANTILES, map(float, np.quantile(values, list(QUANTILES.values()))), strict=True)
    )


def by_popularity(
    item: np.ndarray, propensity: np.ndarray, item_degree: np.ndarray
) -> list[dict[str, Any]]:
    """Effective size per decile of items, the most seen ones first: where the log is thin, weights
    decide."""
    n = item_degree.size
    place = np.empty(n, np.int64)
    place[np.argsort(-item_degree, kind="stable")] = np.arange(n)
    decile = place * min(N_BINS, n) // n
    own, weight = decile[item], 1.0 / propensity
    rows, total, square = (np.bincount(own, w, minlength=N_BINS) for w in (None, weight, weight**2))
    items, log = (
        np.bincount(decile, minlength=N_BINS),
        np.bincount(decile, item_degree, minlength=N_BINS),
    )
    return [
        {
            "decile": k + 1,
            "items": int(items[k]),
            "share_of_log": float(log[k] / max(log.sum(), 1)),
            "rows": int(rows[k]),
            "ess": float(total[k] ** 2 / square[k]) if rows[k] else 0.0,
            "mean_weight": float(total[k] / rows[k]) if rows[k] else None,
        }
        for k in range(N_BINS)
        if items[k]
    ]


def concentration(item_degree: np.ndarray) -> dict[str, float]:
    """Gini coefficient of exposure over items, and the share of the log that the most seen items
    take."""
    ordered = np.sort(item_degree.astype(np.float64))
    n, total = ordered.size, max(float(ordered.sum()), 1e-300)
    gini = float((2.0 * np.arange(1, n + 1) - n - 1.0) @ ordered) / (n * total)
    shares = {
        f"top{k}_items_share": float(ordered[n - max(1, round(n * k / 100)) :].sum() / total)
        for k in (1, 10)
    }
    return {"gini": gini, **shares}


def without_support(counts: ExposureCounts) -> float:
    """Share of D in cells (bins of users × bins of items) without a logged row: there a finite Γ
    says nothing."""
    pairs = counts.pairs
    return float(pairs[counts.cells == 0].sum() / pairs.sum())


def population_pairs(
    n_users: int, n_items: int, draw: np.random.Generator, most: int = MAX_PAIRS
) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of D; where these are more than `most`, so many pairs drawn uniformly."""
    if n_users * n_items <= most:
        users, items = np.divmod(np.arange(n_users * n_items), n_items)
        return users, items
    return draw.integers(0, n_users, most), draw.integers(0, n_items, most)


def reliability(everywhere: np.ndarray, logged: np.ndarray, n_pairs: int) -> list[dict[str, Any]]:
    """Mean propensity and observed rate per decile of p over D.

    everywhere: p of all pairs of D, or of a uniform sample of it; logged: p of every seen pair;
    n_pairs: the size of D.
    """
    edges = np.unique(np.quantile(everywhere, np.arange(1, N_BINS) / N_BINS))
    own, seen = (np.searchsorted(edges, p, side="left") for p in (everywhere, logged))
    share = np.bincount(own, minlength=edges.size + 1) / everywhere.size
    expected = np.bincount(own, everywhere, minlength=edges.size + 1) / everywhere.size
    found = np.bincount(seen, minlength=edges.size + 1)
    return [
        {
            "decile": k + 1,
            "pairs": float(share[k] * n_pairs),
            "seen": int(found[k]),
            "predicted": float(expected[k] / share[k]),
            "observed": float(found[k] / (share[k] * n_pairs)),
        }
        for k in range(share.size)
        if share[k] > 0
    ]


def overlap(ask: Ask, logged: np.ndarray, shape: tuple[int, int], rng: Rng) -> dict[str, Any]:
    """How propensities spread over D, and whether as many pairs were seen as they say.

    Propensities that are known for logged pairs only (`given` as a column) cannot be asked for
    others: then no table.
    """
    try:
        everywhere = ask(*population_pairs(*shape, generator(rng, "audit-pairs")))
    except InputError:
        return {"reliability": [], "calibration_error": None, "population": None}
    table = reliability(everywhere, logged, shape[0] * shape[1])
    weight = np.array([row["pairs"] for row in table])
    gap = np.array([abs(row["predicted"] - row["observed"]) for row in table])
    rate = float(np.average([row["observed"] for row in table], weights=weight))
    return {
        "reliability": table,
        "calibration_error": float(np.average(gap, weights=weight)) / rate if rate > 0 else None,
        "population": quantiles(everywhere),
    }


def diagnose(
    item: np.ndarray,
    propensity: np.ndarray,
    seen_propensity: np.ndarray,
    counts: ExposureCounts,
    ask: Ask,
    *,
    about: dict[str, Any],
    rng: Rng = 0,
) -> dict[str, Any]:
    """All diagnostics: of the audit's rows (item, propensity) and of the whole log
    (seen_propensity, counts)."""
    spread = overlap(ask, seen_propensity, (counts.user_degree.size, counts.item_degree.size), rng)
    tails = weight_tails(propensity)
    return {
        "ess": tails["ess"],
        "ess_share": tails["ess_share"],
        "share_clipped": float(about.get("share_clipped", 0.0)),
        "calibration_error": spread["calibration_error"],
        "share_without_support": without_support(counts),
        **concentration(counts.item_degree),
        "weights": {k: v for k, v in tails.items() if k not in ("ess", "ess_share")},
        "propensity": {
            "name": about.get("name"),
            "smallest_allowed": about.get("low"),
            **quantiles(seen_propensity),
        },
        "propensity_all_pairs": spread["population"],
        "calibration": spread["reliability"],
        "ess_by_item_decile": by_popularity(item, propensity, counts.item_degree),
    }


SEGMENT_BINS = 4
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
        found = [
            bin_column(column, SEGMENT_BINS) for column in table if column.name != f"{self.name}_id"
        ]
        word = "activity" if self.name == "user" else "popularity"
        return [*found, bin_column(pl.Series(f"{word} (ratings)", self.degree), SEGMENT_BINS)]


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
    n_entities = side.degree.size
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
        curve = sharp_by_stratum(Pairs(value, propensity, row_bin), strength)
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
    users: np.ndarray, own: np.ndarray, other: np.ndarray | None, n_users: int, n_items: int
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


def segments(inputs: AuditInputs, shown: float) -> dict[str, Any]:
    """Users and items by their columns, and the largest single ones; ranges at Γ = shown."""
    data, counts, gamma, arrays = (
        inputs.data,
        inputs.nominal.evidence.counts,
        inputs.gamma,
        inputs.arrays,
    )
    sides = (
        SegmentSide(
            "user", data.users, counts.user_degree, gamma.user_mean_log(), data.user_ids.ids
        ),
        SegmentSide(
            "item", data.items, counts.item_degree, gamma.item_mean_log(), data.item_ids.ids
        ),
    )
    change: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    if inputs.scorable:
        own, other = inputs.lists_of(0)
        short = None if other is None else other[:, : inputs.k]
        change = changes(inputs.listed_users, own[:, : inputs.k], short, data.n_users, data.n_items)
    tables = [
        segment_side(side, arrays, shown, part) for side, part in zip(sides, change, strict=True)
    ]
    return {
        "users": tables[0],
        "items": tables[1],
        "columns": sorted({row["column"] for table in tables for row in table}),
        "largest_users": largest(sides[0], arrays.user, change[0]),
        "largest_items": largest(sides[1], arrays.item, change[1]),
        "strength": f"Γ = {shown:.3g}",
    }


def gamma_of_groups(inputs: AuditInputs) -> dict[str, Any]:
    """How the rule spreads Γ over pairs, and by group of users and items."""
    gamma, evidence = inputs.gamma, inputs.nominal.evidence
    sample = gamma.sample(10_000, inputs.seed)
    mean = np.exp(gamma.cell_mean_log())
    labels = []
    for k, bins in enumerate((evidence.user_bins, evidence.item_bins)):
        own = bins is not None and np.array_equal(bins.codes, (gamma.user_bin, gamma.item_bin)[k])
        n = mean.shape[k]
        plain = ["all"] if n == 1 else [f"class {j + 1}" for j in range(n)]
        labels.append(
            list(bins.labels[:n]) if own and bins is not None and len(bins.labels) >= n else plain
        )
    return {
        "gamma_map": {"user_bins": labels[0], "item_bins": labels[1], "values": mean.tolist()},
        "gamma": {
            "median": float(np.median(sample)),
            "p95": float(np.quantile(sample, 0.95)),
            "max": float(gamma.max),
            "rule": str(getattr(inputs.rule, "source", inputs.rule)),
        },
    }
