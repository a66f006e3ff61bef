"""Propensities of the caller at and beyond the edge of (0, 1]: refused by row, or clipped and
counted, never passed on.

A log's column must lie in (0, 1] and is refused by row; what comes past it is clipped at
`min_propensity` (and at 1) in one place, which counts what it moved; NaN is refused everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.exposure.base import Exposure, Given
from puidrec.methods import METHODS
from puidrec.model import Recommender

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"epochs": 2, "dim": 2, "l2": 0.1, "propensity": "given", "select": "none"}
BAD = {
    "zero": 0.0,
    "nan": float("nan"),
    "infinite": float("inf"),
    "negative": -0.1,
    "minus zero": -0.0,
    "above": 1.01,
}


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    frame = simulate("mixed", 12, 9, density=0.4, rng=0).data.logged.to_frame()
    return frame.select("user_id", "item_id", "rating", propensity=pl.lit(0.4))


def spoiled(log: pl.DataFrame, value: float, row: int = 3) -> pl.DataFrame:
    column = log["propensity"].to_numpy().copy()
    column[row] = value
    return log.with_columns(propensity=column)


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_a_column_with_what_is_no_probability_is_refused_by_row(
    value: float, log: pl.DataFrame, refusal
) -> None:
    refusal(lambda: Dataset.from_frame(spoiled(log, value), scale=(1, 5)), "row 4", "propensity")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "", "x", "1,5", "1e-400"])
def test_a_file_with_what_is_no_probability_is_refused(
    text: str, log: pl.DataFrame, tmp_path, refusal
) -> None:
    from puidrec import load_dataset

    path = tmp_path / "logged.csv"
    lines = log.write_csv().splitlines()
    lines[4] = lines[4].rsplit(",", 1)[0] + f",{text}"
    path.write_text("\n".join(lines) + "\n")
    refusal(lambda: load_dataset("files", logged=path, scale=(1, 5)), "logged.csv", "row 4")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [1.0, 1e-12])
def test_the_edges_train_every_method(
    method: str, value: float, log: pl.DataFrame, suited, refusal
) -> None:
    world, options = suited(method, Dataset.from_frame(log, scale=(1, 5)), OPTIONS)
    uniform = None if world.uniform is None else world.uniform.to_frame()
    logged = world.logged.to_frame().with_columns(propensity=pl.lit(0.4))
    data = Dataset.from_frame(spoiled(logged, value), uniform, scale=(1, 5), unknown_ids="keep")
    model = Recommender(method, **options)
    if (
        method == "tdr"
    ):  # its weights are calibrated to all pairs, and a log's column names those of the log
        refusal(
            lambda: model.fit(data),
            "no propensity was given for",
            "a propensity for every pair asked for",
        )
        return
    model.fit(data)
    users, items = data.user_ids.ids, data.item_ids.ids
    assert np.isfinite(model.predict(users.gather(np.arange(9)), items.gather(np.arange(9)))).all()
    about = model.report_.get("propensity")
    if about is not None:
        assert about["smallest"] >= model.settings.min_propensity


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, 1e-3), (-1.0, 1e-3), (1e-12, 1e-3), (-np.inf, 1e-3), (1.5, 1.0), (np.inf, 1.0)],
)
def test_what_is_clipped_is_counted(value: float, expected: float, log: pl.DataFrame) -> None:
    data = Dataset.from_frame(log, scale=(1, 5))
    split = data.split("rd", 0, select="none")
    user, item = split.train.user[:2], split.train.item[:2]
    seen = Exposure.from_rows(data, split.train, split.propensity)
    column = np.full(len(data.logged), 0.4)
    column[(data.logged.user == user[0]) & (data.logged.item == item[0])] = value
    fitted = Given(low=1e-3).fit(replace(seen, given=column))
    assert fitted.predict(user, item).tolist() == [expected, 0.4]
    assert fitted.describe()["share_clipped"] == pytest.approx(1 / len(split.train))
