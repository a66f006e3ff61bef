"""Small logs whose exposure depends on known features."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.experiments.reproduce.chain import Exposed


def made_dataset(seed: int = 0, n_users: int = 120, n_items: int = 90, effect: float = 0.6) -> Dataset:
    """Exposure depends on `active` and on the tag `hit`; all other features are noise."""
    rng = np.random.default_rng(seed)
    active, hit = rng.random(n_users) < 0.5, rng.random(n_items) < 0.4
    odds = np.exp(-1.6 + effect * 2.5 * np.outer(active, np.ones(n_items)) + effect * 3 * hit)
    seen = rng.random((n_users, n_items)) < odds / (1 + odds)
    user, item = np.nonzero(seen)
    logged = pl.DataFrame({"user_id": user, "item_id": item, "rating": rng.integers(1, 6, user.size)})
    users = pl.DataFrame(
        {
            "user_id": np.arange(n_users),
            "active": np.where(active, "yes", "no"),
            "job": rng.choice(["a", "b", "c", "d"], n_users),
            "age": rng.integers(18, 70, n_users),
            "town": rng.choice(["x", "y", "z"], n_users),
        }
    )
    tags = [["hit"] * bool(h) + ["t" + str(k) for k in range(4) if rng.random() < 0.3] for h in hit]
    items = pl.DataFrame({"item_id": np.arange(n_items), "year": rng.integers(1950, 2000, n_items), "tags": tags})
    return Dataset.from_frame(logged, users=users, items=items, scale=(1, 5), unknown_ids="keep", name="made")


@pytest.fixture(scope="session")
def made() -> Dataset:
    return made_dataset()


@pytest.fixture(scope="session")
def exposed(made: Dataset) -> Exposed:
    return Exposed.of(made)
