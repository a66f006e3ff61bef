"""Towers of matrix factorisation: free parameters per entity (`mf`), and linear features (`mf-linear`).

With both, a user is an ID embedding plus X_u W_u, an item likewise, and r̂ is bilinear in features and factors. This is
what lifts small logs with real features: features serve cold-start users and items, IDs carry what features miss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from puidrec.backbones.base import RowShard, Tower, row_factor, squared_norm
from puidrec.backbones.features import Design

INIT_SD = 0.1
"""Initial spread of embeddings: small against ratings, large enough to break the symmetry of z_u and z_i at once."""


class IdTower(Tower):
    """A free vector and bias per entity; `vectors=False` keeps only the bias (`eq:prediction` on features alone).

    With a `shard` the parameters are those of some of the entities only, the same numbers that all would get.
    """

    uses_ids = True

    def __init__(
        self, n_rows: int, dim: int, generator: torch.Generator, *, vectors: bool = True, shard: RowShard | None = None
    ) -> None:
        super().__init__()
        self.n_rows, self.dim, self.vectors, self.shard = n_rows, dim, vectors, shard
        self.share: Tensor | None = None
        self.growing = 0.0
        weight = torch.zeros(n_rows if shard is None else len(shard), dim + 1 if vectors else 1)
        if vectors and shard is None:
            weight[:, :dim].normal_(0.0, INIT_SD, generator=generator)
        elif vectors and shard is not None:
            weight[:, :dim] = shard.draw(dim, INIT_SD, generator)
        self.weight = nn.Parameter(weight)

    def keep_rows(self, shard: RowShard) -> None:
        """Drop the parameters of all other entities, unless that was done already."""
        if self.shard is None:
            self.weight, self.shard = nn.Parameter(shard.take(self.weight.detach())), shard
            self.share = None if self.share is None else shard.take(self.share)

    def grow_penalty(self, share: Tensor, growing: float) -> None:
        """Multiply the L2 of each entity's vector by 1 − growing + growing · share; biases keep theirs."""
        if self.vectors and growing > 0.0:
            self.share, self.growing = share if self.shard is None else self.shard.take(share), growing

    def entity_axes(self) -> dict[str, int]:
        """One row per entity."""
        return {} if self.shard is None else {"weight": 0}

    def forward(self, rows: slice) -> Tensor:
        """The entities' own parameters; with a shard, of entities of one of its spans."""
        if self.shard is not None:
            rows = self.shard.locate(rows)
        held = len(self.weight)
        own = self.weight if rows.indices(held) == (0, held, 1) else self.weight[rows]  # a slice copies its gradient
        return own if self.vectors else nn.functional.pad(own, (self.dim, 0))

    def penalty(self) -> Tensor:
        """Mean squared norm of an entity's parameters."""
        factor = self.column_factor(self.weight) if self.penalty_factor != 1.0 else None
        if self.share is not None:
            by_row = row_factor(self.share, self.growing)[:, None].to(self.weight)
            factor = self.column_factor(self.weight).repeat(len(by_row), 1)
            factor[:, :-1] *= by_row
        return squared_norm(self.weight, factor) / max(self.n_rows, 1)


class LinearTower(Tower):
    """X W: every category, list value and number has a vector and a bias; the design is encoded once."""

    def __init__(self, design: Design, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_rows, self.dim, self.design = design.n_rows, dim, design
        weight = torch.zeros(design.n_columns, dim + 1)
        weight[:, :dim].normal_(0.0, INIT_SD, generator=generator)
        self.weight = nn.Parameter(weight)
        self.power: Tensor
        self.register_buffer("power", design.column_power().to(weight.dtype), persistent=False)

    def forward(self, rows: slice) -> Tensor:
        """Sums over an entity's features."""
        return self.design.rows(rows) @ self.weight

    def cold(self, design: Design) -> Tensor:
        """New entities use the same weights."""
        return design @ self.weight

    def penalty(self) -> Tensor:
        """Mean over entities of Σ_k x_k² ‖w_k‖²: a weight counts by the share of entities that use it."""
        squares = self.weight.square()
        norms = squares.sum(1) if self.penalty_factor == 1.0 else squares @ self.column_factor(squares.detach())
        return (self.power * norms).sum()
