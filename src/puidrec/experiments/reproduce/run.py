"""Run the paper's questions again: plan, run what is not finished, and put all results into two files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from puidrec.atomic import write_json
from puidrec.errors import InputError
from puidrec.experiments.cells import Cell, Result
from puidrec.experiments.engines import get_engine
from puidrec.experiments.reproduce.ablation import ablation_cells
from puidrec.experiments.reproduce.contrasts import REFERENCE, contrast_rows, limit_rows, table_rows
from puidrec.experiments.reproduce.entropy_runs import DATA as ENTROPY_DATA
from puidrec.experiments.reproduce.entropy_runs import entropy_tasks, run_entropies
from puidrec.experiments.reproduce.entropy_summary import summarise_rq3, summarise_rq4
from puidrec.experiments.reproduce.facts import fact_rows
from puidrec.experiments.reproduce.plan import Folders, Plan, Planned, estimated_seconds
from puidrec.experiments.reproduce.presets import DATA, PRESETS
from puidrec.experiments.reproduce.rq1 import rq1_cells
from puidrec.experiments.reproduce.rq2 import rq2_cells
from puidrec.experiments.reproduce.sources import Found, find_sources
from puidrec.experiments.study import Results, claim, cores, run_study

TRAINED: dict[str, Callable[[Folders, Plan], Planned]] = {
    "rq1": rq1_cells, "rq2": rq2_cells, "ablation": ablation_cells,
}  # fmt: skip
QUESTIONS: dict[str, tuple[str, ...]] = {
    "rq1": DATA, "rq2": DATA, "rq3": (ENTROPY_DATA,), "rq4": (ENTROPY_DATA,), "ablation": ("coat",),
}  # fmt: skip
"""Question → the data sets it is asked of."""
LARGE_FIRST = ("kuairec", "yahoo-r3", "coat")

Tell = Callable[[str, int, int], None]
"""Called with what is under way, and how many steps of how many are done."""


@dataclass(frozen=True)
class Work:
    """All that a command is going to do."""

    questions: tuple[str, ...]
    found: Found
    plan: Plan
    planned: tuple[Planned, ...]
    workers: int

    @property
    def cells(self) -> list[Cell]:
        """Cells of all questions, the large data sets first, so that no worker is left with a long one at the end."""
        cells = [cell for planned in self.planned for cell in planned.cells]
        return sorted(cells, key=lambda cell: (LARGE_FIRST.index(cell.data.name), cell.preset, cell.seed))

    @property
    def seconds(self) -> float:
        """A rough guess of the time that training takes."""
        return estimated_seconds(self.cells, self.workers)


def plan_work(
    questions: Sequence[str], root: Path, plan: Plan, workers: int | None = None, device: str = "cpu"
) -> Work:
    """Look at what is asked for and what is there, before anything is run."""
    chosen = tuple(QUESTIONS) if "all" in questions else tuple(dict.fromkeys(questions))
    unknown = [name for name in chosen if name not in QUESTIONS]
    if unknown:
        raise InputError("unknown question", found=unknown[0], expected=f"one of {', '.join(QUESTIONS)}, all")
    if plan.seeds < 1:
        raise InputError("no seed", found=plan.seeds, expected="--seeds of at least 1")
    if workers is not None and workers < 1:
        raise InputError("no worker", found=workers, expected="--workers of at least 1")
    wanted = tuple(dict.fromkeys(data for name in chosen for data in QUESTIONS[name]))
    found = find_sources(root).only(wanted)
    if not found.folders:
        raise InputError(
            "none of the data sets is here", file=root, expected=f"folders {', '.join(wanted)}",
            hint=next(iter(found.missing.values())),
        )  # fmt: skip
    planned = tuple(_on(device, TRAINED[name](found.folders, plan)) for name in chosen if name in TRAINED)
    return Work(chosen, found, plan, planned, workers or cores())


def _on(device: str, planned: Planned) -> Planned:
    """The same cells, trained on a device."""
    if device == "cpu":
        return planned
    return replace(planned, cells=tuple(replace(c, settings={**c.settings, "device": device}) for c in planned.cells))


@dataclass(frozen=True)
class Reproduction:
    """What came out: the rows of results.json and the content of summary.json, both plain values."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]


def reproduce(work: Work, out: Path, *, engine: str = "local", tell: Tell | None = None) -> Reproduction:
    """Run what is not finished, and write results.json, summary.json and timings.json."""
    say = tell or (lambda *_: None)
    get_engine(engine)
    claim(out)
    results = run_study(
        work.cells, out, engine=engine, workers=work.workers,
        progress=lambda event: say("training", event.done, event.total),
    )  # fmt: skip
    by_question = _by_question(work, results)
    entropies: list[dict[str, Any]] = []
    if ENTROPY_DATA in work.found.folders:
        folder = work.found.folders[ENTROPY_DATA]
        tasks = entropy_tasks(work.questions, folder, work.plan.seeds, quick=work.plan.quick)
        entropies = run_entropies(tasks, out, work.workers, say)
    facts: list[dict[str, Any]] = []
    for k, (name, folder) in enumerate(work.found.folders.items()):
        say(f"facts about {name}", k, len(work.found.folders))
        facts += fact_rows(name, folder, 20 if work.plan.quick else 100)
    rows = [{"experiment": q, **result.row()} for q, part in by_question.items() for result in part]
    made = Reproduction([*rows, *entropies, *facts], _summary(work, results, by_question, entropies, facts))
    _write(out, made, results)
    return made


def _by_question(work: Work, results: Results) -> dict[str, list[Result]]:
    """Results in the order in which each question lists its cells."""
    done = {(r.cell.key, r.cell.name, r.cell.preset): r for r in results}
    keys = {p.experiment: [(c.key, c.name, c.preset) for c in p.cells] for p in work.planned}
    return {question: [done[key] for key in wanted if key in done] for question, wanted in keys.items()}


def _summary(
    work: Work, results: Results, by_question: dict[str, list[Result]], entropies: list[Any], facts: list[Any]
) -> dict[str, Any]:
    return {
        "questions": list(work.questions), "seeds": work.plan.seeds, "quick": work.plan.quick, "reference": REFERENCE,
        "presets": {preset.name: preset.words for preset in PRESETS.values()},
        "tables": [row for question, part in by_question.items() for row in table_rows(question, part)],
        "contrasts": [row for q, part in by_question.items() if q != "rq2" for row in contrast_rows(q, part)],
        "limits": limit_rows([result for part in by_question.values() for result in part]),
        "rq3": summarise_rq3(entropies), "rq4": summarise_rq4(entropies), "facts": facts,
        "skipped": list(work.found.missing.values()),
        "notes": {planned.experiment: list(planned.notes) for planned in work.planned},
        "failed": [{**failure.cell.names(), "error": failure.error} for failure in results.failures],
    }  # fmt: skip


def _write(out: Path, made: Reproduction, results: Results) -> None:
    write_json(out / "results.json", made.rows)
    write_json(out / "summary.json", made.summary)
    seconds = [{**result.cell.names(), "seconds": result.seconds} for result in results]
    write_json(out / "timings.json", {"cells": seconds, "seconds": sum(result.seconds for result in results)})
