"""dim and L2 where they are left open: those of the log, chosen by held-out logged rows
(`optimise.l2_path`) or held-out likes (`methods.likes`), whatever the method.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.data.on_disk import StoredInteractions
from puidrec.data.row_matrix import row_hashes
from puidrec.data.tables import pair_matrix
from puidrec.losses.pair_loss import Objective, RobustLoss
from puidrec.methods.likes import LikesChoice, choose_for_likes
from puidrec.methods.prepare import Prepared
from puidrec.optimise.adam import Progress
from puidrec.optimise.checkpoint import Checkpoint
from puidrec.optimise.l2_path import DIMS, FACTORS, Choice, Fold, choose
from puidrec.optimise.least_squares import LeastSquares, grown
from puidrec.optimise.model import Model, Point, linear_model, point_of
from puidrec.scores.log import Column, Log

FEW_ROWS, FOLDS, HELD_OUT = 50_000, 5, 10
"""Rows below which each of five folds is held out once; of larger logs, one row in ten is."""
PATH_ROWS = 2_000_000
"""Rows that the path is walked on at most: those of some users, of larger logs."""
PATH_USERS = 100_000
"""Users that it is walked on at most: where each has a row or two, a fit's time is theirs."""
WORDS = "choice of dim and l2"
Chosen = dict[str, dict[str, Any]]
"""The numbers (`settings`) and how they were found (`notes`), in plain values."""


def with_chosen_l2(
    prepared: Prepared, resume: Checkpoint | None = None, progress: Progress | None = None
) -> tuple[Prepared, Chosen | None]:
    """The same with numbers for `dim` and `l2` where they are left open."""
    settings, likes = prepared.settings, prepared.data.positives_only
    if "auto" not in (settings.dim, settings.l2) or not settings.spec.trains:
        return prepared, None
    if resume is not None and "chosen" in resume.state:
        chosen: Chosen = resume.state["chosen"]
    elif settings.backbone not in ("mf", "mf-linear") or (
        likes and not (settings.spec.chooses_unseen_weight and settings.is_linear)
    ):
        return prepared, None
    else:
        choice = (_walk_likes if likes else _walk)(prepared, progress)
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


def _walk(prepared: Prepared, progress: Progress | None) -> Choice:
    settings = prepared.settings
    backbone = prepared.first_stage("mf").backbone("path")
    operator, item, target, users = _path_rows(prepared)
    columns = {"r": operator.filled(lambda rows: target[rows])}
    columns["a"] = columns["b"] = operator.filled(lambda rows: np.ones(rows.stop - rows.start))
    objective = Objective(operator, RobustLoss(prepared.error), columns, 1.0 / len(operator))
    rows = pair_matrix(operator.row_start, item, target, operator.n_items)
    count, of = (FOLDS, FOLDS) if len(operator) < FEW_ROWS else (1, HELD_OUT)
    code = row_hashes(rows, settings.seed) % np.uint64(of)
    folds = [_fold(operator, code != np.uint64(k)) for k in range(count)]
    kept = users if operator.world.size == 1 else operator.users

    def model_of(dim: int, factor: float) -> Model:
        full = linear_model(
            backbone,
            settings.l2_number * factor,
            settings.l2_features * factor,
            kept,
            operator.total,
        )
        return full.narrowed(dim)

    start = point_of(backbone, kept)
    start = {name: x if x.ndim == 0 else 0.0 * x[:, -1:] for name, x in start.items()}

    def told(dim: int, error: float) -> None:
        if progress is not None:
            progress(WORDS, 0, 0, {"loss_held_out": error})

    return choose(
        objective,
        model_of,
        start,
        folds,
        dims=DIMS if settings.dim == "auto" else (settings.dim,),
        factors=FACTORS if settings.l2 == "auto" else (1.0,),
        progress=told,
    )


def _walk_likes(prepared: Prepared, progress: Progress | None) -> LikesChoice:
    operator, item, _, users = _path_rows(prepared)

    def told(dim: int, error: float) -> None:
        if progress is not None:
            progress(WORDS, dim, 64, {"held_out_recall": -error})

    return choose_for_likes(
        prepared, (operator.row_start, np.asarray(item)), users, spectral_start, told
    )


def _fold(log: Log, kept: np.ndarray) -> Fold:
    def column(mask: np.ndarray) -> Column:
        return log.filled(lambda rows: mask[rows].astype(np.float64))

    return Fold(column(kept), column(~kept))


def _path_rows(prepared: Prepared) -> tuple[Log, np.ndarray, np.ndarray, slice]:
    """The log that the path is walked on: all of it, or the rows of every k-th user, in the order
    of ids, where rows or users are many."""
    log = prepared.log
    step = max(1, -(-len(log.rows) // PATH_ROWS), -(-log.data.n_users // PATH_USERS))
    if step == 1 and not isinstance(log.rows, StoredInteractions):
        return log.operator, log.items, log.ratings.data, slice(None)
    users = slice(0, None, step)
    counts = np.diff(log.row_start)[users]
    at = np.repeat(
        log.row_start[:-1][users] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts
    )
    at = at + np.arange(at.size)
    item = np.asarray(log.items[at], dtype=np.int32)
    rows = log.rows.take(at)
    row_start = np.concatenate([[0], np.cumsum(counts)])
    operator = Log(
        row_start, item, log.data.n_items, device=prepared.settings.device, dtype=log.dtype
    )
    return operator, item, np.asarray(log.target(rows), np.float64), users


def spectral_start(objective: Objective, model: Model, like: Point) -> Point:
    """Biases alone, solved roughly, then all columns along the leading directions of the slope
    there."""
    empty = {name: x if x.ndim == 0 else 0.0 * x[:, -1:] for name, x in like.items()}
    biases = (
        LeastSquares(tolerance=2e-3, max_sweeps=20)
        .minimise(objective, model.narrowed(0), empty)
        .point
    )
    return grown(objective, model, biases)
