"""Tables of any library in, Polars out; and the label that a table carries through all messages about it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import polars as pl

from puidrec.errors import InputError, one_line

Frame = Any
"""A Polars, pandas or Arrow table (pandas and Arrow are optional, so their types are not named here)."""


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for messages: a file, or a name such as `logged`."""

    label: str | PathLike[str]

    def error(self, problem: str, **details: Any) -> InputError:
        """Build the error that names this table."""
        return InputError(problem, file=self.label, **details)


def to_polars(table: Frame, origin: Origin) -> pl.DataFrame:
    """Accept Polars (eager or lazy), pandas, Arrow, or a mapping of columns."""
    if isinstance(table, pl.DataFrame):
        return pl.DataFrame(table)
    module = type(table).__module__.split(".")[0]
    try:
        if isinstance(table, pl.LazyFrame):
            collected: pl.DataFrame = table.collect()
            return collected
        if module == "pandas":
            frame: pl.DataFrame = pl.from_pandas(table.reset_index(drop=True))
            return frame
        if module == "pyarrow":
            converted = pl.from_arrow(table)
            return converted if isinstance(converted, pl.DataFrame) else converted.to_frame()
        if isinstance(table, dict):
            return pl.DataFrame([_column(str(name), values) for name, values in table.items()])
    except (Exception, pl.exceptions.PanicException) as error:
        raise origin.error(f"cannot read this {module} table ({one_line(str(error))[:200]})") from error
    raise origin.error(
        "not a table",
        found=type(table).__name__,
        expected="a Polars, pandas or Arrow table",
        hint="Read the file first, for example with polars.read_csv.",
    )


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


def require_rows(frame: pl.DataFrame, origin: Origin) -> None:
    """Refuse an empty table."""
    if frame.height == 0:
        raise origin.error(
            "the table is empty",
            found="0 rows",
            expected="at least one row",
            hint="Check the path and the filter.",
        )
