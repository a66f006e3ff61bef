from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from puidrec.data.schema import Origin, require_columns, require_rows, to_polars

COLUMNS = {"user_id": [1, 2], "item_id": ["a", "b"], "rating": [1.0, 2.5]}
HERE = Origin("here.csv")


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pd.DataFrame(COLUMNS, index=[7, 7]),
        pa.table(COLUMNS),
        COLUMNS,
        {**COLUMNS, "rating": [1, 2.5]},
    ],
    ids=["polars", "lazy", "pandas", "arrow", "mapping", "mixed numbers"],
)
def test_every_kind_of_table_becomes_the_same_frame(table: object) -> None:
    assert to_polars(table, HERE).equals(pl.DataFrame(COLUMNS))


@pytest.mark.parametrize(
    "table",
    [
        {"user_id": [1, "a"]},
        {"user_id": [1], "item_id": [1, 2]},
        pd.DataFrame({"user_id": [1, "a"]}),
        pd.DataFrame([[1, 2]], columns=["x", "x"]),
        pl.LazyFrame({"x": ["a"]}).select(pl.col("x").cast(pl.Int64)),
        [1, 2, 3],
        None,
    ],
    ids=["mixed ids", "ragged", "pandas mixed", "pandas twice", "lazy failure", "list", "none"],
)
def test_what_is_no_table_is_refused(table: object, refusal) -> None:
    refusal(lambda: to_polars(table, HERE), "here.csv")


def test_missing_columns_and_rows_are_named(refusal) -> None:
    frame = pl.DataFrame({"uid": []})
    refusal(lambda: require_columns(frame, ("user_id",), HERE), "here.csv", "missing column user_id", "found 'uid'")
    refusal(lambda: require_rows(frame, HERE), "here.csv", "empty", "0 rows")
