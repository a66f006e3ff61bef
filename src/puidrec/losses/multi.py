"""Multi-IPS and Multi-DR: one joint loss of exposure, rating and (DR) imputation heads.

The exposure head c is fitted by least squares over all pairs, Σ_D (c − o)² = Σ_D c² − 2 Σ_O c +
|O|, and gives the rating head its weights 1/c, clipped and held constant: a propensity learned with
the rating rather than before it. The squares stand for cross-entropy, which the papers have: at the
mean exposure ρ its second-order expansion is (c − o)²/(2ρ(1 − ρ)). Without that factor exposure, 0
or seldom 1, weighs next to nothing beside the ratings, and what co-exposure says of taste never
reaches the shared representations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from puidrec.exposure.base import clip_values
from puidrec.losses.pair_loss import RobustLoss, Row, pair_sum
from puidrec.losses.whole_space import square_sum
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import LogPattern, sampled_product

LEAST_VARIANCE = 1e-6
"""Of exposure: logs of all pairs, or of next to none, leave nothing to divide by."""


def exposure_loss(exposure: LowRank, chance: Tensor, rate: float) -> Tensor:
    """mean_D (c − o)²/(2ρ(1 − ρ)), given c on the logged pairs and the mean exposure ρ."""
    total = square_sum(exposure) - 2.0 * torch.sum(chance, dtype=torch.float64) + chance.numel()
    return total / (exposure.n_pairs * 2.0 * max(rate * (1.0 - rate), LEAST_VARIANCE))


def multi_loss(
    pattern: LogPattern,
    target: Tensor,
    exposure: LowRank,
    rating: LowRank,
    imputation: LowRank | None,
    *,
    rate: float,
    low: float,
) -> Tensor:
    """Exposure over D, and the rating by IPS, or by DR with the imputation over O; weights 1/c, c
    at least `low`."""

    def logged(scores: LowRank) -> Tensor:
        return sampled_product(scores.lefts[0], scores.rights[0], pattern)

    chance, prediction = logged(exposure), logged(rating)
    fit = exposure_loss(exposure, chance, rate)
    weights = 1.0 / clip_values(chance.detach(), low)
    row, n_pairs = Row(r=target, a=weights, b=weights), exposure.n_pairs
    if imputation is None:
        return fit + pair_sum(RobustLoss(), prediction, row) / n_pairs
    output = logged(imputation)
    labels = Row(r=target, a=weights, b=weights, g=output.detach())
    gap = pair_sum(RobustLoss(head="label"), prediction, labels)
    imputed = square_sum(rating.minus(imputation.detach()))
    return fit + (imputed + gap + pair_sum(RobustLoss(), output, row)) / n_pairs
