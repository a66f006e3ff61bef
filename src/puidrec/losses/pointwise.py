"""Errors e(score, target) of single pairs (`eq:eui`): squared, absolute, cross-entropy; value,
slope and curvature.

Targets are *unit* (ratings scaled to [0, 1]) or *signed* (labels ±1, as in the paper). Squared and
absolute errors compare numbers and do not care. Cross-entropy reads the score as a log-odds, so it
must know which: the chance of a signed target t is (t + 1)/2, which turns softplus(x) − y·x into
the familiar log(1 + exp(−t·x)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from puidrec.errors import InputError
from puidrec.evaluation.metrics import signed_labels, unit_labels

TargetKind = Literal["unit", "signed"]
WIDTH = 0.003
"""Distance of scores from a bend within which it is rounded off; ratings span 1 or 2."""


class PairError:
    """e(s, t), squared: (s − t)²."""

    name = "squared"
    quadratic = True
    """Σ over all pairs has the Gram identity of `whole_space`; other errors need tiles."""

    def value(self, score: Tensor, target: Tensor) -> Tensor:
        """e, pair by pair."""
        return (score - target).square()

    def slope(self, score: Tensor, target: Tensor) -> Tensor:
        """∂e/∂s."""
        return 2.0 * (score - target)

    def curvature(self, score: Tensor, target: Tensor) -> Tensor:
        """∂²e/∂s², or a bound of it."""
        return torch.full_like(score, 2.0)

    def gap(self, score: Tensor, target: Tensor, label: Tensor) -> Tensor:
        """e(s, r) − e(s, g), the coefficient of DR: (g − r)(2s − r − g), without cancellation."""
        return (label - target) * torch.sub(2.0 * score, target + label)

    def to_target(self, score: Tensor) -> Tensor:
        """A score on the scale of targets: what a pseudo-label is, and what a prediction means."""
        return score


class AbsoluteError(PairError):
    """|s − t|, its bend rounded off: max(|x|, ω)/2 + x²/(2 max(|x|, ω)) with x = s − t."""

    name, quadratic = "absolute", False

    def value(self, score: Tensor, target: Tensor) -> Tensor:
        """|s − t| from a distance of `WIDTH` on."""
        return rounded(score - target, WIDTH)

    def slope(self, score: Tensor, target: Tensor) -> Tensor:
        """±1 from a distance of `WIDTH` on."""
        return ((score - target) / WIDTH).clamp(-1.0, 1.0)

    def curvature(self, score: Tensor, target: Tensor) -> Tensor:
        """That of a parabola above the error that touches it here."""
        return 1.0 / (score - target).abs().clamp_min(WIDTH)

    def gap(self, score: Tensor, target: Tensor, label: Tensor) -> Tensor:
        """e(s, r) − e(s, g)."""
        return self.value(score, target) - self.value(score, label)


class CrossEntropyError(AbsoluteError):
    """−y log σ(s) − (1 − y) log(1 − σ(s)) = log(1 + eˢ) − y s, y the target's chance."""

    name = "cross-entropy"

    def __init__(self, kind: TargetKind) -> None:
        self.signed = kind == "signed"

    def _chance(self, target: Tensor) -> Tensor:
        return 0.5 * (target + 1.0) if self.signed else target

    def value(self, score: Tensor, target: Tensor) -> Tensor:
        """Without overflow for any score."""
        return softplus(score, threshold=80.0) - self._chance(target) * score

    def slope(self, score: Tensor, target: Tensor) -> Tensor:
        """σ(s) − y."""
        return torch.sigmoid(score) - self._chance(target)

    def curvature(self, score: Tensor, target: Tensor) -> Tensor:
        """At most ¼."""
        return torch.full_like(score, 0.25)

    def to_target(self, score: Tensor) -> Tensor:
        """The mean that a log-odds stands for."""
        return torch.tanh(0.5 * score) if self.signed else torch.sigmoid(score)


def rounded(x: Tensor, width: Tensor | float) -> Tensor:
    """|x|, rounded off where it is below the width: never below |x|, above it by at most half the
    width (Huber)."""
    size = (
        torch.clamp_min(x.abs(), width)
        if isinstance(width, float)
        else torch.maximum(x.abs(), width)
    )
    return 0.5 * (size + x.square() / size.clamp_min(torch.finfo(x.dtype).tiny))


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
        """Scores as values of this scale: the mean a log-odds stands for, anything else as it is."""
        if not self.log_odds:
            return score
        mean: np.ndarray = np.tanh(0.5 * score)
        return mean if self.signed else unit_labels(mean)
