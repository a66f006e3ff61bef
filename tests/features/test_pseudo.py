from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.data.dataset import Dataset
from puidrec.features.factors import kmeans_bins, pseudo_features, with_pseudo_features


def full_log(
    rank: int, shape: tuple[int, int] = (40, 30)
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    left, right = rng.standard_normal((shape[0], rank)), rng.standard_normal((shape[1], rank))
    table = (left - left.mean(axis=0)) @ (right - right.mean(axis=0)).T
    user, item = (codes.ravel() for codes in np.indices(shape))
    return user, item, table.ravel(), table


def test_factors_are_the_best_low_rank_fit() -> None:
    """A full table whose rows and columns average to 0 needs no centring, so the dense SVD is the
    oracle."""
    user, item, rating, table = full_log(6)
    for dim in (1, 3, 6):
        left, right = pseudo_features(user, item, rating, 40, 30, dim)
        u, s, v = np.linalg.svd(table)
        np.testing.assert_allclose(left @ right.T, (u[:, :dim] * s[:dim]) @ v[:dim], atol=1e-8)
        np.testing.assert_allclose((left**2).sum(axis=0), (right**2).sum(axis=0))
        assert (np.diff((left**2).sum(axis=0)) <= 1e-9).all()


def test_the_order_of_rows_does_not_matter() -> None:
    user, item, rating, _ = full_log(5)
    first = pseudo_features(user, item, rating, 40, 30, 4)
    order = np.random.default_rng(3).permutation(user.size)
    second = pseudo_features(user[order], item[order], rating[order], 40, 30, 4)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_a_log_without_structure_gives_zeros() -> None:
    user, item, _, _ = full_log(1)
    left, right = pseudo_features(user, item, np.full(user.size, 3.0), 40, 30, 2)
    assert not left.any()
    assert not right.any()


@pytest.mark.parametrize("dim", [0, 30, 64])
def test_too_many_dimensions_are_refused(dim: int, refusal) -> None:
    user, item, rating, _ = full_log(2)
    refusal(lambda: pseudo_features(user, item, rating, 40, 30, dim), f"found {dim}", "1 to 29")


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(-30, 30), min_size=4, max_size=40), k=st.integers(2, 4))
def test_no_value_is_nearer_to_the_mean_of_another_bin(values: list[int], k: int) -> None:
    column = np.array(values, float)
    codes = kmeans_bins(column[:, None], k)[:, 0]
    means = np.array([column[codes == c].mean() for c in range(codes.max() + 1)])
    distance = np.abs(column[:, None] - means)
    assert (distance[np.arange(column.size), codes] <= distance.min(1) + 1e-9).all()


@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    k=st.integers(1, 6),
)
def test_codes_rise_with_the_value(values: list[float], k: int) -> None:
    column = np.array(values)
    codes = kmeans_bins(column[:, None], k)[:, 0]
    assert codes.dtype == np.int32
    assert codes.min() >= 0
    assert codes.max() < k
    assert (np.diff(codes[np.argsort(column, kind="stable")]) >= 0).all()
    distinct = np.unique(column)
    if distinct.size <= k:
        np.testing.assert_array_equal(codes, np.searchsorted(distinct, column))


def test_a_data_set_gains_categories_made_from_its_log() -> None:
    user, item, rating, _ = full_log(3)
    seen = np.random.default_rng(0).random(user.size) < 0.6
    log = pl.DataFrame({"user_id": user[seen], "item_id": item[seen], "rating": rating[seen]})
    users = pl.DataFrame({"user_id": np.arange(40), "age": np.arange(40.0)})
    data = Dataset.from_frame(log, users=users)
    made = with_pseudo_features(data, 3)
    assert made.users.columns == ["user_id", "age", "f0", "f1", "f2"]
    assert made.items.columns == ["item_id", "f0", "f1", "f2"]
    assert set(made.items["f1"]) == {"0", "1", "2", "3"}
    assert made.logged is data.logged
    assert made.notes["pseudo_features"]["dim"] == 3
    again = with_pseudo_features(data, 3)
    assert again.sha256 == made.sha256


def test_taken_names_are_refused(refusal) -> None:
    user, item, rating, _ = full_log(3)
    log = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating})
    data = Dataset.from_frame(log, users=pl.DataFrame({"user_id": np.arange(40), "f1": "x"}))
    refusal(lambda: with_pseudo_features(data, 2), "column 'f1'", "Rename")
