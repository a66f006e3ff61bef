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
        "How close is an epoch to the memory bandwidth of the machine? Copying with a = b + s·c (the triad) over "
        f"600 MB reaches {speed:.1f} GB/s here. The table counts the bytes that an epoch reads and writes if nothing "
        "is ever found in a cache: seven gathered rows of dim + 2 numbers and about forty numbers per logged pair, "
        "and both models with Adam's moments. A share above 100 % means that gathered rows of items come from caches; "
        "a share far below, that something other than memory limits the speed.\n",
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

`puid train --data files --logged LOG --shards DIR` sorts a Parquet log into shards once, and then reads one block of
users at a time. {disk["rows"] / 1e6:.0f} M rows, {disk["users"]:,} × {disk["items"]:,},
dim {disk["dim"]}, with {disk["room_gib"]:g} GiB of memory allowed on top of what the libraries use (`RLIMIT_DATA`):

| sorting | an exact DR epoch | largest memory beyond the libraries |
|---|---|---|
| {disk["sort_s"]:.0f} s | {disk["epoch_s"]:.1f} s | {disk["peak_gib"]:.2f} GiB |

Preparation (propensities, Γ, and the regularisation strength of `l2_vectors=auto`) and the first epoch, which also
writes targets and weights to temporary files (12 bytes a row), took {disk["before_s"]:.0f} s together.

The model equals the one trained in memory to 1e-6, for every method. `puid gamma` takes `--shards` as well. Where
there are no uniform rows, validation and test rows are held out from the log (at most a million of each, as in
memory); these, and rows that the protocol drops, are marked by one bit per row. Two things are refused with a
one-line error: repeated pairs, and propensities that come with the log.
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

* the log: 24 bytes a row (item, target, two bounds, transpose), {log:,.0f} GiB, divided among machines by user;
* users: two models, each with weights, gradient, two moments and the best epoch, {model:,.0f} GiB, divided likewise;
* items: the same, {shared:.1f} GiB, on every process;
* so {nodes} machines of {NODE["cores"]} cores and {NODE["memory_gib"]} GiB hold it, with a third to spare;
* an epoch takes about {seconds:.0f} s of computation if cores scale as here, and {message:.2f} s for the items'
  gradients (two steps, each sent and received once at {NODE["network_gb_s"]:g} GB/s);
* or one machine from disk: 130 GB of sorted columns, read twice per epoch.

What would have to change first: finished stages and the final model are collected on every process
({users * width * 4 / 2**30:.0f} GiB per model).
"""


INTRO = """# Scaling

Made by `python bench/scaling.py measure`, `python bench/scaling.py disk` and `python bench/scaling.py page`.

An epoch is one step of the prediction model φ, exact over all users × items, and one step of the imputation model θ
over the log (RD-DR, Γ = 2, MF, dim 32), by the code that `puid train` uses. The logs are simulated, with skewed
activity of users and popularity of items.
"""

HOW = """## Several processes

    torchrun --nproc-per-node 2 -m puidrec.cli.main train --data coat --data-dir coat --method puid-dr --out runs/two

Users are divided among the processes so that each has about the same number of rows. A process holds the parameters
and Adam's moments of its own users, and a copy of those of all items. The loss of a block of users is the weighted
sum of the losses of its parts. So each process computes the exact loss of its users against all items; the gradients
of the items (which contain the sum of the users' Gram matrices) are summed over processes, and every process makes
the step that a single process would make. The result equals that of one process to 1e-4, for every method,
`normalise=true` included.
Processes communicate by gloo on CPUs and by nccl with `--device cuda`.

The first process writes checkpoints and prints. If a process dies, the others end within seconds with a one-line
error; repeat the command, with any number of processes, to resume. Together with `--shards`, each process reads only
the rows of its own users, once propensities, Γ and the regularisation strength are known.
"""
