"""A log larger than memory: sorted once into files by user and item, each column a plain file of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from puidrec.atomic import atomic_folder, write_json
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import StoredInteractions
from puidrec.data.schema import RatingScale
from puidrec.data.sorting import COLUMNS, ParquetLog, sort_log
from puidrec.errors import InputError

FORMAT = "puidrec-shards-1"
SHARD_ROWS = 4_000_000


def shard_log(
    logged: str | PathLike[str],
    folder: str | PathLike[str],
    build: Callable[[pl.DataFrame], Dataset],
    *,
    scale: tuple[float, float] | None = None,
    names: Mapping[str, str] | None = None,
    shard_rows: int = SHARD_ROWS,
) -> Dataset:
    """A data set whose log stays on disk: sorted into `folder`, or read from there if it was sorted before.

    logged: a Parquet file, or a folder of them. `names` renames columns, theirs → ours. `build` makes a data set of a
    log with every id and both ends of the ratings (`skeleton`) and the tables that fit in memory: ids, features and
    uniform rows pass the same door as ever.
    """
    source, target = ParquetLog(Path(logged), RatingScale.of(scale), dict(names or {})), Path(folder)
    summary = source.summary()
    data = build(summary.skeleton())
    facts = {"format": FORMAT, "source": source.state(), "users": len(data.user_ids), "items": len(data.item_ids)}
    found = _read_facts(target)
    if found is None:
        with atomic_folder(target) as temporary:
            digest = sort_log(source, summary, data, temporary, shard_rows)
            found = {**facts, "rows": summary.n_rows, "sha256": digest}
            write_json(temporary / "shards.json", found)
    if {key: found.get(key) for key in facts} != facts:
        raise InputError("the shards of another log", file=target, hint="Name another folder, or remove this one.")
    stand_in = pl.DataFrame({"sha256": [found["sha256"]]})
    rows = StoredInteractions(stand_in, data.user_ids, data.item_ids, data.scale, target, found["rows"])
    return replace(data, logged=rows)


def _read_facts(folder: Path) -> dict[str, Any] | None:
    """What a folder of shards says of itself; None where there is nothing yet."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        facts: dict[str, Any] = json.loads((folder / "shards.json").read_text(encoding="utf-8"))
        sizes = [(folder / f"{name}.bin").stat().st_size == facts["rows"] * d.itemsize for name, d in COLUMNS.items()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "not a folder of shards", file=folder, expected="a new folder, or one that was sorted before"
        ) from error
    if facts.get("format") != FORMAT or not all(sizes):
        raise InputError("damaged shards", file=folder, hint="Remove the folder; it is made anew from the log.")
    return facts
