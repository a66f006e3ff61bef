"""The demo: a simulated log of known truth, what each estimate says of it, and what each method
learns from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from puidrec.auditing.audit import audit
from puidrec.auditing.result import Audit
from puidrec.data.dataset import Dataset, Interactions
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


def run_demo(
    world: str, seed: int, progress: Callable[[str], None], device: str = "cpu"
) -> tuple[dict[str, Any], Audit]:
    """Simulate, estimate, train, audit: plain figures for tables and JSON, and the audit of the
    conclusion that the log suggests."""
    simulation = simulate(world, rng=seed)
    data, truth = simulation.data, simulation.data.scale.unit(simulation.truth.matrix("rating"))
    more: dict[str, Any] = {"select": SELECT, "device": device, **FEATURES_ONLY}
    models = {}
    for method in METHODS:
        progress(f"training {method}")
        models[method] = Recommender(method, rng=seed, **more).fit(data)
    progress(f"training {ORACLE}")
    oracle = Recommender("ips", rng=seed, propensity="given", **more)
    models[ORACLE] = oracle.fit(with_true_propensity(simulation))
    held_out = data.split("rd", seed, select=SELECT).validation
    rows = [
        {"method": method, **_errors(model, held_out, truth), "seconds": model.report_["seconds"]}
        for method, model in models.items()
    ]
    errors = {row["method"]: row["true_mse"] for row in rows}
    gap = errors[NAIVE] - errors[ORACLE]
    for row in rows:
        repaired = errors[NAIVE] - row["true_mse"]
        row["repaired"] = repaired / gap if gap > 0 else float("nan")
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
    return facts, audit(models[NAIVE], data, against=models[ROBUST], rng=seed)


def _errors(model: Recommender, held_out: Interactions, truth: np.ndarray) -> dict[str, float]:
    """Its error on held-out rows of the log, as naive evaluation sees it, and on all pairs, as it
    is."""
    everywhere = model.user_factors_ @ model.item_factors_.T
    rating = model.rating_scale_.unit(held_out.rating)
    seen = (everywhere[held_out.user, held_out.item] - rating) ** 2
    true = (everywhere - truth) ** 2
    return {"naive_mse": float(seen.mean()), "true_mse": float(true.mean())}


def with_true_propensity(simulation: Simulation) -> Dataset:
    """The simulated data with the true propensity as a column of the log: known in a simulation
    only."""
    data, log = simulation.data, simulation.data.logged
    column = pl.Series("propensity", simulation.truth.true_propensity(log.user, log.item))
    return replace(data, logged=replace(log, frame=log.frame.with_columns(column)))


def _estimates(simulation: Simulation, truth: np.ndarray) -> list[dict[str, Any]]:
    """The mean rating of all pairs (1..5) by several routes, with intervals and errors."""
    known, log, uniform = simulation.truth, simulation.data.logged, simulation.data.uniform
    nominal, true = (p(log.user, log.item) for p in (known.propensity, known.true_propensity))
    plain = np.ones(len(log))
    rows = [
        ("the log as it is", log.rating, plain, "nothing"),
        ("weighted by recorded features", log.rating, 1.0 / nominal, "features"),
        ("weighted by the true propensity", log.rating, 1.0 / true, "the truth"),
    ]
    if uniform is not None:
        needs = f"{len(uniform):,} random ratings"
        rows.append(("uniform ratings", uniform.rating, np.ones(len(uniform)), needs))
    goal = 1.0 + 4.0 * float(truth.mean(dtype=np.float64))
    return [_weighted(*row, goal) for row in rows]


def _weighted(
    name: str, rating: np.ndarray, weight: np.ndarray, needs: str, goal: float
) -> dict[str, Any]:
    share = weight / weight.sum()
    value = float((share * rating).sum())
    half = 1.96 * float(np.sqrt((share**2 * (rating - value) ** 2).sum()))
    return {"name": name, "value": value, "half_width": half, "error": value - goal, "needs": needs}
