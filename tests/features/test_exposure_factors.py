"""Exposure factors against dense decompositions, planted groups and pure chance."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from puidrec.features.factors import ExposureFactors, _edge, _random_log


def grouped(n_users=200, n_items=80, contrast=0.15, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """Two groups of users, each of which sees more of its own half of the items."""
    rng = np.random.default_rng(seed)
    side = rng.choice((-1.0, 1.0), n_users)
    half = np.where(np.arange(n_items) < n_items // 2, -1.0, 1.0)
    chance = 0.2 + contrast * np.multiply.outer(side, half)
    return (rng.random((n_users, n_items)) < chance).astype(float), side


def factors_of(seen: np.ndarray, dim: int = 4) -> ExposureFactors:
    return ExposureFactors.fit(sp.csr_array(seen), dim, seed=0)


def test_planted_groups_are_found_and_nothing_else() -> None:
    seen, side = grouped()
    found = factors_of(seen)
    assert found.users.shape == (200, 1)
    assert abs(np.corrcoef(found.users[:, 0], side)[0, 1]) > 0.9


def test_the_reconstruction_is_the_dense_one() -> None:
    seen, _ = grouped()
    rates = np.multiply.outer(seen.sum(1), seen.sum(0)) / seen.sum()
    left, strength, right = np.linalg.svd(seen - rates)
    a, b = factors_of(seen).reconstruction
    assert a @ b.T == pytest.approx(
        rates + strength[0] * np.multiply.outer(left[:, 0], right[0]), abs=1e-8
    )


@pytest.mark.parametrize("seed", range(4))
def test_chance_alone_gives_no_factors(seed) -> None:
    rng = np.random.default_rng(seed)
    activity, popularity = rng.gamma(2.0, 0.5, 150), rng.gamma(2.0, 0.5, 60)
    seen = (
        rng.random((150, 60)) < np.clip(0.15 * np.multiply.outer(activity, popularity), 0, 1)
    ).astype(float)
    rates = np.multiply.outer(seen.sum(1), seen.sum(0)) / seen.sum()
    largest = np.linalg.svd(seen - rates, compute_uv=False)[0]
    assert _edge(seen.sum(1), seen.sum(0), 0) == pytest.approx(largest, rel=0.06)
    assert (
        factors_of(seen).users.shape[1] <= 1
    )  # by chance an edge is crossed now and then, by one direction


def test_random_logs_have_the_degrees_of_the_log() -> None:
    seen, _ = grouped()
    null = _random_log(seen.sum(1), seen.sum(0), np.random.default_rng(0))
    assert set(null.data) == {1.0}
    for axis in (0, 1):  # a few rows of the busiest may find no new pair
        lost = seen.sum(axis) - np.asarray(null.sum(axis)).ravel()
        assert (lost >= 0).all()
        assert lost.sum() <= 0.001 * seen.sum()


def test_no_direction_is_turned_round_by_the_start() -> None:
    seen, _ = grouped()
    one, other = (ExposureFactors.fit(sp.csr_array(seen), 4, seed=seed) for seed in (0, 7))
    assert one.users == pytest.approx(other.users, abs=1e-6)


def test_noise_is_the_variance_of_chance() -> None:
    """Users whose rows are independent draws: the spread of their factors is `noise`, and no signal
    is seen in them."""
    seen, _ = grouped(n_users=2_000)
    found = factors_of(seen)
    direction = found.items[:, 0] / np.sum(found.items[:, 0] ** 2) ** 0.5
    rate = seen.mean(0)
    drawn = (np.random.default_rng(5).random((20_000, rate.size)) < rate) - rate
    strength = np.sum(found.items[:, 0] ** 2)
    assert found.noise[0] == pytest.approx(np.var(drawn @ direction) / strength, rel=0.05)


def test_features_that_name_the_group_serve_users_of_few_rows() -> None:
    seen, side = grouped(contrast=0.12)
    seen[:40, :][:, np.arange(80) % 8 != 0] = 0.0  # forty users keep a few of their rows
    found = factors_of(seen)
    known = sp.csr_array(np.column_stack([side == 1, side == -1]).astype(float))
    alone, helped = found.given_features(None)[:, 0], found.given_features(known)[:, 0]
    error = [abs(np.corrcoef(z[:40], side[:40])[0, 1]) for z in (alone, helped)]
    assert error[1] > error[0]


def test_the_posterior_mean_lies_between_exposure_and_features() -> None:
    seen, _ = grouped()
    found = factors_of(seen)
    exposure, posterior = found.users[:, 0], found.given_features(None)[:, 0]
    share = posterior / exposure
    signal = np.mean(exposure**2) - found.noise[0]
    assert share == pytest.approx(np.full(200, signal / (signal + found.noise[0])))
    features = sp.csr_array(np.random.default_rng(1).normal(size=(200, 2)))
    assert (
        np.corrcoef(found.given_features(features)[:, 0], posterior)[0, 1] > 0.99
    )  # features of no use


def test_tables_too_small_to_decompose() -> None:
    found = factors_of(np.ones((5, 1)))
    assert found.users.shape == (5, 0)
    assert found.given_features(None).shape == (5, 0)
    assert found.reconstruction[0].shape == (5, 1)
