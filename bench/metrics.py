"""Time of the whole metric set on 5 M pairs of 100 k users, against a loop over users with
scikit-learn.

    python bench/metrics.py [--rows N] [--users N] [--sample N]

Both run in this process on the same arrays. The loop is timed on a sample of users and scaled to
all of them; it computes `roc_auc_score` and `ndcg_score` at one cut-off per user, less than the
metric set does.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings

import numpy as np
from sklearn.metrics import ndcg_score, roc_auc_score

from puidrec.evaluation import evaluate_scores

METRICS = [
    "uauc",
    "auc",
    "ndcg@5",
    "ndcg@50",
    "ndcg-graded@5",
    "recall@5",
    "precision@5",
    "map",
    "mse",
    "mae",
    "logloss",
]


def sklearn_loop(
    user: np.ndarray, score: np.ndarray, label: np.ndarray, sample: np.ndarray
) -> dict[int, list[float]]:
    """UAUC and NDCG@5 of the sampled users, one call each; rows are grouped before the clock
    starts."""
    values = {}
    for u in sample:
        rows = slice(*np.searchsorted(user, [u, u + 1]))
        y, s = label[rows], score[rows]
        if 0 < y.sum() < y.size:
            values[int(u)] = [float(roc_auc_score(y, s)), float(ndcg_score(y[None], s[None], k=5))]
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("rows", 5_000_000),
        ("users", 100_000),
        ("sample", 1_000),
        ("repeats", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    user = rng.integers(0, options.users, options.rows).astype(np.int32)
    rating = rng.integers(1, 6, options.rows).astype(np.float32)
    label = (rating >= 4).astype(np.int8)
    score = rng.beta(2 + label, 3).astype(np.float32)

    seconds, cpu = [], []
    for _ in range(options.repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        result = evaluate_scores(user, score, label, rating, metrics=METRICS)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)

    order = np.argsort(user, kind="stable")
    grouped = user[order], score[order], label[order]
    sample = rng.choice(options.users, options.sample, replace=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        truth = sklearn_loop(*grouped, sample)
        loop = (time.perf_counter() - start) * options.users / options.sample

    gap = 0.0
    for column, name in enumerate(("uauc", "ndcg@5")):
        ours = dict(
            zip(
                result.per_user[name].users.tolist(),
                result.per_user[name].values.tolist(),
                strict=True,
            )
        )
        gap = max(gap, *(abs(ours[u] - values[column]) for u, values in truth.items()))
    median = float(np.median(seconds))
    report = {
        "rows": options.rows,
        "users": options.users,
        "metrics": METRICS,
        "seconds_median": round(median, 3),
        "cpu_seconds_median": round(float(np.median(cpu)), 3),
        "load_average": round(os.getloadavg()[0], 1),
        "seconds_all": [round(s, 3) for s in seconds],
        "sklearn_loop_seconds_scaled": round(loop, 1),
        "sklearn_users_timed": options.sample,
        "speedup": round(loop / median, 1),
        "largest_gap_to_sklearn": gap,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
