"""Who is like whom: items that the same users would like, users who would like the same items.

Two items are as similar as their scores over all users are correlated, each user's mean score taken
off; users likewise over items. That is a property of the scores, not of how they are factored: with
factors r_i of items and S the covariance of the users' factors it is the cosine of (r_i − r̄) S^½,
which holds for any model here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from puidrec.entities import Side, known_codes, require_positive

if TYPE_CHECKING:
    from puidrec.model import Recommender

PAIRS = 2**24
"""Similarities computed at once: 64 MB. No matrix of all pairs is made."""


def similar(model: Recommender, side: Side, wanted: Any, k: int) -> pl.DataFrame:
    """The k nearest of each wanted entity: its id, `similar_id, similarity, rank`."""
    k = require_positive(k)
    sides = {
        "user": (model.user_ids_, model.user_factors_),
        "item": (model.item_ids_, model.item_factors_),
    }
    (ids, own), (_, other) = sides[side], sides["item" if side == "user" else "user"]
    codes = known_codes(ids, wanted, side)
    place, value = nearest(profiles(own, other), codes, k)
    return pl.DataFrame(
        {
            f"{side}_id": ids.decode(np.repeat(codes, place.shape[1])),
            "similar_id": ids.decode(place.ravel()),
            "similarity": value.ravel(),
            "rank": np.tile(np.arange(1, place.shape[1] + 1, dtype=np.int32), codes.size),
        }
    )


def profiles(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Vectors of length 1 (or 0, where there is nothing to tell apart) whose inner products are the
    similarities."""
    centred = own.astype(np.float64) - own.mean(0, dtype=np.float64)
    spread = other.astype(np.float64) - other.mean(0, dtype=np.float64)
    values, axes = np.linalg.eigh(spread.T @ spread / len(other))
    kept = values > 1e-12 * max(float(values.max(initial=0.0)), 1e-300)
    vectors = centred @ (axes[:, kept] * np.sqrt(values[kept]))
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    small = length <= 1e-7 * max(float(length.max(initial=0.0)), 1e-300)
    return np.where(small, 0.0, vectors / np.where(small, 1.0, length)).astype(np.float32)


def nearest(vectors: np.ndarray, wanted: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and similarities of the k nearest others of each wanted row, nearest first; ties by
    position."""
    n = len(vectors)
    k = min(k, n - 1)
    every = torch.from_numpy(np.ascontiguousarray(vectors))
    place, value = np.zeros((wanted.size, k), np.int64), np.zeros((wanted.size, k), np.float32)
    step = max(1, PAIRS // max(n, 1))
    room = torch.empty(
        min(step, wanted.size), n
    )  # used again for every block: new memory costs more than the product
    for start in range(0, wanted.size, step):
        block = torch.from_numpy(wanted[start : start + step].astype(np.int64))
        scores = torch.mm(every[block], every.T, out=room[: len(block)])
        scores[torch.arange(len(block)), block] = -torch.inf
        best, at = _largest(scores, k)
        order = np.lexsort((at.numpy(), -best.numpy()))  # by similarity, then by position
        place[start : start + step] = np.take_along_axis(at.numpy(), order, 1)
        value[start : start + step] = np.take_along_axis(best.numpy(), order, 1)
    return place, value


def _largest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row: the k groups of columns with the largest maxima hold them (as
    `ranking.top_k`)."""
    n = scores.shape[1]
    size = max(1, int((n / max(k, 1)) ** 0.5))
    groups = n // size
    if k * size * 4 > n or groups <= k:
        return torch.topk(scores, k, 1)
    maxima = scores[:, : groups * size].view(len(scores), groups, size).amax(2)
    chosen = torch.topk(maxima, k, 1, sorted=False)[1]
    columns = (chosen[:, :, None] * size + torch.arange(size)).flatten(1)
    rest = torch.arange(groups * size, n).expand(
        len(scores), -1
    )  # the last columns, a part of a group
    columns = torch.cat([columns, rest], 1)
    best, at = torch.topk(scores.gather(1, columns), k, 1)
    return best, columns.gather(1, at)
