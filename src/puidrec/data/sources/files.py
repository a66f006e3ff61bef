"""Your own data, in any form that `reading` knows, from four paths or from one folder; RecBole's
folders; and data sets written in the forms of other tools.

A folder is searched for `logged`, `uniform`, `users` and `items`, each as `.parquet`, `.csv` or
`.csv.gz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import polars as pl
from scipy import sparse

from puidrec.atomic import write_json, write_text
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import shard_log
from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    OPTIONAL_COLUMNS,
    OTHER_NAMES,
    Duplicates,
    Origin,
    refuse_near_rating,
    reject,
    require_columns,
    with_our_names,
)
from puidrec.data.sources.reading import (
    IDS,
    SKIPPED,
    AnyPath,
    data_folder,
    has_file,
    input_errors,
    is_parquet,
    read_table,
    table_files,
)
from puidrec.data.tables import RATED, SIDES, OverlapRule, UnknownIds
from puidrec.errors import InputError

SUFFIXES = (".parquet", ".csv", ".csv.gz")
COLUMNS = (*INTERACTION_COLUMNS, *OPTIONAL_COLUMNS)
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

    columns: our name → the files' name, such as `{"user_id": "uid", "rating": "stars"}`; or, for
    logs without a header line, the names of their columns in order, `-` for one to skip.
    multi_valued: columns of the side tables whose text is a list, `drama|war`; never guessed.
    categorical: columns of numbers that are names of things, such as a postcode.
    shards: a folder for a log larger than memory (Parquet), which is sorted into it once.
    """
    given = {"logged": logged, "uniform": uniform, "users": users, "items": items}
    for key, own in {**given, "shards": shards}.items():
        if not isinstance(own, str | PathLike | None):
            raise InputError(f"option {key} is no path", found=own, expected="the path of a file")
    header, names = _header(columns)
    files = _find_files(path, given)
    tables = _sides(files, names, multi_valued, categorical)
    for key, file in files.items():
        if key in RATED and (key != "logged" or shards is None):
            tables[key] = _rated(file, names, header)

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
    if liked_from is not None or duplicates != "error" or header is not None:
        problem = "a log on disk is taken as it is: its columns named, pairs that occur once"
        hint = "Rewrite it, or leave shards out."
        raise InputError(problem, file=files["logged"], hint=hint)
    return shard_log(files["logged"], shards, build, scale=scale, names=names, overlap=overlap)


def _require_names(option: str, found: Any) -> None:
    """Refuse what is no list of names: options may come from a command line or a file."""
    listed = isinstance(found, Sequence) and not isinstance(found, str)
    if not listed or not all(isinstance(name, str) for name in found):
        expected = "a list of names, ['genre'], or for columns ours = theirs, {user_id = 'uid'}"
        raise InputError(f"option {option} has no names", found=found, expected=expected)


def _header(
    columns: Mapping[str, str] | Sequence[str] | None,
) -> tuple[list[str] | None, dict[str, str]]:
    """The names of all columns of files without header; or what to rename, theirs → ours."""
    if columns is None:
        return None, {}
    renamed = isinstance(columns, Mapping)
    _require_names("columns", list(columns.values()) if isinstance(columns, Mapping) else columns)
    ours = [name.strip() for name in columns]
    known = COLUMNS if renamed else (*COLUMNS, *OTHER_NAMES, SKIPPED)
    for name in ours:
        if name not in known or (name != SKIPPED and ours.count(name) > 1):
            raise InputError(
                "unknown name of a column, or one named twice",
                found=name,
                expected=f"one of {', '.join(known)} ({SKIPPED} for a column to skip)",
                hint="To rename, write ours=theirs, for example user_id=uid.",
            )
    if isinstance(columns, Mapping):
        return None, {theirs: own for own, theirs in columns.items()}
    return ours, {}


def _find_files(path: AnyPath | None, given: Mapping[str, AnyPath | None]) -> dict[str, Path]:
    """The files of the tables: those given by name, then those of the folder; there must be a log.

    Two forms of one table in a folder are refused, for they may differ.
    """
    files: dict[str, Path] = {}
    folder = None if path is None else data_folder(path, "files")
    for key, own in given.items():
        names = [f"{key}{suffix}" for suffix in SUFFIXES]
        here = [] if folder is None else [name for name in names if has_file(folder / name)]
        if own is not None:
            files[key] = Path(own)
        elif folder is not None and here:
            files[key] = folder / here[0]
            if len(here) > 1:
                found, hint = ", ".join(here), "Remove one of them."
                raise InputError(f"two files for {key}", file=folder, found=found, hint=hint)
    if "logged" not in files:
        raise InputError(
            "no log of interactions",
            file=path,
            expected=" or ".join(f"logged{suffix}" for suffix in SUFFIXES),
            hint="Name the file with logged=PATH (--logged PATH).",
        )
    return files


def _rated(path: Path, names: Mapping[str, str], header: Sequence[str] | None) -> pl.DataFrame:
    """A table of rated pairs under our column names."""
    ours = {**{name: name for name in COLUMNS}, **OTHER_NAMES, **names}
    text = [theirs for theirs, name in ours.items() if name in QUOTED]
    frame = _renamed(read_table(path, names=header, wanted=list(ours), text=text), names)
    first = table_files(path)[0]
    if "rating" not in with_our_names(frame).columns and is_parquet(first):
        # of which other columns were not read; one of them may be the rating
        refuse_near_rating(list(pl.read_parquet_schema(first)), Origin(path))
    return frame


def _sides(
    files: Mapping[str, Path],
    names: Mapping[str, str],
    multi_valued: Sequence[str],
    categorical: Sequence[str],
) -> dict[str, pl.DataFrame]:
    """Users and items under our column names; lists and categories as the caller says, who may have
    misspelt them."""
    for option, wanted in (("multi_valued", multi_valued), ("categorical", categorical)):
        _require_names(option, wanted)
    wanted, tables = (*multi_valued, *categorical), {}
    for key in SIDES:
        if key in files:
            frame = _renamed(read_table(files[key], text=wanted), names)
            require_columns(frame, (f"{key[:-1]}_id",), Origin(files[key]))
            kinds = frame.schema
            lists = [own for own in multi_valued if kinds.get(own) == pl.String]
            named = [own for own in categorical if own in kinds]
            tables[key] = frame.with_columns(
                pl.col(lists).str.split("|"), pl.col(named).cast(pl.String)
            )
    held = {name for table in tables.values() for name in table.columns}
    missing = [name for name in wanted if name not in held]
    if missing:
        found = ", ".join(sorted(held))
        raise InputError("no such column in the side tables", column=missing[0], found=found)
    return tables


def _renamed(frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Rename the columns the caller named; a column that already has our name is dropped."""
    present = {
        theirs: ours for theirs, ours in names.items() if theirs in frame.columns and theirs != ours
    }
    return frame.drop(set(present.values()) & set(frame.columns) - set(present)).rename(present)


UNIFORM = "uniform"
"""Stem of the file of uniform rows, which RecBole itself knows nothing of."""


def load_recbole(path: AnyPath | None, **options: Any) -> Dataset:
    """Load the one RecBole data set of a folder; options are those of `load`, where the log's
    ratings need a scale."""
    folder = data_folder(path, "recbole")
    with input_errors(folder):
        logs = [file for file in sorted(folder.glob("*.inter")) if file.stem != UNIFORM]
    logs = [Path(options["logged"])] if "logged" in options else logs
    if len(logs) != 1:
        found = ", ".join(file.name for file in logs) or "none"
        hint = "Name the files: --data files --logged X.inter --users X.user --items X.item."
        raise InputError("no single .inter file", file=folder, found=found, hint=hint)
    sides = {key: logs[0].with_suffix(f".{key[:-1]}") for key in SIDES}
    sides["uniform"] = folder / f"{UNIFORM}.inter"
    present = {key: file for key, file in sides.items() if file.exists()}
    return load(**{"logged": logs[0], **present, "unknown_ids": "keep", **options})


def score_file(path: AnyPath, data: Dataset) -> pl.DataFrame:
    """A file of scores (user_id, item_id, score) or of recommendations (rank); ids of the data set
    that are text stay text."""
    ids = zip(IDS, (data.user_ids.ids, data.item_ids.ids), strict=True)
    text = [name for name, own in ids if own.dtype == pl.String]
    frame = read_table(Path(path), text=text)
    ranked = "rank" in frame.columns
    require_columns(frame, (*IDS, "rank" if ranked else "score"), Origin(path))
    return frame


def write_dataset(data: Dataset, form: str, folder: Path) -> dict[str, int]:
    """Write a data set into a folder in the form that another tool reads; returns the rows of each
    file."""
    parts = {"logged": data.logged, **({} if data.uniform is None else {"uniform": data.uniform})}
    if form == "csr":
        for key, part in parts.items():
            sparse.save_npz(folder / f"{key}.npz", sparse.csr_matrix(part.to_matrix()))
        for side, ids in (("user", data.user_ids), ("item", data.item_ids)):
            write_json(folder / f"{side}_ids.json", ids.ids.to_list())
        return {f"{key}.npz": len(part) for key, part in parts.items()}
    sides = {"users": data.users, "items": data.items}
    tables = {
        **{key: part.to_frame() for key, part in parts.items()},
        **{key: table for key, table in sides.items() if table is not None},
    }
    rows = {}
    for key, table in tables.items():
        name = ATOMIC[key] if form == "recbole" else f"{key}.{FILES.get(form, form)}"
        if form == "recbole":
            write_text(folder / name, atomic_text(table, Origin(name)))
        elif form == "csv":
            table.with_columns(pl.col(pl.List).list.join("|")).write_csv(folder / name)
        elif form == "jsonl":
            table.write_ndjson(folder / name)
        else:
            rated = form == "rectools" and key in RATED
            (_rectools(table) if rated else table).write_parquet(folder / name)
        rows[name] = table.height
    return rows


FILES = {"rectools": "parquet"}
"""How files of a form end, where not in its name."""
ATOMIC = {
    "logged": "log.inter",
    "uniform": f"{UNIFORM}.inter",
    "users": "log.user",
    "items": "log.item",
}


def _rectools(frame: pl.DataFrame) -> pl.DataFrame:
    """RecTools' columns: `weight`, and `datetime` from times in seconds, milli- or microseconds,
    told by their size."""
    frame = frame.rename({"rating": "weight"})
    if "timestamp" not in frame.columns:
        return frame
    largest = int(frame["timestamp"].abs().max() or 0)  # type: ignore[arg-type]
    unit: Literal["s", "ms", "us"] = "s" if largest < 10**11 else "ms" if largest < 10**14 else "us"
    return frame.with_columns(pl.from_epoch("timestamp", unit).alias("datetime")).drop("timestamp")


def atomic_text(frame: pl.DataFrame, origin: Origin) -> str:
    """A table as an atomic file of RecBole; refuses text that its form cannot hold."""
    kinds, cells = [], []
    for column in frame.get_columns():
        lists = isinstance(column.dtype, pl.List)
        numbers = column.dtype.is_numeric() and column.name not in IDS
        kinds.append(f"{column.name}:{'float' if numbers else 'token_seq' if lists else 'token'}")
        texts = (column.explode() if lists else column).cast(pl.String)
        reject(
            texts.str.contains(r"[\t\r\n ]" if lists else r"[\t\r\n]").fill_null(False),
            texts,
            "a .inter file cannot hold this text",
            "text without tabs and line ends (no spaces in lists)",
            "Rename it, or choose another format.",
            origin,
        )
        joined = column.cast(pl.List(pl.String)).list.join(" ") if lists else texts
        cells.append(joined.fill_null(""))
    rows = pl.DataFrame(cells).select(pl.concat_str(pl.all(), separator="\t")).to_series()
    return "\n".join(["\t".join(kinds), *rows.to_list()]) + "\n"
