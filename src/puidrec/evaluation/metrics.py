"""The metrics by name: `uauc`, `ndcg@5`, … A new one is a function of `Scored` rows and one line in
`METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.auc import auc_by_user, list_auc
from puidrec.evaluation.ndcg import (
    WHOLE_LIST,
    Users,
    average_precision,
    binary_ndcg,
    counted_lists,
    graded_gain,
    graded_ndcg,
    precision,
    recall,
)
from puidrec.evaluation.ranking import Blocks, RankedLists, rank_lists
from puidrec.evaluation.significance import PerUser, join
from puidrec.evaluation.unseen_items import CATALOGUE, UNSEEN, cutoff_of
from puidrec.plugins import Registry

PART_ROWS = 2**18
"""Rows of a part: its arrays fit in cache, which halves the time of a large evaluation."""


@dataclass(frozen=True)
class Scored:
    """Rows to evaluate: whose, scored how, and what they should have been."""

    ids: np.ndarray
    """The distinct users, sorted."""
    code: np.ndarray
    """Position of each row's user in `ids`."""
    score: np.ndarray
    label: np.ndarray
    """1 positive, 0 negative (int8)."""
    target: np.ndarray
    """What `mse`, `rmse` and `mae` compare scores with."""
    relevance: np.ndarray
    """What graded gains are made of."""
    users: Users = "both-labels"
    weight: np.ndarray | None = None
    width: float = 1.0
    """Highest minus lowest rating, where targets are ratings scaled to [0, 1]: `rmse` and `mae` are
    in ratings."""

    @cached_property
    def lists(self) -> RankedLists:
        """Each user's rows, ranked by score."""
        return rank_lists(self.code, self.score, self.weight)

    @cached_property
    def positive(self) -> Blocks:
        """The blocks of `lists` that hold positive rows."""
        return self.lists.blocks(self.label)

    @cached_property
    def graded(self) -> tuple[Blocks, Blocks]:
        """Blocks with gains 2^relevance − 1: as ranked by score, and ideally."""
        gain = graded_gain(self.relevance)
        return self.lists.blocks(gain), rank_lists(self.code, gain, self.weight).blocks(gain)

    @cached_property
    def n_positive(self) -> np.ndarray:
        """Positive rows of each list."""
        return self.lists.count(self.label)

    @cached_property
    def counted(self) -> np.ndarray:
        """Mask of the lists that count under the `users` rule."""
        return counted_lists(self.n_positive, self.lists.rows, self.users)

    @cached_property
    def both_labels(self) -> np.ndarray:
        """Mask of the lists with both labels: an AUC needs them."""
        return counted_lists(self.n_positive, self.lists.rows, "both-labels")

    @cached_property
    def mass(self) -> np.ndarray:
        """Rows (or weight) of each user."""
        return np.bincount(self.code, weights=self.weight, minlength=self.ids.size).astype(
            np.float64
        )

    def mean_error(self, error: np.ndarray) -> PerUser:
        """Mean error per user, sized by rows (or weight), so that the overall mean is the one over
        rows (SNIPS)."""
        weighted = error if self.weight is None else self.weight * error
        return PerUser(
            self.ids,
            np.bincount(self.code, weights=weighted, minlength=self.ids.size) / self.mass,
            self.mass,
        )

    def parts(self, rows: int | None = None) -> Iterator[Self]:
        """Divide the rows into parts of whole users, in order of users, each of about `rows` rows
        (or PART_ROWS)."""
        rows = rows or PART_ROWS
        if self.code.size <= rows:
            yield self
            return
        n_parts = -(-self.code.size // rows)
        above = np.cumsum(np.bincount(self.code))
        part_of_user = (above * (n_parts - 1) // above[-1]).astype(np.uint16)
        part = part_of_user[self.code]
        order = np.argsort(part, kind="stable")
        row_cuts = np.searchsorted(part, np.arange(n_parts + 1), sorter=order)
        user_cuts = np.searchsorted(part_of_user, np.arange(n_parts + 1))
        for number in np.unique(part_of_user):
            first, last = user_cuts[number], user_cuts[number + 1]
            at = order[row_cuts[number] : row_cuts[number + 1]]
            yield replace(
                self,
                ids=self.ids[first:last],
                code=self.code[at] - first,
                score=self.score[at],
                label=self.label[at],
                target=self.target[at],
                relevance=self.relevance[at],
                weight=None if self.weight is None else self.weight[at],
            )


def signed_labels(label: np.ndarray) -> np.ndarray:
    """Labels 0/1 as −1/+1, in their own type: the scale on which methods with `target="binary"`
    predict."""
    signed: np.ndarray = 2 * label - 1
    return signed


def unit_labels(signed: np.ndarray) -> np.ndarray:
    """Values on the scale −1 to +1 as values on 0 to 1: the inverse of `signed_labels`, also for
    predictions."""
    unit: np.ndarray = 0.5 * (signed + 1.0)
    return unit


def deviation(rows: Scored) -> np.ndarray:
    """score − target, in float64."""
    difference: np.ndarray = np.subtract(rows.score, rows.target, dtype=np.float64)
    return difference


def root_mean_square(rows: Scored) -> PerUser | float:
    """The root of the mean squared error, in the unit of the ratings.

    As the mean of one value per user: the root, plus what the user's rows add to it to first order.
    """
    square = rows.mean_error(deviation(rows) ** 2)
    root = float(np.sqrt(square.mean))
    added = (
        square.weight * (square.values - square.mean) / (2.0 * root)
        if root > 0.0
        else np.zeros(len(square))
    )
    return PerUser(square.users, rows.width * (root + len(square) * added))


def cross_entropy(score: np.ndarray, target: np.ndarray) -> np.ndarray:
    """−log of the probability given to the label, with probabilities kept one rounding step from 0
    and 1."""
    low, high = float(score.min()), float(score.max())
    if low < 0.0 or high > 1.0:
        raise InputError(
            "logloss needs probabilities",
            found=f"scores from {low:.3g} to {high:.3g}",
            expected="scores in [0, 1]",
            hint="Use mse, or a model trained with the cross-entropy loss.",
        )
    step = float(np.finfo(score.dtype).eps)
    given = np.where(target > 0.5, score, 1.0 - score).astype(np.float64)
    error: np.ndarray = -np.log(np.clip(given, step, 1.0 - step))
    return error


@dataclass(frozen=True)
class Metric:
    """A row of the table; exactly one of the three functions is given."""

    description: str
    ranking: Callable[[Scored, int], np.ndarray] | None = None
    """Value of each user's list, at a cut-off; averaged over the users who count."""
    pointwise: Callable[[Scored], np.ndarray] | None = None
    """Error of each row; averaged over rows."""
    pooled: Callable[[Scored], PerUser | float] | None = None
    """One number of all rows, or one value per user whose mean it is."""
    cutoff: str = "never"
    """Whether a name takes `@k`: never, optional (the whole list without it), or always."""
    both_labels: bool = False
    """Whether only lists with both labels have a value, whatever the rule for users."""
    is_error: bool = False
    """Whether a pooled number is an error; pointwise ones always are."""
    without_positive: float | None = None
    """The value of lists without a positive row where all users count; None: they are left out."""

    @property
    def higher_is_better(self) -> bool:
        """Errors are to be small, all else large."""
        return self.pointwise is None and not self.is_error

    def per_user(self, rows: Scored, k: int) -> PerUser:
        """The values of the users who count."""
        if self.pointwise is not None:
            return rows.mean_error(self.pointwise(rows))
        if self.ranking is None:
            raise TypeError(f"{self.description}: no values per user")
        values, empty = self.ranking(rows, k), rows.n_positive == 0
        counted = rows.both_labels if self.both_labels else rows.counted
        if rows.users == "all" and self.without_positive is not None:
            values = np.where(empty, self.without_positive, values)
        elif rows.users == "all":
            counted = counted & ~empty
        return PerUser(rows.ids[counted], values[counted])


_BUILT_IN: dict[str, Metric] = {
    "uauc": Metric(
        "mean AUC over users, ties half",
        ranking=lambda d, k: list_auc(d.positive),
        both_labels=True,
    ),
    "auc": Metric(
        "AUC over all rows, ties half",
        pooled=lambda d: auc_by_user(d.ids, d.code, d.score, d.label, d.weight),
    ),
    "ndcg": Metric(
        "NDCG, gains 0/1",
        ranking=lambda d, k: binary_ndcg(d.positive, k),
        cutoff="optional",
        without_positive=1.0,
    ),
    "ndcg-graded": Metric(
        "NDCG, gains 2^relevance − 1",
        ranking=lambda d, k: graded_ndcg(*d.graded, k),
        cutoff="optional",
        without_positive=1.0,
    ),
    "recall": Metric(
        "share found in first k", ranking=lambda d, k: recall(d.positive, k), cutoff="always"
    ),
    "precision": Metric(
        "share positive of first k", ranking=lambda d, k: precision(d.positive, k), cutoff="always"
    ),
    "map": Metric("mean average precision", ranking=lambda d, k: average_precision(d.positive)),
    "mse": Metric("mean squared error, ratings on 0..1", pointwise=lambda d: deviation(d) ** 2),
    "rmse": Metric("root mean squared error, in ratings", pooled=root_mean_square, is_error=True),
    "mae": Metric(
        "mean absolute error, in ratings", pointwise=lambda d: np.abs(deviation(d)) * d.width
    ),
    "logloss": Metric("mean cross-entropy", pointwise=lambda d: cross_entropy(d.score, d.label)),
}
METRICS = Registry(
    "puidrec.metrics",
    _BUILT_IN,
    lambda _, row: row if isinstance(row, Metric) else None,
    "a Metric",
)


_CATALOGUE = Metric(
    "share of liked items among the first k of all items",
    ranking=lambda d, k: d.counted,
    cutoff="always",
)
"""Needs the scores of all items, so `evaluate` computes it; here it has a name and a direction."""


def parse_metric(name: str) -> tuple[Metric, int]:
    """Look up `name` or `name@k` (no cut-off: the whole list); the error lists what there is."""
    base, at, tail = name.partition("@")
    if name.startswith(CATALOGUE):
        return _CATALOGUE, cutoff_of(name)
    if base not in METRICS:
        raise InputError(
            "unknown metric",
            found=name,
            expected=f"one of {METRICS.names()} (ranking ones with @k)",
        )
    metric = METRICS[base]
    if not at and metric.cutoff == "always":
        raise InputError(
            f"metric {base} needs a cut-off",
            found=name,
            expected=f"{base}@k",
            hint=f"Try {base}@5.",
        )
    if at and metric.cutoff == "never":
        raise InputError(f"metric {base} takes no cut-off", found=name, expected=base)
    if at and not (tail.isascii() and tail.isdigit() and 0 < int(tail) < WHOLE_LIST):
        raise InputError(
            "bad cut-off of a metric", found=name, expected=f"{base}@k with a whole k from 1"
        )
    return metric, int(tail) if at else WHOLE_LIST


def higher_is_better(name: str) -> bool:
    """The direction of a metric; those of lists of all items (`unseen-…`) are all gains."""
    return name.startswith(UNSEEN) or parse_metric(name)[0].higher_is_better


def compute_metrics(rows: Scored, names: Iterable[str]) -> dict[str, PerUser | float]:
    """All named metrics, sharing sorts and counts; every name is checked before any work."""
    parsed = {name: parse_metric(name) for name in names}
    pooled = {
        name: metric.pooled(rows)
        for name, (metric, _) in parsed.items()
        if metric.pooled is not None
    }
    rest = {name: pair for name, pair in parsed.items() if name not in pooled}
    parts: dict[str, list[PerUser]] = {name: [] for name in rest}
    for part in rows.parts() if rest else ():
        for name, (metric, k) in rest.items():
            parts[name].append(metric.per_user(part, k))
    return {name: pooled[name] if name in pooled else join(parts[name]) for name in parsed}
