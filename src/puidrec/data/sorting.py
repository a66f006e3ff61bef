"""External sort of a Parquet log by user and item: two passes over the files, a shard in memory at a time.

The first pass checks the rows and counts them per user; the second sends them to shards, ranges of users of about
equal rows. Each shard fits in memory, is sorted there and appended.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import Origin, RatingScale, clean_interactions, require_columns
from puidrec.errors import InputError, one_line

BATCH_ROWS = 1_000_000
COLUMNS = {"user": np.dtype(np.int32), "item": np.dtype(np.int32), "rating": np.dtype(np.float32)}
RECORD = np.dtype(list(COLUMNS.items()))


@dataclass(frozen=True)
class Summary:
    """What one pass over a log tells: ids with their rows, and the range of ratings."""

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
        users, items = (table[name] for table, name in ((self.users, "user_id"), (self.items, "item_id")))
        ratings = np.where(k % 2, self.high, self.low)
        return pl.DataFrame(
            [users.gather(k % users.len()), items.gather(k % items.len()), pl.Series("rating", ratings)]
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
            raise InputError(
                "no Parquet file", file=self.path, hint="Check the path; a log on disk is read as Parquet."
            )
        return found

    def state(self) -> list[list[Any]]:
        """What tells this log from another: names, sizes and times of its files."""
        facts = [(file, file.stat()) for file in self.files]
        return [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in facts]

    def batches(self) -> Iterator[pl.DataFrame]:
        """Checked rows; a mistake is named by its row in its file."""
        for file in self.files:
            origin, seen = Origin(file), 0
            try:
                scan = pl.scan_parquet(file, glob=False).rename(dict(self.names), strict=False)
                require_columns(pl.DataFrame(schema=scan.collect_schema()), ("user_id", "item_id", "rating"), origin)
                for frame in scan.select("user_id", "item_id", "rating").collect_batches(
                    chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming"
                ):
                    if frame.height:
                        yield _cleaned(frame, self.scale, origin, seen)
                    seen += frame.height
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
                reason = one_line(str(error)).split("  ")[0][:120]
                raise origin.error(f"damaged Parquet file ({reason})", hint="Write or download it again.") from error

    def summary(self) -> Summary:
        """One pass: which ids there are, how often, and how ratings range."""
        counts: dict[str, pl.DataFrame] = {}
        low, high = np.inf, -np.inf
        for batch in self.batches():
            for name in ("user_id", "item_id"):
                own = batch.group_by(name).len()
                if name in counts and counts[name][name].dtype != own[name].dtype:
                    raise InputError("ids of two types", file=self.path, column=name, expected="one type in all files")
                counts[name] = pl.concat([counts[name], own]).group_by(name).sum() if name in counts else own
            low, high = min(low, float(batch["rating"].min())), max(high, float(batch["rating"].max()))  # type: ignore[arg-type]
        if not counts:
            raise InputError("the table is empty", file=self.path, expected="at least one row")
        return Summary(counts["user_id"].sort("user_id"), counts["item_id"].sort("item_id"), low, high)


def _cleaned(frame: pl.DataFrame, scale: RatingScale | None, origin: Origin, before: int) -> pl.DataFrame:
    try:
        return clean_interactions(frame, scale, origin)
    except InputError as error:
        error.row = error.row + before if error.row is not None else None
        raise


def sort_log(source: ParquetLog, summary: Summary, data: Dataset, folder: Path, shard_rows: int) -> str:
    """Write the sorted columns; returns a digest of the rows."""
    degree = np.zeros(len(data.user_ids), np.int64)
    degree[data.user_ids.encode(summary.users["user_id"])] = summary.users["len"].to_numpy()
    shard_of = (np.cumsum(degree) - degree) // shard_rows
    files = [folder / f"shard-{k}.tmp" for k in range(int(shard_of[-1]) + 1)]
    _distribute(source, data, shard_of, files)
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        columns = {name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in COLUMNS}
        for file in files:
            rows = np.fromfile(file, RECORD)
            file.unlink()
            key = rows["user"].astype(np.int64) * len(data.item_ids) + rows["item"]
            order = np.argsort(key, kind="stable")
            _refuse_repeats(key[order], rows[order], data, source)
            for name, stream in columns.items():
                content = np.ascontiguousarray(rows[name][order])
                stream.write(content.data)
                digest.update(content.data)
    return digest.hexdigest()


def _distribute(source: ParquetLog, data: Dataset, shard_of: np.ndarray, files: list[Path]) -> None:
    """Send every row to the file of its user's shard."""
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(file.open("wb")) for file in files]
        for batch in source.batches():
            rows = np.empty(batch.height, RECORD)
            rows["user"], rows["item"] = data.user_ids.encode(batch["user_id"]), data.item_ids.encode(batch["item_id"])
            rows["rating"] = batch["rating"].to_numpy()
            shard = shard_of[rows["user"]]
            rows = rows[np.argsort(shard, kind="stable")]
            edges = np.concatenate([[0], np.cumsum(np.bincount(shard, minlength=len(streams)))])
            for stream, start, stop in zip(streams, edges[:-1], edges[1:], strict=True):
                stream.write(rows[start:stop].data)


def _refuse_repeats(key: np.ndarray, rows: np.ndarray, data: Dataset, source: ParquetLog) -> None:
    repeated = np.flatnonzero(key[1:] == key[:-1])
    if repeated.size:
        pair = rows[repeated[0]]
        ids = [
            ids.decode(np.array([pair[name]]))[0] for ids, name in ((data.user_ids, "user"), (data.item_ids, "item"))
        ]
        raise InputError(
            "pair rated twice", file=source.path, column="user_id, item_id", found=f"{ids[0]}, {ids[1]}",
            expected="one row per user and item", hint="Remove repeats; a log on disk is taken as it is.",
        )  # fmt: skip
