"""Rows to evaluate by, from a data set or from a caller's table: ids, labels, ratings, propensities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
)
from puidrec.errors import InputError
from puidrec.evaluation.ranking import check_rows


def labelled_rows(
    interactions: Interactions | Frame,
    protocol: Protocol,
    scale: tuple[float, float] | None,
    propensity: np.ndarray | None,
) -> tuple[pl.DataFrame, RatingScale | None]:
    """Rows with ids and labels (and ratings, and propensities where given), and the scale of the
    ratings."""
    if not isinstance(interactions, Interactions):
        return _labelled_frame(interactions, protocol, scale, propensity)
    part = interactions
    if propensity is not None:
        part = replace(
            part, frame=part.frame.with_columns(propensity_column(propensity, len(part)))
        )
    part = part if "label" in part.frame.columns else part.labelled(protocol)
    return part.to_frame(), part.scale


def _labelled_frame(
    table: Frame,
    protocol: Protocol,
    scale: tuple[float, float] | None,
    propensity: np.ndarray | None,
) -> tuple[pl.DataFrame, RatingScale | None]:
    """Check a caller's table; ratings become labels only on a scale the caller named."""
    origin = Origin("interactions")
    given = to_polars(table, origin)
    require_columns(given, ("user_id", "item_id"), origin)
    columns = [check_ids(given["user_id"], origin), check_ids(given["item_id"], origin)]
    columns += [
        check_number(given[name], origin) for name in ("label", "rating") if name in given.columns
    ]
    columns += [] if propensity is None else [propensity_column(propensity, given.height)]
    frame = pl.DataFrame(columns)
    rating_scale = RatingScale.of(scale)
    if "label" in frame.columns:
        return frame, rating_scale
    if "rating" not in frame.columns or rating_scale is None:
        raise origin.error(
            "no labels",
            found=", ".join(given.columns[:12]),
            expected="a column label (0/1), or a column rating and its scale",
            hint="Pass scale=(1, 5), or evaluate a part of a Dataset.",
        )
    label = pl.Series("label", protocol.label(frame["rating"].to_numpy(), rating_scale))
    return frame.with_columns(label).filter(pl.col("label") >= 0), rating_scale


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


def asked(propensity: Any, interactions: Interactions | Frame) -> np.ndarray:
    """The propensities of rows of a data set by a fitted propensity."""
    if not isinstance(interactions, Interactions):
        found, expected = (
            type(interactions).__name__,
            "a part of a Dataset, or propensities as an array",
        )
        raise InputError("a propensity is asked by codes", found=found, expected=expected)
    return np.asarray(propensity.predict(interactions.user, interactions.item, interactions.rating))
