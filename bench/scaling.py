"""The page of speed and scale: whole fits to convergence at 1, 10 and 100 million rows, beside
implicit's ALS in the same run. `bench/pages.py` runs this, one fit at a time, for each takes both
cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pages import Ask, version
from puidrec.atomic import write_json
from puidrec.report.study import table

PAGE_METHODS = {"scaling": ("dr",)}
HERE = Path(__file__).parent
WAYS: dict[str, list[str]] = {
    "memory": [],
    "disk": ["--disk"],
    "two processes": ["--processes", "2"],
}
FITS = {
    "1m": ("memory", "disk", "two processes", "als"),
    "10m": ("memory", "disk", "two processes", "als"),
    "100m": ("memory", "als", "disk", "two processes"),
}
"""At 100 million rows the fits take most of the page's time; they are last."""
BYTES_PER_ROW = 4 * (2 * 34 + 12)
"""What a sweep moves per logged row: two gathered vectors of dim + 2 numbers and a dozen columns, 4
bytes each."""
NETWORK = 1.25e9
"""Bytes per second of a network of 10 Gbit."""
MACHINES = (1, 4, 16, 64)
TEXT = """# Scaling

{made}
{unfinished}
Whole fits of `dr` (two models, dim 32, a given L2) until scores no longer move, on 2 cores; implicit's ALS (15 iterations,
the same dim, one model) on the same log in the same run. Making the log is not counted. Memory is the largest resident
size, the log included, summed over processes; two processes have one thread each.

## Measured

{measured}

How a log on disk is read, and how to start several processes: [large data](howto/large-data.md). Scores of the three
ways agree to 1e-4 (`tests/optimise/`).

## On paper

At {rows:,} rows a sweep takes {ns:.0f} ns per row and moves about {bytes} bytes per row, which is {gbs:.1f} GB/s. Where that
is near what a machine's memory gives (10 to 20 GB/s for two cores), bandwidth is the limit and not arithmetic. With n
machines of this kind, each holding 1/n of the users, a fit of {sweeps} sweeps:

{paper}

Every machine keeps a copy of the items and adds up their sums once per sweep: {items:,} items × 34 numbers × 4 bytes,
sent and received, at 10 Gbit/s. The network becomes the limit where that takes longer than a sweep over a machine's own
rows: beyond about {limit:,.0f} machines for a billion rows. Nothing here was measured on several machines.
"""


def printed(command: list[str]) -> str:
    """The last line that a command of two threads prints."""
    setting = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=setting)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.splitlines()[-1]


def one(size: str, way: str, folder: Path) -> dict[str, Any]:
    """A fit, as bench/engine.py prints it."""
    command = [sys.executable, str(HERE / "engine.py"), "whole", size, "--folder", str(folder)]
    found: dict[str, Any] = json.loads(printed([*command, *WAYS[way]]))
    return found


def als(size: str, folder: Path) -> dict[str, Any]:
    """Seconds of a whole fit of implicit's ALS (15 iterations) on the same log."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import engine as e, polars as pl; "
        f"log = pl.read_parquet(e.whole_log({size!r}, e.Path({str(folder)!r}))); "
        "user, item = (log[name].to_numpy() for name in ('user_id', 'item_id')); "
        f"fit = e.als_fit(user, item, e.WHOLE[{size!r}][:2], e.DIM, e.ALS_ITERATIONS); "
        "print(e.seconds(fit))"
    )
    return {"fit_s": round(float(printed([sys.executable, "-c", code])), 1)}


def measure_scaling(ask: Ask) -> dict[str, Any]:
    """Fit by fit; what was measured before is kept."""
    end, sizes = ask.end, {"1m": FITS["1m"]} if ask.quick else FITS
    found, unfinished = {}, 0
    with tempfile.TemporaryDirectory() as temporary:
        for size, ways in sizes.items():
            for way in ways:
                file = ask.folder / f"{size} {way} {version(*PAGE_METHODS['scaling'])}.json"
                if not file.exists() and time.monotonic() < end:
                    folder = Path(temporary) / size
                    folder.mkdir(exist_ok=True)
                    write_json(file, als(size, folder) if way == "als" else one(size, way, folder))
                    print(size, way, file.read_text(encoding="utf-8"), flush=True)
                if file.exists():
                    found[f"{size}/{way}"] = json.loads(file.read_text(encoding="utf-8"))
                else:
                    unfinished += 1
    return {"unfinished": unfinished, "fits": found}


def scaling_text(figures: dict[str, Any], made: str) -> str:
    """The page."""
    fits, waits = figures["fits"], figures["unfinished"]
    body = []
    largest = max(
        (row for key, row in fits.items() if key.endswith("/memory")), key=lambda row: row["rows"]
    )
    for key in [f"{size}/{way}" for size in FITS for way in WAYS]:
        row, size, way = fits.get(key), *key.split("/")
        if row is None:
            continue
        other = fits.get(f"{size}/als", {}).get("fit_s")
        compared = ("–", "–") if other is None else (f"{other:g}", f"{row['fit_s'] / other:.1f}")
        own = (f"{row['rows']:,}", way, row["fit_s"], row["sweeps"], row["dim"], row["peak_gib"])
        body.append([*map(str, own), *compared])
    columns = ("rows", "log", "seconds", "sweeps", "dim", "GiB", "ALS, seconds", "ratio")
    second = largest["fit_s"] / largest["sweeps"] / largest["rows"]
    return TEXT.format(
        made=made,
        unfinished=f"\nNot finished in the time given: {waits} fits.\n" if waits else "",
        measured=table(columns, body),
        rows=largest["rows"],
        ns=1e9 * second,
        bytes=BYTES_PER_ROW,
        gbs=BYTES_PER_ROW / second / 1e9,
        sweeps=largest["sweeps"],
        paper=on_paper(second, largest["sweeps"]),
        items=ITEMS,
        limit=1e9 * second / exchange_seconds(),
    )


ITEMS = 1_000_000


def exchange_seconds() -> float:
    """Sending and receiving the sums of all items once."""
    return 2 * ITEMS * 34 * 4 / NETWORK


def on_paper(second: float, sweeps: int) -> str:
    """Hours of a fit and memory per machine for logs that were not measured."""
    body = []
    for name, rows in (("1 billion", 1e9), ("10 billion", 1e10)):
        for machines in MACHINES:
            sweep = rows * second / machines + (exchange_seconds() if machines > 1 else 0.0)
            gib = rows * 60 / machines / 2**30
            body.append(
                [
                    name,
                    str(machines),
                    f"{sweep:,.1f}",
                    f"{sweeps * sweep / 3600:,.2f}",
                    f"{gib:,.0f}",
                ]
            )
    return table(("rows", "machines", "seconds a sweep", "hours a fit", "GiB each"), body)
