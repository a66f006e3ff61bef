"""dim and L2 where they are left open: those of the log, chosen together by held-out logged rows
(`optimise.l2_path`) or held-out likes, whatever the method.

Likes: there are no ratings whose error could choose them, so that one like in ten is held out and
looked for among the ten best items that its user has not seen. Plainly counted, that rewards
guessing what people are shown; weighted by the inverse popularity of the item, it takes all
popularity for exposure, although what is liked more is popular too, and rests on the few likes of
rare items. Weights of one over the root of popularity lie between (the usual propensity of implicit
feedback: Saito et al. 2020) and choose; all three are reported. Of settings that are not worse by
more than a standard error of the difference, the most regularised is taken.
The weight of unseen pairs is not chosen: held-out likes were shown like all others, so that they
ask for heavier weights the more a log tells of who is shown what, and not of what is liked.
The path is short: L2, then dims, by rough fits of `all-rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from puidrec.data.on_disk import StoredInteractions
from puidrec.data.row_matrix import row_hashes
from puidrec.data.tables import pair_matrix
from puidrec.evaluation.unseen_items import Found, find_liked
from puidrec.losses.pair_loss import Objective, RobustLoss, UnseenLoss
from puidrec.methods.prepare import Prepared
from puidrec.methods.unseen import constant
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
ROUGH = LeastSquares(tolerance=2e-3, max_sweeps=20)
"""Biases that vectors start from, and fits to likes that are compared only."""
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
    biases = ROUGH.minimise(objective, model.narrowed(0), _without_columns(like)).point
    return grown(objective, model, biases)


LIKES_DIMS, LIKES_FACTORS = (16, 32, 64), (3.0, 1.0, 0.3, 0.1)
K, MOST_JUDGED = 10, 20_000
"""Items that are looked at, and most held-out likes that judge."""
CHOOSES = "recall_root_popularity"
POWERS = {CHOOSES: 0.5, "recall_inverse_popularity": 1.0, "recall": 0.0}
"""What is reported of every setting: recall@10 weighted by popularity to the power −0.5, −1, 0."""


class Setting(NamedTuple):
    """A point of the path."""

    dim: int
    l2_factor: float
    unseen_weight: float


@dataclass(frozen=True)
class LikesChoice(Choice):
    """The dim and factor of L2 that held-out likes chose, with the weight of unseen pairs."""

    unseen_weight: float = 1.0
    judged: tuple[dict[str, float], ...] = ()
    """Every setting tried, with recall@10 of held-out likes, weighted as `POWERS` has it."""

    def describe(self) -> dict[str, Any]:
        """For reports, in plain values."""
        own = {"dim": self.dim, "l2_factor": self.factor, "unseen_weight": self.unseen_weight}
        return {**own, "chosen_by": CHOOSES, "tried": [dict(one) for one in self.judged]}


def _walk_likes(prepared: Prepared, told: Told) -> LikesChoice:
    settings, n_items = prepared.settings, prepared.data.n_items
    whole, _, users = _path_rows(prepared)
    row_start, item = whole.row_start, np.asarray(whole.item)
    seen = pair_matrix(row_start, item, np.ones(item.size), n_items)
    hashes = row_hashes(seen, settings.seed)
    held = hashes % np.uint64(HELD_OUT) == 0
    user = np.repeat(np.arange(row_start.size - 1), np.diff(row_start))
    kept = np.concatenate([[0], np.cumsum(np.bincount(user[~held], minlength=row_start.size - 1))])
    log = Log(kept, item[~held], n_items, device=settings.device, dtype=prepared.log.dtype)
    order = np.flatnonzero(held)
    judge = order[np.argsort(hashes[order], kind="stable")[:MOST_JUDGED]]
    tried: dict[Setting, dict[str, float]] = {}
    hits: dict[Setting, np.ndarray] = {}

    def hits_of(one: Setting) -> np.ndarray:
        if one not in tried:
            own = replace(prepared, settings=settings.replace(dim=one.dim))
            found = find_liked(
                _fitted(own, log, users, one),
                (user[judge], item[judge]),
                [(kept, item[~held])],
                K,
            )
            hits[one], shares = _weighted(found)
            tried[one] = {**one._asdict(), **shares}
            told(one.dim, -shares[CHOOSES])
        return hits[one]

    def chosen(among: Sequence[Setting]) -> Setting:
        """The first that is not clearly worse than the best."""
        best = max(among, key=lambda one: float(hits_of(one).sum()))
        lack = {one: hits_of(best) - hits_of(one) for one in among}
        return next(one for one in among if lack[one].sum() <= np.sqrt(np.sum(lack[one] ** 2)))

    dims: tuple[int, ...] = LIKES_DIMS if settings.dim == "auto" else (settings.dim,)
    dims = tuple(dim for dim in dims if dim <= 2 * min(log.n_users, n_items)) or dims[:1]
    penalties = LIKES_FACTORS if settings.l2 == "auto" else (1.0,)
    now = Setting(dims[len(dims) // 2], 1.0, settings.unseen_weight)
    if not judge.size:
        return LikesChoice(now.dim, 1.0, 0.0, unseen_weight=now.unseen_weight)
    now = chosen([now._replace(l2_factor=one) for one in penalties])
    now = chosen([now._replace(dim=one) for one in dims])
    error = -float(hits_of(now).sum())
    return LikesChoice(
        now.dim, now.l2_factor, error, unseen_weight=now.unseen_weight, judged=tuple(tried.values())
    )


def _weighted(found: Found) -> tuple[np.ndarray, dict[str, float]]:
    """weight · hit of every held-out like, over the sum of the weights that choose; and its sum by
    each of `POWERS`."""
    inverse = found.weight("popularity")
    hits = {
        name: found.within(K) * inverse**power / np.sum(inverse**power)
        for name, power in POWERS.items()
    }
    return hits[CHOOSES], {name: round(float(hit.sum()), 5) for name, hit in hits.items()}


def _fitted(
    prepared: Prepared, log: Log, users: slice, one: Setting
) -> tuple[np.ndarray, np.ndarray]:
    """`all-rank` on these rows, roughly, as factors."""
    settings, seen = prepared.settings, float(len(log))
    share = one.unseen_weight / max(log.n_pairs - seen, 1.0)
    ones = log.filled(lambda rows: np.ones(rows.stop - rows.start))
    zeros = log.filled(lambda rows: np.zeros(rows.stop - rows.start))
    columns = {"r": ones, "a": ones, "b": ones, "m": zeros}
    nothing = constant(prepared, 0.0)
    nothing = replace(nothing, lefts=(nothing.lefts[0][users],))
    objective = Objective(
        log, UnseenLoss(1.0 / max(seen, 1.0), share), columns, 1.0, share, nothing
    )
    backbone = prepared.backbone("likes path")
    l2, l2_features = settings.l2_number * one.l2_factor, settings.l2_features * one.l2_factor
    model = linear_model(backbone, l2, l2_features, users, log.total)
    start = spectral_start(objective, model, point_of(backbone, users))
    point = ROUGH.minimise(objective, model, start).point
    return tuple(side.detach().cpu().float().numpy() for side in model.factors(point))  # type: ignore[return-value]
