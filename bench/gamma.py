"""Entropies, propensities (cells, two-way) and Γ tables of a log in Parquet, in one streaming pass.

Usage: python bench/gamma.py [--rows 1e6 1e7 1e8] [--data DIR] [--json FILE]

Data (1 M users x 100 k items at the largest size, simulated once and kept in DIR) are not part of
the time; reading them is. Every size runs in a process of its own, so that the peak memory is that
size's.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from fresh import measured, simulated
from puidrec.data.on_disk import row_slices
from puidrec.exposure.base import smoothed_rates
from puidrec.exposure.counts import ExposureCounts
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import resolve_gamma
from puidrec.features.bins import bin_side

NOT_STAGES = {"rows", "seconds", "cpu_seconds", "peak_gib", "gain_user"}
LIMIT_SECONDS, LIMIT_GIB, LIMIT_EXPONENT = 60.0, 4.0, 1.1


def batches(folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Codes of users and items, some rows of the Parquet files at a time."""
    for file in sorted(folder.glob("*.parquet")):
        scan = pl.scan_parquet(file).select("user_id", "item_id")
        for rows in row_slices(int(scan.select(pl.len()).collect().item())):
            frame = scan.slice(rows.start, rows.stop - rows.start).collect()
            yield frame["user_id"].to_numpy(), frame["item_id"].to_numpy()


def measure(folder: Path) -> dict[str, float]:
    """One run over a simulated folder; seconds of each stage."""
    clock, start, cpu_start = {}, time.perf_counter(), time.process_time()

    def lap(name: str) -> None:
        clock[name] = time.perf_counter() - start - sum(clock.values())

    users, items = (
        pl.read_parquet(folder / "users.parquet"),
        pl.read_parquet(folder / "items.parquet"),
    )
    user_bins, item_bins = (
        bin_side(users, id_column="user_id"),
        bin_side(items, id_column="item_id"),
    )
    lap("bins")
    counts = ExposureCounts.from_batches(
        batches(folder / "logged"), user_bins.codes, item_bins.codes
    )
    lap("count")
    evidence = Evidence(counts, user_bins, item_bins, users, items)
    gains = evidence.gains("permutation", 50)
    lap("entropies")
    smoothed_rates(counts)
    lap("cells")
    evidence.two_way  # noqa: B018
    lap("two-way")
    for name in ("information", "exposure-gap", "recovered"):
        gamma = resolve_gamma(name, n_permutations=50).fit(evidence)
        gamma.bin_table(), gamma.user_table(), gamma.item_table()
        lap(f"gamma {name}")
    total = time.perf_counter() - start
    cpu = time.process_time() - cpu_start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "rows": counts.n_observed,
        "gain_user": gains.gain_user,
        **clock,
        "seconds": total,
        "cpu_seconds": cpu,
        "peak_gib": peak,
    }


def run(rows: int, data: Path) -> dict[str, float]:
    """Simulate once, then measure in a fresh process."""
    scale = (rows / 1e8) ** 0.5
    return measured(
        __file__, simulated(data / f"gamma-{rows}", round(1e6 * scale), round(1e5 * scale), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "puidrec-bench")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    results = [run(int(rows), options.data) for rows in options.rows]
    for result in results:
        stages = ", ".join(f"{k} {v:.1f}" for k, v in result.items() if k not in NOT_STAGES)
        print(
            f"{result['rows']:>12,.0f} rows: {result['seconds']:6.1f} s ({result['cpu_seconds']:.1f} s CPU), "
            f"peak {result['peak_gib']:.2f} GiB ({stages})"
        )
    held = True
    if len(results) > 1:
        logs = np.log([[r["rows"], r["seconds"]] for r in results])
        exponent = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
        held = exponent <= LIMIT_EXPONENT
        print(f"exponent {exponent:.2f} (limit {LIMIT_EXPONENT})")
    last = results[-1]
    held = held and last["seconds"] <= LIMIT_SECONDS and last["peak_gib"] <= LIMIT_GIB
    print(f"limits: {LIMIT_SECONDS:.0f} s, {LIMIT_GIB:.0f} GiB: {'held' if held else 'NOT held'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
