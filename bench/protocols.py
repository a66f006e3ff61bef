"""Figures under the protocols of other papers, with and without data leakage, beside the printed
ones.

    python bench/protocols.py DATA [--seeds 3] [--workers 2] [--out docs/protocols.md]

DATA holds the folders coat, yahoo-r3 and kuairec; those absent are skipped. All methods have their
shipped defaults, which were settled on no test row of these data sets (docs/defaults.md).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from puidrec.atomic import write_text
from puidrec.comparing.job import DataSpec, Job
from puidrec.comparing.run import run_jobs
from puidrec.comparing.summary import (
    NOTES,
    SummaryRow,
    conditions,
    figure,
    grouped,
    interval,
    markdown_table,
    summarise,
)
from puidrec.data.protocol import PROTOCOLS
from puidrec.methods import METHODS

SHOWN = (
    "item-rate",
    "bias",
    "pure-svd",
    "mf",
    "ips",
    "dr",
    "puid-dr",
    "all-rank",
    "ease",
    "signed-rd",
    "spectrum",
)
METRICS = ("uauc", "ndcg@5", "auc", "mse")
SETTINGS = {"solver": "least-squares"}
PUBLISHED = {
    ("coat", "rd"): "AutoDebias AUC .766, NDCG@5 .522; RD's public code UAUC .684, NDCG@5 .509",
    ("yahoo-r3", "rd"): "AutoDebias AUC .741, NDCG@5 .645; RD's public code UAUC .681, NDCG@5 .582",
    ("coat", "cvib"): "D-DR AUC .7804; UPO NDCG@5 .691",
    ("yahoo-r3", "cvib"): "CVIB AUC .7231, NDCG@5 .7133; UPO AUC .717, NDCG@5 .694",
    ("coat", "idcf"): "IViDR NDCG@5 .5903; iDCF NDCG@5 .5638",
    ("yahoo-r3", "idcf"): "IViDR NDCG@5 .6602; iDCF NDCG@5 .6410",
    ("coat", "unlogged"): "iALS UAUC .667, NDCG@5 .581",
    ("yahoo-r3", "unlogged"): "r-AdjNorm UAUC .775, NDCG@5 .674",
    ("kuairec", "big-small"): "NDCG@20 .638, UAUC .802",
}
"""As printed, each under its own protocol; most of them keep uniform rows that repeat logged pairs.
"""
INTRO = """# Protocols of other papers

Made by `python bench/protocols.py DATA --seeds {seeds}`: shipped defaults, least-squares solver, {seeds} seeds.

A figure can be compared with a printed one only under the same protocol:

{protocols}

**Data leakage.** In Coat 366 of the 4,640 uniform rows repeat a logged pair with the same rating. By default they are
dropped; tables marked "kept" have them in, as the printed figures do. The difference is what a model gains by knowing
its log by heart.
"""


def jobs_of(root: Path, seeds: int) -> list[Job]:
    """Every data set that is there, under every protocol that fits it; Coat under rd also with
    repeated pairs kept."""
    methods = [name for name in SHOWN if name in METHODS]
    kinds: list[tuple[DataSpec, str]] = []
    for name in ("coat", "yahoo-r3"):
        if (root / name).is_dir():
            plain = DataSpec(name, root / name)
            kept = DataSpec(
                name, root / name, {"overlap": "keep"}, label=f"{name} (repeated pairs kept)"
            )
            kinds += [
                (plain, "rd"),
                (kept, "rd"),
                (kept, "cvib"),
                (kept, "idcf"),
                (plain, "unlogged"),
            ]
    return [
        Job(spec, name, seed, protocol, METHODS[name].own_settings(SETTINGS))
        for spec, protocol in kinds
        for name in methods
        for seed in range(seeds)
    ]


def table(rows: list[SummaryRow]) -> str:
    """A table of one data set and protocol, with its printed figures."""
    first = rows[0]
    at = {(row.label, row.metric): row for row in rows}
    body = []
    for label in dict.fromkeys(row.label for row in rows):
        cells = [figure(row) if (row := at.get((label, metric))) else "–" for metric in METRICS]
        against = at[label, METRICS[0]]
        difference = (
            "reference"
            if against.is_reference
            else f"{against.difference:+.4f} {interval(against)}"
        )
        body.append([label, *cells, difference])
    printed = PUBLISHED.get((first.data.split(" (")[0], first.protocol))
    note = f"\nPrinted under this protocol: {printed}.\n" if printed else ""
    head = ("method", *METRICS, f"{METRICS[0]} against mf")
    return f"## {first.data}, {first.protocol}\n\nUnder {conditions(rows)}.\n\n{markdown_table(head, body)}\n{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cells", type=Path, default=Path("bench/out/protocols"))
    parser.add_argument("--out", type=Path, default=Path("docs/protocols.md"))
    options = parser.parse_args()
    told = lambda event: print(f"{event.done}/{event.total}", flush=True)  # noqa: E731
    jobs = jobs_of(options.data, options.seeds)
    results = run_jobs(jobs, options.cells, workers=options.workers, progress=told)
    for failure in results.failures:
        print(failure)
    protocols = "\n".join(
        f"* `{protocol.name}`: {protocol.description};" for protocol in PROTOCOLS.values()
    )
    parts = [INTRO.format(seeds=options.seeds, protocols=protocols.removesuffix(";") + ".")]
    parts += [table(rows) for rows in grouped(summarise(results, "mf", METRICS))]
    write_text(options.out, "\n".join([*parts, NOTES + "\n"]))


if __name__ == "__main__":
    main()
