"""Tables in whatever form a log comes: which form a file has is read from its content, not asked
for.

Parquet (one file, a folder of parts, or a pattern), CSV and its kin with or without a header line,
files with `::`, JSON lines, RecBole's atomic files, and SciPy's sparse matrices
(`scipy.sparse.save_npz`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from scipy import sparse

from puidrec.atomic import write_json
from puidrec.data.dataset import Dataset
from puidrec.data.schema import POLARS_ERRORS, short_reason
from puidrec.data.sources.reading import (
    AnyPath,
    as_text,
    input_errors,
    is_parquet,
    parse_delimited,
    read_arrays,
    read_bytes,
    read_parquet,
    typed_columns,
)
from puidrec.data.sources.recbole import has_typed_header, parse_atomic, write_atomic
from puidrec.data.tables import Matrix, matrix_frame
from puidrec.errors import InputError

SKIPPED = "-"
"""Stands for a column of a file without header that is not read."""
_JSON = (".jsonl", ".ndjson", ".json")
_WILD = "*?["


def table_files(path: Path) -> list[Path]:
    """The files of one table: the path itself, the Parquet files of a folder, or what a pattern
    matches; sorted."""
    with input_errors(path):
        if path.is_dir():
            parts = sorted(path.glob("*.parquet"))
            if not parts:
                expected = "a file, or a folder of .parquet files"
                raise InputError("cannot read it", file=path, found="a folder", expected=expected)
            return parts
        if path.exists() or not any(sign in path.name for sign in _WILD):
            return [path]
        parts = sorted(part for part in path.parent.glob(path.name) if part.is_file())
    if not parts:
        raise InputError("no file matches this pattern", file=path, hint="Check the path.")
    return parts


def read_table(
    path: Path,
    *,
    names: Sequence[str] | None = None,
    wanted: Sequence[str] | None = None,
    text: Sequence[str] = (),
) -> pl.DataFrame:
    """A table of one or several files. Several must have the same columns.

    names: the columns of files without header, in order. wanted: all that is looked at, where a
    form can leave out the
    rest unread. text: columns of text files that stay text: numbers to be quoted in messages, or
    categories.
    """
    parts = [(file, _read_file(file, names, wanted, text)) for file in table_files(path)]
    first, frame = parts[0]
    for file, part in parts[1:]:
        if part.columns != frame.columns:
            found, expected = (
                ", ".join(part.columns) or "none",
                f"those of {first.name}: {', '.join(frame.columns)}",
            )
            raise InputError(
                "other columns than the first part", file=file, found=found, expected=expected
            )
        for own, other in zip(frame.get_columns(), part.get_columns(), strict=True):
            if own.dtype != other.dtype and not (
                own.dtype.is_numeric() and other.dtype.is_numeric()
            ):
                found, expected = str(other.dtype), f"{own.dtype} as in {first.name}"
                raise InputError(
                    "parts of different types",
                    file=file,
                    column=own.name,
                    found=found,
                    expected=expected,
                )
    return pl.concat([part for _, part in parts], how="vertical_relaxed")


def column_names(path: Path) -> list[str] | None:
    """All columns of a Parquet table, of which `wanted` ones were read; None for other forms, which
    are read whole."""
    first = table_files(path)[0]
    return (
        pl.scan_parquet(first, glob=False).collect_schema().names() if is_parquet(first) else None
    )


def _read_file(
    path: Path, names: Sequence[str] | None, wanted: Sequence[str] | None, text: Sequence[str]
) -> pl.DataFrame:
    """One file, by its form."""
    if is_parquet(path):
        return read_parquet(path, wanted)
    if path.suffix == ".npz":
        return matrix_frame(read_matrix_file(path))
    content = read_bytes(path)
    first = as_text(io.BytesIO(content).readline(), path).strip()
    if first.startswith("{") or path.name.removesuffix(".gz").endswith(_JSON):
        return _json_lines(content, path)
    if names is None and has_typed_header(first):
        return parse_atomic(as_text(content, path), path)
    frame = parse_delimited(content, path, names=_unique(names) if names else None)
    if names is None:
        _refuse_no_header(frame, path)
    return typed_columns(
        frame.select([name for name in frame.columns if not name.startswith(SKIPPED)]),
        keep_text=text,
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Names of all columns: those that are skipped get one of their own."""
    return [f"{SKIPPED}{at}" if name == SKIPPED else name for at, name in enumerate(names)]


def _refuse_no_header(frame: pl.DataFrame, path: AnyPath) -> None:
    """Refuse a file whose first line is numbers throughout: it has no header, and a rating would
    become a name."""
    try:
        [float(name) for name in frame.columns]
    except ValueError:
        return
    raise InputError(
        "the file has no header line",
        file=path,
        found=", ".join(frame.columns[:6]),
        expected="names of the columns",
        hint="Name them: --columns user_id,item_id,rating,timestamp (in Python columns=[…]; - skips one).",
    )


def _json_lines(content: bytes, path: AnyPath) -> pl.DataFrame:
    """One JSON object per line; a list of objects is refused by the words of what it should be."""
    try:
        return pl.read_ndjson(content, infer_schema_length=None)
    except POLARS_ERRORS as error:
        as_text(content, path)
        problem, hint = (
            f"not JSON lines ({short_reason(error)})",
            "Write one object per line, without a list around.",
        )
        raise InputError(
            problem, file=path, expected='{"user_id": …, "item_id": …} per line', hint=hint
        ) from error


def read_matrix_file(path: AnyPath) -> Matrix:
    """A CSR matrix as `scipy.sparse.save_npz` writes it; its arrays are checked, since a wrong
    index would crash."""
    arrays = read_arrays(path, ("indices", "indptr", "shape", "data", "format"))
    kind = arrays["format"].item()
    kind = kind.decode() if isinstance(kind, bytes) else kind
    if kind != "csr":
        raise InputError(
            "another sparse format",
            file=path,
            found=kind,
            expected="csr",
            hint="Save matrix.tocsr().",
        )
    try:
        n_users, n_items = (int(size) for size in arrays["shape"])
        matrix: Matrix = sparse.csr_array(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=(n_users, n_items)
        )
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        problem = f"damaged sparse matrix ({short_reason(error)})"
        raise InputError(
            problem, file=path, expected="what scipy.sparse.save_npz writes"
        ) from error
    return matrix


def write_matrix_file(path: Path, matrix: Matrix) -> None:
    """Write a CSR matrix for `scipy.sparse.load_npz`."""
    with path.open("wb") as stream:
        np.savez_compressed(
            stream,
            indices=matrix.indices,
            indptr=matrix.indptr,
            format=np.array(b"csr"),
            shape=np.array(matrix.shape),
            data=matrix.data,
        )


def write_dataset(data: Dataset, form: str, folder: Path) -> dict[str, int]:
    """Write a data set into a folder in the form that another tool reads; returns the rows of each
    file."""
    if form == "recbole":
        return write_atomic(data, folder)
    parts = {"logged": data.logged, **({} if data.uniform is None else {"uniform": data.uniform})}
    if form == "csr":
        for key, part in parts.items():
            write_matrix_file(folder / f"{key}.npz", part.to_matrix())
        for side, ids in (("user", data.user_ids), ("item", data.item_ids)):
            write_json(folder / f"{side}_ids.json", ids.ids.to_list())
        return {f"{key}.npz": len(part) for key, part in parts.items()}
    rated = {key: part.to_frame() for key, part in parts.items()}
    if form == "rectools":
        rated = {key: _rectools(frame) for key, frame in rated.items()}
    tables = {
        **rated,
        **{key: table for key in ("users", "items") if (table := getattr(data, key)) is not None},
    }
    suffix, write = _WRITERS[form]
    for key, table in tables.items():
        write(table, folder / f"{key}{suffix}")
    return {f"{key}{suffix}": table.height for key, table in tables.items()}


def _rectools(frame: pl.DataFrame) -> pl.DataFrame:
    """RecTools' columns: `weight`, and `datetime` from times in seconds, milli- or microseconds,
    told by their size."""
    frame = frame.rename({"rating": "weight"})
    if "timestamp" not in frame.columns:
        return frame
    largest = int(frame["timestamp"].abs().max() or 0)  # type: ignore[arg-type]
    unit: Literal["s", "ms", "us"] = "s" if largest < 10**11 else "ms" if largest < 10**14 else "us"
    return frame.with_columns(pl.from_epoch("timestamp", unit).alias("datetime")).drop("timestamp")


def _write_csv(table: pl.DataFrame, path: Path) -> None:
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    table.with_columns(pl.col(lists).list.join("|")).write_csv(path)


_WRITERS: dict[str, tuple[str, Callable[[pl.DataFrame, Path], None]]] = {
    "csv": (".csv", _write_csv),
    "parquet": (".parquet", lambda table, path: table.write_parquet(path)),
    "rectools": (".parquet", lambda table, path: table.write_parquet(path)),
    "jsonl": (".jsonl", lambda table, path: table.write_ndjson(path)),
}
