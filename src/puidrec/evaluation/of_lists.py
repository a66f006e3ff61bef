"""Evaluate lists of all items: those of a model of this package, of a model that only predicts, or
given as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap, Interactions
from puidrec.data.schema import Origin, to_polars
from puidrec.data.tables import pairs_by_user
from puidrec.errors import InputError
from puidrec.evaluation.any_model import unit_scores
from puidrec.evaluation.labelled import RatedRows
from puidrec.evaluation.result import Evaluation
from puidrec.evaluation.unseen_items import (
    PAIRS_AT_ONCE,
    Found,
    Seen,
    best_unseen,
    find_liked,
    parse_unseen_metric,
    ranks_in,
    unseen_values,
)

KEYS = ("user_id", "item_id")


def evaluate_lists(model: Any, rows: RatedRows, names: Sequence[str]) -> Evaluation:
    """Metrics of the best items that users have not seen, by a model, or as a table `user_id,
    item_id` has them in order; every name is checked before any work."""
    for name in names:
        parse_unseen_metric(name)
    if not isinstance(rows.given, Interactions):
        table = to_polars(rows.given, Origin("rows"))
        if not {"label", "rating"} & set(table.columns):
            rows = replace(rows, given=table.with_columns(label=1))
    frame, n_trained_on = rows.fresh(model, rows.labelled()[0])
    liked = frame.filter(pl.col("label") == 1)
    if not liked.height:
        found = f"{frame.height} rows"
        raise InputError("no positive rows to look for", found=found, expected="at least one")
    if hasattr(model, "seen_"):
        ids, values = model.user_ids_, unseen_values(names, lambda k: _own(model, rows, liked, k))
    else:
        if rows.train is None and any("novelty" in n or "-popularity" in n for n in names):
            problem = "novelty and popularity are counted in training rows"
            raise InputError(problem, expected="exclude=training rows")
        ids = IdMap(liked["user_id"].unique().sort())
        values = unseen_values(names, lambda k: _of_others(model, rows, liked, ids, k))
    return Evaluation.of(
        values,
        n_users=liked["user_id"].n_unique(),
        n_rows=frame.height,
        positive_rate=liked.height / frame.height,
        users="any-positive",
        n_trained_on=n_trained_on,
        n_new_users=rows.n_new_users(model, frame),
    ).named(ids.ids)


def _own(model: Any, rows: RatedRows, liked: pl.DataFrame, k: int) -> Found:
    """Where liked rows are in the lists of a model of this package."""
    sides = model.user_ids_, model.item_ids_
    user, item = (own.encode(liked[key]) for own, key in zip(sides, KEYS, strict=True))
    unknown = (user < 0) | (item < 0)
    if unknown.any():
        raise InputError(
            f"{int(unknown.sum()):,} of the rows are of other users or items than the model's",
            found=", ".join(map(str, liked.row(int(unknown.argmax()))[:2])),
            hint="Give rows of the data it was fitted on.",
        )
    seen, factors = (
        [model.seen_, *_left_out(rows, *sides)],
        (model.user_factors_, model.item_factors_),
    )
    return find_liked(factors, (user, item), seen, k, _propensity(liked))


def _of_others(model: Any, rows: RatedRows, liked: pl.DataFrame, users: IdMap, k: int) -> Found:
    """Where liked rows are in the lists of any other model, or in given ones; a user without a list
    has found nothing."""
    given, train = rows.given, rows.train
    parts = [part for part in (liked, train, model) if isinstance(part, pl.DataFrame)]
    for key in KEYS:
        kinds = {str(part[key].dtype) for part in parts}
        if len(kinds) > 1:
            raise InputError(
                "ids of another type than in the rows",
                column=key,
                found=" and ".join(sorted(kinds)),
            )
    if isinstance(given, Interactions):
        items = given.items
    elif isinstance(model, pl.DataFrame):
        items = IdMap(pl.concat([part["item_id"] for part in parts]).unique().sort())
    else:
        found, expected = type(given).__name__, "a part of a Dataset, whose items are ranked"
        problem = "a ranking of all items needs to know them"
        raise InputError(problem, found=found, expected=expected)
    if isinstance(model, pl.DataFrame):
        top = _listed(model, users, items, k)
    else:
        top = _predicted(model, users, items, _left_out(rows, users, items), k)
    known = [part["user_id"] for part in (liked, train) if part is not None]
    row_user, item = users.encode(liked["user_id"]), items.encode(liked["item_id"])
    seen = items.encode([] if train is None else train["item_id"])
    counted, everyone = np.bincount(seen[seen >= 0], minlength=len(items)), pl.concat(known)
    return Found(
        np.arange(len(users)),
        top,
        row_user,
        ranks_in(top, row_user, item),
        counted,
        everyone.n_unique(),
        item,
        _propensity(liked),
    )


def _listed(lists: pl.DataFrame, users: IdMap, items: IdMap, k: int) -> np.ndarray:
    """Item codes of given lists, [users, k]."""
    owner = users.encode(lists["user_id"])
    place = lists.select(pl.int_range(pl.len()).over("user_id")).to_series().to_numpy()
    shown = (owner >= 0) & (place < k)
    top = np.full((len(users), k), -1, np.int64)
    top[owner[shown], place[shown]] = items.encode(lists["item_id"])[shown]
    return top


def _predicted(model: Any, users: IdMap, items: IdMap, seen: Sequence[Seen], k: int) -> np.ndarray:
    """Item codes of the best of all items by a model that only predicts, [users, k]."""
    catalogue = items.ids.to_numpy()

    def scores(block: np.ndarray) -> np.ndarray:
        pairs = users.decode(np.repeat(block, catalogue.size)), np.tile(catalogue, block.size)
        asked = unit_scores(model, pairs[0].to_numpy(), pairs[1])
        return np.array(asked, np.float64).reshape(block.size, -1)

    return best_unseen(scores, np.arange(len(users)), catalogue.size, seen, k, PAIRS_AT_ONCE)


def _left_out(rows: RatedRows, users: IdMap, items: IdMap) -> list[Seen]:
    """The pairs to leave out, sorted by user."""
    if rows.train is None:
        return []
    user, item = users.encode(rows.train["user_id"]), items.encode(rows.train["item_id"])
    return [pairs_by_user(user, item, len(users))]


def _propensity(liked: pl.DataFrame) -> np.ndarray | None:
    return liked["propensity"].to_numpy() if "propensity" in liked.columns else None
