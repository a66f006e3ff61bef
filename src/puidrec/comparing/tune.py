"""`tune`: settings of one method, ranked by validation rows alone; test rows are never looked at.

Trial 0 is the settings as given. The others are drawn at random, or proposed by a sampler of
Optuna, whose pruner may end a trial after some of its seeds. Every trial under every seed is one
job of `run_jobs`, so that finished ones are never trained again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from puidrec.atomic import atomic_files, locked, write_json, write_text
from puidrec.comparing.job import DataSpec, Job, Parameter, searched, trials
from puidrec.comparing.run import Event, Progress, claim, run_jobs
from puidrec.data.dataset import Dataset
from puidrec.errors import InputError, PuidError
from puidrec.methods import get_method, require_levels
from puidrec.run_folder import to_toml

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna.study import Study
    from optuna.trial import Trial as OptunaTrial

SAMPLERS = ("auto", "random", "tpe")
TOGETHER = 8
"""Trials that Optuna proposes before it hears of any: the same search whatever the workers."""


@dataclass(frozen=True)
class Trial:
    """One setting and what the validation rows say of it."""

    number: int
    """0 is the settings as given; the others are drawn."""
    settings: dict[str, Any]
    """In which it departs from the method's defaults."""
    scores: dict[int, float | None]
    """Validation score by seed; a seed that failed is not there, an unvalidated one has None."""
    error: str | None = None
    """Why a seed failed, where one did."""
    not_converged: str | None = None
    """What stopped before its optimum, and what to change."""
    pruned: bool = False
    """Whether it was given up before its last seed."""

    @property
    def score(self) -> float | None:
        """The mean over seeds; None where it was not judged under all of them."""
        values = [value for value in self.scores.values() if value is not None]
        complete = self.error is None and not self.pruned and len(values) == len(self.scores)
        return float(np.mean(values)) if complete and values else None

    def plain(self) -> dict[str, Any]:
        """A row of `trials.json`."""
        row = {
            "trial": self.number,
            "settings": self.settings,
            "validation": self.score,
            "seeds": {str(seed): score for seed, score in self.scores.items()},
            "error": self.error,
        }
        more = {"not_converged": self.not_converged, "pruned": self.pruned}
        return row | {name: value for name, value in more.items() if value}


@dataclass(frozen=True)
class Tuning:
    """The trials from best to worst; equal scores keep the order of the draws."""

    job: Job
    trials: tuple[Trial, ...]
    searched: tuple[str, ...]
    """Names of the settings that were varied."""
    sampler: str
    metric: str | None
    """What validation rows were judged by; higher is better. None where nothing was validated."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the best trial, with its method: `Recommender(**tuning.settings)`."""

    def __repr__(self) -> str:
        by = f"validation {self.metric}" if self.metric else "nothing: no validation rows"
        chosen = ", ".join(f"{k} = {v}" for k, v in self.trials[0].settings.items()) or "defaults"
        return f"{self.job.method}: {len(self.trials)} trials ({self.sampler}), by {by}: {chosen}"

    def to_frame(self) -> pl.DataFrame:
        """A row per trial, from best to worst: its number, score and searched settings."""
        known = self.job.resolved
        rows = [
            {
                "trial": trial.number,
                "validation": trial.score,
                **{k: str(trial.settings.get(k, getattr(known, k))) for k in self.searched},
            }
            for trial in self.trials
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def curve(self) -> list[tuple[int, float]]:
        """The best score after each trial, in the order in which they were tried."""
        found, best = [], -np.inf
        for trial in sorted(self.trials, key=lambda trial: trial.number):
            best = max(best, -np.inf if trial.score is None else trial.score)
            if np.isfinite(best):
                found.append((trial.number, float(best)))
        return found

    def plot(self) -> Figure:
        """The score of each trial, and the best so far."""
        from puidrec.report.study import search_chart

        return search_chart(self)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write trials.json, best.toml (for `puid train -c`) and the curve; all or none."""
        from puidrec.report.charts import save_png

        out = Path(folder)
        chosen = {"method": self.job.method, "protocol": self.job.protocol}
        with locked(out):
            claim(out)
            with atomic_files(out) as stage:
                write_json(stage / "trials.json", [trial.plain() for trial in self.trials])
                write_text(stage / "best.toml", to_toml({**chosen, **self.trials[0].settings}))
                if len(self.curve()) > 1:
                    save_png(self.plot(), stage / "chart-search.png")


def tune(
    data: Dataset,
    method: str = "spectrum",
    *,
    budget: int = 20,
    seeds: int | Sequence[int] = 1,
    protocol: str = "rd",
    sampler: str = "auto",
    study: Study | None = None,
    folder: str | PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Tuning:
    """Try `budget` settings of a method under every seed; validation rows rank them.

    sampler: `random`, `tpe` (Optuna's), or `auto`: `tpe` where Optuna is installed. study: an
    Optuna study of direction maximize, with a sampler and pruner of its own. folder: finished
    trials are kept there and never trained again. settings: stay as they are given.
    """
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise InputError("a search needs a seed", found=seeds, expected="seeds=1 or more")
    spec = get_method(method)
    job = Job(DataSpec.of(data), spec.name, numbers[0], protocol, settings, budget=budget)
    out = None if folder is None else Path(folder)
    return tune_job(
        job,
        numbers,
        out,
        data=data,
        sampler=sampler,
        study=study,
        workers=workers,
        progress=progress,
    )


def tune_job(
    job: Job,
    seeds: Sequence[int],
    out: Path | None = None,
    *,
    data: Dataset | None = None,
    sampler: str = "random",
    study: Study | None = None,
    engine: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """`tune` for a job whose data may have to be loaded; `seeds` take the place of its own."""
    job.check()
    loaded = job.data.load() if data is None else data
    likes = loaded.positives_only
    if likes:
        require_levels(get_method(job.method), loaded.scale.high)
    loaded.split(job.protocol, job.seed)  # what it refuses or warns of is said here, once
    name = "given study" if study is not None else _sampler(sampler)
    where = {"out": out, "data": data, "engine": engine, "workers": workers, "progress": progress}
    judge, space = _Judge(job, seeds, where), searched(job, likes=likes)
    if name == "random" or not space or job.budget == 1:
        judge.judge([dict(trial.settings) for trial in trials(job, seeds[0], likes=likes)])
    else:
        judge.judge([dict(job.settings)])
        _propose(judge, space, _study(seeds[0]) if study is None else study)
    found = judge.trials
    if all(trial.error is not None for trial in found):
        raise PuidError(f"every trial of {job.method} failed; the first: {found[0].error}")
    ranked = sorted(found, key=_rank)
    varied = tuple(dict.fromkeys(p.name for p in space))
    best = {"method": job.method, **ranked[0].settings}
    return Tuning(job, tuple(ranked), varied, name, judge.metric, best)


def _rank(trial: Trial) -> tuple[bool, float]:
    return trial.error is not None or trial.pruned, -np.inf if trial.score is None else -trial.score


class _Judge:
    """Runs trials, and keeps what came out."""

    def __init__(self, job: Job, seeds: Sequence[int], where: dict[str, Any]) -> None:
        self.job, self.seeds, self.where = job, seeds, where
        self.trials: list[Trial] = []
        self.metric: str | None = None
        self.done = 0

    def judge(
        self, settings: Sequence[dict[str, Any]], asked: Sequence[OptunaTrial] = ()
    ) -> list[Trial]:
        """All settings under all seeds; those that a study asked for seed by seed, so that its
        pruner may give a trial up."""
        some = [Trial(len(self.trials) + k, own, {}) for k, own in enumerate(settings)]
        steps = [[seed] for seed in self.seeds] if asked else [self.seeds]
        for step, seeds in enumerate(steps):
            going = [k for k, trial in enumerate(some) if not trial.pruned and trial.error is None]
            for k, trial in zip(going, self._under(seeds, [some[k] for k in going]), strict=True):
                some[k] = trial
                if asked and trial.score is not None:
                    asked[k].report(trial.score, step)
                    last = step == len(steps) - 1
                    some[k] = replace(trial, pruned=not last and bool(asked[k].should_prune()))
        self.trials += some
        return some

    def _under(self, seeds: Sequence[int], some: Sequence[Trial]) -> list[Trial]:
        """The same trials with the scores of further seeds."""
        trial_job = replace(self.job, label=None, budget=1, measured=False)
        jobs = [
            [replace(trial_job, settings=t.settings, seed=seed) for seed in seeds] for t in some
        ]
        every = [job for own in jobs for job in own]
        found = run_jobs(every, **{**self.where, "progress": self._tell})
        self.done += len(seeds) * len(some)
        results = {result.job.key: result for result in found}
        errors = {failure.job.key: failure.error for failure in found.failures}
        judged = []
        for trial, own in zip(some, jobs, strict=True):
            mine = [results[job.key] for job in own if job.key in results]
            self.metric = next(
                (m for r in mine if (m := r.context.get("validation_metric"))), self.metric
            )
            early = next((why for r in mine if (why := r.context.get("not_converged"))), None)
            judged.append(
                replace(
                    trial,
                    scores={**trial.scores, **{r.job.seed: r.validation for r in mine}},
                    error=next((errors[job.key] for job in own if job.key in errors), None),
                    not_converged=trial.not_converged or early,
                )
            )
        return judged

    def _tell(self, event: Event) -> None:
        """Progress of the whole search, whatever part of it is running."""
        if (tell := self.where["progress"]) is not None:
            total = max(self.job.budget * len(self.seeds), self.done + event.total)
            tell(replace(event, done=self.done + event.done, total=total))


# Optuna


def _sampler(name: str) -> str:
    """Which sampler a name means here."""
    if name not in SAMPLERS:
        raise InputError("unknown sampler", found=name, expected=f"one of {', '.join(SAMPLERS)}")
    if name == "random":
        return name
    with contextlib.suppress(ImportError):
        import optuna  # noqa: F401

        return "tpe"
    if name == "auto":
        return "random"
    raise InputError(
        "the sampler tpe needs the package optuna",
        found="not installed",
        hint="pip install 'puidrec[tune]', or take the sampler random.",
    )


def _study(seed: int) -> Study:
    """Tree-structured Parzen estimators; trials below the median of a seed are given up."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed)
    return optuna.create_study(
        direction="maximize", sampler=sampler, pruner=optuna.pruners.MedianPruner()
    )


def _propose(judge: _Judge, space: Sequence[Parameter], study: Study) -> None:
    """Ask for some trials, judge them, and tell."""
    from optuna.trial import TrialState

    if study.direction.name != "MAXIMIZE":
        expected = 'optuna.create_study(direction="maximize")'
        raise InputError(
            "scores are to be maximised", found=study.direction.name, expected=expected
        )
    job = judge.job
    while (left := job.budget - len(judge.trials)) > 0:
        asked = [study.ask() for _ in range(min(TOGETHER, left))]
        drawn = [
            {**job.settings, **{p.name: p.values.suggest(p.name, one) for p in space}}
            for one in asked
        ]
        for one, trial in zip(asked, judge.judge(drawn, asked), strict=True):
            failed = TrialState.PRUNED if trial.pruned else TrialState.FAIL
            study.tell(one, trial.score, state=failed if trial.score is None else None)
