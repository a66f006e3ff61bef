"""The demo: a simulated log of known truth, what each estimate says of it, and what each method
learns from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from puidrec.auditing.audit import audit
from puidrec.auditing.result import Audit
from puidrec.data.dataset import Dataset
from puidrec.data.split import Selection
from puidrec.data.synthetic import Simulation, simulate
from puidrec.model import Recommender

METHODS = (
    "spectrum",
    "item-rate",
    "mf",
    "ips",
    "dr",
    "rd-dr",
    "puid-dr",
    "bpuid-dr",
    "signed-puid",
)
NAIVE, ROBUST = "mf", "spectrum"
"""The two that are audited: what looks best in the log, and what a few uniform ratings make of it.
"""
ORACLE = "ips, true propensity"
"""The reference that knows what no log tells."""
FEATURES_ONLY = {
    "backbone": "mf-linear",
    "ids": False,
    "l2": 0.0,
    "l2_features": 0.001,
    "min_propensity": 0.001,
}
"""A model of recorded features: what was not recorded cannot be learned as an ID, so confounding
shows."""
SELECT: Selection = "observational"
"""Epochs are chosen on held-out rows of the log, so that the errors shown and audited are not of
training rows."""


@dataclass(frozen=True)
class Demo:
    """Plain figures for tables and JSON, and the audit of the conclusion that the log suggests."""

    facts: dict[str, Any]
    audit: Audit


def run_demo(
    world: str, seed: int, progress: Callable[[str], None] | None = None, device: str = "cpu"
) -> Demo:
    """Simulate, estimate, train, audit."""
    simulation = simulate(world, rng=seed)
    truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))
    data = simulation.data
    rows, models = [], {}
    for method in (*METHODS, ORACLE):
        if progress is not None:
            progress(f"training {method}")
        models[method] = _fit(simulation, method, seed, device)
        rows.append(_errors(models[method], method, data, seed, truth))
    naive, oracle = (
        next(r["true_mse"] for r in rows if r["method"] == name) for name in (NAIVE, ORACLE)
    )
    for row in rows:
        row["repaired"] = (
            (naive - row["true_mse"]) / (naive - oracle) if naive > oracle else float("nan")
        )
    if progress is not None:
        progress("auditing")
    gamma = np.quantile(simulation.truth.matrix("gamma"), (0.5, 0.95))
    facts = {
        "world": world,
        "seed": seed,
        "n_users": data.n_users,
        "n_items": data.n_items,
        "n_pairs": data.n_pairs,
        "rows": len(data.logged),
        "gamma": {"median": float(gamma[0]), "p95": float(gamma[1])},
        "estimates": _estimates(simulation, truth),
        "methods": rows,
    }
    return Demo(facts, audit(models[NAIVE], data, against=models[ROBUST], rng=seed))


def _fit(simulation: Simulation, method: str, seed: int, device: str) -> Recommender:
    settings: dict[str, Any] = {"select": SELECT, "device": device, **FEATURES_ONLY}
    if method == ORACLE:
        return Recommender("ips", rng=seed, propensity="given", **settings).fit(
            with_true_propensity(simulation)
        )
    return Recommender(method, rng=seed, **settings).fit(simulation.data)


def _errors(
    model: Recommender, method: str, data: Dataset, seed: int, truth: np.ndarray
) -> dict[str, Any]:
    """Its error on held-out rows of the log, as naive evaluation sees it, and on all pairs, as it
    is."""
    held_out = data.split("rd", seed, select=SELECT).validation
    everywhere = model.user_factors_ @ model.item_factors_.T
    seen = (everywhere[held_out.user, held_out.item] - data.scale.unit(held_out.rating)) ** 2
    return {
        "method": method,
        "naive_mse": float(seen.mean()),
        "true_mse": float(((everywhere - truth) ** 2).mean()),
        "seconds": model.report_["seconds"],
    }


def with_true_propensity(simulation: Simulation) -> Dataset:
    """The simulated data with the true propensity as a column of the log: known in a simulation
    only."""
    data, log = simulation.data, simulation.data.logged
    column = pl.Series("propensity", simulation.truth.true_propensity(log.user, log.item))
    return replace(data, logged=replace(log, frame=log.frame.with_columns(column)))


def _estimates(simulation: Simulation, truth: np.ndarray) -> list[dict[str, Any]]:
    """The mean rating of all pairs (1..5) by several routes, with intervals and errors."""
    data, known = simulation.data, simulation.truth
    goal = 1.0 + 4.0 * float(truth.mean(dtype=np.float64))
    log = data.logged
    rows = [
        ("the log as it is", log.rating, np.ones(len(log)), "nothing"),
        (
            "weighted by recorded features",
            log.rating,
            1.0 / known.propensity(log.user, log.item),
            "features",
        ),
        (
            "weighted by the true propensity",
            log.rating,
            1.0 / known.true_propensity(log.user, log.item),
            "the truth",
        ),
    ]
    if data.uniform is not None:
        uniform = data.uniform
        rows.append(
            (
                "uniform ratings",
                uniform.rating,
                np.ones(len(uniform)),
                f"{len(uniform):,} random ratings",
            )
        )
    return [_weighted(name, rating, weight, needs, goal) for name, rating, weight, needs in rows]


def _weighted(
    name: str, rating: np.ndarray, weight: np.ndarray, needs: str, goal: float
) -> dict[str, Any]:
    share = weight / weight.sum()
    value = float((share * rating).sum())
    half = 1.96 * float(np.sqrt((share**2 * (rating - value) ** 2).sum()))
    return {"name": name, "value": value, "half_width": half, "error": value - goal, "needs": needs}
