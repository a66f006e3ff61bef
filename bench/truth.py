"""Methods against the truth: what does each gain where its assumption holds, and cost where it is
false?

    python bench/truth.py [--seeds 10] [--workers 2] [--out docs/truth.md]

In a simulated world the error on all pairs is known. A figure is the change of that error against
`mf` with the same backbone, seed by seed, with a paired interval over seeds: for models with IDs
(the default) and of features alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats

from puidrec.atomic import write_json, write_text
from puidrec.data.synthetic import WORLDS, simulate
from puidrec.demo import FEATURES_ONLY, with_true_propensity
from puidrec.methods import METHODS as TABLE
from puidrec.model import Recommender

SIZE: dict[str, Any] = {"n_users": 400, "n_items": 300, "density": 0.08, "n_uniform": 11_000}
"""Uniform rows of which the protocol holds 5 % out for calibration: about 500 outside the log."""
BACKBONES: dict[str, dict[str, Any]] = {"IDs and features": {}, "features only": FEATURES_ONLY}
BASE: dict[str, Any] = {"select": "none", "solver": "least-squares"}
METHODS: dict[str, dict[str, Any]] = {
    "bias": {"method": "bias"},
    "ips": {"method": "ips"},
    "dr": {"method": "dr"},
    "puid-dr": {"method": "puid-dr"},
    "all-rank": {"method": "all-rank"},
    "signed-rd": {"method": "signed-rd"},
    "signed-rd, 500 uniform": {"method": "signed-rd", "uniform": True},
    "spectrum": {"method": "spectrum"},
    "spectrum, 500 uniform": {"method": "spectrum", "uniform": True},
}
TRUE_P = "ips, true propensities"
RESULTS = Path("bench/out/truth.json")


def measured() -> dict[str, dict[str, Any]]:
    """The methods of the page that there are."""
    return {name: options for name, options in METHODS.items() if options["method"] in TABLE}


def one_seed(job: tuple[str, int, str]) -> dict[str, Any]:
    """True full-matrix errors of the methods whose names match, in one draw of one world, for each
    backbone."""
    world, seed, only = job
    simulation = simulate(world, rng=seed, **SIZE)
    truth = simulation.data.scale.unit(simulation.truth.matrix("rating"))

    def error(data: Any, backbone: dict[str, Any], uniform: bool = False, **options: Any) -> float:
        split = data.split("rd", seed)
        none = split.validation.take(np.zeros(len(split.validation), bool))
        model = Recommender(rng=seed, **{**BASE, **backbone, **options})
        model.fit(
            data, replace(split, validation=none, propensity=split.propensity if uniform else None)
        )
        return float(((model.user_factors_ @ model.item_factors_.T - truth) ** 2).mean())

    errors = {}
    for name, backbone in BACKBONES.items():
        found = {"mf": error(simulation.data, backbone, method="mf")}
        if re.search(only, TRUE_P):
            found[TRUE_P] = error(
                with_true_propensity(simulation), backbone, method="ips", propensity="given"
            )
        for method, options in measured().items():
            if re.search(only, method):
                found[method] = error(simulation.data, backbone, **options)
        errors[name] = found
    return {"world": world, "seed": seed, "errors": errors}


class Change(NamedTuple):
    """Mean change of the true error in percent, with half of its 95 % interval over seeds."""

    mean: float
    half: float

    def __str__(self) -> str:
        return (
            f"{self.mean:+.1f} ± {self.half:.1f}" if np.isfinite(self.half) else f"{self.mean:+.1f}"
        )


def change(rows: list[dict[str, Any]], backbone: str, world: str, name: str) -> Change:
    """The change of a method's error against `mf`, seed by seed."""
    own = [row["errors"][backbone] for row in rows if row["world"] == world]
    values = np.array([100 * (errors[name] / errors["mf"] - 1) for errors in own])
    if values.size < 2:
        return Change(float(values.mean()), np.nan)
    half = stats.t.ppf(0.975, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size)
    return Change(float(values.mean()), float(half))


def page(rows: list[dict[str, Any]]) -> str:
    """A summary, then a table per backbone as Markdown, under the text that explains them."""
    seeds = len({row["seed"] for row in rows})
    worlds = (
        "\n".join(f"* `{name}`: {world.description};" for name, world in WORLDS.items()).rstrip(";")
        + "."
    )
    size = f"{SIZE['n_users']} users × {SIZE['n_items']} items, {SIZE['density']:.0%} of the pairs logged"
    intro = (Path(__file__).parent / "truth_intro.md").read_text(encoding="utf-8")
    parts = [intro.format(seeds=seeds, size=size, worlds=worlds)]
    names = [*measured(), TRUE_P]
    for backbone in BACKBONES:
        found = {
            name: {world: change(rows, backbone, world, name) for world in WORLDS} for name in names
        }
        lines = [
            "| world | " + " | ".join(names) + " | error of mf |",
            "|" + "---|" * (len(names) + 2),
        ]
        for world in WORLDS:
            own = [row["errors"][backbone]["mf"] for row in rows if row["world"] == world]
            cells = [str(found[name][world]) for name in names]
            lines.append("| " + " | ".join([world, *cells, f"{np.mean(own):.4f}"]) + " |")
        parts.append(
            f"## {backbone[0].upper()}{backbone[1:]}\n\n{summary(found)}\n\n"
            + "\n".join(lines)
            + "\n"
        )
    return "\n".join(parts)


def summary(found: dict[str, dict[str, Change]]) -> str:
    """Of each method: in how many worlds it is clearly better or worse than `mf`, and its best and
    worst world."""
    lines = [
        "| method | better | no clear difference | worse | best | worst |",
        "|---|---|---|---|---|---|",
    ]
    for name, own in found.items():
        better = sum(one.mean + one.half < 0 for one in own.values())
        worse = sum(one.mean - one.half > 0 for one in own.values())
        ends = sorted(own, key=lambda world, own=own: own[world].mean)
        best, worst = (f"{own[world].mean:+.1f} ({world})" for world in (ends[0], ends[-1]))
        lines.append(
            f"| {name} | {better} | {len(own) - better - worse} | {worse} | {best} | {worst} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/truth.md"))
    parser.add_argument(
        "--only", default="", help="methods to measure anew (a pattern); others keep their figures"
    )
    options = parser.parse_args()
    jobs = [(world, seed, options.only) for seed in range(options.seeds) for world in WORLDS]
    rows = []
    with ProcessPoolExecutor(options.workers) as pool:
        for row in pool.map(one_seed, jobs):
            rows.append(row)
            print(f"{len(rows)}/{len(jobs)} {row['world']} seed {row['seed']}", flush=True)
            if not options.only:
                write_json(RESULTS, rows)  # what is done is kept, should the run be interrupted
    if options.only:
        known = {
            (row["world"], row["seed"]): row["errors"] for row in json.loads(RESULTS.read_text())
        }
        for row in rows:
            before = known[row["world"], row["seed"]]
            row["errors"] = {name: before[name] | errors for name, errors in row["errors"].items()}
    write_json(RESULTS, rows)
    write_text(options.out, page(rows))


if __name__ == "__main__":
    main()
