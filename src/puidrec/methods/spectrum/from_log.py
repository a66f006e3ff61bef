"""What a log says of its users and items beside the fitted members: exposure factors as scores, and
modulators.

Exposure factors are rank-r reconstructions of D_u^-½ O D_i^-½, O the matrix of logged pairs and D
the counts plus 1. Hidden tastes drive exposure, so exposure carries them. The leading direction is
activity times popularity; it is taken off, since members and modulators have both.

Modulators are what mixing weights may depend on: activity, popularity, level of a user's ratings,
level and dispersion of an item's, features. Each is a standardised number per user or item, so that
0 is the average entity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy import sparse

from puidrec.data.row_matrix import RowMatrix, entity_keys, leading_svd, row_hashes
from puidrec.methods.prepare import Prepared
from puidrec.scores.features import Design
from puidrec.scores.low_rank import LowRank

RANKS = (4, 16, 48)
RATED_RANKS = (16, 48)
RATED = "exposure × rating"
SHRINK = 10.0
"""Ratings that a spread is worth before an item has any of its own."""


@dataclass(frozen=True, eq=False)
class ExposureScores:
    """Singular vectors of scaled exposure and of scaled ratings, as scores of all pairs."""

    seen: LowRank
    """Exposure alone, the leading direction taken off; columns by falling strength."""
    rated: LowRank
    """The same with ratings in [0, 1] in place of ones."""

    @property
    def named(self) -> dict[str, LowRank]:
        """The reconstructions, from coarse to fine."""
        return _cut("exposure", self.seen, RANKS) | _cut(RATED, self.rated, RATED_RANKS)


def _cut(name: str, scores: LowRank, ranks: Sequence[int]) -> dict[str, LowRank]:
    """The first directions of scores, whose leading one is off already; the last cut keeps all."""
    left, right = scores.lefts[0], scores.rights[0]
    cuts = dict.fromkeys([rank - 1 for rank in ranks if rank - 1 < left.shape[1]] + [left.shape[1]])
    return {f"{name} {cut + 1}": LowRank.of(left[:, :cut], right[:, :cut]) for cut in cuts if cut}


def exposure_scores(ratings: RowMatrix) -> ExposureScores:
    """Factors of a log; `ratings` are its targets in [0, 1]."""
    keys = entity_keys(ratings, 0)
    start = (keys[0] if ratings.shape[0] < ratings.shape[1] else keys[1]) / 2.0**63 - 1.0
    seen = _leading(ratings.map(lambda part: np.ones(part.values.size)), max(RANKS), start)
    rated = _leading(ratings, max(RATED_RANKS), start)
    return ExposureScores(_scores(seen, 1), _scores(rated, 1))


def label_free_order(ratings: RowMatrix) -> np.ndarray:
    """The rows of a log in a random order that does not depend on the names of users and items."""
    return np.argsort(row_hashes(ratings, 0), kind="stable")


def looked_at(exposure: Mapping[str, np.ndarray]) -> np.ndarray:
    """The exposure scores that the sign check looks at: of medium rank, without ratings; there is
    one at least."""
    finest = [values for name, values in exposure.items() if not name.startswith(RATED)]
    return finest[min(1, len(finest) - 1)]


def _leading(
    matrix: RowMatrix, rank: int, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular vectors of D_u^-½ M D_i^-½ by falling strength."""
    users = 1.0 / np.sqrt(np.diff(matrix.row_start) + 1.0)
    items = 1.0 / np.sqrt(matrix.item_count + 1.0)
    scaled = matrix.map(lambda part: part.values * part.of_users(users) * items[part.item])
    rank = min(rank, min(matrix.shape) - 1)
    if rank < 1 or not scaled.any():
        return np.zeros((matrix.shape[0], 0)), np.zeros(0), np.zeros((0, matrix.shape[1]))
    return leading_svd(scaled.operator, rank, start, tol=1e-5)


def _scores(found: tuple[np.ndarray, np.ndarray, np.ndarray], without: int) -> LowRank:
    """The reconstruction without its first directions."""
    left, strength, right = (found[0][:, without:], found[1][without:], found[2][without:])
    size = np.sqrt(strength)
    return LowRank.of(
        torch.from_numpy(left * size).float(), torch.from_numpy((right.T * size).copy()).float()
    )


def modulators(prepared: Prepared) -> list[tuple[Literal["user", "item"], str, np.ndarray]]:
    """(side, name, standardised values) of each modulator of a log."""
    ratings = prepared.log.ratings
    count, users = ratings.item_count, np.diff(ratings.row_start)
    total, squares = (
        ratings.sum_by_item(lambda part: part.values),
        ratings.sum_by_item(lambda part: part.values**2),
    )
    mean = total.sum() / max(ratings.nnz, 1)
    spread = squares.sum() / max(ratings.nnz, 1) - mean**2
    level = (total + SHRINK * mean) / (count + SHRINK)
    given = np.concatenate([np.asarray(part.matrix.sum(1)).ravel() for part in ratings.parts()])
    own = squares - total**2 / np.maximum(count, 1)
    found: list[tuple[Literal["user", "item"], str, np.ndarray]] = [
        ("user", "activity", np.log1p(users)),
        ("user", "user level", (given + SHRINK * mean) / (users + SHRINK)),
        ("item", "popularity", np.log1p(count)),
        (
            "item",
            "dispersion",
            np.sqrt(np.maximum((own + SHRINK * spread) / (count + SHRINK), 0.0)),
        ),
        ("item", "level", level),
    ]
    designs = prepared.log.designs
    if "user_id" in designs:
        found.append(("user", "user features", leading_feature(designs["user_id"])))
    if "item_id" in designs:
        found.append(("item", "item features", leading_feature(designs["item_id"])))
    return [
        (side, name, standard)
        for side, name, values in found
        if (standard := standardised(values)).any()
    ]


def standardised(values: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1, within three of them; 0 where all are alike."""
    spread = float(values.std())
    return (
        np.clip((values - values.mean()) / spread, -3.0, 3.0)
        if spread > 1e-9
        else np.zeros(values.size)
    )


def leading_feature(design: Design) -> np.ndarray:
    """The second singular direction of a feature matrix: the first is what all entities share."""
    pattern = design.pattern
    x = sparse.csr_matrix(
        (
            design.values.cpu().numpy().astype(np.float64),
            pattern.col.cpu().numpy(),
            pattern.row_start.cpu().numpy(),
        ),
        shape=(design.n_rows, design.n_columns),
    )
    if min(x.shape) < 4:
        return np.zeros(design.n_rows)
    start = np.random.default_rng(0).standard_normal(min(x.shape))
    return leading_svd(x, 2, start)[0][:, 1]
