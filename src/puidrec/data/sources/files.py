"""Your own data, in any form that `formats` reads, from four paths or from one folder.

A folder is searched for `logged`, `uniform`, `users` and `items`, each as `.parquet`, `.csv` or
`.csv.gz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import shard_log
from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    OPTIONAL_COLUMNS,
    OTHER_NAMES,
    Duplicates,
    Origin,
    refuse_near_rating,
    require_columns,
    with_our_names,
)
from puidrec.data.sources.formats import SKIPPED, column_names, read_table
from puidrec.data.sources.reading import AnyPath, data_folder, has_file
from puidrec.data.tables import OverlapRule, UnknownIds
from puidrec.errors import InputError

SUFFIXES = (".parquet", ".csv", ".csv.gz")
COLUMNS = (*INTERACTION_COLUMNS, *OPTIONAL_COLUMNS)
RATED = ("logged", "uniform")
QUOTED = ("rating", "propensity")
"""Numbers that stay text until they are checked, so that a message can quote them."""


def load(
    path: AnyPath | None = None,
    *,
    logged: AnyPath | None = None,
    uniform: AnyPath | None = None,
    users: AnyPath | None = None,
    items: AnyPath | None = None,
    scale: tuple[float, float] | None = None,
    liked_from: float | None = None,
    duplicates: Duplicates = "error",
    unknown_ids: UnknownIds = "error",
    columns: Mapping[str, str] | Sequence[str] | None = None,
    multi_valued: Sequence[str] = (),
    categorical: Sequence[str] = (),
    shards: AnyPath | None = None,
    overlap: OverlapRule = "drop",
) -> Dataset:
    """Load the caller's own tables; a path given by name wins over what the folder holds.

    Each may be Parquet (also a folder of parts, or a pattern), CSV and its kin, JSON lines,
    RecBole's atomic files or a CSR matrix.
    columns: our name → the files' name, such as `{"user_id": "uid", "rating": "stars"}`; or, for
    logs without a header line, the names of their columns in order, `-` for one to skip.
    multi_valued: columns of the side tables whose text is a list, `drama|war`; never guessed.
    categorical: columns of numbers that are names of things, such as a postcode.
    shards: a folder for a log larger than memory (Parquet), which is sorted into it once.
    overlap: whether uniform rows whose pair is in the log are dropped or kept.
    """
    given = {"logged": logged, "uniform": uniform, "users": users, "items": items}
    named = {"multi_valued": multi_valued, "categorical": categorical}
    _require_kinds({**given, "shards": shards}, columns or {}, named)
    files = _find_files(path, given)
    header = None if columns is None or isinstance(columns, Mapping) else _checked_header(columns)
    names = _checked_names(columns if isinstance(columns, Mapping) else {})
    tables = {
        key: _rated(file, names, header, likes=key == "logged")
        if key in RATED
        else _side(file, key, names, multi_valued, categorical)
        for key, file in files.items()
        if key != "logged" or shards is None
    }
    _require_side_columns(tables, (*multi_valued, *categorical))

    def build(logged: pl.DataFrame) -> Dataset:
        return Dataset.from_frame(
            **{**tables, "logged": logged},
            scale=scale,
            liked_from=liked_from,
            duplicates=duplicates,
            unknown_ids=unknown_ids,
            overlap=overlap if shards is None else "keep",
            name="files",
            origins=files,
            notes={"files": {key: file.name for key, file in files.items()}},
        )

    if shards is None:
        return build(tables["logged"])
    _require_as_written(files["logged"], liked_from, duplicates, header)
    return shard_log(files["logged"], shards, build, scale=scale, names=names, overlap=overlap)


def _require_kinds(paths: Mapping[str, Any], renaming: Any, names: Mapping[str, Any]) -> None:
    """Refuse options of the wrong kind: they may come from a command line or a file of settings."""
    for key, found in paths.items():
        if not isinstance(found, str | PathLike | None):
            raise InputError(f"option {key} is no path", found=found, expected="the path of a file")
    listed = renaming.values() if isinstance(renaming, Mapping) else renaming
    if (
        isinstance(renaming, str)
        or not isinstance(renaming, Mapping | Sequence)
        or not _all_text(listed)
    ):
        expected = (
            "ours = theirs, {user_id = 'uid'}, or the names of all columns, ['user_id', 'item_id']"
        )
        raise InputError("option columns is no renaming", found=renaming, expected=expected)
    for key, found in names.items():
        if isinstance(found, str) or not isinstance(found, Sequence) or not _all_text(found):
            raise InputError(
                f"option {key} is no list of columns",
                found=found,
                expected="a list of names, ['genre']",
            )


def _all_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _find_files(path: AnyPath | None, given: Mapping[str, AnyPath | None]) -> dict[str, Path]:
    """The files of the tables: those given by name, then those of the folder; there must be a
    log."""
    files = {key: Path(file) for key, file in given.items() if file is not None}
    if path is not None:
        files = {**_in_folder(data_folder(path, "files")), **files}
    if "logged" not in files:
        raise InputError(
            "no log of interactions",
            file=path,
            expected=" or ".join(f"logged{suffix}" for suffix in SUFFIXES),
            hint="Name the file with logged=PATH (--logged PATH).",
        )
    return files


def _in_folder(folder: Path) -> dict[str, Path]:
    """The tables a folder holds; two forms of one table are refused, for they may differ."""
    found: dict[str, Path] = {}
    for key in ("logged", "uniform", "users", "items"):
        present = [
            folder / f"{key}{suffix}" for suffix in SUFFIXES if has_file(folder / f"{key}{suffix}")
        ]
        if len(present) > 1:
            names = ", ".join(file.name for file in present)
            hint = "Remove one of them."
            raise InputError(
                f"two files for {key}", file=folder, found=names, expected="one", hint=hint
            )
        if present:
            found[key] = present[0]
    return found


def _checked_names(columns: Mapping[str, str]) -> dict[str, str]:
    """The renaming, from the files' names to ours."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InputError(
            "unknown column to rename",
            found=unknown[0],
            expected=f"one of {', '.join(COLUMNS)}",
            hint="Write it as ours=theirs, for example user_id=uid.",
        )
    return {theirs: ours for ours, theirs in columns.items()}


def _checked_header(columns: Sequence[str]) -> list[str]:
    """The names of the columns of files without a header line."""
    names = [name.strip() for name in columns]
    unknown = next((name for name in names if name not in (*COLUMNS, *OTHER_NAMES, SKIPPED)), None)
    twice = next((name for name in names if name != SKIPPED and names.count(name) > 1), None)
    if unknown is not None or twice is not None:
        raise InputError(
            "unknown name of a column" if unknown is not None else "a column was named twice",
            found=unknown if unknown is not None else twice,
            expected=f"{', '.join(COLUMNS)}, or {SKIPPED} for a column to skip",
        )
    return names


def _require_as_written(
    log: Path, liked_from: float | None, duplicates: Duplicates, header: Sequence[str] | None
) -> None:
    """Refuse options that would change the rows of a log on disk: it is used as the file has it."""
    if liked_from is not None:
        raise InputError(
            "a log on disk keeps its ratings",
            found=f"liked_from={liked_from}",
            hint="Write 0 and 1 into the file, or leave shards out.",
        )
    if duplicates != "error":
        raise InputError(
            "in a log on disk every pair must occur once",
            found=f"duplicates={duplicates}",
            hint="Remove repeats before, or leave shards out.",
        )
    if header is not None:
        raise InputError(
            "a log on disk is read as Parquet, which names its columns",
            file=log,
            hint="Rename them with ours=theirs, or leave shards out.",
        )


def _rated(
    path: Path, names: Mapping[str, str], header: Sequence[str] | None, *, likes: bool
) -> pl.DataFrame:
    """A table of rated pairs under our column names, without other columns. likes: it may do
    without ratings."""
    ours = {**{name: name for name in COLUMNS}, **OTHER_NAMES, **names}
    text = [theirs for theirs, name in ours.items() if name in QUOTED]
    frame = read_table(path, names=header, wanted=(*COLUMNS, *OTHER_NAMES, *names), text=text)
    frame = with_our_names(_renamed(frame, names))
    require_columns(frame, INTERACTION_COLUMNS[: 2 if likes else 3], Origin(path))
    if "rating" not in frame.columns and likes:
        refuse_near_rating(column_names(path) or frame.columns, Origin(path))
    return frame.select([name for name in frame.columns if name in COLUMNS])


def _side(
    path: Path,
    key: str,
    names: Mapping[str, str],
    multi_valued: Sequence[str],
    categorical: Sequence[str],
) -> pl.DataFrame:
    """A table of users or items under our column names; lists and categories as the caller says."""
    frame = _renamed(read_table(path, text=(*multi_valued, *categorical)), names)
    require_columns(frame, (f"{key[:-1]}_id",), Origin(path))
    listed = [
        name for name in multi_valued if name in frame.columns and frame[name].dtype == pl.String
    ]
    named = [
        name for name in categorical if name in frame.columns and frame[name].dtype.is_integer()
    ]
    return frame.with_columns(
        *[pl.col(name).str.split("|") for name in listed],
        *[pl.col(name).cast(pl.String) for name in named],
    )


def _renamed(frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Rename the columns the caller named; a column that already has our name is dropped."""
    present = {
        theirs: ours for theirs, ours in names.items() if theirs in frame.columns and theirs != ours
    }
    return frame.drop(set(present.values()) & set(frame.columns) - set(present)).rename(present)


def _require_side_columns(tables: Mapping[str, pl.DataFrame], wanted: Sequence[str]) -> None:
    """Refuse a `multi_valued` or `categorical` column that no side table has: it is most likely
    misspelt."""
    held = {name for key in ("users", "items") if key in tables for name in tables[key].columns}
    missing = [name for name in wanted if name not in held]
    if missing:
        found = ", ".join(sorted(held)) or "no columns"
        raise InputError("no such column in the side tables", column=missing[0], found=found)
