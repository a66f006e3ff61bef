"""A simulator that knows the truth: logs with hidden confounding, and the quantities that no log
contains.

simulation = simulate("mixed", n_users=800, n_items=500, rng=0)
simulation.data                                   # a Dataset: log, uniform sample, features
simulation.truth.gamma(users, items)              # and .propensity, .true_propensity, .phi, .rating, …

`simulate_to_parquet` writes the same data to a folder, in chunks of users, for logs larger than
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.simulator.exposure import ExposureSampler
from puidrec.data.simulator.files import (
    Progress,
    rated,
    read_tables,
    read_truth,
    uniform_sample,
    write_simulation,
)
from puidrec.data.simulator.population import (
    WORLDS,
    SimulatedWorld,
    SimulationOptions,
    get_world,
    require_numbers,
)
from puidrec.data.simulator.truth import Truth
from puidrec.errors import InputError
from puidrec.rng import Rng, derive_seed

__all__ = [
    "WORLDS",
    "SimulatedWorld",
    "Simulation",
    "SimulationOptions",
    "Truth",
    "simulate",
    "simulation_options",
]

_UNIFORM_PER_USER, _MAX_DEFAULT_UNIFORM = 16, 1_000_000


@dataclass(frozen=True)
class Simulation:
    """A simulated data set and the truth behind it. Ids are the codes 0, 1, 2, … of users and
    items."""

    data: Dataset
    truth: Truth

    @property
    def world(self) -> SimulatedWorld:
        """The world it was drawn from."""
        return WORLDS[self.truth.options.world]


class MoreOptions(TypedDict, total=False):
    """Options of `simulation_options` that other functions pass on; `SimulationOptions` describes
    them."""

    density: float
    n_uniform: int | None
    exposure_strength: float
    rating_strength: float
    sign: Literal[1, -1]
    affected_share: float | None


def simulation_options(
    world: str = "mixed",
    n_users: int = 800,
    n_items: int = 500,
    n_rows: int | None = None,
    *,
    rng: Rng = 0,
    density: float = 0.05,
    n_uniform: int | None = None,
    exposure_strength: float = 1.2,
    rating_strength: float = 1.0,
    sign: Literal[1, -1] = 1,
    affected_share: float | None = None,
) -> SimulationOptions:
    """Fill in what depends on other options.

    `n_rows`, the expected rows of the log, sets the density; the uniform sample has 16 pairs per
    user, at most a quarter of D and a million; the share of affected users is the world's own.
    """
    require_numbers(
        {
            "n_users": n_users,
            "n_items": n_items,
            "n_rows": n_rows,
            "n_uniform": n_uniform,
            "sign": sign,
        },
        {
            "density": density,
            "exposure_strength": exposure_strength,
            "rating_strength": rating_strength,
            "affected_share": affected_share,
        },
    )
    pairs = max(1, n_users * n_items)
    default_uniform = min(_UNIFORM_PER_USER * n_users, pairs // 4, _MAX_DEFAULT_UNIFORM)
    return SimulationOptions(
        world=get_world(world).name,
        n_users=n_users,
        n_items=n_items,
        density=density if n_rows is None else n_rows / pairs,
        n_uniform=default_uniform if n_uniform is None else n_uniform,
        exposure_strength=exposure_strength,
        rating_strength=rating_strength,
        sign=sign,
        affected_share=get_world(world).affected_share
        if affected_share is None
        else affected_share,
        seed=rng if isinstance(rng, int) else derive_seed(rng, "simulate"),
    )


def simulate(
    world: str = "mixed",
    n_users: int = 800,
    n_items: int = 500,
    n_rows: int | None = None,
    *,
    rng: Rng = 0,
    **options: Unpack[MoreOptions],
) -> Simulation:
    """Draw a log with hidden confounding, a uniform sample, and the truth; see `SimulationOptions`
    for the options."""
    truth = Truth.from_options(
        simulation_options(world, n_users, n_items, n_rows, rng=rng, **options)
    )
    # One path for all sizes: the same blocks that `simulate_to_parquet` writes.
    logged = pl.concat([rated(truth, *pairs) for pairs in ExposureSampler(truth).blocks()])
    population = truth.population
    tables = {"logged": logged, "uniform": uniform_sample(truth)}
    return assemble(
        {**tables, "users": population.users.frame, "items": population.items.frame}, truth, {}
    )


def assemble(
    tables: Mapping[str, pl.DataFrame | None], truth: Truth, origins: Mapping[str, Path]
) -> Simulation:
    """A simulation from its tables, which are checked like any other data."""
    notes = {"simulated": truth.options.as_dict()}
    logged, uniform, users, items = (tables[key] for key in ("logged", "uniform", "users", "items"))
    data = Dataset.from_frame(
        logged,
        uniform,
        users,
        items,
        scale=(1, 5),
        unknown_ids="keep",
        name="simulated",
        origins=origins,
        notes=notes,
    )
    return Simulation(data, truth)


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
    """Write what `simulate` would return, in chunks of users, without the whole log in memory.

    `chunk_users` bounds memory and changes nothing else. Returns the counts `rows`, `uniform_rows`,
    `users`, `items`.
    """
    truth = Truth.from_options(
        simulation_options(world, n_users, n_items, n_rows, rng=rng, **options)
    )
    rows = write_simulation(folder, truth, chunk_users=chunk_users, progress=progress)
    return {
        "rows": rows,
        "uniform_rows": truth.options.n_uniform,
        "users": n_users,
        "items": n_items,
    }


def read_simulation(folder: str | PathLike[str]) -> Simulation:
    """Read a folder that `simulate_to_parquet` wrote, and rebuild its truth."""
    truth, root = read_truth(folder), Path(folder)
    origins = {
        "logged": root / "logged",
        **{k: root / f"{k}.parquet" for k in ("uniform", "users", "items")},
    }
    return assemble(read_tables(folder), truth, origins)


def load(path: str | PathLike[str] | None = None, *, seed: int = 0, **options: Any) -> Dataset:
    """The data source `simulated`: read the folder at `path`; without one, simulate (options of
    `simulate`)."""
    require_numbers({"seed": seed}, {})
    if path is None:
        return simulate(rng=seed, **options).data
    if options or seed:
        raise InputError(
            "a simulated folder was drawn already and takes no options",
            file=path,
            found=", ".join(options) or "seed",
            hint="Leave the path out to simulate anew, or the options out to read the folder.",
        )
    return read_simulation(path).data
