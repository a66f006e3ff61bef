"""How good is the model now? One number from held-out rows, higher is better."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from puidrec.data.dataset import Interactions
from puidrec.errors import InputError
from puidrec.evaluate.auc import auc, user_auc
from puidrec.objective.low_rank import LowRank

ROWS_PER_USER = 10
"""From this many rows per user on, a ranking within users can be judged; below, the pooled AUC is steadier."""
CHUNK = 1_000_000


@dataclass(frozen=True)
class Validator:
    """Held-out rows as codes, their labels, and weights where the rows were self-selected (SNIPS)."""

    user: np.ndarray
    item: np.ndarray
    label: np.ndarray
    unit: np.ndarray
    metric: str
    weight: np.ndarray | None = None

    @classmethod
    def from_rows(cls, rows: Interactions, metric: str, weight: np.ndarray | None = None) -> Validator | None:
        """A validator, or None where the rows cannot tell models apart (none, or one label)."""
        label = rows.label
        if not len(rows) or label.min() == label.max():
            return None
        if metric == "auto":
            metric = "uauc" if len(rows) >= ROWS_PER_USER * np.unique(rows.user).size else "auc"
        if metric not in ("auc", "uauc", "mse"):
            raise InputError("unknown validation metric", found=metric, expected="auto, auc, uauc or mse")
        return cls(rows.user, rows.item, label, rows.scale.unit(rows.rating), metric, weight)

    def score(self, factors: LowRank, *, signed: bool = False) -> float:
        """The metric of these scores; `signed` says that predictions live on ±1."""
        prediction = pair_scores(factors, self.user, self.item)
        if self.metric == "auc":
            return float(auc(prediction, self.label, self.weight))
        if self.metric == "uauc":
            return float(user_auc(self.user, prediction, self.label, self.weight).mean)
        target = 2.0 * self.label - 1.0 if signed else self.unit
        return -float(np.average((prediction - target) ** 2, weights=self.weight))


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
