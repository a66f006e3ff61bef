"""`cvib`: logged and unseen pairs are to have means that agree, as mutual information asks for.

"Information theoretic counterfactual learning from missing-not-at-random feedback" (CVIB; Wang et
al., NeurIPS 2020) bounds what a representation tells of exposure. With p = σ(score), and m₁, m₀ the
means of p over logged and over unseen pairs, it minimises

    mean_O CE(p, r) + α · CE(m₁, m₀) + γ · mean_D (p log p + (1 − p) log(1 − p)),
    CE(m₁, m₀) = −m₁ log m₀ − (1 − m₁) log(1 − m₀),

α `information_weight` and γ `confidence_penalty`. m₀ and the last term are exact, one tile of pairs
at a time, where the paper draws unseen pairs. Assumed: the penalty counts both outcomes, over all
pairs. Public code takes p log p of logged pairs alone, which is least at p = 1/e: it draws what was
seen towards a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from puidrec.losses.pair_loss import RobustLoss, Row, pair_sum
from puidrec.losses.pointwise import PairError
from puidrec.losses.whole_space import tiled_sum
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Done, Problem, Stage, adam_step, row_of
from puidrec.optimise.adam import Step
from puidrec.scores.sparse import LogPattern, sampled_product
from puidrec.settings import MethodParams

LEAST_MEAN = 1e-6
"""Means are kept this far from 0 and 1, where their logarithm ends."""


def contrast(seen_mean: Tensor, unseen_mean: Tensor) -> Tensor:
    """−m₁ log m₀ − (1 − m₁) log(1 − m₀)."""
    return -seen_mean * torch.log(unseen_mean) - (1.0 - seen_mean) * torch.log1p(-unseen_mean)


def negative_entropy(scores: Tensor) -> Tensor:
    """p log p + (1 − p) log(1 − p) of p = σ(s), which is p s − log(1 + exp s)."""
    return torch.sigmoid(scores) * scores - softplus(scores)


class CvibParams(MethodParams):
    """What only `cvib` has."""

    information_weight: float = Field(
        0.1, ge=0, description="α, weight of the information term between logged and unseen pairs."
    )
    confidence_penalty: float = Field(
        0.01, ge=0, description="γ, weight of the entropy of predictions."
    )


@dataclass
class InformationProblem(Problem):
    """The naive loss and both information terms, which have no identity over all pairs."""

    pattern: LogPattern
    row: Row
    error: PairError

    @property
    def steps(self) -> Sequence[Step]:
        """φ alone."""
        return (adam_step(self.settings, "phi", self.phi, self.loss),)

    def loss(self) -> Tensor:
        """mean_O CE + α CE(m₁, m₀) + γ mean_D of the negative entropy."""
        params = self.settings.own(CvibParams)
        alpha, gamma = params.information_weight, params.confidence_penalty
        phi, n_seen = self.phi.factors(), max(len(self.pattern), 1)
        s = sampled_product(phi.lefts[0], phi.rights[0], self.pattern)
        total = pair_sum(RobustLoss(self.error), s, self.row) / n_seen
        if alpha:
            seen = torch.sigmoid(s).sum(dtype=torch.float64)
            everywhere = tiled_sum(lambda rows, columns, scores: torch.sigmoid(scores), phi)
            unseen = (everywhere - seen) / max(phi.n_pairs - n_seen, 1)
            means = (mean.clamp(LEAST_MEAN, 1.0 - LEAST_MEAN) for mean in (seen / n_seen, unseen))
            total = total + alpha * contrast(*means)
        if gamma:
            entropy = tiled_sum(lambda rows, columns, scores: negative_entropy(scores), phi)
            total = total + gamma * entropy / phi.n_pairs
        return total


def stages(prepared: Prepared) -> list[Stage]:
    """One problem."""

    def build(done: Done) -> InformationProblem:
        pattern = prepared.log.operator.require_simple("cvib")
        row = row_of(prepared.columns("unit"))
        phi = prepared.backbone("main phi")
        return InformationProblem(prepared.settings, phi, pattern, row, prepared.error)

    return [Stage("main", build)]
