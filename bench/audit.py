"""An audit of two models on a log of ten million rows, without bands or cross-fitting: seconds, and
peak memory.

Usage: python bench/audit.py [--rows 1e6 1e7] [--data DIR] [--json FILE]

Data (316,000 users x 31,600 items at the larger size, simulated once and kept in DIR) and the
models (fixed low-rank scores) are not part of the time; every size runs in a process of its own, so
that the peak memory is that size's.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fresh import measured, simulated
from puidrec.auditing.audit import audit
from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import read_simulation

LIMIT_SECONDS, LIMIT_GIB = 60.0, 4.0
DIM = 16


class Scores:
    """A model of fixed low-rank scores around a mean, with as much noise as told."""

    def __init__(self, data: Dataset, noise: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.user_ids_, self.item_ids_ = data.user_ids, data.item_ids
        sides = [
            rng.normal(0, noise, (n, DIM)).astype(np.float32) for n in (data.n_users, data.n_items)
        ]
        self.user_factors_, self.item_factors_ = (
            np.concatenate([side, np.full((len(side), 1), 0.75, np.float32)], axis=1)
            for side in sides
        )

    def predict(self, users: Any, items: Any) -> np.ndarray:
        user, item = self.user_ids_.encode(users), self.item_ids_.encode(items)
        return np.einsum("nd,nd->n", self.user_factors_[user], self.item_factors_[item])


def measure(folder: Path) -> dict[str, Any]:
    """One audit over a simulated folder."""
    data = read_simulation(folder).data
    models = Scores(data, 0.1, 0), Scores(data, 0.3, 1)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start, cpu = time.perf_counter(), time.process_time()
    found = audit(models[0], data, against=models[1], replicates=0, unseen=True)
    return {
        "rows": found.to_dict()["rows"]["n"],
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "loaded_gib": loaded,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "tipping_point": found.tipping_point,
        "verdict": found.verdict,
    }


def run(rows: int, data: Path) -> dict[str, Any]:
    """Simulate once, then measure in a fresh process."""
    scale = (rows / 1e7) ** 0.5
    return measured(
        __file__,
        simulated(data / f"audit-{rows}", round(316_000 * scale), round(31_600 * scale), rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "puidrec-bench")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    results = [run(int(rows), options.data) for rows in options.rows]
    for result in results:
        print(
            f"{result['rows']:>12,} rows: {result['seconds']:6.1f} s ({result['cpu_seconds']:.1f} s CPU), peak "
            f"{result['peak_gib']:.2f} GiB ({result['loaded_gib']:.2f} before); Γ* = {result['tipping_point']:.3f}, "
            f"{result['verdict']}"
        )
    last = results[-1]
    held = last["seconds"] <= LIMIT_SECONDS and last["peak_gib"] <= LIMIT_GIB
    print(f"limits: {LIMIT_SECONDS:.0f} s, {LIMIT_GIB:.0f} GiB: {'held' if held else 'NOT held'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
