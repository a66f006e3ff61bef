"""Multi-IPS and Multi-DR: one joint loss of exposure, rating and (DR) imputation heads.

The exposure head c is fitted by least squares over all pairs, Σ_D (c − o)² = Σ_D c² − 2 Σ_O c + |O|, and gives the
rating head its weights 1/c, clipped and held constant: a propensity learned with the rating rather than before it.
The squares stand for cross-entropy, which the papers have: at the mean exposure ρ its second-order expansion is
(c − o)²/(2ρ(1 − ρ)). Without that factor exposure, 0 or seldom 1, weighs next to nothing beside the ratings, and what
co-exposure says of taste never reaches the shared representations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.objective.terms import Observed, dr_terms, imputation_terms, ips_terms, robust_mean
from puidrec.objective.whole_space import square_sum
from puidrec.objective.worst_case import Box
from puidrec.propensity.clip import clip_values

LEAST_VARIANCE = 1e-6
"""Of exposure: logs of all pairs, or of next to none, leave nothing to divide by."""


def exposure_loss(observed: Observed, exposure: LowRank, chance: Tensor, rate: float) -> Tensor:
    """mean_D (c − o)²/(2ρ(1 − ρ)), given c on the observed pairs and the mean exposure ρ."""
    total = square_sum(exposure) - 2.0 * torch.sum(chance, dtype=torch.float64) + len(observed)
    return total / (observed.n_pairs * 2.0 * max(rate * (1.0 - rate), LEAST_VARIANCE))


def multi_loss(
    observed: Observed, exposure: LowRank, rating: LowRank, imputation: LowRank | None, *, rate: float, low: float
) -> Tensor:
    """Exposure over D, and the rating by IPS, or by DR with the imputation over O; weights 1/c, c at least `low`."""
    chance = observed.scores(exposure)
    fit = exposure_loss(observed, exposure, chance, rate)
    weights = Box.exactly(1.0 / clip_values(chance.detach(), low))
    prediction = observed.scores(rating)
    error = (prediction - observed.target).square()
    n_pairs = observed.n_pairs
    if imputation is None:
        return fit + robust_mean(ips_terms(error), weights, n_pairs)
    pseudo = observed.scores(imputation)
    gap = error - (prediction - pseudo.detach()).square()
    terms = dr_terms(gap, square_sum(rating.minus(imputation.detach())))
    mismatch = imputation_terms(pseudo - observed.target)
    return fit + robust_mean(terms, weights, n_pairs) + robust_mean(mismatch, weights, n_pairs)
