"""Models of other packages: anything with `predict`, a function of pairs, a table of scores, a
table of recommendations.

Scores may be on another scale than ratings (an implicit ALS, logits): `outcome_scale` finds out
which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import (
    Frame,
    Origin,
    RatingScale,
    check_ids,
    check_number,
    require_columns,
    require_rows,
    to_polars,
    with_our_names,
)
from puidrec.errors import InputError
from puidrec.evaluation.unseen_items import UNSEEN

ScoreScale = Literal["unit", "rating", "other"]
"""Ratings scaled to [0, 1], the data set's own ratings, or neither."""
MARGIN = 0.25
"""How far beyond the scale of ratings, as a share of its width, scores of ratings may lie."""
MAX_SHIFT = 0.25
"""How far their mean may lie from that of the ratings, as a share of the width."""


class Predictor(Protocol):
    """Anything that scores pairs of the caller's own ids."""

    def predict(self, users: Any, items: Any) -> Any:
        """One score per pair."""


def unit_scores(model: Predictor, users: Any, items: Any) -> Any:
    """Scores that compare with ratings scaled to [0, 1]: a model that knows its rating scale is
    asked for these."""
    return model.predict(
        users, items, **({"scale": "unit"} if hasattr(model, "rating_scale_") else {})
    )


def finite_scores(model: Predictor, users: pl.Series, items: pl.Series, name: str) -> np.ndarray:
    """`unit_scores`, float64; refused unless it is one finite number per pair."""
    try:
        given = np.asarray(unit_scores(model, users.to_numpy(), items.to_numpy()), np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} could not score the rows", found=str(error)[:100]) from error
    if given.shape != (users.len(),):
        raise InputError(
            f"{name} must give one score per pair",
            found=f"an array of shape {given.shape}",
            expected=f"({users.len()},)",
        )
    bad = np.flatnonzero(~np.isfinite(given))
    if bad.size:
        raise InputError(
            f"scores of {name} must be finite numbers ({bad.size:,} are not)",
            found=f"{given[bad[0]]} for user {users[int(bad[0])]}, item {items[int(bad[0])]}",
        )
    return given


def outcome_scale(score: np.ndarray, outcome: np.ndarray, scale: RatingScale) -> ScoreScale:
    """Which scale scores are on: nearly all within it, and their mean not far from that of the
    ratings.

    outcome: the ratings scaled to [0, 1]. Where both scales fit, as for ratings from 0 to 1, they
    are the same.
    """
    width = scale.high - scale.low
    for name, low, span in (("rating", scale.low, width), ("unit", 0.0, 1.0)):
        unit = (score - low) / span
        inside = np.mean((unit >= -MARGIN) & (unit <= 1.0 + MARGIN)) >= 0.99
        if inside and abs(float(unit.mean()) - float(outcome.mean())) <= MAX_SHIFT:
            return name  # type: ignore[return-value]
    return "other"


def to_unit(score: np.ndarray, kind: ScoreScale, scale: RatingScale) -> np.ndarray:
    """Scores of ratings on [0, 1]; those of a model that leaves the scale may be outside."""
    return (score - scale.low) / (scale.high - scale.low) if kind == "rating" else score


def is_table(given: Any) -> bool:
    """Whether this is a table of scores or recommendations, not a model."""
    return isinstance(given, pl.DataFrame | pl.LazyFrame | dict) or (
        not hasattr(given, "predict")
        and type(given).__module__.split(".")[0] in ("pandas", "pyarrow")
    )


def as_predictor(given: Any) -> Any:
    """A table or a model as it is, a function as a model; anything else is refused."""
    if is_table(given) or hasattr(given, "predict"):
        return given
    if not callable(given):
        raise InputError(
            "this is no model",
            found=type(given).__name__,
            expected="predict(users, items), a function of users and items, or a table of scores",
        )
    return SimpleNamespace(predict=given)


@dataclass(frozen=True)
class ScoreTable:
    """Scores of pairs as a model: `user_id, item_id, score`."""

    frame: pl.DataFrame
    origin: Origin

    @classmethod
    def of(cls, table: Frame, name: str = "scores") -> ScoreTable:
        """Check a caller's table; a pair may be there once only."""
        return cls(_pairs_of(table, Origin(name), "score"), Origin(name))

    def within(self, data: Dataset) -> ScoreTable:
        """Without pairs of users or items that the data lack."""
        return ScoreTable(
            self.frame.filter(known_pairs(self.frame, data, self.origin)), self.origin
        )

    def predict(self, users: Any, items: Any) -> np.ndarray:
        """The scores of pairs; refused where the table has none."""
        asked = pl.DataFrame({"user_id": users, "item_id": items})
        for key in asked.columns:
            if asked[key].dtype != self.frame[key].dtype:
                raise self.origin.error(
                    "ids of another type than in the rows",
                    column=key,
                    found=str(self.frame[key].dtype),
                    expected=str(asked[key].dtype),
                )
        found = asked.join(
            self.frame, on=["user_id", "item_id"], how="left", maintain_order="left"
        )["score"]
        if found.null_count():
            at = int(found.is_null().arg_true()[0])
            raise self.origin.error(
                f"no score for {found.null_count():,} of {found.len():,} rows",
                found=f"user {asked['user_id'][at]}, item {asked['item_id'][at]}",
                expected="a score for every row",
            )
        return found.to_numpy()

    def lists(self, exclude: pl.DataFrame | None) -> pl.DataFrame:
        """Items of each user by falling score, without the pairs to leave out."""
        ranked = self.frame.sort("user_id", -pl.col("score"), maintain_order=True)
        ranked = ranked.select("user_id", "item_id")
        if exclude is None:
            return ranked
        return ranked.join(exclude, on=ranked.columns, how="anti", maintain_order="left")


def recommendations(table: Frame, name: str = "recommendations") -> pl.DataFrame | None:
    """Lists of a table that has ranks and may have no scores; None where it has no ranks."""
    origin = Origin(name)
    frame = with_our_names(to_polars(table, origin))
    if "rank" not in frame.columns:
        return None
    clean = _pairs_of(frame, origin, "rank")
    return clean.sort("user_id", "rank", maintain_order=True).select("user_id", "item_id")


def known_pairs(frame: pl.DataFrame, data: Dataset, origin: Origin) -> np.ndarray:
    """Which pairs of a table are of users and items of the data; refused where none is."""
    sides = (("user_id", data.user_ids), ("item_id", data.item_ids))
    known: np.ndarray = np.all([ids.encode(frame[key]) >= 0 for key, ids in sides], axis=0)
    if not known.any():
        raise origin.error(
            "no pair of the table is in the data set",
            found=f"{frame['user_id'][0]}, {frame['item_id'][0]}",
            expected=f"ids of {data.name}, of type "
            + " and ".join(str(ids.ids.dtype) for _, ids in sides),
        )
    return known


def require_lists(metrics: Sequence[str]) -> None:
    """Refuse metrics that a table of recommendations has no scores for."""
    if not all(name.startswith(UNSEEN) for name in metrics):
        raise InputError(
            "a table of recommendations has no scores of rows",
            found=", ".join(metrics),
            expected="metrics of lists: unseen-recall@10, unseen-ndcg@10, unseen-mrr@10, "
            "unseen-hit@10, …",
        )


def _pairs_of(table: Frame, origin: Origin, *numbers: str) -> pl.DataFrame:
    """Pairs of a caller's table, each there once, and its numbers; the first of these must be
    there."""
    frame = with_our_names(to_polars(table, origin))
    require_columns(frame, ("user_id", "item_id", numbers[0]), origin)
    require_rows(frame, origin)
    columns = [check_ids(frame[name], origin) for name in ("user_id", "item_id")]
    columns += [check_number(frame[name], origin) for name in numbers if name in frame.columns]
    clean = pl.DataFrame(columns)
    if clean.select("user_id", "item_id").is_duplicated().any():
        done = "scored" if numbers[0] == "score" else "recommended"
        raise origin.error(f"a pair is {done} twice", expected="one row per user and item")
    return clean
