"""Loading: a Parquet log of ten million rows into a `Dataset` (limits: 10 s, 3 GiB)."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

ROWS, USERS, ITEMS = 10_000_000, 100_000, 20_000


def write_log(path: Path) -> None:
    """Distinct pairs in random order, ratings 1..5."""
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, USERS * ITEMS, round(ROWS * 1.01)))
    keys = rng.permutation(keys)[:ROWS]
    pl.DataFrame(
        {
            "user_id": keys // ITEMS,
            "item_id": keys % ITEMS,
            "rating": rng.integers(1, 6, ROWS).astype(np.int8),
        }
    ).write_parquet(path)


def load(path: str) -> None:
    """Runs in a process of its own, so that its peak memory is its own."""
    from puidrec.data.sources import load_dataset

    started = time.perf_counter()
    data = load_dataset("files", logged=path)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{len(data.logged):,} rows: {seconds:.1f} s (limit 10), peak {peak:.2f} GiB (limit 3)")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path)
        for _ in range(3):
            subprocess.run([sys.executable, __file__, str(path)], check=True)


if __name__ == "__main__":
    load(sys.argv[1]) if len(sys.argv) > 1 else main()
