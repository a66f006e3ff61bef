"""Several heads on shared representations: what Multi-IPS and Multi-DR train.

Every head scores ⟨z_u W_h, z_i⟩ + biases, so each stays low-rank and is summed over D exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from puidrec.scores.low_rank import LowRank
from puidrec.scores.towers import Backbone, IdTower, LinearTower

EXPOSURE, RATING, IMPUTATION = range(3)


class SharedHeads(nn.Module):
    """A backbone, and per head a map of the user factors, gains of the shared biases, a mean, and
    (`own`) biases."""

    def __init__(self, backbone: Backbone, means: tuple[float, ...], *, own: bool) -> None:
        super().__init__()
        self.backbone = backbone
        n_heads, shape = len(means), (backbone.n_users, backbone.n_items) if own else (0, 0)
        self.maps = nn.Parameter(torch.eye(backbone.dim).repeat(n_heads, 1, 1))
        self.gains = nn.Parameter(torch.ones(n_heads, 2))
        self.means = nn.Parameter(torch.tensor(means))
        self.user_bias = nn.Parameter(torch.zeros(n_heads, shape[0]))
        self.item_bias = nn.Parameter(torch.zeros(n_heads, shape[1]))
        _draw_biases(backbone)

    def factors(self, head: int) -> LowRank:
        """The scores of one head."""
        users, items = self.backbone.users(), self.backbone.items()
        if not self.item_bias.numel():
            return LowRank.of(self.user_factors(head, users), self.item_factors(head, items))
        left = self.user_factors(head, users, self.user_bias[head, :, None])
        return LowRank.of(left, self.item_factors(head, items, self.item_bias[head, :, None]))

    def user_factors(self, head: int, users: Tensor, own_bias: Tensor | float = 0.0) -> Tensor:
        """Users' factors of one head from their shared representations [z, b, 1] and biases of the
        head's own."""
        dim = self.backbone.dim
        bias = self.gains[head, 0] * users[:, dim : dim + 1] + own_bias
        return torch.cat([users[:, :dim] @ self.maps[head], bias, torch.ones_like(bias)], 1)

    def item_factors(self, head: int, items: Tensor, own_bias: Tensor | float = 0.0) -> Tensor:
        """Items' factors of one head, likewise."""
        dim = self.backbone.dim
        bias = self.gains[head, 1] * items[:, dim + 1 :] + self.means[head] + own_bias
        return torch.cat([items[:, :dim], torch.ones_like(bias), bias], 1)

    def map_penalty(self) -> Tensor:
        """How far the maps are from the identity: free ones would grow where the penalty lets
        vectors shrink."""
        return (
            self.maps - torch.eye(self.backbone.dim).to(self.maps)
        ).square().sum() / self.backbone.dim

    def bias_penalty(self) -> Tensor:
        """Mean squared biases over entities, all heads; 0 where heads have none of their own."""
        if not self.item_bias.numel():
            return self.means.new_zeros(())
        users = self.user_bias.square().sum(1) / self.backbone.n_users
        return users.sum() + self.item_bias.square().mean(1).sum()


@torch.no_grad()
def _draw_biases(backbone: Backbone) -> None:
    """Let shared biases start as random as vectors are, by what their own vectors hold.

    At biases of 0 gains have no slope at all. Adam's first step has its full size however small a
    slope is, so that what is not quite 0 on another machine would send it anywhere.
    """
    for tower in (*backbone.user_towers, *backbone.item_towers):
        if isinstance(tower, IdTower | LinearTower) and tower.weight.shape[1] > 1:
            tower.weight[:, -1] = tower.weight[:, :-1].sum(1) / backbone.dim**0.5
