"""A log larger than memory: sorted once into files by user and item, then read a range of rows at a
time.

Sorting takes two passes over the Parquet files. The first checks the rows and counts them per user;
the second sends them to shards, ranges of users with about equal numbers of rows. Each shard fits
in memory, is sorted there and appended to plain files of numbers, one per column. These are
memory-mapped. Where rows are held out, or dropped by a protocol, the others are copied to files of
their own, which end with the process: whatever is read is a map of a file, and takes no memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, write_json
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.protocol import Protocol
from puidrec.data.schema import (
    INTERACTION_COLUMNS,
    POLARS_ERRORS,
    Origin,
    RatingScale,
    clean_interactions,
    require_columns,
    short_reason,
)
from puidrec.data.tables import OverlapRule, row_starts
from puidrec.errors import InputError

COLUMNS = {"user": np.dtype(np.int32), "item": np.dtype(np.int32), "rating": np.dtype(np.float32)}
RECORD = np.dtype(list(COLUMNS.items()))
FORMAT = "puidrec-shards-3"
SHARD_ROWS = 4_000_000
BATCH_ROWS = 1_000_000
"""Rows of a Parquet file that are checked, and sent to shards, at a time."""
CHUNK = 1 << 20
"""Rows read at a time where all rows of a log are needed."""


def row_slices(n: int) -> Iterator[slice]:
    """Ranges of CHUNK rows that cover n rows: temporary arrays are made for one range at a time."""
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


class Scratch:
    """Numbers on disk that are deleted when the process ends: written a range at a time, read
    memory-mapped.

    Written through the file, not the map: a full disk is then an error and not the end of the
    process.
    """

    def __init__(self, folder: Path, size: int, dtype: Any = np.float64) -> None:
        # open as long as the numbers are wanted
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._dtype = np.dtype(dtype)
        self._file.truncate(max(size, 1) * self._dtype.itemsize)
        self.values: np.ndarray = np.memmap(self._file, self._dtype, "r", shape=(max(size, 1),))[
            :size
        ]

    def write(self, start: int, values: np.ndarray) -> None:
        """Put numbers from row `start` on."""
        self._file.seek(start * self._dtype.itemsize)
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._file.flush()


@dataclass(frozen=True, repr=False)
class StoredInteractions(Interactions):
    """Rows on disk, sorted by user then item. `frame` holds their digest in place of them."""

    folder: Path = Path()
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """`user`, `item` and `rating`, memory-mapped."""
    protocol: Protocol | None = None

    def __len__(self) -> int:
        return self.user.size

    @property
    def sha256(self) -> str:
        """A digest of the rows that were sorted into the folder."""
        return str(self.frame["sha256"][0])

    @property
    def user(self) -> np.ndarray:
        """User codes, memory-mapped."""
        return self.columns["user"]

    @property
    def item(self) -> np.ndarray:
        """Item codes, memory-mapped."""
        return self.columns["item"]

    @property
    def rating(self) -> np.ndarray:
        """Ratings, memory-mapped."""
        return self.columns["rating"]

    @property
    def label(self) -> np.ndarray:
        """Labels of all rows, a byte each."""
        return np.concatenate([part.label for part in self.parts()])

    @property
    def propensity(self) -> np.ndarray | None:
        """None: propensities of a log on disk are estimated."""
        return None

    def parts(self) -> Iterator[Interactions]:
        """The rows, `CHUNK` at a time."""
        return (self.part(rows) for rows in row_slices(len(self)))

    def part(self, rows: slice | np.ndarray) -> Interactions:
        """A range of rows (or rows by their numbers, rising), in memory."""
        columns = {name: np.array(values[rows]) for name, values in self.columns.items()}
        found = Interactions(pl.DataFrame(columns), self.users, self.items, self.scale)
        return found if self.protocol is None else found.labelled(self.protocol)

    def take(self, rows: np.ndarray) -> Interactions:  # type: ignore[override]
        """Rows by their numbers, in memory; or all that a mask leaves, on disk as before."""
        return self._only(rows.__getitem__) if rows.dtype == bool else self.part(np.sort(rows))

    def without(self, rows: np.ndarray) -> Self:
        """All rows but these, on disk as before."""
        gone = np.sort(rows)

        def kept(part: slice) -> np.ndarray:
            mask = np.ones(part.stop - part.start, bool)
            low, high = np.searchsorted(gone, [part.start, part.stop])
            mask[gone[low:high] - part.start] = False
            return mask

        return self._only(kept)

    def labelled(self, protocol: Protocol) -> Self:
        """These rows with the labels of a protocol, without the rows it drops."""

        def kept(rows: slice) -> np.ndarray:
            return protocol.label(self.rating[rows], self.scale) >= 0

        whole = all(kept(rows).all() for rows in row_slices(len(self)))
        return replace(self if whole else self._only(kept), protocol=protocol)

    def scratch(self, dtype: Any = np.float64) -> Scratch:
        """Room for a number per row, beside the rows."""
        return Scratch(self.folder, len(self), dtype)

    def _only(self, kept: Callable[[slice], np.ndarray]) -> Self:
        """The rows that `kept` marks in each range, copied to files that end with the process."""
        rooms, end = {name: self.scratch(kind) for name, kind in COLUMNS.items()}, 0
        for rows in row_slices(len(self)):
            mask = kept(rows)
            for name, room in rooms.items():
                room.write(end, self.columns[name][rows][mask])
            end += int(np.count_nonzero(mask))
        return replace(self, columns={name: room.values[:end] for name, room in rooms.items()})


@dataclass(frozen=True)
class LogSummary:
    """What one pass over a log collects: ids with their numbers of rows, and the range of
    ratings."""

    users: pl.DataFrame
    items: pl.DataFrame
    low: float
    high: float

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
                        yield clean_interactions(frame, self.scale, Origin(file, seen))
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


def shard_log(
    logged: str | PathLike[str],
    folder: str | PathLike[str],
    build: Callable[[pl.DataFrame], Dataset],
    *,
    scale: tuple[float, float] | None = None,
    names: Mapping[str, str] | None = None,
    overlap: OverlapRule = "drop",
    shard_rows: int = SHARD_ROWS,
) -> Dataset:
    """A data set whose log stays on disk: sorted into `folder`, or read from there if it was sorted
    before.

    logged: a Parquet file, or a folder of them. `names` renames columns, theirs → ours. `build`
    makes a data set of a log with every id and both ends of the ratings (`skeleton`) and the tables
    that fit in memory, so that ids, features and uniform rows are checked as in a log in memory; it
    keeps all uniform rows, for it does not see the pairs of the log. `overlap` says what happens to
    those whose pair is in the log.
    """
    source = ParquetLog(Path(logged), RatingScale.of(scale), dict(names or {}))
    target, summary = Path(folder), source.summary()
    data = build(summary.skeleton())
    if summary.low == summary.high != data.scale.high:
        raise InputError(
            "all ratings of the log are equal",
            file=source.path,
            found=f"{summary.low:g} in every row",
            expected="1 where every row is a like",
            hint="Write 1, or leave the shards out.",
        )
    rows = int(summary.users["len"].sum())
    sizes = {"rows": rows, "users": len(data.user_ids), "items": len(data.item_ids)}
    facts = {"format": FORMAT, "source": source.state(), **sizes}
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        with atomic_folder(target) as temporary:
            sort_log(source, summary, data, temporary, shard_rows)
            if source.state() != facts["source"]:
                raise InputError(
                    "the log changed while it was read",
                    file=source.path,
                    hint="Repeat the command.",
                )
            digest = _digest(temporary)
            write_json(temporary / "shards.json", {**facts, "sha256": digest})
    else:
        digest = _digest_of(target, facts)
    columns = {
        name: np.memmap(target / f"{name}.bin", kind, "r", shape=(rows,))
        for name, kind in COLUMNS.items()
    }
    stand_in = pl.DataFrame({"sha256": [digest]})
    ids = data.user_ids, data.item_ids
    stored = StoredInteractions(stand_in, *ids, data.scale, target, columns)
    return replace(data, logged=stored).with_overlap(overlap)


def _digest_of(folder: Path, facts: Mapping[str, Any]) -> str:
    """The digest of a folder that was sorted before; refused where it is of another log, or its
    files are not those that were written."""
    try:
        found = json.loads((folder / "shards.json").read_text(encoding="utf-8"))
        version, digest = found["format"], _digest(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "a new folder, or one that was sorted before"
        raise InputError("not a folder of shards", file=folder, expected=expected) from error
    if version != FORMAT or digest != found.get("sha256"):
        raise InputError(
            "damaged shards",
            file=folder,
            found="other rows than were written, or those of another version of puid",
            hint="Remove the folder; it is made anew from the log.",
        )
    if {key: found.get(key) for key in facts} != facts:
        raise InputError(
            "the shards of another log",
            file=folder,
            hint="Name another folder, or remove this one.",
        )
    return digest


def _digest(folder: Path) -> str:
    """A digest of the rows. One pass at the speed of the disk, a fraction of that over the log:
    what was changed on disk since it was sorted is never trained on."""
    digest = hashlib.sha256()
    for name in COLUMNS:
        with (folder / f"{name}.bin").open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def sort_log(
    source: ParquetLog, summary: LogSummary, data: Dataset, folder: Path, shard_rows: int
) -> None:
    """Write the sorted columns."""
    degree = np.zeros(len(data.user_ids), np.int64)
    degree[data.user_ids.encode(summary.users["user_id"])] = summary.users["len"].to_numpy()
    shard_of = (np.cumsum(degree) - degree) // shard_rows
    files = [folder / f"shard-{k}.tmp" for k in range(int(shard_of[-1]) + 1)]
    _distribute(source, data, shard_of, files)
    with contextlib.ExitStack() as stack:
        columns = {
            name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in COLUMNS
        }
        for file in files:
            rows = np.fromfile(file, RECORD)
            file.unlink()
            key = rows["user"].astype(np.int64) * len(data.item_ids) + rows["item"]
            order = np.argsort(key, kind="stable")
            _refuse_repeats(key[order], rows[order], data, source)
            for name, stream in columns.items():
                stream.write(np.ascontiguousarray(rows[name][order]).data)


def _distribute(source: ParquetLog, data: Dataset, shard_of: np.ndarray, files: list[Path]) -> None:
    """Send every row to the file of its user's shard."""
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(file.open("wb")) for file in files]
        for batch in source.batches():
            rows = np.empty(batch.height, RECORD)
            rows["user"], rows["item"] = (
                data.user_ids.encode(batch["user_id"]),
                data.item_ids.encode(batch["item_id"]),
            )
            rows["rating"] = batch["rating"].to_numpy()
            shard = shard_of[rows["user"]]
            rows = rows[np.argsort(shard, kind="stable")]
            edges = row_starts(shard, len(streams))
            for stream, start, stop in zip(streams, edges[:-1], edges[1:], strict=True):
                stream.write(rows[start:stop].data)


def _refuse_repeats(key: np.ndarray, rows: np.ndarray, data: Dataset, source: ParquetLog) -> None:
    repeated = np.flatnonzero(key[1:] == key[:-1])
    if repeated.size:
        pair = rows[repeated[0]]
        user, item = data.user_ids.ids[int(pair["user"])], data.item_ids.ids[int(pair["item"])]
        raise InputError(
            "pair rated twice",
            file=source.path,
            column="user_id, item_id",
            found=f"{user}, {item}",
            expected="one row per user and item",
            hint="Remove repeats; a log on disk is taken as it is.",
        )
