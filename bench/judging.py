"""What early stopping costs: CPU time of an epoch of Adam at Yahoo!R3's shape, and how much of it
judges epochs.

    python bench/judging.py --methods multi-dr,puid-dr --turns 5

Each fit validates with 2,700 uniform rows, with 10 % of the log (31,000 rows), or not at all; fits
take turns, on one thread. Prints one JSON line per method and `select`, with medians over turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator

import numpy as np
import polars as pl
import torch

import puidrec as pr
from engine import SHAPES, rated, shape_log
from puidrec.optimise.adam import Trainer

EPOCHS, RATERS, RANDOM_ITEMS = 10, 5_400, 10
SELECTS = ("none", "uniform", "observational")


def yahoo_shape() -> pr.Dataset:
    """A log of Yahoo!R3's shape, 54,000 uniform ratings of other pairs, and a few features on both
    sides."""
    n_users, n_items, _, _ = SHAPES["shape"]
    user, item = shape_log()
    rng = np.random.default_rng(2)
    key = np.concatenate(
        [u * n_items + rng.permutation(n_items)[: 2 * RANDOM_ITEMS] for u in range(RATERS)]
    )
    key = np.setdiff1d(key, user.astype(np.int64) * n_items + item)
    key = rng.choice(key, RATERS * RANDOM_ITEMS, replace=False)
    pairs = np.concatenate([user, key // n_items]), np.concatenate([item, key % n_items])
    rating = rated(*pairs, n_users, n_items)
    table = pl.DataFrame({"user_id": pairs[0], "item_id": pairs[1], "rating": rating})
    sides = {
        name: pl.DataFrame(
            {name: np.arange(n), **{f"{name}_{k}": _texts(rng, n, k) for k in (2, 7, 30)}}
        )
        for name, n in (("user_id", n_users), ("item_id", n_items))
    }
    known = (sides["user_id"], sides["item_id"])
    return pr.Dataset.from_frame(table[: user.size], table[user.size :], *known, unknown_ids="keep")


def _texts(rng: np.random.Generator, n: int, levels: int) -> list[str]:
    return [f"level {level}" for level in rng.integers(levels, size=n)]


def epoch_times(data: pr.Dataset, method: str, select: str) -> tuple[float, float]:
    """Milliseconds per epoch of a fit, in all and outside its steps; the first epoch and the last
    are left out."""
    steps: list[float] = []
    moments: list[float] = []

    def note(stage: str, *_: object) -> None:
        if stage == "main":
            moments.append(time.process_time())

    with timed_steps(steps):
        pr.Recommender(
            method,
            backbone="mf-mlp",
            select=select,
            solver="adam",
            epochs=EPOCHS + 2,
            patience=EPOCHS,
            rng=0,
        ).fit(data, progress=note)
    whole = (moments[-2] - moments[0]) / EPOCHS
    return 1e3 * whole, 1e3 * (whole - sum(steps[1:-1]) / EPOCHS)


@contextlib.contextmanager
def timed_steps(into: list[float]) -> Iterator[None]:
    """Add the seconds that the steps of each epoch take to a list, benchmarks and first fits left
    out."""
    original = Trainer._epoch

    def epoch(trainer: Trainer, number: int) -> dict[str, float]:
        start = time.process_time()
        figures = original(trainer, number)
        if trainer.stage == "main":
            into.append(time.process_time() - start)
        return figures

    Trainer._epoch = epoch  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer._epoch = original  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default="multi-dr,puid-dr")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = yahoo_shape()
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(args.turns):
        for method in args.methods.split(","):
            for select in SELECTS:
                times.setdefault((method, select), []).append(epoch_times(data, method, select))
    for (method, select), found in times.items():
        epoch, judging = np.median(np.array(found), axis=0)
        row = {"epoch_ms": round(epoch, 2), "judging_ms": round(judging, 2)}
        row["judging_per_training"] = round(judging / (epoch - judging), 3)
        print(json.dumps({"bench": "judging", "method": method, "select": select, **row}))


if __name__ == "__main__":
    main()
