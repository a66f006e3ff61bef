"""docs/scaling.md from the results of bench/scaling.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaling import bytes_moved

LIMIT_S, LIMIT_GIB, LIMIT_RATIO = 45.0, 12.0, 1.3
PAPER = {"rows": 10e9, "users": 100e6, "items": 1e6, "dim": 32}
NODE = {"cores": 64, "memory_gib": 256, "network_gb_s": 3.0}
"""A common machine of a data centre: 64 cores, 256 GiB, 25 Gbit/s."""
Row = dict[str, Any]


def write_page(results: dict[str, Any], path: Path) -> None:
    """Write the page; figures that were not measured are left out."""
    runs, disk = results["runs"], results.get("disk")
    parts = [INTRO, table(runs, results["cores"]), verdicts(runs), roofline(runs, results)]
    if disk:
        parts.append(on_disk(disk))
    parts += [HOW, on_paper(runs, results["cores"])]
    path.write_text("\n".join(part.strip() + "\n" for part in parts), encoding="utf-8")


def table(runs: list[Row], cores: int) -> str:
    """Every run, a line each."""
    lines = [
        "## Measured\n",
        f"On {cores} cores. One process uses {cores} threads, two use {max(1, cores // 2)} each. Memory is the largest "
        "resident size, summed over processes.\n",
        "| rows | users × items | processes | seconds per epoch | ns per row | memory (GiB) |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['rows'] / 1e6:.0f} M | {row['users']:,} × {row['items']:,} | {row['processes']} "
        f"| {row['epoch_s']:.2f} | {row['epoch_s'] / row['rows'] * 1e9:.0f} | {row['peak_gib']:.1f} |"
        for row in runs
    ]
    return "\n".join(lines)


def verdicts(runs: list[Row]) -> str:
    """The targets and what was found."""
    by = {(row["size"], row["processes"]): row for row in runs}
    lines = []
    for processes in (1, 2):
        large, middle = by.get(("100m", processes)), by.get(("10m", processes))
        if large and middle:
            ratio = large["epoch_s"] / large["rows"] / (middle["epoch_s"] / middle["rows"])
            met = large["epoch_s"] < LIMIT_S and large["peak_gib"] < LIMIT_GIB and ratio < LIMIT_RATIO
            lines.append(
                f"* {processes} process{'es' if processes > 1 else ''}: {large['epoch_s']:.1f} s and "
                f"{large['peak_gib']:.1f} GiB at 100 M rows (targets: {LIMIT_S:.0f} s, {LIMIT_GIB:.0f} GiB); "
                f"a row costs {ratio:.2f} × what it costs at 10 M (target: {LIMIT_RATIO}). "
                f"{'Met' if met else 'Not met'}."
            )
    return "\n".join(lines)


def roofline(runs: list[Row], results: dict[str, Any]) -> str:
    """Bytes moved against the machine's bandwidth."""
    speed = results["bandwidth_gb_s"]
    lines = [
        "## Roofline\n",
        f"A triad a = b + s·c over 600 MB runs at {speed:.1f} GB/s here. The table counts the bytes that an epoch asks "
        "for, as if no factor were ever found in a cache: seven gathered rows of dim + 2 numbers and about forty "
        "numbers per logged pair, and both models with Adam's moments. A share above 100 % means that caches serve "
        "the gathered rows of items; far below, that something other than memory holds the engine up.\n",
        "| rows | processes | GB per epoch | GB/s | share of the triad |",
        "|---|---|---|---|---|",
    ]
    for row in runs:
        moved = bytes_moved(row) / 1e9
        rate = moved / row["epoch_s"]
        lines.append(
            f"| {row['rows'] / 1e6:.0f} M | {row['processes']} | {moved:.1f} | {rate:.1f} | {rate / speed:.0%} |"
        )
    return "\n".join(lines)


def on_disk(disk: Row) -> str:
    """The log that stayed on disk."""
    return f"""## Larger than memory

`puid train --data files --logged LOG --shards DIR` sorts a Parquet log into shards once and reads it a block of users
at a time. {disk["rows"] / 1e6:.0f} M rows, {disk["users"]:,} × {disk["items"]:,},
dim {disk["dim"]}, with {disk["room_gib"]:g} GiB allowed beyond what the libraries take (`RLIMIT_DATA`):

| sorting | an exact DR epoch | largest memory beyond the libraries |
|---|---|---|
| {disk["sort_s"]:.0f} s | {disk["epoch_s"]:.1f} s | {disk["peak_gib"]:.2f} GiB |

Propensities, Γ and noise (`l2_vectors=auto`) before the first epoch, and that epoch, which writes targets and weights
beside the log in files that are gone with the process (12 bytes a row), took {disk["before_s"]:.0f} s together.

The model is that of the log in memory, to 1e-6, for every method. `puid gamma` takes `--shards` as well. Rows are held
out from the log where there are no uniform ones, and dropped where the protocol says so, by a bit per row; of a large
log at most a million rows validate and a million test, in memory too. Refused in one line: repeated pairs, and
propensities that come with the log.
"""


def on_paper(runs: list[Row], cores: int) -> str:
    """What ten billion rows would need, from the largest measured run."""
    largest = max((row for row in runs if row["processes"] == 1), key=lambda row: row["rows"])
    core_ns = largest["epoch_s"] * cores / largest["rows"] * 1e9
    rows, users, items, width = PAPER["rows"], PAPER["users"], PAPER["items"], PAPER["dim"] + 1
    log, model = rows * 24 / 2**30, users * width * 4 * 2 * 5 / 2**30
    shared = items * width * 4 * 2 * 5 / 2**30
    nodes = int(-(-(log + model) // (NODE["memory_gib"] * 0.7)))
    seconds = rows * core_ns / 1e9 / (nodes * NODE["cores"])
    message = 2 * 2 * items * width * 4 / (NODE["network_gb_s"] * 1e9)
    return f"""## Ten billion rows, a hundred million users, on paper

From {core_ns:.0f} core-nanoseconds per row and epoch, measured at
{largest["rows"] / 1e6:.0f} M rows, for 1 M items and dim 32:

* the log: 24 bytes a row (item, target, two bounds, its transpose), {log:,.0f} GiB, cut among machines by user;
* users: two models, each with weights, gradient, two moments and the best epoch, {model:,.0f} GiB, cut likewise;
* items: the same, {shared:.1f} GiB, on every process;
* so {nodes} machines of {NODE["cores"]} cores and {NODE["memory_gib"]} GiB hold it, with a third to spare;
* an epoch takes about {seconds:.0f} s of arithmetic if cores scale as here, and {message:.2f} s for the items'
  gradients (two steps, each sent and received once at {NODE["network_gb_s"]:g} GB/s);
* or one machine from disk: 130 GB of sorted columns, read twice per epoch.

What would have to change first: finished stages and the final model are gathered on every process
({users * width * 4 / 2**30:.0f} GiB per model).
"""


INTRO = """# Scaling

Made by `python bench/scaling.py measure`, `python bench/scaling.py disk` and `python bench/scaling.py page`.

An epoch is a step of φ, exact over all users × items, and a step of θ over the log (RD-DR, Γ = 2, MF, dim 32), by the
trainer that `puid train` uses. Logs are drawn with skewed activity and popularity.
"""

HOW = """## Several processes

    torchrun --nproc-per-node 2 -m puidrec.cli.main train --data coat --data-dir coat --method puid-dr --out runs/two

Users are cut among processes at equal numbers of rows. A process holds the parameters and Adam's moments of its own
users, and a copy of the items'. The loss of a block of users is the weighted sum of the losses of its pieces, so every
process computes the exact loss of its users against all items, and one sum over processes of the items' gradients
(which contains the sum of the users' Gram matrices) makes the step that a single process would make. The result is
that of one process to 1e-4, for every method, `normalise=true` included; only `sharp-*`, whose loss has a kink at every
pair, was seen 3e-4 apart after 40 epochs. gloo carries it on CPUs, nccl with `--device cuda`.

The first process writes checkpoints and speaks for all. If a process dies, the others end within seconds with one
line; repeat the command, with any number of processes, and the run goes on. Together with `--shards` every process
reads its own users' rows only, once propensities, Γ and noise are known.
"""
