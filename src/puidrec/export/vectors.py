"""User and item vectors with biases folded in, so that an index of inner products ranks as the model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.atomic import write_text
from puidrec.data.dataset import IdMap
from puidrec.model import Recommender


def write_parquet(model: Recommender, folder: Path) -> dict[str, Any]:
    """`users.parquet` and `items.parquet`: an id and a fixed-size list of float32 per row."""
    sides = (("user", model.user_ids_, model.user_factors_), ("item", model.item_ids_, model.item_factors_))
    for side, ids, factors in sides:
        vectors = pl.Series("vector", factors, dtype=pl.Array(pl.Float32, factors.shape[1]))
        pl.DataFrame([ids.ids.alias(f"{side}_id"), vectors]).write_parquet(folder / f"{side}s.parquet")
    return {"columns": ["user_id or item_id", "vector"]}


def write_npy(model: Recommender, folder: Path) -> dict[str, Any]:
    """`users.npy` and `items.npy`, float32; row k belongs to entry k of `user_ids.json` and `item_ids.json`."""
    np.save(folder / "users.npy", model.user_factors_, allow_pickle=False)
    np.save(folder / "items.npy", model.item_factors_, allow_pickle=False)
    write_ids(model, folder)
    return {"rows": "row k belongs to entry k of user_ids.json or item_ids.json"}


def write_ids(model: Recommender, folder: Path) -> None:
    """The ids in order of their rows, as JSON lists."""
    sides: tuple[tuple[str, IdMap], ...] = (("user", model.user_ids_), ("item", model.item_ids_))
    for side, ids in sides:
        write_text(folder / f"{side}_ids.json", json.dumps(ids.ids.to_list(), ensure_ascii=False) + "\n")
