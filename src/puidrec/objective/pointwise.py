"""Errors e(prediction, target) of single pairs (`eq:eui`): squared, absolute, cross-entropy.

Targets are *unit* (ratings scaled to [0, 1]) or *signed* (labels ±1, as in the paper). Squared and absolute errors
compare numbers and do not care. Cross-entropy reads the prediction as a log-odds, so it must know which: the chance
of a signed target t is (t + 1)/2, which turns softplus(x) − y·x into the familiar log(1 + exp(−t·x)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from puidrec.errors import InputError
from puidrec.evaluation.metrics import signed_labels, unit_labels

TargetKind = Literal["unit", "signed"]
Pointwise = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PointwiseError:
    """An error of one pair, and what else an objective must know about it."""

    name: str
    value: Pointwise
    """e(prediction, target), element by element."""
    to_target: Callable[[Tensor], Tensor]
    """Maps a score to the scale of targets: what a pseudo-label is, and what a prediction means."""
    quadratic: bool = False
    """Σ over all pairs has the Gram identity of `whole_space`; other errors need tiles."""

    def gap(self, prediction: Tensor, target: Tensor, label: Tensor) -> Tensor:
        """e(r̂, r) − e(r̂, g), the coefficient of DR; squared errors do not cancel in (g − r)(2r̂ − r − g)."""
        if self.quadratic:
            return (label - target) * torch.sub(2.0 * prediction, target + label)
        return self.value(prediction, target) - self.value(prediction, label)

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """e(prediction, target)."""
        return self.value(prediction, target)


def squared(prediction: Tensor, target: Tensor) -> Tensor:
    """(r̂ − r)²."""
    return (prediction - target).square()


def absolute(prediction: Tensor, target: Tensor) -> Tensor:
    """|r̂ − r|."""
    return (prediction - target).abs()


def cross_entropy_unit(logit: Tensor, target: Tensor) -> Tensor:
    """−y log σ(x) − (1 − y) log(1 − σ(x)) for y in [0, 1], without overflow for any x."""
    return softplus(logit, threshold=80.0) - target * logit


def cross_entropy_signed(logit: Tensor, target: Tensor) -> Tensor:
    """`cross_entropy_unit` with y = (t + 1)/2: log(1 + exp(−t·x)) at t = ±1, linear in between."""
    return cross_entropy_unit(logit, 0.5 * (target + 1.0))


def _same(score: Tensor) -> Tensor:
    return score


def _signed_mean(logit: Tensor) -> Tensor:
    """2σ(x) − 1, the mean of a ±1 label with log-odds x."""
    return torch.tanh(0.5 * logit)


_SQUARED = PointwiseError("squared", squared, _same, quadratic=True)
_ABSOLUTE = PointwiseError("absolute", absolute, _same)

ERRORS: dict[tuple[str, TargetKind], PointwiseError] = {
    ("squared", "unit"): _SQUARED,
    ("squared", "signed"): _SQUARED,
    ("absolute", "unit"): _ABSOLUTE,
    ("absolute", "signed"): _ABSOLUTE,
    ("cross-entropy", "unit"): PointwiseError("cross-entropy", cross_entropy_unit, torch.sigmoid),
    ("cross-entropy", "signed"): PointwiseError("cross-entropy", cross_entropy_signed, _signed_mean),
}
LOSSES = tuple(dict.fromkeys(name for name, _ in ERRORS))
"""The names a `loss=` option accepts."""


def pointwise_error(name: str, target: TargetKind = "unit") -> PointwiseError:
    """Look an error up by the name of a loss and the kind of target."""
    try:
        return ERRORS[name, target]
    except KeyError:
        raise InputError("unknown loss", found=f"{name} / {target}", expected=f"one of {', '.join(LOSSES)}") from None


@dataclass(frozen=True)
class TargetScale:
    """The scale a method predicts on: ratings in [0, 1], labels 0/1 or ±1; as they are, or as log-odds."""

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
        """Scores as values of this scale: the mean a log-odds stands for, anything else as it is."""
        if not self.log_odds:
            return score
        mean: np.ndarray = np.tanh(0.5 * score)
        return mean if self.signed else unit_labels(mean)
