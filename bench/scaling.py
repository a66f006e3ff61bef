"""The engine at scale: seconds per exact DR epoch (a step of φ over all pairs, a step of θ over the log), and memory.

    python bench/scaling.py measure       1 M, 10 M and 100 M rows on 1 and 2 processes, and the machine's bandwidth;
                                          each its own process; results go to bench/out/scaling.json
    python bench/scaling.py disk          30 M rows that stay on disk, under a limit of memory
    python bench/scaling.py page          docs/scaling.md from these results

The trainer is the one that `puid train` uses; only the log is drawn at random and the weights are given.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE / "out" / "scaling.json"
SIZES = {
    "1m": (10_000, 10_000, 1_000_000),
    "10m": (100_000, 31_600, 10_000_000),
    "100m": (1_000_000, 100_000, 100_000_000),
}
DIM = 32
CHUNK_USERS = 5_000
CORES = os.cpu_count() or 1


def degrees(n_users: int, n_items: int, n_rows: int):
    """Rows of each user: skewed activity, the same in every process."""
    import numpy as np

    rng = np.random.default_rng(0)
    activity = rng.lognormal(0.0, 0.8, n_users)
    return rng.poisson(np.minimum(activity / activity.sum() * n_rows, n_items / 3))


def draw_items(degree, n_items: int, first_chunk: int):
    """Items of some users, sorted, one in each of a user's equal shares of popularity: skewed, and seldom repeated."""
    import numpy as np

    popularity = np.cumsum(1.0 / np.arange(1, n_items + 1) ** 0.6)
    grid = np.searchsorted(popularity / popularity[-1], np.linspace(0.0, 1.0, 1 << 20)).astype(np.int32)
    item = np.empty(int(degree.sum()), np.int32)
    done = 0
    for k, start in enumerate(range(0, degree.size, CHUNK_USERS)):
        count = degree[start : start + CHUNK_USERS]
        rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        share = (rank + np.random.default_rng([1, first_chunk + k]).random(rank.size)) / np.repeat(count, count)
        item[done : done + rank.size] = np.minimum(grid[(share * (1 << 20)).astype(np.int64)], n_items - 1)
        done += rank.size
    return item


class OwnLog:
    """The rows of our own users, in memory, under the numbers that users have among all."""

    def __init__(self, observed, first: int, total: int) -> None:
        self.observed, self.first, self.total = observed, first, total

    def __len__(self) -> int:
        return self.total

    def rows(self, start: int, stop: int):
        """Rows of users start..stop−1."""
        return self.observed.rows(start - self.first, stop - self.first)


def trainer_of(name: str, world):
    """The trainer of RD-DR (Γ = 2) on a drawn log, of which this process holds its own users' rows."""
    import numpy as np
    import torch
    from puidrec.objective.terms import Observed
    from puidrec.train.blocks import UserPartition

    from puidrec.losses.pointwise import pointwise_error
    from puidrec.losses.worst_case import Box
    from puidrec.methods.robust import RobustProblem
    from puidrec.optimise.adam import Trainer
    from puidrec.scores import make_backbone
    from puidrec.scores.sparse import LogPattern
    from puidrec.settings import Settings

    n_users, n_items, n_rows = SIZES[name]
    degree = degrees(n_users, n_items, n_rows)
    row_start = np.concatenate([[0], np.cumsum(degree)])
    plan = UserPartition(row_start, n_users, world)
    start, stop = plan.own[0]
    low, high = start // CHUNK_USERS * CHUNK_USERS, -(-stop // CHUNK_USERS) * CHUNK_USERS
    item = draw_items(degree[low:high], n_items, low // CHUNK_USERS)
    item = item[row_start[start] - row_start[low] : row_start[stop] - row_start[low]]
    rng = np.random.default_rng(2)
    target = torch.from_numpy(rng.random(item.size, np.float32))
    odds = torch.from_numpy(rng.random(item.size, np.float32)).mul_(45.0).add_(5.0)
    pattern = LogPattern(
        torch.from_numpy((row_start[start : stop + 1] - row_start[start]).astype(np.int32)),
        torch.from_numpy(item),
        n_items,
    )
    observed = Observed(pattern, target, Box(1 + odds / 2, 1 + odds * 2))
    log = observed if world.size == 1 else OwnLog(observed, start, int(row_start[-1]))
    settings = Settings.of("rd-dr", dim=DIM, backbone="mf", gamma=2.0, epochs=1_000, patience=0)
    phi, theta = (make_backbone("mf", n_users, n_items, DIM, mean=0.5, rng=seed) for seed in (0, 1))
    problem = RobustProblem(settings, log, pointwise_error("squared"), phi, theta)
    return Trainer(problem, settings, None, stage="main", save=None, plan=plan), int(row_start[-1])


def one(name: str, epochs: int) -> None:
    """Measure one size in this process (or in these processes, under torchrun)."""
    import torch

    from puidrec.world import join_world

    with join_world() as world:
        torch.set_num_threads(max(1, CORES // world.size))
        trainer, rows = trainer_of(name, world)
        times = []
        for epoch in range(epochs + 1):
            begun = time.perf_counter()
            trainer._epoch(epoch)
            times.append(time.perf_counter() - begun)
        peak = torch.zeros(world.size, dtype=torch.float64)
        peak[world.rank] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        world.sum(peak)
        if world.first:
            users, items, _ = SIZES[name]
            later = sorted(times[1:])
            facts = {
                "size": name, "rows": rows, "users": users, "items": items, "dim": DIM, "processes": world.size,
                "first_s": times[0], "epoch_s": later[len(later) // 2], "peak_gib": float(peak.sum()),
            }  # fmt: skip
            print(json.dumps(facts))


def bandwidth() -> float:
    """GB/s of a STREAM-like triad a = b + s·c on arrays far larger than the caches, all cores; the best of ten."""
    import torch

    torch.set_num_threads(CORES)
    a, b, c = (torch.ones(50_000_000) for _ in range(3))
    best = float("inf")
    for _ in range(10):
        begun = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)
        best = min(best, time.perf_counter() - begun)
    return 3 * a.numel() * 4 / best / 1e9


def bytes_moved(row: dict[str, Any]) -> float:
    """Bytes an epoch reads and writes, if no gathered row were found in a cache and every stream passed memory once.

    Per logged pair: seven products with gathered factors (scores of φ, of θ in either step, and the two halves of each
    gradient), and about 40 passes over vectors of 4 bytes (indices, values, target, box, worst case, transposes).
    Per entity: factors, gradients and Adam's moments, about 25 passes of both models.
    """
    width = row["dim"] + 2
    per_pair = 7 * width * 4 + 40 * 4
    per_entity = 2 * 25 * width * 4
    return row["rows"] * per_pair + (row["users"] + row["items"]) * per_entity


def measure(sizes: list[str], epochs: int) -> None:
    """Run every size on one and on two processes, each by itself."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "src")}
    environment.pop("OMP_NUM_THREADS", None)
    runs = []
    for name in sizes:
        for processes in (1, 2):
            launch = [sys.executable]
            if processes > 1:
                launch += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
            command = [*launch, str(Path(__file__)), "one", "--size", name, "--epochs", str(epochs)]
            begun = time.perf_counter()
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            facts = json.loads(done.stdout.strip().splitlines()[-1])
            facts["whole_run_s"] = time.perf_counter() - begun
            runs.append(facts)
            print(json.dumps(facts), flush=True)
    kept = [row for row in results().get("runs", []) if row["size"] not in sizes]
    runs = sorted([*kept, *runs], key=lambda row: (row["rows"], row["processes"]))
    keep(bandwidth_gb_s=bandwidth(), cores=CORES, runs=runs)


def results() -> dict[str, Any]:
    """What was measured before."""
    found: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return found


def keep(**facts: Any) -> None:
    """Put results beside those of other parts."""
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({**results(), **facts}, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "one", "disk", "disk-one", "page"))
    parser.add_argument("--folder", type=Path, help="disk: where files are put (default: a temporary folder)")
    parser.add_argument("--size", choices=list(SIZES), action="append", help="default: all")
    parser.add_argument("--epochs", type=int, default=3, help="epochs timed after the first")
    args = parser.parse_args()
    if args.what == "one":
        one(args.size[0], args.epochs)
    elif args.what == "measure":
        measure(args.size or list(SIZES), args.epochs)
    elif args.what == "disk":
        from scaling_disk import measure_disk

        keep(disk=measure_disk(args.folder))
    elif args.what == "disk-one":
        from scaling_disk import train_from_disk

        train_from_disk(args.folder)
    else:
        from scaling_page import write_page

        write_page(results(), HERE.parent / "docs" / "scaling.md")


if __name__ == "__main__":
    main()
