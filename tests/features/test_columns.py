import numpy as np
import polars as pl
import pytest

from puidrec.errors import InputError
from puidrec.features.columns import MAX_LEVELS, bin_column


def sizes(column, n_bins=4):
    found = bin_column(column, n_bins)
    return dict(zip(found.labels, np.bincount(found.codes, minlength=len(found.labels)).tolist(), strict=True))


def test_quantiles_are_even_and_ordered():
    values = np.random.default_rng(0).normal(size=1000)
    found = bin_column(pl.Series("x", values))
    assert np.bincount(found.codes).tolist() == [250] * 4
    assert [values[found.codes == k].max() < values[found.codes == k + 1].min() for k in range(3)] == [True] * 3
    assert found.codes.dtype == np.int32


def test_few_distinct_numbers_are_their_own_bins():
    assert sizes(pl.Series("x", [1.0, 2.0, 2.0, 5.0])) == {"1": 1, "2": 2, "5": 1}


def test_ties_at_zero_fall_back_to_zero_against_the_rest():
    assert sizes(pl.Series("x", [0.0] * 60 + [float(k) for k in range(1, 41)])) == {"below 1": 60, "1 or more": 40}


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
    column = pl.Series("g", [["drama", "war"], ["drama"], ["war", "drama"], ["war"], [], None, [None, "sea"]])
    found = bin_column(column)
    assert [found.labels[k] for k in found.codes] == ["drama", "drama", "drama", "war", "none", "missing", "sea"]


def test_two_levels_cut_as_evenly_as_possible():
    column = bin_column(pl.Series("x", ["a"] * 5 + ["b"] * 3 + ["c"] * 2))
    assert np.bincount(column.two_levels().codes).tolist() == [5, 5]
    assert column.two_levels().labels == ("a", "b or c")


def test_all_missing_constant_and_boolean():
    assert bin_column(pl.Series("x", [None, None], dtype=pl.Float64)).labels == ("missing",)
    assert bin_column(pl.Series("x", [None, None], dtype=pl.String)).labels == ("missing",)
    assert bin_column(pl.Series("x", [2, 2])).labels == ("2",)
    assert set(bin_column(pl.Series("x", [True, False])).labels) == {"true", "false"}


def test_refuses_what_it_cannot_bin():
    with pytest.raises(InputError, match="cannot be binned"):
        bin_column(pl.Series("x", [{"a": 1}]))
    with pytest.raises(InputError, match="n_bins"):
        bin_column(pl.Series("x", [1.0]), 1)
