"""Sharp bounds: what hidden confounding of strength Γ can do to the *mean* of unseen ratings, without weights.

Ratings lie in [0, 1], q = E[r | x, o = 1], and unseen ratings differ from seen ones by a likelihood ratio within
[1/Γ, Γ]. The true weights then average to 1/p given x, which a box of weights forgets; so these intervals are
narrower, and a loss built on them cannot exceed the largest loss possible.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.objective.terms import Observed
from puidrec.objective.tiles import tiled_sum

GammaTile = Callable[[slice, slice, Tensor], Tensor]
"""Γ of the pairs of a tile (users, items), like a tensor of its scores."""


def unseen_interval(q: Tensor, gamma: Tensor | float) -> tuple[Tensor, Tensor]:
    """[max(q/Γ, 1 − Γ(1 − q)), min(Γq, 1 − (1 − q)/Γ)]: the means of unseen ratings that Γ allows, given q alone.

    q outside [0, 1] (a model's guess) is taken as the nearest end.
    """
    q = q.clamp(0.0, 1.0)
    low = torch.maximum(q / gamma, 1.0 - gamma * (1.0 - q))
    high = torch.minimum(gamma * q, 1.0 - (1.0 - q) / gamma)
    return low, high


def worst_square(prediction: Tensor, q: Tensor, gamma: Tensor | float) -> Tensor:
    """max over m in the interval of (r̂ − m)²: a square is convex in m, so the worst m is one of the ends."""
    low, high = unseen_interval(q, gamma)
    return torch.maximum((prediction - low).square(), (prediction - high).square())


def worst_unseen_sum(
    observed: Observed, phi: LowRank, scores: Tensor, q: LowRank, gamma_tile: GammaTile, gamma_seen: Tensor
) -> Tensor:
    """Σ_{D∖O} `worst_square`: over all of D tile by tile, less the observed pairs, whose scores are given."""

    def tile(rows: slice, columns: slice, prediction: Tensor, q_hat: Tensor) -> Tensor:
        return worst_square(prediction, q_hat, gamma_tile(rows, columns, prediction))

    everywhere = tiled_sum(tile, phi, q.detach())
    at_seen = worst_square(scores, observed.scores(q), gamma_seen)
    return everywhere - torch.sum(at_seen, dtype=torch.float64)
