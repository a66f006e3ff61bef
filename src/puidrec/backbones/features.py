"""Side tables become sparse design matrices: one column per category, per list value, per number.

| column | becomes |
|---|---|
| text (categorical) | one column per category; missing is a category where it occurs |
| list of text (multi-valued) | one column per value, a row's values sharing weight 1 |
| number | (x − mean)/sd, cut at ±`CUT`; a missing-indicator where values are missing |

The encoder is fitted once and can be applied to new entities: categories it never saw give zeros. Its state is plain
JSON, so that a saved model can encode again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from puidrec.backbones.sparse import LogPattern, sparse_matmul
from puidrec.errors import InputError

CUT = 5.0
"""Standard deviations at which a number is cut: one freak value must not own a weight."""
MISSING = "\x00missing"
Triplets = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Design:
    """A sparse matrix of features, a row per entity; `design @ W` is differentiable in W."""

    pattern: LogPattern
    values: Tensor

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
        """A range of entities."""
        start, stop, _ = rows.indices(self.n_rows)
        return Design(self.pattern.rows(start, stop), self.values[self.pattern.pairs(start, stop)])

    def column_power(self) -> Tensor:
        """Mean over entities of x², per column: how much of the population a weight serves."""
        power = torch.zeros(self.n_columns, dtype=torch.float64)
        power.index_add_(0, self.pattern.col.long().cpu(), self.values.double().square().cpu())
        return power / max(self.n_rows, 1)

    def to(self, device: torch.device | str) -> Design:
        """The design on another device."""
        return Design(self.pattern.to(device), self.values.to(device))


@dataclass(frozen=True)
class ColumnEncoder:
    """How one column of a side table is encoded."""

    name: str
    kind: Literal["category", "list", "number"]
    vocabulary: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    indicator: bool = False

    @property
    def width(self) -> int:
        """Columns of the design it fills."""
        return 1 + self.indicator if self.kind == "number" else len(self.vocabulary)

    @classmethod
    def fit(cls, column: pl.Series) -> ColumnEncoder:
        """Learn categories, or mean and spread, from the population's rows."""
        if column.dtype == pl.Float64:
            present = column.drop_nulls()
            spread = float(present.std() or 0.0) if present.len() > 1 else 0.0  # type: ignore[arg-type]
            mean = float(present.mean() or 0.0) if present.len() else 0.0  # type: ignore[arg-type]
            missing = present.len() < column.len()
            return cls(column.name, "number", mean=mean, scale=spread or 1.0, indicator=missing)
        kind: Literal["category", "list"] = "list" if isinstance(column.dtype, pl.List) else "category"
        values = column.explode() if kind == "list" else column
        known = tuple(values.drop_nulls().unique().sort().to_list())
        missing = kind == "category" and column.null_count() > 0
        return cls(column.name, kind, known + ((MISSING,) if missing else ()))

    def encode(self, column: pl.Series) -> Triplets:
        """Rows, columns and values of the non-zero entries."""
        if self.kind == "number":
            return self._encode_number(column.cast(pl.Float64))
        rows = np.arange(column.len(), dtype=np.int64)
        if self.kind == "list":
            lists = column.cast(pl.List(pl.String)).list.drop_nulls()
            lengths = lists.list.len().fill_null(0).to_numpy()
            rows, values = np.repeat(rows, lengths), lists.filter(pl.Series(lengths > 0)).explode()
            weight = 1.0 / np.maximum(lengths, 1)[rows]
        else:
            values, weight = column.cast(pl.String).fill_null(MISSING), np.ones(column.len())
        table = pl.DataFrame({"v": pl.Series(self.vocabulary, dtype=pl.String), "code": np.arange(self.width)})
        joined = values.to_frame("v").join(table, on="v", how="left", maintain_order="left")
        code = joined["code"].fill_null(-1).to_numpy()
        known = code >= 0
        return rows[known], code[known], weight[known]

    def _encode_number(self, column: pl.Series) -> Triplets:
        raw = column.fill_null(float("nan")).to_numpy()
        value = np.clip(np.nan_to_num((raw - self.mean) / self.scale, nan=0.0), -CUT, CUT)
        rows = np.flatnonzero(value)
        absent = np.flatnonzero(np.isnan(raw)) if self.indicator else rows[:0]
        codes = np.concatenate([np.zeros(rows.size, np.int64), np.ones(absent.size, np.int64)])
        return np.concatenate([rows, absent]), codes, np.concatenate([value[rows], np.ones(absent.size)])


@dataclass(frozen=True)
class FeatureEncoder:
    """The encoders of a side table's columns, in order."""

    columns: tuple[ColumnEncoder, ...]

    @classmethod
    def fit(cls, table: pl.DataFrame, id_column: str) -> FeatureEncoder:
        """Learn the encoding of all columns but the id (types as `data.schema.clean_side` leaves them)."""
        encoders = [ColumnEncoder.fit(column) for column in table.drop(id_column, strict=False).get_columns()]
        return cls(tuple(encoder for encoder in encoders if encoder.width))

    @property
    def width(self) -> int:
        """Columns of the design."""
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """A name per column of the design, for reports."""
        return tuple(name for column in self.columns for name in _names(column))

    def encode(self, table: pl.DataFrame) -> Design:
        """The design matrix of a table that has these columns."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise InputError(f"missing feature column {', '.join(missing)}", found=", ".join(table.columns[:12]))
        parts, offset = [], 0
        for column in self.columns:
            rows, codes, values = column.encode(table[column.name])
            parts.append((rows, codes + offset, values))
            offset += column.width
        empty = [np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)]
        rows, codes, values = (np.concatenate(x) for x in zip(empty, *parts, strict=True)) if parts else empty
        order = np.lexsort((codes, rows))
        pattern = LogPattern.from_pairs(rows[order], codes[order], table.height, self.width)
        return Design(pattern, torch.from_numpy(values[order].astype(np.float32)))

    def state(self) -> list[dict[str, Any]]:
        """What `from_state` needs, as plain JSON."""
        return [{**vars(column), "vocabulary": list(column.vocabulary)} for column in self.columns]

    @classmethod
    def from_state(cls, state: list[Mapping[str, Any]]) -> FeatureEncoder:
        """Rebuild a saved encoder."""
        return cls(tuple(ColumnEncoder(**{**part, "vocabulary": tuple(part["vocabulary"])}) for part in state))


def _names(column: ColumnEncoder) -> list[str]:
    if column.kind == "number":
        return [column.name, f"{column.name} is missing"][: column.width]
    return [f"{column.name}={'missing' if value == MISSING else value}" for value in column.vocabulary]
