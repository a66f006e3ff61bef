import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from puidrec.exposure import additive
from puidrec.exposure.additive import (
    CELL_RIDGE,
    Ridge,
    TwoWayEffects,
    effect_variance,
    fit_two_way,
)
from puidrec.exposure.counts import ExposureCounts


def draw(seed, n_users, n_items, user_bins=1, item_bins=1, sd=(1.0, 1.0), centre=-1.5):
    """Exposure drawn from the model itself: counts, the matrix of seen pairs, the true log-odds."""
    random = np.random.default_rng(seed)
    user_bin = (np.arange(n_users) % user_bins).astype(np.int32)
    item_bin = (np.arange(n_items) % item_bins).astype(np.int32)
    cell = random.normal(centre, 0.5, (user_bins, item_bins))
    logit = (
        cell[np.ix_(user_bin, item_bin)]
        + random.normal(0, sd[0], n_users)[:, None]
        + random.normal(0, sd[1], n_items)
    )
    seen = random.random(logit.shape) < expit(logit)
    return ExposureCounts.from_pairs(*np.nonzero(seen), user_bin, item_bin), seen, logit


def matrix(effects: TwoWayEffects) -> np.ndarray:
    users, items = np.indices((effects.user_bin.size, effects.item_bin.size))
    return effects.logit(users.ravel(), items.ravel()).reshape(users.shape)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3))
def test_without_ridge_expected_degrees_are_the_observed_ones(seed, user_bins, item_bins):
    counts, seen, _ = draw(seed, 40, 30, user_bins, item_bins, sd=(0.5, 0.5), centre=0.0)
    inner = [bool(((d > 0) & (d < n)).all()) for d, n in ((seen.sum(1), 30), (seen.sum(0), 40))]
    if not all(inner):
        return  # a degree of none or all has its effect at infinity
    p = expit(matrix(fit_two_way(counts, Ridge(1e-9, 1e-9, 1e-9, 1e-9))))
    np.testing.assert_allclose(p.sum(axis=1), seen.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(p.sum(axis=0), seen.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("ridge", [(0.1, 0.1), (2.0, 2.0), (0.5, 5.0)])
def test_equals_logistic_regression_with_user_and_item_dummies(ridge):
    """scikit-learn penalises all columns alike, so columns are scaled by 1/√ridge."""
    counts, seen, _ = draw(1, 30, 20)
    effects = fit_two_way(counts, Ridge(*ridge, 1.0, 0.0))
    user, item = (index.ravel() for index in np.indices(seen.shape))
    scale = np.sqrt(ridge)
    dummies = np.hstack([np.eye(30)[user] / scale[0], np.eye(20)[item] / scale[1]])
    oracle = LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000, solver="newton-cg").fit(
        dummies, seen.ravel()
    )
    np.testing.assert_allclose(
        matrix(effects).ravel(), oracle.decision_function(dummies), atol=2e-5
    )


def test_equals_logistic_regression_with_cells_of_bins_as_well():
    counts, seen, _ = draw(2, 40, 30, 3, 2)
    effects = fit_two_way(counts, Ridge(1.0, 1.0, 1e-9, 1e-9))
    user, item = (index.ravel() for index in np.indices(seen.shape))
    cell = np.eye(6)[effects.user_bin[user] * 2 + effects.item_bin[item]] * 1e3
    dummies = np.hstack([np.eye(40)[user], np.eye(30)[item], cell])
    oracle = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000, solver="newton-cholesky").fit(
        dummies, seen.ravel()
    )
    np.testing.assert_allclose(
        matrix(effects).ravel(), oracle.decision_function(dummies), atol=1e-3
    )


def test_effects_sum_to_zero_within_bins_and_equal_degrees_share_one():
    counts, _, _ = draw(3, 90, 60, 3, 2)
    effects = fit_two_way(counts)
    assert np.abs(np.bincount(effects.user_bin, weights=effects.user_effect)).max() < 0.05
    assert np.abs(np.bincount(effects.item_bin, weights=effects.item_effect)).max() < 0.05
    kinds = {}
    for kind, effect in zip(
        zip(effects.user_bin, counts.user_degree, strict=True), effects.user_effect, strict=True
    ):
        assert kinds.setdefault(kind, effect) == effect
    assert (np.diff([kinds[k] for k in sorted(kinds) if k[0] == 0]) > 0).all(), (
        "more seen, larger effect"
    )


@pytest.mark.parametrize("sd", [(0.3, 0.3), (0.8, 0.6), (1.5, 1.5)])
def test_empirical_bayes_finds_the_spread_of_the_effects(sd):
    found = [
        (effects.ridge.user**-0.5, effects.ridge.item**-0.5)
        for seed in range(3)
        for effects in [fit_two_way(draw(seed, 400, 300, 4, 3, sd, centre=-3.0)[0])]
    ]
    np.testing.assert_allclose(np.mean(found, axis=0), sd, rtol=0.12)


def test_effects_that_are_only_noise_are_removed():
    for seed in range(3):
        counts, _, logit = draw(seed, 400, 300, 4, 3, (0.0, 0.0), centre=-3.0)
        effects = fit_two_way(counts)
        assert np.abs(effects.user_effect).max() < 0.1
        assert np.abs(effects.item_effect).max() < 0.1
        assert np.corrcoef(matrix(effects).ravel(), logit.ravel())[0, 1] > 0.97


def test_equal_degrees_have_no_effect():
    """A log of 24 ratings per user, as Coat's, says nothing of users."""
    random = np.random.default_rng(0)
    item = np.concatenate([random.permutation(100)[:24] for _ in range(80)])
    counts = ExposureCounts.from_pairs(
        np.repeat(np.arange(80), 24), item, np.zeros(80, int), np.zeros(100, int)
    )
    effects = fit_two_way(counts)
    assert np.abs(effects.user_effect).max() < 1e-6


def test_shrunk_effects_are_nearer_the_truth_than_unshrunk_ones():
    counts, _, logit = draw(4, 400, 300, 4, 3, (0.4, 0.4), centre=-4.0)
    error = [
        np.mean((matrix(fit_two_way(counts, ridge)) - logit) ** 2)
        for ridge in (None, Ridge(0.01, 0.01, 0.01, CELL_RIDGE), Ridge(1e4, 1e4, 1e4, CELL_RIDGE))
    ]
    assert error[0] < 0.8 * min(error[1:])


def test_posterior_variance_covers_the_error_of_the_effects():
    counts, _, _ = draw(5, 600, 400, 1, 1, (0.7, 0.7), centre=-3.0)
    truth = np.random.default_rng(5)
    truth.normal(size=(1, 1))
    s = truth.normal(0, 0.7, 600)
    effects = fit_two_way(counts)
    z = (effects.user_effect - (s - s.mean())) / np.sqrt(effects.user_variance)
    assert 0.8 < z.std() < 1.25


@pytest.mark.parametrize("kind", ["empty bin", "empty cell", "all seen in a bin"])
def test_extreme_tables_stay_finite(kind):
    counts, seen, _ = draw(6, 40, 30, 2, 2)
    seen = seen.copy()
    rows, columns = counts.user_bin == 0, counts.item_bin == 0
    seen[rows if kind != "empty cell" else np.ix_(rows, columns)] = kind == "all seen in a bin"
    counts = ExposureCounts.from_pairs(*np.nonzero(seen), counts.user_bin, counts.item_bin)
    logit = matrix(fit_two_way(counts))
    assert np.isfinite(logit).all()
    assert expit(logit).sum() == pytest.approx(seen.sum(), rel=0.01)
    assert np.corrcoef(expit(logit).ravel(), seen.ravel())[0, 1] > 0.3


@pytest.mark.parametrize("density", ["one pair", "all pairs"])
def test_extreme_densities_stay_finite(density):
    user, item = (index.ravel() for index in np.indices((20, 10)))
    seen = slice(7, 8) if density == "one pair" else slice(None)
    counts = ExposureCounts.from_pairs(user[seen], item[seen], np.zeros(20, int), np.zeros(10, int))
    p = expit(matrix(fit_two_way(counts)))
    assert np.isfinite(p).all()
    assert p.sum() == pytest.approx(1 if density == "one pair" else 200, rel=0.02)


def test_a_few_levels_barely_move_the_fit(monkeypatch):
    counts, _, logit = draw(7, 3000, 800, 3, 2, (1.0, 1.0), centre=-3.0)
    whole = fit_two_way(counts)
    monkeypatch.setattr(additive, "LEVELS", 80)
    coarse = fit_two_way(counts)
    difference = matrix(whole) - matrix(coarse)
    error = matrix(whole) - logit
    assert np.sqrt(np.mean(difference**2)) < 0.1 * np.sqrt(np.mean(error**2))
    assert expit(matrix(coarse)).sum() == pytest.approx(counts.n_observed, rel=0.005)


def test_variances_are_recovered_for_a_million_users_by_a_hundred_thousand_items():
    random = np.random.default_rng(8)
    user_bin, item_bin = (
        random.integers(0, 40, 1_000_000, dtype=np.int32),
        random.integers(0, 30, 100_000, dtype=np.int32),
    )
    degree = random.poisson(60 * np.exp(random.normal(0, 1, user_bin.size)))
    share = np.exp(random.normal(0, 1.2, item_bin.size))
    per_bin = np.bincount(user_bin, weights=degree)
    table = random.poisson(per_bin[:, None] * share / share.sum())
    counts = ExposureCounts(user_bin, item_bin, degree, table)
    effects = fit_two_way(counts)
    assert 0.85 < effects.ridge.user**-0.5 < 1.15
    assert 1.1 < effects.ridge.item**-0.5 < 1.3


@given(st.floats(0.05, 3.0), st.floats(0.01, 1.0))
@settings(max_examples=20, deadline=None)
def test_effect_variance_recovers_a_known_variance(sd, noise):
    random = np.random.default_rng(0)
    estimate = random.normal(0, np.hypot(sd, noise), 20_000)
    found = effect_variance(estimate, np.full(20_000, noise**2), np.ones(20_000))
    assert found == pytest.approx(sd**2, rel=0.1, abs=0.05 * noise**2)
