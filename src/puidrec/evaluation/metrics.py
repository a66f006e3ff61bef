"""The metrics by name: `uauc`, `ndcg@5`, … A new one is a function of `Scored` rows and one line in
`METRICS`.

Each user's own rows are ranked. Where scores tie, the value is its mean over the orders of the tied
rows, as in scikit-learn's `ndcg_score`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.ranking import Blocks, dense_codes, rank_lists
from puidrec.evaluation.significance import PerUser
from puidrec.evaluation.unseen_items import CATALOGUE, UNSEEN
from puidrec.plugins import Registry

Users = Literal["both-labels", "any-positive", "all"]
"""Whose lists count: users with both labels (most protocols), with at least one positive row, or
all: then NDCG is 1 where there is no positive row, and other metrics of lists leave such users out.
"""

WHOLE_LIST = 10**9
"""A cut-off beyond any list."""


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
    def positive(self) -> Blocks:
        """Each user's rows ranked by score: the blocks that hold positive ones."""
        return rank_lists(self.code, self.score, self.weight).blocks(self.label)

    @cached_property
    def graded(self) -> tuple[Blocks, Blocks]:
        """Blocks with gains 2^relevance − 1: as ranked by score, and ideally."""
        if self.relevance.min() < 0 or self.relevance.max() > 100:
            raise InputError(
                "graded gains need relevance from 0 to 100",
                found=f"{self.relevance.min():g}..{self.relevance.max():g}",
                hint="Rescale it, for example 0..4.",
            )
        gain = np.exp2(self.relevance.astype(np.float64)) - 1.0
        ranked, ideal = (
            rank_lists(self.code, by, self.weight).blocks(gain) for by in (self.score, gain)
        )
        return ranked, ideal

    @cached_property
    def n_positive(self) -> np.ndarray:
        """Positive rows of each user."""
        return np.bincount(self.code[self.label > 0], minlength=self.ids.size)

    def counted(self, users: Users) -> np.ndarray:
        """Mask of the users whose lists count under a rule."""
        if users not in get_args(Users):
            raise InputError(
                "unknown choice of users", found=users, expected=" or ".join(get_args(Users))
            )
        if users == "all":
            return np.ones(self.ids.size, bool)
        some = self.n_positive > 0
        return some & ((users == "any-positive") | (self.n_positive < np.bincount(self.code)))

    def mean_error(self, error: np.ndarray) -> PerUser:
        """Mean error per user, sized by rows (or weight), so that the overall mean is the one over
        rows (SNIPS)."""
        weight = np.ones(self.code.size) if self.weight is None else self.weight
        mass, total = (np.bincount(self.code, part) for part in (weight, weight * error))
        return PerUser(self.ids, total / mass, mass)


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


# AUC: the probability that a positive row outscores a negative one


def list_auc(positive: Blocks) -> np.ndarray:
    """AUC of each list, ties counted half, from the blocks that hold positive rows.

    A positive row of a block has (begin + end) / 2 rows above it on average over ties, half of
    itself included. Summed over positives, less the m²/2 that are positives over positives, this is
    the negatives above positives; their share of all m·(n − m) pairs is 1 − AUC. Meaningless where
    a list lacks a label.
    """
    m = positive.total
    above = positive.list_sum(positive.gain * (positive.begin + positive.end))
    pairs = m * (positive.rows - m)
    auc: np.ndarray = 1.0 - (above - m**2) / (2.0 * np.where(pairs > 0, pairs, 1.0))
    return auc


def user_auc(
    user: np.ndarray, score: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None
) -> PerUser:
    """AUC of every user who has both labels; ties count half. Their mean is UAUC."""
    score, label = np.asarray(score), np.asarray(label)
    rows = Scored(*dense_codes(np.asarray(user)), score, label, label, label, weight=weight)
    both = rows.counted("both-labels")
    return PerUser(rows.ids[both], list_auc(rows.positive)[both])


def auc(score: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None) -> float:
    """AUC over all rows, whoever they belong to, ties counted half; NaN where only one label
    occurs."""
    positive = np.asarray(label) > 0
    if positive.all() or not positive.any():
        return float("nan")
    share = placements(np.asarray(score), positive, weight)[positive]
    return float(np.average(share, weights=None if weight is None else weight[positive]))


def placements(
    score: np.ndarray, positive: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Of each positive row the share (of weight) of others it is above, of each other row the share
    of positives above it, ties counted half.

    Both have the mean AUC, and their variances add up to that of AUC (DeLong et al., 1988). Both
    labels must occur.
    """
    weight = np.ones(score.size) if weight is None else weight
    found = np.empty(score.size)
    for part, sign in ((positive, 1.0), (~positive, -1.0)):
        order = np.argsort(sign * score[~part])
        others = sign * score[~part][order]
        mass = np.concatenate([[0.0], np.cumsum(weight[~part][order])])
        below, up_to = (
            mass[np.searchsorted(others, sign * score[part], side)] for side in ("left", "right")
        )
        found[part] = (below + up_to) / (2.0 * mass[-1])
    return found


def auc_by_user(
    ids: np.ndarray,
    code: np.ndarray,
    score: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray | None = None,
) -> PerUser | float:
    """AUC over all rows as the mean of one value per user, whose spread is that of AUC when users
    are drawn anew.

    A user's value is AUC plus what its rows add to it to first order: with users as clusters this
    gives the interval of DeLong et al. (1988), and paired differences of two scores. NaN where only
    one label occurs.
    """
    positive, mass = np.asarray(label) > 0, np.ones(code.size) if weight is None else weight
    if positive.all() or not positive.any():
        return float("nan")
    share = placements(score, positive, weight)
    value, added = float(np.average(share[positive], weights=mass[positive])), np.zeros(ids.size)
    for part in (positive, ~positive):
        own = mass[part] * (share[part] - value) / mass[part].sum()
        added += np.bincount(code[part], weights=own, minlength=ids.size)
    return PerUser(ids, value + ids.size * added)


# The top of a list


def discounts(k: int) -> np.ndarray:
    """Credit of the first 0, 1, …, k positions: the cumulated 1 / log2(position + 1)."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])


def credit_at(credit: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Credit down to a position, none beyond the table; between whole positions (weights) it is
    linear."""
    found: np.ndarray = np.interp(position, np.arange(credit.size), credit)
    return found


def expected_gain(blocks: Blocks, credit: np.ndarray) -> np.ndarray:
    """Σ position credit × gain of each list, expected over the orders of tied rows.

    A block's rows share its positions evenly, so it earns its mean gain times the credit of the
    positions it spans (McSherry & Najork 2008). `credit` is cumulated over positions 0..k, as from
    `discounts`.
    """
    earned = credit_at(credit, blocks.end) - credit_at(credit, blocks.begin)
    return blocks.list_sum(blocks.gain / (blocks.end - blocks.begin) * earned)


def ratio(gained: np.ndarray, best: np.ndarray) -> np.ndarray:
    """What was gained over what could be; 0 where nothing can be gained."""
    share: np.ndarray = np.divide(gained, best, out=np.zeros_like(gained), where=best > 0)
    return share


def binary_ndcg(positive: Blocks, k: int) -> np.ndarray:
    """NDCG@k of each list with 0/1 gains; the ideal list has its m positive rows on top, so no
    second sort."""
    credit = discounts(positive.cutoff(k))
    return ratio(expected_gain(positive, credit), credit_at(credit, positive.total))


def graded_ndcg(ranked: Blocks, ideal: Blocks, k: int) -> np.ndarray:
    """NDCG@k of each list with any gains; `ideal` is the same rows ranked by gain."""
    credit = discounts(ranked.cutoff(k))
    return ratio(expected_gain(ranked, credit), expected_gain(ideal, credit))


def hits(positive: Blocks, k: int) -> np.ndarray:
    """Expected positive rows among each list's first k: a gain whose every position earns 1."""
    return expected_gain(positive, np.arange(positive.cutoff(k) + 1.0))


def average_precision(rows: Scored) -> np.ndarray:
    """Mean over positive rows of the precision at their position.

    For a block of n rows, c of them positive, below r rows with q positive, the expected precision
    at its j-th row, if that is positive, is (q + 1 + (j − 1)(c − 1)/(n − 1)) / (r + j). With H the
    harmonic numbers and h = H(r + n) − H(r), the block's sum is c/n · [(q + 1) h + (c − 1)/(n − 1)
    · (n − (r + 1) h)].
    """
    positive = rows.positive
    if rows.weight is not None:
        raise InputError(
            "map has no weighted form",
            hint="Use uauc, ndcg@k, recall@k or precision@k with weights.",
        )
    c, r, m = positive.gain, positive.begin, positive.total
    n = positive.end - r
    q = np.cumsum(c) - c - (np.cumsum(m) - m)[positive.list_of]
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, positive.rows.max() + 1))])
    h = credit_at(harmonic, positive.end) - credit_at(harmonic, r)
    slope = (c - 1.0) / np.maximum(n - 1, 1)
    block = c / n * ((q + 1.0) * h + slope * (n - (r + 1.0) * h))
    return ratio(positive.list_sum(block), m)


# Errors


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

    def value(self, rows: Scored, k: int) -> PerUser | float:
        """The values of the users who count, or one number."""
        if self.pooled is not None:
            return self.pooled(rows)
        if self.pointwise is not None:
            return rows.mean_error(self.pointwise(rows))
        assert self.ranking is not None  # noqa: S101 (one of the three is given)
        values, empty = self.ranking(rows, k), rows.n_positive == 0
        counted = rows.counted("both-labels" if self.both_labels else rows.users)
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
        "share found in first k",
        ranking=lambda d, k: ratio(hits(d.positive, k), d.positive.total),
        cutoff="always",
    ),
    "precision": Metric(
        "share positive of first k", ranking=lambda d, k: hits(d.positive, k) / k, cutoff="always"
    ),
    "map": Metric("mean average precision", ranking=lambda d, k: average_precision(d)),
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


_CATALOGUE = Metric("share of liked items among the first k of all items", cutoff="always")
"""Needs the scores of all items, so `evaluate` computes it; here it has a name and a direction."""


def parse_metric(name: str) -> tuple[Metric, int]:
    """Look up `name` or `name@k` (no cut-off: the whole list); the error lists what there is."""
    base, at, tail = name.partition("@")
    if base not in METRICS and base != CATALOGUE:
        raise InputError(
            "unknown metric",
            found=name,
            expected=f"one of {METRICS.names()} (ranking ones with @k)",
        )
    metric = _CATALOGUE if base == CATALOGUE else METRICS[base]
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
    return {name: metric.value(rows, k) for name, (metric, k) in parsed.items()}


@dataclass(frozen=True)
class TargetScale:
    """The scale a method predicts on: ratings in [0, 1], labels 0/1 or ±1; as they are, or as
    log-odds."""

    labels: bool = False
    signed: bool = False
    log_odds: bool = False

    @property
    def target(self) -> Literal["rating", "label", "binary"]:
        """What predictions on this scale are to be compared with, in the words of `evaluate`."""
        return ("binary" if self.signed else "label") if self.labels else "rating"

    def of_labels(self, label: np.ndarray) -> np.ndarray:
        """Labels 1/0 on this scale, float32."""
        unit = label.astype(np.float32)
        return signed_labels(unit) if self.signed else unit

    def of_scores(self, score: np.ndarray) -> np.ndarray:
        """Scores as values of this scale: the mean that log odds stand for, all else as it is."""
        if not self.log_odds:
            return score
        mean: np.ndarray = np.tanh(0.5 * score)
        return mean if self.signed else unit_labels(mean)
