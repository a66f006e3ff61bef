"""Shared readers: files become tables, or one line says what is wrong and where.

Delimited files are read as text throughout and typed by looking at whole columns, so that what a
column means never depends on its first hundred rows. Gzip is known by its first bytes, not by the
file's name.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    POLARS_ERRORS,
    Origin,
    check_number,
    require_columns,
    short_reason,
)
from puidrec.errors import InputError

AnyPath = str | PathLike[str]
Types = Mapping[str, type[pl.DataType]]
"""Columns to read: `pl.Int64`, `pl.Float64` or `pl.String`."""
SEPARATORS = (",", ";", "\t", "|")
_ONE = "\x1f"
"""Stands for `::` while a table is read: the control character that was made for separating fields.
"""

UNPACK = "Unpack it first{}, or compress it with gzip."
_OTHER_FORMATS = {
    b"PAR1": ("Parquet", "Convert it."),
    b"PK\x03\x04": ("a zip archive", UNPACK.format(" (unzip)")),
    b"\x28\xb5\x2f\xfd": ("Zstandard", UNPACK.format(" (zstd -d)")),
    b"BZh91AY&SY": ("bzip2", UNPACK.format(" (bunzip2)")),
    b"\xfd7zXZ\0": ("xz", UNPACK.format(" (unxz)")),
    b"\x04\x22\x4d\x18": ("lz4", UNPACK.format(" (lz4 -d)")),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", UNPACK.format("")),
    b"\xff\xfe\0\0": ("UTF-32", "Save it as UTF-8."),
    b"\xff\xfe": ("UTF-16", "Save it as UTF-8."),
    b"\xfe\xff": ("UTF-16", "Save it as UTF-8."),
    b"\0\0\xfe\xff": ("UTF-32", "Save it as UTF-8."),
}
"""How files begin that are no text, what they are, and what to do with them."""
MAX_UNPACKED_RATIO = 200
"""Logs unpack to 3 to 30 times their size; gzip itself allows a thousand, Parquet any number."""
SMALL_TABLE = 2**28
"""Bytes that a Parquet table may take in memory however small its file is."""
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


@contextmanager
def input_errors(path: AnyPath) -> Iterator[None]:
    """Turn the operating system's refusal to open `path` into one line; pipes and devices are
    refused."""
    _refuse_endless(Path(path))
    try:
        yield
    except FileNotFoundError as error:
        raise InputError("no such file", file=path, hint="Check the path.") from error
    except IsADirectoryError as error:
        raise InputError(
            "cannot read it", file=path, found="a folder", expected="a file"
        ) from error
    except PermissionError as error:
        raise InputError(
            "no permission to read", file=path, hint="Ask its owner for read access."
        ) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"cannot read ({reason})", file=path, hint="Check the path.") from error


def _refuse_endless(path: Path) -> None:
    """Pipes and devices are no files: reading one may wait for ever, or fill all memory.

    Files that the system makes up (/proc/kmsg) may do so too. They say that they are empty, and no
    table is.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):
        return  # reported when it is opened
    mode = found.st_mode
    if stat.S_ISREG(mode) and not found.st_size:
        raise _empty(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(
            "not a file",
            file=path,
            found="a pipe, socket or device",
            expected="a file",
            hint="Copy it.",
        )


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
            problem = "not a folder" if folder.exists() else "no such folder"
            if source == "files" and folder.exists():
                raise InputError(
                    problem,
                    file=folder,
                    found="a file",
                    expected="a folder with logged.csv or logged.parquet",
                    hint=f"Name the log itself: --logged {folder} (logged=…), with --columns if "
                    "it has no header.",
                )
            raise InputError(
                problem,
                file=folder,
                expected=f"the folder of the {source} files",
                hint="Check the path.",
            )
        next(folder.iterdir(), None)
    return folder


def has_file(path: Path) -> bool:
    """Whether there is something to open at `path`; no permission to look is an error, not an
    absence."""
    with input_errors(path):
        return path.exists()


def first_file(folder: Path, names: Sequence[str], source: str) -> Path:
    """The first of `names` that exists in `folder`; when none does, the message names all that were
    looked for."""
    for name in names:
        if has_file(folder / name):
            return folder / name
    raise InputError(
        f"no {source} files here",
        file=folder,
        expected=" or ".join(names),
        hint="Check the folder and the file names.",
    )


def read_bytes(path: AnyPath, encoding: str = "utf-8") -> bytes:
    """The content of a text file in UTF-8: unzipped if it is gzip, without a byte-order mark.

    Refuses what is empty or no text. Whether all of it is UTF-8 is seen by whoever parses it.
    """
    with input_errors(path):
        raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = _unzipped(raw, path)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(
                "damaged gzip file", file=path, hint="Download or compress it again."
            ) from error
    if not raw.strip(b"\xef\xbb\xbf\r\n\t "):
        raise _empty(path)
    unlike = [told for magic, told in _OTHER_FORMATS.items() if raw.startswith(magic)]
    if b"\0" in raw[: raw.find(b"\n")]:
        unlike.append(("zero bytes in the first line", "If it is UTF-16, save it as UTF-8."))
    if unlike:
        found, hint = unlike[0]
        expected = f"{encoding} text"
        raise InputError("not a text file", file=path, found=found, expected=expected, hint=hint)
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\n" not in raw:
        raw = raw.replace(b"\r", b"\n")  # lines that end as they did on old Macs
    return raw if encoding == "utf-8" else raw.decode(encoding).encode()


def _empty(path: AnyPath) -> InputError:
    return InputError(
        "the file is empty", file=path, expected="at least one row", hint="Check the path."
    )


def _unzipped(raw: bytes, path: AnyPath) -> bytes:
    """The content of a gzip file; refuses one that unpacks to far more than a table would."""
    limit, chunks, size = max(MAX_UNPACKED_RATIO * len(raw), 2**26), [], 0
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
        while chunk := stream.read(2**20):
            size += len(chunk)
            if size > limit:
                problem = f"unpacks to more than {MAX_UNPACKED_RATIO} times its size"
                raise InputError(problem, file=path, hint="Unpack it by hand if you trust it.")
            chunks.append(chunk)
    return b"".join(chunks)


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
            expected="utf-8 characters",
            hint="Save the file as UTF-8.",
        ) from error


def read_delimited(path: AnyPath, *, encoding: str = "utf-8", **options: Any) -> pl.DataFrame:
    """A delimited file as text columns; options are those of `parse_delimited`."""
    return parse_delimited(read_bytes(path, encoding), path, **options)


def parse_delimited(
    raw: bytes,
    path: AnyPath,
    *,
    names: Sequence[str] | None = None,
    separator: str | None = None,
    quoted: bool = True,
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """The content of a delimited file as text columns, empty cells missing.

    Without `names`, the first line holds them. The separator, also `::`, is found in the first line
    when it is not given. Rows with more or fewer fields are refused. columns: those that must be
    there, and are read; else all.
    """
    raw = raw.rstrip(b"\r\n")
    first = as_text(io.BytesIO(raw).readline(), path).rstrip("\r\n")
    separator = separator or _separator(first, spaces=names is not None)
    if len(separator) > 1:  # no reader of tables knows separators of two characters
        raw, first = raw.replace(separator.encode(), _ONE.encode()), first.replace(separator, _ONE)
        separator, quoted = _ONE, False
    known = list(names) if names else _header(first, separator, path)
    require_columns(pl.DataFrame(schema=known), tuple(columns or ()), Origin(path))
    wanted = list(columns or known)
    table = partial(
        _refuse_ragged, raw, separator, len(known), path, header=names is None, quoted=quoted
    )
    try:
        frame = (
            pl.scan_csv(
                raw,
                schema=dict.fromkeys(known, pl.String),
                has_header=False,
                skip_lines=0 if names else 1,
                separator=separator,
                quote_char='"' if quoted else None,
            )
            .select({*wanted, known[-1]})  # the last one tells of rows with too few fields
            .collect()
        )
    except POLARS_ERRORS as error:
        table()
        problem = f"cannot read the table ({short_reason(error)})"
        raise InputError(problem, file=path, hint="Check its separator and quotes.") from error
    if frame[known[-1]].null_count():
        table()
    return frame.select(wanted)


def read_columns(path: AnyPath, types: Types, required: Sequence[str] = ()) -> pl.DataFrame:
    """The named columns of a CSV file with their types; a cell that is no number, or missing though
    `required`, is named."""
    frame, hint = read_delimited(path, columns=tuple(types)), "Correct or remove the row."
    return frame.with_columns(
        check_number(frame[name], Origin(path), hint, kind=kind, missing=name not in required)
        for name, kind in types.items()
        if kind != pl.String
    )


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
    except (csv.Error, StopIteration) as error:
        raise InputError(
            f"cannot read the header line ({error})", file=path, expected="column names"
        ) from error
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise InputError(
            "two columns of one name", file=path, column=repeated, hint="Rename one of them."
        )
    return names


def _refuse_ragged(
    raw: bytes, separator: str, width: int, path: AnyPath, *, header: bool, quoted: bool
) -> None:
    """Name the first row whose number of fields is not `width`, or that is no UTF-8; run only once
    something looked wrong."""
    lines, count = io.StringIO(as_text(raw, path), newline=""), 0
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    rows = csv.reader(lines, delimiter=separator, quoting=quoting, strict=quoted)
    try:
        for count, row in enumerate(rows, 0 if header else 1):
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
        if "field larger" in str(error):
            return
        hint = "Close or double the quotes."
        raise InputError(
            f"broken quoting ({error})", file=path, row=count + 1, hint=hint
        ) from error


def typed_columns(frame: pl.DataFrame, keep_text: Collection[str] = ()) -> pl.DataFrame:
    """Give text columns the type that all their cells have: integer (as written: `007` stays text),
    number, text."""
    texts = [
        column
        for column in frame.get_columns()
        if column.dtype == pl.String and column.name not in keep_text
    ]
    return frame.with_columns(
        [_typed(column) for column in texts if column.null_count() < column.len()]
    )


def read_ratings(
    path: AnyPath, names: Sequence[str] = INTERACTION_COLUMNS, **options: Any
) -> pl.DataFrame:
    """Rated pairs of a file without header; options of `read_delimited`. Ratings stay text, for
    errors to quote."""
    return typed_columns(read_delimited(path, names=names, **options), keep_text=("rating",))


def _typed(column: pl.Series) -> pl.Series:
    if column.str.contains(_INTEGER).all():
        return column.cast(pl.Int64)
    if column.name in ("user_id", "item_id"):
        return column
    number = column.str.strip_chars().cast(pl.Float64, strict=False)
    return number if number.null_count() == column.null_count() else column


def read_parquet(path: AnyPath, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A Parquet file, or those of `columns` that it has; a damaged one is refused."""
    with input_errors(path), Path(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
    try:
        table = pl.scan_parquet(Path(path), glob=False)
        present = [
            name for name in table.collect_schema().names() if columns is None or name in columns
        ]
        rows = int(
            table.select(pl.len()).collect().item()
        )  # from the end of the file: no row is unpacked
        most = max(MAX_UNPACKED_RATIO * size, SMALL_TABLE) // (8 * max(len(present), 1))
        if rows > most:
            raise InputError(
                f"unpacks to more than {MAX_UNPACKED_RATIO} times its size",
                file=path,
                found=f"{rows:,} rows",
                expected=f"at most {most:,} rows in a file of {size:,} bytes",
                hint="Is it what you meant to read? A log goes through --shards DIR, which takes "
                "little memory.",
            )
        return table.select(present).collect()
    except (*POLARS_ERRORS, OSError) as error:
        problem, hint = (
            f"damaged Parquet file ({short_reason(error)})",
            "Write or download it again.",
        )
        raise InputError(problem, file=path, expected="a whole Parquet file", hint=hint) from error


def is_parquet(path: AnyPath) -> bool:
    """Whether a file claims to be Parquet, by its first bytes or its name."""
    with input_errors(path), Path(path).open("rb") as stream:
        return stream.read(4) == b"PAR1" or Path(path).suffix in (".parquet", ".pq")


def read_matrix(path: AnyPath) -> np.ndarray:
    """A matrix of numbers in plain text, one row per line (float64); refuses ragged rows and what
    is no number."""
    rows = [line.split() for line in as_text(read_bytes(path), path).splitlines() if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(
                "wrong number of values",
                file=path,
                row=number,
                found=len(row),
                expected=f"{len(rows[0])} as in row 1",
            )
    cells = pl.Series("cell", [cell for row in rows for cell in row], dtype=pl.String)
    values = cells.cast(pl.Float64, strict=False)
    bad = values.is_null() | ~values.is_finite().fill_null(False)
    if bad.any():
        at, column = divmod(int(bad.arg_true()[0]), len(rows[0]))
        found = rows[at][column]
        raise InputError(
            "not a number",
            file=path,
            row=at + 1,
            column=str(column + 1),
            found=found,
            expected="a finite number",
        )
    return values.to_numpy().reshape(len(rows), -1)


def read_arrays(
    path: AnyPath, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name. Pickled objects are refused: loading them would run code."""
    origin = Origin(path)
    with input_errors(path):
        raw = Path(path).read_bytes()
    try:
        archive = np.load(io.BytesIO(raw), allow_pickle=False)
        files = getattr(archive, "files", [])
        arrays = {name: archive[name] for name in (*required, *optional) if name in files}
    except (
        ValueError,
        OSError,
        EOFError,
        KeyError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise origin.error(
            f"damaged or unsafe .npz file ({short_reason(error)})",
            expected="plain arrays, no pickled objects",
            hint="Download or convert it again.",
        ) from error
    missing = [name for name in required if name not in arrays]
    if missing:
        found, expected = ", ".join(files) or "no arrays", f"arrays {', '.join(required)}"
        raise origin.error(f"missing array {', '.join(missing)}", found=found, expected=expected)
    return arrays
