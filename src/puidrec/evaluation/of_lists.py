"""Evaluate lists of all items: those of a model of this package, of a model that only predicts, or
given as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap, Interactions
from puidrec.data.schema import Origin, to_polars
from puidrec.errors import InputError
from puidrec.evaluation.any_model import ScoreTable, found_in_lists, lists_of, unit_scores
from puidrec.evaluation.labelled import RatedRows, propensity_column
from puidrec.evaluation.result import Evaluation
from puidrec.evaluation.unseen_items import find_liked, parse_unseen_metric, unseen_values


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
    trained = liked["user_id"].clear() if train is None else train["user_id"]
    users = pl.concat([liked["user_id"], trained]).unique().sort()
    new = None
    if train is not None:
        new = int((~liked["user_id"].unique().is_in(trained.implode())).sum())
    return Evaluation.of(
        unseen_values(names, lambda k: found_in_lists(lists, liked, catalogue, train, k)),
        users,
        n_users=liked["user_id"].n_unique(),
        n_rows=frame.height,
        positive_rate=liked.height / frame.height,
        users="any-positive",
        n_new_users=new,
    )


def _of_factors(model: Any, asked: RatedRows, names: Sequence[str]) -> Evaluation:
    """Metrics of the rankings of a model of this package, on rows of its users and items."""
    rows, propensity, exclude = asked.given, asked.propensities, asked.exclude
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
    seen = [model.seen_]
    if exclude is not None:
        counts = np.bincount(exclude.user, minlength=len(rows.users))
        seen.append((np.concatenate([[0], np.cumsum(counts)]), exclude.item))
    factors = model.user_factors_, model.item_factors_
    return Evaluation.of(
        unseen_values(names, lambda k: find_liked(factors, pairs, seen, k, given)),
        rows.users.ids,
        n_users=int(np.unique(pairs[0]).size),
        n_rows=len(rows),
        positive_rate=float(liked.mean()),
        users="any-positive",
        n_new_users=int((np.diff(model.seen_[0])[np.unique(rows.user)] == 0).sum()),
    )


def _require_liked(n_liked: int, n_rows: int) -> None:
    if not n_liked:
        raise InputError(
            "no positive rows to look for", found=f"{n_rows} rows", expected="at least one"
        )


def _lists(model: Any, asked: RatedRows, k: int) -> pl.DataFrame:
    """Recommendations of a model that only predicts (or of a table of scores): the best of the
    catalogue."""
    rows, left_out = asked.given, asked.train
    if isinstance(model, ScoreTable):
        return model.lists(left_out)
    if not isinstance(rows, Interactions):
        found, expected = type(rows).__name__, "a part of a Dataset, whose items are ranked"
        raise InputError(
            "a ranking of all items needs to know them", found=found, expected=expected
        )
    users = rows.users.decode(np.unique(rows.user))
    seen = None
    if left_out is not None:
        place = IdMap(users).encode(left_out["user_id"])
        item, mine = rows.items.encode(left_out["item_id"]), place >= 0
        mine &= item >= 0
        order = np.argsort(place[mine], kind="stable")
        counts = np.bincount(place[mine], minlength=users.len())
        seen = np.concatenate([[0], np.cumsum(counts)]), item[mine][order]
    return lists_of(partial(unit_scores, model), users, rows.items.ids, seen, k)
