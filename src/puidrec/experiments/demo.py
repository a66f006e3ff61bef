"""The show-case: a log whose truth is known, what each estimate makes of it, and what each method learns from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import Simulation, simulate
from puidrec.model import Recommender

METHODS = ("item-rate", "mf", "ips", "dr", "rd-dr", "puid-dr", "bpuid-dr", "signed-rd", "signed-puid")
ORACLE = "ips, true propensity"
"""The reference that knows what no log tells."""
FEATURES_ONLY = {"backbone": "mf-linear", "ids": False, "l2": 0.0, "l2_features": 0.001, "min_propensity": 0.001}
"""A model of recorded features: what was not recorded cannot be learned as an ID, so confounding shows."""


def run_demo(world: str, seed: int, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Simulate, estimate, train; plain figures for tables and JSON."""
    simulation = simulate(world, rng=seed)
    truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))
    data = simulation.data
    rows = []
    for method in (*METHODS, ORACLE):
        if progress is not None:
            progress(method)
        rows.append(_train(simulation, method, seed, truth))
    naive, oracle = (next(r["true_mse"] for r in rows if r["method"] == name) for name in ("mf", ORACLE))
    for row in rows:
        row["repaired"] = (naive - row["true_mse"]) / (naive - oracle) if naive > oracle else float("nan")
    gamma = np.quantile(simulation.truth.matrix("gamma"), (0.5, 0.95))
    return {
        "world": world, "seed": seed, "n_users": data.n_users, "n_items": data.n_items, "n_pairs": data.n_pairs,
        "rows": len(data.logged), "gamma": {"median": float(gamma[0]), "p95": float(gamma[1])},
        "estimates": _estimates(simulation, truth), "methods": rows,
    }  # fmt: skip


def _train(simulation: Simulation, method: str, seed: int, truth: np.ndarray) -> dict[str, Any]:
    """Fit one method; its error on the log, as naive evaluation sees it, and on all pairs, as it is."""
    data, train = simulation.data, simulation.data.logged
    if method == ORACLE:
        model = Recommender("ips", rng=seed, propensity="given", **FEATURES_ONLY).fit(with_true_propensity(simulation))
    else:
        model = Recommender(method, rng=seed, **FEATURES_ONLY).fit(data)
    everywhere = model.user_factors_ @ model.item_factors_.T
    seen = (everywhere[train.user, train.item] - data.scale.unit(train.rating)) ** 2
    return {
        "method": method, "naive_mse": float(seen.mean()), "true_mse": float(((everywhere - truth) ** 2).mean()),
        "seconds": model.report_["seconds"],
    }  # fmt: skip


def with_true_propensity(simulation: Simulation) -> Dataset:
    """The simulated data with the true propensity as a column of the log: what nobody has outside a simulation."""
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
        ("weighted by recorded features", log.rating, 1.0 / known.propensity(log.user, log.item), "features"),
        ("weighted by the true propensity", log.rating, 1.0 / known.true_propensity(log.user, log.item), "the truth"),
    ]
    if data.uniform is not None:
        uniform = data.uniform
        rows.append(("uniform ratings", uniform.rating, np.ones(len(uniform)), f"{len(uniform):,} random ratings"))
    return [_weighted(name, rating, weight, needs, goal) for name, rating, weight, needs in rows]


def _weighted(name: str, rating: np.ndarray, weight: np.ndarray, needs: str, goal: float) -> dict[str, Any]:
    share = weight / weight.sum()
    value = float((share * rating).sum())
    half = 1.96 * float(np.sqrt((share**2 * (rating - value) ** 2).sum()))
    return {"name": name, "value": value, "half_width": half, "error": value - goal, "needs": needs}
