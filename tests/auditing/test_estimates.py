"""Estimates over users: sums keep what they have in common, ratios are linearised, few users are
few."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing.estimates import Estimate, limits, ratio


def test_the_difference_of_an_estimate_with_itself_is_certain() -> None:
    one = ratio(np.random.default_rng(0).normal(1, 1, 50), np.ones(50))
    nothing = one - one
    assert (nothing.value, nothing.variance) == (0.0, 0.0)
    assert nothing.limits(0.95) == (0.0, 0.0, 0.0)
    assert (one * 2.0).variance == pytest.approx(4.0 * one.variance)
    assert (one + 3.0).value == one.value + 3.0


def test_a_mean_has_the_textbook_interval() -> None:
    from scipy import stats

    value = np.random.default_rng(1).normal(0.2, 1.0, 400)
    found = ratio(value, np.ones(400)).limits(0.95)
    low, high = stats.t.interval(0.95, 399, value.mean(), stats.sem(value))
    assert found == pytest.approx((value.mean(), low, high), rel=0.02)


def test_intervals_of_a_ratio_hold() -> None:
    """Users with 1 to 9 rows of a rate of their own: 95 % intervals hold the ratio in 93 % or more
    of 500 samples."""
    rng, held = np.random.default_rng(2), []
    for _ in range(500):
        n = rng.integers(1, 10, 60)
        total = n * rng.normal(0.3, 0.5, 60) + rng.normal(0, 1, 60) * np.sqrt(n)
        span = ratio(total, n.astype(float)).limits(0.95)
        held.append(span.low <= 0.3 <= span.high)
    assert 0.92 <= np.mean(held) <= 0.98


def test_one_user_makes_nothing_certain() -> None:
    influence = np.zeros(30)
    influence[3] = 0.5
    assert Estimate(1.0, influence).limits(0.95) == (1.0, -np.inf, np.inf)
    assert limits(np.eye(1, 30)[0], 0.95).low == -np.inf


def test_few_units_widen_a_sum() -> None:
    rng = np.random.default_rng(3)
    many, few = Estimate(0.0, rng.normal(0, 0.01, 100)), Estimate(0.0, np.zeros(100), 0.5, 3.0)
    assert (many + few).effective < 10
    assert (many + few).variance == pytest.approx(many.variance + 0.5)
