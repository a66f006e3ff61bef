"""Matrices of features as tensors: what `features.encode` makes of a side table, for backbones to
learn weights of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from puidrec.scores.sparse import LogPattern, sparse_matmul


@dataclass(frozen=True)
class Design:
    """A sparse matrix of features, a row per entity; `design @ W` is differentiable in W."""

    pattern: LogPattern
    values: Tensor

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> Design:
        """The tensors of a matrix that `features.encode` made."""
        start, column = (
            torch.from_numpy(part.astype(np.int32)) for part in (matrix.indptr, matrix.indices)
        )
        return cls(
            LogPattern(start, column, matrix.shape[1]),
            torch.from_numpy(matrix.data.astype(np.float32)),
        )

    @property
    def n_rows(self) -> int:
        """Entities."""
        return self.pattern.n_users

    @property
    def n_columns(self) -> int:
        """Encoded features."""
        return self.pattern.n_items

    def __matmul__(self, weight: Tensor) -> Tensor:
        return sparse_matmul(self.pattern, self.values.to(weight.dtype), weight)

    def rows(self, rows: slice) -> Design:
        """A range of entities, or every k-th."""
        if rows.indices(self.n_rows) == (0, self.n_rows, 1):
            return self
        parts = (x.cpu().numpy() for x in (self.values, self.pattern.col, self.pattern.row_start))
        matrix = sparse.csr_array(tuple(parts), shape=(self.n_rows, self.n_columns))
        return Design.of(matrix[rows]).to(self.values.device, self.values.dtype)

    def column_power(self) -> Tensor:
        """Mean over entities of x², per column: how much of the population a weight serves."""
        power = torch.zeros(self.n_columns, dtype=torch.float64)
        power.index_add_(0, self.pattern.col.long().cpu(), self.values.double().square().cpu())
        return power / max(self.n_rows, 1)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Design:
        """The design on another device, or in another precision."""
        return Design(self.pattern.to(device), self.values.to(device, dtype))
