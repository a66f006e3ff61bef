"""Logs of likes: dim and L2 chosen together, by held-out likes.

There are no ratings whose error could choose them, so that one like in ten is held out and looked
for among the ten best items that its user has not seen. Plainly counted, that rewards guessing what
people are shown; weighted by the inverse popularity of the item, it takes all popularity for
exposure, although what is liked more is popular too, and rests on the few likes of rare items.
Weights of one over the root of popularity lie between (the usual propensity of implicit feedback:
Saito et al. 2020) and choose; all three are reported. Of settings that are not worse by more than a
standard error of the difference, the most regularised is taken.
The weight of unseen pairs is not chosen: held-out likes were shown like all others, so that they
ask for heavier weights the more a log tells of who is shown what, and not of what is liked.
The path is short: L2, then dims, by rough fits of `all-rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from puidrec.data.row_matrix import row_hashes
from puidrec.data.tables import pair_matrix
from puidrec.evaluation.unseen_items import Found, find_liked
from puidrec.losses.pair_loss import Objective, UnseenLoss
from puidrec.methods.prepare import Prepared
from puidrec.methods.unseen import constant
from puidrec.optimise.l2_path import Choice
from puidrec.optimise.least_squares import LeastSquares
from puidrec.optimise.model import linear_model, point_of
from puidrec.scores.log import Log

DIMS, FACTORS = (16, 32, 64), (3.0, 1.0, 0.3, 0.1)
K, HELD_OUT, MOST_JUDGED = 10, 10, 20_000
"""Items that are looked at, one like in so many held out, and most held-out likes that judge."""
CHOOSES = "recall_root_popularity"
POWERS = {CHOOSES: 0.5, "recall_inverse_popularity": 1.0, "recall": 0.0}
"""What is reported of every setting: recall@10 weighted by popularity to the power −0.5, −1, 0."""
ROUGH = LeastSquares(tolerance=2e-3, max_sweeps=20)


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


def choose_for_likes(
    prepared: Prepared,
    rows: tuple[np.ndarray, np.ndarray],
    users: slice,
    start: Callable[..., Any],
    told: Callable[[int, float], None] | None = None,
) -> LikesChoice:
    """Walk the path on the likes of some users.

    rows: row_start and items of these users. start: makes the point that a fit starts at.
    """
    settings, n_items = prepared.settings, prepared.data.n_items
    row_start, item = rows
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
                _fitted(own, log, users, one, start),
                (user[judge], item[judge]),
                [(kept, item[~held])],
                K,
            )
            hits[one], shares = _weighted(found)
            tried[one] = {**one._asdict(), **shares}
            if told is not None:
                told(one.dim, -shares[CHOOSES])
        return hits[one]

    def chosen(among: Sequence[Setting]) -> Setting:
        """The first that is not clearly worse than the best."""
        best = max(among, key=lambda one: float(hits_of(one).sum()))
        lack = {one: hits_of(best) - hits_of(one) for one in among}
        return next(one for one in among if lack[one].sum() <= np.sqrt(np.sum(lack[one] ** 2)))

    dims: tuple[int, ...] = DIMS if settings.dim == "auto" else (settings.dim,)
    dims = tuple(dim for dim in dims if dim <= 2 * min(log.n_users, n_items)) or dims[:1]
    penalties = FACTORS if settings.l2 == "auto" else (1.0,)
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
    prepared: Prepared, log: Log, users: slice, one: Setting, start: Callable[..., Any]
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
    point = ROUGH.minimise(
        objective, model, start(objective, model, point_of(backbone, users))
    ).point
    return tuple(side.detach().cpu().float().numpy() for side in model.factors(point))  # type: ignore[return-value]
