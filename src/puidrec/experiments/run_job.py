"""Run one job: train, choose among trials where it has a budget, look at the test rows once, write the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from puidrec.data.dataset import Dataset
from puidrec.data.split import Split
from puidrec.errors import PuidError, one_line
from puidrec.experiments.job import Job, Result, ResultFolder
from puidrec.experiments.run import measure
from puidrec.experiments.search import best, trials
from puidrec.model import Recommender

MAX_MESSAGE = 300


def attempt(plain: Mapping[str, Any], folder: Path) -> str | None:
    """Run a job given as plain values and leave its file; returns what went wrong in one line, or None.

    Every engine comes through here, so that a job sees the same values and one thread wherever it runs.
    """
    try:
        with one_thread():
            run_job(Job.from_plain(plain), ResultFolder(folder))
    except PuidError as error:
        return one_line(str(error))
    except MemoryError:
        return "out of memory"
    except Exception as error:
        return f"internal error ({type(error).__name__}: {one_line(str(error))[:MAX_MESSAGE]})"
    return None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for everything: sums of many threads round differently, and workers would fight for the cores."""
    before = torch.get_num_threads()
    try:
        with threadpool_limits(1):
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class JobData:
    """What the trials of a job share: data, split, and the digest of the data before the mask."""

    data: Dataset
    split: Split
    digest: str

    @classmethod
    def of(cls, job: Job) -> JobData:
        """Load the job's data and divide them by the job's seed."""
        return cls.given(job, job.load(), job.data.load().sha256)

    @classmethod
    def given(cls, job: Job, data: Dataset, digest: str = "") -> JobData:
        """Data in memory, divided by the job's seed."""
        return cls(data, data.split(job.protocol, job.seed, select=job.resolved.select), digest)

    def fit(self, job: Job) -> Recommender:
        """Train the settings of a job."""
        return Recommender(**job.resolved.model_dump()).fit(self.data, self.split, progress=False)


def run_job(job: Job, files: ResultFolder) -> None:
    """Train the job's settings, or the best of its trials, and write the result.

    Trials are jobs of their own: those that are finished are not trained again, and only the chosen one meets the
    test rows. One that fails (it may diverge) is left out; if all fail, so does the job.
    """
    shared = JobData.of(job)
    candidates = trials(job)
    if not job.measured:
        result = _unmeasured(job, shared.fit(job))
    elif len(candidates) == 1:
        result = measured_job(job, shared)
    else:
        result = _measured(job, *_search(candidates, shared, files))
    files.save(result, shared.digest)


def measured_job(job: Job, shared: JobData) -> Result:
    """Train the settings of a job and look at the test rows."""
    model = shared.fit(job)
    return _measured(job, model, shared, [_unmeasured(job, model)])


def _search(
    candidates: Sequence[Job], shared: JobData, files: ResultFolder
) -> tuple[Recommender, JobData, list[Result]]:
    """Train the trials that are not finished; the model with the best validation score, and all outcomes.

    Only the best model so far is kept; where it was trained before an interruption, it is trained again.
    """
    outcomes: list[Result] = []
    errors: list[PuidError] = []
    kept: tuple[str, Recommender] | None = None
    for trial in candidates:
        outcome = files.load(trial, shared.digest)
        if outcome is None:
            try:
                model = shared.fit(trial)
            except PuidError as error:
                errors.append(error)
                continue
            outcome = _unmeasured(trial, model)
            files.save(outcome, shared.digest)
            if best([*outcomes, outcome]) is outcome:
                kept = (trial.key, model)
        outcomes.append(outcome)
    if not outcomes:
        raise errors[0]
    chosen = best(outcomes).job
    model = kept[1] if kept is not None and kept[0] == chosen.key else shared.fit(chosen)
    return model, shared, outcomes


def _unmeasured(job: Job, model: Recommender) -> Result:
    """What training and validation say; the test rows are not touched."""
    report = dict(model.report_)
    seconds, validation = float(report.pop("seconds")), report.pop("validation", None)
    return Result(job, {}, report, validation, model.settings.model_dump(), {}, seconds)


def _measured(job: Job, model: Recommender, shared: JobData, outcomes: Sequence[Result]) -> Result:
    """The chosen model on the test rows, with what its figures depend on."""
    evaluation, measured = measure(model, shared.split, data=shared.data)
    metrics = {name: measured[name] for name in evaluation if name in measured}
    known = {*metrics, "seconds", "validation", "method", "seed", "protocol"}
    context = {name: value for name, value in measured.items() if name not in known}
    context |= {"trials": len(outcomes), "trials_failed": len(trials(job)) - len(outcomes)}
    seconds = sum(outcome.seconds for outcome in outcomes)
    chosen, settings = measured.get("validation"), model.settings.model_dump()
    return Result(job, metrics, context, chosen, settings, evaluation.per_user, seconds)
