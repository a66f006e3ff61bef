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
from puidrec.exposure.counts import ExposureCounts
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


def weight_tails(propensity: np.ndarray) -> dict[str, Any]:
    """Weights 1/p of the rows: effective size, quantiles, and the share of all weight on the
    heaviest 1 %."""
    weight = 1.0 / propensity
    top = max(1, round(0.01 * weight.size))
    heaviest = np.partition(weight, weight.size - top)[weight.size - top :]
    ess = float(weight.sum()) ** 2 / float(weight @ weight)
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
    place = np.argsort(np.argsort(-item_degree, kind="stable"), kind="stable")
    decile = place * min(N_BINS, n) // n + 1
    w = pl.col("w")
    items = pl.DataFrame({"decile": decile, "log": item_degree}).group_by("decile")
    rows = pl.DataFrame({"decile": decile[item], "w": 1.0 / propensity}).group_by("decile")
    share = pl.sum("log") / max(int(item_degree.sum()), 1)
    of_rows = rows.agg(rows=pl.len(), ess=w.sum() ** 2 / (w**2).sum(), mean_weight=w.mean())
    found = items.agg(items=pl.len(), share_of_log=share).join(of_rows, on="decile", how="left")
    return found.with_columns(pl.col("rows", "ess").fill_null(0)).sort("decile").to_dicts()


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


@dataclass(frozen=True)
class SegmentSide:
    """Users or items: their table, activity, and mean log Γ."""

    name: str
    """`user` or `item`."""
    frame: pl.DataFrame | None
    degree: np.ndarray
    mean_log_gamma: np.ndarray

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
        n = len(column.labels)
        curve = sharp_by_stratum(Pairs(value, propensity, column.codes[own[part]]), strength)
        ranges = pl.DataFrame({"low": curve.low[:n], "high": curve.high[:n]}).with_row_index("code")
        labels = pl.DataFrame({"segment": list(map(str, column.labels))}).with_row_index("code")
        table = entities.with_columns(code=column.codes.astype(np.uint32)).fill_nan(None)
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


def segments(inputs: AuditInputs, shown: float) -> dict[str, Any]:
    """Users and items by their columns; ranges at Γ = shown."""
    data, counts, gamma = inputs.data, inputs.nominal.evidence.counts, inputs.gamma
    sides = (
        SegmentSide("user", data.users, counts.user_degree, gamma.user_mean_log()),
        SegmentSide("item", data.items, counts.item_degree, gamma.item_mean_log()),
    )
    change: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    if inputs.scorable:
        own, other = inputs.lists_of(0)
        short = None if other is None else other[:, : inputs.k]
        change = changes(inputs.listed_users, own[:, : inputs.k], short, data.n_users, data.n_items)
    users, items = (
        segment_side(side, inputs.arrays, shown, part)
        for side, part in zip(sides, change, strict=True)
    )
    columns = sorted({row["column"] for row in users + items})
    return {"users": users, "items": items, "columns": columns, "strength": f"Γ = {shown:.3g}"}


def gamma_of_groups(inputs: AuditInputs) -> dict[str, Any]:
    """How the rule spreads Γ over pairs, and by group of users and items."""
    gamma, evidence = inputs.gamma, inputs.nominal.evidence
    sample, mean = gamma.sample(10_000, inputs.seed), np.exp(gamma.cell_mean_log())
    labels = []
    for n, bins, codes in zip(
        mean.shape,
        (evidence.user_bins, evidence.item_bins),
        (gamma.user_bin, gamma.item_bin),
        strict=True,
    ):
        if bins is not None and np.array_equal(bins.codes, codes) and len(bins.labels) >= n:
            labels.append(list(bins.labels[:n]))
        else:
            labels.append(["all"] if n == 1 else [f"class {j + 1}" for j in range(n)])
    return {
        "gamma_map": {"user_bins": labels[0], "item_bins": labels[1], "values": mean.tolist()},
        "gamma": {
            "median": float(np.median(sample)),
            "p95": float(np.quantile(sample, 0.95)),
            "max": float(gamma.max),
            "rule": str(getattr(inputs.rule, "source", inputs.rule)),
        },
    }
