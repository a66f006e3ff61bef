"""Speed and memory of the engine: one exact DR epoch (a step of φ over all pairs, a step of θ over the log).

    python bench/engine.py shape          Yahoo!R3's shape, interleaved with one ALS iteration of `implicit` and with
                                          a straightforward epoch (bench/naive_dr.py); prints ratios to their targets
    python bench/engine.py large          10 M rows, 100 k × 20 k, dim 64
    python bench/engine.py fits           whole fits by default settings, to convergence, at Yahoo!R3's shape (dim 64),
                                          interleaved with whole fits of implicit's ALS (15 iterations)
    python bench/engine.py whole 10m      a whole `dr` fit to convergence: 10 M rows, dim 64; and what the same fit
                                          would take with Adam (its 300 epochs, timed on a few)
    python bench/engine.py whole 100m     the same with 100 M rows, dim 32; without Adam

Each prints one JSON line, `fits` one per method.
Times are medians; runs of the things compared alternate, so that a busy machine slows all.
100 million rows, and several processes: bench/scaling.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

THREADS = 2
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from puidrec.objective.terms import (  # noqa: E402
    Alternating,
    Observed,
    robust_mean,
)

from puidrec.losses.pointwise import pointwise_error  # noqa: E402
from puidrec.losses.worst_case import Box  # noqa: E402
from puidrec.scores import make_backbone  # noqa: E402
from puidrec.scores.sparse import LogPattern  # noqa: E402

SHAPES = {"shape": (15_400, 1_000, 311_704, 64), "large": (100_000, 20_000, 10_000_000, 64)}
WHOLE = {"1m": (20_000, 5_000, 1_000_000, 32), "10m": SHAPES["large"], "100m": (1_000_000, 100_000, 100_000_000, 32)}
"""Logs for whole fits: users, items, rows, dim."""
FITS = "mf,ips,dr,signed-rd,all-rank,rd-ips,rd-dr,puid-dr,brd-dr,spectrum"
TARGETS = {"mf": 1.5, "dr": 3.0, "signed-rd": 3.0}
"""Seconds of a whole fit against those of a whole fit of ALS."""
ALS_ITERATIONS, TRUE_COLUMNS = 15, 8
RATED_AT_ONCE = 5_000_000
ADAM_EPOCHS, ADAM_TIMED = 300, (2, 22)
"""Epochs of version 0.1, and those of two short fits, whose difference tells the time of an epoch."""
L2 = 1e-3


def make_log(n_users: int, n_items: int, n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A log with skewed activity and popularity, distinct pairs, sorted by user then item; users drawn in chunks."""
    rng = np.random.default_rng(seed)
    activity = rng.lognormal(0.0, 0.8, n_users)
    share = np.minimum(activity / activity.sum() * n_rows, n_items / 3)
    degree = rng.poisson(share * n_rows / share.sum())
    popularity = np.cumsum(1.0 / np.arange(1, n_items + 1) ** 0.6)
    users, items = [], []
    for start in range(0, n_users, 50_000):
        count = degree[start : start + 50_000]
        user = np.repeat(np.arange(start, start + count.size), count)
        item = np.searchsorted(popularity, rng.random(user.size) * popularity[-1])
        key = np.unique(user * np.int64(n_items) + item)
        users.append((key // n_items).astype(np.int32))
        items.append((key % n_items).astype(np.int32))
    return np.concatenate(users), np.concatenate(items)


@dataclass
class Engine:
    """Two backbones, two Adams, one log with a box of weights (Γ = 2)."""

    user: np.ndarray
    item: np.ndarray
    n_users: int
    n_items: int
    dim: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(1)
        n_rows = self.user.size
        self.target = torch.from_numpy(rng.choice(np.array([-1, 1], np.float32), n_rows))
        odds = torch.from_numpy(rng.uniform(5, 50, n_rows).astype(np.float32))
        pattern = LogPattern.from_pairs(self.user, self.item, self.n_users, self.n_items)
        self.observed = Observed(pattern, self.target, Box(1 + odds / 2, 1 + odds * 2))
        self.error = pointwise_error("squared")
        self.phi, self.theta = (make_backbone("mf", self.n_users, self.n_items, self.dim, rng=s) for s in (0, 1))
        self.alternating = Alternating(self.observed, self.phi.factors, self.theta.factors)
        self.adams = [torch.optim.Adam(m.parameters(), lr=0.01, fused=True) for m in (self.phi, self.theta)]

    def epoch(self) -> None:
        """Full batch: a step of φ, a step of θ; each model's scores on the log are made once per step of its own."""
        terms = self.alternating.prediction_terms(self.error)
        self._step(0, robust_mean(terms, self.observed.bounds, self.observed.n_pairs))
        self.alternating.moved("phi")
        terms = self.alternating.imputation_terms(self.error)
        self._step(1, robust_mean(terms, self.observed.bounds, len(self.observed.pattern)))
        self.alternating.moved("theta")

    def _step(self, which: int, loss: torch.Tensor) -> None:
        penalty = L2 * (self.phi, self.theta)[which].penalty().ids
        (loss + penalty).backward()
        self.adams[which].step()
        self.adams[which].zero_grad()


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def als_fit(user: np.ndarray, item: np.ndarray, shape: tuple[int, int], dim: int, iterations: int):
    """A fit of implicit's ALS (CPU, conjugate gradients) to a log."""
    import implicit
    import scipy.sparse as sp

    matrix = sp.csr_matrix((np.ones(user.size, np.float32), (user, item)), shape=shape)

    def fit() -> None:
        als = implicit.als.AlternatingLeastSquares(
            factors=dim, iterations=iterations, use_gpu=False, use_cg=True, num_threads=THREADS, random_state=0
        )
        als.fit(matrix, show_progress=False)

    return fit


def shape_log() -> tuple[np.ndarray, np.ndarray]:
    """A log of Yahoo!R3's shape."""
    n_users, n_items, n_rows, _ = SHAPES["shape"]
    user, item = make_log(n_users, n_items, int(n_rows * 1.12))
    keep = np.sort(np.random.default_rng(0).choice(user.size, n_rows, replace=False))
    return user[keep], item[keep]


def rated(user: np.ndarray, item: np.ndarray, n_users: int, n_items: int, seed: int = 1) -> np.ndarray:
    """Five levels: what users and items are like, a few true columns, and noise; liked items are rated more often."""
    rng = np.random.default_rng(seed)
    left, right = (rng.normal(0, TRUE_COLUMNS**-0.25, (n, TRUE_COLUMNS)).astype(np.float32) for n in (n_users, n_items))
    of_users, of_items = rng.normal(0, 0.6, n_users).astype(np.float32), rng.normal(0, 0.5, n_items).astype(np.float32)
    rating = np.empty(user.size, np.float32)
    for start in range(0, user.size, RATED_AT_ONCE):
        u, i = (x[start : start + RATED_AT_ONCE] for x in (user, item))
        taste = np.einsum("nd,nd->n", left[u], right[i])
        noise = rng.normal(0, 0.9, u.size)
        rating[start : start + u.size] = np.clip(np.rint(3.0 + taste * 0.8 + of_users[u] + of_items[i] + noise), 1, 5)
    return rating


def bench_fits(methods: list[str], repeats: int) -> list[dict[str, object]]:
    """Whole fits with default settings, each after a whole fit of ALS."""
    import polars as pl

    import puidrec as pr

    n_users, n_items, _, dim = SHAPES["shape"]
    user, item = shape_log()
    rating = rated(user, item, n_users, n_items)
    data = pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item, "rating": rating}))
    als = als_fit(user, item, (n_users, n_items), dim, ALS_ITERATIONS)
    times: dict[str, list[float]] = {name: [] for name in ("als", *methods)}
    reports: dict[str, dict[str, object]] = {}
    for turn in range(repeats + 1):
        for name in methods:
            model = pr.Recommender(name, rng=0, dim=dim)
            pair = seconds(als), seconds(lambda model=model: model.fit(data))
            if turn:  # the first fit of each warms caches up
                times["als"].append(pair[0])
                times[name].append(pair[1])
            reports[name] = model.report_
    base = float(np.median(times["als"]))
    rows: list[dict[str, object]] = []
    for name in methods:
        ratio, own = float(np.median(times[name])) / base, reports[name]
        about = {"method": name, "fit_s": round(ratio * base, 2), "als_s": round(base, 2), "per_als": round(ratio, 2)}
        target = {"target": TARGETS[name]} if name in TARGETS else {}
        rows.append({**about, **target, "sweeps": own["epochs"], "solver": own["solver"]})
    return rows


def bench_shape(repeats: int, naive_blocks: int | None) -> dict[str, float]:
    from naive_dr import NaiveDr

    n_users, n_items, _, dim = SHAPES["shape"]
    engine = Engine(*shape_log(), n_users, n_items, dim)
    weight = engine.observed.bounds.b.numpy()
    naive = NaiveDr(
        engine.user.astype(np.int64), engine.item.astype(np.int64), engine.target.numpy(), weight, n_users, n_items, dim
    )
    als = als_fit(engine.user, engine.item, (n_users, n_items), dim, iterations=1)
    runs = {"engine": engine.epoch, "als": als}
    for function in runs.values():
        function()
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, function in runs.items():
            times[name].append(seconds(function))
    naive_times = [naive.epoch_seconds(naive_blocks) for _ in range(1 if naive_blocks is None else 3)]
    result = {f"{name}_ms": round(1e3 * float(np.median(value)), 2) for name, value in times.items()}
    result["naive_ms"] = round(1e3 * float(np.median(naive_times)), 1)
    result["engine_per_als"] = round(result["engine_ms"] / result["als_ms"], 3)
    result["naive_per_engine"] = round(result["naive_ms"] / result["engine_ms"], 1)
    result["rows"] = engine.user.size
    return result


def bench_scale(name: str, repeats: int) -> dict[str, float]:
    n_users, n_items, n_rows, dim = SHAPES[name]
    user, item = make_log(n_users, n_items, int(n_rows * 1.03))
    engine = Engine(user, item, n_users, n_items, dim)
    first = seconds(engine.epoch)
    times = [seconds(engine.epoch) for _ in range(repeats)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    median = round(float(np.median(times)), 2)
    return {"rows": user.size, "epoch_s": median, "first_s": round(first, 2), "peak_gib": round(peak, 2)}


def bench_whole(name: str) -> dict[str, object]:
    """A whole fit of `dr` by default settings, the making of the log not counted."""
    import polars as pl

    import puidrec as pr

    n_users, n_items, n_rows, dim = WHOLE[name]
    user, item = make_log(n_users, n_items, int(n_rows * 1.03))
    frame = pl.DataFrame({"user_id": user, "item_id": item, "rating": rated(user, item, n_users, n_items)})
    del user, item
    data = pr.Dataset.from_frame(frame)
    del frame
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    model = pr.Recommender("dr", rng=0, dim=dim)
    whole = seconds(lambda: model.fit(data))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report = model.report_
    columns = int((np.abs(model.user_factors_[:, :-2]).max(0) > 0).sum())
    row: dict[str, object] = {
        "rows": len(data.logged), "dim": dim, "columns": columns, "fit_s": round(whole, 1), "sweeps": report["epochs"],
        "converged": "not_converged" not in report, "peak_gib": round(peak, 2), "before_fit_gib": round(before, 2),
    }  # fmt: skip
    if name != "100m":
        short, long = (
            seconds(lambda n=n: pr.Recommender("dr", rng=0, dim=dim, solver="adam", epochs=n).fit(data))
            for n in ADAM_TIMED
        )
        epoch = (long - short) / (ADAM_TIMED[1] - ADAM_TIMED[0])
        adam = short + (ADAM_EPOCHS - ADAM_TIMED[0]) * epoch
        row |= {"adam_epoch_s": round(epoch, 2), "adam_fit_s": round(adam), "times_faster": round(adam / whole, 1)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*SHAPES, "fits", "whole"])
    parser.add_argument("size", nargs="?", choices=[*WHOLE], default="10m", help="of `whole`")
    parser.add_argument("--methods", default=FITS, help="of `fits`")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument(
        "--naive-blocks",
        type=int,
        default=2,
        help="blocks of the straightforward epoch that are timed and scaled; 0: all",
    )
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    sys.path.insert(0, str(Path(__file__).parent))
    if args.what == "fits":
        for row in bench_fits(args.methods.split(","), min(args.repeats, 5)):
            print(json.dumps({"bench": "fits", "threads": THREADS, **row}), flush=True)
        return
    if args.what == "whole":
        result = bench_whole(args.size)
    elif args.what == "shape":
        result = bench_shape(args.repeats, args.naive_blocks or None)
    else:
        result = bench_scale(args.what, min(args.repeats, 3))
    print(json.dumps({"bench": args.what, "threads": THREADS, **result}))


if __name__ == "__main__":
    main()
