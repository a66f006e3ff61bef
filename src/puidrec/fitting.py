"""One fit: which rows train, checkpoints on the way, and what is kept of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.schema import Frame
from puidrec.data.split import Protocol, Split, split_without_test
from puidrec.data.tables import rows_outside
from puidrec.entities import CALIBRATED
from puidrec.errors import InputError
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted
from puidrec.methods.stages import train_stages, training_report
from puidrec.optimise.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from puidrec.optimise.stopping import pair_scores
from puidrec.settings import Settings
from puidrec.view import History, Progress, shown_progress
from puidrec.world import World, require_device, threads_for

if TYPE_CHECKING:
    from puidrec.model import Recommender

CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 1.0, 0.05
"""Least time between two checkpoints, and the share of the time that they may take."""
CHECKPOINT_SMALL, WRITTEN_PER_MINUTE = 32_000_000, 2.0
"""Bytes from which checkpoints are written so seldom that a minute writes at most this many times
the model's size."""


def fit_model(
    model: Recommender,
    data: Dataset | Frame,
    split: Split | None,
    protocol: str | Protocol | None,
    checkpoint: str | PathLike[str] | None,
    progress: Progress | bool | None,
    world: World,
) -> None:
    """Train a model, and keep in it what was fitted."""
    started, settings = time.perf_counter(), model.settings
    require_device(settings.device)
    data = data if isinstance(data, Dataset) else Dataset.from_frame(data)
    if not isinstance(split, Split | None):
        raise InputError(
            "split is no Split",
            found=type(split).__name__,
            expected="data.split(…), or nothing",
            hint="Ratings belong into the column rating of the log, not into a second argument.",
        )
    every = split is None and protocol is None
    split = split or split_for(data, settings, protocol)
    prepared = Prepared.of(data, split, settings, world)
    saver = None
    if checkpoint is not None:
        run = {
            "settings": settings.model_dump(exclude={"device"}),
            "data": data.sha256,
            "split": _split_digest(split),
        }
        size = 4 * (data.n_users + data.n_items) * (settings.dim_number + 2)
        saver = Saver(Path(checkpoint), run, world, size, started, CHECKPOINT_SECONDS)
    with threads_for(len(split.train), settings.dim_number), shown_progress(progress) as told:
        save, resume = (saver.save, saver.resume()) if saver else (None, None)
        fitted = train_stages(prepared, save, resume, told)
    _keep(model, prepared, fitted)
    if every and data.uniform is not None:
        pairs = np.stack([data.uniform.user, data.uniform.item]).astype(np.int64)
        model.parameters_[CALIBRATED] = torch.from_numpy(pairs)
    model.report_ = training_report(prepared, fitted, time.perf_counter() - started)
    named = None if every else split.protocol.name
    model.report_["split"] = {"protocol": named, "seed": split.seed}
    rows = model.train_rows_
    if rows is not None and settings.loss == "squared" and settings.target == "rating":
        errors = pair_scores(fitted.phi, rows.user, rows.item) - data.scale.unit(rows.rating)
        model.report_["training_mse"] = round(float(np.mean(errors**2)), 6)  # noise, to `fold_in`


def split_for(
    data: Dataset, settings: Settings, protocol: str | Protocol | None, seed: int | None = None
) -> Split:
    """The rows that a fit with these settings trains on: by a protocol, or all that it can use.

    What is solved on a log of likes reads no held-out row: there all of them train.
    """
    seed = settings.seed if seed is None else seed
    if protocol is not None:
        return data.split(protocol, seed, select=settings.select)
    solved_likes = settings.is_linear and data.positives_only
    return split_without_test(data, seed, select=settings.select, hold_out=not solved_likes)


def split_of(model: Recommender, data: Dataset) -> Split:
    """The split of its data that a model was trained on; where a model of an earlier version does
    not say by which protocol, it is taken to be `rd`."""
    unsaid = {"protocol": None if model.used_every_uniform_row else "rd", "seed": None}
    said = model.report_.get("split", unsaid)
    return split_for(data, model.settings, said["protocol"], said["seed"])


def _keep(model: Recommender, prepared: Prepared, fitted: Fitted) -> None:
    """Put what was fitted into the model."""
    data, split, log = prepared.data, prepared.split, prepared.log
    model.user_factors_, model.item_factors_ = (  # laid out as they will be loaded
        side[0].cpu().float().contiguous().numpy() for side in (fitted.phi.lefts, fitted.phi.rights)
    )
    model.user_ids_, model.item_ids_ = data.user_ids, data.item_ids
    model.seen_, model.rating_scale_ = (log.row_start, log.items), data.scale
    held_out = rows_outside(data.logged.user, data.logged.item, *model.seen_)
    model.held_out_ = held_out if held_out[1].size else None
    in_memory = not isinstance(split.train, StoredInteractions)
    model.train_rows_ = split.train if in_memory and len(split.train) == log.items.size else None
    model._tables, model._cold_start = (data.users, data.items), None
    model.history_ = History(fitted.history)
    model.parameters_ = {
        name: (value.float() if value.is_floating_point() else value).detach().cpu()
        for name, value in fitted.parameters.items()
    }
    model.encoders_ = {key: encoder.state() for key, encoder in log.encoders.items()}


@dataclass
class Saver:
    """Writes checkpoints of one run, as often as they are worth it."""

    path: Path
    run: dict[str, Any]
    """Settings, data and split: a checkpoint of another run is refused."""
    world: World
    model_bytes: int
    written: float
    """When the last one was written."""
    pause: float

    def resume(self) -> Checkpoint | None:
        """The checkpoint that is there."""
        if not self.path.exists():
            return None
        checkpoint = load_checkpoint(self.path)
        if checkpoint.state.get("run") != self.run:
            raise InputError(
                "the checkpoint belongs to other settings or data",
                file=self.path,
                hint="Remove it to start anew, or resume with the settings it was made with.",
            )
        return checkpoint

    def save(self, make: Callable[[], Checkpoint]) -> None:
        """Write one where it is time; all processes help to make it, or none does."""
        due = self.world.first and time.perf_counter() - self.written >= self.pause
        if not self.world.sum_number(float(due)):
            return
        begun, made = time.perf_counter(), make()
        if self.world.first:
            save_checkpoint(self.path, Checkpoint(made.tensors, {**made.state, "run": self.run}))
        self.written = time.perf_counter()
        size = sum(tensor.numel() * tensor.element_size() for tensor in made.tensors.values())
        self.pause = max(CHECKPOINT_SECONDS, (self.written - begun) / CHECKPOINT_SHARE)
        if size > CHECKPOINT_SMALL:
            self.pause = max(self.pause, 60.0 / WRITTEN_PER_MINUTE * size / self.model_bytes)


def _split_digest(split: Split) -> str:
    """Which rows train and choose: a checkpoint must not go on with others."""
    digest = hashlib.sha256(f"{split.protocol.name} {split.selection}".encode())
    for rows in (split.train, split.validation, split.propensity):
        if isinstance(rows, StoredInteractions):
            digest.update(rows.sha256.encode())
        elif rows is not None:
            for column in (rows.user, rows.item, rows.label):
                digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
