"""Every objective of the paper is the mean over D of base + o·coef·w, with w in a box; here are its two terms.

| estimator | base | coef |
|---|---|---|
| naive, IPS (`eq:naive`, `eq:ips`, `eq:puid-ips`) | 0 | e |
| DR (`eq:dr`, `eq:puid-dr`) | ê | e − ê |
| imputation (`eq:puid-dr-imp`) | 0 | (ê − e)² |

Γ = 1 (a = b = 1/p) gives IPS and DR, a wider box RD and PUID, `Terms.against` a benchmark BRD and BPUID.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puidrec.objective.benchmark import subtract
from puidrec.objective.worst_case import (
    Box,
    Ratio,
    normalised_worst_case_weights,
    weighted_mean,
    weighted_sum,
    weights_above,
    worst_case_weights,
)


@dataclass(frozen=True)
class Terms:
    """base summed over D (a scalar), and coef of each observed pair (a vector)."""

    base: Tensor
    coef: Tensor

    def against(self, reference: Terms) -> Terms:
        """Subtract a frozen benchmark's terms (`eq:bpuid-ips`, `eq:bpuid-dr`, `eq:bpuid-dr-imp`)."""
        return Terms(subtract(self.base, reference.base), subtract(self.coef, reference.coef))

    def detach(self) -> Terms:
        """The same terms as constants: what a benchmark keeps."""
        return Terms(self.base.detach(), self.coef.detach())


def ips_terms(error: Tensor) -> Terms:
    """(0, e): `eq:ips`, `eq:puid-ips`; with unit weights `eq:naive`."""
    return Terms(torch.zeros((), dtype=torch.float64, device=error.device), error)


def dr_terms(gap: Tensor, imputed_sum: Tensor) -> Terms:
    """(ê, e − ê): `eq:dr`, `eq:puid-dr`, given e − ê on O and Σ_D ê."""
    return Terms(imputed_sum, gap)


def imputation_terms(mismatch: Tensor) -> Terms:
    """(0, (ê − e)²): `eq:puid-dr-imp`, given e − ê on O."""
    return ips_terms(mismatch.square())


def robust_mean(terms: Terms, bounds: Box, pairs: int, *, normalise: bool = False) -> Tensor:
    """max_w (base + Σ_O coef·w)/pairs, the weights held constant for the gradient; a float64 scalar.

    pairs: |D| for the losses of a prediction model, |O| for `naive` and for an imputation model. `normalise` divides
    the weighted sum by Σ_O w (an estimate of |D|) instead, which makes the worst case scale-free.
    """
    if normalise:
        weights = normalised_worst_case_weights(terms.coef.detach(), bounds)
        return terms.base / pairs + weighted_mean(terms.coef, weights)
    weights = worst_case_weights(terms.coef.detach(), bounds)
    return (terms.base + weighted_sum(terms.coef, weights)) / pairs


def robust_part(terms: Terms, bounds: Box, pairs: int, ratio: Ratio) -> Tensor:
    """What a piece of a block adds to the block's normalised `robust_mean`, given the worst case of the whole block.

    The weights and their sum are those of the optimum and constant, so the gradients of the pieces add up as well.
    """
    normalised = weighted_sum(terms.coef, weights_above(terms.coef.detach(), bounds, ratio.threshold))
    return terms.base / pairs + normalised / (ratio.weight or 1.0)
