"""Readers of Parquet files, matrices in plain text and .npz archives, with messages as in `reading`."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from puidrec.data.frames import Origin
from puidrec.data.sources.reading import POLARS_ERRORS, AnyPath, input_errors, read_text
from puidrec.errors import InputError, one_line


def read_parquet(path: AnyPath, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A Parquet file, or those of `columns` that it has; a damaged one is refused."""
    with input_errors(path), Path(path).open("rb") as stream:
        if not stream.read(4):
            raise InputError("the file is empty", file=path, expected="a Parquet file", hint="Check the path.")
    try:
        table = pl.scan_parquet(Path(path), glob=False)
        present = table.collect_schema().names()
        return table.select([name for name in present if columns is None or name in columns]).collect()
    except (*POLARS_ERRORS, OSError) as error:
        reason = one_line(str(error)).split("  ")[0][:120]
        raise InputError(
            f"damaged Parquet file ({reason})",
            file=path,
            expected="a whole Parquet file",
            hint="Write or download it again.",
        ) from error


def is_parquet(path: AnyPath) -> bool:
    """Whether a file claims to be Parquet, by its first bytes or its name."""
    with input_errors(path), Path(path).open("rb") as stream:
        return stream.read(4) == b"PAR1" or Path(path).suffix in (".parquet", ".pq")


def read_matrix(path: AnyPath) -> np.ndarray:
    """A matrix of numbers in plain text, one row per line (float64); refuses ragged rows and what is no number."""
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(
                "wrong number of values", file=path, row=number, found=len(row), expected=f"{len(rows[0])} as in row 1"
            )
    cells = pl.Series("cell", [cell for row in rows for cell in row], dtype=pl.String)
    values = cells.cast(pl.Float64, strict=False)
    bad = values.is_null() | ~values.is_finite().fill_null(False)
    if bad.any():
        at, column = divmod(int(bad.arg_true()[0]), len(rows[0]))
        found = rows[at][column]
        raise InputError(
            "not a number", file=path, row=at + 1, column=str(column + 1), found=found, expected="a finite number"
        )
    return values.to_numpy().reshape(len(rows), -1)


def read_arrays(path: AnyPath, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name. Pickled objects are refused: loading them would run code."""
    origin = Origin(path)
    with input_errors(path):
        raw = Path(path).read_bytes()
    try:
        archive = np.load(io.BytesIO(raw), allow_pickle=False)
        files = getattr(archive, "files", [])
        arrays = {name: archive[name] for name in (*required, *optional) if name in files}
    except (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = one_line(str(error))[:120]
        raise origin.error(
            f"damaged or unsafe .npz file ({reason})",
            expected="plain arrays, no pickled objects",
            hint="Download or convert it again.",
        ) from error
    missing = [name for name in required if name not in arrays]
    if missing:
        raise origin.error(
            f"missing array {', '.join(missing)}",
            found=", ".join(files) or "no arrays",
            expected=f"arrays {', '.join(required)}",
        )
    return arrays
