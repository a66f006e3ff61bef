"""A straightforward DR epoch in the style of public code, for comparison: embedding look-ups, D in 6,000 × 500 blocks.

Each block looks up the embeddings of every pair of its Cartesian product and of its logged pairs, updates the
imputation model, then the prediction model. This is written plainly, as such code usually is; only Adam's fused step
is borrowed, so that the comparison is about pairs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

USER_BLOCK, ITEM_BLOCK = 6_000, 500


class LookupMf(nn.Module):
    """Matrix factorisation as pairs of look-ups."""

    def __init__(self, n_users: int, n_items: int, dim: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(n_users, dim), nn.Embedding(n_items, dim)
        self.user_bias, self.item_bias = nn.Embedding(n_users, 1), nn.Embedding(n_items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        score = (self.user(users) * self.item(items)).sum(1)
        return score + self.user_bias(users).squeeze(1) + self.item_bias(items).squeeze(1)


@dataclass
class NaiveDr:
    """Two look-up models and their optimisers."""

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    n_users: int
    n_items: int
    dim: int

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.phi, self.theta = (LookupMf(self.n_users, self.n_items, self.dim) for _ in range(2))
        self.phi_adam, self.theta_adam = (
            torch.optim.Adam(model.parameters(), lr=0.01, fused=True) for model in (self.phi, self.theta)
        )
        self.blocks = [
            (u, min(u + USER_BLOCK, self.n_users), i, min(i + ITEM_BLOCK, self.n_items))
            for u in range(0, self.n_users, USER_BLOCK)
            for i in range(0, self.n_items, ITEM_BLOCK)
        ]

    def block(self, u0: int, u1: int, i0: int, i1: int) -> None:
        """One block: imputation step on its logged pairs, prediction step on all its pairs."""
        inside = (self.user >= u0) & (self.user < u1) & (self.item >= i0) & (self.item < i1)
        users, items = torch.from_numpy(self.user[inside]), torch.from_numpy(self.item[inside])
        target, weight = torch.from_numpy(self.target[inside]), torch.from_numpy(self.weight[inside])
        with torch.no_grad():
            prediction = self.phi(users, items)
        mismatch = (prediction - self.theta(users, items)) ** 2 - (prediction - target) ** 2
        self._step(self.theta_adam, (mismatch**2 * weight).mean())
        every = torch.cartesian_prod(torch.arange(u0, u1), torch.arange(i0, i1))
        with torch.no_grad():
            label_all = self.theta(every[:, 0], every[:, 1])
            label = self.theta(users, items)
        imputed = ((self.phi(every[:, 0], every[:, 1]) - label_all) ** 2).sum()
        prediction = self.phi(users, items)
        observed = (((prediction - target) ** 2 - (prediction - label) ** 2) * weight).sum()
        self._step(self.phi_adam, (imputed + observed) / (self.n_users * self.n_items))

    def epoch_seconds(self, max_blocks: int | None = None) -> float:
        """Time of an epoch; with `max_blocks`, of the first blocks, scaled up by pairs of D."""
        chosen = self.blocks[:max_blocks]
        start = time.perf_counter()
        for block in chosen:
            self.block(*block)
        elapsed = time.perf_counter() - start
        area = sum((u1 - u0) * (i1 - i0) for u0, u1, i0, i1 in chosen)
        return elapsed * self.n_users * self.n_items / area

    @staticmethod
    def _step(adam: torch.optim.Optimizer, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()
