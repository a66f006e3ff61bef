from __future__ import annotations

import numpy as np
import pytest

from puidrec.spectrum.mixture import ALPHAS, _leave_one_out, fit_mixture, level_share, paired_interval, rank_gain


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


def test_a_level_that_rows_clearly_show_is_taken_up_whatever_alpha_is() -> None:
    """Noise columns ask for α = ∞; the level is then the mean, less the share of it that chance would give."""
    x, noise, user = rows(200, 12, seed=3)
    y = 0.6 + noise - noise.mean()
    t = 0.6 / paired_interval(y, user).standard_error
    found = fit_mixture(x, y, user, level=True)
    assert found.alpha == np.inf
    assert found.level == pytest.approx(0.6 * (1.0 - 1.0 / t**2), rel=1e-6)
    assert found.gain.low > 0.0
    assert fit_mixture(x, y, user).level == 0.0


def test_a_level_that_may_be_chance_is_left() -> None:
    x, noise, user = rows(100, 2, seed=1)
    y = noise - noise.mean() + 0.15  # t = 1.5
    assert level_share(y, user) == 0.0
    assert fit_mixture(x, y, user, level=True).level == 0.0


def test_coefficients_and_left_out_errors_beside_a_level_are_those_of_a_penalised_column() -> None:
    x, y, user = rows(40, 3, 1.0)
    y = y + 2.0
    found = fit_mixture(x, y, user, level=True)
    share = level_share(y, user)
    wide = np.column_stack([x, np.ones(40)])
    penalty = np.diag([found.alpha] * 3 + [40 * (1.0 / share - 1.0)])
    slow = np.linalg.solve(wide.T @ wide + penalty, wide.T @ y)
    np.testing.assert_allclose([*found.coefficient, found.level], slow, rtol=1e-7)
    for k in (0, 7):
        others = np.delete(np.arange(40), k)
        c = np.linalg.solve(wide[others].T @ wide[others] + penalty, wide[others].T @ y[others])
        assert found.left_out[k] == pytest.approx(y[k] - wide[k] @ c, rel=1e-7)


def test_pairs_that_are_to_stay_are_a_penalty_of_their_own() -> None:
    x, y, user = rows(300, 4, seed=2, signal=1.0)
    still = 3.0 * np.random.default_rng(3).standard_normal((50, 4))
    found = fit_mixture(x, y, user, still=still)
    matrix = x.T @ x + still.T @ still + found.alpha * np.eye(4)
    np.testing.assert_allclose(found.coefficient, np.linalg.solve(matrix, x.T @ y), rtol=1e-8)
    without = np.arange(300) != 7
    others = np.linalg.solve(matrix - np.outer(x[7], x[7]), x[without].T @ y[without])
    assert found.left_out[7] == pytest.approx(y[7] - x[7] @ others, rel=1e-8)
    free = fit_mixture(x, y, user)
    assert np.sum((still @ found.coefficient) ** 2) < np.sum((still @ free.coefficient) ** 2)
