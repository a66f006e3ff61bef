from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from puidrec.errors import InputError
from puidrec.exposure.tilt import DISLIKED, LIKED, OPEN, mean_gap, sign_check


def check(slope, seed=0, n_users=200):
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(n_users), 10)
    exposure, prediction, controls = (
        rng.standard_normal(s) for s in (user.size, user.size, (user.size, 2))
    )
    rating = 0.3 * prediction + slope * exposure + np.repeat(rng.standard_normal(n_users), 10) * 0.2
    return sign_check(
        rating + rng.standard_normal(user.size) * 0.3, prediction, exposure, user, controls
    )


def test_the_sign_is_found_in_both_directions() -> None:
    up, down = check(0.05), check(-0.05)
    assert up.liked
    assert not up.disliked
    assert down.disliked
    assert up.slope == pytest.approx(0.05, abs=0.02)


def test_nothing_is_claimed_where_exposure_says_nothing() -> None:
    found = [check(0.0, seed) for seed in range(100)]
    assert not any(one.liked or one.disliked for one in found)
    assert np.std([one.t for one in found]) == pytest.approx(1.0, abs=0.2)


def test_few_users_show_nothing_and_lengths_must_agree() -> None:
    assert check(1.0, n_users=5).t == 0.0
    with pytest.raises(InputError, match="one value per held-out row"):
        sign_check(np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(2), np.zeros((3, 1)))


def gap(shift=0.0, seed=0, n_users=150, n_levels=5):
    """Seen rows by group of users and level, and uniform rows of another draw; seen ratings are
    higher by `shift`."""
    rng = np.random.default_rng(seed)
    levels = np.arange(1.0, n_levels + 1)
    taste = rng.normal(0, 0.5, n_users)
    user = rng.integers(n_users, size=3_000)
    rating = np.clip(np.rint(3 + taste[user] + shift + rng.standard_normal(user.size)), 1, n_levels)
    weight = np.zeros((n_users, n_levels))
    np.add.at(weight, (user, rating.astype(int) - 1), rng.uniform(1, 9, user.size))
    drawn = rng.integers(n_users, size=600)
    uniform = np.clip(np.rint(3 + taste[drawn] + rng.standard_normal(drawn.size)), 1, n_levels)
    return mean_gap(weight, levels, uniform, drawn, name="all")


def test_means_show_the_sign_in_both_directions_and_hold_their_level() -> None:
    assert gap(0.3).finding == LIKED
    assert gap(-0.3).finding == DISLIKED
    none = [gap(seed=seed) for seed in range(300)]
    assert sum(one.finding != OPEN for one in none) <= 300 * 0.05 + 2.33 * np.sqrt(
        300 * 0.05 * 0.95
    )
    assert sum(one.low <= 0.0 <= one.high for one in none) == sum(
        one.finding == OPEN for one in none
    )


def test_without_clusters_the_gap_is_a_comparison_of_two_means() -> None:
    rng = np.random.default_rng(0)
    seen, unseen = rng.integers(1, 6, 400).astype(float), rng.integers(1, 6, 300).astype(float)
    found = mean_gap(
        np.eye(5)[seen.astype(int) - 1], np.arange(1.0, 6.0), unseen, np.arange(300), name="all"
    )
    test = stats.ttest_ind(seen, unseen, equal_var=False)
    error = np.sqrt(seen.var(ddof=1) / 400 + unseen.var(ddof=1) / 300)
    assert found.seen - found.unseen == pytest.approx(seen.mean() - unseen.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * error, rel=1e-3)
    assert found.p_value == pytest.approx(test.pvalue, abs=3e-3)


def test_few_users_have_no_gap() -> None:
    assert (
        mean_gap(np.ones((5, 2)), np.array([0.0, 1.0]), np.ones(5), np.arange(5), name="all")
        is None
    )
