"""Run the paper's questions and the field's table again: find the data, run what is not finished
until the time is up, and sum all results up in one small file, which the pages are made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from puidrec.comparing.job import Job, Result
from puidrec.comparing.run import (
    NOT_RUN,
    Results,
    claim,
    require_engine,
    run_jobs,
    write_results,
)
from puidrec.comparing.summary import by_table, summarise
from puidrec.data.sources import load_dataset
from puidrec.data.sources.kuairec import SMALL, SMALL_COMPACT
from puidrec.data.sources.reading import data_folder, has_file
from puidrec.data.sources.yahoo_r3 import WEBSCOPE
from puidrec.errors import InputError
from puidrec.evaluation import evaluate_scores
from puidrec.evaluation.significance import compare, holm
from puidrec.exposure.evidence import Evidence
from puidrec.gamma_study import PAPER_WEIGHTS, printed_equation
from puidrec.reproduce.entropies import DATA as ENTROPY_DATA
from puidrec.reproduce.entropies import RUNS, run_entropies, summarise_rq3, summarise_rq4
from puidrec.reproduce.grids import (
    FIELD_PROTOCOLS,
    GRIDS,
    LABELLED,
    LARGE,
    LETTERS,
    METRICS,
    PAPER,
    jobs_of,
)
from puidrec.rng import generator

Table = dict[str, Any]


@dataclass(frozen=True)
class Public:
    """A public data set: the names its folder may have, the files it is known by, and where it
    comes from."""

    folders: tuple[str, ...]
    files: tuple[str, ...]
    get: str


PUBLIC = {
    "coat": Public(
        ("coat", "Coat"),
        ("train.ascii", "user.txt"),
        "download coat.zip from https://www.cs.cornell.edu/~schnabts/mnar/",
    ),
    "yahoo-r3": Public(
        ("yahoo-r3", "yahoo", "yahooR3", "yahoo_r3"),
        (f"{WEBSCOPE}-train.txt", "user.txt"),
        "ask for R3 at https://webscope.sandbox.yahoo.com/ (free for research)",
    ),
    "kuairec": Public(
        ("kuairec", "KuaiRec"),
        (SMALL, SMALL_COMPACT),
        "download KuaiRec from https://github.com/chongminggao/KuaiRec",
    ),
    "ml-100k": Public(
        ("ml-100k", "ml100k"),
        ("u.data",),
        "download ml-100k.zip from https://grouplens.org/datasets/movielens/100k/",
    ),
}
TABLE_DATA = tuple(name for name in PUBLIC if name in METRICS)
QUESTIONS: dict[str, tuple[str, ...]] = {
    "rq1": TABLE_DATA,
    "rq2": TABLE_DATA,
    "rq3": (ENTROPY_DATA,),
    "rq4": (ENTROPY_DATA,),
    "ablation": ("coat",),
    "field": TABLE_DATA,
}
"""Question → the data sets it is asked of."""
PAPER_QUESTIONS = tuple(QUESTIONS)[:-1]


@dataclass(frozen=True)
class Found:
    """Data sets by name: folders of those that are here, a line for each that is not."""

    folders: dict[str, Path]
    missing: dict[str, str]


def find_sources(root: Path, names: Iterable[str] = PUBLIC) -> Found:
    """Look for public data sets below a folder; one is here if a folder of its name holds one of
    its files."""
    data_folder(root, "data root")
    folders, missing = {}, {}
    for name in names:
        public = PUBLIC[name]
        places = [root / folder for folder in public.folders]
        here = [p for p in places if p.is_dir() and any(has_file(p / f) for f in public.files)]
        if here:
            folders[name] = here[0]
        else:
            wanted = f"no {' or '.join(public.files)} in {places[0]}"
            missing[name] = f"{name} is skipped: {wanted}. To get it, {public.get}."
    return Found(folders, missing)


@dataclass(frozen=True)
class ReproductionPlan:
    """All that a command is going to do."""

    questions: tuple[str, ...]
    found: Found
    seeds: int
    quick: bool
    jobs: Mapping[str, list[Job]]
    """By question."""
    workers: int


def plan_reproduction(
    questions: Sequence[str],
    root: Path,
    seeds: int = 3,
    *,
    quick: bool = False,
    workers: int | None = None,
    device: str = "cpu",
) -> ReproductionPlan:
    """Look at what is asked for and what is there, before anything is run."""
    groups = {"paper": PAPER_QUESTIONS, "all": tuple(QUESTIONS)}
    chosen = tuple(dict.fromkeys(q for name in questions for q in groups.get(name, (name,))))
    if unknown := [name for name in chosen if name not in QUESTIONS]:
        expected = f"one of {', '.join((*QUESTIONS, *groups))}"
        raise InputError("unknown question", found=unknown[0], expected=expected)
    if seeds < 1:
        raise InputError("no seed", found=seeds, expected="--seeds of at least 1")
    if workers is not None and workers < 1:
        raise InputError("no worker", found=workers, expected="--workers of at least 1")
    found = find_sources(root, dict.fromkeys(data for name in chosen for data in QUESTIONS[name]))
    if not found.folders:
        raise InputError(
            "none of the data sets is here",
            file=root,
            expected=f"folders {', '.join(found.missing)}",
            hint=next(iter(found.missing.values())),
        )
    tables = {name: folder for name, folder in found.folders.items() if name in TABLE_DATA}
    jobs = {
        name: jobs_of(name, tables, seeds, quick=quick, device=device)
        for name in chosen
        if name in GRIDS
    }
    return ReproductionPlan(chosen, found, seeds, quick, jobs, workers or joblib.cpu_count())


Tell = Callable[[str, int, int], None]
"""Called with what is under way, and how many steps of how many are done."""


def reproduce(
    plan: ReproductionPlan,
    out: Path,
    *,
    engine: str = "local",
    minutes: float | None = None,
    tell: Tell | None = None,
) -> Table:
    """Run what is not finished, and write results.json, summary.json and timings.json; returns the
    summary. With `minutes` given, what is not finished by then is left for another time."""
    say = tell or (lambda *_: None)
    require_engine(engine)
    claim(out)
    entropies: list[Table] = []
    if {*RUNS} & {*plan.questions} and ENTROPY_DATA in plan.found.folders:
        say("entropies", 0, 1)
        folder = plan.found.folders[ENTROPY_DATA]
        entropies = run_entropies(plan.questions, folder, out, plan.workers, quick=plan.quick)
    # all questions under the first seed, then under the next; what is quick comes first
    jobs = [job for part in plan.jobs.values() for job in part]
    jobs.sort(key=lambda job: (job.seed, job.data.name in LARGE))

    results = run_jobs(
        jobs,
        out,
        engine=engine,
        workers=plan.workers,
        progress=lambda event: say("training", event.done, event.total),
        minutes=math.inf if minutes is None else minutes,
    )
    say("summing up", len(jobs), len(jobs))
    made = _summary(plan, results, entropies)
    write_results(out, [r.row() for r in results] + entropies, made, results)
    return made


def _summary(plan: ReproductionPlan, results: Results, entropies: list[Table]) -> Table:
    """Plain values, rounded: what the pages are made from."""
    done = {(r.job.key, r.job.name, r.job.preset): r for r in results}
    parts = {
        question: [done[key] for job in jobs if (key := (job.key, job.name, job.preset)) in done]
        for question, jobs in plan.jobs.items()
    }
    waiting = [row for row in results.failures if row.error == NOT_RUN]
    summary = {
        "questions": list(plan.questions),
        "seeds": plan.seeds,
        "quick": plan.quick,
        "tables": {question: table_rows(question, part) for question, part in parts.items()},
        "contrasts": [r for q in ("rq1", "ablation") for r in contrast_rows(parts.get(q, []))],
        "rq3": summarise_rq3(entropies),
        "rq4": summarise_rq4(entropies),
        "facts": fact_rows(plan.found.folders) if {*PAPER_QUESTIONS} & {*plan.questions} else [],
        "skipped": list(plan.found.missing.values()),
        "unfinished": len(waiting),
        "failed": [str(failure) for failure in results.failures if failure not in waiting],
    }
    return rounded(summary)


def rounded(value: Any) -> Any:
    """Plain values with numbers to five digits: no page shows more."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def table_rows(question: str, results: Sequence[Result]) -> list[Table]:
    """A row per table, label and metric: mean, half of the interval over users, and the paired
    difference to a reference.

    That is `mf`, and for the field's table `dr` also; series A and B of the ablation have their
    first row.
    """
    if question == "ablation":
        series = {key: [r for r in results if r.job.name[0] == key] for key in LETTERS}
        firsts = [next((r.job.name for r in part), "") for part in series.values()]
        return [
            row
            for part, first in zip(series.values(), firsts, strict=True)
            for row in _rows(part, first, METRICS["coat"])
        ]
    if question != "field":
        by_data = {name: [r for r in results if r.job.data.name == name] for name in METRICS}
        return [row for name, part in by_data.items() for row in _rows(part, "mf", METRICS[name])]
    rows = _rows(results, "mf", ("uauc", "ndcg@5", "auc"))
    to_dr = {(r.data, r.protocol, r.label): r.verdict for r in summarise(results, "dr", ("uauc",))}
    return [{**row, "to_dr": to_dr[row["data"], row["protocol"], row["label"]]} for row in rows]


_KEPT = """
data preset protocol label metric mean n_seeds positive_rate difference difference_low
difference_high verdict uniform_rows
"""


def _rows(results: Sequence[Result], reference: str, metrics: Sequence[str]) -> list[Table]:
    masks = {result.job.data.title: result.job.data for result in results}
    rows = []
    for row in summarise(results, reference, metrics):
        plain, spec = row.plain(), masks[row.data]
        ends = row.user_low, row.user_high
        half = None if None in ends else (ends[1] - ends[0]) / 2  # type: ignore[operator]
        mask = spec.mask[1] if spec.mask else None
        rows.append(
            {
                **{key: plain[key] for key in _KEPT.split()},
                "source": spec.name,
                "mask": mask,
                "half": half,
            }
        )
    return rows


def _pairs(*kinds: tuple[str, str]) -> list[tuple[str, str]]:
    """For IPS and DR."""
    return [(a.format(kind), b.format(kind)) for a, b in kinds for kind in ("ips", "dr")]


KINDS: Mapping[str, Sequence[tuple[str, str]]] = {
    "one": _pairs(("puid-{}", "rd-{}"), ("bpuid-{}", "brd-{}")),
    "random": [
        *_pairs(("puid-{}", "puid-{}, random Γ")),
        ("A1 puid-ips, α = 2, β = 5", "A5 puid-ips, random bounds"),
        ("B1 puid-dr, α = 2, β = 5", "B5 puid-dr, random bounds"),
    ],
    "none": _pairs(("puid-{}", "{}")),
}
"""What a personalised Γ is compared with: one Γ for all pairs, random ones, none."""


def contrast_rows(results: Sequence[Result]) -> list[Table]:
    """Every pair of `KINDS` that the results hold, on the seeds that both have; paired, over users.

    p-values are adjusted for the number of pairs within a kind, table and metric (Holm).
    """
    rows: list[Table] = []
    for (_, preset, protocol), group in by_table(results).items():
        source = next(iter(next(iter(group.values())).values())).job.data.name
        for metric in METRICS[source]:
            for kind, pairs in KINDS.items():
                found = []
                for pair in pairs:
                    a, b = (group.get(label, {}) for label in pair)
                    seeds = sorted(a.keys() & b.keys())
                    if seeds:
                        own = ([x[s].per_user[metric] for s in seeds] for x in (a, b))
                        found.append((pair[0], compare(*own)))
                adjusted = holm(np.array([one.p_value for _, one in found])).tolist()
                rows += [
                    {
                        **asdict(one),
                        "kind": kind,
                        "source": source,
                        "preset": preset,
                        "protocol": protocol,
                        "metric": metric,
                        "method": method,
                        "verdict": one.verdict if p <= 0.05 else "ties",
                    }
                    for (method, one), p in zip(found, adjusted, strict=True)
                ]
    return rows


def fact_rows(folders: Mapping[str, Path]) -> list[Table]:
    """Of each data set with the paper's features: Γ as printed, the share of pairs for which it is
    below 1, ratings per user, and what random orders score under each protocol."""
    rows = []
    for name, folder in folders.items():
        data = load_dataset(name, folder, **PAPER.options.get(name, {}))
        evidence = Evidence.of_rows(data, data.split("rd", 0).train)
        equation = printed_equation(evidence, evidence.gains("plugin", 1, 0), *PAPER_WEIGHTS)
        degrees = evidence.counts.user_degree
        protocols = LABELLED if "cvib" in FIELD_PROTOCOLS.get(name, ()) else ("rd",)
        row = {
            "data": name,
            "gamma": equation.value,
            "below_one": equation.share_below_one,
            "per_user": [int(degrees.min()), int(degrees.max())],
            "chance": {},
        }
        if data.uniform is not None:
            row["chance"] = {p: chance(data.split(p, 0).test, METRICS[name]) for p in protocols}
        rows.append(row)
    return rows


def chance(test: Any, metrics: Sequence[str], draws: int = 3) -> dict[str, float]:
    """The metrics of random scores."""
    found = [
        evaluate_scores(
            test.user, generator(0, "chance", k).random(len(test)), test.label, metrics=metrics
        )
        for k in range(draws)
    ]
    return {metric: float(np.mean([one[metric] for one in found])) for metric in metrics}
