"""Do scores stay what they were? Records those of every method, or compares them with a record made
by other code.

    python bench/scores.py record before.npz [--data FOLDER of coat]
    python bench/scores.py compare before.npz [--data FOLDER of coat]

Every method with its defaults on a simulated log and, where its folder is given, on Coat (seeds 0,
1, 2); 2,000 pairs each, on one thread. To record what older code gives, run this file with that
code on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import puidrec as pr
from puidrec.methods import METHODS

TOLERANCE = 1e-6


def scores(folder: str | None) -> dict[str, np.ndarray]:
    """Scores by data set, seed and method."""
    torch.set_num_threads(1)
    data = {"simulated/0": pr.load_dataset("simulated", world="mixed", seed=0)}
    if folder is not None:
        data |= {f"coat/{seed}": pr.load_dataset("coat", folder) for seed in range(3)}
    users = np.random.default_rng(3).integers(0, 290, 2000)
    items = np.random.default_rng(4).integers(0, 200, 2000)
    found = {}
    for name, rows in data.items():
        for method in METHODS:
            model = pr.Recommender(method, rng=int(name[-1])).fit(rows)
            found[f"{name}/{method}"] = np.asarray(model.predict(users, items, scale="unit"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data")
    given = parser.parse_args()
    now = scores(given.data)
    if given.action == "record":
        np.savez(given.file, **now)
        return
    before = dict(np.load(given.file))
    gaps = {fit: float(np.abs(before[fit] - now[fit]).max()) for fit in before if fit in now}
    for fit, gap in gaps.items():
        if not gap <= TOLERANCE:
            print(f"{fit}: {gap:.1e}")
    print(f"{len(gaps)} fits compared; largest difference {max(gaps.values()):.1e}")
    sys.exit(int(not all(gap <= TOLERANCE for gap in gaps.values())))


if __name__ == "__main__":
    main()
