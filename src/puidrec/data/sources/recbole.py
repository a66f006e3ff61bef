"""RecBole's atomic files: tab-separated tables whose header gives each column a type,
`user_id:token`, `age:float`.

A data set is a folder with `NAME.inter` (the log) and, where there are features, `NAME.user` and
`NAME.item`; `uniform.inter`, where it is there, holds ratings of items drawn at random.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.atomic import write_text
from puidrec.data.dataset import Dataset
from puidrec.data.schema import Origin, reject
from puidrec.data.sources.reading import (
    AnyPath,
    data_folder,
    input_errors,
    parse_delimited,
    typed_columns,
)
from puidrec.errors import InputError

TYPES = ("token", "token_seq", "float", "float_seq")
_FIELD = re.compile(r"[^\s:]+:[a-z_]+")
IDS = ("user_id", "item_id")
UNIFORM = "uniform"
"""Stem of the file of uniform rows, which RecBole itself knows nothing of."""


def load(path: AnyPath | None, **options: Any) -> Dataset:
    """Load the one RecBole data set of a folder; options are those of `files`, where the log's
    ratings need a scale."""
    from puidrec.data.sources import files

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
        return [_numbers(column, origin)]
    lists = column.str.strip_chars().str.split(" ")
    width = int(np.asarray(lists.list.len().fill_null(0)).max(initial=0))
    parts = lists.list.to_struct(fields=[f"{column.name}_{k}" for k in range(width)])
    return [_numbers(part, origin) for part in parts.struct.unnest().get_columns()]


def _numbers(column: pl.Series, origin: Origin) -> pl.Series:
    numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
    wrong = numbers.is_null() & column.is_not_null()
    reject(
        wrong,
        column,
        "not a number",
        "a number, as the header says",
        "Correct the cell or the header.",
        origin,
    )
    return numbers


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
