"""Your own data: CSV (`,` `;` tab or `|`, also gzipped) or Parquet, from four paths or from one folder.

A folder is searched for `logged`, `uniform`, `users` and `items`, each as `.parquet`, `.csv` or `.csv.gz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from puidrec.data.dataset import Dataset, UnknownIds
from puidrec.data.on_disk import shard_log
from puidrec.data.schema import INTERACTION_COLUMNS, OPTIONAL_COLUMNS, Duplicates, Origin, require_columns
from puidrec.data.sources.reading import (
    AnyPath,
    data_folder,
    has_file,
    is_parquet,
    read_delimited,
    read_parquet,
    typed_columns,
)
from puidrec.errors import InputError

SUFFIXES = (".parquet", ".csv", ".csv.gz")
COLUMNS = (*INTERACTION_COLUMNS, *OPTIONAL_COLUMNS)


def load(
    path: AnyPath | None = None,
    *,
    logged: AnyPath | None = None,
    uniform: AnyPath | None = None,
    users: AnyPath | None = None,
    items: AnyPath | None = None,
    scale: tuple[float, float] | None = None,
    duplicates: Duplicates = "error",
    unknown_ids: UnknownIds = "error",
    columns: Mapping[str, str] | None = None,
    multi_valued: Sequence[str] = (),
    categorical: Sequence[str] = (),
    shards: AnyPath | None = None,
) -> Dataset:
    """Load the caller's own tables; a path given by name wins over what the folder holds.

    columns: our name → the files' name, such as `{"user_id": "uid", "rating": "stars"}`.
    multi_valued: columns of the side tables whose text is a list, `drama|war`; they are never guessed.
    categorical: columns of numbers that are names of things, such as a postcode.
    shards: a folder for a log larger than memory (Parquet): it is sorted there once and stays on disk.
    """
    given = {"logged": logged, "uniform": uniform, "users": users, "items": items}
    named = {"multi_valued": multi_valued, "categorical": categorical}
    _require_kinds({**given, "shards": shards}, columns or {}, named)
    files = {key: Path(file) for key, file in given.items() if file is not None}
    if path is not None:
        files = {**_in_folder(data_folder(path, "files")), **files}
    if "logged" not in files:
        raise InputError(
            "no log of interactions", file=path, expected=" or ".join(f"logged{suffix}" for suffix in SUFFIXES),
            hint="Name the file with logged=PATH (--logged PATH).",
        )  # fmt: skip
    names = _checked_names(columns or {})
    in_memory = {key: file for key, file in files.items() if key != "logged" or shards is None}
    tables = {key: _table(file, key, names, multi_valued, categorical) for key, file in in_memory.items()}
    _require_side_columns(tables, (*multi_valued, *categorical))

    def build(logged: pl.DataFrame) -> Dataset:
        return Dataset.from_frame(
            **{**tables, "logged": logged},
            scale=scale,
            duplicates=duplicates,
            unknown_ids=unknown_ids,
            name="files",
            origins=files,
            notes={"files": {key: file.name for key, file in files.items()}},
        )

    if shards is None:
        return build(tables["logged"])
    if duplicates != "error":
        raise InputError("in a log on disk every pair must occur once", found=f"duplicates={duplicates}",
                         hint="Remove repeats before, or leave shards out.")  # fmt: skip
    return shard_log(files["logged"], shards, build, scale=scale, names=names)


def _require_kinds(paths: Mapping[str, Any], renaming: Any, names: Mapping[str, Any]) -> None:
    """Refuse options of the wrong kind: they may come from a command line or a file of settings."""
    for key, found in paths.items():
        if not isinstance(found, str | PathLike | None):
            raise InputError(f"option {key} is no path", found=found, expected="the path of a file")
    if not isinstance(renaming, Mapping) or not all(isinstance(theirs, str) for theirs in renaming.values()):
        raise InputError("option columns is no renaming", found=renaming, expected="ours = theirs, {user_id = 'uid'}")
    for key, found in names.items():
        if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(n, str) for n in found):
            raise InputError(f"option {key} is no list of columns", found=found, expected="a list of names, ['genre']")


def _in_folder(folder: Path) -> dict[str, Path]:
    """The tables a folder holds; two forms of one table are refused, for they may differ."""
    found: dict[str, Path] = {}
    for key in ("logged", "uniform", "users", "items"):
        present = [folder / f"{key}{suffix}" for suffix in SUFFIXES if has_file(folder / f"{key}{suffix}")]
        if len(present) > 1:
            names = ", ".join(file.name for file in present)
            hint = "Remove one of them."
            raise InputError(f"two files for {key}", file=folder, found=names, expected="one", hint=hint)
        if present:
            found[key] = present[0]
    return found


def _checked_names(columns: Mapping[str, str]) -> dict[str, str]:
    """The renaming, from the files' names to ours."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InputError(
            "unknown column to rename", found=unknown[0], expected=f"one of {', '.join(COLUMNS)}",
            hint="Write it as ours=theirs, for example user_id=uid.",
        )  # fmt: skip
    return {theirs: ours for ours, theirs in columns.items()}


def _table(
    path: Path, key: str, names: Mapping[str, str], multi_valued: Sequence[str], categorical: Sequence[str]
) -> pl.DataFrame:
    """Read one table under our column names."""
    rated = key in ("logged", "uniform")
    if is_parquet(path):
        frame = _renamed(read_parquet(path, (*COLUMNS, *names) if rated else None), names)
    else:
        frame = _renamed(read_delimited(path), names)
        frame = frame.select([name for name in frame.columns if name in COLUMNS]) if rated else frame
        keep_text = ("rating", "propensity") if rated else (*multi_valued, *categorical)
        frame = typed_columns(frame, keep_text=keep_text)
    if rated:
        return frame
    require_columns(frame, (f"{key[:-1]}_id",), Origin(path))
    listed = [name for name in multi_valued if name in frame.columns and frame[name].dtype == pl.String]
    named = [name for name in categorical if name in frame.columns and frame[name].dtype.is_integer()]
    return frame.with_columns(
        *[pl.col(name).str.split("|") for name in listed], *[pl.col(name).cast(pl.String) for name in named]
    )


def _renamed(frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Rename the columns the caller named; a column that already has our name is dropped."""
    present = {theirs: ours for theirs, ours in names.items() if theirs in frame.columns and theirs != ours}
    return frame.drop(set(present.values()) & set(frame.columns) - set(present)).rename(present)


def _require_side_columns(tables: Mapping[str, pl.DataFrame], wanted: Sequence[str]) -> None:
    """Refuse a `multi_valued` or `categorical` column that no side table has: it is most likely misspelt."""
    held = {name for key in ("users", "items") if key in tables for name in tables[key].columns}
    missing = [name for name in wanted if name not in held]
    if missing:
        found = ", ".join(sorted(held)) or "no columns"
        raise InputError("no such column in the side tables", column=missing[0], found=found)
