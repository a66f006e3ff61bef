"""Bins of single columns, composite bins of side tables: sizes, order, what is refused."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.features.bins import MAX_LEVELS, bin_column, bin_side, cross


def sizes(column, n_bins=4):
    found = bin_column(column, n_bins)
    return dict(
        zip(
            found.labels,
            np.bincount(found.codes, minlength=len(found.labels)).tolist(),
            strict=True,
        )
    )


def test_quantiles_are_even_and_ordered():
    values = np.random.default_rng(0).normal(size=1000)
    found = bin_column(pl.Series("x", values))
    assert np.bincount(found.codes).tolist() == [250] * 4
    assert [
        values[found.codes == k].max() < values[found.codes == k + 1].min() for k in range(3)
    ] == [True] * 3
    assert found.codes.dtype == np.int32


def test_few_distinct_numbers_are_their_own_bins():
    assert sizes(pl.Series("x", [1.0, 2.0, 2.0, 5.0])) == {"1": 1, "2": 2, "5": 1}


def test_ties_at_zero_fall_back_to_zero_against_the_rest():
    assert sizes(pl.Series("x", [0.0] * 60 + [float(k) for k in range(1, 41)])) == {
        "below 1": 60,
        "1 or more": 40,
    }


def test_ties_elsewhere_fall_back_to_the_most_even_cut():
    # 94 % equal the minimum: quantiles collapse to one bin, equal width still separates the tail
    found = sizes(pl.Series("x", [3.0] * 94 + [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]))
    assert len(found) > 1
    assert max(found.values()) <= 95


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_numbers_are_the_last_bin(missing):
    found = bin_column(pl.Series("x", [1.0, missing, 2.0, missing]))
    assert found.labels == ("1", "2", "missing")
    assert found.codes.tolist() == [0, 2, 1, 2]


def test_categories_by_frequency_and_the_rare_ones_together():
    assert bin_column(pl.Series("x", ["b", "a", "b", None])).labels == ("b", "a", "missing")
    many = bin_column(pl.Series("x", [f"v{k:02d}" for k in range(40)] + ["top"]))
    assert len(many.labels) == MAX_LEVELS
    assert many.labels[0] == "top"
    assert many.labels[-1] == "other"
    assert np.bincount(many.codes)[-1] == 41 - (MAX_LEVELS - 1)


def test_lists_go_by_their_most_common_value():
    column = pl.Series(
        "g", [["drama", "war"], ["drama"], ["war", "drama"], ["war"], [], None, [None, "sea"]]
    )
    found = bin_column(column)
    assert [found.labels[k] for k in found.codes] == [
        "drama",
        "drama",
        "drama",
        "war",
        "none",
        "missing",
        "sea",
    ]


def test_two_levels_cut_as_evenly_as_possible():
    column = bin_column(pl.Series("x", ["a"] * 5 + ["b"] * 3 + ["c"] * 2))
    assert np.bincount(column.two_levels().codes).tolist() == [5, 5]
    assert column.two_levels().labels == ("a", "b or c")


def test_all_missing_constant_and_boolean():
    assert bin_column(pl.Series("x", [None, None], dtype=pl.Float64)).labels == ("missing",)
    assert bin_column(pl.Series("x", [None, None], dtype=pl.String)).labels == ("missing",)
    assert bin_column(pl.Series("x", [2, 2])).labels == ("2",)
    assert set(bin_column(pl.Series("x", [True, False])).labels) == {"true", "false"}


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
@given(
    n=st.integers(1, 300),
    min_count=st.integers(1, 50),
    max_bins=st.integers(1, 20),
    seed=st.integers(0, 99),
)
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
    ):
        assert (bins.codes.tolist(), bins.labels, bins.columns) == ([0] * 7, ("all",), ())


@pytest.mark.parametrize(
    "column",
    [
        pl.Series("item_id", [1, 1] * 10),
        pl.Series("name", [f"n{k}" for k in range(20)]),
        pl.Series("number", np.random.default_rng(0).permutation(20) + 100.0),
    ],
)
def test_ids_are_refused(column):
    frame = pl.DataFrame({"user_id": np.arange(20), "sex": ["f", "m"] * 10}).with_columns(column)
    with pytest.raises(InputError, match=f"{column.name}.*cannot be a feature"):
        bin_side(frame, id_column="user_id")


def test_distinct_measurements_are_not_ids():
    frame = pl.DataFrame(
        {"user_id": np.arange(50), "price": np.random.default_rng(0).normal(size=50)}
    )
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
