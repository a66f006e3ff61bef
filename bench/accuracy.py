"""Accuracy on a data set with uniform test rows: every method, the same random search, chosen on validation rows only.

python bench/accuracy.py --data coat --data-dir DIR [--seeds 5] [--budget 6] [--out docs/accuracy-coat.md]
"""

from __future__ import annotations

import argparse
import json
import os
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats

import puidrec as pr
from puidrec.atomic import write_json, write_text
from puidrec.methods import METHODS
from puidrec.rng import generator

SPACE = {"l2": (0.03, 0.1, 0.3), "l2_features": (0.005, 0.02, 0.08), "dim": (8, 16, 32), "lr": (0.01, 0.02)}
PUBLIC = {
    "mf": (0.662, 0.491), "ips": (0.663, 0.485), "rd-ips": (0.671, 0.492), "brd-ips": (0.671, 0.491),
    "dr": (0.669, 0.497), "rd-dr": (0.684, 0.509), "brd-dr": (0.677, 0.507),
}  # fmt: skip
"""UAUC and NDCG@5 on Coat of the public Robust Deconfounder code under protocol rd."""


def one(job: tuple[str, str, str, int, int]) -> dict[str, Any]:
    """Defaults and the best of `budget` drawn settings, by validation score; both measured on the test rows."""
    name, folder, method, seed, budget = job
    data = pr.load_dataset(name, folder)
    split = data.split("rd", seed)
    draws: list[dict[str, Any]] = [{}]
    if METHODS[method].family != "closed":
        rng = generator(seed, "search")
        draws += [{key: values[rng.integers(len(values))] for key, values in SPACE.items()} for _ in range(budget - 1)]
    fitted = []
    for options in draws:
        model = pr.Recommender(method, rng=seed, **options).fit(data, split)
        scores = pr.evaluate(model, split.test, metrics=["uauc", "ndcg@5"])
        fitted.append((model.report_.get("validation", 0.0), dict(scores), model.report_["seconds"]))
    tuned = max(fitted, key=lambda row: row[0])
    return {"method": method, "seed": seed, "default": fitted[0][1], "tuned": tuned[1],
            "seconds": float(np.median([row[2] for row in fitted])), "positive_rate": split.positive_rate}  # fmt: skip


def figure(rows: list[dict[str, Any]], kind: str, metric: str) -> str:
    """Mean over seeds with a 95 % t-interval."""
    values = np.array([row[kind][metric] for row in rows])
    half = stats.t.ppf(0.975, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else 0.0
    return f"{values.mean():.3f} ± {half:.3f}"


def page(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The table as Markdown."""
    rate = np.mean([row["positive_rate"] for row in rows])
    lines = [
        f"# Accuracy on {options.data}\n",
        f"Made by `python bench/accuracy.py --data {options.data}`. Protocol `rd` (labels ≥ 4, {rate:.1%} of the test "
        f"rows positive), {options.seeds} seeds; a seed changes split and initialisation.\n",
        "* *Default*: the settings we ship.",
        f"* *Tuned*: the best of {options.budget} settings by the smoothed score on the validation rows: the default "
        f"and {options.budget - 1} drawn from one space, the same for every method. Test rows choose nothing.",
        "* *Public*: the public Robust Deconfounder code under the same protocol, where it has the method.\n",
        "Figures are means over seeds ± a 95 % t-interval. Seeds share most test rows: read differences with care.\n",
        "| method | UAUC default | NDCG@5 default | UAUC tuned | NDCG@5 tuned | public | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        cells = [figure(own, kind, metric) for kind in ("default", "tuned") for metric in ("uauc", "ndcg@5")]
        public = "{:.3f} / {:.3f}".format(*PUBLIC[method]) if options.data == "coat" and method in PUBLIC else "–"
        seconds = np.median([row["seconds"] for row in own])
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {public} | {seconds:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="coat")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", default="", help="methods to measure anew (a pattern); others keep their figures")
    options = parser.parse_args()
    chosen = [method for method in METHODS if re.search(options.only, method)]
    jobs = [(options.data, options.data_dir, m, s, options.budget) for m in chosen for s in range(options.seeds)]
    results = Path(f"bench/out/accuracy-{options.data}.json")
    with ProcessPoolExecutor(options.workers) as pool:
        rows = list(pool.map(one, jobs))
    if options.only:
        rows += [row for row in json.loads(results.read_text()) if row["method"] not in chosen]
    write_json(results, rows)
    text = page(rows, options)
    write_text(options.out or Path(f"docs/accuracy-{options.data}.md"), text)
    print(text)


if __name__ == "__main__":
    main()
