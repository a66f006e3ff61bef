"""Exposure counts of a log that does not fit in memory: one pass over its Parquet files, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from puidrec.data.on_disk import CHUNK
from puidrec.errors import InputError
from puidrec.features.counts import ExposureCounts

Batch = tuple[np.ndarray, np.ndarray]
T = TypeVar("T")


def counts_from_parquet(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    user_bin: np.ndarray,
    item_bin: np.ndarray,
    *,
    user_ids: pl.Series | None = None,
    item_ids: pl.Series | None = None,
    batch_rows: int = CHUNK,
) -> ExposureCounts:
    """Count `user_id, item_id` rows of Parquet files (or folders of them) under given bins, in one pass.

    Without `user_ids` / `item_ids` the ids are the codes 0, 1, 2, …; with them, the position of an id in the sorted
    series is its code. Memory holds two batches and the tables; the next batch is read while one is counted. A pair
    must occur once, as in a data set.
    """
    batches = (
        (_codes(frame["user_id"], user_ids), _codes(frame["item_id"], item_ids))
        for frame in _ahead(_frames(parquet_files(paths), batch_rows))
    )
    return ExposureCounts.from_batches(batches, user_bin, item_bin)


def parquet_files(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[Path]:
    """The files that paths name, folders opened, in order; refuses what is not there."""
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    files: list[Path] = []
    for path in map(Path, given):
        found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not found or not all(file.is_file() for file in found):
            raise InputError("no Parquet file", file=path, hint="Check the path.")
        files.extend(found)
    if not files:
        raise InputError("no Parquet file was named", expected="at least one path")
    return files


def _frames(files: list[Path], batch_rows: int) -> Iterator[pl.DataFrame]:
    for file in files:
        try:
            scan = pl.scan_parquet(file)
            missing = {"user_id", "item_id"} - set(scan.collect_schema().names())
            if missing:
                raise InputError("missing column", file=file, found=sorted(missing), expected="user_id, item_id")
            rows = int(scan.select(pl.len()).collect().item())
            for start in range(0, rows, batch_rows):
                yield scan.select("user_id", "item_id").slice(start, batch_rows).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"cannot read ({str(error)[:120]})", file=file) from error


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Fetch the next item in a thread while the current one is used."""
    end = object()
    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = pool.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = pool.submit(next, items, end)
            yield item  # type: ignore[misc]


def _codes(column: pl.Series, ids: pl.Series | None) -> np.ndarray:
    """Codes of a batch of ids; unknown, missing or non-integer ones are refused."""
    if column.null_count():
        raise InputError("missing id", column=column.name, found=f"{column.null_count():,} empty cells")
    if ids is None:
        if not column.dtype.is_integer():
            raise InputError(
                "ids are no codes", column=column.name, found=str(column.dtype), hint="Pass user_ids and item_ids."
            )
        return column.to_numpy()
    position = ids.search_sorted(column.cast(ids.dtype)).to_numpy()
    inside = np.minimum(position, ids.len() - 1)
    strange = (ids.gather(inside) != column.cast(ids.dtype)).to_numpy()
    if strange.any():
        raise InputError("unknown id", column=column.name, found=column[int(strange.argmax())], expected="a listed id")
    return position
