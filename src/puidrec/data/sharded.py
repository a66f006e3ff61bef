"""A log larger than memory: sorted once into files by user and item, then read memory-mapped, a slice at a time.

A column is a plain file of numbers; what is as long as the log is never held whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, write_json
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.protocol import Protocol
from puidrec.data.schema import RatingScale
from puidrec.data.sorting import COLUMNS, ParquetLog, sort_log
from puidrec.errors import InputError

FORMAT = "puidrec-shards-1"
SHARD_ROWS = 4_000_000
CHUNK = 1 << 20
"""Rows looked at at a time where all must be."""


@dataclass(frozen=True)
class StoredInteractions(Interactions):
    """Rows on disk, sorted by user then item. `frame` holds their digest in place of them."""

    folder: Path = Path()
    n_rows: int = 0
    protocol: Protocol | None = None

    def __len__(self) -> int:
        return self.n_rows

    @property
    def sha256(self) -> str:
        """A digest of the rows."""
        return str(self.frame["sha256"][0])

    @cached_property
    def user(self) -> np.ndarray:
        """User codes, memory-mapped."""
        return self._column("user")

    @cached_property
    def item(self) -> np.ndarray:
        """Item codes, memory-mapped."""
        return self._column("item")

    @cached_property
    def rating(self) -> np.ndarray:
        """Ratings, memory-mapped."""
        return self._column("rating")

    @property
    def label(self) -> np.ndarray:
        """Labels of all rows, a byte each."""
        return np.concatenate([self.part(rows).label for rows in slices(self.n_rows)])

    def part(self, rows: slice) -> Interactions:
        """A range of rows, in memory."""
        columns = {name: np.array(getattr(self, name)[rows]) for name in COLUMNS}
        frame = Interactions(pl.DataFrame(columns), self.users, self.items, self.scale)
        return frame if self.protocol is None else frame.labelled(self.protocol)

    @property
    def propensity(self) -> np.ndarray | None:
        """None: propensities of a log on disk are estimated."""
        return None

    def take(self, rows: np.ndarray) -> Self:
        """Refused: rows that are held out must come from somewhere else."""
        raise InputError(
            "a log on disk is not divided",
            expected="uniform rows to validate and test with, and select=uniform or none",
        )

    def labelled(self, protocol: Protocol) -> Self:
        """The same rows under a protocol, which must not drop any of them."""
        for rows in slices(self.n_rows):
            dropped = protocol.label(self.rating[rows], self.scale) < 0
            if dropped.any():
                raise InputError(
                    f"protocol {protocol.name} drops ratings, and a log on disk keeps all of its rows",
                    found=float(self.rating[rows][dropped][0]), hint="Use protocol rd or ge3, or remove these rows.",
                )  # fmt: skip
        return replace(self, protocol=protocol)

    def _column(self, name: str) -> np.ndarray:
        return np.memmap(self.folder / f"{name}.bin", COLUMNS[name], "r", shape=(self.n_rows,))


def slices(n: int, size: int = CHUNK) -> Iterator[slice]:
    """Ranges that cover n rows."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


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
