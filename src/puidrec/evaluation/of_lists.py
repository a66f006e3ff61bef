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
from puidrec.errors import InputError
from puidrec.evaluation.any_model import ScoreTable, unit_scores
from puidrec.evaluation.labelled import RatedRows, propensity_column
from puidrec.evaluation.ranking import dense_codes, mask_seen, top_k
from puidrec.evaluation.result import Evaluation
from puidrec.evaluation.unseen_items import (
    PAIRS_AT_ONCE,
    Found,
    Seen,
    find_liked,
    parse_unseen_metric,
    ranks_in,
    unseen_values,
)


def evaluate_ranking(model: Any, rows: RatedRows, names: Sequence[str]) -> Evaluation:
    """Metrics of a model's ranking of all items; every name is checked before any work."""
    depth = max(parse_unseen_metric(name)[1] for name in names)
    if hasattr(model, "seen_"):
        return _of_factors(model, rows, names)
    return evaluate_lists(_lists(model, rows, depth), rows, names)


def evaluate_lists(lists: pl.DataFrame, rows: RatedRows, names: Sequence[str]) -> Evaluation:
    """Metrics of given lists; the catalogue is that of the data set, where rows are a part of one."""
    for name in names:
        parse_unseen_metric(name)
    train, given = rows.train, rows.given
    if train is None and any("novelty" in name or "-popularity" in name for name in names):
        raise InputError(
            "novelty and popularity are counted in training rows", expected="exclude=training rows"
        )
    if not isinstance(given, Interactions):
        table = to_polars(given, Origin("rows"))
        if not {"label", "rating"} & set(table.columns):
            rows = replace(rows, given=table.with_columns(label=1))
    frame, _ = rows.labelled(weighted=False)
    liked = frame.filter(pl.col("label") == 1)
    _require_liked(liked.height, frame.height)
    catalogue = given.items if isinstance(given, Interactions) else None
    users = pl.concat([part["user_id"] for part in (liked, train) if part is not None])
    return Evaluation.of(
        unseen_values(names, lambda k: _found_in_lists(lists, liked, catalogue, train, k)),
        users.unique().sort(),
        n_users=liked["user_id"].n_unique(),
        n_rows=frame.height,
        positive_rate=liked.height / frame.height,
        users="any-positive",
        n_new_users=rows.n_new_users(None, frame),
    )


def _of_factors(model: Any, asked: RatedRows, names: Sequence[str]) -> Evaluation:
    """Metrics of the rankings of a model of this package, on rows of its users and items."""
    rows, propensity = asked.given, asked.propensities
    if not isinstance(rows, Interactions):
        raise InputError(
            "metrics of unseen items rank all items of a fitted Recommender, on a part of a Dataset",
            found=f"{type(model).__name__} and {type(rows).__name__}",
            hint="Use data.split(…).test, or other metrics.",
        )
    if not (
        rows.users.ids.equals(model.user_ids_.ids) and rows.items.ids.equals(model.item_ids_.ids)
    ):
        raise InputError(
            "the rows are of other users or items than the model's",
            hint="Use the data it was fitted on.",
        )
    liked = rows.label == 1 if "label" in rows.frame.columns else np.ones(len(rows), bool)
    _require_liked(int(liked.sum()), len(rows))
    pairs = rows.user[liked], rows.item[liked]
    given = (
        None if propensity is None else propensity_column(propensity, len(rows)).to_numpy()[liked]
    )
    seen = [model.seen_, *_left_out(asked, rows.users, rows.items)]
    factors = model.user_factors_, model.item_factors_
    return Evaluation.of(
        unseen_values(names, lambda k: find_liked(factors, pairs, seen, k, given)),
        rows.users.ids,
        n_users=int(np.unique(pairs[0]).size),
        n_rows=len(rows),
        positive_rate=float(liked.mean()),
        users="any-positive",
        n_new_users=asked.n_new_users(model, rows.to_frame()),
    )


def _require_liked(n_liked: int, n_rows: int) -> None:
    if not n_liked:
        raise InputError(
            "no positive rows to look for", found=f"{n_rows} rows", expected="at least one"
        )


def _lists(model: Any, asked: RatedRows, k: int) -> pl.DataFrame:
    """Recommendations of a model that only predicts (or of a table of scores): the best of the
    catalogue."""
    rows = asked.given
    if isinstance(model, ScoreTable):
        return model.lists(asked.train)
    if not isinstance(rows, Interactions):
        found, expected = type(rows).__name__, "a part of a Dataset, whose items are ranked"
        raise InputError(
            "a ranking of all items needs to know them", found=found, expected=expected
        )
    users, catalogue = IdMap(rows.users.decode(np.unique(rows.user))), rows.items.ids.to_numpy()
    seen, best = _left_out(asked, users, rows.items), []
    k, step = min(k, catalogue.size), max(1, PAIRS_AT_ONCE // catalogue.size)
    for start in range(0, len(users), step):
        block = users.ids[start : start + step].to_numpy()
        pairs = np.repeat(block, catalogue.size), np.tile(catalogue, block.size)
        scores = np.array(unit_scores(model, *pairs), np.float64).reshape(block.size, -1)
        for out in seen:
            mask_seen(scores, np.arange(start, start + block.size), *out)
        columns, value = top_k(scores, k)
        kept = np.isfinite(value)
        whose = np.repeat(block, k)[kept.ravel()]
        best.append(pl.DataFrame({"user_id": whose, "item_id": catalogue[columns[kept]]}))
    return pl.concat(best)


def _left_out(asked: RatedRows, users: IdMap, items: IdMap) -> list[Seen]:
    """The pairs to leave out, sorted by user."""
    if asked.train is None:
        return []
    user, item = users.encode(asked.train["user_id"]), items.encode(asked.train["item_id"])
    known = (user >= 0) & (item >= 0)
    user, item = user[known], item[known]
    start = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    return [(start, item[np.argsort(user, kind="stable")])]


def _found_in_lists(
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
    ids = catalogue or IdMap(pl.concat([part["item_id"] for part in parts]).unique().sort())
    users = IdMap(pl.concat([part["user_id"] for part in parts[1:]]).unique().sort())
    row, item = users.encode(liked["user_id"]), ids.encode(liked["item_id"])
    known, row_user = dense_codes(row)
    position = np.full(len(users) + 1, -1)
    position[known] = np.arange(known.size)
    owner = position[users.encode(lists["user_id"])]
    place = lists.select(pl.int_range(pl.len()).over("user_id")).to_series().to_numpy()
    shown = (owner >= 0) & (place < k)
    top = np.full((known.size, k), -1, np.int64)
    top[owner[shown], place[shown]] = ids.encode(lists["item_id"])[shown]
    seen = ids.encode([] if train is None else train["item_id"])
    counted = np.bincount(seen[seen >= 0], minlength=len(ids))
    return Found(known, top, row_user, ranks_in(top, row_user, item), counted, len(users), item)
