"""Means over users, and intervals that cover as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.evaluation.per_user import PerUser, join, mean_interval


def test_equal_sizes_give_the_textbook_interval() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = mean_interval(PerUser(np.arange(50), values))
    assert found.value == pytest.approx(values.mean())
    assert found.standard_error == pytest.approx(values.std(ddof=1) / np.sqrt(50))
    assert found.high - found.value == pytest.approx(1.959964 * found.standard_error, rel=1e-6)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_sizes_make_it_a_mean_over_rows_that_covers_the_truth() -> None:
    """True ratio: E[size·value]/E[size], with sizes that go along with values."""
    rng, hits, trials = np.random.default_rng(1), 0, 600
    for _ in range(trials):
        size = rng.integers(1, 10, 80).astype(float)
        values = 0.1 * size + rng.normal(size=80)
        found = mean_interval(PerUser(np.arange(80), values, size), 0.9)
        hits += found.low <= 0.1 * (np.arange(1, 10) ** 2).sum() / np.arange(1, 10).sum() <= found.high
    assert 0.86 < hits / trials < 0.94


def test_one_user_or_none_has_no_interval() -> None:
    assert np.isnan(mean_interval(PerUser(np.array([3]), np.array([0.5]))).low)
    assert np.isnan(PerUser(np.array([], int), np.array([])).mean)


def test_join_keeps_order_and_sizes() -> None:
    parts = [PerUser(np.array([u]), np.array([u / 2]), np.array([u + 1.0])) for u in range(3)]
    joined = join(parts)
    assert joined.users.tolist() == [0, 1, 2]
    assert joined.mean == pytest.approx((0 * 1 + 0.5 * 2 + 1 * 3) / 6)
    assert join([PerUser(p.users, p.values) for p in parts]).size is None


def test_shapes_and_levels_are_checked(refusal) -> None:
    refusal(lambda: PerUser(np.arange(2), np.arange(3)), "one length")
    refusal(lambda: mean_interval(PerUser(np.arange(2), np.arange(2)), 95), "95")
