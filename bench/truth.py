"""Methods against the truth: how much of the damage done by hidden confounding does each repair?

    python bench/truth.py [--seeds 10] [--workers 2] [--out docs/truth.md]

In a simulated world the error on all pairs is known. For a model of recorded features, the gap between naive training
and IPS with the true propensities is what confounding costs and knowledge would repair; a method's figure is the share
of that gap it closes, seed by seed, with a paired interval over seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats

from puidrec.atomic import write_json, write_text
from puidrec.data.synthetic import simulate
from puidrec.experiments.demo import FEATURES_ONLY, with_true_propensity
from puidrec.model import Recommender

WORLDS = ("entity", "pair", "mixed", "half-complete", "no-confounding")
BASE: dict[str, Any] = {**FEATURES_ONLY, "select": "none", "epochs": 120}
N_UNIFORM = 10_000
"""Of which the protocol sets 5 % apart: the 500 ratings that `certified` rows use."""

METHODS: dict[str, dict[str, Any]] = {
    "item-rate": {"method": "item-rate"},
    "bias": {"method": "bias"},
    "ips, cells": {"method": "ips", "propensity": "cells"},
    "ips, logistic": {"method": "ips", "propensity": "logistic"},
    "ips": {"method": "ips"},
    "dr, cells": {"method": "dr", "propensity": "cells"},
    "dr": {"method": "dr"},
    "rd-ips": {"method": "rd-ips"},
    "rd-ips, normalised": {"method": "rd-ips", "normalise": True},
    "rd-dr": {"method": "rd-dr"},
    "brd-ips": {"method": "brd-ips"},
    "brd-dr": {"method": "brd-dr"},
    "puid-ips": {"method": "puid-ips"},
    "puid-dr": {"method": "puid-dr"},
    "puid-ips, random Γ": {"method": "puid-ips", "gamma": "random"},
    "puid-dr, random Γ": {"method": "puid-dr", "gamma": "random"},
    "bpuid-ips": {"method": "bpuid-ips"},
    "bpuid-dr": {"method": "bpuid-dr"},
    "multi-ips": {"method": "multi-ips"},
    "multi-dr": {"method": "multi-dr"},
    "signed-rd": {"method": "signed-rd"},
    "signed-puid": {"method": "signed-puid"},
    "sharp-rd": {"method": "sharp-rd"},
    "sharp-puid": {"method": "sharp-puid"},
    "signed-rd, 500 uniform": {"method": "signed-rd", "uniform": True},
    "signed-puid, 500 uniform": {"method": "signed-puid", "uniform": True},
    "sharp-rd, 500 uniform": {"method": "sharp-rd", "uniform": True},
    "rd-dr, certified Γ, 500 uniform": {"method": "rd-dr", "gamma": "certified", "uniform": True},
}
RESULTS = Path("bench/out/truth.json")


def one_seed(job: tuple[str, int, str]) -> dict[str, Any]:
    """True full-matrix errors of the methods whose names match, in one draw of one world."""
    world, seed, only = job
    simulation = simulate(world, rng=seed, n_uniform=N_UNIFORM)
    truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))

    def error(data: Any, uniform: bool = False, **options: Any) -> float:
        split = data.split("rd", seed)
        model = Recommender(rng=seed, **{**BASE, **options})
        model.fit(data, split if uniform else replace(split, propensity=None))
        return float(((model.user_factors_ @ model.item_factors_.T - truth) ** 2).mean())

    naive = error(simulation.data, method="mf")
    oracle = error(with_true_propensity(simulation), method="ips", propensity="given")
    errors = {name: error(simulation.data, **options) for name, options in METHODS.items() if re.search(only, name)}
    return {"world": world, "seed": seed, "naive": naive, "oracle": oracle, "errors": errors}


def summarise(rows: list[dict[str, Any]], world: str, name: str) -> str:
    """Mean share of the gap closed with a 95 % interval over seeds; in an unconfounded world, percent lost."""
    own = [row for row in rows if row["world"] == world]
    if world == "no-confounding":
        values = np.array([100 * (row["errors"][name] / row["naive"] - 1) for row in own])
        pattern = "{:+.1f} % ± {:.1f}"
    else:
        values = np.array([100 * (r["naive"] - r["errors"][name]) / (r["naive"] - r["oracle"]) for r in own])
        pattern = "{:.0f} % ± {:.0f}"
    half = stats.t.ppf(0.975, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else 0.0
    return pattern.format(values.mean(), half)


def page(rows: list[dict[str, Any]], seeds: int) -> str:
    """The table as Markdown, under the text that explains it."""
    intro = (Path(__file__).parent / "truth_intro.md").read_text(encoding="utf-8").format(seeds=seeds)
    head = ["method", "propensity", *WORLDS[:-1], "no confounding: error against naive"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, options in METHODS.items():
        plain = options["method"] in ("item-rate", "bias") or options["method"].startswith("multi")
        propensity = "–" if plain else options.get("propensity", "two-way")
        cells = [summarise(rows, world, name) for world in WORLDS]
        lines.append("| " + " | ".join([name, propensity, *cells]) + " |")
    gaps = []
    for world in WORLDS[:-1]:
        own = [row for row in rows if row["world"] == world]
        naive, oracle = (np.mean([row[key] for row in own]) for key in ("naive", "oracle"))
        gaps.append(f"{world} {naive:.4f} → {oracle:.4f}")
    errors = "Mean squared errors on all pairs, naive → true-propensity IPS: " + "; ".join(gaps) + "."
    return f"{intro}\n{chr(10).join(lines)}\n\n{errors}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/truth.md"))
    parser.add_argument("--only", default="", help="methods to measure anew (a pattern); others keep their figures")
    options = parser.parse_args()
    jobs = [(world, seed, options.only) for seed in range(options.seeds) for world in WORLDS]
    rows = []
    with ProcessPoolExecutor(options.workers) as pool:
        for row in pool.map(one_seed, jobs):
            rows.append(row)
            print(f"{len(rows)}/{len(jobs)} {row['world']} seed {row['seed']}", flush=True)
    if options.only:
        known = {(row["world"], row["seed"]): row["errors"] for row in json.loads(RESULTS.read_text())}
        rows = [{**row, "errors": known[row["world"], row["seed"]] | row["errors"]} for row in rows]
    write_json(RESULTS, rows)
    write_text(options.out, page(rows, options.seeds))
    print(json.dumps({world: summarise(rows, world, "signed-rd") for world in WORLDS}, ensure_ascii=False))


if __name__ == "__main__":
    main()
