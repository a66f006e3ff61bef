"""Facts about the data that the tables are read with: Γ as printed, and what chance scores under each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.data.dataset import Dataset
from puidrec.data.protocol import PROTOCOLS
from puidrec.data.sources import load_dataset
from puidrec.evaluation import evaluate_scores
from puidrec.experiments.paper_tables import METRICS
from puidrec.rng import generator
from puidrec.sensitivity.entropy import ESTIMATORS
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.gamma import PRESETS as RULES
from puidrec.sensitivity.gamma import resolve_gamma

FEATURES: Mapping[str, tuple[str, ...]] = {
    "coat": ("pseudo", "real"), "yahoo-r3": ("pseudo",), "kuairec": ("paper",), "ml-100k": ("real",),
}  # fmt: skip
"""Which features Γ is read from, the paper's first."""
CHANCE_DRAWS, MANY_ROWS = 5, 1_000_000
"""Random orders that are averaged; one is enough where there are many rows."""


def fact_rows(name: str, folder: Path, n_permutations: int = 100) -> list[dict[str, Any]]:
    """Γ as printed, under the features of the data set, and the level of chance, where uniform rows tell it."""
    rows = []
    for features in FEATURES[name]:
        data = load_dataset(name, folder, features=features)
        rows.append(_row("gamma", name, "rd", {"features": features, **printed_gamma(data, n_permutations)}))
        if features == FEATURES[name][0] and data.uniform is not None:
            agree = data.scale.low == 0.0  # a 0/1 label: all protocols draw the same line
            protocols = ("rd",) if agree else tuple(PROTOCOLS)
            rows += [_row("chance", name, protocol, chance(data, name, protocol)) for protocol in protocols]
    return rows


def printed_gamma(data: Dataset, n_permutations: int = 100, seed: int = 0) -> dict[str, Any]:
    """`eq:gamma_ui` with α = 2 and β = 5, the share of pairs for which it is below 1, and the gains it is made of.

    `mean_gamma`, `max_gamma`: what the same α and β give as weights of log Γ of each pair's own bins.
    """
    log = data.split("rd", seed).train
    evidence = Evidence.from_log(
        log.user, log.item, n_users=data.n_users, n_items=data.n_items, users=data.users, items=data.items
    )
    gains = {name: evidence.gains(name, n_permutations, seed) for name in ESTIMATORS}  # type: ignore[arg-type]
    rule, plugin = RULES["paper"], gains["plugin"]
    alpha, beta = float(rule.alpha), float(rule.beta)
    null = gains["permutation"]
    weighted = resolve_gamma("information", alpha=alpha, beta=beta, n_permutations=n_permutations).fit(evidence, seed)
    return {
        "user_degrees": [int(f(evidence.counts.user_degree)) for f in (np.min, np.max)],
        "alpha": alpha, "beta": beta, "H": plugin.H, "value": alpha * plugin.gain_user + beta * plugin.gain_item,
        "share_below_one": resolve_gamma("paper").fit(evidence).share_clipped,
        "share_below_one_local": resolve_gamma("paper", scope="local").fit(evidence).share_clipped,
        "gain_user": {name: g.gain_user for name, g in gains.items()},
        "gain_item": {name: g.gain_item for name, g in gains.items()},
        "mean_gamma": float(np.exp(weighted.mean_log)), "max_gamma": float(weighted.max),
        "chance_user": None if null.null_user is None else [null.null_user.mean, null.null_user.high],
        "chance_item": None if null.null_item is None else [null.null_item.mean, null.null_item.high],
    }  # fmt: skip


def chance(data: Dataset, name: str, protocol: str, seed: int = 0) -> dict[str, Any]:
    """Positive rate of the test rows, and the metrics of scores that know nothing."""
    test = data.split(protocol, seed).test
    draws = [
        evaluate_scores(test.user, generator(seed, "chance", k).random(len(test)), test.label, metrics=METRICS[name])
        for k in range(CHANCE_DRAWS if len(test) < MANY_ROWS else 1)
    ]
    return {
        "positive_rate": float(test.label.mean()), "test_rows": len(test),
        **{metric: float(np.mean([draw[metric] for draw in draws])) for metric in METRICS[name]},
    }  # fmt: skip


def _row(experiment: str, data: str, protocol: str, values: dict[str, Any]) -> dict[str, Any]:
    method = {"gamma": "Γ as printed", "chance": "random order"}[experiment]
    return {"experiment": experiment, "data": data, "method": method, "protocol": protocol, "seed": 0, **values}
