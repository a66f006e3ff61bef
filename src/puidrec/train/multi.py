"""Multi-IPS and Multi-DR: exposure, rating and (DR) imputation heads on shared representations, trained together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.shared_heads import EXPOSURE, IMPUTATION, RATING, SharedHeads
from puidrec.objective.multi import multi_loss
from puidrec.settings import Settings
from puidrec.train.blocks import UserPartition
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Log, Stage, Step, backbone_penalty

FLOOR = 0.25
"""Share of the mean exposure below which the exposure head is not trusted: least squares may go to 0 and below."""


@dataclass
class MultiProblem:
    """One joint loss: exposure over D, rating by IPS or DR with the exposure head's weights, imputation over O."""

    settings: Settings
    observed: Log
    heads: SharedHeads
    gamma_scale: float = 1.0

    @property
    def n_users(self) -> int:
        """Users to divide into blocks."""
        return self.heads.backbone.n_users

    @property
    def steps(self) -> tuple[Step, ...]:
        """All heads at once: sharing is the point."""
        return (Step("heads", self.heads, self.loss, self._penalty),)

    def factors(self, rows: slice = slice(None)) -> LowRank:
        """The rating head."""
        return self.heads.factors(RATING, rows)

    def imputation(self, rows: slice = slice(None)) -> LowRank | None:
        """The imputation head of Multi-DR."""
        return self.heads.factors(IMPUTATION, rows) if self.settings.spec.imputes else None

    @property
    def benchmarked(self) -> bool:
        """There is no benchmark to fall behind."""
        return False

    def loss(self, start: int, stop: int, factors: LowRank | None = None) -> Tensor:
        """The joint loss of a block of users; every head has factors of its own, so none can be given."""
        observed, rows = self.observed.rows(start, stop), slice(start, stop)
        mean_exposure = len(self.observed) / (self.n_users * observed.pattern.n_items)
        low = max(self.settings.min_propensity, FLOOR * mean_exposure)
        exposure, rating = (self.heads.factors(head, rows) for head in (EXPOSURE, RATING))
        return multi_loss(observed, exposure, rating, self.imputation(rows), rate=mean_exposure, low=low)

    def _penalty(self) -> Tensor:
        heads = self.heads.bias_penalty() + self.heads.map_penalty()
        return backbone_penalty(self.heads.backbone, self.settings) + self.settings.l2 * heads


def stages(prepared: Prepared, partition: UserPartition) -> list[Stage]:
    """One problem, all heads together."""
    return [Stage("main", lambda done: _multi_problem(prepared, partition))]


def _multi_problem(prepared: Prepared, partition: UserPartition) -> MultiProblem:
    settings, mean, rate = prepared.settings, prepared.log.target_mean, prepared.log.nominal.exposure.rate
    means = (rate, mean, mean) if settings.spec.imputes else (rate, mean)
    backbone = prepared.backbone("main heads", 0.0, partition.shard)
    heads = SharedHeads(backbone, means, own=settings.ids is not False).to(prepared.log.dtype)
    return MultiProblem(settings, prepared.logged("unit"), heads.to(settings.device))
