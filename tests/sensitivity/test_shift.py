import numpy as np
import pytest
from scipy.stats import norm

from puidrec.sensitivity.shift import Levels, fitted_level, folded_quantile, local_gain, trait_trace, unshrunk


def test_folded_quantile_holds_its_probability():
    mean, deviation = np.random.default_rng(0).normal(0, 2, 500), np.random.default_rng(1).uniform(0.05, 2, 500)
    for level in (0.5, 0.9, 0.95):
        g = folded_quantile(mean, deviation, level)
        inside = norm.cdf(g, mean, deviation) - norm.cdf(-g, mean, deviation)
        assert np.allclose(inside, level, atol=2e-3)
    assert folded_quantile(np.array([0.7, -0.7]), np.zeros(2), 0.95) == pytest.approx([0.7, 0.7])


def entities(seed, n=4000, noise=0.04):
    """Traits of variance .5 where a field is empty, none where it is filled; seen through noise."""
    rng = np.random.default_rng(seed)
    empty = rng.random((n, 1)) < 0.5
    trait = np.where(empty[:, 0], rng.normal(0, 0.5**0.5, n), 0.0)
    return empty, trait, Levels(trait + rng.normal(0, noise**0.5, n), np.full(n, noise))


def test_unshrunk_undoes_a_ridge():
    rng = np.random.default_rng(0)
    estimate, noise, ridge = rng.normal(size=50), rng.uniform(0.01, 1, 50), 4.0
    variance = 1 / (1 / noise + ridge)
    found = unshrunk(estimate * variance / noise, variance, ridge, 1.5)
    assert np.allclose(found.value, estimate + 1.5)
    assert np.allclose(found.noise, noise)


def test_variance_is_found_where_the_field_is_empty():
    empty, trait, gap = entities(0)
    flat = np.zeros(trait.size)
    trace = trait_trace(gap, flat, empty)
    assert trace.prior[empty[:, 0]].mean() == pytest.approx(0.5, rel=0.1)
    assert trace.prior[~empty[:, 0]].mean() < 0.01
    assert np.mean((trace.mean - trait) ** 2) == pytest.approx(trace.variance.mean(), rel=0.15)  # knows its error
    blind = trait_trace(gap, flat, None)
    assert np.mean((blind.mean - trait) ** 2) > 1.5 * np.mean((trace.mean - trait) ** 2)


def test_variance_follows_the_gain_only_if_the_log_says_so():
    rng = np.random.default_rng(1)
    gain = rng.exponential(1.0, 5000)
    noise = np.full(5000, 0.05)
    grows = trait_trace(Levels(rng.normal(0, np.sqrt(0.3 * np.minimum(gain, 3) + noise)), noise), gain, None).prior
    even = trait_trace(Levels(rng.normal(0, np.sqrt(0.3 + noise)), noise), gain, None).prior
    low, high = gain < 0.3, gain > 2
    assert grows[high].mean() > 5 * grows[low].mean()
    assert even[high].mean() == pytest.approx(even[low].mean(), rel=0.25)


def test_nothing_hidden_leaves_no_trace():
    noise = np.full(2000, 0.1)
    gap = Levels(np.random.default_rng(2).normal(0, 0.1**0.5, 2000), noise)
    assert np.abs(trait_trace(gap, np.ones(2000), None).mean).mean() < 0.05


def test_level_given_features_is_a_regression_or_the_mean_of_the_bin():
    rng = np.random.default_rng(3)
    design = rng.normal(size=(3000, 2))
    value = 1.0 + design @ [0.5, -0.2] + rng.normal(0, 0.3, 3000)
    levels = Levels(value, np.full(3000, 0.09))
    bins = rng.integers(0, 3, 3000)
    assert np.allclose(fitted_level(levels, design, bins), 1.0 + design @ [0.5, -0.2], atol=0.05)
    mean = np.array([value[bins == b].mean() for b in range(3)])
    assert np.allclose(fitted_level(levels, None, bins), mean[bins])


def test_local_gain_is_the_divergence_from_the_average_relative_to_its_mean():
    fitted = np.log([0.1, 0.1, 0.4])
    gain = local_gain(fitted, 0.2)
    kl = [p * np.log(p / 0.2) + (1 - p) * np.log((1 - p) / 0.8) for p in (0.1, 0.1, 0.4)]
    assert gain == pytest.approx(np.array(kl) / np.mean(kl))
    assert not local_gain(np.zeros(3), 0.2).any()
