"""What users and items are called, and in which order rows come, changes no score: of every method
that is solved.

Rows that `fit(data)` holds out are drawn by what they say (`data.signature`), so they are the same
rows. A split that is given, or one of a protocol, is drawn by position.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods import METHODS
from puidrec.model import Recommender

USERS, ITEMS = 60, 40
FIXED = {"dim": 4, "l2": 0.1}
GRID = ("mf", "ips", "dr", "rd-ips", "rd-dr", "puid-dr", "bpuid-dr", "brd-ips", "ips-v2")
OTHERS = (
    "mrdr",
    "dr-mse",
    "tdr",
    "d-dr",
    "signed-rd",
    "signed-puid",
    "all-rank",
    "stable-dr",
    "bal-dr",
    "res-dr",
    "dcf",
    "idcf",
    "spectrum",
)
CLOSED = ("ease", "bias", "item-rate", "popularity", "pure-svd")
CASES = {**{name: FIXED for name in (*GRID, *OTHERS)}, **{name: {"dim": 3} for name in CLOSED}}  # noqa: C420
"""One row per builder at least, and those whose weights or Γ are made in another way."""
ADAM = {"multi-ips", "multi-dr", "cvib", "auto-debias"}
"""Started at random and stopped early: their start depends on the order of ids."""


@pytest.fixture(scope="module")
def logs():
    """A log, and the same with other ids in another order: the new ids of users and items come with
    it."""
    data = simulate("mixed", USERS, ITEMS, density=0.25, n_uniform=2_000, rng=0).data
    rng = np.random.default_rng(7)
    new = {"user_id": rng.permutation(USERS) + 1_000, "item_id": rng.permutation(ITEMS) + 5_000}
    tables = {
        "logged": data.logged.to_frame(),
        "uniform": data.uniform.to_frame(),
        "users": data.users,
        "items": data.items,
    }

    def renamed(table: pl.DataFrame) -> pl.DataFrame:
        ids = [
            pl.Series(key, codes[table[key].to_numpy()])
            for key, codes in new.items()
            if key in table.columns
        ]
        return table.with_columns(ids).sample(fraction=1.0, shuffle=True, seed=3)

    assert (np.diff(new["user_id"]) < 0).any()
    other = {key: renamed(table) for key, table in tables.items()}
    return (
        Dataset.from_frame(**tables, scale=(1, 5)),
        Dataset.from_frame(**other, scale=(1, 5)),
        new,
    )


def gap(method: str, logs, **options) -> float:
    """The largest difference of a score between the two."""
    first, second, new = logs
    user, item = (x.ravel() for x in np.meshgrid(np.arange(USERS), np.arange(ITEMS), indexing="ij"))
    one, other = (Recommender(method, rng=0, **options).fit(data) for data in (first, second))
    scores = one.predict(user, item, scale="unit")
    assert np.ptp(scores) > 0.05
    return float(
        np.abs(
            scores - other.predict(new["user_id"][user], new["item_id"][item], scale="unit")
        ).max()
    )


@pytest.mark.parametrize("method", CASES)
def test_names_and_order_change_no_score(method, logs) -> None:
    assert gap(method, logs, **CASES[method]) < 1e-4


@pytest.mark.parametrize("method", ["mf", "rd-ips"])
def test_nor_where_logged_rows_are_held_out(method, logs) -> None:
    """Without uniform rows some of the log neither train nor choose: other rows, other scores."""
    *tables, new = logs
    alone = [Dataset.from_frame(data.logged.to_frame(), scale=(1, 5)) for data in tables]
    assert gap(method, (*alone, new), **FIXED) < 1e-4


def test_nor_do_they_choose_dim_and_l2(logs) -> None:
    """Rough fits of five folds, each from a start of its own; whatever the method, it is `mf`."""
    assert gap("mf", logs) < 1e-4


def test_every_builder_is_here_or_trained_by_adam() -> None:
    builders = {METHODS[name].build for name in CASES}
    assert not [
        name for name, spec in METHODS.items() if spec.build not in builders and name not in ADAM
    ]
