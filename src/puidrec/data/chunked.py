"""Simulations too large for memory: the same data as `simulate`, in a folder of Parquet files."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Unpack

from puidrec.data.simulator.files import Progress, read_tables, read_truth, write_simulation
from puidrec.data.simulator.truth import Truth
from puidrec.data.synthetic import MoreOptions, Simulation, assemble, simulation_options
from puidrec.rng import Rng


def simulate_to_parquet(
    folder: str | PathLike[str],
    world: str = "mixed",
    n_users: int = 100_000,
    n_items: int = 10_000,
    n_rows: int | None = None,
    *,
    rng: Rng = 0,
    chunk_users: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[MoreOptions],
) -> dict[str, int]:
    """Write what `simulate` would return, in chunks of users, without ever holding the log.

    `chunk_users` bounds memory and changes nothing else. Returns the counts `rows`, `uniform_rows`, `users`, `items`.
    """
    truth = Truth.from_options(simulation_options(world, n_users, n_items, n_rows, rng=rng, **options))
    rows = write_simulation(folder, truth, chunk_users=chunk_users, progress=progress)
    return {"rows": rows, "uniform_rows": truth.options.n_uniform, "users": n_users, "items": n_items}


def read_simulation(folder: str | PathLike[str]) -> Simulation:
    """Read a folder that `simulate_to_parquet` wrote, and rebuild its truth."""
    truth, root = read_truth(folder), Path(folder)
    origins = {"logged": root / "logged", **{k: root / f"{k}.parquet" for k in ("uniform", "users", "items")}}
    return assemble(read_tables(folder), truth, origins)
