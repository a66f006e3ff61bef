"""What a search varies: one space for every method, and only what the fit would read.

Draw 0 is the settings as given. Draw k of a setting depends on (seed, setting, k) and on no method,
so that methods which share a setting try the same values of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from puidrec.comparing.job import Job, Result
from puidrec.rng import generator
from puidrec.settings import Settings

if TYPE_CHECKING:
    from optuna.trial import Trial as OptunaTrial


@dataclass(frozen=True)
class Range:
    """Numbers of even chance per factor, to three digits, so that a setting can be read and typed."""

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


ADAM_ALONE = (
    "puidrec.methods.multi:",
    "puidrec.methods.field.information:",
    "puidrec.methods.field.auto_debias:",
)
"""Methods whose losses least squares cannot lower."""


def trained_by_adam(settings: Settings) -> bool:
    """Whether Adam trains: the step size means nothing to least squares."""
    unsolvable = settings.normalise or (
        settings.spec.imputes and (settings.head != "label" or settings.loss != "squared")
    )
    alone = str(settings.spec.build).startswith(ADAM_ALONE)
    return alone or unsolvable or not settings.is_linear


def chosen_by_the_fit(settings: Settings, name: str, likes: bool) -> bool:
    """Whether the fit chooses dim or L2 itself, by held-out logged rows."""
    walks = settings.spec.chooses_l2 and settings.backbone in ("mf", "mf-linear") and not likes
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
