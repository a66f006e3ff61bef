"""Validation at load time: every table is checked here, once, and no later step checks again.

A table comes in as Polars, pandas or Arrow and leaves as Polars with known columns and types, or an
`InputError` names the file, the row, the column, what was found, what was expected and what to do.
Rows are counted from 1 at the first data row, so row 1 of a CSV file is the line under its header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.errors import InputError, one_line

INTERACTION_COLUMNS = ("user_id", "item_id", "rating")
OPTIONAL_COLUMNS = ("propensity", "timestamp")
OTHER_NAMES = {"user": "user_id", "item": "item_id", "weight": "rating", "datetime": "timestamp"}
"""What RecTools and LensKit call our columns; taken where ours is absent."""
Duplicates = Literal["error", "first", "last", "mean", "max"]
RATING_WORDS = (
    "ratings",
    "stars",
    "star",
    "score",
    "value",
    "label",
    "like",
    "liked",
    "click",
    "clicked",
    "clicks",
    "is_click",
    "feedback",
    "target",
    "y",
    "count",
    "play_count",
    "plays",
    "watch_ratio",
    "preference",
)
"""Names under which a column is most likely the rating."""
MAX_RATING = 1e38
"""What single precision holds."""
STEPS = 1000
"""Different ratings that single precision must be able to tell apart between the ends of a scale.
"""
MAX_FEATURE = 1e100
"""Beyond, sums and squares of a column may be no numbers; no feature is that large."""
_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)
"""Column types that are categories."""
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What Polars raises over bad content; its panics are no `Exception`, so they are named."""
Frame = Any
"""A Polars, pandas or Arrow table (pandas and Arrow are optional, so their types are not named
here)."""


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for messages: a file, or a name such as `logged`."""

    label: str | PathLike[str]
    before: int = 0
    """Rows of it that were read earlier: rows are counted from its start."""

    def error(self, problem: str, **details: Any) -> InputError:
        """Build the error that names this table."""
        if "row" in details:
            details["row"] += self.before
        return InputError(problem, file=self.label, **details)


def short_reason(error: BaseException) -> str:
    """The first sentence of what Polars or the system says, for a message of one line."""
    return one_line(str(error)).split("  ")[0][:120]


def to_polars(table: Frame, origin: Origin) -> pl.DataFrame:
    """Accept Polars (eager or lazy), pandas, Arrow and whatever hands its columns out as Arrow
    does, or a mapping of columns."""
    kind = f"{type(table).__module__.split('.')[0]} {type(table).__name__}"
    try:
        if isinstance(table, pl.LazyFrame):
            return table.collect()
        if kind == "pandas DataFrame":
            return pl.from_pandas(table.reset_index(drop=True))
        column = hasattr(table, "__len__") and not hasattr(table, "columns")
        if hasattr(table, "__arrow_c_stream__") and not column:
            return pl.DataFrame(table)
        if isinstance(table, dict):
            return pl.DataFrame([_column(str(name), values) for name, values in table.items()])
    except (Exception, *POLARS_ERRORS) as error:
        raise origin.error(f"cannot read this {kind} ({one_line(str(error))[:200]})") from error
    expected = "a Polars, pandas or Arrow table"
    raise origin.error("not a table", found=type(table).__name__, expected=expected)


def _column(name: str, values: Any) -> pl.Series:
    """A column of a mapping: whole and broken numbers may mix, numbers and text may not."""
    try:
        return pl.Series(name, values)
    except TypeError:
        column = pl.Series(name, values, strict=False)
        if not column.dtype.is_numeric():
            raise
        return column


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


def with_our_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns that other tools call otherwise under our names; a column that has our name wins."""
    present = {theirs: ours for theirs, ours in OTHER_NAMES.items() if theirs in frame.columns}
    return frame.rename(
        {theirs: ours for theirs, ours in present.items() if ours not in frame.columns}
    )


def require_rows(frame: pl.DataFrame, origin: Origin) -> None:
    """Refuse an empty table."""
    if frame.height == 0:
        raise origin.error("the table is empty", found="0 rows", expected="at least one row")


@dataclass(frozen=True)
class RatingScale:
    """The closed interval that ratings live on; `stars` maps it to 1..5, where protocols draw their
    lines."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -MAX_RATING < self.low < self.high < MAX_RATING:
            raise InputError(
                "a rating scale needs low < high, both finite and below 1e38",
                found=f"{self.low:g}..{self.high:g}",
            )
        # Ratings are kept in 32 bits: 0..1e-300 would be all zeros, 1e9..1e9+1 one value.
        step = np.spacing(np.float32(max(abs(self.low), abs(self.high))))
        if step * STEPS > self.high - self.low:
            raise InputError(
                "a rating scale too narrow for numbers of 32 bits",
                found=f"{self.low!r}..{self.high!r}",
                expected=f"room for {STEPS:,} different ratings",
                hint="Rescale the ratings: subtract the lowest, divide by the range.",
            )

    @classmethod
    def of(cls, scale: object) -> RatingScale | None:
        """Read a `scale=` argument: nothing, a scale, or a pair of numbers."""
        if scale is None or isinstance(scale, RatingScale):
            return scale
        try:
            low, high = map(float, scale)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            expected = "two numbers, low and high, for example (1, 5)"
            raise InputError("not a rating scale", found=scale, expected=expected) from error
        return cls(low, high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def unit(self, rating: np.ndarray) -> np.ndarray:
        """Map ratings to [0, 1]; one stored in 32 bits may round past its scale."""
        return np.clip(self._share(rating), 0.0, 1.0).astype(np.float32)

    def _share(self, rating: np.ndarray) -> np.ndarray:
        return (np.asarray(rating, dtype=np.float64) - self.low) / (self.high - self.low)

    def of_unit(self, unit: np.ndarray) -> np.ndarray:
        """The inverse of `unit`, also for predictions beyond [0, 1]; in their own type."""
        width, low = unit.dtype.type(self.high - self.low), unit.dtype.type(self.low)
        return unit * width + low

    def stars(self, rating: np.ndarray) -> np.ndarray:
        """Map ratings to 1..5, rounded so that a level of the scale is exactly a level of the
        stars."""
        return np.round(1.0 + 4.0 * self._share(rating), 6)


def check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse an option's value that is not on its list."""
    if value not in choices:
        raise InputError(
            f"unknown value of {option}", found=value, expected=f"one of {', '.join(choices)}"
        )


def check_ids(column: pl.Series, origin: Origin) -> pl.Series:
    """Ids are integers or text, never missing; anything else is refused rather than converted."""
    if column.dtype.is_integer():
        clean = column.cast(pl.Int64, strict=False)
        lost, hint = clean.is_null() & column.is_not_null(), "Write such ids as text."
        reject(lost, column, "id too large", "ids below 2^63", hint, origin)
    elif column.dtype in (pl.String, pl.Categorical, pl.Enum):
        clean = column.cast(pl.String)
    else:
        raise origin.error(
            "ids must be integers or text",
            column=column.name,
            found=str(column.dtype),
            hint="Cast the column, for example with .cast(pl.Int64).",
        )
    expected, hint = "an id in every row", "Remove the row or fill in the id."
    reject(clean.is_null(), clean, "missing id", expected, hint, origin)
    if clean.dtype == pl.String:
        reject(clean == "", clean, "empty id", expected, hint, origin)
        _refuse_two_forms(clean, origin)
    return clean


def _refuse_two_forms(ids: pl.Series, origin: Origin) -> None:
    """Refuse `1` and `1.0` in one column: one user, whom some program wrote as a broken number,
    would become two."""
    broken = ids.str.contains(r"^-?[0-9]+\.0+$")
    if broken.any():
        whole = ids.str.replace(r"^(-?[0-9]+)\.0+$", "${1}")
        forms = pl.DataFrame({"id": ids, "whole": whole}).unique()["whole"]
        both = broken & whole.is_in(forms.filter(forms.is_duplicated()).implode())
        hint = "Write ids as whole numbers."
        reject(
            both, ids, "an id written in two ways", "each id in one form, 1 or 1.0", hint, origin
        )


def check_number(
    column: pl.Series,
    origin: Origin,
    hint: str = "Write plain numbers, with a decimal point.",
    *,
    kind: type[pl.DataType] = pl.Float64,
    missing: bool = False,
) -> pl.Series:
    """A numeric column as Float64, or Int64, without NaN, infinite and (unless allowed) missing
    values; text that is not a number is quoted."""
    expected = "a whole number" if kind == pl.Int64 else "a finite number"
    if column.dtype == pl.String:
        parsed = column.str.strip_chars().cast(kind, strict=False)
        bad = parsed.is_null() & column.is_not_null() if missing else parsed.is_null()
        reject(bad, column, "not a number", expected, hint, origin)
    elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
        parsed = column.cast(kind, strict=False)
    else:
        raise origin.error(
            "not a numeric column",
            column=column.name,
            found=str(column.dtype),
            hint=hint,
        )
    if not missing:
        reject(parsed.is_null(), column, "missing value", expected, hint, origin)
    infinite = ~parsed.is_finite().fill_null(True)
    reject(infinite, column, "not a finite number", expected, hint, origin)
    return parsed


def check_range(
    column: pl.Series, low: float, high: float, origin: Origin, *, open_low: bool = False, hint: str
) -> None:
    """Refuse values outside [low, high], or (low, high] when `open_low`."""
    outside = ((column <= low) if open_low else (column < low)) | (column > high)
    expected = f"{'(' if open_low else '['}{low:g}, {high:g}]"
    reject(outside, column, "value out of range", expected, hint, origin)


def reject(
    bad: pl.Series, column: pl.Series, problem: str, expected: str, hint: str, origin: Origin
) -> None:
    """Raise for the first row where `bad` holds, saying how many there are."""
    count = int(bad.sum() or 0)
    if not count:
        return
    row = int(bad.arg_true()[0])
    value = column[row]
    more = f" (and {count - 1:,} more rows)" if count > 1 else ""
    found = "nothing" if value is None else value
    raise origin.error(
        problem + more, row=row + 1, column=column.name, found=found, expected=expected, hint=hint
    )


def refuse_near_rating(names: Sequence[str], origin: Origin) -> None:
    """Refuse a log without `rating` that has a column which may well be it: it would be taken for
    likes only."""
    if "rating" in names:
        return
    lower = {name.lower(): name for name in names}
    near = [
        *(name for name in RATING_WORDS if name in lower),
        *get_close_matches("rating", lower, 1),
    ]
    if near:
        own = lower[near[0]]
        raise origin.error(
            "missing column rating",
            found=", ".join(names[:12]),
            expected="a column rating, or none like it",
            hint=f"Is it {own}? Rename it (--columns rating={own}), or drop it if every row is a "
            "like.",
        )


def clean_interactions(table: Frame, scale: RatingScale | None, origin: Origin) -> pl.DataFrame:
    """Check an interaction table; returns `user_id, item_id, rating` and the optional columns it
    has.

    Ratings stay in 64 bits here: whether 32 can hold them is known once the scale is.
    """
    frame = with_our_names(to_polars(table, origin))
    require_columns(frame, INTERACTION_COLUMNS, origin)
    require_rows(frame, origin)
    columns = [check_ids(frame["user_id"], origin), check_ids(frame["item_id"], origin)]
    rating = check_number(frame["rating"], origin)
    low, high = (-MAX_RATING, MAX_RATING) if scale is None else (scale.low, scale.high)
    hint = "Correct the rating, or give the true scale with scale=(low, high) / --scale LOW,HIGH."
    check_range(rating, low, high, origin, hint=hint)
    columns.append(rating)
    if "propensity" in frame.columns:
        propensity = check_number(frame["propensity"], origin)
        hint = "A propensity is a probability above 0."
        check_range(propensity, 0.0, 1.0, origin, open_low=True, hint=hint)
        columns.append(propensity)
    if "timestamp" in frame.columns:
        columns.append(_timestamp(frame["timestamp"], origin))
    return pl.DataFrame(columns)


def _timestamp(column: pl.Series, origin: Origin) -> pl.Series:
    """Times as Int64: numbers as given, or microseconds of dates and date-times. Missing stays
    missing."""
    times = column
    if column.dtype == pl.String:
        times = column.cast(pl.Float64, strict=False)
        if times.null_count() == times.len():
            try:
                times = column.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
            except pl.exceptions.PolarsError:  # no form of time was found
                times = column.clear(column.len()).cast(pl.Datetime("us"))
    known = times.dtype.is_numeric() or times.dtype in (pl.Date, pl.Datetime, pl.Null)
    bad = times.is_null() & column.is_not_null() if known else column.is_not_null()
    expected, hint = "numbers, dates or date-times (ISO 8601 in text)", "Drop or cast the column."
    reject(bad, column, "not a time", expected, hint, origin)
    if times.dtype in (pl.Date, pl.Datetime):
        return times.cast(pl.Datetime("us"), strict=False).to_physical()
    return times.cast(pl.Int64, strict=False)


def clean_side(table: Frame, key: str, origin: Origin) -> pl.DataFrame:
    """Check a user or item table: unique ids first, then feature columns; text, numbers or lists of
    text."""
    frame = to_polars(table, origin)
    require_columns(frame, (key,), origin)
    require_rows(frame, origin)
    ids = check_ids(frame[key], origin)
    repeated = ids.is_duplicated() & ~ids.is_first_distinct()
    reject(repeated, ids, "id appears twice", "one row per id", "Keep one row per id.", origin)
    features = [_feature(column, origin) for column in frame.drop(key).get_columns()]
    return pl.DataFrame([ids, *features])


def _feature(column: pl.Series, origin: Origin) -> pl.Series:
    """Give a feature column one of three types: String (categorical), List(String) (multi-valued),
    Float64."""
    dtype = column.dtype
    if dtype.is_numeric():
        values = column.cast(pl.Float64, strict=False).fill_nan(None)
        too_large = (values.abs() > MAX_FEATURE).fill_null(False)
        expected, hint = "a finite number up to 1e100, or nothing", "Leave unknown cells empty."
        reject(too_large, column, "not a finite number, or far too large", expected, hint, origin)
        return values
    if dtype in _TEXT:
        return column.cast(pl.String)
    if isinstance(dtype, pl.List) and (dtype.inner in _TEXT or dtype.inner.is_numeric()):
        return column.cast(pl.List(pl.String))
    if dtype in (pl.Date, pl.Datetime):
        return column.cast(pl.Datetime("us"), strict=False).to_physical().cast(pl.Float64)
    raise origin.error(
        "cannot be a feature",
        column=column.name,
        found=str(dtype),
        expected="text (categorical), numbers, or lists of text (multi-valued)",
    )
