"""Simulated data under the same door as the real ones: drawn on the spot, or read from a simulated folder."""

from __future__ import annotations

from os import PathLike
from typing import Any

from puidrec.data.chunked import read_simulation
from puidrec.data.dataset import Dataset
from puidrec.data.simulator.worlds import require_numbers
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError


def load(path: str | PathLike[str] | None = None, *, seed: int = 0, **options: Any) -> Dataset:
    """Read the folder at `path`; without one, simulate (options of `puidrec.data.synthetic.simulate`)."""
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
