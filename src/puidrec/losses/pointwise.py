"""The losses that a `loss=` option names, and the scale of what a method predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.metrics import signed_labels, unit_labels
from puidrec.losses.pair_loss import AbsoluteError, CrossEntropyError, PairError, TargetKind

LOSSES = ("squared", "absolute", "cross-entropy")
"""The names a `loss=` option accepts."""


def pointwise_error(name: str, target: TargetKind = "unit") -> PairError:
    """Look an error up by the name of a loss and the kind of target."""
    if name not in LOSSES:
        raise InputError("unknown loss", found=name, expected=f"one of {', '.join(LOSSES)}")
    if name == "cross-entropy":
        return CrossEntropyError(target)
    return PairError() if name == "squared" else AbsoluteError()


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


__all__ = ["LOSSES", "PairError", "TargetKind", "TargetScale", "pointwise_error"]
