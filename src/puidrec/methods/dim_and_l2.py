"""dim and L2 where they are left open: those of the log, chosen by held-out logged rows
(`optimise.l2_path`) or held-out likes (`methods.likes`), whatever the method.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from puidrec.data.on_disk import StoredInteractions
from puidrec.data.row_matrix import row_hashes
from puidrec.data.tables import pair_matrix
from puidrec.losses.pair_loss import Objective, RobustLoss
from puidrec.methods.likes import LikesChoice, choose_for_likes
from puidrec.methods.prepare import Prepared
from puidrec.optimise.checkpoint import Checkpoint
from puidrec.optimise.l2_path import DIMS, FACTORS, Choice, Fold, choose
from puidrec.optimise.least_squares import LeastSquares, grown
from puidrec.optimise.model import Model, Point, linear_model, point_of
from puidrec.scores.log import Column, Log
from puidrec.view import Progress

FEW_ROWS, FOLDS, HELD_OUT = 50_000, 5, 10
"""Rows below which each of five folds is held out once; of larger logs, one row in ten is."""
PATH_ROWS = 2_000_000
"""Rows that the path is walked on at most: those of some users, of larger logs."""
PATH_USERS = 100_000
"""Users that it is walked on at most: where each has a row or two, a fit's time is theirs."""
WORDS = "choice of dim and l2"
Chosen = dict[str, dict[str, Any]]
"""The numbers (`settings`) and how they were found (`notes`), in plain values."""
Told = Callable[[int, float], None]
"""Called after each fit that is compared, with its dim and error."""


def with_chosen_l2(
    prepared: Prepared, resume: Checkpoint | None = None, progress: Progress | None = None
) -> tuple[Prepared, Chosen | None]:
    """The same with numbers for `dim` and `l2` where they are left open."""
    settings, likes = prepared.settings, prepared.data.positives_only
    if "auto" not in (settings.dim, settings.l2) or not settings.spec.trains:
        return prepared, None
    fits = count(1)

    def told(dim: int, error: float) -> None:
        if progress is not None:
            figures = {"held_out_recall": -error} if likes else {"loss_held_out": error}
            progress(WORDS, next(fits), 0, figures)

    if resume is not None and "chosen" in resume.state:
        chosen: Chosen = resume.state["chosen"]
    elif settings.backbone not in ("mf", "mf-linear") or (
        likes and not (settings.spec.chooses_unseen_weight and settings.is_linear)
    ):
        return prepared, None
    else:
        choice = (_walk_likes if likes else _walk)(prepared, told)
        factor = choice.factor if settings.l2 == "auto" else 1.0
        numbers = {
            "dim": choice.dim if settings.dim == "auto" else settings.dim,
            "l2": settings.l2_number * factor,
            "l2_features": settings.l2_features * factor,
        }
        if isinstance(choice, LikesChoice):
            numbers["unseen_weight"] = choice.unseen_weight
        chosen = {"settings": numbers, "notes": choice.describe()}
    own = settings.replace(**chosen["settings"])
    return Prepared.of(prepared.data, prepared.split, own, prepared.log.world), chosen


def _walk(prepared: Prepared, told: Told) -> Choice:
    settings, backbone = prepared.settings, prepared.first_stage("mf").backbone("path")
    log, target, users = _path_rows(prepared)
    kept = users if log.world.size == 1 else log.users

    def column(values: np.ndarray) -> Column:
        return log.filled(lambda rows: values[rows].astype(np.float64))

    ones = column(np.ones(target.size))
    columns = {"r": column(target), "a": ones, "b": ones}
    objective = Objective(log, RobustLoss(prepared.error), columns, 1.0 / len(log))
    rows = pair_matrix(log.row_start, log.item, target, log.n_items)
    held_out, of = (FOLDS, FOLDS) if len(log) < FEW_ROWS else (1, HELD_OUT)
    code = row_hashes(rows, settings.seed) % np.uint64(of)
    folds = [Fold(column(code != k), column(code == k)) for k in range(held_out)]

    def model_of(dim: int, factor: float) -> Model:
        l2, l2_features = settings.l2_number * factor, settings.l2_features * factor
        return linear_model(backbone, l2, l2_features, kept, log.total).narrowed(dim)

    return choose(
        objective,
        model_of,
        _without_columns(point_of(backbone, kept)),
        folds,
        dims=DIMS if settings.dim == "auto" else (settings.dim,),
        factors=FACTORS if settings.l2 == "auto" else (1.0,),
        progress=told,
    )


def _walk_likes(prepared: Prepared, told: Told) -> LikesChoice:
    log, _, users = _path_rows(prepared)
    return choose_for_likes(
        prepared, (log.row_start, np.asarray(log.item)), users, spectral_start, told
    )


def _path_rows(prepared: Prepared) -> tuple[Log, np.ndarray, slice]:
    """The log that the path is walked on, its targets and users: all of it, or the rows of every
    k-th user, in the order of ids, where rows or users are many."""
    log = prepared.log
    step = max(1, -(-len(log.rows) // PATH_ROWS), -(-log.data.n_users // PATH_USERS))
    if step == 1 and not isinstance(log.rows, StoredInteractions):
        return log.operator, log.ratings.data, slice(None)
    users = slice(0, None, step)
    counts = np.diff(log.row_start)[users]
    row_start = np.concatenate([[0], np.cumsum(counts)])
    at = np.repeat(log.row_start[:-1][users] - row_start[:-1], counts) + np.arange(row_start[-1])
    item = np.asarray(log.items[at], dtype=np.int32)
    own = Log(row_start, item, log.data.n_items, device=prepared.settings.device, dtype=log.dtype)
    return own, np.asarray(log.target(log.rows.take(at)), np.float64), users


def _without_columns(point: Point) -> Point:
    """Biases of 0, and no vectors."""
    return {name: x if x.ndim == 0 else 0.0 * x[:, -1:] for name, x in point.items()}


def spectral_start(objective: Objective, model: Model, like: Point) -> Point:
    """Biases alone, solved roughly, then all columns along the leading directions of the slope
    there."""
    rough = LeastSquares(tolerance=2e-3, max_sweeps=20)
    biases = rough.minimise(objective, model.narrowed(0), _without_columns(like)).point
    return grown(objective, model, biases)
