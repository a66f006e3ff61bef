"""`compare`: several methods over several seeds, as tables, charts and a page.

`pr.compare` and `puid compare` make jobs, run them by `run_jobs`, and summarise them once, here.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from puidrec.atomic import atomic_files, locked, write_text
from puidrec.comparing.job import DataSpec, Job
from puidrec.comparing.run import Progress, Results, claim, run_jobs, write_results
from puidrec.comparing.summary import (
    SummaryRow,
    difference,
    figure,
    given,
    grouped,
    headline,
    notes,
    remarks,
    summarise,
    title,
)
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.schema import Origin, to_polars, with_our_names
from puidrec.data.sources.files import score_file
from puidrec.data.split import Split
from puidrec.errors import InputError, PuidError
from puidrec.evaluation.any_model import (
    ScoreTable,
    as_predictor,
    is_table,
    known_pairs,
    outcome_scale,
    recommendations,
    require_lists,
    to_unit,
    unit_scores,
)
from puidrec.evaluation.metrics import higher_is_better
from puidrec.evaluation.unseen_items import UNSEEN
from puidrec.methods import METHODS, get_method, learning_from_likes, require_levels
from puidrec.model import Recommender
from puidrec.run_folder import default_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("item-rate", "bias", "pure-svd", "all-rank", "ease")
"""Shown in every table: what does not beat them has learned nothing about people."""


def shown_metrics(measured: Sequence[str]) -> tuple[str, ...]:
    """The metrics of a table out of those measured, the first one sorts."""
    return ("uauc", "ndcg@5") if "uauc" in measured else ("unseen-recall@10", "unseen-ndcg@10")


@dataclass(frozen=True)
class Plan:
    """The jobs of a comparison, and what is shown of them."""

    jobs: list[Job]
    names: list[str]
    reference: str
    metrics: tuple[str, ...]


def plan_comparison(
    data: Dataset,
    spec: DataSpec,
    methods: Sequence[Any] | None,
    seeds: Sequence[int],
    protocol: str,
    settings: Mapping[str, Any],
    *,
    metrics: Sequence[str] | None = None,
    reference: str | None = None,
    baselines: bool = True,
    budget: int = 1,
    others: Sequence[Any] = (),
) -> Plan:
    """What `compare` runs. All mistakes are found here, before anything is trained.

    Jobs come seed by seed, so that an interrupted comparison has all methods under its first seeds.
    others: what is compared beside all methods, where `methods` is None.
    """
    select = {key: settings[key] for key in ("select",) if key in settings}
    split = data.split(protocol, seeds[0], **select)  # warns once here, not in every job
    known = default_metrics(protocol, data.positives_only and split.evaluation == "logged")
    wanted = tuple(metrics or shown_metrics(known))
    if unknown := [name for name in wanted if name not in known]:
        expected = f"some of {', '.join(known)}"
        raise InputError("unknown metric", found=unknown[0], expected=expected)
    asked, given = _named([*(methods or ()), *others])
    names, against = compared_methods(
        data, asked if methods is not None else None, reference, baselines=baselines, others=given
    )
    rows = [
        Job(spec, n, 0, protocol, get_method(n).own_settings(settings), budget=budget)
        for n in names
    ]
    for label, one in given.items():
        if isinstance(one, Recommender):
            chosen = {
                **get_method(one.settings.method).own_settings(settings),
                **one.settings.given("seed"),
            }
            own = Job(spec, one.settings.method, 0, protocol, chosen, label, budget=budget)
        else:
            foreign = Foreign.of(label, one, data, wanted)
            for seed in seeds if foreign.content else ():
                foreign.check(data.split(protocol, seed, **select).test)
            own = Job(spec, label, 0, protocol, select, foreign=foreign)
        rows.append(own)
    jobs = [replace(row, seed=seed) for seed in seeds for row in rows]
    return Plan(jobs, [row.name for row in rows], against, wanted)


def _named(methods: Sequence[Any]) -> tuple[list[str], dict[str, Any]]:
    """Names of methods, and everything else by what it is called in tables."""
    given: dict[str, Any] = {}
    for one in (one for one in methods if not isinstance(one, str)):
        label, model = one if isinstance(one, tuple) and len(one) == 2 else (label_of(one), one)
        if label in given or label in METHODS:
            raise InputError(
                "two rows of a comparison have one name", found=label, hint='Give ("name", model).'
            )
        given[str(label)] = model
    return [one for one in methods if isinstance(one, str)], given


def compared_methods(
    data: Dataset,
    asked: Sequence[str] | None,
    reference: str | None,
    *,
    baselines: bool = True,
    others: Iterable[str] = (),
) -> tuple[list[str], str]:
    """The methods of a table, with baselines that can learn from the log, and the reference among
    them or the others.

    asked: None for all that can learn from it without uniform rows.
    """
    able = learning_from_likes() if data.positives_only else list(METHODS)
    asked = [name for name in able if not METHODS[name].needs_uniform] if asked is None else asked
    for name in asked if data.positives_only else ():
        require_levels(get_method(name), data.scale.high)
    wanted = ("popularity", *BASELINES) if data.positives_only else BASELINES
    shown = [name for name in wanted if name in able] if baselines else []
    names = [get_method(name).name for name in dict.fromkeys([*asked, *shown])]
    rows = [*names, *others]
    if not rows:
        raise InputError("nothing to compare", found="no method", expected="methods=[…]")
    against = reference or ("mf" if "mf" in rows else rows[0])
    if against not in rows:
        expected = f"one of {', '.join(rows)}"
        raise InputError("the reference is not among the methods", found=against, expected=expected)
    return names, against


@dataclass(frozen=True)
class Comparison:
    """Methods against a reference: means over seeds, and paired differences with intervals over
    users and seeds."""

    results: Results
    reference: str
    metrics: tuple[str, ...]
    rows: tuple[SummaryRow, ...]

    @classmethod
    def of(cls, results: Results, reference: str, metrics: Sequence[str]) -> Comparison:
        """Summarise the results of a study."""
        return cls(
            results, reference, tuple(metrics), tuple(summarise(results, reference, metrics))
        )

    @property
    def sentences(self) -> list[str]:
        """One headline per table and metric, and what must be known before a winner is called."""
        words = [
            headline(group, metric, self.reference)
            for group in grouped(self.rows)
            for metric in self.metrics
        ]
        return [*words, *remarks(self.rows)]

    @property
    def tables(self) -> list[tuple[str, str, list[SummaryRow]]]:
        """Metric, title and rows of each table, data set by data set."""
        found = [
            (metric, title(group), [row for row in group if row.metric == metric])
            for group in grouped(self.rows)
            for metric in self.metrics
        ]
        return [table for table in found if table[2]]

    def __repr__(self) -> str:
        return markdown(self.rows, self.metrics, self.reference, self.results.failures)

    def _repr_html_(self) -> str:
        from puidrec.report.study import comparison_view

        return comparison_view(self)

    def to_frame(self) -> pl.DataFrame:
        """One row per method and metric."""
        return pl.DataFrame([row.plain() for row in self.rows], infer_schema_length=None)

    def plot(self, metric: str | None = None) -> Figure:
        """Methods as dots with the interval of their difference to the reference; the first metric
        by default."""
        from puidrec.report.study import dot_chart

        chosen = self.metrics[0] if metric is None else metric
        own = [row for row in self.rows if row.metric == chosen]
        if not own:
            raise InputError(
                "no such metric in the comparison", found=chosen, expected=f"one of {self.metrics}"
            )
        return dot_chart(own, self.reference)

    def summary(self) -> dict[str, Any]:
        """The content of summary.json: plain values."""
        return {
            "reference": self.reference,
            "metrics": list(self.metrics),
            "rows": [row.plain() for row in self.rows],
            "notes": notes(self.rows),
            "failed": [failure.row() for failure in self.results.failures],
        }

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the tables, charts and page of `puid compare`, all together or not at all."""
        from puidrec.report.study import write_report

        out = Path(folder)
        with locked(out):
            claim(out)
            with atomic_files(out) as stage:
                rows = [result.row() for result in self.results]
                write_results(stage, rows, self.summary(), self.results)
                write_text(stage / "table.md", repr(self))
                write_report(stage, self)


def markdown(
    rows: Sequence[SummaryRow],
    metrics: Sequence[str],
    reference: str,
    failures: Sequence[object] = (),
) -> str:
    """A page with a table per data set, preset and protocol: the mean of each metric, its
    difference to the reference. Jobs that failed are named at its end."""
    from puidrec.report.page import markdown_page

    return markdown_page(
        "comparison",
        groups=[(title(group), group, given(group)) for group in grouped(rows)],
        metrics=metrics,
        reference=reference,
        notes=notes(rows),
        failures=failures,
        figure=figure,
        difference=difference,
        headline=headline,
    )


def compare(
    data: Dataset,
    methods: Sequence[Any] = ("mf", "spectrum"),
    *,
    seeds: int | Sequence[int] = 5,
    protocol: str = "rd",
    metrics: Sequence[str] | None = None,
    reference: str | None = None,
    baselines: bool = True,
    budget: int = 1,
    folder: str | PathLike[str] | None = None,
    workers: int | None = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Train and measure methods under several seeds, each with its own split and start.

    methods: names, and models of any kind, alone or as `(name, model)`. A table or file of scores
    or recommendations, an object with `predict` and a function of users and items are scored as
    they stand. What has `fit(table)` beside `predict`, and what makes one (a class, a function of
    `seed` or of nothing), is fitted anew on the training rows of each split. A `Recommender` gives
    its settings.

    Baselines are added unless `baselines=False`. reference: what the others are compared with;
    `mf`, else the first method. budget: configurations tried per method and seed, chosen on
    validation rows. folder: finished jobs are kept there and never trained again (of models of
    other packages, those of tables). workers: processes, -1 for one per core; None: this process,
    or what `joblib.parallel_config` says (Ray, Dask). settings: of every method that has them, as
    `Recommender` takes them. A method that fails is named.
    """
    single = isinstance(methods, str) or is_table(methods) or hasattr(methods, "predict")
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    if not len(numbers):
        raise InputError("a comparison needs a seed", found=seeds, expected="seeds=1 or more")
    plan = plan_comparison(
        data,
        DataSpec.of(data),
        [methods] if single else methods,
        numbers,
        protocol,
        settings,
        metrics=metrics,
        reference=reference,
        baselines=baselines,
        budget=budget,
    )
    told: Progress | None = None
    if (tell := progress) is not None:
        told = lambda event: tell(f"{event.outcome.job.name}, seed {event.outcome.job.seed}")  # noqa: E731
    out = None if folder is None else Path(folder)
    results = run_jobs(plan.jobs, out, data=data, workers=workers, progress=told)
    if not results:
        raise PuidError(str(results.failures[0]))
    return Comparison.of(results, plan.reference, plan.metrics)


# Models of other packages: tables, models as they stand, and whatever can be fitted anew on each
# split. All of them are scored as `evaluate` scores them, on the test rows that our methods meet.

ELSEWHERE = (
    "fitted elsewhere: we cannot know what it was trained on. If test rows were among it (data "
    "leakage), its figures are too good"
)
REFITTED = "another package's, fitted on the training rows of each split"


@dataclass(frozen=True)
class Foreign:
    """A row of a comparison that no method of this package stands behind."""

    name: str
    given: Any = field(repr=False)
    metrics: tuple[str, ...]
    """What it is measured by: what the table shows."""
    note: str
    """Where its scores come from, and what was left out."""
    content: str | None = None
    """The hash of a table. Results of anything else are not kept: nothing tells it from another."""
    refitted: bool = False

    @classmethod
    def of(cls, name: str, given: Any, data: Dataset, metrics: Sequence[str]) -> Foreign:
        """Refuse what is no model; look for the ids of a table in the data."""
        given = score_file(given, data) if isinstance(given, PathLike) else given
        if is_table(given):
            return cls._of_table(name, given, data, metrics)
        if not is_refitted(given):
            return cls(name, as_predictor(given), tuple(metrics), ELSEWHERE)
        return cls(name, given, tuple(metrics), REFITTED, refitted=True)

    @classmethod
    def _of_table(cls, name: str, given: Any, data: Dataset, metrics: Sequence[str]) -> Foreign:
        origin = Origin(name)
        frame = with_our_names(to_polars(given, origin))
        if recommendations(frame, name) is None:
            table: Any = ScoreTable.of(frame, name)
            frame = table.frame
        else:
            metrics = [metric for metric in metrics if metric.startswith(UNSEEN)] or metrics
            require_lists(metrics)
            table = frame = frame.select("user_id", "item_id", "rank")
        known = known_pairs(frame, data, origin)
        lost = int((~known).sum())
        words = f"; {lost:,} of its {known.size:,} rows are of users or items that the data lack"
        content = hashlib.sha256(frame.write_csv().encode()).hexdigest()
        return cls(name, table, tuple(metrics), ELSEWHERE + (words if lost else ""), content)

    def check(self, test: Interactions) -> None:
        """Refuse a table that lacks scores of test rows, before anything is trained."""
        if isinstance(self.given, ScoreTable) and not all(
            name.startswith(UNSEEN) for name in self.metrics
        ):
            _scores(self.given, test)

    def on(self, split: Split, seed: int) -> tuple[Any, tuple[str, ...]]:
        """The model by which the test rows of a split are scored, and what it can be measured by.

        Errors need scores on the scale of ratings, or on 0..1: other scores have none.
        """
        model = self._fitted(split, seed) if self.refitted else self.given
        errors = {name for name in self.metrics if not higher_is_better(name)}
        if not errors or not len(split.test):
            return model, self.metrics
        scale, score = split.test.scale, _scores(model, split.test)
        kind = outcome_scale(score, scale.unit(split.test.rating), scale)
        if kind == "rating":
            ask = model.predict
            model = as_predictor(lambda users, items: to_unit(ask(users, items), kind, scale))
        kept = [name for name in self.metrics if kind != "other" or name not in errors]
        return model, tuple(kept)

    def _fitted(self, split: Split, seed: int) -> Any:
        """A new model, trained on the training rows alone; `fit` may return it, or nothing."""
        if isinstance(self.given, type) or not hasattr(self.given, "fit"):
            named = "seed" in inspect.signature(self.given).parameters
            model = self.given(seed=seed) if named else self.given()
        else:
            model = copy.deepcopy(self.given)
        found = model.fit(split.train.to_frame())
        return found if hasattr(found, "predict") else model


def _scores(model: Any, rows: Interactions) -> np.ndarray:
    pairs = rows.users.decode(rows.user).to_numpy(), rows.items.decode(rows.item).to_numpy()
    return np.asarray(unit_scores(model, *pairs), np.float64)


def is_refitted(given: Any) -> bool:
    """Whether it is fitted anew: it has `fit`, or makes what has (a class, a function that takes
    no pair)."""
    if isinstance(given, type) or hasattr(given, "fit"):
        return True
    if hasattr(given, "predict") or not callable(given):
        return False
    try:
        inspect.signature(given).bind("users", "items")
    except TypeError:
        return True
    except ValueError:  # no signature can be told
        return False
    return False


def label_of(given: Any) -> str:
    """What it is called in tables where nobody named it."""
    if is_table(given):
        return "table"
    if isinstance(given, PathLike):
        return Path(given).stem
    name = str(getattr(given, "__name__", type(given).__name__))
    return "function" if name == "<lambda>" else name
