"""Is the log good enough for the answer? Overlap, calibration of propensities, weights,
concentration of exposure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from puidrec.errors import InputError
from puidrec.features.counts import ExposureCounts
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
    shape: tuple[int, int],
    *,
    about: dict[str, Any],
    rng: Rng = 0,
) -> dict[str, Any]:
    """All diagnostics: of the audit's rows (item, propensity) and of the whole log
    (seen_propensity, counts)."""
    spread = overlap(ask, seen_propensity, shape, rng)
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
