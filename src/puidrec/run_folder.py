"""One training run and the folder it leaves: everything needed to read it, repeat it, or go on with
it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.atomic import locked, output_errors, refuse_other_files, sweep, write_json, write_text
from puidrec.data.dataset import Dataset
from puidrec.data.split import Protocol, Split, get_protocol
from puidrec.errors import InputError, PuidError, one_line
from puidrec.evaluation import Evaluation, evaluate
from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.unseen_items import UNSEEN_METRICS
from puidrec.exposure.estimate import estimate_exposure
from puidrec.fitting import split_for
from puidrec.model import Recommender
from puidrec.settings import Settings
from puidrec.store import read_json
from puidrec.view import Progress
from puidrec.world import ALONE, World, threads_for

METRICS = ("uauc", "ndcg@5", "ndcg@20", "ndcg@50", "auc", "recall@5", "catalogue-recall@20", "mse")
PROPENSITY = "-propensity@"
"""In the name of metrics that are weighted by inverse propensity."""
CONFIG, CHECKPOINT, ENVIRONMENT = "config.toml", "checkpoint.safetensors", "environment.json"
CARD, MEASURED = "MODEL_CARD.md", "metrics.json"
FILES = (
    CONFIG,
    CHECKPOINT,
    "history.jsonl",
    ENVIRONMENT,
    MEASURED,
    CARD,
    "model",
    "signature.json",
)
"""All that a run folder ever holds."""
LIBRARIES = ("puidrec", "torch", "numpy", "scipy", "polars", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """A trained model with what was measured on the test rows of its split."""

    model: Recommender
    evaluation: Evaluation | None
    """None where every uniform row calibrated, so that none is left to test on."""
    metrics: dict[str, Any]


def train_run(
    data: Dataset,
    settings: Settings,
    *,
    protocol: str | None = "rd",
    out: Path | None = None,
    progress: Progress | None = None,
    world: World = ALONE,
    source: Mapping[str, Any] | None = None,
) -> Run:
    """Train and evaluate; with `out`, checkpoint there on the way and leave a run folder.

    protocol: None: every uniform row calibrates, as in `Recommender().fit(data)`, and nothing is
    measured; a log without uniform rows is split by `rd`.
    source: how `data` were loaded (`DataSpec.to_source`), so that the run can load them again.
    """
    every = protocol is None and data.uniform is not None
    split = split_for(data, settings, None if every else protocol or "rd")
    if not len(split.test) and not every:
        raise InputError(
            "the data set is too small: no rows are left to test on",
            found=f"{len(split.train):,} training rows",
            hint="Give more rows, or use Recommender.fit, which tests nothing.",
        )
    checkpoint = out / CHECKPOINT if out is not None else None
    model = Recommender()
    model.settings = settings  # a comparison may give a method settings that it does not read
    with locked(out if world.first else None):
        with _claimed(out, settings, world) if out is not None else contextlib.nullcontext():
            own = None if every else split
            model.fit(data, own, checkpoint=checkpoint, progress=progress, world=world)
        evaluation, figures = None, {**_context(settings, split), **model.report_}
        if not every:
            evaluation, figures = measure(model, split, data=data)
        if out is not None and world.first:
            _write(out, Run(model, evaluation, figures), data, split, source)
            with output_errors(out):
                (out / CHECKPOINT).unlink(missing_ok=True)
                sweep(out, FILES)
    return Run(model, evaluation, figures)


def measure(
    model: Any, split: Split, metrics: Sequence[str] | None = None, data: Dataset | None = None
) -> tuple[Evaluation, dict[str, Any]]:
    """Metrics on the test rows, flat, with the protocol and positive rate behind them.

    model: a Recommender, or whatever `evaluate` takes: of another package, it is told what to leave
    out of lists. metrics: by default `default_metrics`. data: needed for metrics weighted by
    propensity.
    """
    chosen = model.settings if isinstance(model, Recommender) else Settings(seed=split.seed)
    likes = len(split.test) > 0 and bool(split.test.label.all())
    metrics = metrics or default_metrics(split.protocol, likes)
    propensity = None
    if any(PROPENSITY in name for name in metrics) and data is not None:
        nominal = estimate_exposure(
            data,
            split.train,
            split.propensity,
            chosen.propensity,
            min_propensity=chosen.min_propensity,
            seed=chosen.seed,
        )
        propensity = nominal.propensity_of(split.test)
    left_out: Any = split.validation if split.selection == "logged" else None
    if not isinstance(model, Recommender):
        seen = [split.train] if left_out is None else [split.train, left_out]
        left_out = pl.concat([part.to_frame().select("user_id", "item_id") for part in seen])
    with threads_for(len(split.test.users) * len(split.test.items), chosen.dim_number):
        evaluation = evaluate(
            model,
            split.test,
            metrics,
            target=chosen.target_scale.target,
            propensity=propensity,
            overlap=split.overlap.rule,
            users=split.protocol.users,
            exclude=left_out,
        )
    finite = {name: float(value) for name, value in evaluation.items() if np.isfinite(value)}
    context = {
        **_chance(split, metrics),
        "positive_rate": split.positive_rate,
        "test_users": evaluation.n_users,
        "evaluated_on": split.evaluation,
        **_context(chosen, split),
    }
    return evaluation, {**finite, **context, **getattr(model, "report_", {})}


def _context(settings: Settings, split: Split) -> dict[str, Any]:
    """What was trained on which rows, whether or not any are left to test on."""
    return {
        "method": settings.method,
        "seed": settings.seed,
        "protocol": split.protocol.name,
        "protocol_version": split.protocol.version,
        "test_rows": len(split.test),
        **split.overlap.plain(),
    }


def default_metrics(protocol: str | Protocol, likes: bool) -> tuple[str, ...]:
    """What is measured: `METRICS`; rankings of all unseen items where rows are held out by time, or
    all are likes."""
    if get_protocol(protocol).order != "random":
        return UNSEEN_METRICS if likes else (*UNSEEN_METRICS, "auc", "mse")
    return UNSEEN_METRICS if likes else METRICS


def _chance(split: Split, metrics: Sequence[str]) -> dict[str, float]:
    """What random orders score in NDCG: far above 0 where users without a positive count as 1."""
    names = [name for name in metrics if name.startswith("ndcg@")]
    if not names or split.protocol.users == "both-labels":
        return {}
    test = split.test
    found = evaluate_scores(
        test.user, np.zeros(len(test)), test.label, metrics=names, users=split.protocol.users
    )
    return {f"chance_{name}": value for name, value in found.items()}


@contextlib.contextmanager
def mlflow_run(settings: Settings, data: str) -> Iterator[Callable[[Run, Path | None], None]]:
    """A run of MLflow around a training; call what it yields with the outcome and the folder it was
    written to.

    The store is that of MLFLOW_TRACKING_URI, else mlflow.db in the current folder; the experiment
    that of MLFLOW_EXPERIMENT_NAME, else puidrec. It is opened before training, so that a wrong
    address costs no time.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        import mlflow
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise InputError("MLflow is not installed", hint="pip install 'puidrec[mlflow]'") from error
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').resolve()}"
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or "puidrec")
        own = mlflow.start_run(run_name=f"{settings.method} on {data}")
    except Exception as error:  # whatever a store, its driver or the network raises
        reason = one_line(str(error))[:200]
        raise InputError(
            f"MLflow cannot open its store ({reason})", found=uri, hint="Set MLFLOW_TRACKING_URI."
        ) from error

    def record(run: Run, out: Path | None) -> None:
        figures = {key.replace("@", "_at_"): value for key, value in run.metrics.items()}
        plain = {**settings.model_dump(exclude_none=True), "data": data}
        plain |= {key: value for key, value in figures.items() if isinstance(value, str)}
        numbers = {key: value for key, value in figures.items() if type(value) in (int, float)}
        mlflow.log_params(plain)
        mlflow.log_metrics({key: numbers[key] for key in numbers.keys() - plain.keys()})
        for file in (CONFIG, ENVIRONMENT, MEASURED, CARD) if out is not None else ():
            mlflow.log_artifact(f"{out}/{file}")

    try:
        with own:  # which ends as failed where training fails
            yield record
    except MlflowException as error:
        raise PuidError(
            f"the run is whole, but MLflow did not take it: {one_line(str(error))[:200]}"
        ) from error


def load_run(folder: Path, device: str = "cpu") -> tuple[Recommender, dict[str, Any]]:
    """The model of a run folder, to score on a device, and its metrics."""
    if not (folder / "model").is_dir():
        raise InputError(
            "not a run folder",
            file=folder,
            expected="a folder written by puid train",
            hint="Check the path.",
        )
    return Recommender.load(folder / "model").to(device), read_json(folder / "metrics.json")


def read_environment(folder: Path, *required: str) -> dict[str, Any]:
    """What a run folder says that its figures depend on; refused where one of the required keys is
    missing."""
    found = read_json(folder / ENVIRONMENT)
    missing = next((key for key in required if key not in found), None)
    if missing is not None:
        raise InputError(
            "not written by puid train", file=folder / ENVIRONMENT, found=f"no {missing}"
        )
    return found


def to_toml(values: dict[str, Any]) -> str:
    """Flat settings as TOML; settings that are None are left out."""
    return "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value is not None
    )


@contextlib.contextmanager
def _claimed(out: Path, settings: Settings, world: World = ALONE) -> Iterator[None]:
    """Claim a folder before any work is spent; where training is refused, leave it as it was found.

    A finished run is never overwritten, nor is a folder of other files: what `--out .` would do to
    a home folder.
    """
    with output_errors(out):
        if (out / "model").exists():
            raise InputError(
                "the folder holds a finished run",
                file=out,
                hint="Choose another --out, or remove it.",
            )
        own = out / CONFIG
        if world.first:
            _require_own(out, settings)
            fresh, made = not own.exists(), not out.exists()
            out.mkdir(parents=True, exist_ok=True)
            write_text(own, to_toml(settings.model_dump()))
    try:
        yield
    except PuidError:
        if world.first and fresh and not (out / CHECKPOINT).exists():
            own.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another process put something there
                if made:  # folders above it go with the lock that they were made for
                    out.rmdir()
        raise


def _require_own(out: Path, settings: Settings) -> None:
    """Refuse a folder that holds anything but an interrupted run of these settings, on whatever
    device."""
    refuse_other_files(out, FILES, "an interrupted run", always=(CONFIG,), link=True)
    if not (out / CONFIG).exists():
        return
    try:
        before = tomllib.loads((out / CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        before = {}
    now = tomllib.loads(to_toml(settings.model_dump()))
    if {**before, "device": None} != {**now, "device": None}:
        raise InputError(
            "the folder holds an interrupted run of other settings",
            file=out / CONFIG,
            hint="Resume with the settings it was made with, name a new folder with --out, or "
            "remove this one.",
        )


def _write(
    out: Path, run: Run, data: Dataset, split: Split, source: Mapping[str, Any] | None
) -> None:
    """All files of a run; settings again, for the folder may have been removed."""
    history = "".join(json.dumps(row) + "\n" for row in run.model.history_)
    write_text(out / CONFIG, to_toml(run.model.settings.model_dump()))
    write_text(out / "history.jsonl", history)
    known = {} if source is None else {"data_source": dict(source)}
    about = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        **{name: version(name) for name in LIBRARIES},
        "data": data.name,
        "data_sha256": data.sha256,
        **data.overlap.plain(),
        "seed": split.seed,
        "protocol": split.protocol.name,
        **known,
    }
    write_json(out / ENVIRONMENT, about)
    write_json(out / MEASURED, run.metrics)
    write_text(out / CARD, run.model.to_card(data, split, run.evaluation))
    run.model.save(out / "model")
