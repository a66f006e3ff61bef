"""Worst-case losses as the solver lowers them: with their bends rounded off, and with quadratics above them.

The worst weight of a pair in [a, b] makes its loss max(a k, b k) = ā k + δ |k| with ā = (a + b)/2 and δ = (b − a)/2:
it bends where the coefficient k changes sign. Weights that jump there leave sweeps stepping back and forth across the
bend, and where they end depends on the last bit. So |k| is rounded off where the score is within `WIDTH` of its bend:

    |k| ≤ h(k) = max(|k|, ω)/2 + k²/(2 max(|k|, ω)) ≤ |k| + ω/2,   h = |k| from |k| = ω on (Huber's function, raised).

The rounded loss is never below the worst case, above it by at most δω/2 of a pair, and the worst case itself as the
width goes to 0. h(k) has a quadratic that touches it at the current score y and lies above it (of squares, outside the
width):

* k = α (s − κ) (DR: e − ê = 2 (g − r)(s − (g + r)/2), less the benchmark's): ω = |α| · width, curvature
  |α| / (2 max(|y − κ|, width));
* max (s − m)² over an interval of m with middle μ and half width η, (|s − μ| + η)² (sharp bounds): |s − μ| is rounded
  off the same way, and the curvature is 1 + η/max(|y − μ|, width);
* k = (s − r)² − e⁰ (losses of IPS and of the imputation model against a benchmark): ω = 2 √e⁰ · width, curvature
  (x² + e⁰)/max(|x² − e⁰|, ω) with x = y − r.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from puidrec.objective.worst_case import Box

WIDTH = 0.003
"""Distance of scores from a bend within which it is rounded off; ratings span 1 or 2."""


class Bent(Protocol):
    """Losses max(a k, b k) of some pairs as functions of their scores, rounded off at their bends."""

    def loss(self, y: Tensor) -> Tensor:
        """The loss of each pair."""

    def above(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """c and d of quadratics c s² − 2 d s, up to a constant, above the losses; they touch them at s = y."""


class BentLine(NamedTuple):
    """k = slope · (s − zero) + level; where there is a slope, the level is 0."""

    slope: Tensor
    zero: Tensor
    level: Tensor | float
    bounds: Box

    @classmethod
    def of(cls, slope: Tensor, zero: Tensor, gap: Tensor | None, bounds: Box) -> BentLine:
        """k = slope · (s − zero) − gap, the gap being a benchmark's."""
        if gap is None:
            return cls(slope, zero, 0.0, bounds)
        flat = slope == 0
        return cls(
            slope,
            zero + torch.where(flat, 0.0, gap / torch.where(flat, 1.0, slope)),
            torch.where(flat, -gap, 0.0),
            bounds,
        )

    def loss(self, y: Tensor) -> Tensor:
        """ā k + δ h(k)."""
        middle, half = _middle_and_half(self.bounds)
        distance = y - self.zero
        rounded = self.slope.abs() * _rounded(distance, torch.full_like(distance, WIDTH))
        flat = torch.as_tensor(self.level)
        return middle * (self.slope * distance + flat) + half * (rounded + flat.abs())

    def above(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """c = δ|α| / (2 max(|y − κ|, width)), d = c κ − ā α/2."""
        middle, half = _middle_and_half(self.bounds)
        c = 0.5 * half * self.slope.abs() / (y - self.zero).abs().clamp_min(WIDTH)
        return c, c * self.zero - 0.5 * middle * self.slope


class BentSquare(NamedTuple):
    """k = (s − target)² − reference; without room (reference 0, or a = b) the loss is a square at its worst weight."""

    target: Tensor
    reference: Tensor
    bounds: Box

    def loss(self, y: Tensor) -> Tensor:
        """ā k + δ h(k)."""
        middle, half = _middle_and_half(self.bounds)
        k = (y - self.target).square() - self.reference
        return middle * k + half * _rounded(k, self._width().to(k))

    def above(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """c = ā + δ · curvature, and d such that the slopes agree."""
        middle, half = _middle_and_half(self.bounds)
        x = y - self.target
        square = x.square()
        k = square - self.reference
        bend = torch.maximum(k.abs(), self._width()).clamp_min(1e-12)
        curvature = torch.where(self.reference > 0, (square + self.reference) / bend, 1.0)
        slope = torch.where(self.reference > 0, k / bend, 1.0) * x
        return middle + half * curvature, middle * self.target + half * (curvature * y - slope)

    def _width(self) -> Tensor:
        return 2.0 * WIDTH * self.reference.sqrt()


class BentInterval(NamedTuple):
    """weight · max (s − m)² over m in [middle − half, middle + half]; a square where half is 0."""

    weight: Tensor
    middle: Tensor
    half: Tensor

    def loss(self, y: Tensor) -> Tensor:
        """weight · (x² + 2 η h(x) + η²), x = y − μ."""
        x = (y - self.middle).abs()
        square, bend = x.square(), x.clamp_min(WIDTH)
        return self.weight * (square + self.half * (bend + square / bend + self.half))

    def above(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """c = weight · (1 + η / max(|y − μ|, width)), d = c μ."""
        c = self.weight * (1.0 + self.half / (y - self.middle).abs().clamp_min(WIDTH))
        return c, c * self.middle


def _middle_and_half(bounds: Box) -> tuple[Tensor, Tensor]:
    return 0.5 * (bounds.a + bounds.b), 0.5 * (bounds.b - bounds.a)


def _rounded(k: Tensor, width: Tensor) -> Tensor:
    """h(k) = max(|k|, ω)/2 + k²/(2 max(|k|, ω)); |k| where ω = 0."""
    bend = torch.maximum(k.abs(), width)
    return 0.5 * (bend + k.square() / bend.clamp_min(1e-30))
