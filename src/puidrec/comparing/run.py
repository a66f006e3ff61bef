"""Run jobs: finished ones never again, the others by joblib, wherever it is told to run them.

`run_jobs` → `finished` (joblib) → `run_one` (train, choose, measure) → `Result.to_text` → a file.
OUT/cells holds one file per finished job, named by what decides its result. The same command goes
on where it was interrupted; another command in the same folder has other jobs.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

import joblib
import torch
from joblib.externals.loky.process_executor import BrokenProcessPool
from joblib.parallel import get_active_backend
from threadpoolctl import threadpool_limits

from puidrec.atomic import locked, refuse_overwriting, write_json
from puidrec.comparing.job import Job, Result, ResultFolder, best, trials
from puidrec.data.dataset import Dataset
from puidrec.data.split import Split
from puidrec.errors import InputError, PuidError, one_line
from puidrec.model import Recommender
from puidrec.run_folder import measure
from puidrec.world import require_device

if TYPE_CHECKING:
    from puidrec.comparing.comparison import Foreign

MAX_MESSAGE = 300
DIED = "its process died; out of memory? Try fewer workers"
ENGINES = ("local", "inline", "ray", "dask")
NOT_RUN = "not run yet"
Data = Mapping[str, Dataset]
"""Data sets in memory, by the identity of their `DataSpec`; all others are loaded where a job runs.
"""
Ended = tuple[Job, str | None, str]
"""A job, what went wrong, and else the text of its result."""


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


def run_jobs(
    jobs: Iterable[Job],
    out: Path | None = None,
    *,
    data: Dataset | None = None,
    engine: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    minutes: float = math.inf,
) -> Results:
    """Run every job that is not finished in `out`, and return all results in the order of the jobs.

    A job that fails does not end the others: see `failures` of what is returned. Without `out`
    nothing is kept. data: what all jobs are about, where it is in memory. engine: a name of
    `ENGINES`; None: as `joblib.parallel_config` says, else in this process. workers: processes.
    minutes: what is not finished by then is left for another time; below 0: all of it.
    """
    end = time.monotonic() + 60.0 * minutes
    wanted = [job.check() for job in jobs]
    require_engine(engine)
    if workers is not None and workers < 1 and workers != -1:
        raise InputError("jobs need a worker", found=workers, expected="at least 1, or -1 for all")
    specs = {job.data.identity: job.data for job in wanted}
    given = {} if data is None else dict.fromkeys(specs, data)
    digest = {name: (spec.load() if data is None else data).sha256 for name, spec in specs.items()}
    distinct: dict[str, Job] = {}
    for job in wanted:
        distinct.setdefault(job.key, job)
    outcomes: dict[str, Result | Failure] = {}

    def note(job: Job, outcome: Result | Failure, resumed: bool) -> None:
        outcomes[job.key] = outcome
        if progress is not None:
            progress(Event(len(outcomes), len(distinct), outcome, resumed))

    with _folder(out) as files:
        for job in distinct.values():
            if not files or not job.kept:
                continue
            if (found := files.load(job, digest[job.data.identity])) is not None:
                note(job, found, resumed=True)
        pending = [job for key, job in distinct.items() if key not in outcomes and minutes >= 0.0]
        with contextlib.closing(finished(pending, given, engine, workers)) as ended:
            for job, error, text in ended:
                # what a file will say, so that fresh and resumed results are equal to the last bit
                result = Result.from_text(text, job, digest[job.data.identity]) if text else None
                if files and job.kept and result is not None:
                    files.save(job, text)
                message = error or "the data changed while it ran"
                note(job, Failure(job, message) if result is None else result, resumed=False)
                if time.monotonic() > end:
                    break
    for key, job in distinct.items():
        outcomes.setdefault(key, Failure(job, NOT_RUN))
    done = [(job, outcomes[job.key]) for job in wanted]
    return Results(
        [replace(outcome, job=job) for job, outcome in done if isinstance(outcome, Result)],
        [Failure(job, outcome.error) for job, outcome in done if isinstance(outcome, Failure)],
    )


# Where jobs run


def require_engine(name: str | None) -> None:
    """Refuse an engine that is unknown or not installed, before any work."""
    if name is not None and name not in ENGINES:
        raise InputError("unknown engine", found=name, expected=f"one of {', '.join(ENGINES)}")
    packages = {"ray": "ray", "dask": "dask[distributed]"}
    try:
        if name == "ray":
            from ray.util.joblib import register_ray

            register_ray()  # type: ignore[no-untyped-call]
        elif name == "dask":
            import distributed  # noqa: F401 (joblib finds it by itself)
    except ImportError as error:
        package = packages[str(name)]
        raise InputError(
            f"the engine {name} needs the package {name}",
            found="not installed",
            hint=f"pip install '{package}'",
        ) from error


def finished(
    jobs: Sequence[Job], data: Data, engine: str | None = None, workers: int | None = None
) -> Generator[Ended, None, None]:
    """Jobs as they end, in any order; closing it stops all work."""
    if engine not in ("ray", "dask"):  # machines of a cluster have devices of their own
        for name in sorted({job.resolved.device for job in jobs}):
            require_device(name)
    with _where(engine, workers):
        left = {job.key: job for job in jobs}
        begun: list[Job] = []
        try:
            with _stopped_at_the_end(_in_pool(jobs, data, begun)) as pool:
                for ended in pool:
                    left.pop(ended[0].key)
                    yield ended
        except PicklingError as error:
            raise InputError(
                "a model cannot be sent to other processes",
                found=one_line(str(error.__cause__ or error))[:MAX_MESSAGE],
                hint="Give a class or a function that makes it, or leave workers out.",
            ) from error
        except BrokenProcessPool:
            # One process died and took the pool along. The jobs that were under way are tried
            # again, each alone, so that one that always dies takes no other with it.
            suspects = {job.key for job in begun} & left.keys()
            innocent = [job for key, job in left.items() if key not in suspects]
            yield from finished(innocent, data, engine, workers)
            for key in suspects:
                if len(jobs) == 1:
                    yield left[key], DIED, ""
                else:
                    yield from finished([left[key]], data, "local", 2)


@contextlib.contextmanager
def _stopped_at_the_end(
    pool: Generator[Ended, None, None],
) -> Iterator[Generator[Ended, None, None]]:
    """Ends jobs under way when nobody waits for them any more, which joblib warns of."""
    try:
        yield pool
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pool.close()


@contextlib.contextmanager
def _where(engine: str | None, workers: int | None) -> Iterator[None]:
    """The joblib backend of an engine; processes that it starts have one thread for each
    library."""
    names = {"local": "loky", "inline": "sequential", "ray": "ray", "dask": "dask"}
    one = {"POLARS_MAX_THREADS": "1"}
    before = {name: os.environ.get(name) for name in one}
    os.environ.update(one)
    if engine is None:
        chosen: Any = {} if workers is None else {"n_jobs": workers}
    else:
        chosen = {"backend": names[engine], "n_jobs": 1 if engine == "inline" else workers or -1}
    if engine == "local":
        chosen |= {"inner_max_num_threads": 1, "idle_worker_timeout": 20}
    try:
        with joblib.parallel_config(**chosen):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _in_pool(jobs: Sequence[Job], data: Data, begun: list[Job]) -> Generator[Ended, None, None]:
    """Hand jobs out one by one; `begun` grows by those that were handed out."""

    def calls(some: Sequence[Job]) -> Iterator[Any]:
        for job in some:
            begun.append(job)
            yield joblib.delayed(run_one)(job, data.get(job.data.identity), os.getpid())

    backend, workers = get_active_backend()
    if backend.supports_return_generator:
        pool = joblib.Parallel(return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1)
        yield from pool(calls(jobs))
        return
    step = 2 * max(1, backend.effective_n_jobs(workers))  # Ray gives lists: some jobs at a time
    for start in range(0, len(jobs), step):
        yield from joblib.Parallel(batch_size=1)(calls(jobs[start : start + step]))


# One job


def run_one(job: Job, data: Dataset | None = None, parent: int | None = None) -> Ended:
    """Run a job with one thread; what went wrong in one line, or the text of its result.

    parent: the process that started this one; both end together, however the first ends.
    """
    _end_with(parent)
    try:
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever made the jobs has heard them once
            whole = job.data.load() if data is None else data
            return job, None, _run(job, JobData.of(job, whole)).to_text(whole.sha256)
    except PuidError as error:
        words = one_line(str(error))
    except MemoryError:
        words = "out of memory"
    except Exception as error:
        whose = "internal error" if job.foreign is None else "it failed"
        words = f"{whose} ({type(error).__name__}: {one_line(str(error))[:MAX_MESSAGE]})"
    return job, words, ""


@cache
def _end_with(parent: int | None) -> None:
    """End this process, in the middle of whatever it does, soon after the one that started it."""
    if parent != os.getppid():  # no worker of this machine
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for everything: sums of many round differently, and workers share the cores."""
    before = torch.get_num_threads()
    try:
        with threadpool_limits(1):
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class JobData:
    """What the trials of a job share: the data with the job's mask, and their split."""

    data: Dataset
    split: Split

    @classmethod
    def of(cls, job: Job, whole: Dataset) -> JobData:
        """Mask and divide the data by the job's seed."""
        data = job.load(whole)
        return cls(data, data.split(job.protocol, job.seed, select=job.resolved.select))

    def fit(self, job: Job) -> Recommender:
        """Train the settings of a job."""
        model = Recommender(**job.resolved.model_dump())
        return model.fit(self.data, self.split, progress=False)


def _run(job: Job, shared: JobData) -> Result:
    """Train the job's settings, or the best of its trials; only the chosen one meets the test rows.

    A trial that fails (it may diverge) is left out; if all fail, so does the job.
    """
    if job.foreign is not None:
        return _foreign(job, job.foreign, shared)
    if not job.measured:
        return _unmeasured(job, shared.fit(job))
    candidates = trials(job, likes=shared.data.positives_only)
    outcomes: list[Result] = []
    errors: list[PuidError] = []
    for trial in candidates:
        try:
            fitted = shared.fit(trial)
        except PuidError as error:
            errors.append(error)
            continue
        outcomes.append(_unmeasured(trial, fitted))
        if best(outcomes) is outcomes[-1]:
            model = fitted
    if not outcomes:
        raise errors[0]
    return _measured(job, model, shared, outcomes, len(errors))


def _foreign(job: Job, foreign: Foreign, shared: JobData) -> Result:
    """The scores of another package's model, fitted anew where it can be, on the test rows."""
    began = time.perf_counter()
    model, metrics = foreign.on(shared.split, job.seed)
    seconds = time.perf_counter() - began
    context = {"note": foreign.note, "refitted": foreign.refitted}
    trained = Result(job, {}, context, None, {}, {}, seconds)
    return _measured(job, model, shared, [trained], 0, metrics)


def _unmeasured(job: Job, model: Recommender) -> Result:
    """What training and validation say; the test rows are not touched."""
    report = dict(model.report_)
    seconds, validation = float(report.pop("seconds")), report.pop("validation", None)
    return Result(job, {}, report, validation, model.settings.model_dump(), {}, seconds)


def _measured(
    job: Job,
    model: Any,
    shared: JobData,
    outcomes: Sequence[Result],
    failed: int,
    names: Sequence[str] | None = None,
) -> Result:
    """The chosen model on the test rows, with what its figures depend on."""
    evaluation, measured = measure(model, shared.split, names, shared.data)
    chosen = best(outcomes)
    measured = {**chosen.context, **measured}
    metrics = {name: measured[name] for name in evaluation if name in measured}
    uniform = measured.pop("uniform_parts", {})
    known = {*metrics, "seconds", "validation", "method", "seed", "protocol"}
    context = {name: value for name, value in measured.items() if name not in known}
    context |= {
        "trials": len(outcomes),
        "trials_failed": failed,
        "new_users": evaluation.n_new_users,
        "uniform_rows_given": _uniform_rows(uniform, shared.split, tuned=len(outcomes) > 1),
    }
    if context.get("refitted") is False:
        context["uniform_rows_given"] = None  # nobody here knows
    seconds = sum(outcome.seconds for outcome in outcomes)
    return Result(
        job,
        metrics,
        context,
        measured.get("validation"),
        chosen.settings,
        evaluation.per_user,
        seconds,
    )


def _uniform_rows(given: Mapping[str, int], split: Split, *, tuned: bool) -> int:
    """How many uniform rows training or the choice among trials was given; rows that calibrate
    are both."""
    if tuned and split.selection == "uniform" and "calibration" not in given:
        given = {**given, "validation": len(split.validation)}
    return sum(given.values())


# Files


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[ResultFolder | None]:
    """The files of the jobs, in `out`."""
    if out is None:
        yield None
        return
    with locked(out):
        claim(out)
        yield ResultFolder(out / "cells")


WRITTEN = (
    "results.json",
    "summary.json",
    "timings.json",
    "table.md",
    "results.md",
    "paper.md",
    "field.md",
    "report.html",
    "trials.json",
    "best.toml",
    "entropy",
    "chart-*.png",
    "rq[1-4]*.png",
    "ablation-*.png",
)
"""What comparisons, searches and reproductions put beside their jobs."""


def claim(out: Path) -> None:
    """Make sure that results can be written before any work is spent on them."""
    if out.exists() and not out.is_dir():
        hint = "Choose another --out."
        raise InputError("results need a folder", file=out, found="a file", hint=hint)
    refuse_overwriting(out, WRITTEN, "cells")
    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out / "cells"):
            pass
    except OSError as error:
        raise InputError(
            "cannot write there", file=out, found=error.strerror, hint="Choose another --out."
        ) from error


def write_results(
    out: Path, rows: list[dict[str, Any]], summary: dict[str, Any], results: Sequence[Result]
) -> None:
    """Write results.json, summary.json and timings.json.

    Only timings.json knows of clocks: the others are the same bytes for the same jobs, whatever ran
    them.
    """
    write_json(out / "results.json", rows)
    write_json(out / "summary.json", summary)
    seconds = [{**result.job.names(), "seconds": result.seconds} for result in results]
    total = sum(result.seconds for result in results)
    write_json(out / "timings.json", {"cells": seconds, "seconds": total})
