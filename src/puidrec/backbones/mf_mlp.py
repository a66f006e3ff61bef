"""The paper's tower: a two-layer ReLU network on features (`eq:mlp`), its output the factors of `eq:prediction`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from puidrec.backbones.base import Tower
from puidrec.backbones.features import Design


class MlpTower(Tower):
    """z = W₂ relu(W₁ x + c₁) + c₂, one pass over the entities per step.

    The second layer is linear (a ReLU there would confine factors to the positive orthant) and has one more output,
    the bias, so that a model without IDs still has one. The first layer is a sparse product: wide one-hot features
    cost their non-zeros only.
    """

    def __init__(self, design: Design, dim: int, generator: torch.Generator, hidden: int = 64) -> None:
        super().__init__()
        self.n_rows, self.dim, self.design = design.n_rows, dim, design
        active = float(design.column_power().sum())
        first = torch.zeros(design.n_columns, hidden).normal_(0.0, (2.0 / max(active, 1.0)) ** 0.5, generator=generator)
        second = torch.zeros(hidden, dim + 1).normal_(0.0, (0.1 / hidden) ** 0.5, generator=generator)
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.first_bias, self.second_bias = nn.Parameter(torch.zeros(hidden)), nn.Parameter(torch.zeros(dim + 1))

    def forward(self, rows: slice) -> Tensor:
        """The network on the entities' features."""
        return self.cold(self.design.rows(rows))

    def cold(self, design: Design) -> Tensor:
        """The network on any features."""
        hidden = torch.relu(design @ self.first + self.first_bias)
        return torch.addmm(self.second_bias, hidden, self.second)

    def penalty(self) -> Tensor:
        """Weight decay of both layers, per hidden unit."""
        return (self.first.square().sum() + self.second.square().sum()) / self.first.shape[1]
