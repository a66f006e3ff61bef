"""Multi-IPS and Multi-DR: exposure, rating and (DR) imputation heads on shared representations,
trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from puidrec.exposure import Exposure
from puidrec.losses.multi import multi_loss
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Problem, Stage, backbone_penalty
from puidrec.optimise.adam import Step
from puidrec.scores.low_rank import LowRank
from puidrec.scores.shared_heads import EXPOSURE, IMPUTATION, RATING, SharedHeads
from puidrec.scores.sparse import LogPattern

FLOOR = 0.25
"""Share of the mean exposure below which the exposure head is not trusted: least squares may go to
0 and below."""


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
