"""What mixing weights may depend on: activity, popularity, dispersion and level of an item's ratings, features.

Each is a standardised number per user or item, so that 0 is the average entity. A mixture that varies with them is a
personal Γ that was learned.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from puidrec.backbones.features import Design
from puidrec.train.prepare import Prepared

SHRINK = 10.0
"""Ratings that a spread is worth before an item has any of its own."""


def modulators(prepared: Prepared) -> list[tuple[Literal["user", "item"], str, np.ndarray]]:
    """(side, name, standardised values) of each modulator of a log."""
    ratings = prepared.log.ratings
    count, users = ratings.item_count, np.diff(ratings.row_start)
    total, squares = ratings.sum_by_item(lambda part: part.values), ratings.sum_by_item(lambda part: part.values**2)
    mean = total.sum() / max(ratings.nnz, 1)
    spread = squares.sum() / max(ratings.nnz, 1) - mean**2
    level = (total + SHRINK * mean) / (count + SHRINK)
    own = squares - total**2 / np.maximum(count, 1)
    found: list[tuple[Literal["user", "item"], str, np.ndarray]] = [
        ("user", "activity", np.log1p(users)),
        ("item", "popularity", np.log1p(count)),
        ("item", "dispersion", np.sqrt(np.maximum((own + SHRINK * spread) / (count + SHRINK), 0.0))),
        ("item", "level", level),
    ]
    designs = prepared.log.designs
    if "user_id" in designs:
        found.append(("user", "user features", leading_feature(designs["user_id"])))
    if "item_id" in designs:
        found.append(("item", "item features", leading_feature(designs["item_id"])))
    return [(side, name, standard) for side, name, values in found if (standard := standardised(values)).any()]


def standardised(values: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1, within three of them; 0 where all are alike."""
    spread = float(values.std())
    return np.clip((values - values.mean()) / spread, -3.0, 3.0) if spread > 1e-9 else np.zeros(values.size)


def leading_feature(design: Design) -> np.ndarray:
    """The second singular direction of a feature matrix: the first is what all entities share."""
    pattern = design.pattern
    x = sparse.csr_matrix(
        (design.values.cpu().numpy().astype(np.float64), pattern.col.cpu().numpy(), pattern.row_start.cpu().numpy()),
        shape=(design.n_rows, design.n_columns),
    )
    if min(x.shape) < 4:
        return np.zeros(design.n_rows)
    start = np.random.default_rng(0).standard_normal(min(x.shape))
    left, strength, right = svds(x, k=2, v0=start)
    weak = int(np.argmin(strength))
    turn = -1.0 if right[weak][np.abs(right[weak]).argmax()] < 0.0 else 1.0
    return np.asarray(turn * left[:, weak])
