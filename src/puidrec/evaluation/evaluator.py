"""Evaluate a model on rated pairs, or scores on labels: all metrics in one pass, values per user
kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap, Interactions
from puidrec.data.overlap import OverlapRule, check_overlap, require_fresh
from puidrec.data.protocol import Protocol as EvaluationProtocol
from puidrec.data.protocol import get_protocol
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
from puidrec.errors import InputError, NoValueWarning
from puidrec.evaluation.any_model import (
    ScoreTable,
    as_predictor,
    as_rows,
    found_in_lists,
    is_table,
    lists_of,
    recommendations,
)
from puidrec.evaluation.catalogue import PREFIX, catalogue_recall, cutoff_of
from puidrec.evaluation.metrics import Scored, compute_metrics, signed_labels
from puidrec.evaluation.ndcg import Users, counted_lists
from puidrec.evaluation.ranking import check_rows, dense_codes
from puidrec.evaluation.significance import Estimate, PerUser, mean_interval
from puidrec.evaluation.strata import TrainingCounts, strata_of
from puidrec.evaluation.unseen_items import UNSEEN, find_liked, parse_unseen_metric, unseen_values
from puidrec.evaluation.weights import Weights
from puidrec.view import html_table, view

Target = Literal["rating", "binary", "label"]
"""What scores are compared with: ratings scaled to [0, 1] (labels 0/1 where there are none), ±1, or
0/1."""

DEFAULT_METRICS = ("uauc", "ndcg@5", "auc", "mse")


class Predictor(Protocol):
    """Anything that scores pairs of the caller's own ids."""

    def predict(self, users: Any, items: Any) -> Any:
        """One score per pair."""


@dataclass(frozen=True)
class Evaluation(Mapping[str, float]):
    """Metric values by name (`result["uauc"]`), with the values per user behind them."""

    means: dict[str, float]
    per_user: dict[str, PerUser] = field(repr=False)
    """Of every metric: its mean is the metric, and its spread that of the metric when users are
    drawn anew."""
    n_users: int
    """Users whose lists count under the `users` rule."""
    n_rows: int
    positive_rate: float
    users: Users
    weighted: bool = False
    n_trained_on: int = 0
    """Rows given whose pair the model was trained on; left out unless they were kept on purpose."""
    weights: Weights | None = None
    """Of a weighted evaluation: how many rows it is worth, and how thin its support is."""
    n_new_users: int | None = None
    """Users of the rows who have no training row; None where the training rows are not known."""
    strata: pl.DataFrame | None = field(default=None, repr=False)
    """`by=`: a row per stratum and metric: `stratum, metric, value, rows, users`."""

    def __getitem__(self, name: str) -> float:
        return self.means[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    def interval(self, name: str, level: float = 0.95) -> Estimate:
        """The value with a normal interval over users."""
        if name not in self.per_user:
            raise InputError(
                "no values per user", found=name, expected=f"one of {', '.join(self.per_user)}"
            )
        return mean_interval(self.per_user[name], level)

    def to_frame(self, level: float = 0.95) -> pl.DataFrame:
        """A row per metric: `metric, value, low, high, users`; the interval is over users, null
        where there is none."""
        rows = []
        for name, value in self.means.items():
            known = name in self.per_user and len(self.per_user[name]) > 1
            found = self.interval(name, level) if known else None
            users = len(self.per_user[name]) if name in self.per_user else None
            rows.append((name, value, found and found.low, found and found.high, users))
        kinds = {
            "metric": pl.String,
            "value": pl.Float64,
            "low": pl.Float64,
            "high": pl.Float64,
            "users": pl.Int64,
        }
        return pl.DataFrame(rows, schema=kinds, orient="row")

    def _repr_html_(self) -> str:
        """Metrics with their intervals, as a notebook shows them."""
        rows = [
            (
                row["metric"],
                f"{row['value']:.4f}",
                "" if row["low"] is None else f"{row['low']:.4f} … {row['high']:.4f}",
            )
            for row in self.to_frame().to_dicts()
        ]
        words = f"{self.n_rows:,} rows of {self.n_users:,} users who count, {self.positive_rate:.1%} liked"
        words += f", {self.n_new_users:,} new users" if self.n_new_users else ""
        words += f"; {self.weights}" if self.weights is not None else ""
        return view("evaluation", words, html_table(("metric", "value", "95 % over users"), rows))


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
    user, score, label = np.asarray(user), _float(score), np.asarray(label)
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
        rating = _float(rating)
        check_rows("rating", rating, user.size)
    if weight is not None:
        weight = _float(weight).astype(np.float64)
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
    return Evaluation(
        means={
            name: value.mean if isinstance(value, PerUser) else value
            for name, value in computed.items()
        },
        per_user={name: value for name, value in computed.items() if isinstance(value, PerUser)},
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
    protocol: str | EvaluationProtocol = "rd",
    scale: tuple[float, float] | None = None,
    target: Target = "rating",
    propensity: Any = None,
    overlap: OverlapRule = "drop",
    exclude: Interactions | Frame | None = None,
    by: str | None = None,
) -> Evaluation:
    """Evaluate anything with `predict(users, items)`, such a function, a table of scores or one of recommendations,
    on rated pairs.

    model: a table `user_id, item_id, score` holds the scores of pairs, one with `rank` holds
    recommendations (then metrics are `unseen-recall@10`, `unseen-ndcg@10` and their kin). by:
    `popularity`, `activity` or `new`: the same metrics per stratum, in `strata`.

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
    model = as_predictor(model)
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    if by is not None:
        options: dict[str, Any] = {
            "users": users,
            "protocol": protocol,
            "scale": scale,
            "target": target,
        }
        options["overlap"] = overlap
        return _by_strata(model, interactions, metrics, propensity, exclude, by, options)
    if hasattr(propensity, "predict"):
        propensity = _asked(propensity, interactions)
    if is_table(model):
        lists = recommendations(model)
        if lists is None:
            model = ScoreTable.of(model)
        elif any(not name.startswith(UNSEEN) for name in metrics):
            raise InputError(
                "a table of recommendations has no scores of rows",
                found=", ".join(metrics),
                expected="metrics of lists: unseen-recall@10, unseen-ndcg@10, unseen-mrr@10, unseen-hit@10, …",
            )
        else:
            return _evaluate_lists(lists, interactions, metrics, exclude, protocol, scale)
    unseen = [name for name in metrics if name.startswith(UNSEEN)]
    if unseen:
        if hasattr(model, "seen_"):
            found = _evaluate_unseen(model, interactions, unseen, propensity, exclude)
        else:
            lists = _lists(model, interactions, unseen, exclude)
            found = _evaluate_lists(lists, interactions, unseen, exclude, protocol, scale)
        rest = [name for name in metrics if name not in unseen]
        if not rest:
            return found
        own = None if any("-propensity@" in name for name in unseen) else propensity
        options = {"users": users, "protocol": protocol, "scale": scale, "target": target}
        result = evaluate(model, interactions, rest, **options, propensity=own, overlap=overlap)
        means = {name: {**result.means, **found.means}[name] for name in metrics}
        return replace(result, means=means, per_user={**result.per_user, **found.per_user})
    frame, rating_scale = _labelled_rows(interactions, get_protocol(protocol), scale, propensity)
    require_rows(frame, Origin("interactions"))
    frame, n_trained_on = _apart_from_training(model, frame, overlap)
    weights = None if propensity is None else Weights.of(frame["propensity"].to_numpy())
    ids = IdMap(frame["user_id"].unique().sort())
    whole = [name for name in metrics if name.startswith(PREFIX)]
    catalogue = _catalogue(model, interactions) if whole else np.zeros(0)
    metrics = [name for name in metrics if name not in whole]
    result = evaluate_scores(
        ids.encode(frame["user_id"]),
        unit_scores(model, frame["user_id"].to_numpy(), frame["item_id"].to_numpy()),
        frame["label"].to_numpy(),
        frame["rating"].to_numpy() if "rating" in frame.columns else None,
        metrics=metrics,
        users=users,
        scale=rating_scale,
        target=target,
        weight=None if propensity is None else 1.0 / frame["propensity"].to_numpy(),
    )
    _warn_without_value(result, frame, protocol, rating_scale)
    named = {
        name: replace(v, users=ids.decode(v.users).to_numpy())
        for name, v in result.per_user.items()
    }
    liked = frame.filter(pl.col("label") == 1)
    for name in whole:
        arrays = liked["user_id"].to_numpy(), liked["item_id"].to_numpy()
        named[name] = catalogue_recall(
            partial(unit_scores, model), *arrays, catalogue, cutoff_of(name)
        )
        result.means[name] = named[name].mean
    counts = TrainingCounts.of(model, as_rows(exclude))
    new = (
        None
        if counts is None
        else int((counts.rows(frame.unique("user_id"), "user_id") == 0).sum())
    )
    return replace(
        result, per_user=named, n_trained_on=n_trained_on, weights=weights, n_new_users=new
    )


def _warn_without_value(
    result: Evaluation,
    frame: pl.DataFrame,
    protocol: str | EvaluationProtocol,
    scale: RatingScale | None,
) -> None:
    """Say so where metrics have no value because all rows have one label: most likely the scale is
    not the ratings'."""
    lost = [name for name, value in result.means.items() if np.isnan(value)]
    if not lost or 0.0 < result.positive_rate < 1.0:
        return
    words = "no row is liked" if result.positive_rate == 0.0 else "every row is liked"
    rule = get_protocol(protocol)
    line = ""
    if scale is not None and "rating" in frame.columns:
        edge = scale.low + (rule.positive_from - 1.0) / 4.0 * (scale.high - scale.low)
        ratings = frame["rating"].to_numpy()
        low, high = f"{ratings.min():g}", f"{ratings.max():g}"
        line = f"; protocol {rule.name} calls ratings from {edge:g} on the scale {scale} liked, these are {low} to {high}"
    warnings.warn(f"{words}{line}: no value for {', '.join(lost)}", NoValueWarning, stacklevel=3)


def unit_scores(model: Predictor, users: Any, items: Any) -> Any:
    """Scores that compare with ratings scaled to [0, 1]: a model that knows its rating scale is
    asked for these."""
    return model.predict(
        users, items, **({"scale": "unit"} if hasattr(model, "rating_scale_") else {})
    )


def _asked(propensity: Any, interactions: Interactions | Frame) -> np.ndarray:
    """The propensities of rows of a data set by a fitted propensity."""
    if not isinstance(interactions, Interactions):
        found, expected = (
            type(interactions).__name__,
            "a part of a Dataset, or propensities as an array",
        )
        raise InputError("a propensity is asked by codes", found=found, expected=expected)
    return np.asarray(propensity.predict(interactions.user, interactions.item, interactions.rating))


def _by_strata(
    model: Any,
    rows: Any,
    metrics: list[str],
    propensity: Any,
    exclude: Any,
    by: str,
    options: dict[str, Any],
) -> Evaluation:
    """The evaluation of all rows, and of each stratum by itself."""
    whole = evaluate(model, rows, metrics, propensity=propensity, exclude=exclude, **options)
    frame = (
        rows.to_frame()
        if isinstance(rows, Interactions)
        else with_our_names(to_polars(rows, Origin("interactions")))
    )
    stratum = strata_of(frame, TrainingCounts.of(model, as_rows(exclude)), by)
    given = _asked(propensity, rows) if hasattr(propensity, "predict") else propensity
    found = []
    for name in sorted(set(stratum)):
        mine = stratum == name
        part = rows.take(mine) if isinstance(rows, Interactions) else frame.filter(pl.Series(mine))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoValueWarning)
            own = evaluate(
                model,
                part,
                metrics,
                exclude=exclude,
                **options,
                propensity=None if given is None else np.asarray(given)[mine],
            )
        found += [(name, metric, own[metric], own.n_rows, own.n_users) for metric in metrics]
    kinds = {
        "stratum": pl.String,
        "metric": pl.String,
        "value": pl.Float64,
        "rows": pl.Int64,
        "users": pl.Int64,
    }
    return replace(whole, strata=pl.DataFrame(found, schema=kinds, orient="row"))


def _lists(model: Any, rows: Any, names: Sequence[str], exclude: Any) -> pl.DataFrame:
    """Recommendations of a model that only predicts (or of a table of scores): the best of the
    catalogue."""
    if isinstance(model, ScoreTable):
        return model.lists().select("user_id", "item_id")
    if not isinstance(rows, Interactions):
        found, expected = type(rows).__name__, "a part of a Dataset, whose items are ranked"
        raise InputError(
            "a ranking of all items needs to know them", found=found, expected=expected
        )
    users = rows.users.decode(np.unique(rows.user))
    seen, left_out = None, as_rows(exclude)
    if left_out is not None:
        place = IdMap(users).encode(left_out["user_id"])
        item, mine = rows.items.encode(left_out["item_id"]), place >= 0
        mine &= item >= 0
        order = np.argsort(place[mine], kind="stable")
        counts = np.bincount(place[mine], minlength=users.len())
        seen = np.concatenate([[0], np.cumsum(counts)]), item[mine][order]
    k = max(parse_unseen_metric(name)[1] for name in names)
    return lists_of(partial(unit_scores, model), users, rows.items.ids, seen, k)


def _evaluate_lists(
    lists: pl.DataFrame, rows: Any, names: Sequence[str], exclude: Any, protocol: Any, scale: Any
) -> Evaluation:
    """Metrics of given lists; the catalogue is that of the data set, where rows are a part of one."""
    for name in names:
        parse_unseen_metric(name)
    train = as_rows(exclude)
    if train is None and any("novelty" in name or "-popularity" in name for name in names):
        raise InputError(
            "novelty and popularity are counted in training rows", expected="exclude=training rows"
        )
    bare = not isinstance(rows, Interactions) and not {"label", "rating"} & set(
        to_polars(rows, Origin("rows")).columns
    )
    table = to_polars(rows, Origin("rows")).with_columns(label=1) if bare else rows
    frame, _ = _labelled_rows(table, get_protocol(protocol), scale, None)
    liked = frame.filter(pl.col("label") == 1)
    if not liked.height:
        raise InputError(
            "no positive rows to look for", found=f"{frame.height} rows", expected="at least one"
        )
    catalogue = rows.items if isinstance(rows, Interactions) else None
    values = unseen_values(names, lambda k: found_in_lists(lists, liked, catalogue, train, k))
    codes = IdMap(
        pl.concat([liked["user_id"], *([train["user_id"]] if train is not None else [])])
        .unique()
        .sort()
    )
    per_user = {
        name: replace(value, users=codes.decode(value.users).to_numpy())
        for name, value in values.items()
        if isinstance(value, PerUser)
    }
    means = {
        name: value.mean if isinstance(value, PerUser) else value for name, value in values.items()
    }
    new = (
        None
        if train is None
        else int((~liked["user_id"].unique().is_in(train["user_id"].implode())).sum())
    )
    return Evaluation(
        means,
        per_user,
        liked["user_id"].n_unique(),
        frame.height,
        liked.height / frame.height,
        "any-positive",
        n_new_users=new,
    )


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


def _apart_from_training(
    model: Predictor, frame: pl.DataFrame, overlap: OverlapRule
) -> tuple[pl.DataFrame, int]:
    """The rows without those that the model says it was trained on, and how many these are."""
    trained_on = getattr(model, "trained_on", None)
    if trained_on is None:
        return frame, 0
    known = trained_on(frame["user_id"], frame["item_id"])
    n_known = int(known.sum())
    if overlap == "keep" or not n_known:
        return frame, n_known
    require_fresh(frame.height, n_known, "most of these rows were trained on")
    return frame.filter(~known), n_known


def _evaluate_unseen(
    model: Any,
    rows: Any,
    names: Sequence[str],
    propensity: np.ndarray | None,
    exclude: Interactions | None,
) -> Evaluation:
    """Metrics of whole rankings; they need a model of this package, and rows of its users and
    items."""
    for name in names:
        parse_unseen_metric(name)
    if not isinstance(rows, Interactions) or not hasattr(model, "seen_"):
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
    if not liked.any():
        raise InputError(
            "no positive rows to look for", found=f"{len(rows)} rows", expected="at least one"
        )
    pairs = rows.user[liked], rows.item[liked]
    given = None if propensity is None else _propensity(propensity, len(rows)).to_numpy()[liked]
    seen = [model.seen_]
    if exclude is not None:
        counts = np.bincount(exclude.user, minlength=len(rows.users))
        seen.append((np.concatenate([[0], np.cumsum(counts)]), exclude.item))
    factors = model.user_factors_, model.item_factors_
    values = unseen_values(names, lambda k: find_liked(factors, pairs, seen, k, given))
    per_user = {
        name: replace(value, users=rows.users.decode(value.users).to_numpy())
        for name, value in values.items()
        if isinstance(value, PerUser)
    }
    means = {
        name: value.mean if isinstance(value, PerUser) else value for name, value in values.items()
    }
    n_users = int(np.unique(pairs[0]).size)
    new = int((np.diff(model.seen_[0])[np.unique(rows.user)] == 0).sum())
    return Evaluation(
        means, per_user, n_users, len(rows), float(liked.mean()), "any-positive", n_new_users=new
    )


def _labelled_rows(
    interactions: Interactions | Frame,
    protocol: EvaluationProtocol,
    scale: tuple[float, float] | None,
    propensity: np.ndarray | None,
) -> tuple[pl.DataFrame, RatingScale | None]:
    """Rows with ids and labels (and ratings, and propensities where given), and the scale of the
    ratings."""
    if not isinstance(interactions, Interactions):
        return _labelled_frame(interactions, protocol, scale, propensity)
    part = interactions
    if propensity is not None:
        part = replace(part, frame=part.frame.with_columns(_propensity(propensity, len(part))))
    part = part if "label" in part.frame.columns else part.labelled(protocol)
    return part.to_frame(), part.scale


def _labelled_frame(
    table: Frame,
    protocol: EvaluationProtocol,
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
    columns += [] if propensity is None else [_propensity(propensity, given.height)]
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


def _propensity(propensity: np.ndarray, n: int) -> pl.Series:
    """The propensities of rows as a column; refuses those outside (0, 1]."""
    p = _float(propensity).astype(np.float64)
    check_rows("propensity", p, n, kind="a probability above 0", positive=True)
    if p.max() > 1:
        row = int(p.argmax())
        raise InputError("propensity above 1", row=row + 1, found=float(p[row]), expected="(0, 1]")
    return pl.Series("propensity", p)


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
    """What graded gains grow with: stars above the lowest, so that the lowest rating gains nothing."""
    if rating is None:
        return label
    return (scale.stars(rating) - 1.0).astype(np.float32) if scale is not None else rating


def _float(values: Any) -> np.ndarray:
    """Numbers as float32 or float64; scores of a float32 model are not widened, so their ties stay
    ties."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError("not numbers", found=str(array.dtype), expected="one number per row")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
