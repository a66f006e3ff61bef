"""Large CSV files with known columns: streamed, never held as text, and still precise about what is wrong in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from puidrec.data.frames import Origin, require_columns
from puidrec.data.sources.reading import POLARS_ERRORS, input_errors
from puidrec.errors import InputError, one_line

Types = Mapping[str, type[pl.DataType]]
"""Columns to read: `pl.Int64`, `pl.Float64` or `pl.String`."""


def scan_columns(path: Path, types: Types) -> pl.LazyFrame:
    """The named columns of a CSV file, lazily; refuses a file that lacks one."""
    with input_errors(path):
        path.open("rb").close()
    try:
        names = pl.scan_csv(path, infer_schema=False, glob=False).collect_schema().names()
    except POLARS_ERRORS as error:
        raise _unreadable(path, error) from error
    require_columns(pl.DataFrame(schema=names), tuple(types), Origin(path))
    return pl.scan_csv(path, infer_schema=False, schema_overrides=dict(types), glob=False).select(list(types))


def collect_columns(query: pl.LazyFrame, path: Path, types: Types) -> pl.DataFrame:
    """Run a query on `scan_columns(path, types)` by streaming; a cell that is no number is named by row."""
    try:
        return query.collect(engine="streaming")
    except POLARS_ERRORS as error:
        name_bad_cell(path, types)
        raise _unreadable(path, error) from error


def name_bad_cell(path: Path, types: Types, required: tuple[str, ...] = ()) -> None:
    """Raise for the first cell that is no number, or missing though `required`: a second pass, once one failed."""
    text = pl.scan_csv(path, infer_schema=False, truncate_ragged_lines=True, glob=False).select(list(types))
    for name, dtype in types.items():
        if dtype == pl.String:
            continue
        number = pl.col(name).cast(dtype, strict=False)
        bad = number.is_null() if name in required else number.is_null() & pl.col(name).is_not_null()
        bad = bad | ~number.is_finite() if dtype == pl.Float64 else bad
        try:
            row = text.select(name).with_row_index("row", 1).filter(bad).head(1).collect(engine="streaming")
        except POLARS_ERRORS:
            return
        if row.height:
            raise InputError(
                "not a number",
                file=path,
                row=int(row["row"][0]),
                column=name,
                found="nothing" if row[name][0] is None else row[name][0],
                expected="a whole number" if dtype == pl.Int64 else "a finite number",
                hint="Correct or remove the row.",
            )


def _unreadable(path: Path, error: BaseException) -> InputError:
    reason = one_line(str(error)).split("  ")[0][:120]
    return InputError(f"cannot read the table ({reason})", file=path, hint="Check or download the file again.")
