"""The metrics by name: `uauc`, `ndcg@5`, … A new one is a function of `Scored` and one line in `METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.auc import auc, list_auc
from puidrec.evaluation.hits import average_precision, precision, recall
from puidrec.evaluation.ndcg import WHOLE_LIST, binary_ndcg, graded_ndcg
from puidrec.evaluation.per_user import PerUser, join
from puidrec.evaluation.pointwise import POINTWISE
from puidrec.evaluation.scored import Scored
from puidrec.plugins import Table


@dataclass(frozen=True)
class Metric:
    """A row of the table; exactly one of the three functions is given."""

    description: str
    ranking: Callable[[Scored, int], np.ndarray] | None = None
    """Value of each user's list, at a cut-off; averaged over the users who count."""
    pointwise: Callable[[Scored], np.ndarray] | None = None
    """Error of each row; averaged over rows."""
    pooled: Callable[[Scored], float] | None = None
    """One number of all rows, where users cannot be told apart."""
    cutoff: str = "never"
    """Whether a name takes `@k`: never, optional (the whole list without it), or always."""
    both_labels: bool = False
    """Whether only lists with both labels have a value, whatever the rule for users."""

    @property
    def higher_is_better(self) -> bool:
        """Errors are to be small, all else large."""
        return self.pointwise is None

    def per_user(self, rows: Scored, k: int) -> PerUser:
        """The values of the users who count."""
        if self.pointwise is not None:
            return rows.mean_error(self.pointwise(rows))
        if self.ranking is None:
            raise TypeError(f"{self.description}: no values per user")
        counted = rows.both_labels if self.both_labels else rows.counted
        return PerUser(rows.ids[counted], self.ranking(rows, k)[counted])


_BUILT_IN: dict[str, Metric] = {
    "uauc": Metric("mean AUC over users, ties half", ranking=lambda d, k: list_auc(d.positive), both_labels=True),
    "auc": Metric("AUC over all rows, ties half", pooled=lambda d: auc(d.score, d.label, d.weight)),
    "ndcg": Metric("NDCG, gains 0/1", ranking=lambda d, k: binary_ndcg(d.positive, k), cutoff="optional"),
    "ndcg-graded": Metric(
        "NDCG, gains 2^relevance − 1", ranking=lambda d, k: graded_ndcg(*d.graded, k), cutoff="optional"
    ),
    "recall": Metric("share found in first k", ranking=lambda d, k: recall(d.positive, k), cutoff="always"),
    "precision": Metric("share positive of first k", ranking=lambda d, k: precision(d.positive, k), cutoff="always"),
    "map": Metric("mean average precision", ranking=lambda d, k: average_precision(d.positive)),
    "mse": Metric("mean squared error", pointwise=lambda d: POINTWISE["mse"](d.score, d.target)),
    "mae": Metric("mean absolute error", pointwise=lambda d: POINTWISE["mae"](d.score, d.target)),
    "logloss": Metric("mean cross-entropy", pointwise=lambda d: POINTWISE["logloss"](d.score, d.label)),
}
METRICS = Table("puidrec.metrics", _BUILT_IN, lambda _, row: row if isinstance(row, Metric) else None, "a Metric")


def parse_metric(name: str) -> tuple[Metric, int]:
    """Look up `name` or `name@k` (no cut-off: the whole list); the error lists what there is."""
    base, at, tail = name.partition("@")
    if base not in METRICS:
        raise InputError("unknown metric", found=name, expected=f"one of {METRICS.names()} (ranking ones with @k)")
    metric = METRICS[base]
    if not at and metric.cutoff == "always":
        raise InputError(f"metric {base} needs a cut-off", found=name, expected=f"{base}@k", hint=f"Try {base}@5.")
    if at and metric.cutoff == "never":
        raise InputError(f"metric {base} takes no cut-off", found=name, expected=base)
    if at and not (tail.isascii() and tail.isdigit() and 0 < int(tail) < WHOLE_LIST):
        raise InputError("bad cut-off of a metric", found=name, expected=f"{base}@k with a whole k from 1")
    return metric, int(tail) if at else WHOLE_LIST


def compute_metrics(rows: Scored, names: Iterable[str]) -> dict[str, PerUser | float]:
    """All named metrics, sharing sorts and counts; every name is checked before any work."""
    parsed = {name: parse_metric(name) for name in names}
    pooled = {name: metric.pooled(rows) for name, (metric, _) in parsed.items() if metric.pooled is not None}
    rest = {name: pair for name, pair in parsed.items() if name not in pooled}
    parts: dict[str, list[PerUser]] = {name: [] for name in rest}
    for part in rows.parts() if rest else ():
        for name, (metric, k) in rest.items():
            parts[name].append(metric.per_user(part, k))
    return {name: pooled[name] if name in pooled else join(parts[name]) for name in parsed}
