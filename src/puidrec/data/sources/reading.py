"""Files become tables, or one line says what is wrong and where.

Which form a file has is read from its content, not asked for: Parquet (one file, a folder of parts,
or a pattern), CSV and its kin with or without a header line, files with `::`, JSON lines, RecBole's
atomic files, SciPy's sparse matrices (`scipy.sparse.save_npz`). Gzip is known by its first bytes.
Delimited files are read as text throughout and typed by looking at whole columns, so that what a
column means never depends on its first hundred rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse

from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    POLARS_ERRORS,
    Origin,
    check_number,
    require_columns,
    short_reason,
)
from puidrec.data.tables import Matrix, matrix_frame
from puidrec.errors import InputError

AnyPath = str | PathLike[str]
Types = Mapping[str, type[pl.DataType]]
"""Columns to read: `pl.Int64`, `pl.Float64` or `pl.String`."""
IDS = ("user_id", "item_id")
SKIPPED = "-"
"""Stands for a column of a file without header that is not read."""
SEPARATORS = (",", ";", "\t", "|")
_ONE = "\x1f"  # stands for `::` while a table is read: made for separating fields
_BINARY = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "Zstandard (unpack it with zstd -d)",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""How files begin that are no text in UTF-8, and what they are."""
MAX_UNPACKED_RATIO = 200
"""Logs unpack to 3 to 30 times their size; gzip itself allows a thousand, Parquet any number."""
SMALL_TABLE = 2**28
"""Bytes that a Parquet table may take in memory however small its file is."""
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_REFUSALS: Mapping[type[OSError], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "cannot read it: a folder, not a file",
    PermissionError: "no permission to read",
}


@contextmanager
def input_errors(path: AnyPath) -> Iterator[None]:
    """Turn the system's refusal to open `path` into one line.

    Pipes and devices are no files: reading one may wait for ever, or fill all memory. Files that
    the system makes up (/proc/kmsg) may do so too; they say that they are empty, and no table is.
    """
    file = Path(path)
    try:
        if file.is_file():
            _require_content(file.stat().st_size > 0, file)
        elif not file.is_dir() and file.exists():
            raise InputError("not a file", file=file, found="a pipe, socket or device")
        yield
    except OSError as error:
        problem = _REFUSALS.get(type(error), f"cannot read ({error.strerror})")
        raise InputError(problem, file=file, hint="Check the path.") from error


def _require_content(content: object, path: AnyPath) -> None:
    if not content:
        raise InputError("the file is empty", file=path, expected="at least one row")


def data_folder(path: AnyPath | None, source: str) -> Path:
    """The folder of a named data set; refuses a path that is not given, is a file, or does not
    exist."""
    if path is None:
        raise InputError(
            f"{source} needs the folder of its files", hint="Give the path (--data-dir DIR)."
        )
    folder = Path(path)
    with input_errors(folder):
        if not folder.is_dir():
            own = f"Name the log itself: --logged {folder} (logged=…), with --columns if it has no "
            raise InputError(
                "not a folder" if folder.exists() else "no such folder",
                file=folder,
                expected=f"the folder of the {source} files",
                hint=own + "header." if source == "files" else "Check the path.",
            )
        next(folder.iterdir(), None)
    return folder


def has_file(path: Path) -> bool:
    """Whether there is something to open; no permission to look is an error, not an absence."""
    with input_errors(path):
        return path.exists()


def first_file(folder: Path, names: Sequence[str], source: str) -> Path:
    """The first of `names` that exists in `folder`."""
    for name in names:
        if has_file(folder / name):
            return folder / name
    raise InputError(f"no {source} files here", file=folder, expected=" or ".join(names))


def read_table(
    path: Path,
    *,
    names: Sequence[str] | None = None,
    wanted: Sequence[str] | None = None,
    text: Sequence[str] = (),
) -> pl.DataFrame:
    """A table of one or several files. Several must have the same columns.

    names: the columns of files without header, in order. wanted: all that is looked at, where a
    form can leave out the rest unread. text: columns of text files that stay text: numbers to be
    quoted in messages, or categories.
    """
    files = table_files(path)
    parts = [_read_file(file, names, wanted, text) for file in files]
    for file, part in zip(files[1:], parts[1:], strict=True):
        expected = f"those of {files[0].name}: {dict(parts[0].schema)}"
        if part.columns != parts[0].columns:
            raise InputError("other columns than the first part", file=file, expected=expected)
        for own, other in zip(parts[0].get_columns(), part.get_columns(), strict=True):
            if own.dtype != other.dtype and not (
                own.dtype.is_numeric() and other.dtype.is_numeric()
            ):
                raise InputError(
                    "parts of different types", file=file, column=own.name, expected=expected
                )
    return pl.concat(parts, how="vertical_relaxed")


def table_files(path: Path) -> list[Path]:
    """The files of one table: the path itself, the Parquet files of a folder, or what a pattern
    matches; sorted."""
    with input_errors(path):
        if not path.is_dir() and (path.exists() or not any(sign in path.name for sign in "*?[")):
            return [path]
        folder, pattern = (path, "*.parquet") if path.is_dir() else (path.parent, path.name)
        parts = sorted(part for part in folder.glob(pattern) if part.is_file())
    if not parts:
        problem = f"no file matches {pattern} in a folder"
        raise InputError(problem, file=path, expected="a file, or a folder of .parquet files")
    return parts


JSON_NAMES = (".jsonl", ".ndjson", ".json")
NAME_THEM = (
    "Name them: --columns user_id,item_id,rating,timestamp (in Python columns=[…]; - skips one)."
)


def _read_file(
    path: Path, names: Sequence[str] | None, wanted: Sequence[str] | None, text: Sequence[str]
) -> pl.DataFrame:
    """One file, by its form."""
    if is_parquet(path):
        return read_parquet(path, wanted)
    if path.suffix == ".npz":
        return matrix_frame(_read_matrix(path))
    content = read_bytes(path)
    first = as_text(io.BytesIO(content).readline(), path).strip()
    if first.startswith("{") or path.name.removesuffix(".gz").endswith(JSON_NAMES):
        return _json_lines(content, path)
    if names is None and all(_FIELD.fullmatch(field.strip()) for field in first.split("\t")):
        return _parse_atomic(content, path)
    if names is not None:  # skipped columns get a name of their own
        names = [f"{SKIPPED}{k}" if own == SKIPPED else own for k, own in enumerate(names)]
    frame = read_delimited(path, content=content, names=names)
    numbers = pl.Series(frame.columns).cast(pl.Float64, strict=False)
    if names is None and not numbers.null_count():
        found, hint = ", ".join(frame.columns[:6]), NAME_THEM
        raise InputError("the file has no header line", file=path, found=found, hint=hint)
    return typed_columns(frame.select(pl.exclude(f"^{SKIPPED}.*$")), keep_text=text)


def is_parquet(path: AnyPath) -> bool:
    """Whether a file claims to be Parquet, by its first bytes or its name."""
    with input_errors(path), Path(path).open("rb") as stream:
        return stream.read(4) == b"PAR1" or Path(path).suffix in (".parquet", ".pq")


def read_parquet(path: AnyPath, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A Parquet file, or those of `columns` that it has; a damaged one is refused."""
    with input_errors(path), Path(path).open("rb"):
        size = Path(path).stat().st_size
    try:
        table = pl.scan_parquet(Path(path), glob=False)
        present = [
            name for name in table.collect_schema().names() if columns is None or name in columns
        ]
        # from the end of the file: no row is unpacked
        rows = int(table.select(pl.len()).collect().item())
        most = max(MAX_UNPACKED_RATIO * size, SMALL_TABLE) // (8 * max(len(present), 1))
        if rows > most:
            raise InputError(
                f"unpacks to more than {MAX_UNPACKED_RATIO} times its size",
                file=path,
                found=f"{rows:,} rows",
                expected=f"at most {most:,} rows in a file of {size:,} bytes",
                hint="A log goes through --shards DIR, which takes little memory.",
            )
        return table.select(present).collect()
    except (*POLARS_ERRORS, OSError) as error:
        problem = f"damaged Parquet file ({short_reason(error)})"
        raise InputError(problem, file=path, expected="a whole Parquet file") from error


def read_bytes(path: AnyPath) -> bytes:
    """The content of a text file: unzipped if it is gzip, without a byte-order mark.

    Refuses what is empty or no text. Whether all of it is UTF-8 is seen by whoever parses it.
    """
    with input_errors(path):
        raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = _unzipped(raw, path)
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    _require_content(raw.strip(), path)
    found = next((told for magic, told in _BINARY.items() if raw.startswith(magic)), None)
    if found or b"\0" in raw[: raw.find(b"\n")]:
        raise InputError(
            "not a text file",
            file=path,
            found=found or "zero bytes in the first line, as in UTF-16",
            expected="UTF-8 text, as it is or in gzip",
            hint="Unpack it first, or save it as UTF-8.",
        )
    # lines that end as they did on old Macs
    return raw if b"\n" in raw else raw.replace(b"\r", b"\n")


def _unzipped(raw: bytes, path: AnyPath) -> bytes:
    """The content of a gzip file; refuses one that unpacks to far more than a table would."""
    limit = max(MAX_UNPACKED_RATIO * len(raw), 2**26)
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(limit + 1)
    except Exception as error:  # gzip, zlib and the end of a file have each an error of their own
        raise InputError("damaged gzip file", file=path, hint="Compress it again.") from error
    if len(content) > limit:
        problem = f"unpacks to more than {MAX_UNPACKED_RATIO} times its size"
        raise InputError(problem, file=path, hint="Unpack it by hand if you trust it.")
    return content


def as_text(raw: bytes, path: AnyPath) -> str:
    """Decode UTF-8; wrong bytes are named by row."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            "not utf-8 text",
            file=path,
            row=raw.count(b"\n", 0, error.start),
            found=f"byte 0x{raw[error.start]:02x}",
            hint="Save the file as UTF-8.",
        ) from error


def read_delimited(
    path: AnyPath,
    *,
    content: bytes | None = None,
    names: Sequence[str] | None = None,
    separator: str | None = None,
    quoted: bool = True,
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """A delimited file as text columns, empty cells missing.

    content: that of the file, where it was read before. Without `names`, the first line holds
    them. The separator, also `::`, is found in the first line when it is not given. Rows with more
    or fewer fields are refused. columns: those that must be there, and are read; else all.
    """
    raw = (read_bytes(path) if content is None else content).rstrip(b"\r\n")
    first = as_text(io.BytesIO(raw).readline(), path).rstrip("\r\n")
    separator = separator or _separator(first, spaces=names is not None)
    if len(separator) > 1:  # no reader of tables knows separators of two characters
        raw, first = raw.replace(separator.encode(), _ONE.encode()), first.replace(separator, _ONE)
        separator, quoted = _ONE, False
    known = list(names) if names else _header(first, separator, path)
    require_columns(pl.DataFrame(schema=known), tuple(columns or ()), Origin(path))
    wanted = list(columns or known)
    header = 0 if names else 1
    try:
        frame = (
            pl.scan_csv(
                raw,
                schema=dict.fromkeys(known, pl.String),
                has_header=False,
                skip_lines=header,
                separator=separator,
                quote_char='"' if quoted else None,
            )
            .select({*wanted, known[-1]})  # the last one tells of rows with too few fields
            .collect()
        )
    except POLARS_ERRORS as error:
        _refuse_ragged(as_text(raw, path), separator, len(known), header, quoted, path)
        problem = f"cannot read the table ({short_reason(error)})"
        raise InputError(problem, file=path, hint="Check its separator and quotes.") from error
    if frame[known[-1]].null_count():
        _refuse_ragged(as_text(raw, path), separator, len(known), header, quoted, path)
    return frame.select(wanted)


def _separator(line: str, spaces: bool) -> str:
    """What separates the fields of a line; spaces only where the caller says what the fields
    are."""
    best = max(SEPARATORS, key=line.count)
    if "::" in line and line.count("::") >= line.count(best):
        return "::"
    return " " if spaces and best not in line and " " in line else best


def _header(line: str, separator: str, path: AnyPath) -> list[str]:
    """The column names of the first line; refuses a name used twice."""
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    except csv.Error as error:
        raise InputError(f"cannot read the header line ({error})", file=path) from error
    if not names:
        raise InputError("the first line is blank", file=path, expected="the columns' names")
    repeated, hint = [name for name, n in Counter(names).items() if n > 1], "Rename one of them."
    if repeated:
        raise InputError("two columns of one name", file=path, column=repeated[0], hint=hint)
    return names


def _refuse_ragged(
    text: str, separator: str, width: int, header: int, quoted: bool, path: AnyPath
) -> None:
    """Name the first row whose number of fields is not `width`; run only once something looked
    wrong."""
    count, lines = 0, io.StringIO(text, newline="")
    rows = csv.reader(
        lines,
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=quoted,
    )
    try:
        for count, row in enumerate(rows, 1 - header):
            if len(row) != width:
                raise InputError(
                    "wrong number of fields",
                    file=path,
                    row=count,
                    found=f"{len(row)} fields",
                    expected=f"{width}, separated by {'::' if separator == _ONE else separator!r}",
                    hint="Put fields that contain the separator in double quotes.",
                )
    except csv.Error as error:
        if "field larger" not in str(error):
            raise InputError(f"broken quoting ({error})", file=path, row=count + 1) from error


def typed_columns(frame: pl.DataFrame, keep_text: Collection[str] = ()) -> pl.DataFrame:
    """Give text columns the type that all their cells have: integer (as written: `007` stays text),
    number, text."""
    return frame.with_columns(
        _typed(column)
        for column in frame.get_columns()
        if column.dtype == pl.String
        and column.name not in keep_text
        and column.null_count() < column.len()
    )


def _typed(column: pl.Series) -> pl.Series:
    if column.str.contains(_INTEGER).all():
        return column.cast(pl.Int64)
    if column.name in IDS:
        return column
    number = column.str.strip_chars().cast(pl.Float64, strict=False)
    return number if number.null_count() == column.null_count() else column


def read_ratings(
    path: AnyPath, names: Sequence[str] = INTERACTION_COLUMNS, **options: Any
) -> pl.DataFrame:
    """Rated pairs of a file without header; options of `read_delimited`. Ratings stay text, for
    errors to quote."""
    return typed_columns(read_delimited(path, names=names, **options), keep_text=("rating",))


def read_columns(path: AnyPath, types: Types, required: Sequence[str] = ()) -> pl.DataFrame:
    """The named columns of a CSV file with their types; a cell that is no number, or missing though
    `required`, is named."""
    frame, origin = read_delimited(path, columns=tuple(types)), Origin(path)
    return frame.with_columns(
        check_number(frame[name], origin, kind=kind, missing=name not in required)
        for name, kind in types.items()
        if kind != pl.String
    )


def _json_lines(content: bytes, path: AnyPath) -> pl.DataFrame:
    """One JSON object per line; a list of objects is refused by the words of what it should be."""
    try:
        return pl.read_ndjson(content, infer_schema_length=None)
    except POLARS_ERRORS as error:
        as_text(content, path)
        problem = f"not JSON lines ({short_reason(error)})"
        expected = '{"user_id": …, "item_id": …} per line, without a list around'
        raise InputError(problem, file=path, expected=expected) from error


TYPES = ("token", "token_seq", "float", "float_seq")
_FIELD = re.compile(r"[^\s:]+:[a-z_]+")
"""A field of RecBole's header: a name, a colon and a word."""


def _parse_atomic(content: bytes, path: AnyPath) -> pl.DataFrame:
    """RecBole's table under its header's names and types: ids as they are written, tokens as text,
    sequences as lists."""
    frame = read_delimited(path, content=content, separator="\t", quoted=False)
    columns: list[pl.Series] = []
    for column in frame.get_columns():
        name, _, kind = column.name.partition(":")
        if kind not in TYPES:
            expected = f"one of {', '.join(TYPES)}"
            raise InputError("unknown type", file=path, column=column.name, expected=expected)
        columns += _atomic_column(column.alias(name), kind, Origin(path))
    return pl.DataFrame(columns)


def _atomic_column(column: pl.Series, kind: str, origin: Origin) -> list[pl.Series]:
    if kind == "token" or column.name == "rating":  # a rating stays text, for errors to quote
        return [_typed(column) if column.name in IDS else column]
    if kind == "float":
        return [check_number(column, origin, missing=True)]
    lists = column.str.strip_chars().str.split(" ")
    if kind == "token_seq":
        return [lists.list.eval(pl.element().filter(pl.element() != ""))]
    width = int(np.max(lists.list.len().fill_null(0).to_numpy(), initial=0))
    cells = (lists.list.get(k, null_on_oob=True).alias(f"{column.name}_{k}") for k in range(width))
    return [check_number(cell, origin, missing=True) for cell in cells]


def read_arrays(
    path: AnyPath, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name. Pickled objects are refused: loading them would run code."""
    with input_errors(path):
        raw = Path(path).read_bytes()
    try:
        archive = np.load(io.BytesIO(raw), allow_pickle=False)
        files = archive.files
        arrays = {name: archive[name] for name in (*required, *optional) if name in files}
    except Exception as error:  # NumPy, zip and zlib have each errors of their own
        problem = f"damaged or unsafe .npz file ({short_reason(error)})"
        expected = "plain arrays, no pickled objects"
        raise InputError(problem, file=path, expected=expected) from error
    if missing := ", ".join(name for name in required if name not in arrays):
        raise InputError(f"missing array {missing}", file=path, found=", ".join(files))
    return arrays


def _read_matrix(path: AnyPath) -> Matrix:
    """A CSR matrix as `scipy.sparse.save_npz` writes it; its arrays are checked, since a wrong
    index would crash."""
    arrays = read_arrays(path, ("indices", "indptr", "shape", "data", "format"))
    name = arrays["format"].item() if arrays["format"].size == 1 else b""
    if name not in (b"csr", "csr"):
        hint = "Save matrix.tocsr()."
        raise InputError("another sparse format", file=path, found=repr(name), hint=hint)
    try:
        parts = arrays["data"], arrays["indices"], arrays["indptr"]
        matrix: Matrix = sparse.csr_array(parts, shape=tuple(arrays["shape"].tolist()))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        problem = f"damaged sparse matrix ({short_reason(error)})"
        raise InputError(problem, file=path) from error
    return matrix
