"""docs/scaling.md: whole fits to convergence at 1, 10 and 100 million rows, beside implicit's ALS
in the same run.

python bench/scaling.py measure [--sizes 1m,10m,100m]    from memory, from disk, two processes; each a process of
                                                         its own; results go to
                                                         bench/results/scaling.json
python bench/scaling.py page                             docs/scaling.md from these results
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OUT, PAGE = HERE / "results" / "scaling.json", HERE.parent / "docs" / "scaling.md"
WAYS = {"memory": [], "disk": ["--disk"], "two processes": ["--processes", "2"]}
BYTES_PER_ROW = 4 * (2 * 34 + 12)
"""What a sweep moves per logged row: two gathered vectors of dim + 2 numbers and a dozen columns, 4
bytes each."""
TEXT = """# Scaling

Made by `python bench/scaling.py measure` and `python bench/scaling.py page`. Whole fits of `dr` (two models, dim 32,
a given L2) until scores no longer move, on 2 cores; implicit's ALS (15 iterations, the same dim, one model) on the
same log in the same run. Making the log is not counted. Memory is the largest resident size, the log included, summed
over processes; two processes have one thread each.

## Measured

{measured}

How a log on disk is read, and how to start several processes: [large data](howto/large-data.md). Scores of the three
ways agree to 1e-4 (`tests/optimise/`).

## On paper

At {rows:,} rows a sweep takes {ns:.0f} ns per row. It reads and writes about {bytes} bytes per row, so that the limit
is the bandwidth of memory, not arithmetic. With n machines of this kind, each holding 1/n of the users:

| rows | ratings and columns in memory | seconds per sweep on 1, 4 and 16 machines |
|---|---|---|
{paper}

Items are copied to every machine, and their sums are added up once per sweep: a million items × 34 numbers × 4 bytes
are 0.13 GB per machine and sweep. The network is the limit where sending these takes longer than a sweep over a
machine's own rows. Nothing here was measured on several machines.
"""


def one(size: str, way: str, folder: Path) -> dict[str, object]:
    """A fit, as bench/engine.py prints it."""
    command = [
        sys.executable,
        str(HERE / "engine.py"),
        "whole",
        size,
        "--folder",
        str(folder),
        *WAYS[way],
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def als(size: str) -> float:
    """Seconds of a whole fit of implicit's ALS (15 iterations) on the same log."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import engine as e; "
        f"u, i, _ = e.whole_log({size!r}); n = e.WHOLE[{size!r}][:2]; "
        "print(e.seconds(e.als_fit(u, i, n, e.DIM, e.ALS_ITERATIONS)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(sizes: list[str]) -> None:
    """All fits; what was measured before is kept."""
    OUT.parent.mkdir(exist_ok=True)
    known = json.loads(OUT.read_text(encoding="utf-8")) if OUT.is_file() else {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as temporary:
            for way in WAYS:
                known[f"{size}/{way}"] = row = one(size, way, Path(temporary))
                print(size, way, row, flush=True)
        known[f"{size}/als"] = {"fit_s": round(als(size), 1)}
        OUT.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def page() -> None:
    """docs/scaling.md."""
    known = json.loads(OUT.read_text(encoding="utf-8"))
    lines = [
        "| rows | log | seconds | sweeps | GiB | seconds of ALS | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    per_row = []
    for key, row in known.items():
        size, way = key.split("/")
        if way == "als":
            continue
        other = known[f"{size}/als"]["fit_s"]
        ratio = row["fit_s"] / other
        figures = (
            f"{row['rows']:,}",
            way,
            row["fit_s"],
            row["sweeps"],
            row["peak_gib"],
            other,
            f"{ratio:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, figures))} |")
        if way == "memory":
            per_row.append((row["rows"], row["fit_s"] / row["sweeps"] / row["rows"]))
    rows, second = per_row[-1]
    machines = (1, 4, 16)
    paper = [
        f"| {name} | {n * 60 / 2**30:,.0f} GiB | {', '.join(f'{n * second / k:,.0f}' for k in machines)} |"
        for name, n in (("1 billion", 1e9), ("10 billion", 1e10))
    ]
    text = TEXT.format(
        measured="\n".join(lines),
        paper="\n".join(paper),
        rows=rows,
        ns=1e9 * second,
        bytes=BYTES_PER_ROW,
    )
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--sizes", default="1m,10m,100m")
    given = parser.parse_args()
    measure(given.sizes.split(",")) if given.what == "measure" else page()


if __name__ == "__main__":
    main()
