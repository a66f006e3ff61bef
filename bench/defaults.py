"""Each data set under L2 defaults that were settled without it: chosen by validation on the other
data sets.

    python bench/defaults.py DATA [--seeds 1] [--method spectrum]

DATA holds the folders coat and kuairec; those absent are skipped, a simulated log is always there.
Candidates are the shipped scale of L2 on IDs and on features, and three times more and less of
either. For each data set the candidate is taken whose squared error on validation rows, relative to
the best one's, is the least on average over the *other* data sets. Test rows choose nothing; they
are looked at for the table.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.evaluation import evaluate
from puidrec.model import Recommender
from puidrec.settings import Settings

METRICS = ("uauc", "ndcg@5", "auc", "mse")
SHIPPED = {name: float(Settings.model_fields[name].default) for name in ("l2", "l2_features")}
CANDIDATES = [SHIPPED] + [
    {**SHIPPED, name: SHIPPED[name] * factor} for name in SHIPPED for factor in (1 / 3, 3.0)
]
Table = dict[str, list[tuple[float, dict[str, float]]]]
"""By data set, for each candidate: validation error, and metrics on test rows."""


def data_sets(root: Path) -> dict[str, Dataset]:
    """Those that are there."""
    found = {
        name: load_dataset(name, root / name)
        for name in ("coat", "kuairec")
        if (root / name).is_dir()
    }
    return found | {"simulated": load_dataset("simulated", world="mixed")}


def measure(
    data: Dataset, method: str, candidate: dict[str, float], seeds: int
) -> tuple[float, dict[str, float]]:
    """Means over seeds."""
    errors, tests = [], []
    for seed in range(seeds):
        split = data.split("rd", seed)
        model = Recommender(method, rng=seed, metric="mse", **candidate).fit(data, split)
        errors.append(-model.report_["validation"])
        tests.append([evaluate(model, split.test, METRICS)[name] for name in METRICS])
    return float(np.mean(errors)), dict(zip(METRICS, np.mean(tests, 0), strict=True))


def settled_without(name: str, table: Table) -> int:
    """The candidate that the other data sets favour."""
    others = [
        np.array([error for error, _ in rows]) for other, rows in table.items() if other != name
    ]
    return int(np.argmin(np.mean([errors / errors.min() for errors in others], axis=0)))


def words(candidate: dict[str, float]) -> str:
    """A candidate in a table."""
    return ", ".join(f"{name} {value:.3g}" for name, value in candidate.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--method", default="spectrum")
    given = parser.parse_args()
    table = {
        name: [measure(data, given.method, candidate, given.seeds) for candidate in CANDIDATES]
        for name, data in data_sets(given.data).items()
    }
    print(
        "| data set | settled without it | uauc | ndcg@5 | auc | mse | shipped: uauc | ndcg@5 | auc | mse |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, rows in table.items():
        chosen = settled_without(name, table)
        figures = [f"{rows[k][1][metric]:.4f}" for k in (chosen, 0) for metric in METRICS]
        print(f"| {name} | {words(CANDIDATES[chosen])} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
