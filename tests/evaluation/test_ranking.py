"""Top-K against a full stable sort: values, order, ties, and what was excluded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.evaluation.ranking import mask_seen, ranges, top_k


def by_sorting(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@given(
    n_rows=st.integers(0, 5),
    n_columns=st.integers(1, 400),
    k=st.integers(1, 420),
    levels=st.integers(1, 1000),
    excluded=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_is_a_stable_sort_cut_at_k(
    n_rows: int, n_columns: int, k: int, levels: int, excluded: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (n_rows, n_columns)).astype(
        np.float32
    )  # few levels: many ties
    scores[rng.random(scores.shape) < excluded] = -np.inf
    position, value = top_k(scores, k)
    expected = by_sorting(scores, k)
    assert np.array_equal(position, expected)
    assert np.array_equal(value, np.take_along_axis(scores, expected, 1))


@pytest.mark.parametrize("k", [1, 10, 99, 1000])
def test_large_rows_take_the_two_levels(k: int) -> None:
    scores = np.random.default_rng(0).normal(size=(3, 50_021)).astype(np.float32)
    assert np.array_equal(top_k(scores, k)[0], by_sorting(scores, k))


def test_the_scores_are_left_alone() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    before = scores.copy()
    top_k(scores, 3)
    assert np.array_equal(scores, before)


def test_what_was_seen_is_never_recommended() -> None:
    row_start, items = np.array([0, 2, 2, 5]), np.array([1, 3, 0, 1, 2])
    scores = np.ones((4, 4), np.float32)
    mask_seen(scores, np.array([2, 0, 1, 3]), row_start, items)  # user 3 is not in the log
    assert [np.flatnonzero(np.isinf(row)).tolist() for row in scores] == [[0, 1, 2], [1, 3], [], []]
    assert top_k(scores, 2)[0].tolist() == [[3, 0], [0, 2], [0, 1], [0, 1]]


def test_what_was_seen_is_found_among_some_columns() -> None:
    row_start, items = np.array([0, 2, 2, 5]), np.array([1, 3, 0, 1, 2])
    scores = np.ones((3, 3), np.float32)
    columns = np.array(
        [-1, 2, -1, 0]
    )  # of the items, 3 is in column 0 and 1 in column 2; column 1 is no item of the log
    mask_seen(scores, np.array([2, 0, 3]), row_start, items, columns)
    assert [np.flatnonzero(np.isinf(row)).tolist() for row in scores] == [[2], [0, 2], []]


def test_ranges() -> None:
    assert ranges(np.array([3, 10, 5]), np.array([5, 10, 8])).tolist() == [3, 4, 5, 6, 7]
