"""How strong should L2 be? The true error of a method with the L2 that ships against others, in logs where it is known.

    python bench/l2.py [--method mf] [--seeds 3] [--data FOLDER of ml-100k]

Logs: tastes in a few or many directions, strong or weak, even or skewed activity (`LOGS`), and worlds of
`bench/worlds.py`; the draws chose nothing in the package. Columns of the table, all in percent of the first:

    one L2        0.8 of the edge of noise, the same for all users and items, for all columns: the rule of before
    growing       0.8 of the edge of noise, half of which grows with rows, for all columns
    ships         columns above the edge, and the L2 that their strength asks for; weighted losses (`ips`, `dr`):
                  L2 towards the unweighted fit; no validation rows
    validated     the same, then stepped by held-out logged rows: the default

With --data, the squared error on a tenth of MovieLens 100K, which is held out, in place of the true error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl
from puidrec.train import prepare
from puidrec.train.regularisation import GROWING, SHARE

import puidrec as pr
from puidrec.methods.prepare import REFERENCE_L2, Prepared
from puidrec.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
from worlds import make_world

MODEL = {"dim": 32, "backbone": "mf", "rng": 0}
WORLDS = ("nothing", "benign-activity", "entity", "pair", "trait-genre")
Error = Callable[[pr.Recommender], float]


@dataclass(frozen=True)
class Shape:
    """A simulated log: sizes, tastes in `columns` directions of falling strength, noise, and how uneven activity is."""

    n_users: int
    n_items: int
    n_rows: int
    columns: int
    taste: float
    noise: float
    activity: float
    popularity: float

    def draw(self, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
        """The log, and the expected rating of every pair as a share of the scale."""
        rng = np.random.default_rng([seed, self.n_users, self.n_rows])
        activity = rng.lognormal(0, self.activity, self.n_users)
        count = rng.poisson(np.minimum(activity / activity.sum() * self.n_rows, self.n_items / 3))
        popularity = np.cumsum(1.0 / np.arange(1, self.n_items + 1) ** self.popularity)
        user = np.repeat(np.arange(self.n_users), count)
        item = np.searchsorted(popularity, rng.random(user.size) * popularity[-1])
        user, item = np.divmod(np.unique(user * self.n_items + item), self.n_items)
        left = rng.standard_normal((self.n_users, self.columns)) * np.arange(1, self.columns + 1) ** -0.5
        taste = left @ rng.standard_normal((self.columns, self.n_items))
        levels = [rng.normal(0, 0.5, n) for n in (self.n_users, self.n_items)]
        truth = 3.0 + taste * self.taste / taste.std() + np.add.outer(*levels)
        rating = np.clip(np.rint(truth[user, item] + rng.normal(0, self.noise, user.size)), 1, 5)
        frame = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating})
        return frame, (np.clip(truth, 1, 5) - 1) / 4


LOGS = {
    "strong tastes, skewed": Shape(3000, 800, 120_000, 8, 0.9, 0.8, 0.8, 0.6),
    "weak tastes, skewed": Shape(3000, 800, 60_000, 8, 0.4, 1.0, 0.8, 0.6),
    "even activity": Shape(2000, 600, 60_000, 5, 0.7, 0.9, 0.1, 0.1),
    "very skewed, many tastes": Shape(3000, 1200, 150_000, 20, 0.8, 0.8, 1.2, 1.0),
    "30 falling tastes": Shape(4000, 1000, 200_000, 30, 0.8, 0.9, 0.8, 0.6),
    "small": Shape(300, 300, 7_000, 3, 0.6, 0.9, 0.2, 0.5),
}


def edge_factor(data: pr.Dataset, growing: float) -> float:
    """The edge of noise as a factor of l2, with an L2 of which this part grows with rows."""
    prepare.GROWING = growing
    settings = Settings.of("mf", dim=MODEL["dim"], backbone=MODEL["backbone"], select="none")
    edge = Prepared.of(data, data.split("rd", 0), settings).log.noise.edge / REFERENCE_L2
    prepare.GROWING = GROWING
    return edge


def errors(data: pr.Dataset, error: Error, method: str) -> list[float]:
    """One error per column of the table."""
    one = pr.Recommender(method, **MODEL, select="none", l2_vectors=min(SHARE * edge_factor(data, 0.0), 1.0))
    growing = pr.Recommender(method, **MODEL, select="none")
    ships, validated = (pr.Recommender(method, **MODEL, select=select) for select in ("none", "observational"))
    return [error(fit(model, data)) for model, fit in (
        (one, plain), (growing, without_choice), (ships, plain), (validated, plain)
    )]  # fmt: skip


def plain(model: pr.Recommender, data: pr.Dataset) -> pr.Recommender:
    """A fit as it is."""
    return model.fit(data)


def without_choice(model: pr.Recommender, data: pr.Dataset) -> pr.Recommender:
    """A fit whose columns and L2 are not chosen: all columns that 0.8 of the edge of noise lets in."""
    from puidrec.train import stages

    known, stages._l2_is_open = stages._l2_is_open, lambda prepared: False
    backbone = Prepared.backbone
    Prepared.backbone = lambda self, *a, **k: at_face_value(backbone(self, *a, **k))  # type: ignore[method-assign]
    try:
        return model.fit(data)
    finally:
        stages._l2_is_open, Prepared.backbone = known, backbone  # type: ignore[method-assign]


def at_face_value(backbone):
    """The same L2, which is all that a column must be worth."""
    for tower in (*backbone.user_towers, *backbone.item_towers):
        tower.edge_share = 1.0
    return backbone


def against(truth: np.ndarray) -> Error:
    """The true error over all pairs of the users and items of a model."""

    def error(model: pr.Recommender) -> float:
        users, items = (ids.ids.to_numpy() for ids in (model.user_ids_, model.item_ids_))
        scores = np.clip(model.user_factors_ @ model.item_factors_.T, 0.0, 1.0)
        return float(np.mean((scores - truth[np.ix_(users, items)]) ** 2))

    return error


def simulated(name: str, seed: int, method: str) -> list[float]:
    """One draw of a log."""
    if name in LOGS:
        frame, truth = LOGS[name].draw(seed)
    else:
        world = make_world(name, seed, n_users=800, n_items=500)
        user, item, rating = world.log
        frame, truth = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating.astype(float)}), world.mean
    return errors(pr.Dataset.from_frame(frame, scale=(1.0, 5.0)), against(truth), method)


def movielens(folder: Path, seed: int, method: str) -> list[float]:
    """MovieLens 100K without a tenth of its rows, judged by these."""
    names = ["user_id", "item_id", "rating", "timestamp"]
    rows = pl.read_csv(folder / "u.data", separator="\t", has_header=False, new_columns=names)
    held_out = np.random.default_rng(seed).random(len(rows)) < 0.1
    data = pr.Dataset.from_frame(rows[:, :3].filter(~held_out), scale=(1.0, 5.0))
    known = rows["item_id"].is_in(rows.filter(~held_out)["item_id"].implode())
    test = rows.filter(pl.Series(held_out) & known)

    def error(model: pr.Recommender) -> float:
        found = model.predict(test["user_id"].to_list(), test["item_id"].to_list(), scale="unit")
        return float(np.mean((found - (test["rating"].to_numpy() - 1) / 4) ** 2))

    return errors(data, error, method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="mf")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder of ml-100k")
    given = parser.parse_args()
    print("| log | error, one L2 | growing | ships | validated |\n|---|---|---|---|---|")
    jobs: dict[str, Callable[[int], list[float]]] = {
        name: lambda seed, name=name: simulated(name, seed, given.method) for name in (*LOGS, *WORLDS)
    }
    if given.data is not None:
        jobs["MovieLens 100K, held out"] = lambda seed: movielens(given.data, seed, given.method)
    for name, job in jobs.items():
        found = np.array([job(seed) for seed in range(100, 100 + given.seeds)])
        change = 100 * (found[:, 1:] / found[:, :1] - 1).mean(0)
        print(f"| {name} | {found[:, 0].mean():.4f} | " + " | ".join(f"{c:+.1f} %" for c in change) + " |", flush=True)


if __name__ == "__main__":
    main()
