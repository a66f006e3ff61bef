"""KuaiRec's fully observed block in both forms: `small_matrix.csv`, and the bit-packed `small_matrix_labels.npz`.

The block is dense by design (1,411 × 3,327 with 0.4 % of cells missing), so its labels are kept as matrices of bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.atomic import atomic_path
from puidrec.data.frames import Origin, require_rows
from puidrec.data.sources.reading_arrays import read_arrays
from puidrec.data.sources.reading_scan import collect_columns, name_bad_cell, scan_columns
from puidrec.errors import InputError

MAX_CELLS = 1 << 28
"""A block larger than this is no fully observed block, and is refused before memory is."""
WATCHED = {"user_id": pl.Int64, "video_id": pl.Int64, "watch_ratio": pl.Float64}
_BITS = ("gt2_bits", "ge2_bits")


@dataclass(frozen=True)
class Block:
    """Labels of every pair of the block's users and videos, both sorted by id."""

    user_id: np.ndarray
    video_id: np.ndarray
    gt2: np.ndarray
    """watch_ratio > 2, the paper's positive label; [users, videos] of bool."""
    ge2: np.ndarray
    """watch_ratio >= 2."""
    observed: np.ndarray | None
    """Whether the pair was observed; None where the file does not tell (then unobserved pairs read as negative)."""

    @classmethod
    def read_csv(cls, path: Path) -> Block:
        """Read the original form."""
        rows = watched_pairs(path)
        require_rows(rows, Origin(path))
        users, user = np.unique(rows["user_id"].to_numpy(), return_inverse=True)
        videos, video = np.unique(rows["video_id"].to_numpy(), return_inverse=True)
        _check_size(users.size, videos.size, path)
        matrices = [np.zeros((users.size, videos.size), dtype=bool) for _ in range(3)]
        for matrix, column in zip(matrices, ("gt2", "ge2"), strict=False):
            chosen = rows[column].to_numpy()
            matrix[user[chosen], video[chosen]] = True
        matrices[2][user, video] = True
        return cls(users, videos, *matrices)

    @classmethod
    def read_npz(cls, path: Path) -> Block:
        """Read the compact form, with or without `observed_bits`."""
        arrays = read_arrays(path, ("user_id", "video_id", *_BITS), ("observed_bits",))
        users, videos = (_checked_ids(arrays[key], key, path) for key in ("user_id", "video_id"))
        _check_size(users.size, videos.size, path)
        shape = (users.size, (videos.size + 7) // 8)
        for name in arrays.keys() - {"user_id", "video_id"}:
            if arrays[name].dtype != np.uint8 or arrays[name].shape != shape:
                found = f"{arrays[name].dtype} {arrays[name].shape}"
                raise InputError("wrong array", file=path, column=name, found=found, expected=f"uint8 {shape}")
        observed = _unpacked(arrays["observed_bits"], videos.size) if "observed_bits" in arrays else None
        gt2, ge2 = (_unpacked(arrays[name], videos.size) for name in _BITS)
        return cls(users, videos, gt2, ge2, observed)

    def write_npz(self, path: Path) -> None:
        """Write the compact form."""
        matrices = {"gt2_bits": self.gt2, "ge2_bits": self.ge2, "observed_bits": self.observed}
        packed = {name: np.packbits(bits, axis=1) for name, bits in matrices.items() if bits is not None}
        arrays: dict[str, Any] = {"user_id": self.user_id, "video_id": self.video_id, **packed}
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **arrays)

    @property
    def candidates(self) -> np.ndarray:
        """The pairs whose label is known."""
        return np.ones_like(self.gt2) if self.observed is None else self.observed


def watched_pairs(path: Path) -> pl.DataFrame:
    """One row per pair of a watch file, `gt2` and `ge2` if any of its views was; sorted by user and video."""
    ratio = pl.col("watch_ratio")
    query = (
        scan_columns(path, WATCHED)
        .group_by("user_id", "video_id")
        .agg(gt2=(ratio > 2).any(), ge2=(ratio >= 2).any(), bad=(ratio.is_null() | ~ratio.is_finite()).any())
    )
    rows = collect_columns(query, path, WATCHED)
    bad = pl.any_horizontal("bad", pl.col("user_id", "video_id").is_null())
    if rows.select(bad.any()).item():
        name_bad_cell(path, WATCHED, required=tuple(WATCHED))
    return rows.drop("bad").sort("user_id", "video_id")


def _check_size(users: int, videos: int, path: Path) -> None:
    if users * videos > MAX_CELLS:
        raise InputError(
            "too many pairs for a fully observed block",
            file=path,
            found=f"{users:,} users x {videos:,} videos",
            expected=f"at most {MAX_CELLS:,} pairs",
            hint="Is this big_matrix.csv? The block is small_matrix.csv.",
        )


def _checked_ids(ids: np.ndarray, key: str, path: Path) -> np.ndarray:
    if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer) or np.any(ids[1:] <= ids[:-1]):
        raise InputError(
            "wrong array",
            file=path,
            column=key,
            found=f"{ids.dtype} {ids.shape}",
            expected="whole numbers that increase",
        )
    return ids.astype(np.int64)


def _unpacked(bits: np.ndarray, columns: int) -> np.ndarray:
    return np.unpackbits(bits, axis=1, count=columns).astype(bool)
