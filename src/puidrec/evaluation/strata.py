"""Strata of rows: by how popular items are, how active users are, and who was in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from puidrec.errors import InputError

STRATA = ("popularity", "activity", "new")
NAMES = ("few", "some", "many")


@dataclass(frozen=True)
class TrainingCounts:
    """Training rows of each user and item."""

    users: pl.DataFrame
    items: pl.DataFrame

    @classmethod
    def of(cls, model: Any, train: pl.DataFrame | None) -> TrainingCounts | None:
        """From training rows given, or from a model that knows its own; None where neither is
        there."""
        if train is not None:
            return cls(*(train.group_by(key).len("rows") for key in ("user_id", "item_id")))
        if not hasattr(model, "seen_"):
            return None
        start, items = model.seen_
        counts = np.diff(start), np.bincount(np.asarray(items), minlength=len(model.item_ids_))
        ids = model.user_ids_.ids, model.item_ids_.ids
        return cls(
            *(
                pl.DataFrame({key: own, "rows": count})
                for key, own, count in zip(("user_id", "item_id"), ids, counts, strict=True)
            )
        )

    def rows(self, frame: pl.DataFrame, key: str) -> np.ndarray:
        """Training rows of the user or item of each row, 0 where there are none."""
        table = self.users if key == "user_id" else self.items
        found = frame.select(key).join(table, on=key, how="left", maintain_order="left")["rows"]
        return found.fill_null(0).to_numpy()


def strata_of(frame: pl.DataFrame, counts: TrainingCounts | None, by: str) -> np.ndarray:
    """The stratum of each row: a third of the rows each for popularity and activity, new or known
    for `new`."""
    if by not in STRATA:
        raise InputError("unknown strata", found=by, expected=f"one of {', '.join(STRATA)}")
    if counts is None:
        raise InputError(
            "strata need the training rows",
            found=f"by={by!r}",
            expected="a fitted Recommender, or exclude=train",
        )
    if by == "new":
        known = {key: counts.rows(frame, key) > 0 for key in ("user_id", "item_id")}
        words = np.where(known["user_id"], "known user", "new user").astype(object)
        named: np.ndarray = words + np.where(known["item_id"], ", known item", ", new item").astype(
            object
        )
        return named
    key, what = ("item_id", "item") if by == "popularity" else ("user_id", "user")
    rows = counts.rows(frame, key)
    edges = np.quantile(rows, (1 / 3, 2 / 3), method="inverted_cdf")
    third = np.searchsorted(edges, rows, side="left")
    low = [0, *(int(edge) + 1 for edge in edges)]
    high = [*(f"{int(edge)}" for edge in edges), "…"]
    return np.array(
        [f"{what}s with {low[k]} to {high[k]} training rows" for k in range(3)], object
    )[third]
