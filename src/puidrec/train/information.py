"""`cvib`: logged and unseen pairs are to have means that agree, as mutual information asks for.

"Information theoretic counterfactual learning from missing-not-at-random feedback" (CVIB; Wang et al., NeurIPS 2020)
bounds what a representation tells of exposure. With p = σ(score), and m₁, m₀ the means of p over logged and over unseen
pairs, it minimises

    mean_O CE(p, r) + α · CE(m₁, m₀) + γ · mean_D (p log p + (1 − p) log(1 − p)),
    CE(m₁, m₀) = −m₁ log m₀ − (1 − m₁) log(1 − m₀),

α `information_weight` and γ `confidence_penalty`. m₀ and the last term are exact, one tile of pairs at a time, where
the paper draws unseen pairs. Assumed: the penalty counts both outcomes, over all pairs. Public code takes p log p of
logged pairs alone, which is least at p = 1/e: it draws what was seen towards a constant.

CE(m₁, m₀) is no mean over users. A part of a block is trained with its tangent at the block's means instead, so that
the values and gradients of the parts add up to those of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from puidrec.backbones.base import Span
from puidrec.backbones.low_rank import LowRank
from puidrec.objective.terms import Observed
from puidrec.objective.tiles import tiled_sum
from puidrec.train.blocks import UserPartition
from puidrec.train.prepare import Prepared
from puidrec.train.problem import BlockLoss, Stage, Step, backbone_penalty
from puidrec.train.robust import RobustProblem

LEAST_MEAN = 1e-6
"""Means are kept this far from 0 and 1, where their logarithm ends."""


class Contrast(NamedTuple):
    """CE(m₁, m₀) and its slopes in both means."""

    value: float
    seen_mean: float
    unseen_mean: float
    seen_slope: float
    unseen_slope: float

    @classmethod
    def at(cls, seen_mean: Tensor, unseen_mean: Tensor) -> Contrast:
        """The value and slopes at two means."""
        with torch.enable_grad():
            means = [
                mean.detach().clamp(LEAST_MEAN, 1.0 - LEAST_MEAN).requires_grad_() for mean in (seen_mean, unseen_mean)
            ]
            value = contrast(*means)
            slopes = torch.autograd.grad(value, means)
        return cls(*(float(x) for x in (value, *means, *slopes)))


def contrast(seen_mean: Tensor, unseen_mean: Tensor) -> Tensor:
    """−m₁ log m₀ − (1 − m₁) log(1 − m₀)."""
    return -seen_mean * torch.log(unseen_mean) - (1.0 - seen_mean) * torch.log1p(-unseen_mean)


def negative_entropy(scores: Tensor) -> Tensor:
    """p log p + (1 − p) log(1 − p) of p = σ(s), which is p s − log(1 + exp s)."""
    return torch.sigmoid(scores) * scores - softplus(scores)


@dataclass
class InformationProblem(RobustProblem):
    """The naive loss and both information terms."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """φ alone."""
        penalty = lambda: backbone_penalty(self.phi, self.settings)  # noqa: E731
        return (Step("phi", self.phi, self.loss, penalty, split=self.split),)

    def least_squares(self, partition: UserPartition) -> None:
        """Cross-entropy is not quadratic."""

    def loss(self, start: int, stop: int, phi: LowRank | None = None) -> Tensor:
        """The loss of a block of users that is taken at once."""
        return self.split([(start, stop)], stop - start, lambda sums: sums)(start, stop, phi)

    @torch.no_grad()
    def split(self, parts: Sequence[Span], users: int, total: Callable[[Tensor], Tensor]) -> BlockLoss:
        """First the means of the whole block, then each part with the tangent there."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.phi.mean.device)
        for a, b in parts if self.settings.information_weight else ():
            observed, phi = self.observed.rows(a, b), self.phi.factors(slice(a, b))
            seen = torch.sigmoid(observed.scores(phi)).sum(dtype=torch.float64)
            everywhere = tiled_sum(lambda rows, columns, scores: torch.sigmoid(scores), phi)
            sums += torch.stack([seen, everywhere - seen, seen.new_tensor(float(len(observed)))])
        seen_sum, unseen_sum, n_seen = total(sums)
        n_unseen = users * self.phi.n_items - n_seen
        at = Contrast.at(seen_sum / n_seen.clamp_min(1.0), unseen_sum / n_unseen.clamp_min(1.0))
        per_user = max(float(n_seen), 1.0) / users, max(float(n_unseen), 1.0) / users

        def loss(start: int, stop: int, phi: LowRank | None = None) -> Tensor:
            phi = self.phi.factors(slice(start, stop)) if phi is None else phi
            observed = self.observed.rows(start, stop)
            return self.prediction_loss(start, stop, phi) + self._information(observed, phi, at, per_user)

        return loss

    def _information(self, observed: Observed, phi: LowRank, at: Contrast, per_user: tuple[float, float]) -> Tensor:
        """α times the tangent of CE(m₁, m₀), and γ times the negative entropy, on the users of a part."""
        alpha, gamma, users = self.settings.information_weight, self.settings.confidence_penalty, phi.n_users
        seen_rate, unseen_rate = (
            alpha * slope / (users * count)
            for slope, count in zip((at.seen_slope, at.unseen_slope), per_user, strict=True)
        )

        def value(rows: slice, columns: slice, scores: Tensor) -> Tensor:
            chance = unseen_rate * torch.sigmoid(scores) if alpha else torch.zeros_like(scores)
            return chance + gamma / phi.n_pairs * negative_entropy(scores) if gamma else chance

        constant = alpha * (at.value - at.seen_slope * at.seen_mean - at.unseen_slope * at.unseen_mean)
        if not alpha and not gamma:
            return torch.zeros((), dtype=torch.float64, device=self.phi.mean.device)
        seen = torch.sigmoid(observed.scores(phi)).sum(dtype=torch.float64)
        return constant + (seen_rate - unseen_rate) * seen + tiled_sum(value, phi)


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """One problem."""

    def build() -> InformationProblem:
        phi = prepared.backbone("main phi", shard=partition.shard)
        return InformationProblem(prepared.settings, prepared.logged("unit"), prepared.error, phi)

    return [Stage("main", lambda done: build())]
