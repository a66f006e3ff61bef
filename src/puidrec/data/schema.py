"""The door: every table is checked here, once, and nothing behind it checks again.

A table comes in as Polars, pandas or Arrow and leaves as Polars with known columns and types, or an
`InputError` names the file, the row, the column, what was found, what was expected and what to do.
Rows are counted from 1 at the first data row, so row 1 of a CSV file is the line under its header.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.errors import InputError, one_line

Frame = Any
"""A Polars, pandas or Arrow table (pandas and Arrow are optional, so their types are not named here)."""

INTERACTION_COLUMNS = ("user_id", "item_id", "rating")
OPTIONAL_COLUMNS = ("propensity", "timestamp")
Duplicates = Literal["error", "first", "last", "mean"]


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for messages: a file, or a name such as `logged`."""

    label: str | PathLike[str]

    def error(self, problem: str, **details: Any) -> InputError:
        """Build the error that names this table."""
        return InputError(problem, file=self.label, **details)


@dataclass(frozen=True)
class RatingScale:
    """The closed interval that ratings live on; `stars` maps it to 1..5, where protocols draw their lines."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(
                "a rating scale needs low < high, both finite",
                found=f"{self.low:g}..{self.high:g}",
                hint="Give the scale as LOW,HIGH, for example 1,5.",
            )

    def unit(self, rating: np.ndarray) -> np.ndarray:
        """Map ratings to [0, 1]."""
        return ((np.asarray(rating, dtype=np.float64) - self.low) / (self.high - self.low)).astype(np.float32)

    def stars(self, rating: np.ndarray) -> np.ndarray:
        """Map ratings to 1..5, rounded so that a level of the scale is exactly a level of the stars."""
        unit = (np.asarray(rating, dtype=np.float64) - self.low) / (self.high - self.low)
        return np.round(1.0 + 4.0 * unit, 6)


def to_polars(table: Frame, origin: Origin) -> pl.DataFrame:
    """Accept Polars (eager or lazy), pandas, Arrow, or a mapping of columns."""
    if isinstance(table, pl.LazyFrame):
        table = table.collect()
    if isinstance(table, pl.DataFrame):
        frame: pl.DataFrame = table
        return frame
    module = type(table).__module__.split(".")[0]
    try:
        if module == "pandas":
            return pl.from_pandas(table.reset_index(drop=True))
        if module == "pyarrow":
            converted = pl.from_arrow(table)
            return converted if isinstance(converted, pl.DataFrame) else converted.to_frame()
        if isinstance(table, dict):
            return pl.DataFrame(table, strict=False)
    except Exception as error:
        raise origin.error(f"cannot read this {module} table ({one_line(str(error))[:200]})") from error
    raise origin.error(
        "not a table",
        found=type(table).__name__,
        expected="a Polars, pandas or Arrow table",
        hint="Read the file first, for example with polars.read_csv.",
    )


def require_columns(frame: pl.DataFrame, columns: tuple[str, ...], origin: Origin) -> None:
    """Refuse a table without the named columns, and say which it has."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise origin.error(
            f"missing column {', '.join(missing)}",
            found=", ".join(frame.columns[:12]) or "no columns",
            expected=f"columns {', '.join(columns)}",
            hint="Rename the columns of the table, or check its separator and header line.",
        )


def require_rows(frame: pl.DataFrame, origin: Origin) -> None:
    """Refuse an empty table."""
    if frame.height == 0:
        raise origin.error(
            "the table is empty",
            found="0 rows",
            expected="at least one row",
            hint="Check the path and the filter.",
        )


def check_ids(column: pl.Series, origin: Origin) -> pl.Series:
    """Ids are integers or text, never missing; anything else is refused rather than converted."""
    if column.dtype.is_integer():
        clean = column
        if column.dtype == pl.UInt64 and column.len() and column.drop_nulls().max() > np.iinfo(np.int64).max:  # type: ignore[operator]
            raise origin.error(
                "id too large",
                column=column.name,
                found=str(column.max()),
                expected="ids below 2^63",
                hint="Write such ids as text.",
            )
        clean = column.cast(pl.Int64)
    elif column.dtype in (pl.String, pl.Categorical, pl.Enum):
        clean = column.cast(pl.String)
    else:
        raise origin.error(
            "ids must be integers or text",
            column=column.name,
            found=str(column.dtype),
            expected="an integer or text column",
            hint="Cast the column, for example with .cast(pl.Int64).",
        )
    reject(
        clean.is_null(),
        clean,
        "missing id",
        "an id in every row",
        "Remove the row or fill in the id.",
        origin,
    )
    if clean.dtype == pl.String:
        reject(clean == "", clean, "empty id", "an id in every row", "Remove the row or fill in the id.", origin)
    return clean


def check_number(
    column: pl.Series, origin: Origin, hint: str = "Write plain numbers, with a decimal point."
) -> pl.Series:
    """A numeric column as Float64 without missing, NaN or infinite values; text that is not a number is quoted."""
    if column.dtype == pl.String:
        parsed = column.str.strip_chars().cast(pl.Float64, strict=False)
        reject(parsed.is_null(), column, "not a number", "a number", hint, origin)
    elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
        parsed = column.cast(pl.Float64, strict=False)
    else:
        raise origin.error(
            "not a numeric column", column=column.name, found=str(column.dtype), expected="numbers", hint=hint
        )
    reject(parsed.is_null(), column, "missing value", "a finite number", hint, origin)
    reject(~parsed.is_finite(), column, "not a finite number", "a finite number", hint, origin)
    return parsed


def check_range(
    column: pl.Series, low: float, high: float, origin: Origin, *, open_low: bool = False, hint: str
) -> None:
    """Refuse values outside [low, high], or (low, high] when `open_low`."""
    outside = ((column <= low) if open_low else (column < low)) | (column > high)
    bracket = "(" if open_low else "["
    reject(outside, column, "value out of range", f"{bracket}{low:g}, {high:g}]", hint, origin)


def reject(bad: pl.Series, column: pl.Series, problem: str, expected: str, hint: str, origin: Origin) -> None:
    """Raise for the first row where `bad` holds, saying how many there are."""
    count = int(bad.sum() or 0)
    if not count:
        return
    row = int(bad.arg_true()[0])
    value = column[row]
    more = f" (and {count - 1:,} more rows)" if count > 1 else ""
    found = "nothing" if value is None else value
    raise origin.error(problem + more, row=row + 1, column=column.name, found=found, expected=expected, hint=hint)


def clean_interactions(table: Frame, scale: RatingScale | None, origin: Origin) -> pl.DataFrame:
    """Check an interaction table; returns `user_id, item_id, rating` and the optional columns it has."""
    frame = to_polars(table, origin)
    require_columns(frame, INTERACTION_COLUMNS, origin)
    require_rows(frame, origin)
    columns = [check_ids(frame["user_id"], origin), check_ids(frame["item_id"], origin)]
    rating = check_number(frame["rating"], origin)
    if scale is not None:
        check_range(
            rating,
            scale.low,
            scale.high,
            origin,
            hint="Correct the rating, or give the true scale with scale=(low, high) / --scale LOW,HIGH.",
        )
    columns.append(rating.cast(pl.Float32).alias("rating"))
    if "propensity" in frame.columns:
        propensity = check_number(frame["propensity"], origin)
        check_range(propensity, 0.0, 1.0, origin, open_low=True, hint="A propensity is a probability above 0.")
        columns.append(propensity)
    if "timestamp" in frame.columns:
        columns.append(_timestamp(frame["timestamp"], origin))
    return pl.DataFrame(columns)


def _timestamp(column: pl.Series, origin: Origin) -> pl.Series:
    """Times as Int64: seconds as given, or microseconds of a date-time column. Missing stays missing."""
    if column.dtype.is_temporal():
        return column.cast(pl.Datetime("us"), strict=False).to_physical().alias("timestamp")
    if column.dtype.is_numeric() or column.dtype == pl.Null:
        return column.cast(pl.Float64).fill_nan(None).cast(pl.Int64, strict=False)
    raise origin.error(
        "not a time",
        column="timestamp",
        found=str(column.dtype),
        expected="numbers or date-times",
        hint="Drop the column or cast it.",
    )


def clean_side(table: Frame, key: str, origin: Origin) -> pl.DataFrame:
    """Check a user or item table: unique ids first, then feature columns; text, numbers or lists of text."""
    frame = to_polars(table, origin)
    require_columns(frame, (key,), origin)
    require_rows(frame, origin)
    ids = check_ids(frame[key], origin)
    reject(
        ids.is_duplicated() & ~ids.is_first_distinct(),
        ids,
        "id appears twice",
        "one row per id",
        "Keep one row per id.",
        origin,
    )
    features = [_feature(column, origin) for column in frame.drop(key).get_columns()]
    return pl.DataFrame([ids, *features])


def _feature(column: pl.Series, origin: Origin) -> pl.Series:
    """Give a feature column one of three types: String (categorical), List(String) (multi-valued), Float64."""
    dtype = column.dtype
    if dtype.is_numeric():
        values = column.cast(pl.Float64, strict=False).fill_nan(None)
        reject(
            values.is_infinite().fill_null(False),
            column,
            "not a finite number",
            "a finite number or nothing",
            "Leave the cell empty where the value is unknown.",
            origin,
        )
        return values
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
        return column.cast(pl.String)
    if isinstance(dtype, pl.List) and not dtype.inner.is_nested():
        return column.cast(pl.List(pl.String))
    if dtype.is_temporal():
        return column.cast(pl.Datetime("us"), strict=False).to_physical().cast(pl.Float64).alias(column.name)
    raise origin.error(
        "cannot be a feature",
        column=column.name,
        found=str(dtype),
        expected="text (categorical), numbers, or lists of text (multi-valued)",
        hint="Drop or convert the column.",
    )
