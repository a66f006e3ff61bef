import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.exposure.counts import (
    ExposureCounts,
    bernoulli_entropy,
    bernoulli_kl,
    information_gains,
    local_scores,
)


def small(seed, n_users=14, n_items=11, rate=0.3):
    rng = np.random.default_rng(seed)
    seen = rng.random((n_users, n_items)) < rate * rng.uniform(0.2, 2, (n_users, 1))
    seen[0, 0], seen[0, 1] = True, False
    return (
        seen,
        rng.integers(0, 3, n_users).astype(np.int32),
        rng.integers(0, 4, n_items).astype(np.int32),
    )


def counted(seen, user_bin, item_bin):
    return ExposureCounts.from_pairs(*np.nonzero(seen), user_bin, item_bin)


def brute_force(seen, *labels):
    """H(o | labels) by counting every pair of D; labels are matrices over D."""
    key = np.unique(np.stack([label.ravel() for label in labels]), axis=1, return_inverse=True)[
        1
    ].ravel()
    total = 0.0
    for group in range(key.max() + 1):
        o = seen.ravel()[key == group]
        total += sum(-o.size * q * np.log(q) for q in (o.mean(), 1 - o.mean()) if q > 0)
    return total / seen.size


def noisy(seed, n_users=300, n_items=120):
    """Users and items differ in activity; features are pure noise."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(2.5 - rng.normal(0, 0.7, (n_users, 1)) - rng.normal(0, 0.7, n_items)))
    seen = rng.random(p.shape) < p
    return counted(
        seen,
        rng.integers(0, 12, n_users).astype(np.int32),
        rng.integers(0, 12, n_items).astype(np.int32),
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_entropies_equal_a_count_over_all_pairs(seed):
    seen, user_bin, item_bin = small(seed)
    gains = information_gains(counted(seen, user_bin, item_bin), "plugin")
    users, items = np.broadcast_arrays(user_bin[:, None], item_bin[None, :])
    assert gains.H - brute_force(seen, 0 * users) == pytest.approx(0.0, abs=1e-12)
    assert gains.H_u == pytest.approx(brute_force(seen, users), abs=1e-12)
    assert gains.H_ui == pytest.approx(brute_force(seen, users, items), abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_local_scores_average_to_the_gains(seed):
    counts = counted(*small(seed))
    user, item = local_scores(counts)
    gains = information_gains(counts, "plugin")
    weight = counts.pairs / counts.pairs.sum()
    assert user.min() >= 0
    assert item.min() >= 0
    assert (weight.sum(1) * user).sum() == pytest.approx(gains.H - gains.H_u, abs=1e-9)
    assert (weight * item).sum() == pytest.approx(gains.H_u - gains.H_ui, abs=1e-9)


@pytest.mark.parametrize("estimator", ["plugin", "permutation"])
def test_corrected_local_scores_average_to_the_corrected_gains(estimator):
    rng = np.random.default_rng(0)
    user_bin, item_bin = (
        rng.integers(0, 5, 200).astype(np.int32),
        rng.integers(0, 6, 90).astype(np.int32),
    )
    p = 0.1 + 0.05 * user_bin[:, None] * (item_bin[None] > 2)
    counts = counted(rng.random(p.shape) < p, user_bin, item_bin)
    gains = information_gains(counts, estimator, 30)
    weight = counts.pairs / counts.pairs.sum()
    assert gains.gain_user > 0.001
    assert gains.gain_item > 0.001
    assert (weight.sum(1) * gains.user).sum() == pytest.approx(gains.gain_user, abs=1e-9)
    assert (weight * gains.item).sum() == pytest.approx(gains.gain_item, abs=1e-9)
    assert gains.user.min() >= 0
    assert gains.item.min() >= 0


def test_noise_features_gain_nothing_after_permutation_while_plugin_says_otherwise():
    inside, excess, raw = 0, [], []
    for seed in range(20):
        counts = noisy(seed)
        gains = information_gains(counts, "permutation", 60, rng=seed)
        raw.append(gains.plugin_user)
        excess.append(gains.plugin_user - gains.null_user.mean)
        for null, plugin in (
            (gains.null_user, gains.plugin_user),
            (gains.null_item, gains.plugin_item),
        ):
            inside += null.low <= plugin <= null.high
    assert inside >= 33  # of 40, 95 % each, with 60 permutations
    assert abs(np.mean(excess)) < 3 * np.std(excess) / 20**0.5
    assert np.mean(raw) > 10 * np.std(raw) / 20**0.5  # the artefact


def test_real_effects_survive_the_correction():
    rng = np.random.default_rng(3)
    user_bin, item_bin = (
        np.repeat(np.arange(4, dtype=np.int32), 100),
        np.repeat(np.arange(5, dtype=np.int32), 40),
    )
    p = 0.02 + 0.06 * user_bin[:, None] + 0.02 * item_bin[None]
    gains = information_gains(
        counted(rng.random(p.shape) < p, user_bin, item_bin), "permutation", 30
    )
    assert gains.gain_user > 0.9 * gains.plugin_user
    assert gains.gain_item > 0.9 * gains.plugin_item
    assert gains.plugin_user > gains.null_user.high


def test_permutation_null_equals_recounting_permuted_users():
    seen, user_bin, item_bin = small(5)
    counts = counted(seen, user_bin, item_bin)
    null = information_gains(counts, "permutation", 3000, rng=1).null_user
    rng = np.random.default_rng(0)
    recounted = []
    for _ in range(600):
        permuted = information_gains(counted(seen, rng.permutation(user_bin), item_bin), "plugin")
        recounted.append(permuted.plugin_user)
    assert null.mean == pytest.approx(np.mean(recounted), abs=4 * np.std(recounted) / 600**0.5)


def test_same_seed_same_result_and_bad_input_is_refused():
    counts = noisy(0)
    a, b = (information_gains(counts, "permutation", 5, rng=7) for _ in range(2))
    assert (a.gain_user, a.gain_item) == (b.gain_user, b.gain_item)
    with pytest.raises(InputError, match="estimator"):
        information_gains(counts, "jackknife")
    with pytest.raises(InputError, match="n_permutations"):
        information_gains(counts, "permutation", 0)


def test_coins():
    assert bernoulli_entropy(0.5) == pytest.approx(np.log(2))
    assert bernoulli_entropy(np.array([0.0, 1.0])).tolist() == [0.0, 0.0]
    assert bernoulli_kl(np.array([0.5]), 0.25)[0] == pytest.approx(
        0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    )
