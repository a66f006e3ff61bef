"""Side tables as design matrices: one-hot categories, multi-hot lists, standardised numbers, all sparse."""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy import sparse

MAX_LEVELS = 100
"""Levels of a categorical column that get a column of their own: the most frequent ones."""


def design_matrix(frame: pl.DataFrame | None, id_column: str) -> sparse.csr_array | None:
    """Features of one side, [entities, columns]; None without features.

    A missing number becomes the mean and sets an indicator; a missing category has no column set.
    """
    columns = [] if frame is None else [c for c in frame.get_columns() if c.name != id_column]
    blocks = [block for column in columns if (block := _encode(column)).shape[1]]
    if not blocks:
        return None
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))


def one_hot(codes: np.ndarray) -> sparse.csr_array:
    """Codes as indicator columns, [entities, largest code + 1]."""
    return sparse.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)))


def _encode(column: pl.Series) -> sparse.csr_array:
    if isinstance(column.dtype, pl.List):
        rows = pl.DataFrame({"row": np.arange(column.len()), "level": column}).explode("level").drop_nulls()
        return _indicators(rows["row"].to_numpy(), rows["level"], column.len())
    if column.dtype.is_numeric():
        return _standardised(column.cast(pl.Float64))
    return _indicators(np.arange(column.len()), column.cast(pl.String), column.len())


def _indicators(rows: np.ndarray, levels: pl.Series, size: int) -> sparse.csr_array:
    """One column per level, in alphabetical order, without levels that everyone has."""
    count = levels.drop_nulls().value_counts(name="n").sort(["n", levels.name], descending=[True, False])
    kept = count.filter(pl.col("n") < size).head(MAX_LEVELS)[levels.name].sort()
    codes = levels.cast(pl.Enum(kept), strict=False).to_physical()
    known = codes.is_not_null().to_numpy()
    columns = codes.drop_nulls().to_numpy().astype(np.int64)
    matrix = sparse.csr_array((np.ones(columns.size), (rows[known], columns)), shape=(size, kept.len()))
    matrix.data[:] = 1.0  # a level named twice in one list counts once
    return matrix


def _standardised(column: pl.Series) -> sparse.csr_array:
    missing = column.is_null().to_numpy()
    values = column.fill_null(column.mean()).to_numpy() if not missing.all() else np.zeros(column.len())
    spread = values.std()
    parts = [(values - values.mean()) / spread] if spread > 0 else []
    if missing.any() and not missing.all():
        parts.append(missing.astype(np.float64))
    return sparse.csr_array(np.stack(parts, axis=1) if parts else np.zeros((column.len(), 0)))
