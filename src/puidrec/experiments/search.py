"""Random search: one space for every method, the same budget, chosen by the validation score alone.

Draw 0 is the settings as given. Draw k of a setting depends on (seed, setting, k) and on no method, so that methods
which share a setting try the same values of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from puidrec.experiments.job import Job, Result
from puidrec.rng import generator
from puidrec.settings import Settings

Draw = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class Parameter:
    """A setting that is searched: how a value is drawn, and for which settings it means anything."""

    name: str
    draw: Draw
    applies: Callable[[Settings], bool] = lambda settings: True


def log_uniform(low: float, high: float) -> Draw:
    """Numbers of even chance per factor, to three digits, so that a setting can be read and typed."""
    return lambda rng: float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def one_of(*values: Any) -> Draw:
    """One of a few values."""
    return lambda rng: values[int(rng.integers(len(values)))]


SPACE = (
    Parameter("l2", log_uniform(0.02, 0.5)),
    Parameter("l2_features", log_uniform(0.003, 0.15), lambda s: s.backbone != "mf"),
    Parameter("dim", one_of(8, 16, 32)),
    Parameter("hidden", one_of(32, 64, 128), lambda s: s.backbone == "mf-mlp"),
    Parameter("lr", log_uniform(0.005, 0.04)),
    Parameter("min_propensity", log_uniform(0.003, 0.1), lambda s: s.spec.weighs_rows(s)),
    Parameter(
        "gamma", log_uniform(1.1, 4.0), lambda s: s.spec.uncertainty == "global" and not s.spec.calibrates_gamma
    ),
    Parameter(
        "gamma", one_of("auto", 1.2, 1.5, 2.0, 4.0, 10.0),
        lambda s: s.spec.uncertainty == "global" and s.spec.calibrates_gamma,
    ),
    Parameter(
        "gamma", one_of("information", "residual", "exposure-gap", "recovered"),
        lambda s: s.spec.uncertainty == "personalised",
    ),
    Parameter("unseen_weight", log_uniform(0.3, 3.0)),
    Parameter("bias_share", one_of(0.1, 0.25, 0.5, 0.75, 0.9)),
    Parameter("information_weight", log_uniform(0.01, 1.0)),
    Parameter("confidence_penalty", log_uniform(0.001, 0.1)),
)  # fmt: skip
"""The ranges of all settings that are searched; a method's `search_space` names those that mean something to it."""


def searched(job: Job) -> list[Parameter]:
    """The parameters that a search of this job varies: in the method's search space, and left open by the caller."""
    settings = job.resolved
    names = set(settings.spec.search_space) - set(job.settings)
    return [parameter for parameter in SPACE if parameter.name in names and parameter.applies(settings)]


def trials(job: Job, draws_seed: int | None = None) -> list[Job]:
    """The jobs behind a search: one per setting, never measured. Without anything to vary there is one.

    draws_seed: the seed that draws; the job's own by default, another where several seeds judge the same draws.
    """
    seed = job.seed if draws_seed is None else draws_seed
    open_to_draw = searched(job)
    budget = job.budget if open_to_draw else 1
    drawn = [
        {p.name: p.draw(generator(seed, "search", p.name, k)) for p in open_to_draw} if k else {} for k in range(budget)
    ]
    return [replace(job, settings={**job.settings, **draw}, label=None, budget=1, measured=False) for draw in drawn]


def best(results: Iterable[Result]) -> Result:
    """The highest validation score; the earlier one of those that tie or have none, so the given settings first."""
    return max(results, key=lambda result: -math.inf if result.validation is None else result.validation)
