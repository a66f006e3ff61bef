"""Coat shopping: 290 users × 300 coats, self-selected ratings and ratings of coats shown at random.

Files: `train.ascii` and `test.ascii` (matrices, 0 = not rated), or `user.txt` and `random.txt`
(`user,item,rating`); `user_item_features/` with one-hot groups; `propensities.ascii`. Ids are the
row and column numbers from 0.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.data.schema import short_reason
from puidrec.data.sources.reading import (
    AnyPath,
    as_text,
    data_folder,
    first_file,
    has_file,
    read_bytes,
    read_ratings,
)
from puidrec.data.tables import OverlapRule
from puidrec.errors import InputError
from puidrec.features.factors import with_pseudo_features

SCALE = (1.0, 5.0)


def load(
    path: AnyPath | None,
    *,
    features: Literal["real", "pseudo", "none"] = "real",
    dim: int = 32,
    overlap: OverlapRule = "drop",
) -> Dataset:
    """Load Coat, with the published propensities as a column where their file is there.

    The real features are the default: they are what lifts accuracy on Coat. dim: pseudo-features.
    """
    folder = data_folder(path, "coat")
    logged_file = first_file(folder, ("train.ascii", "user.txt"), "coat")
    uniform_file = first_file(folder, ("test.ascii", "random.txt"), "coat")
    logged, uniform = _ratings(logged_file), _ratings(uniform_file)
    published = folder / "propensities.ascii"
    if has_file(published):
        matrix = _read_matrix(published)
        logged, uniform = (
            _with_propensity(frame, matrix, published) for frame in (logged, uniform)
        )
    users, items = (
        _side(folder, entity) if features == "real" else None for entity in ("user", "item")
    )
    data = Dataset.from_frame(
        logged,
        uniform,
        users,
        items,
        scale=SCALE,
        unknown_ids="keep",
        overlap=overlap,
        name="coat",
        origins={"logged": logged_file, "uniform": uniform_file, "users": folder, "items": folder},
        notes={"files": [logged_file.name, uniform_file.name], "features": features},
    )
    return with_pseudo_features(data, dim) if features == "pseudo" else data


def _ratings(path: Path) -> pl.DataFrame:
    """The rated cells of a matrix, or the rows of a `user,item,rating` file."""
    if path.suffix != ".ascii":
        return read_ratings(path)
    matrix = _read_matrix(path)
    user, item = np.nonzero(matrix)
    return pl.DataFrame({"user_id": user, "item_id": item, "rating": matrix[user, item]})


def _read_matrix(path: Path) -> np.ndarray:
    """A matrix of numbers in plain text, one row per line."""
    try:
        matrix = np.loadtxt(io.BytesIO(read_bytes(path)), comments=None, ndmin=2)
    except ValueError as error:
        problem = f"not a matrix of numbers ({short_reason(error)})"
        raise InputError(problem, file=path) from error
    if not np.isfinite(matrix).all():
        raise InputError("not a matrix of finite numbers", file=path)
    return matrix


def _with_propensity(frame: pl.DataFrame, matrix: np.ndarray, path: Path) -> pl.DataFrame:
    """Add the propensity of each rated pair from the full matrix, which is in the file `path`."""
    ids = frame.select("user_id", "item_id")
    if frame.is_empty() or any(not dtype.is_integer() for dtype in ids.dtypes):
        return frame  # `Dataset.from_frame` says what is wrong with it
    if (ids.to_numpy() < 0).any() or (ids.to_numpy().max(axis=0) >= matrix.shape).any():
        raise InputError(
            "propensities do not cover the rated pairs",
            file=path,
            found=f"a {matrix.shape[0]} x {matrix.shape[1]} matrix",
            hint="Remove the file.",
        )
    user, item = ids.to_numpy().T
    return frame.with_columns(pl.Series("propensity", matrix[user, item]))


def _side(folder: Path, entity: str) -> pl.DataFrame:
    """Decode one-hot groups: the columns `colour:red, colour:blue, …` become one categorical column
    `colour`."""
    path = folder / "user_item_features" / f"{entity}_features.ascii"
    matrix = _read_matrix(path)
    named = path.with_name(f"{entity}_features_map.txt")
    lines = as_text(read_bytes(named), named).split("\n")
    names = [line.strip().partition(":") for line in lines if line.strip().partition(":")[0]]
    if len(names) != matrix.shape[1]:
        found, expected = matrix.shape[1], f"{len(names)} as in the map"
        raise InputError("columns without names", file=path, found=found, expected=expected)
    table: dict[str, object] = {f"{entity}_id": np.arange(matrix.shape[0], dtype=np.int64)}
    for group in dict.fromkeys(name[0] for name in names):
        columns = [k for k, name in enumerate(names) if name[0] == group]
        block = matrix[:, columns]
        wrong = np.flatnonzero(((block != 0) & (block != 1)).any(axis=1) | (block.sum(axis=1) != 1))
        if wrong.size:
            found = " ".join(f"{value:g}" for value in block[wrong[0]])
            raise InputError(
                "not one-hot",
                file=path,
                row=int(wrong[0]) + 1,
                column=group,
                found=found,
            )
        table[group] = np.array([names[k][2] for k in columns])[block.argmax(axis=1)]
    return pl.DataFrame(table)
