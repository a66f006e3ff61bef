"""Selection among features that say the same thing: groups by correlation, one representative each
(the appendix)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from scipy.sparse.csgraph import connected_components

from puidrec.errors import InputError


def pearson(frame: pl.DataFrame) -> tuple[list[str], np.ndarray]:
    """Names of the numeric columns and their Pearson correlations, each pair over the rows where
    both are known.

    A column that does not vary (over the rows of a pair) is correlated with nothing: 0, not NaN.
    """
    numeric = frame.select(
        pl.col(name).cast(pl.Float64).fill_nan(None)
        for name, dtype in frame.schema.items()
        if dtype.is_numeric()
    )
    names = numeric.columns
    r = [[numeric.select(pl.corr(a, b)).item() for b in names] for a in names]
    return names, np.nan_to_num(np.array(r, np.float64).reshape(len(names), len(names)))


def correlation_groups(frame: pl.DataFrame, threshold: float) -> list[list[str]]:
    """Groups of two or more numeric columns linked by |Pearson| > threshold, in column order.

    Links chain: a column joins a group if it correlates with any member, so groups never overlap.
    The sign does not matter, for a column and its negative carry the same information.
    """
    if not 0.0 <= threshold < 1.0:
        raise InputError(
            "correlation threshold out of range", found=threshold, expected="0 <= threshold < 1"
        )
    names, r = pearson(frame)
    _, group = connected_components(np.abs(r) > threshold, directed=False)
    members = [
        [name for name, g in zip(names, group, strict=True) if g == k] for k in dict.fromkeys(group)
    ]
    return [columns for columns in members if len(columns) > 1]


def select_representatives(
    frame: pl.DataFrame, threshold: float, prefer: Sequence[str] = ()
) -> list[str]:
    """Columns to keep, in order: all that stand alone, and one per group (the first of `prefer`,
    else its first)."""
    unknown = [name for name in prefer if name not in frame.columns]
    if unknown:
        raise InputError(
            "no such column to prefer", column=unknown[0], found=", ".join(frame.columns)
        )
    gone: set[str] = set()
    for group in correlation_groups(frame, threshold):
        kept = next((name for name in prefer if name in group), group[0])
        gone.update(name for name in group if name != kept)
    return [name for name in frame.columns if name not in gone]
