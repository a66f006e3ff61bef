import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.features.bins import bin_side, cross


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user_id": np.arange(n),
            "sex": rng.choice(["f", "m"], n),
            "job": rng.choice([f"j{k}" for k in range(20)], n, p=np.arange(20, 0, -1) / 210),
            "age": rng.normal(40, 12, n),
            "posts": rng.poisson(0.4, n).astype(float),
        }
    )


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 300), min_count=st.integers(1, 50), max_bins=st.integers(1, 20), seed=st.integers(0, 99))
def test_every_bin_holds_its_minimum_and_codes_are_compact(n, min_count, max_bins, seed):
    bins = bin_side(table(n, seed), id_column="user_id", min_count=min_count, max_bins=max_bins)
    size = np.bincount(bins.codes, minlength=bins.n_bins)
    assert bins.codes.shape == (n,)
    assert size.size == bins.n_bins <= max_bins
    assert size.min() >= min(min_count, n)
    assert len(set(bins.labels)) == bins.n_bins


def test_frequent_combinations_stay_and_rare_ones_join_the_nearest():
    frame = pl.DataFrame(
        {
            "user_id": np.arange(43),
            "a": ["x"] * 20 + ["y"] * 20 + ["x"] * 3,
            "b": ["p"] * 20 + ["q"] * 20 + ["r"] * 3,
        }
    )
    bins = bin_side(frame, id_column="user_id", min_count=10)
    assert bins.labels == ("a=x, b=p", "a=y, b=q")
    assert bins.codes.tolist() == [0] * 20 + [1] * 20 + [0] * 3


def test_same_bins_again_and_whatever_the_row_order():
    frame = table(500)
    first, again = (bin_side(frame, id_column="user_id") for _ in range(2))
    order = np.random.default_rng(1).permutation(500)
    shuffled = bin_side(frame[order], id_column="user_id")
    assert np.array_equal(first.codes, again.codes)
    assert shuffled.labels == first.labels
    assert np.array_equal(shuffled.codes, first.codes[order])


def test_a_column_too_fine_is_coarsened_not_lost():
    frame = pl.DataFrame({"user_id": np.arange(40), "a": [f"v{k % 13}" for k in range(40)]})
    bins = bin_side(frame, id_column="user_id", min_count=10)
    assert bins.columns == ("a",)
    assert bins.n_bins == 2


def test_columns_that_explain_degrees_come_first():
    frame = table(100, 3)
    degree = 10.0 * (frame["age"].to_numpy() > 40) + np.random.default_rng(0).normal(size=100)
    assert bin_side(frame, id_column="user_id").columns[0] == "sex"
    assert bin_side(frame, id_column="user_id", relevance=degree).columns[0] == "age"
    constant = bin_side(frame, id_column="user_id", relevance=np.ones(100))
    assert constant.columns == bin_side(frame, id_column="user_id").columns


def test_without_features_there_is_one_bin():
    for bins in (
        bin_side(None, id_column="user_id", n_entities=7),
        bin_side(pl.DataFrame({"user_id": np.arange(7)}), id_column="user_id"),
        bin_side(table(7), id_column="user_id", exclude=["sex", "job", "age", "posts"]),
    ):
        assert (bins.codes.tolist(), bins.labels, bins.columns) == ([0] * 7, ("all",), ())
    with pytest.raises(InputError, match="n_entities"):
        bin_side(None, id_column="user_id")


@pytest.mark.parametrize(
    "column",
    [
        pl.Series("item_id", [1, 1] * 10),
        pl.Series("name", [f"n{k}" for k in range(20)]),
        pl.Series("number", np.random.default_rng(0).permutation(20) + 100.0),
    ],
)
def test_ids_are_refused_and_can_be_excluded(column):
    frame = pl.DataFrame({"user_id": np.arange(20), "sex": ["f", "m"] * 10}).with_columns(column)
    with pytest.raises(InputError, match=f"{column.name}.*cannot be a feature"):
        bin_side(frame, id_column="user_id")
    assert bin_side(frame, id_column="user_id", exclude=[column.name]).columns == ("sex",)


def test_distinct_measurements_are_not_ids():
    frame = pl.DataFrame({"user_id": np.arange(50), "price": np.random.default_rng(0).normal(size=50)})
    assert bin_side(frame, id_column="user_id").columns == ("price",)


def test_cross_agrees_iff_every_code_agrees():
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, k, 400) for k in (3, 7, 2))
    crossed = cross(a, b, c)
    rows = np.unique(np.stack([a, b, c]), axis=1, return_inverse=True)[1].ravel()
    assert np.array_equal(crossed, rows)


def test_bins_of_a_million_rows_hold_the_minimum_count():
    frame = table(1_000_000)
    bins = bin_side(frame, id_column="user_id")
    assert np.bincount(bins.codes).min() >= 5000
