from __future__ import annotations

import numpy as np
import pytest

from puidrec.spectrum.mixture import ALPHAS, _leave_one_out, fit_mixture, paired_interval, rank_gain


def rows(n=60, width=4, signal=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, width))
    return x, signal * x[:, 0] + rng.standard_normal(n), np.arange(n)


def test_leave_one_out_errors_are_those_of_fits_without_the_row() -> None:
    x, y, _ = rows(12, 3, 1.0)
    values, axes = np.linalg.eigh(x.T @ x)
    z = x @ axes
    for alpha in (0.1, 3.0, np.inf):
        slow = []
        for k in range(12):
            others = np.delete(np.arange(12), k)
            a, b = x[others], y[others]
            c = np.linalg.solve(a.T @ a + alpha * np.eye(3), a.T @ b) if np.isfinite(alpha) else np.zeros(3)
            slow.append(y[k] - x[k] @ c)
        np.testing.assert_allclose(_leave_one_out(z, values, z.T @ y, y, alpha), slow, rtol=1e-8)


def test_noise_leaves_the_prior_as_it_is() -> None:
    kept = [not fit_mixture(*rows(50, 12, seed=seed)).coefficient.any() for seed in range(20)]
    assert np.mean(kept) >= 0.9


def test_a_clear_signal_is_taken_up() -> None:
    x, y, user = rows(400, 6, 1.0)
    found = fit_mixture(x, y, user)
    assert found.coefficient[0] == pytest.approx(1.0, abs=0.25)
    assert found.gain.low > 0.0
    assert found.alpha in ALPHAS


def test_intervals_count_users_not_rows() -> None:
    rng = np.random.default_rng(1)
    own = np.repeat(rng.standard_normal(30), 10)
    by_row, by_user = (paired_interval(own, user) for user in (np.arange(300), np.repeat(np.arange(30), 10)))
    assert by_user.standard_error == pytest.approx(np.sqrt(10.0) * by_row.standard_error, rel=0.05)


def test_rank_gains_are_paired_differences_of_auc_within_users() -> None:
    rng = np.random.default_rng(0)
    user, liked = np.repeat(np.arange(30), 8), rng.random(240) < 0.4
    better, worse = liked + rng.standard_normal(240), 0.2 * liked + rng.standard_normal(240)
    slow = []
    for own in range(30):
        mine = user == own
        pairs = [(a, b) for a in np.flatnonzero(mine & liked) for b in np.flatnonzero(mine & ~liked)]
        if pairs:
            slow.append(np.mean([float(better[a] > better[b]) - float(worse[a] > worse[b]) for a, b in pairs]))
    found = rank_gain(user, liked, better, worse)
    assert found.mean == pytest.approx(np.mean(slow))
    assert found.standard_error == pytest.approx(np.std(slow, ddof=1) / np.sqrt(len(slow)), rel=1e-6)
    assert rank_gain(user, np.ones(240, bool), better, worse) == (0.0, 0.0, 0.0)
