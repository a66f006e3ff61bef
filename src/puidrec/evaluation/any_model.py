"""Metrics for models of other packages: anything with `predict`, a table of scores, a table of
recommendations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap
from puidrec.data.schema import (
    Frame,
    Origin,
    check_ids,
    check_number,
    require_columns,
    require_rows,
    to_polars,
    with_our_names,
)
from puidrec.errors import InputError
from puidrec.evaluation.ranking import dense_codes, mask_seen, top_k
from puidrec.evaluation.unseen_items import PAIRS_AT_ONCE, UNSEEN, Found, Seen, ranks_in


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


def is_table(given: Any) -> bool:
    """Whether this is a table of scores or recommendations, not a model."""
    return isinstance(given, pl.DataFrame | pl.LazyFrame | dict) or (
        not hasattr(given, "predict")
        and type(given).__module__.split(".")[0] in ("pandas", "pyarrow")
    )


@dataclass(frozen=True)
class _Function:
    """A function of users and items as a model."""

    predict: Callable[..., Any]


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
    return _Function(given)


@dataclass(frozen=True)
class ScoreTable:
    """Scores of pairs as a model: `user_id, item_id, score`."""

    frame: pl.DataFrame
    origin: Origin

    @classmethod
    def of(cls, table: Frame, name: str = "scores") -> ScoreTable:
        """Check a caller's table; a pair may be there once only."""
        return cls(_pairs_of(table, Origin(name), "score"), Origin(name))

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


def require_lists(metrics: Sequence[str]) -> None:
    """Refuse metrics that a table of recommendations has no scores for."""
    if not all(name.startswith(UNSEEN) for name in metrics):
        raise InputError(
            "a table of recommendations has no scores of rows",
            found=", ".join(metrics),
            expected="metrics of lists: unseen-recall@10, unseen-ndcg@10, unseen-mrr@10, unseen-hit@10, …",
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


def found_in_lists(
    lists: pl.DataFrame,
    liked: pl.DataFrame,
    catalogue: IdMap | None,
    train: pl.DataFrame | None,
    k: int,
) -> Found:
    """Where liked rows are in given lists. Users with liked rows and no list have found nothing.

    train: rows that say how popular items are; without them novelty has no value. Without a
    catalogue, it is what the lists, the rows and the training rows name.
    """
    parts = [lists, liked, *([train] if train is not None else [])]
    for key in ("user_id", "item_id"):
        kinds = {str(part[key].dtype) for part in parts}
        if len(kinds) > 1:
            raise InputError(
                "ids of another type than in the rows",
                column=key,
                found=" and ".join(sorted(kinds)),
            )
    items = pl.concat([part["item_id"] for part in parts]).unique()
    ids = catalogue or IdMap(items.sort())
    users = IdMap(
        pl.concat([liked["user_id"], *([train["user_id"]] if train is not None else [])])
        .unique()
        .sort()
    )
    row, item = users.encode(liked["user_id"]), ids.encode(liked["item_id"])
    known, row_user = dense_codes(row)
    position = np.full(len(users) + 1, -1)
    position[known] = np.arange(known.size)
    owner = position[users.encode(lists["user_id"])]
    place = lists.select(pl.int_range(pl.len()).over("user_id")).to_series().to_numpy()
    shown = (owner >= 0) & (place < k)
    top = np.full((known.size, k), -1, np.int64)
    top[owner[shown], place[shown]] = ids.encode(lists["item_id"])[shown]
    counted = (
        np.zeros(len(ids))
        if train is None
        else np.bincount(_inside(ids.encode(train["item_id"])), minlength=len(ids))
    )
    return Found(known, top, row_user, ranks_in(top, row_user, item), counted, len(users), item)


def _inside(codes: np.ndarray) -> np.ndarray:
    return codes[codes >= 0]


def lists_of(
    predict: Any, users: pl.Series, catalogue: pl.Series, seen: Seen | None, k: int
) -> pl.DataFrame:
    """The k best items of each user by a model that only predicts, in blocks of users. seen: pairs
    to leave out."""
    k = min(k, catalogue.len())
    ids, step = catalogue.to_numpy(), max(1, PAIRS_AT_ONCE // catalogue.len())
    best = []
    for start in range(0, users.len(), step):
        block = users[start : start + step].to_numpy()
        scores = np.array(predict(np.repeat(block, ids.size), np.tile(ids, block.size)), np.float64)
        scores = scores.reshape(block.size, ids.size)
        if seen is not None:
            mask_seen(scores, np.arange(start, start + block.size), *seen)
        columns, value = top_k(scores, k)
        kept = np.isfinite(value)
        best.append(
            pl.DataFrame(
                {"user_id": np.repeat(block, k)[kept.ravel()], "item_id": ids[columns[kept]]}
            )
        )
    return pl.concat(best)
