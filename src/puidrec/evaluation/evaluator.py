"""Evaluate a model on rated pairs, or scores on labels: all metrics in one pass, values per user
kept."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap, Interactions
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
from puidrec.data.split import Protocol, get_protocol
from puidrec.data.tables import OverlapRule, check_overlap, require_fresh
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
from puidrec.evaluation.metrics import (
    Scored,
    Users,
    compute_metrics,
    parse_metric,
    signed_labels,
)
from puidrec.evaluation.ranking import check_rows, dense_codes
from puidrec.evaluation.result import Evaluation, Weights
from puidrec.evaluation.unseen_items import (
    CATALOGUE,
    UNSEEN,
    catalogue_recall,
    found_by_others,
    found_by_own,
    parse_unseen_metric,
    unseen_values,
)

DEFAULT_METRICS = ("uauc", "ndcg@5", "auc", "mse")
Target = Literal["rating", "binary", "label"]
"""What scores are compared with: ratings scaled to [0, 1] (labels 0/1 where there are none), ±1, or
0/1."""
STRATA = ("popularity", "activity", "known")


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
    return Evaluation.of(
        computed,
        n_users=int(rows.counted(users).sum()),
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
            return _of_lists(lists, rows, metrics)
        model = ScoreTable.of(model)
    if not ranked:
        return _of_rows(model, rows, scored)
    lists = model.lists(rows.train) if isinstance(model, ScoreTable) else model
    found = _of_lists(lists, rows, ranked)
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
    liked, ask = frame.filter(pl.col("label") == 1), partial(unit_scores, model)
    pairs = liked["user_id"].to_numpy(), liked["item_id"].to_numpy()
    per_user = result.per_user | {
        name: catalogue_recall(ask, *pairs, rows.items(model), parse_metric(name)[1])
        for name in whole
    }
    return replace(
        result,
        means=result.means | {name: per_user[name].mean for name in whole},
        per_user=per_user,
        n_trained_on=n_trained_on,
        weights=None if propensity is None else Weights.of(propensity),
        n_new_users=rows.n_new_users(model, frame),
    )


def _of_lists(model: Any, rows: RatedRows, names: Sequence[str]) -> Evaluation:
    """Metrics of the best items that users have not seen, by a model, or as a table `user_id,
    item_id` has them in order; every name is checked before any work."""
    for name in names:
        parse_unseen_metric(name)
    frame, n_trained_on = rows.fresh(model, rows.labelled(likes=True)[0])
    liked = frame.filter(pl.col("label") == 1)
    if not liked.height:
        found = f"{frame.height} rows"
        raise InputError("no positive rows to look for", found=found, expected="at least one")
    if hasattr(model, "seen_"):
        users = model.user_ids_.ids
        values = unseen_values(names, lambda k: found_by_own(model, liked, rows.train, k))
    else:
        if rows.train is None and any("novelty" in n or "-popularity" in n for n in names):
            problem = "novelty and popularity are counted in training rows"
            raise InputError(problem, expected="exclude=training rows")
        users = liked["user_id"].unique().sort()
        items = rows.items(model)
        asked = model if isinstance(model, pl.DataFrame) else partial(unit_scores, model)
        values = unseen_values(names, lambda k: found_by_others(asked, liked, rows.train, items, k))
    return Evaluation.of(
        values,
        n_users=liked["user_id"].n_unique(),
        n_rows=frame.height,
        positive_rate=liked.height / frame.height,
        users="any-positive",
        n_trained_on=n_trained_on,
        n_new_users=rows.n_new_users(model, frame),
    ).named(users)


def _warn_without_value(
    result: Evaluation, frame: pl.DataFrame, rule: Protocol, scale: RatingScale | None
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
    columns = ["stratum", "metric", "value", "rows", "users"]
    return replace(whole, strata=pl.DataFrame(found, schema=columns, orient="row"))


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

    def labelled(self, *, likes: bool = False) -> tuple[pl.DataFrame, RatingScale | None]:
        """Ids and labels (ratings and propensities too, if given), and the scale of ratings.

        likes: rows of a table without labels and ratings are all liked.
        """
        part, propensity = self.given, self.propensities
        if not isinstance(part, Interactions):
            return self._labelled_frame(propensity, likes)
        if propensity is not None:
            column = propensity_column(propensity, len(part))
            part = replace(part, frame=part.frame.with_columns(column))
        part = part if "label" in part.frame.columns else part.labelled(self.protocol)
        return part.to_frame(), part.scale

    def _labelled_frame(
        self, propensity: np.ndarray | None, likes: bool
    ) -> tuple[pl.DataFrame, RatingScale | None]:
        """Check a caller's table; ratings become labels only on a scale the caller named."""
        origin = Origin("interactions")
        given = to_polars(self.given, origin)
        require_columns(given, ("user_id", "item_id"), origin)
        if likes and not {"label", "rating"} & set(given.columns):
            given = given.with_columns(label=1)
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

    def items(self, model: Any) -> IdMap | None:
        """All items that a list could show: those of the data set, or of the model."""
        if isinstance(self.given, Interactions):
            return self.given.items
        return getattr(model, "item_ids_", None)

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
