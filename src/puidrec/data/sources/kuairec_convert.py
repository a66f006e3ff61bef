"""KuaiRec's original files to a compact folder of a few megabytes that loads in a second.

    small_matrix.csv → small_matrix_labels.npz     big_matrix.csv → big_matrix_labels.parquet (one row per pair)
    item_daily_features.csv → item_features.csv    user_features.csv, item_categories.csv → copied

Sources are streamed; the folder appears whole or not at all, and never in place of anything but an older one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from puidrec.atomic import atomic_folder, refuse_other_files
from puidrec.data.sources.kuairec_block import Block, watched_pairs
from puidrec.data.sources.kuairec_features import item_features
from puidrec.data.sources.reading import AnyPath, data_folder, first_file, has_file, input_errors
from puidrec.errors import InputError

SMALL, SMALL_COMPACT = "small_matrix.csv", "small_matrix_labels.npz"
BIG, BIG_COMPACT = "big_matrix.csv", "big_matrix_labels.parquet"
DAILY, DAILY_COMPACT = "item_daily_features.csv", "item_features.csv"
COPIED = ("user_features.csv", "item_categories.csv")
COMPACT = (SMALL_COMPACT, BIG_COMPACT, DAILY_COMPACT, *COPIED)


def convert(src: AnyPath, dst: AnyPath) -> dict[str, Any]:
    """Write the compact form of the originals in `src` to the folder `dst`; returns counts and file sizes."""
    source, target = data_folder(src, "kuairec"), Path(dst)
    _check_target(source, target)
    small = _inside(first_file(source, (SMALL,), "kuairec"), source)
    optional: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
        BIG: (BIG_COMPACT, _compact_big),
        DAILY: (DAILY_COMPACT, lambda old, new: item_features(old).write_csv(new)),
        **{name: (name, shutil.copyfile) for name in COPIED},
    }
    present = {name: _inside(source / name, source) for name in optional if has_file(source / name)}
    with atomic_folder(target) as folder:
        block = Block.read_csv(small)
        block.write_npz(folder / SMALL_COMPACT)
        for name, path in present.items():
            written, step = optional[name]
            step(path, folder / written)
        sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return {
        "users": block.user_id.size,
        "videos": block.video_id.size,
        "observed": int(block.candidates.sum()),
        "positives": int(block.gt2.sum()),
        "bytes": sizes,
    }


def _compact_big(path: Path, target: Path) -> None:
    watched_pairs(path).write_parquet(target, compression="zstd")


def _inside(path: Path, folder: Path) -> Path:
    """The real path of a source file; a link that leads out of its folder is refused, for it may lead anywhere."""
    with input_errors(path):
        real = path.resolve(strict=True)
        if not real.is_relative_to(folder.resolve(strict=True)) or not real.is_file():
            raise InputError(
                "not a plain file of this folder",
                file=path,
                found=str(real),
                hint="Copy the file itself into the folder.",
            )
    return real


def _check_target(source: Path, target: Path) -> None:
    """Refuse a target that holds the source, or anything that an earlier conversion did not write."""
    with input_errors(target):
        old, new = source.resolve(), target.resolve()
        if old == new or old.is_relative_to(new) or new.is_relative_to(old):
            raise InputError(
                "source and target overlap", file=target, found=str(source), expected="two separate folders"
            )
    refuse_other_files(target, COMPACT, "an earlier conversion")
