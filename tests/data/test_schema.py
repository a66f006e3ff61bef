from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.data.dataset import Dataset
from puidrec.data.schema import (
    Origin,
    RatingScale,
    check_choice,
    check_ids,
    clean_interactions,
    clean_side,
    require_columns,
    require_rows,
    to_polars,
)

HERE = Origin("log.csv")
GOOD = {"user_id": [1, 2, 3], "item_id": ["a", "b", "c"], "rating": [1.0, 3.0, 5.0]}
FIVE = RatingScale(1, 5)


def clean(**changes: object) -> pl.DataFrame:
    return clean_interactions(pl.DataFrame({**GOOD, **changes}, strict=False), FIVE, HERE)


def test_good_rows_come_out_with_known_types() -> None:
    frame = clean(propensity=[0.1, 0.5, 1.0], timestamp=[3, None, 1], other=[1, 2, 3])
    assert frame.schema == {
        "user_id": pl.Int64,
        "item_id": pl.String,
        "rating": pl.Float64,
        "propensity": pl.Float64,
        "timestamp": pl.Int64,
    }
    assert frame["timestamp"].to_list() == [3, None, 1]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"rating": [1.0, float("nan"), 2.0]},
            ("row 2", "column 'rating'", "not a finite number", "nan"),
        ),
        ({"rating": [1.0, 2.0, float("-inf")]}, ("row 3", "column 'rating'", "-inf")),
        ({"rating": [1.0, None, 2.0]}, ("row 2", "missing value", "found 'nothing'")),
        ({"rating": ["1", "two", "x"]}, ("row 2", "not a number", "'two'", "1 more")),
        (
            {"rating": [1.0, 0.5, 9.0]},
            ("row 2", "out of range", "0.5", "[1, 5]", "1 more", "--scale"),
        ),
        ({"rating": [[1], [2], [3]]}, ("column 'rating'", "not a numeric column", "List")),
        ({"user_id": [1.0, 2.0, 3.0]}, ("column 'user_id'", "integers or text", "Float64")),
        ({"user_id": [1, None, 3]}, ("row 2", "column 'user_id'", "missing id")),
        ({"item_id": ["a", "", "c"]}, ("row 2", "column 'item_id'", "empty id")),
        ({"user_id": [2**64 - 1, 1, 2]}, ("row 1", "id too large", "18446744073709551615")),
        ({"propensity": [0.0, 0.5, 1.0]}, ("row 1", "column 'propensity'", "(0, 1]")),
        ({"propensity": [0.1, 1.5, 1.0]}, ("row 2", "column 'propensity'", "1.5")),
        ({"propensity": [0.1, None, 1.0]}, ("row 2", "column 'propensity'", "missing")),
        (
            {"timestamp": ["2020-01-01", "then", "2020-01-02"]},
            ("row 2", "column 'timestamp'", "'then'"),
        ),
        ({"timestamp": [dt.timedelta(1)] * 3}, ("column 'timestamp'", "not a time")),
    ],
)
def test_bad_cells_are_named_by_row_and_column(
    changes: dict[str, object], parts: tuple[str, ...], refusal
) -> None:
    refusal(lambda: clean(**changes), "log.csv", *parts)


def test_a_rating_that_overflows_storage_is_refused(refusal) -> None:
    table = pl.DataFrame({**GOOD, "rating": [1.0, 1e300, 2.0]})
    refusal(lambda: clean_interactions(table, None, HERE), "row 2", "out of range", "1e+300")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["2020-01-01", None, "1970-01-01"], [1577836800000000, None, 0]),
        (["2020-01-01T00:00:00Z", None, "1970-01-01T00:00:00Z"], [1577836800000000, None, 0]),
        (["5", "7", None], [5, 7, None]),
        ([dt.date(2020, 1, 1), None, dt.date(1970, 1, 1)], [1577836800000000, None, 0]),
        ([2**60 + 1, 0, 1], [2**60 + 1, 0, 1]),
        ([1.0, float("nan"), None], [1, None, None]),
    ],
)
def test_times_in_every_form(column: list[object], expected: list[int | None]) -> None:
    assert clean(timestamp=column)["timestamp"].to_list() == expected


def test_a_megabyte_in_a_cell_is_quoted_short(refusal) -> None:
    message = refusal(lambda: clean(rating=["1", "x" * 1_000_000, "2"]), "row 2", "not a number")
    assert len(message) < 400


def test_side_tables_keep_three_types() -> None:
    frame = pl.DataFrame(
        {
            "n": [1, None],
            "user_id": ["a", "b"],
            "flag": [True, None],
            "tags": [["x", "y"], None],
            "codes": [[1, 2], []],
            "day": [dt.date(1970, 1, 2), None],
            "void": [None, None],
        }
    )
    out = clean_side(frame, "user_id", Origin("users.csv"))
    assert out.columns[0] == "user_id"
    kinds = {name: out[name].dtype for name in out.columns[1:]}
    lists = pl.List(pl.String)
    expected = {
        "n": pl.Float64,
        "flag": pl.String,
        "tags": lists,
        "codes": lists,
        "day": pl.Float64,
        "void": pl.String,
    }
    assert kinds == expected
    assert out["codes"].to_list() == [["1", "2"], []]
    assert out["day"].to_list() == [86_400_000_000.0, None]


@pytest.mark.parametrize(
    ("frame", "parts"),
    [
        ({"user_id": [1, 2, 1]}, ("row 3", "column 'user_id'", "twice")),
        ({"user_id": [1, 2], "x": [1.0, float("inf")]}, ("row 2", "column 'x'", "inf")),
        ({"user_id": [1], "x": [{"a": 1}]}, ("column 'x'", "cannot be a feature", "Struct")),
        ({"user_id": [1], "x": [[[1]]]}, ("column 'x'", "cannot be a feature")),
        ({"user_id": [1], "x": [b"raw"]}, ("column 'x'", "cannot be a feature", "Binary")),
        ({"uid": [1]}, ("missing column user_id",)),
        ({"user_id": []}, ("empty",)),
    ],
)
def test_bad_side_tables(frame: dict[str, object], parts: tuple[str, ...], refusal) -> None:
    refusal(
        lambda: clean_side(pl.DataFrame(frame), "user_id", Origin("users.csv")), "users.csv", *parts
    )


@given(low=st.integers(-20, 20), width=st.integers(1, 40))
def test_a_scale_maps_its_ends_to_0_and_1_and_to_1_and_5_stars(low: int, width: int) -> None:
    scale = RatingScale(low, low + width)
    ends = np.array([low, low + width])
    np.testing.assert_allclose(scale.unit(ends), [0, 1])
    np.testing.assert_array_equal(scale.stars(ends), [1, 5])


def test_a_rating_rounded_past_its_scale_stays_on_it() -> None:
    assert RatingScale(0.0, 0.1).unit(np.float32([0.1]))[0] == 1.0


@pytest.mark.parametrize(
    "scale",
    [
        (0, 1e-300),
        (0, 5e-324),
        (0, 1e-43),
        (1, 1 + 1e-9),
        (1e9, 1e9 + 1),
        (-1e15, -1e15 + 4),
        (0.3, 0.3 + 1e-7),
    ],
)
def test_a_scale_that_32_bits_cannot_hold_is_refused(scale: tuple[float, float], refusal) -> None:
    """Ratings are kept in 32 bits: they would be all zeros, or all one value, and train to
    nothing."""
    rows = {"user_id": [1, 1, 2, 2], "item_id": [1, 2, 1, 2], "rating": [*scale, *scale]}
    for named in (None, scale):
        refusal(
            lambda named=named: Dataset.from_frame(rows, scale=named),
            "too narrow",
            "32 bits",
            "Rescale",
        )


@pytest.mark.parametrize(
    "scale", [(0, 1e-40), (0, 1e-30), (1, 1.01), (1e6, 1e6 + 100), (-1e37, 1e37)]
)
def test_a_narrow_scale_that_32_bits_hold_keeps_its_levels(scale: tuple[float, float]) -> None:
    levels = np.linspace(*scale, 5)
    rows = {"user_id": [1, 1, 1, 2, 2], "item_id": [1, 2, 3, 1, 2], "rating": levels}
    data = Dataset.from_frame(rows)
    np.testing.assert_allclose(data.scale.unit(data.logged.rating), np.linspace(0, 1, 5), atol=1e-3)
    assert data.logged.rating.dtype == np.float32


@pytest.mark.parametrize(
    "scale", [(5, 1), (1, 1), (0, float("inf")), (float("nan"), 1), (1,), (1, 2, 3), "ab", 5]
)
def test_a_wrong_scale_is_refused(scale: object, refusal) -> None:
    refusal(lambda: RatingScale.of(scale), "scale")


def test_choices_are_listed(refusal) -> None:
    refusal(lambda: check_choice("log", "small", ("a", "b")), "log", "'small'", "one of a, b")


COLUMNS = {"user_id": [1, 2], "item_id": ["a", "b"], "rating": [1.0, 2.5]}
ORIGIN = Origin("here.csv")


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
    assert to_polars(table, ORIGIN).equals(pl.DataFrame(COLUMNS))


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
    refusal(lambda: to_polars(table, ORIGIN), "here.csv")


def test_missing_columns_and_rows_are_named(refusal) -> None:
    frame = pl.DataFrame({"uid": []})
    refusal(
        lambda: require_columns(frame, ("user_id",), ORIGIN),
        "here.csv",
        "missing column user_id",
        "found 'uid'",
    )
    refusal(lambda: require_rows(frame, ORIGIN), "here.csv", "empty", "0 rows")


def test_what_speaks_arrow_is_a_table_and_a_column_is_none(refusal) -> None:
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2]})

    class Relation:
        """As DuckDB and others hand over tables."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return frame.__arrow_c_stream__(requested_schema)

    assert to_polars(Relation(), Origin("logged")).equals(frame)
    for column in (frame["user_id"], frame["user_id"].to_pandas(), frame["user_id"].to_arrow()):
        refusal(lambda column=column: to_polars(column, Origin("logged")), "logged", "not a table")


def test_an_id_written_as_a_whole_and_as_a_broken_number_is_refused(refusal) -> None:
    ids = pl.Series("user_id", ["2.0", "1", "x", "1.0", "1.5"])
    refusal(lambda: check_ids(ids, Origin("log")), "log", "row 4", "user_id", "'1.0'", "two ways")
    refusal(lambda: check_ids(pl.Series("user_id", ["1.0", "1.00"]), Origin("log")), "two ways")
    for fine in (["1.0", "2.0"], ["1", "01", "1.5"], ["1", "2.0"], ["v1", "v1.0"]):
        assert check_ids(pl.Series("user_id", fine), Origin("log")).to_list() == fine
