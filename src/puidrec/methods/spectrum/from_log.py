"""What a log says of its users and items beside the fitted members: exposure factors as scores,
modulators, and its own ratings beside a model and exposure factors that were made without them.

Exposure factors are rank-r reconstructions of D_u^-½ O D_i^-½, O the matrix of logged pairs and D
the counts plus 1. Hidden tastes drive exposure, so exposure carries them. The leading direction is
activity times popularity; it is taken off, since members and modulators have both.

Modulators are what mixing weights may depend on: activity, popularity, level of a user's ratings,
level and dispersion of an item's, features. Each is a standardised number per user or item, so that
0 is the average entity.

Held-out rows of the log are judged by the fits at hand (`out_of_fold`). Where they are few, the log
is divided into parts, and each part is judged by fits to the others, until there are rows enough to
tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import nnls

from puidrec.data.dataset import Interactions
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.row_matrix import (
    entity_keys,
    item_count,
    leading_svd,
    row_hashes,
    with_values,
)
from puidrec.exposure.tilt import SignCheck, log_controls, sign_check
from puidrec.methods.dim_and_l2 import with_chosen_l2
from puidrec.methods.prepare import Prepared
from puidrec.methods.stages import train_stages
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank
from puidrec.scores.towers import Design

COARSE, RANK, FINE = 4, 16, 48
EXPOSURE, RATED = f"exposure {RANK}", f"exposure × rating {RANK}"
FINE_RATED = f"exposure × rating {FINE}"
EDGE = 0.01
"""Ratings in 0..1 count as at least this far from either end."""
SHRINK = 10.0
"""Ratings that a spread is worth before an item has any of its own."""
PARTS = 5
ENOUGH = 50_000
"""Rows from which no further part of the log is set aside."""
SWEEPS = 40
"""Most sweeps of a fit that only judges."""
MOST_FROM_DISK = 1_000_000
"""Rows up to which a log on disk is read into memory for this. Larger ones hold out enough rows by
themselves."""


def exposure_scores(ratings: sparse.csr_array) -> dict[str, LowRank]:
    """Reconstructions of scaled exposure, then of scaled ratings, from coarse to fine; `ratings`
    are the log's targets in [0, 1]."""
    keys, found = entity_keys(ratings, 0), dict[str, LowRank]()
    start = (keys[0] if ratings.shape[0] < ratings.shape[1] else keys[1]) / 2.0**63 - 1.0
    seen = with_values(ratings, np.ones(ratings.nnz))
    for matrix, names in (
        (seen, {f"exposure {COARSE}": COARSE, EXPOSURE: RANK, f"exposure {FINE}": FINE}),
        (ratings, {RATED: RANK, FINE_RATED: FINE}),
    ):
        left, strength, right = _leading(matrix, FINE, start)
        size = np.sqrt(strength)
        sides = [torch.from_numpy(side * size).float() for side in (left, right.T)]
        if size.size > 1:  # the leading direction is off
            found |= {
                name: LowRank.of(*(side[:, 1:cut] for side in sides)) for name, cut in names.items()
            }
    return found


def label_free_order(ratings: sparse.csr_array) -> np.ndarray:
    """The rows of a log in a random order that does not depend on the names of users and items."""
    return np.argsort(row_hashes(ratings, 0), kind="stable")


def _leading(
    matrix: sparse.csr_array, rank: int, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular vectors of D_u^-½ M D_i^-½ by falling strength."""
    users = 1.0 / np.sqrt(np.diff(matrix.indptr) + 1.0)
    items = 1.0 / np.sqrt(item_count(matrix) + 1.0)
    scaled = sparse.csr_array(sparse.diags_array(users) @ matrix @ sparse.diags_array(items))
    rank = min(rank, min(matrix.shape) - 1)
    if rank < 1 or not scaled.data.any():
        return np.zeros((matrix.shape[0], 0)), np.zeros(0), np.zeros((0, matrix.shape[1]))
    return leading_svd(scaled, rank, start, tol=1e-5)


def modulators(prepared: Prepared) -> list[tuple[Literal["user", "item"], str, np.ndarray]]:
    """(side, name, standardised values) of each modulator of a log."""
    ratings = prepared.log.ratings
    count, users = item_count(ratings), np.diff(ratings.indptr)
    total, squares = ratings.sum(0), with_values(ratings, ratings.data**2).sum(0)
    mean = total.sum() / max(ratings.nnz, 1)
    within, usual = squares - total**2 / np.maximum(count, 1), squares.sum() / max(ratings.nnz, 1)

    def shrunk(own: np.ndarray, n: np.ndarray, usual: float) -> np.ndarray:
        return np.asarray((own + SHRINK * usual) / (n + SHRINK))

    found: list[tuple[Literal["user", "item"], str, np.ndarray]] = [
        ("user", "activity", np.log1p(users)),
        ("user", "user level", shrunk(ratings.sum(1), users, mean)),
        ("item", "popularity", np.log1p(count)),
        ("item", "dispersion", np.sqrt(np.maximum(shrunk(within, count, usual - mean**2), 0.0))),
        ("item", "level", shrunk(total, count, mean)),
    ]
    designs = prepared.log.designs
    if "user_id" in designs:
        found.append(("user", "user features", leading_feature(designs["user_id"])))
    if "item_id" in designs:
        found.append(("item", "item features", leading_feature(designs["item_id"])))
    # mean 0 and standard deviation 1, within three of them; none where all are alike
    return [
        (side, name, np.clip((values - values.mean()) / spread, -3.0, 3.0))
        for side, name, values in found
        if (spread := float(values.std())) > 1e-9
    ]


def leading_feature(design: Design) -> np.ndarray:
    """The second singular direction of a feature matrix: the first is what all entities share."""
    rows = design.pattern
    parts = (part.cpu().numpy() for part in (design.values.double(), rows.col, rows.row_start))
    x = sparse.csr_array(tuple(parts), shape=(design.n_rows, design.n_columns))
    if min(x.shape) < 4:
        return np.zeros(design.n_rows)
    start = np.random.default_rng(0).standard_normal(min(x.shape))
    return leading_svd(x, 2, start)[0][:, 1]


class LogNoise(NamedTuple):
    """How far ratings of the log are from `mf`."""

    mean: float
    """Of squared residuals."""
    constant: float
    by_level: float
    """Squared residuals as constant + by_level · q(1 − q), q what `mf` says: of likes and dislikes
    it is the second alone, of ratings with many levels rather the first."""

    @classmethod
    def of(cls, prepared: Prepared, mf: LowRank) -> LogNoise:
        """By least squares over the training rows."""
        log, gram, moments = prepared.log, np.zeros((2, 2)), np.zeros(2)
        for part in log.rows.parts():
            q = pair_scores(mf, part.user, part.item).astype(np.float64)
            x = np.column_stack([np.ones(q.size), _binary(q)])
            gram += x.T @ x
            moments += x.T @ (log.target(part) - q) ** 2
        factor = np.linalg.cholesky(gram + 1e-9 * gram[0, 0] * np.eye(2))
        found, _ = nnls(factor.T, np.linalg.solve(factor, moments))
        return cls(float(moments[0] / gram[0, 0]), *map(float, found))

    def relative(self, q: np.ndarray, residual: np.ndarray) -> np.ndarray:
        """Variances v of other rows, mean 1: by the share of 1 − ω + ω · (that of the log) that
        their own residuals ask for, averaged over ω by the likelihood of normal residuals."""
        own = self.constant + self.by_level * _binary(q)
        own /= own.mean()
        candidates = [1.0 - share + share * own for share in np.linspace(0.0, 1.0, 5)]
        fits = []
        for v in candidates:
            rest = residual - np.average(residual, weights=1.0 / v)
            fits.append(-0.5 * (np.log(v).sum() + v.size * np.log(np.mean(rest**2 / v))))
        weight = np.exp(np.array(fits) - max(fits))
        return np.asarray(np.average(candidates, 0, weight))


def _binary(q: np.ndarray) -> np.ndarray:
    """The variance of a rating that is 0 or 1."""
    q = np.clip(q, EDGE, 1.0 - EDGE)
    return np.asarray(q * (1.0 - q))


class OutOfFold(NamedTuple):
    """Logged rows beside what was predicted for them without them."""

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray
    """Ratings in [0, 1]."""
    prediction: np.ndarray
    """Of `mf`."""
    exposure: dict[str, np.ndarray]
    """Exposure scores by name."""
    controls: np.ndarray

    @property
    def sign(self) -> SignCheck:
        """Whether ratings rise with exposure."""
        exposure = self.exposure.get(EXPOSURE, np.zeros(self.user.size))
        return sign_check(self.target, self.prediction, exposure, self.user, self.controls)


def out_of_fold(
    prepared: Prepared, mf: LowRank | None = None, exposure: Mapping[str, LowRank] | None = None
) -> OutOfFold | None:
    """The log's evidence; None where there is none: a log of likes, or a large one on disk without
    held-out rows.

    mf: the fit to all training rows, where held-out rows may be judged by it. exposure: the scores
    of these rows, if they are made already.
    """
    if prepared.data.positives_only:
        return None
    found = list[OutOfFold]()
    held_out = prepared.split.validation
    if mf is not None and prepared.split.selection == "logged" and len(held_out):
        found.append(_judged(prepared, mf, held_out, exposure))
    found.extend(_parts(prepared, ENOUGH - sum(one.user.size for one in found)))
    if not found:
        return None
    names = [name for name in found[0].exposure if all(name in one.exposure for one in found)]
    scores = {name: np.concatenate([one.exposure[name] for one in found]) for name in names}
    user, item, target, prediction, controls = (
        np.concatenate([getattr(one, name) for one in found])
        for name in ("user", "item", "target", "prediction", "controls")
    )
    return OutOfFold(user, item, target, prediction, scores, controls)


def _parts(prepared: Prepared, enough: int) -> Iterator[OutOfFold]:
    """Parts of the training rows, each judged by a fit to all others, until there are enough rows.

    dim and L2 are those of the whole log: to choose them once per part would cost more than the
    fits.
    """
    rows = prepared.split.train
    if enough <= 0 or (isinstance(rows, StoredInteractions) and len(rows) > MOST_FROM_DISK):
        return
    prepared, _ = with_chosen_l2(prepared)
    settings = prepared.settings
    part = np.empty(len(rows), np.int64)
    part[label_free_order(prepared.log.ratings)] = np.arange(len(rows)) % PARTS
    most = min(settings.epochs, SWEEPS)
    own = settings.replace(method="mf", gamma="auto", normalise=False, select="none", epochs=most)
    for k in range(PARTS):
        train, held = (rows.take(np.flatnonzero(which)) for which in (part != k, part == k))
        if enough <= 0 or not len(train) or not len(held):
            return
        others = Prepared.of(prepared.data, replace(prepared.split, train=train), own)
        yield _judged(others, train_stages(others).phi, held)
        enough -= len(held)


def _judged(
    prepared: Prepared, mf: LowRank, held: Interactions, named: Mapping[str, LowRank] | None = None
) -> OutOfFold:
    """Rows beside the predictions and exposure scores of a log that does not hold them."""
    user, item, ratings = held.user, held.item, prepared.log.ratings
    named = exposure_scores(ratings) if named is None else named
    prediction, *scores = (
        pair_scores(one.detach(), user, item).astype(np.float64) for one in (mf, *named.values())
    )
    exposure = dict(zip(named, scores, strict=True))
    controls = log_controls(ratings, user, item)
    return OutOfFold(user, item, prepared.log.target(held), prediction, exposure, controls)
