"""Multi-IPS and Multi-DR: exposure, rating and (DR) imputation heads on shared representations,
trained together by one joint loss.

The exposure head c is fitted by least squares over all pairs, Σ_D (c − o)² = Σ_D c² − 2 Σ_O c +
|O|, and gives the rating head its weights 1/c, clipped and held constant: a propensity learned with
the rating rather than before it. The squares stand for cross-entropy, which the papers have: at the
mean exposure ρ its second-order expansion is (c − o)²/(2ρ(1 − ρ)). Without that factor exposure, 0
or seldom 1, weighs next to nothing beside the ratings, and what co-exposure says of taste never
reaches the shared representations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from puidrec.exposure import Exposure
from puidrec.exposure.base import clip_values
from puidrec.losses.pair_loss import RobustLoss, Row, pair_sum
from puidrec.losses.whole_space import square_sum
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Problem, Stage, backbone_penalty
from puidrec.optimise.adam import Step
from puidrec.scores.low_rank import LowRank
from puidrec.scores.shared_heads import EXPOSURE, IMPUTATION, RATING, SharedHeads
from puidrec.scores.sparse import LogPattern, sampled_product

FLOOR = 0.25
"""Share of the mean exposure below which the exposure head is not trusted: least squares may go to
0 and below."""
LEAST_VARIANCE = 1e-6
"""Of exposure: logs of all pairs, or of next to none, leave nothing to divide by."""


@dataclass
class MultiProblem(Problem):
    """One joint loss: exposure over D, rating by IPS or DR with the exposure head's weights,
    imputation over O. Heads share what they are made of: not a loss of one score per pair."""

    pattern: LogPattern
    target: Tensor
    heads: SharedHeads

    @property
    def steps(self) -> Sequence[Step]:
        """All heads at once: sharing is the point."""
        return (Step("heads", self.heads, self.loss, self._penalty),)

    def factors(self) -> LowRank:
        """The rating head."""
        return self.heads.factors(RATING)

    def imputation(self) -> LowRank | None:
        """The imputation head of Multi-DR."""
        return self.heads.factors(IMPUTATION) if self.settings.spec.imputes else None

    def loss(self) -> Tensor:
        """The joint loss."""
        rate = len(self.pattern) / (self.pattern.n_users * self.pattern.n_items)
        low = max(self.settings.min_propensity, FLOOR * rate)
        exposure, rating = (self.heads.factors(head) for head in (EXPOSURE, RATING))
        return multi_loss(
            self.pattern, self.target, exposure, rating, self.imputation(), rate=rate, low=low
        )

    def _penalty(self) -> Tensor:
        heads = self.heads.bias_penalty() + self.heads.map_penalty()
        return backbone_penalty(self.phi, self.settings) + self.settings.l2_number * heads


def stages(prepared: Prepared) -> list[Stage]:
    """One problem, all heads together."""
    return [Stage("main", lambda done: _multi_problem(prepared))]


def _multi_problem(prepared: Prepared) -> MultiProblem:
    settings, log = prepared.settings, prepared.log
    pattern, mean, rate = (
        log.operator.require_simple(settings.method),
        log.target_mean,
        Exposure(log.evidence.counts).rate,
    )
    means = (rate, mean, mean) if settings.spec.imputes else (rate, mean)
    heads = SharedHeads(prepared.backbone("main heads", 0.0), means, own=settings.ids is not False)
    target = log.column(log.target).values
    heads = heads.to(log.dtype).to(settings.device)
    return MultiProblem(settings, heads.backbone, pattern, target, heads)


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
