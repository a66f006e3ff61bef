"""Run the paper's questions again: find the data, plan, run what is not finished, put all results
into two files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import joblib

from puidrec.comparing.job import Job, Result
from puidrec.comparing.run import Results, claim, require_engine, run_jobs, write_results
from puidrec.data.sources.kuairec import SMALL, SMALL_COMPACT
from puidrec.data.sources.reading import data_folder, has_file
from puidrec.data.sources.yahoo_r3 import WEBSCOPE
from puidrec.errors import InputError
from puidrec.reproduce.entropies import DATA as ENTROPY_DATA
from puidrec.reproduce.entropies import entropy_tasks, run_entropies, summarise_rq3, summarise_rq4
from puidrec.reproduce.presets import DATA, PRESETS
from puidrec.reproduce.questions import (
    Folders,
    PlannedQuestion,
    RunSize,
    ablation_jobs,
    estimated_seconds,
    rq1_jobs,
    rq2_jobs,
)
from puidrec.reproduce.summary_rows import (
    REFERENCE,
    contrast_rows,
    fact_rows,
    limit_rows,
    table_rows,
)


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
        here = next(
            (p for p in places if p.is_dir() and any(has_file(p / file) for file in public.files)),
            None,
        )
        if here is not None:
            folders[name] = here
        else:
            wanted = " or ".join(public.files)
            missing[name] = (
                f"{name} is skipped: no {wanted} in {places[0]}. To get it, {public.get}."
            )
    return Found(folders, missing)


TRAINED: dict[str, Callable[[Folders, RunSize], PlannedQuestion]] = {
    "rq1": rq1_jobs,
    "rq2": rq2_jobs,
    "ablation": ablation_jobs,
}
QUESTIONS: dict[str, tuple[str, ...]] = {
    "rq1": DATA,
    "rq2": DATA,
    "rq3": (ENTROPY_DATA,),
    "rq4": (ENTROPY_DATA,),
    "ablation": ("coat",),
}
"""Question → the data sets it is asked of."""
LARGE_FIRST = ("kuairec", "yahoo-r3", "coat")

Tell = Callable[[str, int, int], None]
"""Called with what is under way, and how many steps of how many are done."""


@dataclass(frozen=True)
class ReproductionPlan:
    """All that a command is going to do."""

    questions: tuple[str, ...]
    found: Found
    size: RunSize
    planned: tuple[PlannedQuestion, ...]
    workers: int

    @property
    def jobs(self) -> list[Job]:
        """Jobs of all questions, the large data sets first, so that no worker is left with a long
        one at the end."""
        jobs = [job for planned in self.planned for job in planned.jobs]
        return sorted(
            jobs, key=lambda job: (LARGE_FIRST.index(job.data.name), job.preset, job.seed)
        )

    @property
    def seconds(self) -> float:
        """A rough guess of the time that training takes."""
        return estimated_seconds(self.jobs, self.workers)


def plan_reproduction(
    questions: Sequence[str],
    root: Path,
    size: RunSize,
    workers: int | None = None,
    device: str = "cpu",
) -> ReproductionPlan:
    """Look at what is asked for and what is there, before anything is run."""
    chosen = tuple(QUESTIONS) if "all" in questions else tuple(dict.fromkeys(questions))
    unknown = [name for name in chosen if name not in QUESTIONS]
    if unknown:
        raise InputError(
            "unknown question", found=unknown[0], expected=f"one of {', '.join(QUESTIONS)}, all"
        )
    if size.seeds < 1:
        raise InputError("no seed", found=size.seeds, expected="--seeds of at least 1")
    if workers is not None and workers < 1:
        raise InputError("no worker", found=workers, expected="--workers of at least 1")
    wanted = tuple(dict.fromkeys(data for name in chosen for data in QUESTIONS[name]))
    found = find_sources(root, wanted)
    if not found.folders:
        raise InputError(
            "none of the data sets is here",
            file=root,
            expected=f"folders {', '.join(wanted)}",
            hint=next(iter(found.missing.values())),
        )
    planned = tuple(
        _on(device, TRAINED[name](found.folders, size)) for name in chosen if name in TRAINED
    )
    return ReproductionPlan(chosen, found, size, planned, workers or joblib.cpu_count())


def _on(device: str, planned: PlannedQuestion) -> PlannedQuestion:
    """The same jobs, trained on a device."""
    if device == "cpu":
        return planned
    return replace(
        planned,
        jobs=tuple(replace(c, settings={**c.settings, "device": device}) for c in planned.jobs),
    )


@dataclass(frozen=True)
class Reproduction:
    """What came out: the rows of results.json and the content of summary.json, both plain values."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]


def reproduce(
    plan: ReproductionPlan, out: Path, *, engine: str = "local", tell: Tell | None = None
) -> Reproduction:
    """Run what is not finished, and write results.json, summary.json and timings.json."""
    say = tell or (lambda *_: None)
    require_engine(engine)
    claim(out)
    results = run_jobs(
        plan.jobs,
        out,
        engine=engine,
        workers=plan.workers,
        progress=lambda event: say("training", event.done, event.total),
    )
    by_question = _by_question(plan, results)
    entropies: list[dict[str, Any]] = []
    if ENTROPY_DATA in plan.found.folders:
        folder = plan.found.folders[ENTROPY_DATA]
        tasks = entropy_tasks(plan.questions, folder, plan.size.seeds, quick=plan.size.quick)
        entropies = run_entropies(tasks, out, plan.workers, say)
    facts: list[dict[str, Any]] = []
    for k, (name, folder) in enumerate(plan.found.folders.items()):
        say(f"facts about {name}", k, len(plan.found.folders))
        facts += fact_rows(name, folder, 20 if plan.size.quick else 100)
    rows = [{"experiment": q, **result.row()} for q, part in by_question.items() for result in part]
    made = Reproduction(
        [*rows, *entropies, *facts], _summary(plan, results, by_question, entropies, facts)
    )
    write_results(out, made.rows, made.summary, results)
    return made


def _by_question(plan: ReproductionPlan, results: Results) -> dict[str, list[Result]]:
    """Results in the order in which each question lists its jobs."""
    done = {(r.job.key, r.job.name, r.job.preset): r for r in results}
    keys = {p.question: [(c.key, c.name, c.preset) for c in p.jobs] for p in plan.planned}
    return {
        question: [done[key] for key in wanted if key in done] for question, wanted in keys.items()
    }


def _summary(
    plan: ReproductionPlan,
    results: Results,
    by_question: dict[str, list[Result]],
    entropies: list[Any],
    facts: list[Any],
) -> dict[str, Any]:
    return {
        "questions": list(plan.questions),
        "seeds": plan.size.seeds,
        "quick": plan.size.quick,
        "reference": REFERENCE,
        "presets": {preset.name: preset.words for preset in PRESETS.values()},
        "tables": [
            row for question, part in by_question.items() for row in table_rows(question, part)
        ],
        "contrasts": [
            row for q, part in by_question.items() if q != "rq2" for row in contrast_rows(q, part)
        ],
        "limits": limit_rows([result for part in by_question.values() for result in part]),
        "rq3": summarise_rq3(entropies),
        "rq4": summarise_rq4(entropies),
        "facts": facts,
        "skipped": list(plan.found.missing.values()),
        "notes": {planned.question: list(planned.notes) for planned in plan.planned},
        "failed": [failure.row() for failure in results.failures],
    }
