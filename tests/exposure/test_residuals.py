"""Exposure residuals: traits found where they are, nothing found where nothing is hidden."""

import numpy as np
import pytest
from scipy.stats import norm

from puidrec.data.synthetic import simulate
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import (
    exposure_residuals,
    fitted_level,
    folded_quantile,
    shrunk_residual,
)


def test_folded_quantile_holds_its_probability():
    mean, deviation = (
        np.random.default_rng(0).normal(0, 2, 500),
        np.random.default_rng(1).uniform(0.05, 2, 500),
    )
    for level in (0.5, 0.9, 0.95):
        g = folded_quantile(mean, deviation, level)
        inside = norm.cdf(g, mean, deviation) - norm.cdf(-g, mean, deviation)
        assert np.allclose(inside, level, atol=2e-3)
    assert folded_quantile(np.array([0.7, -0.7]), np.zeros(2), 0.95) == pytest.approx([0.7, 0.7])


def test_the_variance_of_traits_is_found_under_uneven_noise():
    rng = np.random.default_rng(0)
    noise = rng.exponential(0.3, 6000)
    trait = rng.normal(0, 0.5**0.5, 6000)
    found = shrunk_residual(trait + rng.normal(0, np.sqrt(noise)), noise)
    assert found.prior == pytest.approx(0.5, rel=0.1)
    error = found.mean - trait
    assert np.mean(error**2) == pytest.approx(found.variance.mean(), rel=0.1)  # knows its error


def test_nothing_hidden_leaves_no_residual():
    noise = np.full(2000, 0.1)
    gap = np.random.default_rng(2).normal(0, 0.1**0.5, 2000)
    assert np.abs(shrunk_residual(gap, noise).mean).mean() < 0.05


def test_level_given_features_is_a_regression_or_the_mean_of_the_bin():
    rng = np.random.default_rng(3)
    design = rng.normal(size=(3000, 2))
    value = 1.0 + design @ [0.5, -0.2] + rng.normal(0, 0.3, 3000)
    noise, bins = np.full(3000, 0.09), rng.integers(0, 3, 3000)
    found = fitted_level(value, noise, design, bins)
    assert np.allclose(found, 1.0 + design @ [0.5, -0.2], atol=0.05)
    mean = np.array([value[bins == b].mean() for b in range(3)])
    assert np.allclose(fitted_level(value, noise, None, bins), mean[bins])


def evidence_of(simulation):
    d = simulation.data
    sizes = {"n_users": d.n_users, "n_items": d.n_items}
    return Evidence.from_log(d.logged.user, d.logged.item, users=d.users, items=d.items, **sizes)


def test_residuals_follow_hidden_traits_and_know_their_error():
    simulation = simulate("half-complete", rng=3)
    evidence = evidence_of(simulation)
    phi = simulation.truth.matrix("phi").mean(axis=1)
    incomplete = evidence.users["mood"].is_null().to_numpy()
    found, items = exposure_residuals(evidence)
    assert np.corrcoef(found.mean[incomplete], phi[incomplete])[0, 1] > 0.9
    assert np.abs(found.mean[~incomplete]).mean() < 0.3  # recorded: little left to find
    error = found.mean - 0.5 * found.prior - phi
    assert np.sqrt(np.mean(error[incomplete] ** 2)) < 0.35
    assert np.mean(np.abs(error) < 2.0 * np.sqrt(found.variance) + 0.02) > 0.85
    assert np.abs(items.mean).mean() < 0.08  # items have no traits there


def test_features_too_fine_for_bins_are_not_taken_for_traits():
    evidence = evidence_of(simulate("no-confounding", rng=0))
    assert np.abs(exposure_residuals(evidence)[0].mean).mean() < 0.08
