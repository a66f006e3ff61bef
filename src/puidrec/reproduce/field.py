"""Does it help? The field's methods under one protocol, one tuning budget and the same intervals.

Every method × data set × protocol × seed is one job. A job tries as many settings as any other job
of its data set, and validation rows choose. Results stand beside published figures, each of which
has a protocol of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puidrec.comparing.job import DataSpec, Job, Result
from puidrec.comparing.run import Results, claim, run_jobs, write_results
from puidrec.comparing.summary import SummaryRow, summarise
from puidrec.data.protocol import PROTOCOLS
from puidrec.errors import InputError
from puidrec.methods import METHODS, get_method
from puidrec.reproduce.questions import QUICK_EPOCHS

WITHOUT_UNIFORM = (
    "item-rate",
    "bias",
    "all-rank",
    "ease",
    "mf",
    "ips",
    "dr",
    "mrdr",
    "dr-mse",
    "tdr",
    "stable-dr",
    "d-ips",
    "d-dr",
    "ips-v2",
    "dr-v2",
    "kernel-ips",
    "kernel-dr",
    "cvib",
    "dcf",
    "idcf",
    "multi-ips",
    "multi-dr",
    "rd-ips",
    "rd-dr",
    "puid-ips",
    "puid-dr",
)
WITH_UNIFORM = ("auto-debias", "bal-ips", "bal-dr", "res-ips", "res-dr", "signed-rd", "spectrum")
"""Methods that learn from uniform rows also, which the table says."""
WORLDS = ("entity", "pair", "mixed")
WORLD_SIZE = {"n_users": 300, "n_items": 200, "density": 0.05, "n_uniform": 6_000}
PROTOCOLS_OF = {
    "coat": ("rd", "cvib", "idcf"),
    "yahoo-r3": ("rd", "cvib", "idcf"),
    "kuairec": ("rd",),
}
"""On KuaiRec and in simulated worlds all protocols draw the same line, or nearly."""
BUDGET = {"coat": 2, "simulated": 2, "yahoo-r3": 1, "kuairec": 1}
"""Settings tried per method and seed, the shipped ones first; few, so that the whole table ends
within the hour."""
FIELD_METRICS = ("uauc", "ndcg@5", "auc")
REFERENCES = ("mf", "dr")
"""What every method is compared with: nothing at all, and the estimator that most of the field
improves on."""


@dataclass(frozen=True)
class Published:
    """A figure in print: where, under which protocol, and what."""

    data: str
    protocol: str
    method: str
    metric: str
    value: float


PUBLISHED = (
    Published("coat", "rd", "AutoDebias", "auc", 0.766),
    Published("coat", "rd", "AutoDebias", "ndcg@5", 0.522),
    Published("coat", "rd", "RD (public code)", "uauc", 0.684),
    Published("coat", "rd", "RD (public code)", "ndcg@5", 0.509),
    Published("yahoo-r3", "rd", "AutoDebias", "auc", 0.741),
    Published("yahoo-r3", "rd", "AutoDebias", "ndcg@5", 0.645),
    Published("yahoo-r3", "rd", "RD (public code)", "uauc", 0.681),
    Published("yahoo-r3", "rd", "RD (public code)", "ndcg@5", 0.582),
    Published("coat", "cvib", "D-DR", "auc", 0.7804),
    Published("coat", "cvib", "UPO", "ndcg@5", 0.691),
    Published("yahoo-r3", "cvib", "CVIB", "auc", 0.7231),
    Published("yahoo-r3", "cvib", "CVIB", "ndcg@5", 0.7133),
    Published("yahoo-r3", "cvib", "UPO", "auc", 0.717),
    Published("yahoo-r3", "cvib", "UPO", "ndcg@5", 0.694),
    Published("coat", "idcf", "IViDR", "ndcg@5", 0.5903),
    Published("coat", "idcf", "iDCF", "ndcg@5", 0.5638),
    Published("yahoo-r3", "idcf", "IViDR", "ndcg@5", 0.6602),
    Published("yahoo-r3", "idcf", "iDCF", "ndcg@5", 0.6410),
)
PRINTED_GAIN = {
    "mrdr": ("cvib", "+.005 to +.009 AUC, +.004 to +.008 NDCG@5"),
    "dr-mse": ("cvib", "+.009 AUC, +.008 NDCG@5"),
    "stable-dr": ("cvib", "+.011 to +.017 AUC"),
    "tdr": ("cvib", "+.013 AUC, +.016 NDCG@5"),
    "dr-v2": ("cvib", "+.016 AUC, +.016 NDCG@5"),
    "kernel-dr": ("cvib", "+.027 AUC, +.022 NDCG@5"),
    "d-dr": ("cvib", "+.027 AUC, +.025 NDCG@5"),
    "idcf": ("idcf", "+.013 AUC, +.091 NDCG@5 over IPS"),
}
"""Method → the protocol of its paper, and the gain over DR printed for Coat."""


@dataclass(frozen=True)
class FieldSize:
    """How much is run."""

    seeds: int = 5
    quick: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """The rows of the table that this version has."""
        names = (
            ("mf", "dr", "mrdr", "d-dr", "idcf", "bal-dr")
            if self.quick
            else (*WITHOUT_UNIFORM, *WITH_UNIFORM)
        )
        return tuple(name for name in names if name in METHODS)

    def protocols(self, data: str) -> tuple[str, ...]:
        """The protocols of a data set that this version has."""
        found = tuple(name for name in PROTOCOLS_OF[data] if name in PROTOCOLS)
        return found[:1] if self.quick else found


def field_jobs(folders: Mapping[str, Path], size: FieldSize, only: Sequence[str] = ()) -> list[Job]:
    """All jobs, seed by seed, so that an interrupted run has all methods under its first seeds.

    only: names of data sets (`simulated` among them) and of protocols, where not all are wanted.
    """
    known = {
        *PROTOCOLS_OF,
        "simulated",
        *(name for names in PROTOCOLS_OF.values() for name in names),
    }
    if strange := [name for name in only if name not in known]:
        raise InputError(
            "unknown part of field",
            found=strange[0],
            expected=f"some of {', '.join(sorted(known))}",
        )
    wanted = set(only) & {*PROTOCOLS_OF, "simulated"} or {*folders, "simulated"}
    protocols = set(only) - wanted or known
    jobs = []
    for seed in range(size.seeds):
        for name, folder in folders.items():
            if name not in wanted:
                continue
            options = {"rng": seed} if name == "kuairec" else {}
            data = DataSpec(name, folder, options)
            chosen = [protocol for protocol in size.protocols(name) if protocol in protocols]
            jobs += [
                _job(data, method, seed, protocol, size)
                for protocol in chosen
                for method in size.methods
                if can_train(method, protocol)
            ]
        for world in WORLDS[: 1 if size.quick else None] if "simulated" in wanted else ():
            data = DataSpec(
                "simulated",
                None,
                {"world": world, "seed": seed, **WORLD_SIZE},
                label=f"simulated, {world}",
            )
            jobs += [_job(data, method, seed, "rd", size) for method in size.methods]
    return jobs


def can_train(method: str, protocol: str) -> bool:
    """Whether a protocol leaves a method what it needs: some hold out no uniform rows for training."""
    return PROTOCOLS[protocol].propensity_share > 0.0 or not get_method(method).needs_uniform


def _job(data: DataSpec, method: str, seed: int, protocol: str, size: FieldSize) -> Job:
    trains = get_method(method).trains
    limits = {"epochs": QUICK_EPOCHS["coat"], "patience": 0} if size.quick and trains else {}
    budget = 1 if size.quick or not trains else BUDGET[data.name]
    return Job(data, method, seed, protocol, limits, preset="field", budget=budget)


def run_field(
    jobs: Sequence[Job],
    out: Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    tell: Any = None,
) -> dict[str, Any]:
    """Run what is not finished, and write results.json, summary.json and timings.json; returns the
    summary."""
    if not jobs:
        raise InputError(
            "nothing to run",
            found="no data set",
            expected="--data-root with coat, yahoo-r3 or kuairec",
        )
    claim(out)
    say = tell or (lambda *_: None)
    results = run_jobs(
        jobs,
        out,
        engine=engine,
        workers=workers,
        progress=lambda event: say("training", event.done, event.total),
    )
    made = summary(results)
    write_results(out, [result.row() for result in results], made, results)
    return made


def summary(results: Results) -> dict[str, Any]:
    """Rows against each reference, seconds and use of uniform rows by method, jobs that failed:
    plain values."""
    rows = {
        ref: summarise(results, ref, FIELD_METRICS, resample="hierarchical") for ref in REFERENCES
    }
    return {
        "seeds": len({result.job.seed for result in results}),
        "budgets": {
            name: max(r.job.budget for r in results if r.job.data.name == name)
            for name in dict.fromkeys(r.job.data.name for r in results)
        },
        "tables": {ref: [_row(row) for row in found] for ref, found in rows.items()},
        "uniform": _uniform(results),
        "failed": [failure.row() for failure in results.failures],
    }


def seconds_by_method(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean seconds of a job, by data set and method, from the rows of timings.json."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in results:
        found.setdefault(row["data"].split(",")[0], {}).setdefault(row["label"], []).append(
            float(row["seconds"])
        )
    return {
        data: {name: sum(x) / len(x) for name, x in rows.items()} for data, rows in found.items()
    }


def _uniform(results: Sequence[Result]) -> dict[str, str]:
    """What uniform rows were used for, by method, as its reports say; how many differs from job to
    job."""
    return {
        r.job.name: re.sub(r" \([\d,]+ rows\)$", "", r.context.get("uniform_rows_used", "none"))
        for r in results
    }


def _row(row: SummaryRow) -> dict[str, Any]:
    return row.plain()
