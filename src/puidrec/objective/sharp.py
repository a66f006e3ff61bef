"""Sharp bounds: what hidden confounding of strength Γ can do to the *mean* of unseen ratings, without weights.

Ratings lie in [0, 1], q = E[r | x, o = 1], and unseen ratings differ from seen ones by a likelihood ratio within
[1/Γ, Γ]. The true weights then average to 1/p given x, which a box of weights forgets; so these intervals are
narrower, and a loss built on them cannot exceed the largest loss possible.
"""

from __future__ import annotations

import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.objective.pointwise import PointwiseError


def unseen_interval(q: Tensor, gamma: Tensor | float) -> tuple[Tensor, Tensor]:
    """[max(q/Γ, 1 − Γ(1 − q)), min(Γq, 1 − (1 − q)/Γ)]: the means of unseen ratings that Γ allows, given q alone.

    q outside [0, 1] (a model's guess) is taken as the nearest end.
    """
    q = q.clamp(0.0, 1.0)
    low = torch.maximum(q / gamma, 1.0 - gamma * (1.0 - q))
    high = torch.minimum(gamma * q, 1.0 - (1.0 - q) / gamma)
    return low, high


def signed_end(q: Tensor, gamma: Tensor | float, *, liked: bool = True) -> Tensor:
    """q/Γ if people pick what they like; 1 − (1 − q)/Γ if they pick what they dislike.

    Unlike the interval's ends these are q, or 1 − q, times a factor: with Γ_ui = exp(s_u + s_i) the first stays of
    low rank (`LowRank.scaled`), which is what `signed` methods run on.
    """
    return q / gamma if liked else 1.0 - (1.0 - q) / gamma


def worst_end(prediction: Tensor, low: Tensor, high: Tensor, error: PointwiseError) -> Tensor:
    """The m in [low, high] with the largest error: errors are convex in m, so it is an end; held constant."""
    with torch.no_grad():
        return torch.where(error(prediction, low) >= error(prediction, high), low, high)


def histogram_interval(counts: Tensor, levels: Tensor, gamma: Tensor | float) -> tuple[Tensor, Tensor]:
    """Lowest and highest unseen mean per row of a table of seen ratings (rows: items, users or cells).

    counts: [rows, levels], how often each level was seen; levels: increasing. The worst likelihood ratio gives mass
    1/(1 + Γ) of the lowest (highest) ratings the factor Γ and the rest 1/Γ: they average to 1, as they must.
    The dispersion of an item's ratings matters here: no dispersion, no room. Rows without ratings give NaN.
    """
    if counts.ndim != 2 or levels.shape != counts.shape[1:] or not bool((levels.diff() > 0).all()):
        raise InputError("levels must increase, one per column of counts", found=(tuple(counts.shape), levels.tolist()))
    share = counts.to(torch.float64) / counts.sum(1, keepdim=True)
    gamma = torch.as_tensor(gamma, dtype=torch.float64).reshape(-1, 1).expand(counts.shape[0], 1)
    values = levels.to(torch.float64)
    low = _tilted_mean(share, values, gamma)
    high = _tilted_mean(share.flip(1), values.flip(0), gamma)
    return low, high


def _tilted_mean(share: Tensor, values: Tensor, gamma: Tensor) -> Tensor:
    """E[ℓ r] with ℓ = Γ on the first 1/(1 + Γ) of the mass and 1/Γ after it."""
    before = torch.cumsum(share, 1) - share
    raised = (1.0 / (1.0 + gamma) - before).clamp_min(0.0).minimum(share)
    return ((raised * gamma + (share - raised) / gamma) * values).sum(1)
