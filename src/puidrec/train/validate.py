"""How good is the model now? One number from held-out rows, higher is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from puidrec.data.dataset import Interactions
from puidrec.errors import InputError
from puidrec.evaluation.auc import auc, user_auc
from puidrec.objective.low_rank import LowRank
from puidrec.settings import VALIDATION_METRICS, Settings

ROWS_PER_USER = 10
"""From this many rows per user on, a ranking within users can be judged; below, the pooled AUC is steadier."""
CHUNK = 1_000_000


@dataclass(frozen=True)
class Scale:
    """The scale a method predicts on: ratings in [0, 1], labels 0/1 or ±1; as they are, or as log-odds."""

    labels: bool = False
    signed: bool = False
    log_odds: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Scale:
        """The scale of a method. Bounds on unseen means speak of [0, 1], so `signed` and `sharp` never use ±1."""
        labels = settings.target == "binary"
        family = settings.spec.family
        return cls(labels, labels and family != "unseen", settings.loss == "cross-entropy" and family != "closed")

    @property
    def target(self) -> Literal["rating", "label", "binary"]:
        """What predictions on this scale are to be compared with, in the words of `evaluate`."""
        return ("binary" if self.signed else "label") if self.labels else "rating"

    def of_labels(self, label: np.ndarray) -> np.ndarray:
        """Labels 1/0 on this scale, float32."""
        unit = label.astype(np.float32)
        return 2.0 * unit - 1.0 if self.signed else unit

    def of_scores(self, score: np.ndarray) -> np.ndarray:
        """Scores as values of this scale: the mean a log-odds stands for, anything else as it is."""
        if not self.log_odds:
            return score
        mean: np.ndarray = np.tanh(0.5 * score)
        return mean if self.signed else 0.5 * (mean + 1.0)


@dataclass(frozen=True)
class Validator:
    """Held-out rows as codes, their labels, and weights where the rows were self-selected (SNIPS)."""

    user: np.ndarray
    item: np.ndarray
    label: np.ndarray
    target: np.ndarray
    """What a squared error compares predictions with."""
    metric: str
    weight: np.ndarray | None = None
    scale: Scale = Scale()

    @classmethod
    def from_rows(
        cls, rows: Interactions, metric: str, weight: np.ndarray | None = None, scale: Scale | None = None
    ) -> Validator | None:
        """A validator, or None where the rows cannot tell models apart (none; for a ranking, one label)."""
        label = rows.label
        if not len(rows) or (metric != "mse" and label.min() == label.max()):
            return None
        rankable = bool(len(user_auc(rows.user, label, label)))
        if metric == "auto":
            many = len(rows) >= ROWS_PER_USER * np.unique(rows.user).size
            metric = "uauc" if many and rankable else "auc"
        if metric == "uauc" and not rankable:
            return None
        if metric not in VALIDATION_METRICS:
            raise InputError("unknown validation metric", found=metric, expected=", ".join(VALIDATION_METRICS))
        scale = scale or Scale()
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


@torch.no_grad()
def pair_scores(factors: LowRank, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Scores of given pairs, float32, a chunk at a time."""
    device = factors.lefts[0].device
    out = np.zeros(user.size, np.float32)
    for start in range(0, user.size, CHUNK):
        part = slice(start, start + CHUNK)
        rows, columns = (torch.from_numpy(x[part].astype(np.int64)).to(device) for x in (user, item))
        for left, right in zip(factors.lefts, factors.rights, strict=True):
            out[part] += (left.index_select(0, rows) * right.index_select(0, columns)).sum(1).cpu().numpy()
    return out
