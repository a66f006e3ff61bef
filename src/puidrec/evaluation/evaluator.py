"""Evaluate a model on rated pairs, or scores on labels: all metrics in one pass, values per user
kept."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap, Interactions
from puidrec.data.protocol import Protocol, get_protocol
from puidrec.data.schema import Frame, Origin, RatingScale, require_rows
from puidrec.data.tables import OverlapRule, check_overlap
from puidrec.errors import InputError, NoValueWarning
from puidrec.evaluation.any_model import (
    Predictor,
    ScoreTable,
    as_predictor,
    is_table,
    recommendations,
    require_lists,
    unit_scores,
)
from puidrec.evaluation.labelled import RatedRows, Target, numbers
from puidrec.evaluation.metrics import Scored, compute_metrics, signed_labels
from puidrec.evaluation.ndcg import Users, counted_lists
from puidrec.evaluation.of_lists import evaluate_lists
from puidrec.evaluation.ranking import check_rows, dense_codes
from puidrec.evaluation.result import Evaluation, Weights
from puidrec.evaluation.unseen_items import CATALOGUE, UNSEEN, catalogue_recall, cutoff_of

DEFAULT_METRICS = ("uauc", "ndcg@5", "auc", "mse")


def evaluate_scores(
    user: np.ndarray,
    score: np.ndarray,
    label: np.ndarray,
    rating: np.ndarray | None = None,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    users: Users = "both-labels",
    scale: RatingScale | None = None,
    target: Target = "rating",
    weight: np.ndarray | None = None,
) -> Evaluation:
    """Evaluate scores given as arrays, one entry per row, in any order.

    rating: for `mse`, `rmse`, `mae` and graded gains (in stars above the lowest, 0..4). With a
    `scale`, scores are compared with ratings scaled to [0, 1], and `rmse` and `mae` are put back
    into ratings; without one, ratings are taken as they are; labels replace them where there are
    none.
    weight: 1 / propensity for rows of a biased log; every metric is then its self-normalised
    (SNIPS) form.
    """
    user, score, label = np.asarray(user), numbers(score), np.asarray(label)
    check_rows("score", score, user.size)
    check_rows("label", label, user.size)
    if ((label != 0) & (label != 1)).any():
        raise InputError(
            "labels must be 0 or 1",
            found=np.unique(label)[:5].tolist(),
            hint="Apply a protocol first.",
        )
    label = label.astype(np.int8)
    if rating is not None:
        rating = numbers(rating)
        check_rows("rating", rating, user.size)
    if weight is not None:
        weight = numbers(weight).astype(np.float64)
        check_rows("weight", weight, user.size, kind="finite numbers above 0", positive=True)
    relevance = _relevance(label, rating, scale)
    width = (
        scale.high - scale.low
        if scale is not None and rating is not None and target == "rating"
        else 1.0
    )
    aim = _target(target, label, rating, scale)
    rows = Scored(*dense_codes(user), score, label, aim, relevance, users, weight, width)
    computed = compute_metrics(rows, metrics)
    n_rows = np.bincount(rows.code)
    n_positive = np.bincount(rows.code[label > 0], minlength=n_rows.size)
    return Evaluation.of(
        computed,
        n_users=int(counted_lists(n_positive, n_rows, users).sum()),
        n_rows=user.size,
        positive_rate=float(label.mean()),
        users=users,
        weighted=weight is not None,
    )


def evaluate(
    model: Predictor | Frame,
    interactions: Interactions | Frame,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    *,
    users: Users = "both-labels",
    protocol: str | Protocol = "rd",
    scale: tuple[float, float] | None = None,
    target: Target = "rating",
    propensity: Any = None,
    overlap: OverlapRule = "drop",
    exclude: Interactions | Frame | None = None,
    by: str | None = None,
) -> Evaluation:
    """Evaluate anything with `predict(users, items)`, such a function, a table of scores or one of
    recommendations, on rated pairs.

    model: a table `user_id, item_id, score` holds the scores of pairs, one with `rank` holds
    recommendations (then metrics are `unseen-recall@10`, `unseen-ndcg@10` and their kin). by:
    `popularity`, `activity` or `known` (new and known users and items): the same metrics per
    stratum, in `strata`.

    interactions: a part of a data set (`data.test`), or a table with `user_id`, `item_id` and
    `label` (0/1) or `rating`. protocol: turns ratings into labels where there are none yet. scale:
    of a table's ratings.
    propensity: for rows that users chose themselves (a held-out part of the log), the probability
    in (0, 1] of each row to be there, up to a common factor, or a fitted propensity, which is asked
    (rows of a Dataset). Every metric is then self-normalised and inverse-propensity weighted
    (SNIPS), an estimate of its value on uniformly drawn rows. It is as right as the propensities
    are, and its bias shrinks with the rows per user; it is meant for comparing models on the same
    rows where no uniform rows exist.
    overlap: rows whose pair the model was trained on are dropped (it says which: `trained_on`), or
    kept, to measure a training error or to compare with print. Metrics `unseen-…` rank all items
    that are not in the model's training rows (nor in `exclude`, such as validation rows; for models
    of other packages: their training rows) and look for the positive rows among the best; of these
    only `…-propensity` are weighted by `propensity`.
    """
    check_overlap(overlap)
    names, rule = [metrics] if isinstance(metrics, str) else list(metrics), get_protocol(protocol)
    rows = RatedRows(interactions, rule, scale, target, users, overlap, exclude, propensity)
    model = as_predictor(model)
    return _evaluate(model, rows, names) if by is None else _by_strata(model, rows, names, by)


def _evaluate(model: Any, rows: RatedRows, metrics: list[str]) -> Evaluation:
    """Metrics of scores and of lists, whichever of them the model has."""
    ranked = [name for name in metrics if name.startswith(UNSEEN)]
    scored = [name for name in metrics if name not in ranked]
    if is_table(model):
        if (lists := recommendations(model)) is not None:
            require_lists(metrics)
            return evaluate_lists(lists, rows, metrics)
        model = ScoreTable.of(model)
    if not ranked:
        return _of_rows(model, rows, scored)
    lists = model.lists(rows.train) if isinstance(model, ScoreTable) else model
    found = evaluate_lists(lists, rows, ranked)
    if not scored:
        return found
    if any("-propensity@" in name for name in ranked):
        rows = replace(rows, propensity=None)  # it was meant for these
    result = _of_rows(model, rows, scored)
    means, per_user = result.means | found.means, result.per_user | found.per_user
    return replace(result, means={name: means[name] for name in metrics}, per_user=per_user)


def _of_rows(model: Any, rows: RatedRows, metrics: Sequence[str]) -> Evaluation:
    """Metrics of the scores of rows, and of their liked items' places in the catalogue."""
    frame, rating_scale = rows.labelled()
    require_rows(frame, Origin("interactions"))
    frame, n_trained_on = rows.fresh(model, frame)
    propensity = frame["propensity"].to_numpy() if "propensity" in frame.columns else None
    ids = frame["user_id"].unique().sort()
    whole = [name for name in metrics if name.startswith(CATALOGUE)]
    catalogue = _catalogue(model, rows.given) if whole else np.zeros(0)
    result = evaluate_scores(
        IdMap(ids).encode(frame["user_id"]),
        unit_scores(model, frame["user_id"].to_numpy(), frame["item_id"].to_numpy()),
        frame["label"].to_numpy(),
        frame["rating"].to_numpy() if "rating" in frame.columns else None,
        metrics=[name for name in metrics if name not in whole],
        scale=rating_scale,
        weight=None if propensity is None else 1.0 / propensity,
        users=rows.users,
        target=rows.target,
    ).named(ids)
    _warn_without_value(result, frame, rows.protocol, rating_scale)
    liked = frame.filter(pl.col("label") == 1)
    pairs = liked["user_id"].to_numpy(), liked["item_id"].to_numpy()
    ask = partial(unit_scores, model)
    per_user = result.per_user | {
        name: catalogue_recall(ask, *pairs, catalogue, cutoff_of(name)) for name in whole
    }
    return replace(
        result,
        means=result.means | {name: per_user[name].mean for name in whole},
        per_user=per_user,
        n_trained_on=n_trained_on,
        weights=None if propensity is None else Weights.of(propensity),
        n_new_users=rows.n_new_users(model, frame),
    )


def _warn_without_value(
    result: Evaluation,
    frame: pl.DataFrame,
    rule: Protocol,
    scale: RatingScale | None,
) -> None:
    """Say so where metrics have no value because all rows have one label: most likely the scale is
    not the ratings'."""
    lost = [name for name, value in result.means.items() if np.isnan(value)]
    if not lost or 0.0 < result.positive_rate < 1.0:
        return
    words = "no row is liked" if result.positive_rate == 0.0 else "every row is liked"
    line = ""
    if scale is not None and "rating" in frame.columns:
        edge = scale.low + (rule.positive_from - 1.0) / 4.0 * (scale.high - scale.low)
        ratings = frame["rating"].to_numpy()
        low, high = f"{ratings.min():g}", f"{ratings.max():g}"
        line = (
            f"; protocol {rule.name} calls ratings from {edge:g} on the scale {scale} liked, "
            f"these are {low} to {high}"
        )
    warnings.warn(f"{words}{line}: no value for {', '.join(lost)}", NoValueWarning, stacklevel=5)


def _by_strata(model: Any, rows: RatedRows, metrics: list[str], by: str) -> Evaluation:
    """The evaluation of all rows, and of each stratum by itself."""
    whole, found = _evaluate(model, rows, metrics), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoValueWarning)
        for name, part in rows.strata(model, by):
            own = _evaluate(model, part, metrics)
            found += [(name, metric, own[metric], own.n_rows, own.n_users) for metric in metrics]
    kinds = {
        "stratum": pl.String,
        "metric": pl.String,
        "value": pl.Float64,
        "rows": pl.Int64,
        "users": pl.Int64,
    }
    return replace(whole, strata=pl.DataFrame(found, schema=kinds, orient="row"))


def _catalogue(model: Predictor, interactions: Interactions | Frame) -> np.ndarray:
    """Ids of all items that a list could show: those of the data set, or of the model."""
    known = (
        interactions.items
        if isinstance(interactions, Interactions)
        else getattr(model, "item_ids_", None)
    )
    if known is None:
        raise InputError(
            "a recall over the catalogue needs all items", expected="a part of a Dataset"
        )
    ids: np.ndarray = known.ids.to_numpy()
    return ids


def _target(
    kind: Target, label: np.ndarray, rating: np.ndarray | None, scale: RatingScale | None
) -> np.ndarray:
    """The number that each score should have been."""
    if kind not in ("rating", "binary", "label"):
        raise InputError(
            "unknown target", found=kind, expected="rating, binary (±1) or label (0/1)"
        )
    if kind == "binary":
        return signed_labels(label)
    if kind == "label" or rating is None:
        return label
    return scale.unit(rating) if scale is not None else rating


def _relevance(
    label: np.ndarray, rating: np.ndarray | None, scale: RatingScale | None
) -> np.ndarray:
    """What graded gains grow with: stars above the lowest, so that the lowest gains nothing."""
    if rating is None:
        return label
    return (scale.stars(rating) - 1.0).astype(np.float32) if scale is not None else rating
