"""Statistics of the certificate against closed forms, limits and repeated draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from puidrec.exposure.certificate import (
    UniformRows,
    joined_levels,
    log_gamma,
    ranges_of,
    uniform_shares,
)

SHARES = st.floats(0.001, 0.999)


@given(SHARES, SHARES)
def test_log_gamma_is_the_largest_of_the_four_ratios(q: float, q0: float) -> None:
    expected = max(q / q0, q0 / q, (1 - q) / (1 - q0), (1 - q0) / (1 - q))
    found = float(log_gamma(np.array([q]), np.array([q0]))[0])
    assert np.exp(abs(found)) == pytest.approx(expected)
    assert np.sign(found) == np.sign(q - q0)


@given(SHARES, SHARES, SHARES)
def test_log_gamma_rises_in_q_and_falls_in_q0(q: float, other: float, q0: float) -> None:
    low, high = sorted((q, other))
    one, two = (float(log_gamma(np.array([value]), np.array([q0]))[0]) for value in (low, high))
    assert one <= two + 1e-12
    one, two = (float(log_gamma(np.array([q0]), np.array([value]))[0]) for value in (low, high))
    assert one >= two - 1e-12


def test_events_are_levels_and_what_is_at_least_a_level_each_once() -> None:
    """Of n levels, {r ≥ 2nd} is all but the first, and {r ≥ last} the last: neither is asked
    twice."""
    assert ranges_of(2) == [(1, 2)]
    assert ranges_of(3) == [(0, 1), (1, 2), (2, 3)]
    assert ranges_of(5) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 5), (3, 5)]
    for n in range(3, 9):
        sets = [frozenset(range(low, high)) for low, high in ranges_of(n)]
        whole = frozenset(range(n))
        assert len({min(sorted(one), sorted(whole - one)).__repr__() for one in sets}) == len(sets)


def test_shares_of_events_that_overlap() -> None:
    level = np.array([0, 1, 2, 2])
    member = np.array([[1.0, 0, 0], [0, 1, 1]])
    share, size = uniform_shares(level, UniformRows(level, np.arange(4)), member, 0.01)
    np.testing.assert_allclose(share, [0.25, 0.75])
    np.testing.assert_allclose(size, 4.0)


def test_levels_are_joined_until_enough_rows_are_expected() -> None:
    many = np.full(6, 100.0)
    assert joined_levels(np.array([6.0, 1.0, 2.0, 3.0, 9.0, 8.0]), many).tolist() == [0, 1, 4, 5]
    assert joined_levels(np.array([6.0, 6.0, 6.0, 6.0, 6.0, 1.0]), many).tolist() == [0, 1, 2, 3, 4]
    assert joined_levels(np.array([1.0, 1.0]), many[:2]).tolist() == [0]
    assert joined_levels(np.array([9.0, 9.0]), np.array([2.0, 9.0])).tolist() == [
        0
    ]  # too few seen rows


def test_rows_of_one_user_that_are_all_alike_count_once() -> None:
    event = np.repeat(np.arange(30) % 2, 10)
    alike = UniformRows(event, np.repeat(np.arange(30), 10))
    assert uniform_shares(event, alike, np.eye(2), 0.01)[1] == pytest.approx(30.0)
    asked = UniformRows(
        event, alike.user, n_users=30
    )  # all users there are: who was asked is not left to chance
    assert uniform_shares(event, asked, np.eye(2), 0.01)[1] == pytest.approx(300.0)
    single = UniformRows(event, np.arange(300))
    assert uniform_shares(event, single, np.eye(2), 0.01)[1] == pytest.approx(300.0)


def test_the_effective_size_is_what_repeated_surveys_show() -> None:
    """The variance of the share over many surveys of 40 users × 12 rows is p (1 − p) over the
    effective size."""
    rng, a = np.random.default_rng(0), 3.0
    shares, sizes = [], []
    for _ in range(600):
        taste = rng.beta(a, a, 40)  # intraclass correlation 1 / (2 a + 1)
        event = (rng.random((40, 12)) < taste[:, None]).astype(int).ravel()
        share, size = uniform_shares(
            event, UniformRows(event, np.repeat(np.arange(40), 12)), np.eye(2), 0.025
        )
        shares.append(share[1])
        sizes.append(size[1])
    true = 480 / (1 + 11 / (2 * a + 1))
    assert 0.25 / np.var(shares) == pytest.approx(true, rel=0.2)
    few = stats.t.isf(0.025, 39) / stats.t.isf(0.025, 479)
    assert np.median(sizes) == pytest.approx(true / few**2, rel=0.15)
