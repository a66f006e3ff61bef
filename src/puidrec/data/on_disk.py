"""A log larger than memory: sorted once into files by user and item, then read a range of rows at a
time.

Sorting takes two passes over the Parquet files. The first checks the rows and counts them per user;
the second sends them to shards, ranges of users with about equal numbers of rows. Each shard fits
in memory, is sorted there and appended to plain files of numbers, one per column. These are
memory-mapped. Rows that are held out, or that a protocol drops, are marked by a bit each and not
copied: a log of n rows costs n/8 bytes of memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import weakref
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
from puidrec.data.overlap import OverlapRule
from puidrec.data.parquet_log import LogSummary, ParquetLog
from puidrec.data.protocol import Protocol
from puidrec.data.schema import RatingScale
from puidrec.errors import InputError

COLUMNS = {"user": np.dtype(np.int32), "item": np.dtype(np.int32), "rating": np.dtype(np.float32)}
RECORD = np.dtype(list(COLUMNS.items()))
FORMAT = "puidrec-shards-2"
SHARD_ROWS = 4_000_000
CHUNK = 1 << 20
"""Rows read at a time where all rows of a log are needed."""


def row_slices(n: int) -> Iterator[slice]:
    """Ranges of CHUNK rows that cover n rows: temporary arrays are made for one range at a time."""
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Which rows of the files are kept: a bit per row, and how many are kept before each chunk."""

    bits: tuple[np.ndarray, ...]
    """One packed vector per chunk."""
    before: np.ndarray
    """Kept rows before each chunk; the last number is all of them."""

    @classmethod
    def of(cls, masks: Iterator[np.ndarray]) -> KeptRows:
        """From the masks of the chunks, in order."""
        bits, counts = [], [0]
        for mask in masks:
            bits.append(np.packbits(mask))
            counts.append(int(np.count_nonzero(mask)))
        return cls(tuple(bits), np.cumsum(counts))

    def __len__(self) -> int:
        return int(self.before[-1])

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Where kept rows, given by their numbers in rising order, are in the files."""
        chunk = np.searchsorted(self.before, rows, side="right") - 1
        edges = np.searchsorted(chunk, np.arange(len(self.bits) + 1))
        found = [
            np.flatnonzero(np.unpackbits(self.bits[k]))[
                rows[edges[k] : edges[k + 1]] - self.before[k]
            ]
            + k * CHUNK
            for k in np.unique(chunk)
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class KeptColumn:
    """The kept rows of a column: used like an array, but only the rows asked for are read."""

    values: np.ndarray
    kept: KeptRows

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def size(self) -> int:
        """Rows."""
        return len(self)

    @property
    def shape(self) -> tuple[int]:
        """The shape of an array of these rows."""
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.values.dtype

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """A range of rows, or rows by their numbers in rising order."""
        wanted = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return np.asarray(self.values[self.kept.positions(wanted)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, for callers that need a plain array."""
        return np.asarray(self[slice(None)], dtype)


class Scratch:
    """Numbers on disk that are deleted when the process ends: written a range at a time, read
    memory-mapped.

    Written through the file, not the map: a full disk is then an error and not the end of the
    process.
    """

    def __init__(self, folder: Path, size: int, dtype: Any = np.float64) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the numbers are wanted)
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
    n_stored: int = 0
    """Rows of the files."""
    kept: KeptRows | None = None
    """Those of them that are kept; None: all."""
    protocol: Protocol | None = None

    def __len__(self) -> int:
        return self.n_stored if self.kept is None else len(self.kept)

    @property
    def sha256(self) -> str:
        """A digest of the rows of the files."""
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
        return np.concatenate([self.part(rows).label for rows in row_slices(len(self))])

    @property
    def propensity(self) -> np.ndarray | None:
        """None: propensities of a log on disk are estimated."""
        return None

    def part(self, rows: slice | np.ndarray) -> Interactions:
        """A range of rows (or rows by their numbers, rising), in memory."""
        columns = {name: np.array(getattr(self, name)[rows]) for name in COLUMNS}
        found = Interactions(pl.DataFrame(columns), self.users, self.items, self.scale)
        return found if self.protocol is None else found.labelled(self.protocol)

    def take(self, rows: np.ndarray) -> Interactions:  # type: ignore[override]
        """Rows by their numbers, in memory; or all that a mask leaves, on disk as before."""
        return (
            self.without(np.flatnonzero(~rows)) if rows.dtype == bool else self.part(np.sort(rows))
        )

    def without(self, rows: np.ndarray) -> Self:
        """All rows but these, on disk as before."""
        rows = np.sort(rows)
        gone = rows if self.kept is None else self.kept.positions(rows)
        return replace(self, kept=KeptRows.of(self._masks(gone)))

    def labelled(self, protocol: Protocol) -> Self:
        """These rows with the labels of a protocol, without the rows it drops."""
        rating = self._file("rating")
        masks = zip(self._masks(), row_slices(self.n_stored), strict=True)
        kept = KeptRows.of(
            mask & (protocol.label(rating[rows], self.scale) >= 0) for mask, rows in masks
        )
        return replace(self, kept=self.kept if len(kept) == len(self) else kept, protocol=protocol)

    def scratch(self, dtype: Any = np.float64) -> Scratch:
        """Room for a number per row, beside the rows."""
        return Scratch(self.folder, len(self), dtype)

    def _masks(self, gone: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Which rows of each chunk of the files are kept, without those at `gone` (positions in the
        files, rising)."""
        for k, rows in enumerate(row_slices(self.n_stored)):
            size = rows.stop - rows.start
            bits = None if self.kept is None else np.unpackbits(self.kept.bits[k], count=size)
            mask = np.ones(size, bool) if bits is None else bits.astype(bool)
            if gone is not None:
                low, high = np.searchsorted(gone, [rows.start, rows.stop])
                mask[gone[low:high] - rows.start] = False
            yield mask

    def _file(self, name: str) -> np.ndarray:
        return np.memmap(self.folder / f"{name}.bin", COLUMNS[name], "r", shape=(self.n_stored,))

    def _column(self, name: str) -> np.ndarray:
        values = self._file(name)
        return values if self.kept is None else KeptColumn(values, self.kept)  # type: ignore[return-value]


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
    source, target = (
        ParquetLog(Path(logged), RatingScale.of(scale), dict(names or {})),
        Path(folder),
    )
    summary = source.summary()
    data = build(summary.skeleton())
    if summary.low == summary.high != data.scale.high:
        raise InputError(
            "all ratings of the log are equal",
            file=source.path,
            found=f"{summary.low:g} in every row",
            expected="1 where every row is a like",
            hint="Write 1, or leave the shards out.",
        )
    facts = {
        "format": FORMAT,
        "source": source.state(),
        "users": len(data.user_ids),
        "items": len(data.item_ids),
        "rows": summary.n_rows,
    }
    found = _read_facts(target)
    if found is None:
        with atomic_folder(target) as temporary:
            digest = sort_log(source, summary, data, temporary, shard_rows)
            if source.state() != facts["source"]:
                raise InputError(
                    "the log changed while it was read",
                    file=source.path,
                    hint="Repeat the command.",
                )
            found = {**facts, "sha256": digest, "columns": check_columns(temporary, summary, data)}
            write_json(temporary / "shards.json", found)
    elif {key: found.get(key) for key in facts} != facts:
        raise InputError(
            "the shards of another log",
            file=target,
            hint="Name another folder, or remove this one.",
        )
    elif check_columns(target, summary, data) != found.get("columns"):
        raise _damaged(target, "other rows than were written")
    stand_in = pl.DataFrame({"sha256": [found["sha256"]]})
    rows = StoredInteractions(
        stand_in, data.user_ids, data.item_ids, data.scale, target, found["rows"]
    )
    return replace(data, logged=rows).with_overlap(overlap)


def _read_facts(folder: Path) -> dict[str, Any] | None:
    """What a folder of shards says of itself; None where there is nothing yet."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        facts: dict[str, Any] = json.loads((folder / "shards.json").read_text(encoding="utf-8"))
        sizes = [
            (folder / f"{name}.bin").stat().st_size == facts["rows"] * d.itemsize
            for name, d in COLUMNS.items()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "a new folder, or one that was sorted before"
        raise InputError("not a folder of shards", file=folder, expected=expected) from error
    if facts.get("format") != FORMAT or not all(sizes):
        raise _damaged(folder, "files of another size, or of another version of puid")
    return facts


def _damaged(folder: Path, found: str) -> InputError:
    return InputError(
        "damaged shards",
        file=folder,
        found=found,
        hint="Remove the folder; it is made anew from the log.",
    )


def check_columns(folder: Path, summary: LogSummary, data: Dataset) -> dict[str, str]:
    """The digest of each column of the shards; refuses codes and ratings that the log does not
    hold.

    One pass at the speed of the disk, a fraction of the pass over the log that `summary` took: what
    was changed on disk since it was sorted is never trained on.
    """
    ends = {
        "user": (0, len(data.user_ids) - 1),
        "item": (0, len(data.item_ids) - 1),
        "rating": (summary.low, summary.high),
    }
    digests = {}
    for name, kind in COLUMNS.items():
        digest = hashlib.sha256()
        low, high = np.array(ends[name], kind)
        with (folder / f"{name}.bin").open("rb") as stream:
            while (values := np.fromfile(stream, kind, CHUNK)).size:
                if not (
                    low <= values.min() and values.max() <= high
                ):  # both are NaN where one value is
                    found = f"{name}s from {values.min():g} to {values.max():g}, not {low:g} to {high:g}"
                    raise _damaged(folder, found)
                digest.update(values.data)
        digests[name] = digest.hexdigest()
    return digests


def sort_log(
    source: ParquetLog, summary: LogSummary, data: Dataset, folder: Path, shard_rows: int
) -> str:
    """Write the sorted columns; returns a digest of the rows."""
    degree = np.zeros(len(data.user_ids), np.int64)
    degree[data.user_ids.encode(summary.users["user_id"])] = summary.users["len"].to_numpy()
    shard_of = (np.cumsum(degree) - degree) // shard_rows
    files = [folder / f"shard-{k}.tmp" for k in range(int(shard_of[-1]) + 1)]
    _distribute(source, data, shard_of, files)
    digest = hashlib.sha256()
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
            rows["user"], rows["item"] = (
                data.user_ids.encode(batch["user_id"]),
                data.item_ids.encode(batch["item_id"]),
            )
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
        user, item = data.user_ids.ids[int(pair["user"])], data.item_ids.ids[int(pair["item"])]
        raise InputError(
            "pair rated twice",
            file=source.path,
            column="user_id, item_id",
            found=f"{user}, {item}",
            expected="one row per user and item",
            hint="Remove repeats; a log on disk is taken as it is.",
        )
