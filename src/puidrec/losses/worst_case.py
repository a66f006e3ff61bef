"""Worst cases over a box of weights, in closed form: no gradient ascent, and constant for the
gradient of the model.

The weights of the observed pairs live in W_P = {w : a ≤ w ≤ b} (`eq:w_p`). Two problems are solved
over it:

* plain: maximise Σ c·w. Each weight moves alone, so w = b where c ≥ 0 and a elsewhere.
* normalised: maximise Σ c·w / Σ w (Hájek). At the optimum λ*, w = b where c > λ* and a elsewhere; found by
  Dinkelbach's iteration λ ← ratio at w(λ), which climbs to λ* in a handful of O(n) passes.

For c ≥ 0 everywhere (IPS) the plain worst case is b itself: with one global Γ it is IPS up to
scale. The normalised one is the version that does something there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from puidrec.errors import InputError

MAX_PASSES = 100
"""Dinkelbach converges superlinearly; this many passes would mean numbers that are not numbers."""


class Box(NamedTuple):
    """Bounds a ≤ w ≤ b of the observed pairs' weights, checked where they are made
    (`sensitivity.bounds`)."""

    a: Tensor
    b: Tensor

    @classmethod
    def exactly(cls, weight: Tensor) -> Box:
        """Γ = 1: the weights are known."""
        return cls(weight, weight)

    def rows(self, rows: slice) -> Box:
        """The box of some of the pairs."""
        return Box(self.a[rows], self.b[rows])


@torch.no_grad()
def worst_case_weights(coef: Tensor, bounds: Box) -> Tensor:
    """argmax_w Σ coef·w over the box (the inner problem of `eq:puid-ips`, `eq:puid-dr`,
    `eq:bpuid-dr`, …)."""
    _check(coef, bounds)
    if bounds.a is bounds.b:
        return bounds.a
    return torch.where(coef >= 0, bounds.b, bounds.a)


class Ratio(NamedTuple):
    """The solution of the normalised problem: w = b where c > threshold and a elsewhere, Σ w in
    all."""

    threshold: float
    weight: float


def worst_ratio(sums: Callable[[float], tuple[float, float]]) -> Ratio:
    """argmax_w Σ c·w / Σ w over the box, by Dinkelbach's iteration, from (Σ c·w, Σ w) at any
    threshold.

    Two sums are all it asks for, so pairs may lie in several blocks, or with several processes.
    Without pairs Σ w is 0.
    """
    best, value = Ratio(float("-inf"), 0.0), float("-inf")
    for _ in range(MAX_PASSES):
        numerator, weight = sums(value)
        if not weight or (best.weight and not numerator / weight > value):
            break
        best, value = Ratio(value, weight), numerator / weight
    return best


def ratio_sums(coef: Tensor, bounds: Box, threshold: float) -> Tensor:
    """(Σ c·w, Σ w) at a threshold, in float64."""
    weights = weights_above(coef, bounds, threshold)
    return torch.stack([weighted_sum(coef, weights), torch.sum(weights, dtype=torch.float64)])


def weights_above(coef: Tensor, bounds: Box, threshold: float) -> Tensor:
    """b where c > threshold, a elsewhere."""
    return bounds.a if bounds.a is bounds.b else torch.where(coef > threshold, bounds.b, bounds.a)


@torch.no_grad()
def normalised_worst_case_weights(coef: Tensor, bounds: Box) -> Tensor:
    """argmax_w Σ coef·w / Σ w over the box; sums are float64."""
    _check(coef, bounds)
    if bounds.a is bounds.b:
        return bounds.a

    def sums(threshold: float) -> tuple[float, float]:
        numerator, weight = ratio_sums(coef, bounds, threshold).cpu().tolist()
        return numerator, weight

    return weights_above(coef, bounds, worst_ratio(sums).threshold)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Σ w·v / Σ w with float64 sums."""
    return weighted_sum(values, weights) / torch.sum(weights, dtype=torch.float64)


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """Σ w·v as a float64 scalar, the weights constant: one pass over the log back, where autograd
    would take three."""
    total: Tensor = _WeightedSum.apply(values, weights)  # type: ignore[no-untyped-call]
    return total


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return torch.sum(values * weights, dtype=torch.float64)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * upstream, None


def _check(coef: Tensor, bounds: Box) -> None:
    if coef.ndim != 1 or not coef.shape == bounds.a.shape == bounds.b.shape:
        shapes = (tuple(coef.shape), tuple(bounds.a.shape), tuple(bounds.b.shape))
        raise InputError("coefficients and bounds must be vectors of one length", found=shapes)
