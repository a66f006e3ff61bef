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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, write_json
from puidrec.data.dataset import Dataset, Interactions
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

if TYPE_CHECKING:
    from puidrec.data.split import Protocol

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
class ParquetLog:
    """Parquet files as checked batches of `user_id, item_id, rating`."""

    path: Path
    scale: RatingScale | None
    names: Mapping[str, str]

    @property
    def files(self) -> list[Path]:
        """The files, in order."""
        found = sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]
        if not found or not all(file.is_file() for file in found):
            hint = "Check the path; a log on disk is read as Parquet."
            raise InputError("no Parquet file", file=self.path, hint=hint)
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
                raise origin.error(f"damaged Parquet file ({short_reason(error)})") from error

    def summary(self) -> tuple[pl.DataFrame, pl.DataFrame, tuple[float, float]]:
        """One pass: users and items with their numbers of rows, by id, and the range of ratings."""
        counts: dict[str, pl.DataFrame] = {}
        ratings: list[float] = []
        for batch in self.batches():
            for name in ("user_id", "item_id"):
                own = batch.group_by(name).len()
                seen = counts.get(name, own.clear())
                if seen[name].dtype != own[name].dtype:
                    raise InputError("ids of two types", file=self.path, column=name)
                counts[name] = pl.concat([seen, own]).group_by(name).sum()
            ratings += [float(f) for f in (batch["rating"].min(), batch["rating"].max())]  # type: ignore[arg-type]
        if not counts:
            raise InputError("the table is empty", file=self.path, expected="at least one row")
        users, items = (counts[name].sort(name) for name in ("user_id", "item_id"))
        return users, items, (min(ratings), max(ratings))


def skeleton(users: pl.Series, items: pl.Series, ratings: tuple[float, float]) -> pl.DataFrame:
    """The smallest log with every id and both ends of the ratings; no pair occurs twice."""
    k = np.arange(max(users.len(), items.len(), 2))
    rating = pl.Series("rating", np.array(ratings)[k % 2])
    return pl.DataFrame([users.gather(k % users.len()), items.gather(k % items.len()), rating])


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
    target, (users, items, (low, high)) = Path(folder), source.summary()
    data = build(skeleton(users["user_id"], items["item_id"], (low, high)))
    if low == high != data.scale.high:
        raise InputError(
            "all ratings of the log are equal",
            file=source.path,
            found=f"{low:g} in every row",
            expected="1 where every row is a like",
        )
    rows = int(users["len"].sum())
    facts = {
        "format": FORMAT,
        # times do not identify a log: they can be set
        "source": [[str(file.resolve()), _digest([file])] for file in source.files],
        "rows": rows,
        "users": len(data.user_ids),
        "items": len(data.item_ids),
    }
    columns = [target / f"{name}.bin" for name in COLUMNS]
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        with atomic_folder(target) as temporary:
            sort_log(source, users, data, temporary, shard_rows)
            digest = _digest(temporary / file.name for file in columns)
            write_json(temporary / "shards.json", {**facts, "sha256": digest})
    else:
        digest = _checked_digest(target, facts, columns)
    maps = {
        name: np.memmap(file, kind, "r", shape=(rows,))
        for file, (name, kind) in zip(columns, COLUMNS.items(), strict=True)
    }
    stand_in = pl.DataFrame({"sha256": [digest]})
    ids = data.user_ids, data.item_ids
    stored = StoredInteractions(stand_in, *ids, data.scale, target, maps)
    return replace(data, logged=stored).with_overlap(overlap)


def _checked_digest(folder: Path, facts: Mapping[str, Any], columns: list[Path]) -> str:
    """The digest of a folder that was sorted before; refused where it is of another log, or its
    rows are not those that were written: what was changed on disk is never trained on."""
    try:
        found = json.loads((folder / "shards.json").read_text(encoding="utf-8"))
        digest, known = _digest(columns), {key: found.pop(key) for key in ("sha256", "format")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "a new folder, or one that was sorted before"
        raise InputError("not a folder of shards", file=folder, expected=expected) from error
    if known != {"sha256": digest, "format": FORMAT}:
        raise InputError(
            "damaged shards",
            file=folder,
            found="other rows than were written, or those of another version of puid",
            hint="Remove the folder; it is made anew from the log.",
        )
    if {**found, "format": FORMAT} != facts:
        hint = "Name another folder, or remove this one."
        raise InputError("the shards of another log", file=folder, hint=hint)
    return digest


def _digest(files: Iterable[Path]) -> str:
    """A digest of files: one pass at the speed of the disk."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def sort_log(
    source: ParquetLog, users: pl.DataFrame, data: Dataset, folder: Path, shard_rows: int
) -> None:
    """Write the sorted columns; `users`: ids and their numbers of rows."""
    degree = np.zeros(len(data.user_ids), np.int64)
    degree[data.user_ids.encode(users["user_id"])] = users["len"].to_numpy()
    shard_of = (np.cumsum(degree) - degree) // shard_rows
    files = [folder / f"shard-{k}.tmp" for k in range(int(shard_of[-1]) + 1)]
    with contextlib.ExitStack() as stack:  # every row goes to the file of its user's shard
        streams = [stack.enter_context(file.open("wb")) for file in files]
        for batch in source.batches():
            rows = np.empty(batch.height, RECORD)
            rows["user"] = data.user_ids.encode(batch["user_id"])
            rows["item"] = data.item_ids.encode(batch["item_id"])
            rows["rating"] = batch["rating"].to_numpy()
            shard = shard_of[rows["user"]]
            rows = rows[np.argsort(shard, kind="stable")]
            edges = row_starts(shard, len(streams))
            for stream, start, stop in zip(streams, edges[:-1], edges[1:], strict=True):
                stream.write(rows[start:stop].data)
    with contextlib.ExitStack() as stack:
        columns = {
            name: stack.enter_context((folder / f"{name}.bin").open("wb")) for name in COLUMNS
        }
        for file in files:
            rows = np.fromfile(file, RECORD)
            file.unlink()
            rows = rows[np.lexsort((rows["item"], rows["user"]))]
            same = (rows["user"][1:] == rows["user"][:-1]) & (rows["item"][1:] == rows["item"][:-1])
            if same.any():
                pair = rows[same.argmax()]
                user, item = (
                    data.user_ids.ids[int(pair["user"])],
                    data.item_ids.ids[int(pair["item"])],
                )
                raise InputError(
                    "pair rated twice",
                    file=source.path,
                    column="user_id, item_id",
                    found=f"{user}, {item}",
                    hint="Remove repeats; a log on disk is taken as it is.",
                )
            for name, stream in columns.items():
                stream.write(np.ascontiguousarray(rows[name]).data)
