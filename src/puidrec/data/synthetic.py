"""A simulator that knows the truth: logs with hidden confounding, and the quantities that no log
contains.

simulation = simulate("mixed", n_users=800, n_items=500, rng=0) simulation.data
# a Dataset: log, uniform sample, features simulation.truth.gamma(users, items)              # and
.propensity, .true_propensity, .phi, .rating, …

`simulate_to_parquet` writes the same data to a folder, in chunks of users, for logs larger than
memory:

logged/part-00000.parquet …   user_id, item_id (Int32), rating (UInt8), sorted by user, then item
uniform.parquet  users.parquet  items.parquet truth.json                    the options and the
intercept: enough to rebuild the truth about every pair
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.special import log_ndtr

from puidrec.atomic import atomic_folder, refuse_other_files, write_json
from puidrec.data.dataset import Dataset
from puidrec.data.schema import POLARS_ERRORS, short_reason
from puidrec.data.simulator.population import (
    WORLDS,
    SimulatedWorld,
    SimulationOptions,
    check_numbers,
    get_world,
)
from puidrec.data.simulator.truth import PROBIT_SCALE, Truth
from puidrec.errors import InputError, one_line
from puidrec.rng import Rng, derive_seed, generator

__all__ = [
    "WORLDS",
    "SimulatedWorld",
    "Simulation",
    "SimulationOptions",
    "Truth",
    "simulate",
    "simulation_options",
]

ROWS_PER_PART = 4_000_000
TRUTH_FILE = "truth.json"
TABLES = ("uniform", "users", "items")
Progress = Callable[[int, int], None]
"""Called with users done and users in all."""


@dataclass(frozen=True)
class Simulation:
    """A simulated data set and the truth behind it. Ids are the codes 0, 1, 2, … of users and
    items."""

    data: Dataset
    truth: Truth

    @property
    def world(self) -> SimulatedWorld:
        """The world it was drawn from."""
        return self.truth.world


def simulation_options(
    world: str = "mixed",
    n_users: int = 800,
    n_items: int = 500,
    n_rows: int | None = None,
    *,
    rng: Rng = 0,
    **options: Any,
) -> SimulationOptions:
    """Fill in what was not given; `options` are other fields of `SimulationOptions`.

    `n_rows`, the expected rows of the log, sets the density; the uniform sample has 16 pairs per
    user, at most a quarter of D and a million; the share of affected users is the world's own.
    """
    seed = derive_seed(rng, "simulate") if isinstance(rng, np.random.Generator | None) else rng
    given: dict[str, Any] = {"n_users": n_users, "n_items": n_items, "seed": seed, **options}
    check_numbers({**given, "n_rows": n_rows})
    pairs = n_users * n_items
    defaults = {
        "density": 0.05,
        "n_uniform": min(16 * n_users, pairs // 4, 1_000_000),
        "exposure_strength": 1.2,
        "rating_strength": 1.0,
        "sign": 1,
        "affected_share": get_world(world).affected_share,
    }
    if n_rows is not None:
        given["density"] = n_rows / pairs
    told = {name: value for name, value in given.items() if value is not None}
    return SimulationOptions(**{"world": world, **defaults, **told})


def simulate(
    world: str = "mixed",
    n_users: int = 800,
    n_items: int = 500,
    n_rows: int | None = None,
    *,
    rng: Rng = 0,
    **options: Any,
) -> Simulation:
    """Draw a log with hidden confounding, a uniform sample, and the truth; see `SimulationOptions`
    for the options."""
    truth = Truth.from_options(
        simulation_options(world, n_users, n_items, n_rows, rng=rng, **options)
    )
    # One path for all sizes: the same blocks that `simulate_to_parquet` writes.
    logged = pl.concat([_rated(truth, *pairs) for pairs in ExposureSampler(truth).blocks()])
    return _assemble({"logged": logged, **_tables(truth)}, truth, {})


def _rated(truth: Truth, users: np.ndarray, items: np.ndarray) -> pl.DataFrame:
    """Interactions of the given pairs with their realised ratings."""
    return pl.DataFrame({"user_id": users, "item_id": items, "rating": truth.rating(users, items)})


def _tables(truth: Truth) -> dict[str, pl.DataFrame]:
    """Features, and pairs drawn uniformly from D without replacement, sorted (where any were asked
    for)."""
    options, population = truth.options, truth.population
    tables = {"users": population.users.frame, "items": population.items.frame}
    if options.n_uniform:
        key = generator(options.seed, "uniform").choice(
            options.n_pairs, options.n_uniform, replace=False, shuffle=False
        )
        users, items = np.divmod(np.sort(key), options.n_items)
        tables["uniform"] = _rated(truth, users.astype(np.int32), items.astype(np.int32))
    return tables


def _assemble(
    tables: Mapping[str, pl.DataFrame], truth: Truth, origins: Mapping[str, Path]
) -> Simulation:
    """A simulation from its tables, which are checked like any other data."""
    data = Dataset.from_frame(
        tables["logged"],
        uniform=tables.get("uniform"),
        users=tables.get("users"),
        items=tables.get("items"),
        scale=(1, 5),
        unknown_ids="keep",
        name="simulated",
        origins=origins,
        notes={"simulated": truth.options.as_dict()},
    )
    return Simulation(data, truth)


def simulate_to_parquet(
    folder: str | PathLike[str],
    *args: Any,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, int]:
    """Write what `simulate` would return (its arguments), in chunks of users, without the whole log
    in memory.

    Returns the counts `rows`, `uniform_rows`, `users`, `items`. The folder appears complete or not
    at all.
    """
    truth = Truth.from_options(simulation_options(*args, **options))
    ours = ("logged", *(f"{key}.parquet" for key in TABLES), TRUTH_FILE)
    refuse_other_files(Path(folder), ours, "an earlier simulation", always=(TRUTH_FILE,))
    with atomic_folder(folder) as temporary:
        rows = _write_logged(temporary / "logged", truth, progress)
        for key, table in _tables(truth).items():
            table.write_parquet(temporary / f"{key}.parquet")
        solved = {"options": truth.options.as_dict(), "intercept": truth.intercept}
        write_json(temporary / TRUTH_FILE, {"format": 1, **solved, "rows": rows})
    own = truth.options
    counts = {"uniform_rows": own.n_uniform, "users": own.n_users, "items": own.n_items}
    return {"rows": rows, **counts}


def _write_logged(folder: Path, truth: Truth, progress: Progress | None) -> int:
    """One part per chunk; a chunk is a whole number of blocks, so its size does not change the
    rows."""
    folder.mkdir()
    sampler, options, rows = ExposureSampler(truth), truth.options, 0
    users = ROWS_PER_PART / (options.n_items * options.density)
    per_part = max(1, int(users / sampler.block_users))
    for part, first in enumerate(range(0, sampler.n_blocks, per_part)):
        last = min(first + per_part, sampler.n_blocks)
        chunk = pl.concat([_rated(truth, *sampler.block(k)) for k in range(first, last)])
        name = f"part-{part:05d}.parquet"
        chunk.write_parquet(folder / name, compression="lz4", statistics=False)
        rows += chunk.height
        if progress is not None:
            progress(min(last * sampler.block_users, options.n_users), options.n_users)
    return rows


def read_simulation(folder: str | PathLike[str]) -> Simulation:
    """Read a folder that `simulate_to_parquet` wrote, and rebuild its truth."""
    root = Path(folder)
    truth = _read_truth(root / TRUTH_FILE)
    wanted = [key for key in TABLES if key != "uniform" or truth.options.n_uniform]
    files = {"logged": root / "logged", **{key: root / f"{key}.parquet" for key in wanted}}
    return _assemble({key: _read(file) for key, file in files.items()}, truth, files)


def _read_truth(file: Path) -> Truth:
    """Rebuild the truth of a simulated folder from its options."""
    again = "Simulate the folder again with puid data simulate."
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        options, intercept = SimulationOptions(**content["options"]), float(content["intercept"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot read the truth of a simulation ({one_line(str(error))[:120]})"
        raise InputError(problem, file=file, hint=again) from error
    return Truth.from_options(options, intercept)


def _read(path: Path) -> pl.DataFrame:
    """A Parquet file, or all parts of a folder."""
    try:
        return pl.read_parquet(path / "part-*.parquet" if path.is_dir() else path)
    except (*POLARS_ERRORS, OSError) as error:
        problem, hint = f"cannot read ({short_reason(error)})", "Simulate the folder again."
        raise InputError(problem, file=path, hint=hint) from error


def load(path: str | PathLike[str] | None = None, *, seed: int = 0, **options: Any) -> Dataset:
    """The data source `simulated`: read the folder at `path`; without one, simulate (options of
    `simulate`)."""
    check_numbers({"seed": seed})
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


_LEVEL = 0.25
"""Width of a bucket on the logit scale: wider buckets are fewer, but more of the drawn points are
rejected."""
_ROWS_PER_BLOCK = 250_000


@dataclass(frozen=True)
class Buckets:
    """Entities grouped so that those of one bucket share a key and lie within one level of the
    logit."""

    members: np.ndarray
    start: np.ndarray
    count: np.ndarray
    top: np.ndarray
    """Largest logit in the bucket."""

    @property
    def first(self) -> np.ndarray:
        """One member of each bucket, to read what all its members share."""
        return self.members[self.start]

    def pick(self, bucket: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """A member of each given bucket, by a uniform draw."""
        count = self.count[bucket]
        offset = np.minimum((uniform * count).astype(np.int64), count - 1)
        return self.members[self.start[bucket] + offset]


def make_buckets(members: np.ndarray, key: np.ndarray, logit: np.ndarray) -> Buckets:
    """Group entities by key (what must be equal) and by level of their logit."""
    level = np.floor((logit - logit.min()) / _LEVEL).astype(np.int64)
    code = key.astype(np.int64) * (int(level.max()) + 1) + level
    order = np.argsort(code, kind="stable")
    start = np.flatnonzero(np.diff(code[order], prepend=-1))
    count = np.diff(start, append=order.size)
    return Buckets(members[order], start, count, np.maximum.reduceat(logit[order], start))


class ExposureSampler:
    """Draws the log of a world block by block of users; a block's draw depends on the seed and the
    block only."""

    def __init__(self, truth: Truth) -> None:
        sides, strength = truth.population, truth.options.exposure_strength
        self._truth = truth
        c = sides.users.strength_class
        hidden = strength * sides.strengths.user[c] * sides.users.hidden
        self._user_logit = sides.users.logit + hidden
        self._amplitude = strength * sides.strengths.pair[c]
        self._gate = sides.strengths.gate[c]
        self._gates = np.unique(self._gate)
        self._item_logit = {g: self._gated_logit(float(g)) for g in self._gates}
        tastes = sides.users.genre_hidden
        self._tastes = (
            None if tastes is None else strength * sides.strengths.genre[c][:, None] * tastes
        )
        genres = [None] if tastes is None else list(range(tastes.shape[1]))
        self._items = {
            (g, genre): self._bucketed(g, genre) for g in self._gates for genre in genres
        }

    @property
    def block_users(self) -> int:
        """Users per block: a fixed function of the options, so that chunking cannot change the
        data."""
        options = self._truth.options
        return int(
            np.clip(_ROWS_PER_BLOCK / (options.n_items * options.density), 1, options.n_users)
        )

    @property
    def n_blocks(self) -> int:
        """Blocks that cover all users."""
        return -(-self._truth.options.n_users // self.block_users)

    def block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Exposed pairs of one block of users, as (users, items) sorted by user, then item."""
        options = self._truth.options
        rng = generator(options.seed, "exposure", number)
        low = number * self.block_users
        users = np.arange(low, min(low + self.block_users, options.n_users))
        keys = [
            self._keys(users[self._gate[users] == g], g, genre, rng) for g, genre in self._items
        ]
        key = np.sort(np.concatenate(keys))
        key = key[np.diff(key, prepend=-1) > 0]
        user, item = np.divmod(key, options.n_items)
        return user.astype(np.int32), item.astype(np.int32)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All blocks in order of users."""
        return (self.block(number) for number in range(self.n_blocks))

    def _gated_logit(self, gate: float) -> np.ndarray:
        """Items' part of the logit for users on whom item traits act with factor `gate`; has the
        intercept."""
        items, strengths = self._truth.population.items, self._truth.population.strengths
        trait = gate * strengths.item[items.strength_class] * items.hidden
        logit: np.ndarray = items.logit + self._truth.options.exposure_strength * trait
        return logit + self._truth.intercept

    def _bucketed(self, gate: float, genre: int | None) -> Buckets | None:
        """Items by level of their logit: all of them, or those of one genre, where users have
        tastes for genres."""
        cell = self._truth.population.items.cell
        members = np.arange(cell.size) if genre is None else np.flatnonzero(cell == genre)
        if not members.size:
            return None
        return make_buckets(members, cell[members], self._item_logit[gate][members])

    def _keys(
        self, users: np.ndarray, gate: np.float64, genre: int | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Kept Poisson points of users of one gate, as user · n_items + item; a pair may come up
        more than once."""
        columns = self._items[gate, genre]
        if not users.size or columns is None:
            return np.zeros(0, np.int64)
        sides, probit = self._truth.population, self._truth.world.probit
        own = self._user_logit + (0.0 if self._tastes is None else self._tastes[:, genre])
        shared = sides.users.strength_class[users] * len(sides.cell_logit) + sides.users.cell[users]
        rows = make_buckets(users, shared, own[users])
        pairs = np.ix_(sides.users.cell[rows.first], sides.items.cell[columns.first])
        cell = sides.cell_logit[pairs]
        top = np.add.outer(rows.top + self._amplitude[rows.first], columns.top)
        ceiling = _rate(top + cell, probit)
        points = rng.poisson(ceiling * np.multiply.outer(rows.count, columns.count)).ravel()
        bucket = np.repeat(np.arange(points.size), points)
        row, column = np.divmod(np.arange(points.size), columns.count.size)
        user = rows.pick(np.repeat(row, points), rng.random(bucket.size))
        item = columns.pick(np.repeat(column, points), rng.random(bucket.size))
        z = own[user] + self._item_logit[gate][item] + np.repeat(cell.ravel(), points)
        if self._amplitude.any():
            z += self._amplitude[user] * self._truth.pair_hidden(user, item)
        kept = rng.random(bucket.size) * np.repeat(ceiling.ravel(), points) < _rate(z, probit)
        return user[kept] * np.int64(self._truth.options.n_items) + item[kept]


def _rate(z: np.ndarray, probit: bool) -> np.ndarray:
    """−log(1 − p), the Poisson rate with P(at least one) = p; for a logit softplus(z), z is at most
    about 20 here."""
    return -log_ndtr(-PROBIT_SCALE * z) if probit else np.log1p(np.exp(z))
