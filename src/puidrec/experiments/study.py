"""A study: many jobs, run wherever an engine runs them, finished ones never again, and the files it leaves.

OUT/cells holds one file per finished job, named by what decides its result. The same command goes on where it
was interrupted; another command in the same folder has other jobs, and the tables are those of the last command.
Tuning is a study of the trials of one method, ranked by validation rows alone; test rows are never looked at.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.atomic import atomic_files, locked, refuse_overwriting, write_json, write_text
from puidrec.errors import InputError, PuidError
from puidrec.experiments.engines import get_engine
from puidrec.experiments.job import Job, Result, ResultFolder
from puidrec.experiments.run import to_toml
from puidrec.experiments.search import trials
from puidrec.experiments.summary import SummaryRow, markdown, summarise


@dataclass(frozen=True)
class Failure:
    """A job that could not be finished, and why."""

    job: Job
    error: str

    def __str__(self) -> str:
        return f"{self.job.name} on {self.job.data.title}, seed {self.job.seed}: {self.error}"

    def row(self) -> dict[str, Any]:
        """Plain values for files."""
        return {**self.job.names(), "error": self.error}


@dataclass(frozen=True)
class Event:
    """A job has ended, or was found finished."""

    done: int
    total: int
    outcome: Result | Failure
    resumed: bool


Progress = Callable[[Event], None]


class Results(list[Result]):
    """The results in the order of their jobs, and the jobs that failed."""

    def __init__(self, results: Iterable[Result] = (), failures: Sequence[Failure] = ()) -> None:
        super().__init__(results)
        self.failures = list(failures)


def run_study(
    jobs: Iterable[Job],
    out: Path | None = None,
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run every job that is not finished in `out`, and return all results in the order of the jobs.

    A job that fails does not end the study: see `failures` of what is returned. Without `out` nothing is kept.
    workers: processes, by default one per core.
    """
    wanted = [job.check() for job in jobs]
    start = get_engine(engine)
    if workers is not None and workers < 1:
        raise InputError("a study needs a worker", found=workers, expected="at least 1")
    digests = {spec.identity: spec.load().sha256 for spec in {job.data.identity: job.data for job in wanted}.values()}
    distinct: dict[str, Job] = {}
    for job in wanted:
        distinct.setdefault(job.key, job)
    outcomes: dict[str, Result | Failure] = {}

    def note(job: Job, outcome: Result | Failure, resumed: bool) -> None:
        outcomes[job.key] = outcome
        if progress is not None:
            progress(Event(len(outcomes), len(distinct), outcome, resumed))

    with _folder(out) as folder:
        files = ResultFolder(folder)
        for job in distinct.values():
            if (found := files.load(job, digests[job.data.identity])) is not None:
                note(job, found, resumed=True)
        pending = [job for key, job in distinct.items() if key not in outcomes]
        with contextlib.closing(start(pending, folder, workers)) as ended:
            for job, error in ended:  # files are read back, so that fresh and resumed results are equal to the last bit
                found = files.load(job, digests[job.data.identity]) if error is None else None
                message = error or "its file could not be read back, or the data changed while it ran"
                note(job, Failure(job, message) if found is None else found, resumed=False)
    done = [(job, outcomes[job.key]) for job in wanted]
    return Results(
        [replace(outcome, job=job) for job, outcome in done if isinstance(outcome, Result)],
        [Failure(job, outcome.error) for job, outcome in done if isinstance(outcome, Failure)],
    )


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder of the jobs: in `out`, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="puid-study-") as folder:
            yield Path(folder)
        return
    with locked(out):
        claim(out)
        yield out / "cells"


WRITTEN = (
    "results.json", "summary.json", "timings.json", "table.md", "results.md", "field.md", "report.html", "trials.json",
    "best.toml", "entropy", "chart-*.png", "rq[1-4]*.png", "ablation-*.png",
)  # fmt: skip
"""What comparisons, searches and reproductions put beside their jobs."""


def claim(out: Path) -> None:
    """Make sure that results can be written before any work is spent on them."""
    if out.exists() and not out.is_dir():
        raise InputError("results need a folder", file=out, found="a file", hint="Choose another --out.")
    refuse_overwriting(out, WRITTEN, "cells")
    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out / "cells"):
            pass
    except OSError as error:
        raise InputError("cannot write there", file=out, found=error.strerror, hint="Choose another --out.") from error


def write_study(
    out: Path,
    results: Sequence[Result],
    reference: str,
    metrics: Sequence[str],
    rows: Sequence[SummaryRow] | None = None,
) -> Sequence[SummaryRow]:
    """Write results.json, summary.json, table.md and timings.json; returns the rows, made here if not given."""
    failures = getattr(results, "failures", [])
    rows = summarise(results, reference, metrics) if rows is None else rows
    summary = {
        "reference": reference, "metrics": list(metrics), "rows": [row.plain() for row in rows],
        "failed": [failure.row() for failure in failures],
    }  # fmt: skip
    write_results(out, [result.row() for result in results], summary, results)
    write_text(out / "table.md", markdown(rows, metrics, reference, [str(failure) for failure in failures]))
    return rows


def write_results(out: Path, rows: list[dict[str, Any]], summary: dict[str, Any], results: Sequence[Result]) -> None:
    """Write results.json, summary.json and timings.json.

    Only timings.json knows of clocks: the others are the same bytes for the same jobs, whatever ran them.
    """
    write_json(out / "results.json", rows)
    write_json(out / "summary.json", summary)
    seconds = [{**result.job.names(), "seconds": result.seconds} for result in results]
    write_json(out / "timings.json", {"cells": seconds, "seconds": sum(result.seconds for result in results)})


@dataclass(frozen=True)
class Trial:
    """One setting and what the validation rows say of it."""

    number: int
    """0 is the settings as given; the others are drawn."""
    settings: dict[str, Any]
    """In which it departs from the method's defaults."""
    scores: dict[int, float | None]
    """Validation score by seed; a seed that failed is not there, one that nothing validates has None."""
    error: str | None = None
    """Why a seed failed, where one did."""
    not_converged: str | None = None
    """What stopped before its optimum, and what to change."""

    @property
    def score(self) -> float | None:
        """The mean over seeds; None where a seed failed or nothing was validated."""
        values = [value for value in self.scores.values() if value is not None]
        complete = self.error is None and len(values) == len(self.scores)
        return float(np.mean(values)) if complete and values else None

    def plain(self) -> dict[str, Any]:
        """A row of `trials.json`."""
        scores = {str(seed): score for seed, score in self.scores.items()}
        return {
            "trial": self.number, "settings": self.settings, "validation": self.score, "seeds": scores,
            "error": self.error, **({"not_converged": self.not_converged} if self.not_converged else {}),
        }  # fmt: skip


def tune(
    job: Job,
    seeds: Sequence[int],
    out: Path | None = None,
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Trial]:
    """Try `job.budget` settings under every seed; the trials from best to worst.

    The draws are those of the first seed, so that all seeds judge the same settings. Equal scores keep the order of
    the draws: the settings as given come first.
    """
    by_seed = [trials(replace(job, seed=seed), draws_seed=seeds[0]) for seed in seeds]
    done = run_study([t for part in by_seed for t in part], out, engine=engine, workers=workers, progress=progress)
    scores = {result.job.key: result.validation for result in done}
    early = {result.job.key: result.context.get("not_converged") for result in done}
    errors = {failure.job.key: failure.error for failure in done.failures}
    found = []
    for number, same in enumerate(zip(*by_seed, strict=True)):
        settled = {trial.seed: scores[trial.key] for trial in same if trial.key in scores}
        error = next((errors[trial.key] for trial in same if trial.key in errors), None)
        unfinished = next((early[trial.key] for trial in same if early.get(trial.key)), None)
        found.append(Trial(number, dict(same[0].settings), settled, error, unfinished))
    if all(trial.error is not None for trial in found):
        raise PuidError(f"every trial of {job.method} failed; the first: {found[0].error}")
    return sorted(found, key=lambda trial: (trial.error is not None, -np.inf if trial.score is None else -trial.score))


def write_tuning(out: Path, job: Job, ranked: Sequence[Trial]) -> None:
    """Write trials.json, and best.toml, which `puid train -c` takes as it is; both or neither."""
    chosen = {"method": job.method, "protocol": job.protocol, **ranked[0].settings}
    with locked(out), atomic_files(out) as stage:
        write_json(stage / "trials.json", [trial.plain() for trial in ranked])
        write_text(stage / "best.toml", to_toml(chosen))
