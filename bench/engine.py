"""Speed and memory of whole fits, to convergence.

    python bench/engine.py fits           at Yahoo!R3's shape with dim 64 and a given L2, interleaved with whole fits
                                          of implicit's ALS (15 iterations); --choose: dim and L2 by
                                          held-out rows
    python bench/engine.py whole 10m      one fit of `dr` with dim 32: 1m, 10m or 100m rows
    python bench/engine.py whole 10m --disk         the same from a log on disk
    python bench/engine.py whole 10m --processes 2  the same divided over processes
    python bench/engine.py make 10m --folder F      the log of `whole`, once for several fits
    python bench/engine.py walk           the functions and files of `puidrec` that one sweep enters, by tracing
                                          one of every model of --methods on a small log

Each prints one JSON line, `fits` and `walk` one per method. Times are medians, those of `fits` CPU
seconds; runs of the things compared alternate, so that a busy machine slows all. Where other
programs run, set OMP_NUM_THREADS=1: threads that wait for each other spend CPU seconds, up to ten
times as many as the work itself. `python
bench/scaling.py` makes docs/scaling.md of `whole`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "2"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

SHAPE, SHAPE_DIM = (15_400, 1_000, 311_704), 64
"""Users, items and rows of Yahoo!R3."""
WHOLE = {
    "1m": (20_000, 5_000, 1_000_000),
    "10m": (100_000, 20_000, 10_000_000),
    "100m": (1_000_000, 100_000, 100_000_000),
}
"""Logs for whole fits: users, items, rows."""
DIM, L2 = 32, 0.1
FITS = "mf,ips,dr,signed-rd,all-rank,rd-ips,rd-dr,puid-dr,brd-dr,spectrum"
TARGETS = {"mf": 1.3, "dr": 1.6, "puid-dr": 2.5, "signed-rd": 2.2, "all-rank": 1.5, "spectrum": 6.0}
"""Seconds of a whole fit against those of a whole fit of ALS."""
ALS_ITERATIONS, TRUE_COLUMNS = 15, 8
RATED_AT_ONCE = 5_000_000


def make_log(
    n_users: int, n_items: int, n_rows: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A log with skewed activity and popularity, distinct pairs, sorted by user then item; users
    drawn in chunks."""
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


def seconds(function, clock=time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start


def als_fit(user: np.ndarray, item: np.ndarray, shape: tuple[int, int], dim: int, iterations: int):
    """A fit of implicit's ALS (CPU, conjugate gradients) to a log."""
    import implicit
    import scipy.sparse as sp

    matrix = sp.csr_matrix((np.ones(user.size, np.float32), (user, item)), shape=shape)

    def fit() -> None:
        als = implicit.als.AlternatingLeastSquares(
            factors=dim,
            iterations=iterations,
            use_gpu=False,
            use_cg=True,
            num_threads=THREADS,
            random_state=0,
        )
        als.fit(matrix, show_progress=False)

    return fit


def shape_log() -> tuple[np.ndarray, np.ndarray]:
    """A log of Yahoo!R3's shape."""
    n_users, n_items, n_rows = SHAPE
    user, item = make_log(n_users, n_items, int(n_rows * 1.12))
    keep = np.sort(np.random.default_rng(0).choice(user.size, n_rows, replace=False))
    return user[keep], item[keep]


def rated(
    user: np.ndarray, item: np.ndarray, n_users: int, n_items: int, seed: int = 1
) -> np.ndarray:
    """Five levels: what users and items are like, a few true columns, and noise; liked items are
    rated more often."""
    rng = np.random.default_rng(seed)
    left, right = (
        rng.normal(0, TRUE_COLUMNS**-0.25, (n, TRUE_COLUMNS)).astype(np.float32)
        for n in (n_users, n_items)
    )
    of_users, of_items = (
        rng.normal(0, 0.6, n_users).astype(np.float32),
        rng.normal(0, 0.5, n_items).astype(np.float32),
    )
    rating = np.empty(user.size, np.float32)
    for start in range(0, user.size, RATED_AT_ONCE):
        u, i = (x[start : start + RATED_AT_ONCE] for x in (user, item))
        taste = np.einsum("nd,nd->n", left[u], right[i])
        noise = rng.normal(0, 0.9, u.size)
        rating[start : start + u.size] = np.clip(
            np.rint(3.0 + taste * 0.8 + of_users[u] + of_items[i] + noise), 1, 5
        )
    return rating


def bench_fits(methods: list[str], repeats: int, choose: bool) -> list[dict[str, object]]:
    """Whole fits with given dim and L2, or with both chosen, each after a whole fit of ALS."""
    import polars as pl

    import puidrec as pr

    (n_users, n_items, _), dim = SHAPE, SHAPE_DIM
    user, item = shape_log()
    rating = rated(user, item, n_users, n_items)
    data = pr.Dataset.from_frame(pl.DataFrame({"user_id": user, "item_id": item, "rating": rating}))
    als = als_fit(user, item, (n_users, n_items), dim, ALS_ITERATIONS)
    times: dict[str, list[float]] = {name: [] for name in ("als", *methods)}
    reports: dict[str, dict[str, object]] = {}
    for turn in range(repeats + 1):
        for name in methods:
            model = pr.Recommender(name, rng=0, **({} if choose else {"dim": dim, "l2": L2}))
            fit = lambda model=model: model.fit(data)  # noqa: E731
            pair = seconds(als, time.process_time), seconds(fit, time.process_time)
            if turn:  # the first fit of each warms caches up
                times["als"].append(pair[0])
                times[name].append(pair[1])
            reports[name] = model.report_
    base = float(np.median(times["als"]))
    rows: list[dict[str, object]] = []
    for name in methods:
        ratio, own = float(np.median(times[name])) / base, reports[name]
        about = {
            "method": name,
            "fit_s": round(ratio * base, 2),
            "als_s": round(base, 2),
            "per_als": round(ratio, 2),
        }
        target = {"target": TARGETS[name]} if name in TARGETS else {}
        used = {
            "dim": own.get("dim"),
            "sweeps": own["epochs"],
            "converged": "not_converged" not in own,
        }
        rows.append({**about, **target, **used})
    return rows


def bench_walk(methods: list[str]) -> list[dict[str, object]]:
    """What a reader has to know for one sweep: the functions entered, lambdas and properties among
    them, but for comprehensions, which stand where they run; and the files these are in."""
    import puidrec as pr
    from puidrec.optimise import least_squares

    once, entered = least_squares._sweep, dict[str, set[tuple[str, int, str]]]()
    package, now = str(Path(pr.__file__).parent), [""]

    def watch(frame, event: str, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            where = code.co_filename[len(package) + 1 :]
            if not code.co_name.endswith(("comp>", "genexpr>")):
                entered[now[0]].add((where, code.co_firstlineno, code.co_name))

    def sweep(*given):
        """The second one of a model: the first makes what later ones find made."""
        if given[2].number != 1:
            return once(*given)
        now[0] = f"{len(entered) + 1}"
        entered[now[0]] = set()
        sys.setprofile(watch)
        try:
            return once(*given)
        finally:
            sys.setprofile(None)

    rows: list[dict[str, object]] = []
    data = pr.load_dataset("simulated", world="mixed", seed=0, n_users=80, n_items=50)
    least_squares._sweep = sweep
    for method in methods:
        entered.clear()
        pr.Recommender(method, rng=0, dim=8, l2=0.01, backbone="mf").fit(data)
        found = max(entered.values(), key=len)
        files = sorted({where for where, _, _ in found})
        names = sorted(f"{where}:{line} {name}" for where, line, name in found)
        rows.append(
            {"method": method, "functions": len(found), "files": len(files), "names": names}
        )
    least_squares._sweep = once
    return rows


def whole_log(name: str, folder: Path) -> Path:
    """A file with a log's users, items and ratings; made where the folder has none."""
    import polars as pl

    file = folder / "log.parquet"
    if not file.is_file():
        n_users, n_items, n_rows = WHOLE[name]
        user, item = make_log(n_users, n_items, int(n_rows * 1.03))
        rating = rated(user, item, n_users, n_items)
        pl.DataFrame({"user_id": user, "item_id": item, "rating": rating}).write_parquet(file)
    return file


def bench_whole(file: Path, disk: bool) -> dict[str, object]:
    """A whole fit of `dr` with a given L2, the reading of the log not counted."""
    import polars as pl

    import puidrec as pr
    from puidrec.world import join_world

    if disk:
        shards = file.with_name("shards")
        data = pr.load_dataset("files", logged=file, scale=(1.0, 5.0), shards=shards)
    else:
        data = pr.Dataset.from_frame(pl.read_parquet(file))
    before = peak_gib()
    with join_world("cpu") as world:
        torch.set_num_threads(max(THREADS // world.size, 1))
        model = pr.Recommender("dr", rng=0, dim=DIM, l2=L2)
        whole = seconds(lambda: model.fit(data, world=world))
        first = world.first
    report = model.report_
    return {
        "rows": len(data.logged),
        "dim": DIM,
        "fit_s": round(whole, 1),
        "sweeps": report["epochs"],
        "converged": "not_converged" not in report,
        "peak_gib": round(peak_gib(), 2),
        "before_fit_gib": round(before, 2),
        "first": first,
        "score": round(float(model.user_factors_[7] @ model.item_factors_[5]), 6),
    }


def peak_gib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def divided(name: str, processes: int, folder: Path) -> dict[str, object]:
    """The same fit by several processes under torchrun; memory is summed."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        __file__,
    ]
    found = subprocess.run(
        [*command, "whole", name, "--folder", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    if len(rows) != processes:
        raise RuntimeError(found.stderr[-2000:])
    one = next(row for row in rows if row["first"])
    return {
        **one,
        "processes": processes,
        "peak_gib": round(sum(row["peak_gib"] for row in rows), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["fits", "whole", "walk", "make"])
    parser.add_argument("size", nargs="?", choices=[*WHOLE], default="10m", help="of `whole`")
    parser.add_argument("--methods", default=FITS, help="of `fits`")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--choose", action="store_true", help="of `fits`: dim and L2 by held-out rows"
    )
    parser.add_argument("--disk", action="store_true", help="of `whole`: the log stays on disk")
    parser.add_argument("--processes", type=int, default=1, help="of `whole`")
    parser.add_argument(
        "--folder", type=Path, help="where the log is, or goes; a temporary one by default"
    )
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    if args.what == "fits":
        for row in bench_fits(args.methods.split(","), args.repeats, args.choose):
            print(json.dumps({"bench": "fits", "threads": THREADS, **row}), flush=True)
        return
    if args.what == "walk":
        for row in bench_walk(args.methods.split(",")):
            print(json.dumps({"bench": "walk", **row}), flush=True)
        return
    if args.what == "make":
        whole_log(args.size, args.folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        make = [sys.executable, __file__, "make", args.size, "--folder", str(folder)]
        subprocess.run(make, check=True)  # apart: what it takes is not counted
        if args.processes > 1:
            result = divided(args.size, args.processes, folder)
        else:
            result = bench_whole(folder / "log.parquet", args.disk)
    print(json.dumps({"bench": "whole", "threads": THREADS, "disk": args.disk, **result}))


if __name__ == "__main__":
    main()
