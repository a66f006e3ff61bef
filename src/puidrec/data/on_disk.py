"""Rows that stay on disk: columns are memory-mapped files, read a range at a time, some rows left out by a bit each.

Held-out rows and rows that a protocol drops are marked, not copied: a log of n rows costs n/8 bytes of memory.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from puidrec.data.dataset import Interactions
from puidrec.data.protocol import Protocol
from puidrec.data.sorting import COLUMNS

CHUNK = 1 << 20
"""Rows looked at at a time where all must be; a multiple of 8."""


def slices(n: int) -> Iterator[slice]:
    """Ranges of CHUNK rows that cover n rows."""
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


@dataclass(frozen=True, eq=False)
class Kept:
    """Which rows of the files count: a bit per row, and how many count before each chunk."""

    bits: tuple[np.ndarray, ...]
    """One packed vector per chunk."""
    before: np.ndarray
    """Kept rows before each chunk, and all of them."""

    @classmethod
    def of(cls, masks: Iterator[np.ndarray]) -> Kept:
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
            np.flatnonzero(np.unpackbits(self.bits[k]))[rows[edges[k] : edges[k + 1]] - self.before[k]] + k * CHUNK
            for k in np.unique(chunk)
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Column:
    """A column as the rest of the program sees it: like an array, but only ranges of it are ever read."""

    values: np.ndarray
    kept: Kept | None = None

    def __len__(self) -> int:
        return int(self.values.size) if self.kept is None else len(self.kept)

    @property
    def size(self) -> int:
        """Rows."""
        return len(self)

    @property
    def shape(self) -> tuple[int]:
        """Rows, as arrays say it."""
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.values.dtype

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """A range of rows, or rows by their numbers in rising order."""
        if self.kept is None:
            return np.asarray(self.values[rows])
        wanted = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return np.asarray(self.values[self.kept.positions(wanted)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of it, for those who must have it."""
        return np.asarray(self[slice(None)], dtype)


class Scratch:
    """Numbers on disk that are gone with the process: written a range at a time, read memory-mapped.

    Written through the file, not the map: a full disk is then an error and not the end of the process.
    """

    def __init__(self, folder: Path, size: int, dtype: Any = np.float64) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the numbers are wanted)
        weakref.finalize(self, self._file.close)
        self._dtype = np.dtype(dtype)
        self._file.truncate(max(size, 1) * self._dtype.itemsize)
        self.values: np.ndarray = np.memmap(self._file, self._dtype, "r", shape=(max(size, 1),))[:size]

    def write(self, start: int, values: np.ndarray) -> None:
        """Put numbers from row `start` on."""
        self._file.seek(start * self._dtype.itemsize)
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._file.flush()


@dataclass(frozen=True)
class StoredInteractions(Interactions):
    """Rows on disk, sorted by user then item. `frame` holds their digest in place of them."""

    folder: Path = Path()
    n_stored: int = 0
    """Rows of the files."""
    kept: Kept | None = None
    """Those of them that count; None: all."""
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
        return np.concatenate([self.part(rows).label for rows in slices(len(self))])

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
        return self.without(np.flatnonzero(~rows)) if rows.dtype == bool else self.part(np.sort(rows))

    def without(self, rows: np.ndarray) -> Self:
        """All rows but these, on disk as before."""
        rows = np.sort(rows)
        gone = rows if self.kept is None else self.kept.positions(rows)
        return replace(self, kept=Kept.of(self._masks(gone)))

    def labelled(self, protocol: Protocol) -> Self:
        """The same rows under a protocol, less those it drops."""
        rating = self._file("rating")
        masks = zip(self._masks(), slices(self.n_stored), strict=True)
        kept = Kept.of(mask & (protocol.label(rating[rows], self.scale) >= 0) for mask, rows in masks)
        return replace(self, kept=self.kept if len(kept) == len(self) else kept, protocol=protocol)

    def scratch(self, dtype: Any = np.float64) -> Scratch:
        """Room for a number per row, beside the rows."""
        return Scratch(self.folder, len(self), dtype)

    def _masks(self, gone: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Which rows of each chunk of the files count, less those that go (places in the files, rising)."""
        for k, rows in enumerate(slices(self.n_stored)):
            size = rows.stop - rows.start
            mask = np.ones(size, bool)
            if self.kept is not None:
                mask = np.unpackbits(self.kept.bits[k], count=size).astype(bool)
            if gone is not None:
                low, high = np.searchsorted(gone, [rows.start, rows.stop])
                mask[gone[low:high] - rows.start] = False
            yield mask

    def _file(self, name: str) -> np.ndarray:
        return np.memmap(self.folder / f"{name}.bin", COLUMNS[name], "r", shape=(self.n_stored,))

    def _column(self, name: str) -> np.ndarray:
        values = self._file(name)
        return values if self.kept is None else Column(values, self.kept)  # type: ignore[return-value]
