"""What choosing dim and L2 on held-out rows is worth: the true error of a method, in logs where it
is known.

    python bench/l2.py [--method mf] [--seeds 5] [--data FOLDER of ml-100k] [--features] [--json
    FILE]

Columns: 16 columns with l2 = 0.1; dim and L2 chosen (the default), in percent of the first, with an
interval of two standard errors over seeds; and what was chosen. Logs are the worlds of
`bench/worlds.py` (800 × 500). With --data, the squared error on a tenth of MovieLens 100K, which is
held out, in place of the true error. Seeds chose nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl

import puidrec as pr

sys.path.insert(0, str(Path(__file__).parent))
from worlds import WORLDS, make_world

FIXED = {"dim": 16, "l2": 0.1}


def true_error(model: pr.Recommender, truth: np.ndarray) -> float:
    """Mean squared error over all pairs of the users and items of a model."""
    users, items = (ids.ids.to_numpy() for ids in (model.user_ids_, model.item_ids_))
    scores = np.clip(model.user_factors_ @ model.item_factors_.T, 0.0, 1.0)
    return float(np.mean((scores - truth[np.ix_(users, items)]) ** 2))


def in_world(name: str, seed: int, method: str, features: bool) -> list[tuple[float, str]]:
    """Errors of both fits in one draw of a world."""
    world = make_world(name, seed, n_users=800, n_items=500)
    data = world.dataset(0, np.random.default_rng(seed))
    if not features:
        data = pr.Dataset.from_frame(data.logged.frame, scale=(1.0, float(world.rating.max())))
    found = []
    for given in (FIXED, {}):
        model = pr.Recommender(method, rng=0, select="none", **given).fit(data)
        found.append((true_error(model, world.mean), chosen(model)))
    return found


def movielens(folder: Path, seed: int, method: str) -> list[tuple[float, str]]:
    """MovieLens 100K without a tenth of its rows, judged by these."""
    names = ["user_id", "item_id", "rating", "timestamp"]
    rows = pl.read_csv(folder / "u.data", separator="\t", has_header=False, new_columns=names)
    held_out = np.random.default_rng(seed).random(len(rows)) < 0.1
    data = pr.Dataset.from_frame(rows[:, :3].filter(~held_out), scale=(1.0, 5.0))
    known = rows["item_id"].is_in(rows.filter(~held_out)["item_id"].implode())
    test = rows.filter(pl.Series(held_out) & known)
    target, found = (test["rating"].to_numpy() - 1) / 4, []
    for given in (FIXED, {}):
        model = pr.Recommender(method, rng=0, select="none", **given).fit(data)
        scores = model.predict(test["user_id"].to_list(), test["item_id"].to_list(), scale="unit")
        found.append((float(np.mean((scores - target) ** 2)), chosen(model)))
    return found


def chosen(model: pr.Recommender) -> str:
    """dim and L2 of a fit."""
    return f"{model.report_.get('dim')}, {model.report_.get('l2', 0.0):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="mf")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of ml-100k")
    parser.add_argument(
        "--features", action="store_true", help="with the features of users and items"
    )
    parser.add_argument("--json", type=Path, help="write errors of all seeds there")
    given = parser.parse_args()
    jobs = {
        name: lambda seed, name=name: in_world(name, seed, given.method, given.features)
        for name in WORLDS
    }
    if given.data is not None:
        jobs["MovieLens 100K, held out"] = lambda seed: movielens(given.data, seed, given.method)
    kept = {}
    print("| log | error, 16 columns | chosen | change | dim, L2 |\n|---|---|---|---|---|")
    for name, job in jobs.items():
        found = [job(seed) for seed in range(100, 100 + given.seeds)]
        error = np.array([[one[0] for one in row] for row in found])
        change = 100 * (error[:, 1] / error[:, 0] - 1)
        reach = 2 * change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else float("nan")
        words = "; ".join(
            f"{what} ({n})" for what, n in Counter(row[1][1] for row in found).most_common(2)
        )
        shown = f"{error[:, 0].mean():.4f} | {error[:, 1].mean():.4f} | {change.mean():+.1f} ± {reach:.1f} % | {words}"
        print(f"| {name} | {shown} |", flush=True)
        kept[name] = error.tolist()
    if given.json is not None:
        given.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
