"""Multi-IPS and Multi-DR: exposure, rating and (DR) imputation heads on shared representations, trained together.

Every head scores ⟨z_u W_h, z_i⟩ + biases, so each stays low-rank and is summed over D exactly. The exposure head is
fitted by least squares over all pairs, Σ_D (c − o)² = Σ_D c² − 2 Σ_O c + |O|, and gives the rating head its weights
1/c, clipped and held constant: a propensity learned with the rating rather than before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puidrec.backbones.base import Backbone
from puidrec.backbones.share import Share
from puidrec.objective.low_rank import LowRank
from puidrec.objective.terms import dr_terms, imputation_terms, ips_terms, robust_mean
from puidrec.objective.whole_space import square_sum
from puidrec.objective.worst_case import Box
from puidrec.settings import Settings
from puidrec.train.problem import Log, Step, backbone_penalty

EXPOSURE, RATING, IMPUTATION = range(3)
FLOOR = 0.25
"""Share of the mean exposure below which the exposure head is not trusted: least squares may go to 0 and below."""


class SharedHeads(nn.Module):
    """A backbone, and per head a map of the user factors, gains of the shared biases, a mean, and (`own`) biases."""

    def __init__(self, backbone: Backbone, means: tuple[float, ...], *, own: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.share: Share | None = None
        n_heads, shape = len(means), (backbone.n_users, backbone.n_items) if own else (0, 0)
        self.maps = nn.Parameter(torch.eye(backbone.dim).repeat(n_heads, 1, 1))
        self.gains = nn.Parameter(torch.ones(n_heads, 2))
        self.means = nn.Parameter(torch.tensor(means))
        self.user_bias = nn.Parameter(torch.zeros(n_heads, shape[0]))
        self.item_bias = nn.Parameter(torch.zeros(n_heads, shape[1]))

    def keep_users(self, share: Share) -> None:
        """Hold what belongs to single users for some of them only."""
        self.backbone.keep_users(share)
        if self.share is None and self.user_bias.numel():
            self.user_bias, self.share = nn.Parameter(share.cut(self.user_bias.detach(), 1)), share

    def own_axes(self) -> dict[str, int]:
        """Biases have a column per user; the backbone speaks for itself."""
        return {} if self.share is None else {"user_bias": 1}

    def factors(self, head: int, rows: slice = slice(None)) -> LowRank:
        """The scores of one head for a block of users."""
        dim = self.backbone.dim
        users, items = self.backbone.users(rows), self.backbone.items()
        u_bias = self.gains[head, 0] * users[:, dim : dim + 1]
        i_bias = self.gains[head, 1] * items[:, dim + 1 :] + self.means[head]
        if self.item_bias.numel():
            own = rows if self.share is None else self.share.locate(rows)
            u_bias = u_bias + self.user_bias[head, own, None]
            i_bias = i_bias + self.item_bias[head, :, None]
        left = torch.cat([users[:, :dim] @ self.maps[head], u_bias, torch.ones_like(u_bias)], 1)
        return LowRank.of(left, torch.cat([items[:, :dim], torch.ones_like(i_bias), i_bias], 1))

    def map_penalty(self) -> Tensor:
        """How far the maps are from the identity: free ones would grow where the penalty lets vectors shrink."""
        return (self.maps - torch.eye(self.backbone.dim).to(self.maps)).square().sum() / self.backbone.dim

    def bias_penalty(self) -> Tensor:
        """Mean squared biases over entities, all heads; 0 where heads have none of their own."""
        if not self.item_bias.numel():
            return self.means.new_zeros(())
        users = self.user_bias.square().sum(1) / self.backbone.n_users
        return users.sum() + self.item_bias.square().mean(1).sum()


@dataclass
class MultiProblem:
    """One joint loss: exposure over D, rating by IPS or DR with the exposure head's weights, imputation over O."""

    settings: Settings
    observed: Log
    heads: SharedHeads

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
        exposure = self.heads.factors(EXPOSURE, rows)
        chance = observed.scores(exposure)
        n_seen, n_pairs = len(observed.pattern), observed.n_pairs
        fit = (square_sum(exposure) - 2.0 * torch.sum(chance, dtype=torch.float64) + n_seen) / n_pairs
        floor = max(
            self.settings.min_propensity, FLOOR * len(self.observed) / (self.n_users * observed.pattern.n_items)
        )
        weights = Box.exactly(1.0 / chance.detach().clamp(floor, 1.0))
        phi = self.heads.factors(RATING, rows)
        prediction = observed.scores(phi)
        error = (prediction - observed.target).square()
        if not self.settings.spec.imputes:
            return fit + robust_mean(ips_terms(error), weights, n_pairs)
        theta = self.heads.factors(IMPUTATION, rows)
        pseudo = observed.scores(theta)
        gap = error - (prediction - pseudo.detach()).square()
        rating = dr_terms(gap, square_sum(phi.minus(theta.detach())))
        mismatch = pseudo - observed.target
        return fit + robust_mean(rating, weights, n_pairs) + robust_mean(imputation_terms(mismatch), weights, n_pairs)

    def _penalty(self) -> Tensor:
        heads = self.heads.bias_penalty() + self.heads.map_penalty()
        return backbone_penalty(self.heads.backbone, self.settings) + self.settings.l2 * heads
