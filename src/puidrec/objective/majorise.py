"""Quadratics that lie above a worst-case loss and touch it at the current scores: lowering one lowers the other.

The worst weight of a pair in [a, b] makes its loss max(a k, b k) = ā k + δ |k| with ā = (a + b)/2 and δ = (b − a)/2:
it bends where the coefficient k changes sign. Weights read from the signs jump there, and sweeps with such weights step
back and forth across the bend. |k| itself has a quadratic above it, equal to it at the current score y:

* k = (s − r)² − e⁰ (losses of IPS and of the imputation model against a benchmark): curvature (x² + e⁰)/|x² − e⁰|
  with x = y − r;
* k = α (s − κ) (DR: e − ê = 2 (g − r)(s − (g + r)/2), less the benchmark's): curvature |α| / (2 |y − κ|).

Each function returns c and d of Σ (c s² − 2 d s), up to a constant. A pair exactly at its bend would need infinite
curvature: `width` keeps it finite, and rounds the bend off over that distance.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 1e-3
"""Distance of scores from a bend within which it is rounded off; ratings span 1 or 2."""


def above_square(y: Tensor, target: Tensor, reference: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """c and d of a quadratic above max(a k, b k), k = (s − r)² − e⁰, that touches it at s = y.

    Without room (e⁰ = 0, or a = b) it is the loss itself: w (s − r)² with the worst weight.
    """
    x = y - target
    gap = x.square() - reference
    middle, half = 0.5 * (a + b), 0.5 * (b - a)
    bend = torch.maximum(gap.abs(), WIDTH * (x.abs() + reference.sqrt()))
    curvature = torch.where(reference > 0, (x.square() + reference) / bend.clamp_min(1e-12), 1.0)
    slope = gap / bend.clamp_min(1e-12) * x
    c = middle + half * curvature
    return c, middle * target + half * (curvature * y - slope)


def above_line(y: Tensor, slope: Tensor, zero: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """c and d of a quadratic above max(a k, b k), k = slope · (s − zero), that touches it at s = y."""
    middle, half = 0.5 * (a + b), 0.5 * (b - a)
    c = 0.5 * half * slope.abs() / (y - zero).abs().clamp_min(WIDTH)
    return c, c * zero - 0.5 * middle * slope
