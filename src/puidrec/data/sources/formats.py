"""Tables in whatever form a log comes: which form a file has is read from its content, not asked
for.

Parquet (one file, a folder of parts, or a pattern), CSV and its kin with or without a header line,
files with `::`, JSON lines, RecBole's atomic files, and SciPy's sparse matrices
(`scipy.sparse.save_npz`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy import sparse

from puidrec.atomic import write_json, write_text
from puidrec.data.dataset import Dataset
from puidrec.data.schema import (
    POLARS_ERRORS,
    Origin,
    check_number,
    reject,
    require_columns,
    short_reason,
)
from puidrec.data.sources.reading import (
    AnyPath,
    as_text,
    data_folder,
    input_errors,
    is_parquet,
    parse_delimited,
    read_arrays,
    read_bytes,
    read_delimited,
    read_parquet,
    typed_columns,
)
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


def score_file(path: str | PathLike[str], data: Dataset) -> pl.DataFrame:
    """A CSV or Parquet file of scores (user_id, item_id, score) or of recommendations (rank)."""
    if is_parquet(path):
        return read_parquet(path)
    frame = read_delimited(path)
    ids = {"user_id": data.user_ids, "item_id": data.item_ids}
    numbers = tuple(name for name in ("score", "rank") if name in frame.columns)
    columns = (*ids, *(numbers or ("score",)))
    require_columns(frame, columns, Origin(path))
    text = [name for name, own in ids.items() if own.ids.dtype == pl.String]
    return typed_columns(frame.select(columns), text)


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
        hint="Name them: --columns user_id,item_id,rating,timestamp (in Python columns=[…]; - "
        "skips one).",
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


def write_dataset(data: Dataset, form: str, folder: Path) -> dict[str, int]:
    """Write a data set into a folder in the form that another tool reads; returns the rows of each
    file."""
    if form == "recbole":
        return write_atomic(data, folder)
    parts = {"logged": data.logged, **({} if data.uniform is None else {"uniform": data.uniform})}
    if form == "csr":
        for key, part in parts.items():
            sparse.save_npz(folder / f"{key}.npz", sparse.csr_matrix(part.to_matrix()))
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


TYPED = "Correct the cell or the type in the header."
TYPES = ("token", "token_seq", "float", "float_seq")
_FIELD = re.compile(r"[^\s:]+:[a-z_]+")
IDS = ("user_id", "item_id")
UNIFORM = "uniform"
"""Stem of the file of uniform rows, which RecBole itself knows nothing of."""


def load(path: AnyPath | None, **options: Any) -> Dataset:
    """Load the one RecBole data set of a folder; options are those of `files`, where the log's
    ratings need a scale."""
    from puidrec.data.sources import files  # which reads through this module

    folder = data_folder(path, "recbole")
    with input_errors(folder):
        logs = sorted(folder.glob("*.inter"))
    given = Path(options["logged"]) if "logged" in options else None
    logs = [given] if given is not None else [file for file in logs if file.stem != UNIFORM]
    if len(logs) != 1:
        found = ", ".join(file.name for file in logs) or "none"
        hint = "Name the files: --data files --logged X.inter --users X.user --items X.item."
        raise InputError(
            "no single .inter file", file=folder, found=found, expected="one", hint=hint
        )
    sides = {key: logs[0].with_suffix(f".{key[:-1]}") for key in ("users", "items")}
    sides["uniform"] = folder / f"{UNIFORM}.inter"
    present = {key: file for key, file in sides.items() if file.exists()}
    return files.load(**{"logged": logs[0], **present, "unknown_ids": "keep", **options})


def has_typed_header(line: str) -> bool:
    """Whether a first line is a header of RecBole's kind: every field is a name, a colon and a
    word."""
    return all(_FIELD.fullmatch(field.strip()) for field in line.split("\t"))


def parse_atomic(text: str, path: AnyPath) -> pl.DataFrame:
    """A table under its header's names and types: ids as they are written, tokens as text,
    sequences as lists."""
    header = [field.strip().split(":") for field in text.partition("\n")[0].split("\t")]
    unknown = next((f"{name}:{kind}" for name, kind in header if kind not in TYPES), None)
    if unknown is not None:
        raise InputError(
            "unknown type of a column",
            file=path,
            found=unknown,
            expected=f"one of {', '.join(TYPES)}",
        )
    frame = parse_delimited(text.encode(), path, separator="\t", quoted=False)
    frame = frame.rename(dict(zip(frame.columns, (name for name, _ in header), strict=True)))
    columns = [_column(frame[name], kind, Origin(path)) for name, kind in header]
    return pl.DataFrame([column for some in columns for column in some])


def _column(column: pl.Series, kind: str, origin: Origin) -> list[pl.Series]:
    if kind == "token" or column.name == "rating":  # a rating stays text, for errors to quote
        return [typed_columns(column.to_frame()).to_series() if column.name in IDS else column]
    if kind == "token_seq":
        return [
            column.str.strip_chars()
            .str.split(" ")
            .list.eval(pl.element().filter(pl.element() != ""))
        ]
    if kind == "float":
        return [check_number(column, origin, TYPED, missing=True)]
    lists = column.str.strip_chars().str.split(" ")
    width = int(np.asarray(lists.list.len().fill_null(0)).max(initial=0))
    parts = lists.list.to_struct(fields=[f"{column.name}_{k}" for k in range(width)])
    found = parts.struct.unnest().get_columns()
    return [check_number(part, origin, TYPED, missing=True) for part in found]


def atomic_text(frame: pl.DataFrame, origin: Origin) -> str:
    """A table as an atomic file; refuses text that its form cannot hold (tabs, line ends, spaces
    inside a list)."""
    kinds, cells = [], []
    for column in frame.get_columns():
        numbers, lists = (
            column.dtype.is_numeric() and column.name not in IDS,
            isinstance(column.dtype, pl.List),
        )
        kinds.append(f"{column.name}:{'float' if numbers else 'token_seq' if lists else 'token'}")
        texts = column.list.eval(pl.element().cast(pl.String)) if lists else column.cast(pl.String)
        _refuse_unfit(
            texts.explode() if lists else texts, r"[\t\r\n ]" if lists else r"[\t\r\n]", origin
        )
        cells.append((texts.list.join(" ") if lists else texts).fill_null(""))
    rows = pl.DataFrame(cells).select(pl.concat_str(pl.all(), separator="\t")).to_series()
    return "\n".join(["\t".join(kinds), *rows.to_list()]) + "\n"


def _refuse_unfit(texts: pl.Series, unfit: str, origin: Origin) -> None:
    bad = texts.str.contains(unfit).fill_null(False)
    expected, hint = (
        "text without tabs and line ends (no spaces in lists)",
        "Rename it, or choose another format.",
    )
    reject(bad, texts, "a .inter file cannot hold this text", expected, hint, origin)


def write_atomic(data: Dataset, folder: Path) -> dict[str, int]:
    """Write a data set as `log.inter`, `log.user`, `log.item` (and `uniform.inter`); returns the
    rows of each file."""
    uniform = None if data.uniform is None else data.uniform.to_frame()
    tables = {
        "log.inter": data.logged.to_frame(),
        f"{UNIFORM}.inter": uniform,
        "log.user": data.users,
        "log.item": data.items,
    }
    given = {name: table for name, table in tables.items() if table is not None}
    for name, table in given.items():
        write_text(folder / name, atomic_text(table, Origin(name)))
    return {name: table.height for name, table in given.items()}
