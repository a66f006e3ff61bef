"""Validation and early stopping: how good the model is on held-out rows, and which epoch is the
best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import polars as pl
import torch

from puidrec.data.dataset import Interactions
from puidrec.evaluation.metrics import TargetScale, auc, user_auc
from puidrec.scores.low_rank import LowRank

ROWS_PER_USER = 10
"""From this many rows per user on, a ranking within users can be judged; below, the pooled AUC is
steadier."""
CHUNK = 16_384
PLAIN = TargetScale()
"""Ratings in [0, 1], as they are."""
JUDGE_EVERY = 5
"""Epochs from one judgement to the next; the last epoch is judged too. Scores of neighbours differ
by next to nothing, and a judgement costs up to a fifth of an epoch (bench/judging.py), more where a
benchmarked loss has to be summed."""
WARM_UP = 20
"""Epochs before the first candidate: early scores of a random start are luck."""

MARGIN = 1e-4
"""What a later epoch must gain over the best: less than that is rounding or luck, and a tie goes to
the earlier one."""


@dataclass
class Stopping:
    """Early stopping by the exponentially smoothed score, higher is better: the best epoch, and
    when to stop."""

    patience: int
    """Epochs without a better smoothed score before stopping; 0 runs all epochs and keeps the last.
    """
    smoothing: float = 0.9
    """What the smoothed score keeps of itself per epoch, however many pass between two judgements.
    """
    warm_up: int = WARM_UP
    epoch: int = -1
    """The last epoch judged, counted from 0."""
    smoothed: float | None = None
    best: float | None = None
    best_epoch: int = -1

    def update(
        self, score: float, admissible: Callable[[], bool] = lambda: True, *, epochs: int = 1
    ) -> bool:
        """Take the score of an epoch, `epochs` after the last one judged; returns whether it is the
        best so far.

        admissible: whether the epoch may be chosen; asked only where its score would make it the
        best.
        """
        self.epoch += epochs
        kept = 0.0 if self.smoothed is None else self.smoothing**epochs
        self.smoothed = kept * (self.smoothed or 0.0) + (1 - kept) * score
        ready = self.patience == 0 or self.epoch >= self.warm_up
        better = self.patience == 0 or self.best is None or self.smoothed > self.best + MARGIN
        if ready and better and admissible():
            self.best, self.best_epoch = self.smoothed, self.epoch
            return True
        return False

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return 0 < self.patience <= self.epoch - max(self.best_epoch, self.warm_up)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on later."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on where `state` left off."""
        return cls(**state)


@dataclass(frozen=True)
class Validator:
    """Held-out rows as codes, their labels, and weights if rows were self-selected (SNIPS)."""

    user: np.ndarray
    item: np.ndarray
    label: np.ndarray
    target: np.ndarray
    """What a squared error compares predictions with."""
    metric: str
    weight: np.ndarray | None = None
    scale: TargetScale = PLAIN

    @classmethod
    def from_rows(
        cls,
        rows: Interactions,
        metric: str,
        weight: np.ndarray | None = None,
        scale: TargetScale | None = None,
    ) -> Validator | None:
        """A validator, or None where the rows cannot tell models apart (none; for a ranking, one
        label)."""
        label = rows.label
        if not len(rows) or (metric != "mse" and label.min() == label.max()):
            return None
        rankable = bool(len(user_auc(rows.user, label, label)))
        if metric == "auto":
            many = len(rows) >= ROWS_PER_USER * np.unique(rows.user).size
            metric = "uauc" if many and rankable else "auc"
        if metric == "uauc" and not rankable:
            return None
        scale = scale or PLAIN
        target = scale.of_labels(label) if scale.labels else rows.scale.unit(rows.rating)
        return cls(rows.user, rows.item, label, target, metric, weight, scale)

    def score(self, factors: LowRank) -> float:
        """The metric of these scores."""
        return self.judge(pair_scores(factors, self.user, self.item))

    def judge(self, prediction: np.ndarray) -> float:
        """The metric of the scores of these rows."""
        if self.metric == "auc":
            return float(auc(prediction, self.label, self.weight))
        if self.metric == "uauc":
            return float(user_auc(self.user, prediction, self.label, self.weight).mean)
        value = self.scale.of_scores(prediction).astype(np.float64)
        return -float(np.average((value - self.target) ** 2, weights=self.weight))


def with_drawn_pairs(
    liked: Interactions, seen: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> Interactions:
    """Held-out likes, and as many pairs of the same users drawn from what neither they nor the
    training rows hold.

    A log of likes has no dislikes to validate with. The AUC of likes against drawn pairs is that
    against the whole catalogue up to sampling error, which is the same for all models (other
    sampled metrics would be biased).
    """
    n_items, user = len(liked.items), liked.user.astype(np.int64)
    row_start, items = seen
    trained = np.repeat(np.arange(row_start.size - 1), np.diff(row_start)) * n_items + np.asarray(
        items, np.int64
    )
    taken = np.concatenate([trained, user * n_items + liked.item])
    drawn = user * n_items + rng.integers(n_items, size=user.size)
    drawn = np.setdiff1d(drawn, taken)
    more = pl.DataFrame(
        {
            "user": (drawn // n_items).astype(np.int32),
            "item": (drawn % n_items).astype(np.int32),
            "rating": np.full(drawn.size, liked.scale.low, np.float32),
            "label": np.zeros(drawn.size, np.int8),
        }
    )
    both = pl.concat([liked.frame.select(more.columns), more]).sort("user", "item")
    return replace(liked, frame=both)


@torch.no_grad()
def pair_scores(factors: LowRank, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Scores of given pairs, float32, a chunk at a time."""
    device = factors.lefts[0].device
    if user.size > factors.n_users:
        factors = factors.without_zeros()
    out = np.zeros(user.size, np.float32)
    for start in range(0, user.size, CHUNK):
        part = slice(start, start + CHUNK)
        rows, columns = (
            torch.from_numpy(x[part].astype(np.int64)).to(device) for x in (user, item)
        )
        for left, right in zip(factors.lefts, factors.rights, strict=True):
            out[part] += (
                (left.index_select(0, rows) * right.index_select(0, columns)).sum(1).cpu().numpy()
            )
    return out
