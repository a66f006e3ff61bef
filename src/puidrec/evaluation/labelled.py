"""Rows to evaluate by, from a data set or from a caller's table: ids, labels, ratings,
propensities, and strata of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import Interactions
from puidrec.data.protocol import Protocol
from puidrec.data.schema import (
    Frame,
    Origin,
    RatingScale,
    check_ids,
    check_number,
    require_columns,
    to_polars,
    with_our_names,
)
from puidrec.data.tables import OverlapRule, require_fresh
from puidrec.errors import InputError
from puidrec.evaluation.ndcg import Users
from puidrec.evaluation.ranking import check_rows

Target = Literal["rating", "binary", "label"]
"""What scores are compared with: ratings scaled to [0, 1] (labels 0/1 where there are none), ±1, or
0/1."""


@dataclass(frozen=True)
class RatedRows:
    """Rows to evaluate by, and how: what `evaluate` was asked, whatever the model."""

    given: Interactions | Frame
    protocol: Protocol
    scale: tuple[float, float] | None
    target: Target
    users: Users
    overlap: OverlapRule
    exclude: Interactions | Frame | None
    propensity: Any = None

    @cached_property
    def train(self) -> pl.DataFrame | None:
        """The rows to leave out of lists, first of all those of training, by the caller's ids."""
        part, origin = self.exclude, Origin("exclude")
        if part is None:
            return None
        if isinstance(part, Interactions):
            return part.to_frame().select("user_id", "item_id")
        frame = with_our_names(to_polars(part, origin))
        require_columns(frame, ("user_id", "item_id"), origin)
        return pl.DataFrame([check_ids(frame[key], origin) for key in ("user_id", "item_id")])

    @cached_property
    def propensities(self) -> np.ndarray | None:
        """One per row, as given, or as a fitted propensity says of rows of a data set."""
        if not hasattr(self.propensity, "predict"):
            return None if self.propensity is None else np.asarray(self.propensity)
        rows = self.given
        if not isinstance(rows, Interactions):
            expected = "a part of a Dataset, or propensities as an array"
            raise InputError(
                "a propensity is asked by codes", found=type(rows).__name__, expected=expected
            )
        return np.asarray(self.propensity.predict(rows.user, rows.item, rows.rating))

    def labelled(self) -> tuple[pl.DataFrame, RatingScale | None]:
        """Ids and labels (ratings and propensities too, if given), and the scale of ratings."""
        part, propensity = self.given, self.propensities
        if not isinstance(part, Interactions):
            return self._labelled_frame(propensity)
        if propensity is not None:
            column = propensity_column(propensity, len(part))
            part = replace(part, frame=part.frame.with_columns(column))
        part = part if "label" in part.frame.columns else part.labelled(self.protocol)
        return part.to_frame(), part.scale

    def _labelled_frame(
        self, propensity: np.ndarray | None
    ) -> tuple[pl.DataFrame, RatingScale | None]:
        """Check a caller's table; ratings become labels only on a scale the caller named."""
        origin = Origin("interactions")
        given = to_polars(self.given, origin)
        require_columns(given, ("user_id", "item_id"), origin)
        columns = [check_ids(given["user_id"], origin), check_ids(given["item_id"], origin)]
        numeric = (name for name in ("label", "rating") if name in given.columns)
        columns += [check_number(given[name], origin) for name in numeric]
        columns += [] if propensity is None else [propensity_column(propensity, given.height)]
        frame = pl.DataFrame(columns)
        scale = RatingScale.of(self.scale)
        if "label" in frame.columns:
            return frame, scale
        if "rating" not in frame.columns or scale is None:
            raise origin.error(
                "no labels",
                found=", ".join(given.columns[:12]),
                expected="a column label (0/1), or a column rating and its scale",
                hint="Pass scale=(1, 5), or evaluate a part of a Dataset.",
            )
        label = pl.Series("label", self.protocol.label(frame["rating"].to_numpy(), scale))
        return frame.with_columns(label).filter(pl.col("label") >= 0), scale

    def fresh(self, model: Any, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """The rows without those that the model says it was trained on, and how many these are."""
        if not hasattr(model, "trained_on"):
            return frame, 0
        known = model.trained_on(frame["user_id"], frame["item_id"])
        n_known = int(known.sum())
        if self.overlap == "keep" or not n_known:
            return frame, n_known
        words = (
            "most of these rows were trained on (fit(data, protocol='rd') keeps some to test with)"
        )
        require_fresh(frame.height, n_known, words)
        return frame.filter(~known), n_known

    def n_new_users(self, model: Any, frame: pl.DataFrame) -> int | None:
        """Users of the rows without a training row; None where the training rows are not known."""
        counts = training_counts(model, self.train)
        if counts is None:
            return None
        return int((rows_of(counts, frame.unique("user_id"), "user_id") == 0).sum())

    def strata(self, model: Any, by: str) -> list[tuple[str, RatedRows]]:
        """The rows of each stratum."""
        part = self.given
        own = isinstance(part, Interactions)
        frame = part.to_frame() if own else with_our_names(to_polars(part, Origin("interactions")))
        stratum = strata_of(frame, training_counts(model, self.train), by)
        found = []
        for name in sorted(set(stratum)):
            mine = stratum == name
            rows = part.take(mine) if own else frame.filter(pl.Series(mine))
            p = None if self.propensities is None else self.propensities[mine]
            found.append((name, replace(self, given=rows, propensity=p)))
        return found


def propensity_column(propensity: np.ndarray, n: int) -> pl.Series:
    """The propensities of rows as a column; refuses those outside (0, 1]."""
    p = numbers(propensity).astype(np.float64)
    check_rows("propensity", p, n, kind="a probability above 0", positive=True)
    if p.max() > 1:
        row = int(p.argmax())
        raise InputError("propensity above 1", row=row + 1, found=float(p[row]), expected="(0, 1]")
    return pl.Series("propensity", p)


def numbers(values: Any) -> np.ndarray:
    """Numbers as float32 or float64; scores of a float32 model are not widened, so their ties stay
    ties."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError("not numbers", found=str(array.dtype), expected="one number per row")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


# Strata

STRATA = ("popularity", "activity", "known")


def training_counts(model: Any, train: pl.DataFrame | None) -> dict[str, pl.DataFrame] | None:
    """Training rows of each user and item, from a model that knows its own, or from those given;
    None where neither is there."""
    keys = "user_id", "item_id"
    if not hasattr(model, "seen_"):
        return None if train is None else {key: train.group_by(key).len("rows") for key in keys}
    start, items = model.seen_
    counts = np.diff(start), np.bincount(np.asarray(items), minlength=len(model.item_ids_))
    ids = model.user_ids_.ids, model.item_ids_.ids
    return {
        key: pl.DataFrame({key: own, "rows": count})
        for key, own, count in zip(keys, ids, counts, strict=True)
    }


def rows_of(counts: dict[str, pl.DataFrame], frame: pl.DataFrame, key: str) -> np.ndarray:
    """Training rows of the user or item (`key`) of each row, 0 where there are none."""
    found = frame.select(key).join(counts[key], on=key, how="left", maintain_order="left")
    return found["rows"].fill_null(0).to_numpy()


def strata_of(frame: pl.DataFrame, counts: dict[str, pl.DataFrame] | None, by: str) -> np.ndarray:
    """The stratum of each row: a third of the rows each for popularity and activity; for `known`
    whether training has met the user and the item."""
    if by not in STRATA:
        raise InputError("unknown strata", found=by, expected=f"one of {', '.join(STRATA)}")
    if counts is None:
        raise InputError(
            "strata need the training rows",
            found=f"by={by!r}",
            expected="a fitted Recommender, or exclude=train",
        )
    if by == "known":
        known = [
            np.where(rows_of(counts, frame, f"{side}_id") > 0, f"known {side}", f"new {side}")
            for side in ("user", "item")
        ]
        return np.char.add(np.char.add(known[0], ", "), known[1])
    side = "item" if by == "popularity" else "user"
    rows = rows_of(counts, frame, f"{side}_id")
    first, second = np.quantile(rows, (1 / 3, 2 / 3), method="inverted_cdf").astype(int)
    words = (f"0 to {first}", f"{first + 1} to {second}", f"{second + 1} to …")
    named = np.array([f"{side}s with {part} training rows" for part in words])
    return named[np.searchsorted([first, second], rows)]
