"""A log that stays on disk: `puid train --shards` under a limit of memory that the log in memory would not fit."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

USERS, ITEMS, ROWS, DIM = 300_000, 50_000, 30_000_000, 16
ROOM_GIB = 1.5
"""Memory allowed beyond what the libraries take when they are loaded."""
CHUNK = 50_000


def write_files(folder: Path) -> int:
    """A Parquet log in random order within parts, and uniform rows; returns the rows of the log."""
    import numpy as np
    import polars as pl

    from scaling import degrees, draw_items

    (folder / "logged").mkdir(parents=True, exist_ok=True)
    degree, rng, total = degrees(USERS, ITEMS, ROWS), np.random.default_rng(3), 0
    for part, start in enumerate(range(0, USERS, CHUNK)):
        own = degree[start : start + CHUNK]
        user, item = np.repeat(np.arange(start, start + own.size), own), draw_items(own, ITEMS, 1_000 * part)
        distinct = np.concatenate([[True], (user[1:] != user[:-1]) | (item[1:] != item[:-1])])
        order = rng.permutation(np.flatnonzero(distinct))
        rating = rng.integers(1, 6, order.size).astype(np.int8)
        table = pl.DataFrame({"user_id": user[order], "item_id": item[order], "rating": rating})
        table.write_parquet(folder / "logged" / f"part-{part:03}.parquet", row_group_size=250_000)
        total += table.height
    pairs = {"user_id": rng.integers(0, USERS, 20_000), "item_id": rng.integers(0, ITEMS, 20_000)}
    uniform = pl.DataFrame({**pairs, "rating": rng.integers(1, 6, 20_000)}).unique(["user_id", "item_id"])
    uniform.write_parquet(folder / "uniform.parquet")
    return total


def train_from_disk(folder: Path) -> None:
    """Sort and train three epochs of DR under the limit; the last is timed."""
    import sklearn.linear_model  # noqa: F401 (libraries are not what is measured)
    import torch.distributed.tensor  # noqa: F401

    from puidrec.data.sources import load_dataset
    from puidrec.model import Recommender

    limit = _status("VmData") + int(ROOM_GIB * 2**30)
    before = _status("RssAnon")
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    peak = [0]
    threading.Thread(target=_watch, args=(peak,), daemon=True).start()
    begun = time.perf_counter()
    data = load_dataset(
        "files", logged=folder / "logged", uniform=folder / "uniform.parquet", shards=folder / "shards"
    )  # fmt: skip
    sorted_s, marks = time.perf_counter() - begun, []
    model = Recommender("dr", dim=DIM, epochs=3, backbone="mf", propensity="cells")
    model.fit(data, progress=lambda *_: marks.append(time.perf_counter()))
    facts = {
        "rows": len(data.logged), "users": data.n_users, "items": data.n_items, "dim": DIM, "room_gib": ROOM_GIB,
        "sort_s": sorted_s, "before_s": marks[0] - begun - sorted_s,
        "epoch_s": marks[-1] - marks[-2], "peak_gib": (peak[0] - before) / 2**30,
        "whole_s": time.perf_counter() - begun,
    }  # fmt: skip
    print(json.dumps(facts))


def measure_disk(folder: Path | None) -> dict[str, Any]:
    """Write the files (once per folder) and train in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        root = folder or Path(temporary)
        if not (root / "uniform.parquet").exists():
            write_files(root)
        size = sum(file.stat().st_size for file in (root / "logged").iterdir())
        here = Path(__file__).parent
        command = [sys.executable, str(here / "scaling.py"), "disk-one", "--folder", str(root)]
        environment = {**os.environ, "PYTHONPATH": str(here.parent / "src")}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**facts, "parquet_gib": size / 2**30}


def _status(name: str) -> int:
    """A figure of this process, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def _watch(peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], _status("RssAnon"))
        time.sleep(0.05)
