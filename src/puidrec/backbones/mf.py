"""Towers of matrix factorisation: free parameters per entity (`mf`), and linear features (`mf-linear`).

With both, a user is an ID embedding plus X_u W_u, an item likewise, and r̂ is bilinear in features and factors. This is
what lifts small logs with real features: the features carry strangers, the IDs carry what features miss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from puidrec.backbones.base import Tower, squared_norm
from puidrec.backbones.features import Design

INIT_SD = 0.1
"""Initial spread of embeddings: small against ratings, large enough to break the symmetry of z_u and z_i at once."""


class IdTower(Tower):
    """A free vector and bias per entity; `vectors=False` keeps only the bias (`eq:prediction` on features alone)."""

    uses_ids = True

    def __init__(self, n_rows: int, dim: int, generator: torch.Generator, *, vectors: bool = True) -> None:
        super().__init__()
        self.n_rows, self.dim, self.vectors = n_rows, dim, vectors
        weight = torch.zeros(n_rows, dim + 1 if vectors else 1)
        if vectors:
            weight[:, :dim].normal_(0.0, INIT_SD, generator=generator)
        self.weight = nn.Parameter(weight)

    def forward(self, rows: slice) -> Tensor:
        """The entities' own parameters."""
        everyone = rows.indices(self.n_rows) == (0, self.n_rows, 1)
        own = self.weight if everyone else self.weight[rows]  # a slice costs a copy of its gradient
        return own if self.vectors else nn.functional.pad(own, (self.dim, 0))

    def penalty(self) -> Tensor:
        """Mean squared norm of an entity's parameters."""
        factor = self.column_factor(self.weight) if self.firmness != 1.0 else None
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
        norms = squares.sum(1) if self.firmness == 1.0 else squares @ self.column_factor(squares.detach())
        return (self.power * norms).sum()
