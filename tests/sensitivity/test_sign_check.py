from __future__ import annotations

import numpy as np
import pytest

from puidrec.errors import InputError
from puidrec.sensitivity.sign_check import sign_check


def check(slope, seed=0, n_users=200):
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(n_users), 10)
    exposure, prediction, controls = (rng.standard_normal(s) for s in (user.size, user.size, (user.size, 2)))
    rating = 0.3 * prediction + slope * exposure + np.repeat(rng.standard_normal(n_users), 10) * 0.2
    return sign_check(rating + rng.standard_normal(user.size) * 0.3, prediction, exposure, user, controls)


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
