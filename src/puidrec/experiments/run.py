"""One training run and the folder it leaves: everything needed to read it, repeat it, or go on with it."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.atomic import output_errors, sweep, write_json, write_text
from puidrec.data.dataset import Dataset
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluate import Evaluation, evaluate
from puidrec.model import Recommender
from puidrec.settings import Settings
from puidrec.train.distributed import ALONE, World
from puidrec.train.trainer import Progress
from puidrec.train.validate import Scale

METRICS = ("uauc", "ndcg@5", "ndcg@50", "auc", "recall@5", "mse")
LIBRARIES = ("puidrec", "torch", "numpy", "scipy", "polars", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """A trained model with what was measured on the test rows of its split."""

    model: Recommender
    evaluation: Evaluation
    metrics: dict[str, Any]


def train_run(
    data: Dataset,
    settings: Settings,
    *,
    protocol: str = "rd",
    out: Path | None = None,
    progress: Progress | None = None,
    metrics: Sequence[str] = METRICS,
    world: World = ALONE,
) -> Run:
    """Train and evaluate; with `out`, checkpoint there on the way and leave a run folder."""
    split = data.split(protocol, settings.seed, select=settings.select)
    checkpoint = None
    if out is not None:
        _prepare(out, settings, world)
        checkpoint = out / "checkpoint.safetensors"
    model = Recommender(**settings.model_dump()).fit(data, split, checkpoint=checkpoint, progress=progress, world=world)
    evaluation, figures = measure(model, split, metrics)
    if out is not None and world.first:
        _write(out, model, data, split, figures)
        with output_errors(out):
            (out / "checkpoint.safetensors").unlink(missing_ok=True)
            sweep(out)
    return Run(model, evaluation, figures)


def measure(model: Recommender, split: Split, metrics: Sequence[str] = METRICS) -> tuple[Evaluation, dict[str, Any]]:
    """Metrics on the test rows, flat, with the protocol and positive rate that they stand under."""
    evaluation = evaluate(model, split.test, metrics, target=Scale.of(model.settings).target)
    finite = {name: float(value) for name, value in evaluation.items() if np.isfinite(value)}
    context = {
        "method": model.settings.method,
        "seed": model.settings.seed,
        "protocol": split.protocol.name,
        "protocol_version": split.protocol.version,
        "positive_rate": split.positive_rate,
        "test_rows": len(split.test),
        "test_users": evaluation.n_users,
        "evaluated_on": split.evaluation,
    }
    return evaluation, {**finite, **context, **model.report_}


def load_run(folder: Path) -> tuple[Recommender, dict[str, Any]]:
    """The model of a run folder and its metrics."""
    if not (folder / "model").is_dir():
        raise InputError(
            "not a run folder", file=folder, expected="a folder written by puid train", hint="Check the path."
        )
    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("cannot read", file=folder / "metrics.json", found=str(error)[:60]) from error
    return Recommender.load(folder / "model"), metrics


def environment(data: Dataset, seed: int) -> dict[str, Any]:
    """Versions, data digest and seed: what a number depends on besides the settings."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        **{name: version(name) for name in LIBRARIES},
        "data": data.name,
        "data_sha256": data.sha256,
        "seed": seed,
    }


def to_toml(values: dict[str, Any]) -> str:
    """Flat settings as TOML; settings that are None are left out."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value is not None)


def _prepare(out: Path, settings: Settings, world: World = ALONE) -> None:
    """Claim the folder before any work is spent; a finished run is never overwritten."""
    if (out / "model").exists():
        raise InputError("the folder holds a finished run", file=out, hint="Choose another --out, or remove it.")
    if not world.first:
        return
    with output_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_text(out / "config.toml", to_toml(settings.model_dump()))


def _write(out: Path, model: Recommender, data: Dataset, split: Split, figures: dict[str, Any]) -> None:
    history = "".join(json.dumps(row) + "\n" for row in model.history_)
    write_text(out / "history.jsonl", history)
    write_json(out / "environment.json", {**environment(data, split.seed), "protocol": split.protocol.name})
    write_json(out / "metrics.json", figures)
    model.save(out / "model")
