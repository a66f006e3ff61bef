from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from puidrec.errors import InputError
from puidrec.methods import baselines
from puidrec.methods.baselines import (
    NOISE_SHARE,
    SHRINK,
    closed_form,
    ease,
    noise_edge,
)

USER, ITEM = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([0, 1, 0, 2, 1, 2, 0])
TARGET = np.array([1.0, 0.5, 0.75, 0.0, 0.25, 0.5, 1.0])


def matrix(user, item, target, shape) -> sp.csr_array:
    """A log in memory."""
    built = sp.csr_array(
        (np.arange(1.0, user.size + 1), (user, item)), shape=shape
    )  # zeros would be left out
    built.data = target[built.data.astype(int) - 1]
    return built


def scores(name, shape=(5, 4), dim=2, user=USER, item=ITEM, target=TARGET):
    return closed_form(name, matrix(user, item, target, shape), dim, 0).tile().numpy()


def test_item_rate_is_the_shrunk_mean_whoever_asks() -> None:
    got, mean = scores("item-rate"), TARGET.mean()
    for i in range(4):
        own = TARGET[i == ITEM] - mean
        np.testing.assert_allclose(got[:, i], mean + own.sum() / (own.size + SHRINK), rtol=1e-6)


def test_biases_solve_their_ridge_equations() -> None:
    got, mean = scores("bias").astype(np.float64), TARGET.mean()
    user_bias = got[:, 3] - mean  # item 3 was never rated
    item_bias = got[4] - mean  # nor did user 4 rate
    assert got[4, 3] == pytest.approx(mean, abs=1e-6)
    np.testing.assert_allclose(got, mean + user_bias[:, None] + item_bias, atol=1e-6)
    for u in range(4):
        residual = TARGET[u == USER] - mean - item_bias[ITEM[u == USER]]
        assert user_bias[u] == pytest.approx(residual.sum() / (residual.size + SHRINK), abs=1e-5)


def test_pure_svd_is_the_best_low_rank_fit_of_the_residuals() -> None:
    base = scores("bias").astype(np.float64)
    residual = np.zeros((5, 4))
    residual[USER, ITEM] = TARGET - base[USER, ITEM]
    left, strength, right = np.linalg.svd(residual)
    best = (left[:, :2] * strength[:2]) @ right[:2]
    np.testing.assert_allclose(scores("pure-svd") - base, best, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("name", ["item-rate", "bias", "pure-svd"])
def test_tiny_and_flat_logs(name, shape) -> None:
    user, item = (
        np.array([0, shape[0] - 1])[: max(shape)],
        np.array([0, shape[1] - 1])[: max(shape)],
    )
    for target in (np.zeros(user.size), np.linspace(0, 1, user.size)):
        got = scores(name, shape, 3, user, item, target)
        assert got.shape == shape
        assert np.isfinite(got).all()


def test_the_same_seed_gives_the_same_factors() -> None:
    first, second = (
        closed_form("pure-svd", matrix(USER, ITEM, TARGET, (5, 4)), 2, 1) for _ in range(2)
    )
    assert np.array_equal(first.lefts[0], second.lefts[0])


def test_pure_svd_keeps_only_what_rises_above_noise() -> None:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((80, 60)) < 0.4)
    taste = np.outer(rng.standard_normal(80), rng.standard_normal(60))[user, item]
    for target, most in (
        (taste + 0.5 * rng.standard_normal(user.size), 1),
        (rng.standard_normal(user.size), 2),
    ):
        factors = closed_form("pure-svd", matrix(user, item, target, (80, 60)), 8, 0)
        assert (
            factors.lefts[0].shape[1] - 2 <= most
        )  # of 8; noise itself lies at its edge, on either side
    signal = closed_form("pure-svd", matrix(user, item, taste, (80, 60)), 8, 0).tile().numpy()
    assert np.corrcoef(signal[user, item], taste)[0, 1] > 0.9


def random_log(n_users=30, n_items=12):
    rng = np.random.default_rng(3)
    user, item = np.nonzero(rng.random((n_users, n_items)) < 0.4)
    return matrix(user, item, rng.integers(1, 5, user.size) / 4.0, (n_users, n_items))


def test_ease_is_a_ridge_regression_of_each_item_on_the_others() -> None:
    log = random_log()
    dense = log.toarray()
    penalty = (NOISE_SHARE * noise_edge(log, 0)) ** 2
    weights = np.zeros((12, 12))
    for j in range(12):
        others = np.delete(np.arange(12), j)
        x = dense[:, others]
        weights[others, j] = np.linalg.solve(x.T @ x + penalty * np.eye(11), x.T @ dense[:, j])
    scores, lost = ease(log, 0)
    expected = dense @ weights
    error = scores.tile().numpy() - expected
    assert np.sum(error**2) / np.sum(expected**2) == pytest.approx(lost, abs=1e-6)
    assert lost <= 1e-4


def test_ease_of_a_large_catalogue_keeps_the_best_factors(monkeypatch) -> None:
    log = random_log(60, 50)
    whole = ease(log, 0)[0].tile().double().numpy()
    monkeypatch.setattr(baselines, "EASE_RANK", 8)
    scores, lost = ease(log, 0)
    left, strength, right = np.linalg.svd(whole)
    best = (left[:, :8] * strength[:8]) @ right[:8]
    np.testing.assert_allclose(scores.tile().numpy(), best, atol=1e-4)
    assert lost == pytest.approx(1.0 - np.sum(strength[:8] ** 2) / np.sum(strength**2), abs=1e-3)


def test_ease_refuses_a_catalogue_that_is_too_large() -> None:
    with pytest.raises(InputError, match="20,001 items"):
        ease(matrix(USER, ITEM, TARGET, (5, 20_001)), 0)
