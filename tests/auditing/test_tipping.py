"""Γ*: where envelopes cross 0, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from puidrec.auditing.envelope import (
    Pairs,
    Tipping,
    box,
    normalised,
    sharp,
    tipping_gamma,
    tipping_of,
)
from puidrec.auditing.envelope import tipping_point as tipping_of_users
from puidrec.auditing.estimates import Limits, limits
from puidrec.exposure.bounds import bounds


def tipping_point(pairs: Pairs, user: np.ndarray | None = None) -> Tipping:
    """Each row a user of its own, where none are given."""
    return tipping_of_users(pairs, np.arange(pairs.value.size) if user is None else user)


def ahead(seed: int, n: int = 40, shift: float = 0.4) -> Pairs:
    """Gaps of a model that is ahead on the weighted log."""
    rng = np.random.default_rng(seed)
    pairs = Pairs(rng.normal(shift, 1.0, n), rng.uniform(0.05, 0.9, n), rng.integers(0, 3, n))
    return pairs if pairs.point > 0 else Pairs(-pairs.value, pairs.propensity, pairs.stratum)


def test_worked_by_hand() -> None:
    """δ = 3, -1 with p = 1/2: k = 1, T = 2, S₊ = 3, S₋ = 1; Γ² - 2Γ - 3 = 0 at Γ = 3."""
    found = tipping_point(Pairs(np.array([3.0, -1.0]), np.array([0.5, 0.5])))
    assert found.sums == (2.0, 3.0, 1.0)
    assert found.gamma == pytest.approx(3.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 40))
def test_the_envelopes_of_the_gap_cross_zero_there(seed: int, n: int) -> None:
    pairs = ahead(seed, n)
    star = tipping_point(pairs).gamma
    if np.isinf(star):
        assert box(pairs, 1e6).low > 0
        return
    assert box(pairs, star).low == pytest.approx(0.0, abs=1e-8)
    assert normalised(pairs, star).low == pytest.approx(0.0, abs=1e-8)
    assert sharp(pairs, star).low >= -1e-8


@pytest.mark.parametrize("seed", range(8))
def test_equal_to_the_root_of_linear_programs(seed: int) -> None:
    pairs = ahead(seed)

    def lowest(gamma: float) -> float:
        limits = bounds(pairs.propensity, gamma)
        return float(linprog(pairs.value, bounds=np.stack([limits.a, limits.b], 1)).fun)

    assert tipping_point(pairs).gamma == pytest.approx(
        brentq(lowest, 1.0, 1e3, xtol=1e-12), abs=1e-8
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_sharp_set_tips_later_and_exactly_at_zero(seed: int) -> None:
    pairs = ahead(seed, n=200, shift=0.2)
    found = tipping_point(pairs)
    assert found.sharp > found.gamma
    assert sharp(pairs, found.sharp).low == pytest.approx(0.0, abs=1e-8)


def test_a_model_better_everywhere_cannot_be_overturned() -> None:
    rng = np.random.default_rng(0)
    found = tipping_point(Pairs(rng.uniform(0.1, 0.2, 30), rng.uniform(0.1, 0.3, 30)))
    assert found.gamma == found.low == found.high == found.sharp == np.inf


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_lead_that_few_users_carry_is_not_certain(n: int) -> None:
    """Whatever the other users' rows are, if these do not tell the models apart."""
    gap = np.zeros(500)
    gap[:n] = 1.0
    found = tipping_point(Pairs(gap, np.full(500, 0.3)))
    assert found.gamma == np.inf
    assert found.low == 1.0
    assert found.lead.low <= 0.0


def test_models_that_no_row_tells_apart_have_no_lead() -> None:
    found = tipping_point(Pairs(np.zeros(50), np.full(50, 0.3)))
    assert (found.gamma, found.low, found.high) == (1.0, 1.0, 1.0)
    assert (found.lead.value, found.lead.low, found.lead.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("n", [4, 10, 40, 200])
def test_a_lead_beyond_chance_is_rarely_seen_where_there_is_none(n: int) -> None:
    """Of 2,000 sets of n users without a lead, 2.5 % at most (3 standard errors more) show one."""
    rng = np.random.default_rng(n)
    heavy = rng.standard_t(3, (2_000, n))
    found = np.mean([limits(row, 0.95).low > 0.0 for row in heavy])
    assert found <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 2_000)


def test_a_quantity_without_a_closed_form_tips_at_the_same_place() -> None:
    pairs, user = ahead(3, n=300, shift=0.3), np.arange(300) // 5
    k = pairs.odds * pairs.value

    def worst(gamma: float) -> Limits:
        rows = pairs.value + np.where(k > 0, k / gamma, k * gamma)
        return limits(np.bincount(user, rows) / pairs.nominal, 0.95)

    one, two = tipping_point(pairs, user), tipping_of(worst, worst(1.0))
    for name in ("gamma", "low", "high"):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-9)
    assert two.lead.value == pytest.approx(pairs.point)


def test_a_conclusion_that_weights_already_overturn() -> None:
    """The plain log favours the model (T > 0), the weighted one does not: Γ* is 1, never below."""
    pairs = Pairs(np.array([1.0, -0.5]), np.array([1.0, 0.1]))
    found = tipping_point(pairs)
    assert found.sums is not None
    assert found.sums[0] > 0 > pairs.point
    assert found.gamma == found.low == 1.0
    assert found.sharp == 1.0


def test_extreme_sums() -> None:
    assert tipping_gamma(*np.float64([0, 0, 0])) == 1.0
    assert tipping_gamma(*np.float64([1, 0, 0])) == np.inf
    assert tipping_gamma(*np.float64([-1, 0, 0])) == 1.0
    assert tipping_gamma(*np.float64([-1, 0, 2])) == 1.0
    assert tipping_gamma(*np.float64([-1.0, 1e9, 1e-9])) == np.inf
    assert tipping_gamma(*np.float64([-1e9, 4e9, 1.0])) == pytest.approx(
        4.0 - 1.6e-8, rel=1e-9
    )  # no cancellation


def test_the_order_of_rows_does_not_matter() -> None:
    pairs = ahead(2)
    user = np.arange(40) // 4
    order = np.random.default_rng(1).permutation(40)
    other = Pairs(pairs.value[order], pairs.propensity[order], pairs.stratum[order])
    one, two = tipping_point(pairs, user), tipping_point(other, user[order])
    for name in ("gamma", "low", "high", "sharp"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-10)


def test_the_intervals_cover_the_tipping_point_of_the_population() -> None:
    """Users of six rows with gaps of their own: Γ* of many users lies in 95 % intervals of few."""
    rng = np.random.default_rng(0)

    def rows(n_users: int) -> tuple[Pairs, np.ndarray]:
        user = np.repeat(np.arange(n_users), 6)
        gap = rng.normal(0.3, 0.3, n_users)[user] + rng.normal(0, 1, user.size)
        return Pairs(gap, rng.uniform(0.1, 0.5, user.size)), user

    true = tipping_point(rows(60_000)[0]).gamma
    held = []
    for _ in range(150):
        found = tipping_point(*rows(150))
        held.append(found.low <= true <= found.high)
    assert 0.88 <= np.mean(held) <= 0.99
