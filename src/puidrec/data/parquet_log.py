"""A log in Parquet files, read as checked batches, for logs larger than memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    POLARS_ERRORS,
    Origin,
    RatingScale,
    clean_interactions,
    require_columns,
    short_reason,
)
from puidrec.errors import InputError

BATCH_ROWS = 1_000_000
"""Rows of a file that are checked, and sent to shards, at a time."""


@dataclass(frozen=True)
class LogSummary:
    """What one pass over a log collects: ids with their numbers of rows, and the range of ratings."""

    users: pl.DataFrame
    items: pl.DataFrame
    low: float
    high: float

    @property
    def n_rows(self) -> int:
        """Rows of the log."""
        return int(self.users["len"].sum())

    def skeleton(self) -> pl.DataFrame:
        """The smallest log with every id and both ends of the ratings; no pair occurs twice."""
        k = np.arange(max(self.users.height, self.items.height, 2))
        users, items = (
            table[name] for table, name in ((self.users, "user_id"), (self.items, "item_id"))
        )
        ratings = np.where(k % 2, self.high, self.low)
        return pl.DataFrame(
            [
                users.gather(k % users.len()),
                items.gather(k % items.len()),
                pl.Series("rating", ratings),
            ]
        )


@dataclass(frozen=True)
class ParquetLog:
    """Parquet files as checked batches of `user_id, item_id, rating`."""

    path: Path
    scale: RatingScale | None
    names: Mapping[str, str]

    @cached_property
    def files(self) -> list[Path]:
        """The files, in order."""
        found = sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]
        if not found or not all(file.is_file() for file in found):
            hint = "Check the path; a log on disk is read as Parquet."
            raise InputError("no Parquet file", file=self.path, hint=hint)
        return found

    def state(self) -> list[list[Any]]:
        """What identifies this log: the names and the content of its files. Times do not: they can
        be set."""
        found = []
        for file in self.files:
            with file.open("rb") as stream:
                found.append(
                    [str(file.resolve()), hashlib.file_digest(stream, "sha256").hexdigest()]
                )
        return found

    def batches(self) -> Iterator[pl.DataFrame]:
        """Checked rows; a mistake is named by its row in its file."""
        for file in self.files:
            origin, seen = Origin(file), 0
            try:
                scan = pl.scan_parquet(file, glob=False).rename(dict(self.names), strict=False)
                require_columns(
                    pl.DataFrame(schema=scan.collect_schema()), INTERACTION_COLUMNS, origin
                )
                for frame in scan.select(INTERACTION_COLUMNS).collect_batches(
                    chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming"
                ):
                    if frame.height:
                        yield _cleaned(frame, self.scale, origin, seen)
                    seen += frame.height
            except (*POLARS_ERRORS, OSError) as error:
                problem = f"damaged Parquet file ({short_reason(error)})"
                raise origin.error(problem, hint="Write or download it again.") from error

    def summary(self) -> LogSummary:
        """One pass: which ids there are, how often, and how ratings range."""
        counts: dict[str, pl.DataFrame] = {}
        low, high = np.inf, -np.inf
        for batch in self.batches():
            for name in ("user_id", "item_id"):
                own = batch.group_by(name).len()
                if name in counts and counts[name][name].dtype != own[name].dtype:
                    raise InputError(
                        "ids of two types",
                        file=self.path,
                        column=name,
                        expected="one type in all files",
                    )
                counts[name] = (
                    pl.concat([counts[name], own]).group_by(name).sum() if name in counts else own
                )
            low, high = (
                min(low, float(batch["rating"].min())),  # type: ignore[arg-type]
                max(high, float(batch["rating"].max())),  # type: ignore[arg-type]
            )
        if not counts:
            raise InputError("the table is empty", file=self.path, expected="at least one row")
        return LogSummary(
            counts["user_id"].sort("user_id"), counts["item_id"].sort("item_id"), low, high
        )


def _cleaned(
    frame: pl.DataFrame, scale: RatingScale | None, origin: Origin, before: int
) -> pl.DataFrame:
    """Check a batch; a bad row is counted from the start of its file, `before` rows earlier."""
    try:
        return clean_interactions(frame, scale, origin)
    except InputError as error:
        error.row = error.row + before if error.row is not None else None
        raise
