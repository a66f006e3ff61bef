"""Side tables as matrices: the one home of every encoding of features.

| for | made by | text and lists | numbers |
|---|---|---|---|
| weights that a backbone learns | `FeatureEncoder` | a column per value, missing included; \
a list shares weight 1 | (x − mean)/sd, cut at ±`CUT`; a column that marks missing values |
| propensities (logistic regression) | `exposure_design` | a column per common value; \
1 for each value of a list | the same without the cut |
| expected exposure (ridge regression) | `binned_design` | a column per bin but the first | \
bins, and (x − mean)/sd |
| entropies, feature by feature | `feature_codes` | yes or no per value | four bins |

A `FeatureEncoder` is fitted once and can be applied to new entities: values it never saw give
zeros. Its state is plain JSON, so that a saved model can encode again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy import sparse

from puidrec.data.tables import row_starts
from puidrec.errors import InputError
from puidrec.features.bins import bin_column

CUT = 5.0
"""Standard deviations at which a number is cut: one extreme value must not decide a weight."""
MISSING = "\x00missing"
MAX_LEVELS = 100
"""Values of a text column that get a column of `exposure_design`: the most frequent ones."""
DESIGN_BINS = 8
"""Bins of a column in `binned_design`: finer than those of composite bins."""
Triplets = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ColumnEncoder:
    """How one column of a side table is encoded; its fields are what a saved model keeps."""

    name: str
    kind: Literal["category", "list", "number"]
    vocabulary: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    indicator: bool = False

    @property
    def width(self) -> int:
        """Columns of the matrix it fills."""
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
        kind, values = _named(column)
        known = tuple(values.unique().sort().to_list())
        missing = kind == "category" and column.null_count() > 0
        return cls(column.name, kind, known + ((MISSING,) if missing else ()))

    @classmethod
    def for_exposure(cls, column: pl.Series) -> ColumnEncoder:
        """The encoding of `exposure_design`: common values that not every entity has; numbers that
        vary."""
        if column.dtype.is_numeric():
            known = column.cast(pl.Float64)
            if known.null_count() == known.len():
                return cls(column.name, "category")
            values = known.fill_null(known.mean()).to_numpy()
            mean, spread = float(values.mean()), float(values.std())
            missing = known.null_count() > 0
            if spread == 0.0 and not missing:
                return cls(column.name, "category")
            return cls(column.name, "number", mean=mean, scale=spread or 1.0, indicator=missing)
        kind, levels = _named(column)
        count = levels.value_counts(name="n").sort(["n", "level"], descending=[True, False])
        kept = count.filter(pl.col("n") < column.len()).head(MAX_LEVELS)["level"].sort()
        return cls(column.name, kind, tuple(kept.to_list()))

    def encode(self, column: pl.Series, cut: float = CUT, share: bool = True) -> Triplets:
        """Rows, columns and values of the non-zero entries; `share`: whether the values of a list
        share weight 1."""
        if self.kind == "number":
            return self._encode_number(column.cast(pl.Float64), cut)
        rows = np.arange(column.len(), dtype=np.int64)
        if self.kind == "list":
            lists = column.cast(pl.List(pl.String)).list.drop_nulls()
            lists = lists if share else lists.list.unique()
            lengths = lists.list.len().fill_null(0).to_numpy()
            rows, values = np.repeat(rows, lengths), lists.filter(pl.Series(lengths > 0)).explode()
            weight = 1.0 / np.maximum(lengths, 1)[rows] if share else np.ones(rows.size)
        else:
            values, weight = column.cast(pl.String).fill_null(MISSING), np.ones(column.len())
        table = pl.DataFrame(
            {"v": pl.Series(self.vocabulary, dtype=pl.String), "code": np.arange(self.width)}
        )
        joined = values.to_frame("v").join(table, on="v", how="left", maintain_order="left")
        code = joined["code"].fill_null(-1).to_numpy()
        known = code >= 0
        return rows[known], code[known], weight[known]

    def _encode_number(self, column: pl.Series, cut: float) -> Triplets:
        raw = column.fill_null(float("nan")).to_numpy()
        value = np.clip(np.nan_to_num((raw - self.mean) / self.scale, nan=0.0), -cut, cut)
        rows = np.flatnonzero(value)
        absent = np.flatnonzero(np.isnan(raw)) if self.indicator else rows[:0]
        codes = np.concatenate([np.zeros(rows.size, np.int64), np.ones(absent.size, np.int64)])
        values = np.concatenate([value[rows], np.ones(absent.size)])
        return np.concatenate([rows, absent]), codes, values


def _named(column: pl.Series) -> tuple[Literal["category", "list"], pl.Series]:
    """Whether a column of text has one value or a list per entity, and all values that occur."""
    is_list = isinstance(column.dtype, pl.List)
    values = (column.explode() if is_list else column).cast(pl.String).alias("level").drop_nulls()
    return "list" if is_list else "category", values


@dataclass(frozen=True)
class FeatureEncoder:
    """The encoders of a side table's columns, in order."""

    columns: tuple[ColumnEncoder, ...]

    @classmethod
    def fit(cls, table: pl.DataFrame, id_column: str) -> FeatureEncoder:
        """Learn the encoding of all columns but the id (types as `data.schema.clean_side` leaves
        them)."""
        encoders = [ColumnEncoder.fit(column) for column in feature_columns(table, id_column)]
        return cls(tuple(encoder for encoder in encoders if encoder.width))

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return sum(column.width for column in self.columns)

    def encode(
        self, table: pl.DataFrame, *, cut: float = CUT, share: bool = True
    ) -> sparse.csr_array:
        """The matrix [entities, width] of a table that has these columns; entries of a row in order
        of columns."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise InputError(
                f"missing feature column {', '.join(missing)}", found=", ".join(table.columns[:12])
            )
        parts, offset = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))], 0
        for column in self.columns:
            rows, codes, values = column.encode(table[column.name], cut, share)
            parts.append((rows, codes + offset, values))
            offset += column.width
        rows, codes, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.lexsort((codes, rows))
        start = row_starts(rows, table.height)
        return sparse.csr_array((values[order], codes[order], start), (table.height, self.width))

    def state(self) -> list[dict[str, Any]]:
        """What `from_state` needs, as plain JSON."""
        return [{**vars(column), "vocabulary": list(column.vocabulary)} for column in self.columns]

    @classmethod
    def from_state(cls, state: list[Mapping[str, Any]]) -> FeatureEncoder:
        """Rebuild a saved encoder."""
        return cls(
            tuple(
                ColumnEncoder(**{**part, "vocabulary": tuple(part["vocabulary"])}) for part in state
            )
        )


def exposure_design(frame: pl.DataFrame | None, id_column: str) -> sparse.csr_array | None:
    """Features that explain exposure, [entities, columns]; None without features.

    A missing number becomes the mean and sets an indicator; a missing category has no column set.
    """
    encoders = [ColumnEncoder.for_exposure(column) for column in feature_columns(frame, id_column)]
    used = FeatureEncoder(tuple(encoder for encoder in encoders if encoder.width))
    if frame is None or not used.columns:
        return None
    return used.encode(frame, cut=np.inf, share=False)


def binned_design(frame: pl.DataFrame | None, id_column: str) -> np.ndarray | None:
    """Indicators of every column's bins (all but the first), and numbers themselves, standardised,
    0 where missing."""
    parts: list[np.ndarray] = []
    for column in feature_columns(frame, id_column):
        codes = bin_column(column, DESIGN_BINS).codes
        parts.extend((codes == k).astype(np.float64) for k in range(1, int(codes.max()) + 1))
        if column.dtype.is_numeric():
            values = column.cast(pl.Float64).fill_nan(None)
            spread = values.std() or 0.0
            if isinstance(spread, float) and spread > 0.0:
                parts.append(((values - values.mean()) / spread).fill_null(0.0).to_numpy())
    return np.stack(parts, axis=1) if parts else None


def feature_codes(frame: pl.DataFrame | None, id_column: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of single features and their bins, [features, entities]; features that do not vary are
    left out.

    Numbers in four bins; text of more than two values, and lists, as one yes/no feature per value.
    """
    parts = [part for column in feature_columns(frame, id_column) for part in _yes_no(column)]
    kept = [(part.name, codes) for part in parts if (codes := bin_column(part).codes).max() > 0]
    if not kept:
        raise InputError("no feature varies", expected=f"features beside {id_column}")
    return tuple(name for name, _ in kept), np.stack([codes for _, codes in kept])


def feature_columns(frame: pl.DataFrame | None, id_column: str) -> list[pl.Series]:
    """The columns of a side table that are features; none without a table."""
    return [] if frame is None else frame.drop(id_column, strict=False).get_columns()


def _yes_no(column: pl.Series) -> list[pl.Series]:
    """A text or list column as one yes/no column per value; numbers and columns of two values as
    they are."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return [column]
    kind, levels = _named(column)
    values = sorted(levels.unique().to_list())
    if kind == "category" and len(values) <= 2:
        return [column]
    has = [column.list.contains(own) if kind == "list" else column == own for own in values]
    return [
        flag.fill_null(False).alias(f"{column.name}={value}")
        for flag, value in zip(has, values, strict=True)
    ]
