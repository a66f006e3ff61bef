"""The rows of an audit and their strata."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing.inputs import AuditArrays, strata


def test_strata_are_of_equal_size_and_in_order() -> None:
    known = np.random.default_rng(0).normal(size=5_000)
    codes = strata(known)
    assert np.bincount(codes).tolist() == [200] * 25
    order = np.argsort(known)
    assert (np.diff(codes[order].astype(int)) >= 0).all()


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (399, 1), (400, 2), (100_000, 50)])
def test_few_rows_make_few_strata(n: int, expected: int) -> None:
    assert int(strata(np.arange(n, dtype=float)).max()) + 1 == expected


def test_ties_stay_together() -> None:
    known = np.repeat([0.0, 1.0], 1_000)
    codes = strata(known)
    assert np.unique(codes[:1000]).size == np.unique(codes[1000:]).size == 1
    assert strata(np.zeros(10_000)).max() == 0


def make(against: np.ndarray | None) -> AuditArrays:
    one = np.array([0.0, 1.0, 0.5])
    return AuditArrays(
        np.arange(3),
        np.arange(3),
        one,
        np.array([0, 1, 0]),
        np.array([0.1, 0.8, 0.5]),
        against,
        np.full(3, 0.5),
    )


def test_a_gap_is_above_zero_where_the_model_does_better() -> None:
    arrays = make(np.array([0.4, 0.8, 0.4]))
    assert arrays.name == "loss_gap"
    np.testing.assert_allclose(arrays.main.value, [0.15, 0.0, 0.01])
    np.testing.assert_allclose(arrays.losses(arrays.model).value, [0.01, 0.04, 0.0])


def test_one_model_is_judged_by_its_loss() -> None:
    arrays = make(None)
    assert arrays.name == "model_loss"
    np.testing.assert_allclose(arrays.main.value, [0.01, 0.04, 0.0])
