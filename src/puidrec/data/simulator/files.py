"""Simulated data as a folder of Parquet files, written in user blocks under bounded memory, and
read back.

logged/part-00000.parquet …   user_id, item_id (Int32), rating (UInt8), sorted by user, then item
uniform.parquet  users.parquet  items.parquet
truth.json                    the options and the intercept: enough to rebuild the truth about every pair
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, refuse_other_files, write_json
from puidrec.data.simulator.exposure import ExposureSampler
from puidrec.data.simulator.population import SimulationOptions
from puidrec.data.simulator.truth import Truth
from puidrec.errors import InputError
from puidrec.rng import generator

ROWS_PER_PART = 4_000_000
_MAX_THREADS = 4
"""Blocks drawn at once: NumPy releases the interpreter lock, and each block takes tens of
megabytes."""
TRUTH_FILE = "truth.json"
FILES = ("logged", "uniform.parquet", "users.parquet", "items.parquet", TRUTH_FILE)
"""All that a simulated folder ever holds."""
Progress = Callable[[int, int], None]
"""Called with users done and users in all."""


def rated(truth: Truth, users: np.ndarray, items: np.ndarray) -> pl.DataFrame:
    """Interactions of the given pairs with their realised ratings."""
    return pl.DataFrame({"user_id": users, "item_id": items, "rating": truth.rating(users, items)})


def uniform_sample(truth: Truth) -> pl.DataFrame | None:
    """Pairs drawn uniformly from D without replacement, sorted; None where none were asked for."""
    options = truth.options
    if not options.n_uniform:
        return None
    key = generator(options.seed, "uniform").choice(
        options.n_pairs, options.n_uniform, replace=False, shuffle=False
    )
    users, items = np.divmod(np.sort(key), options.n_items)
    return rated(truth, users.astype(np.int32), items.astype(np.int32))


def write_simulation(
    folder: str | PathLike[str],
    truth: Truth,
    *,
    chunk_users: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a whole simulation; returns the number of logged rows. The folder appears complete or
    not at all."""
    refuse_other_files(Path(folder), FILES, "an earlier simulation", always=(TRUTH_FILE,))
    with atomic_folder(folder) as temporary:
        rows = _write_logged(temporary / "logged", truth, chunk_users, progress)
        uniform = uniform_sample(truth)
        if uniform is not None:
            uniform.write_parquet(temporary / "uniform.parquet")
        truth.population.users.frame.write_parquet(temporary / "users.parquet")
        truth.population.items.frame.write_parquet(temporary / "items.parquet")
        content = {
            "format": 1,
            "options": truth.options.as_dict(),
            "intercept": truth.intercept,
            "rows": rows,
        }
        write_json(temporary / TRUTH_FILE, content)
    return rows


def _write_logged(
    folder: Path, truth: Truth, chunk_users: int | None, progress: Progress | None
) -> int:
    """One part per chunk; a chunk is a whole number of blocks, so its size does not change the
    rows."""
    folder.mkdir()
    sampler, n_users = ExposureSampler(truth), truth.options.n_users
    wanted = chunk_users or max(
        1, int(ROWS_PER_PART / (truth.options.n_items * truth.options.density))
    )
    per_part = max(1, wanted // sampler.block_users)
    parts = range(0, sampler.n_blocks, per_part)
    rows = 0
    with ThreadPoolExecutor(max_workers=min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        for part, first in enumerate(parts):
            last = min(first + per_part, sampler.n_blocks)
            blocks = pool.map(
                lambda number: rated(truth, *sampler.block(number)), range(first, last)
            )
            chunk = pl.concat(list(blocks))
            chunk.write_parquet(
                folder / f"part-{part:05d}.parquet", compression="lz4", statistics=False
            )
            rows += chunk.height
            if progress is not None:
                progress(min(last * sampler.block_users, n_users), n_users)
    return rows


def read_truth(folder: str | PathLike[str]) -> Truth:
    """Rebuild the truth of a simulated folder from its options."""
    file = Path(folder) / TRUTH_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        options, intercept = SimulationOptions(**content["options"]), float(content["intercept"])
    except OSError as error:
        problem = f"cannot read ({error.strerror or type(error).__name__})"
        raise InputError(
            problem, file=file, expected="a folder written by `puid data simulate`"
        ) from error
    except InputError as error:
        raise InputError(
            error.problem, file=file, found=error.found, expected=error.expected
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            "not the truth of a simulation",
            file=file,
            found=str(error),
            expected="options and intercept",
            hint="Simulate the folder again.",
        ) from error
    return Truth.from_options(options, intercept)


def read_tables(folder: str | PathLike[str]) -> dict[str, pl.DataFrame | None]:
    """The four tables of a simulated folder; `uniform` is None where no sample was drawn."""
    root = Path(folder)
    return {
        "logged": _read(root / "logged", "part-*.parquet"),
        "uniform": _read(root, "uniform.parquet") if (root / "uniform.parquet").exists() else None,
        "users": _read(root, "users.parquet"),
        "items": _read(root, "items.parquet"),
    }


def _read(folder: Path, pattern: str) -> pl.DataFrame:
    files = sorted(folder.glob(pattern))
    if not files:
        raise InputError("missing", file=folder / pattern, hint="Simulate the folder again.")
    try:
        return pl.read_parquet(files)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"cannot read ({str(error)[:120]})", file=folder, hint="Simulate the folder again."
        ) from error
