"""One job (a data set, a method, a seed and settings), its result, the file that keeps it, and what
a search varies of it.

A job is plain values, so that it can be named by a hash, sent to another process or machine, and
found again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from puidrec.atomic import plain_json, write_text
from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.data.split import MaskKind, get_protocol
from puidrec.errors import InputError
from puidrec.evaluation.significance import PerUser
from puidrec.methods.table import ALL_PAIRS
from puidrec.rng import generator
from puidrec.run_folder import ENVIRONMENT, METRICS, read_environment
from puidrec.settings import Settings

if TYPE_CHECKING:
    from optuna.trial import Trial as OptunaTrial

    # not at run time: it needs SciPy's optimisers, and `puid train` does not
    from puidrec.comparing.comparison import Foreign

RESULTS_VERSION = 3
"""Raised when the same job would give other figures than before: old results are not taken."""

IN_MEMORY = "in memory"


@dataclass(frozen=True)
class DataSpec:
    """Which data: a source, its folder and options, and the share of the log to hide, drawn with a
    job's seed."""

    name: str
    folder: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    mask: tuple[MaskKind, float] | None = None
    label: str | None = None
    """Name in tables, where two sets of options of one source must be told apart; the source's name
    by default."""

    @property
    def title(self) -> str:
        """The name in tables, with the mask."""
        name = self.label or self.name
        if self.mask is None:
            return name
        kind, ratio = self.mask
        return f"{name}, {ratio:.0%} of {'positive rows' if kind == 'positives' else 'rows'} masked"

    @classmethod
    def of(cls, data: Dataset) -> Self:
        """Of data in memory, which whoever runs the job has to be given."""
        return cls(IN_MEMORY, options={"sha256": data.sha256}, label=data.name)

    @property
    def identity(self) -> str:
        """What is loaded, whatever is masked afterwards and whatever it is called."""
        return _canonical(self.to_source())

    def load(self) -> Dataset:
        """The data set without the mask; the last few stay in the memory of the process."""
        return _load(self.identity)

    def to_source(self) -> dict[str, Any]:
        """What a run folder keeps, to load its data again: plain values, paths absolute."""
        folder = None if self.folder is None else str(Path(self.folder).resolve())
        options = {key: _plain(key, value) for key, value in self.options.items()}
        return {"name": self.name, "folder": folder, "options": options}

    @classmethod
    def from_source(cls, source: Any, file: Path) -> Self:
        """The inverse of `to_source`; `file` is named where it does not hold such values."""
        plain = source if isinstance(source, dict) else {}
        name, folder, options = plain.get("name"), plain.get("folder"), plain.get("options")
        if (
            not isinstance(name, str)
            or not isinstance(folder, str | None)
            or not isinstance(options, dict)
        ):
            raise InputError(
                "not written by puid train", file=file, column="data_source", found=source
            )
        return cls(name, None if folder is None else Path(folder), options)


@dataclass(frozen=True)
class RunData:
    """The data of a run folder: what they were, and where they were loaded from."""

    folder: Path
    name: str
    sha256: str
    protocol: str
    source: DataSpec | None
    """None where the run was not trained by a command, or by one that kept no record."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """What `environment.json` says."""
        found = read_environment(folder, "data_sha256", "protocol", "seed")
        source = found.get("data_source")
        if source is not None:
            source = DataSpec.from_source(source, folder / ENVIRONMENT)
        return cls(
            folder,
            str(found.get("data")),
            str(found["data_sha256"]),
            str(found["protocol"]),
            source,
        )

    def require(self, data: Dataset) -> None:
        """Refuse data whose content is not that of the run."""
        if data.sha256 != self.sha256:
            raise InputError(
                "these are not the data that the run was trained on",
                file=self.folder,
                found=f"{data.name}, sha256 {data.sha256[:12]}",
                expected=f"{self.name}, sha256 {self.sha256[:12]}",
                hint="Leave out --data to take the run's own, or insist with --other-data.",
            )


@dataclass(frozen=True)
class Job:
    """One figure of a table before it is averaged: a method on a data set under one seed."""

    data: DataSpec
    method: str
    seed: int = 0
    protocol: str = "rd"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that depart from the method's defaults; a search leaves them alone."""
    label: str | None = None
    """Name in tables; the method by default."""
    preset: str = "own"
    budget: int = 1
    """Settings tried: the given ones, and budget − 1 drawn at random; the validation rows choose.
    """
    measured: bool = True
    """Whether the test rows are looked at; a trial of a search is not measured."""
    foreign: Foreign | None = None
    """What is scored in place of a method of this package; `method` is then only its name."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.label or self.method

    def names(self) -> dict[str, Any]:
        """What tells the job from the others of its study, for rows of files."""
        mask = self.data.mask
        return {
            "data": self.data.label or self.data.name,
            "mask": None if mask is None else list(mask),
            "method": self.method,
            "label": self.name,
            "preset": self.preset,
            "protocol": self.protocol,
            "seed": self.seed,
        }

    @cached_property
    def resolved(self) -> Settings:
        """All settings, checked."""
        if "seed" in self.settings or "method" in self.settings:
            raise InputError(
                "seed and method belong to the job",
                found="a setting",
                hint="Give them by themselves.",
            )
        # of the settings, a foreign model has `select` alone, which its split is made by
        method = self.method if self.foreign is None else "mf"
        return Settings.of(method, **self.settings, seed=self.seed)

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the result. Names in tables do not: the same job is run
        once."""
        protocol = get_protocol(self.protocol)
        content = {
            "version": RESULTS_VERSION,
            "data": {**self.data.to_source(), "mask": self.data.mask, "label": None},
            "settings": self.resolved.model_dump(),
            "protocol": [protocol.name, protocol.version],
            "fixed": sorted(self.settings) if self.budget > 1 else [],
            "budget": self.budget,
            "metrics": list(METRICS) if self.measured else [],
        }
        if self.foreign is not None:
            content["metrics"] = list(self.foreign.metrics)
            content["foreign"] = self.foreign.content or ["not kept", self.method]
        return hashlib.sha256(_canonical(content).encode()).hexdigest()[:24]

    @property
    def kept(self) -> bool:
        """Whether `key` says all that decides the result, so that a file may keep it."""
        return self.foreign is None or self.foreign.content is not None

    def check(self) -> Self:
        """Refuse what could not be run, before anything runs."""
        if not isinstance(self.budget, int) or self.budget < 1:
            raise InputError(
                "a budget is at least one setting",
                found=self.budget,
                expected="a whole number from 1",
            )
        if self.data.mask is not None and not 0.0 <= self.data.mask[1] < 1.0:
            raise InputError(
                "mask ratio out of range", found=self.data.mask[1], expected="0 <= ratio < 1"
            )
        _ = self.key
        return self

    def load(self, given: Dataset | None = None) -> Dataset:
        """The job's data, loaded unless given, with the job's own mask."""
        data = self.data.load() if given is None else given
        if self.data.mask is None:
            return data
        kind, ratio = self.data.mask
        return data.masked(ratio, kind, rng=self.seed, protocol=self.protocol)


@dataclass(frozen=True)
class Result:
    """What came out of a job."""

    job: Job
    metrics: dict[str, float]
    """On the test rows; empty for a trial of a search."""
    context: dict[str, Any]
    """What the metrics depend on: positive rate, test rows, what uniform rows were used for, …"""
    validation: float | None
    """Validation score of the chosen epoch and setting; None where nothing was validated."""
    settings: dict[str, Any]
    """The settings chosen, all of them."""
    per_user: Mapping[str, PerUser] = field(repr=False)
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """The row of `results.json`: no clock in it, so that equal seeds give equal bytes."""
        chosen = {
            "budget": self.job.budget,
            "validation": self.validation,
            "settings": self.settings,
        }
        return {**self.context, **chosen, **self.metrics, **self.job.names()}

    def to_text(self, digest: str) -> str:
        """The content of its file, JSON; `digest` is that of the data it was made from."""
        users = {
            name: {
                "users": values.users.tolist(),
                "values": values.values.tolist(),
                "size": None if values.size is None else values.size.tolist(),
            }
            for name, values in self.per_user.items()
        }
        plain = {name: getattr(self, name) for name in FIGURES}
        names = {"kind": KIND, "key": self.job.key, "data_sha256": digest}
        content = plain_json({**names, **plain, "per_user": users})
        return _canonical({"result": content, "sha256": _checksum(content)}) + "\n"

    @classmethod
    def from_text(cls, text: str, job: Job, digest: str) -> Self | None:
        """The inverse; None for a damaged text, or that of another job or of other data."""
        try:
            whole = json.loads(text)
            state = whole["result"]
            named = (state["kind"], state["key"], state["data_sha256"])
            if _checksum(state) != whole["sha256"] or named != (KIND, job.key, digest):
                return None
        except (ValueError, KeyError, TypeError):
            return None
        per_user = {name: _per_user(values) for name, values in state["per_user"].items()}
        return cls(job, per_user=per_user, **{name: state[name] for name in FIGURES})


def _checksum(content: Any) -> str:
    return hashlib.sha256(_canonical(content).encode("utf-8", "replace")).hexdigest()


def _per_user(values: Mapping[str, Any]) -> PerUser:
    users, size = values["users"], values["size"]
    kind = object if any(isinstance(user, str) for user in users) else np.int64
    sizes = None if size is None else np.array(size, np.float64)
    return PerUser(np.array(users, kind), np.array(values["values"], np.float64), sizes)


KIND = "puidrec-job-1"
"""What the file of a result calls itself, with the version of its format."""
FIGURES = ("metrics", "context", "validation", "settings", "seconds")
"""What of a result is plain already."""


@dataclass(frozen=True)
class ResultFolder:
    """Files of finished jobs: written whole or not at all, read only if undamaged and of the
    data."""

    folder: Path

    def path(self, job: Job) -> Path:
        """The file of a job."""
        return self.folder / f"{job.key}.json"

    def save(self, job: Job, text: str) -> None:
        """Keep what `Result.to_text` made."""
        write_text(self.path(job), text)

    def load(self, job: Job, digest: str) -> Result | None:
        """A finished job; None where there is none, or where the file cannot be taken."""
        try:
            text = self.path(job).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        return Result.from_text(text, job, digest)


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=2)
def _load(canonical: str) -> Dataset:
    source = json.loads(canonical)
    folder = source["folder"]
    return load_dataset(source["name"], folder and Path(folder), **source["options"])


def _plain(key: str, value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, Path):
        return str(value.resolve())
    if isinstance(value, list | tuple):
        return [_plain(key, part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(key, part) for name, part in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise InputError(
        f"option {key} is no plain value",
        found=value,
        expected="text, a number, true, false, a list or a table",
    )


# What a search varies: one space for every method, and only what the fit would read. Draw 0 is the
# settings as given; draw k of a setting depends on (seed, setting, k) and on no method, so that
# methods which share a setting try the same values of it.


@dataclass(frozen=True)
class Range:
    """Numbers of even chance per factor, to three digits, so that a setting can be read and
    typed."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """A random number."""
        return self._rounded(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def suggest(self, name: str, trial: OptunaTrial) -> float:
        """What a sampler of Optuna proposes."""
        return self._rounded(trial.suggest_float(name, self.low, self.high, log=True))

    def _rounded(self, value: float) -> float:
        return float(f"{value:.3g}")


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """A random value."""
        return self.values[int(rng.integers(len(self.values)))]

    def suggest(self, name: str, trial: OptunaTrial) -> Any:
        """What a sampler of Optuna proposes."""
        return trial.suggest_categorical(name, self.values)


@dataclass(frozen=True)
class Parameter:
    """A setting that is searched: its values, and for which settings it means anything."""

    name: str
    values: Range | OneOf
    applies: Callable[[Settings], bool] = lambda settings: True


def trained_by_adam(settings: Settings) -> bool:
    """Whether Adam trains: the step size means nothing to least squares."""
    unsolvable = settings.normalise or (
        settings.spec.imputes and (settings.head != "label" or settings.loss != "squared")
    )
    alone = str(settings.spec.build).startswith(ALL_PAIRS)
    return alone or unsolvable or not settings.is_linear


def chosen_by_the_fit(settings: Settings, name: str, likes: bool) -> bool:
    """Whether the fit chooses dim or L2 itself, by held-out logged rows."""
    walks = settings.spec.trains and settings.backbone in ("mf", "mf-linear") and not likes
    return walks and getattr(settings, name) == "auto"


SPACE = (
    Parameter("l2", Range(0.02, 0.5)),
    Parameter("l2_features", Range(0.003, 0.15), lambda s: s.backbone != "mf"),
    Parameter("dim", OneOf((8, 16, 32))),
    Parameter("hidden", OneOf((32, 64, 128)), lambda s: s.backbone == "mf-mlp"),
    Parameter("lr", Range(0.005, 0.04), trained_by_adam),
    Parameter("min_propensity", Range(0.003, 0.1), lambda s: s.spec.weighs_rows(s)),
    Parameter(
        "gamma",
        Range(1.1, 4.0),
        lambda s: s.spec.uncertainty == "global" and not s.spec.calibrates_gamma,
    ),
    Parameter(
        "gamma",
        OneOf(("auto", 1.2, 1.5, 2.0, 4.0, 10.0)),
        lambda s: s.spec.uncertainty == "global" and s.spec.calibrates_gamma,
    ),
    Parameter(
        "gamma",
        OneOf(("information", "residual", "exposure-gap", "recovered")),
        lambda s: s.spec.uncertainty == "personalised",
    ),
    Parameter("unseen_weight", Range(0.3, 3.0)),
    Parameter("bias_share", OneOf((0.1, 0.25, 0.5, 0.75, 0.9))),
    Parameter("information_weight", Range(0.01, 1.0)),
    Parameter("confidence_penalty", Range(0.001, 0.1)),
)
"""The ranges of all settings that are searched; a method's `search_space` names its own."""


def searched(job: Job, *, likes: bool = False) -> list[Parameter]:
    """The parameters that a search of this job varies: of the method, left open by the caller and
    by the fit, and read by what trains it. likes: whether the log holds positives alone."""
    settings = job.resolved
    names = set(settings.spec.search_space) - set(job.settings)
    names -= {name for name in ("l2", "dim") if chosen_by_the_fit(settings, name, likes)}
    return [p for p in SPACE if p.name in names and p.applies(settings)]


def trials(job: Job, draws_seed: int | None = None, *, likes: bool = False) -> list[Job]:
    """The jobs behind a random search: one per setting, never measured; one if nothing varies.

    draws_seed: the seed that draws; the job's own by default, another where several seeds judge the
    same draws.
    """
    seed = job.seed if draws_seed is None else draws_seed
    open_to_draw = searched(job, likes=likes)
    budget = job.budget if open_to_draw else 1
    draws = [
        {p.name: p.values.draw(generator(seed, "search", p.name, k)) for p in open_to_draw if k}
        for k in range(budget)
    ]
    trial = replace(job, label=None, budget=1, measured=False)
    return [replace(trial, settings={**job.settings, **draw}) for draw in draws]


def best(results: Iterable[Result]) -> Result:
    """The highest validation score; the earlier one of those that tie or have none."""
    return max(results, key=lambda r: -math.inf if r.validation is None else r.validation)
