"""Exposure residuals: variances found where they are, nothing found where nothing is hidden."""

import numpy as np
import pytest
from scipy.stats import norm

from puidrec.data.synthetic import simulate
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.residuals import (
    Levels,
    cell_shift,
    exposure_residuals,
    fitted_level,
    folded_quantile,
    local_gain,
    pair_shift,
    shrunk_residual,
    unshrunk,
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
    trace = shrunk_residual(gap, flat, empty)
    assert trace.prior[empty[:, 0]].mean() == pytest.approx(0.5, rel=0.1)
    assert trace.prior[~empty[:, 0]].mean() < 0.01
    assert np.mean((trace.mean - trait) ** 2) == pytest.approx(
        trace.variance.mean(), rel=0.15
    )  # knows its error
    blind = shrunk_residual(gap, flat, None)
    assert np.mean((blind.mean - trait) ** 2) > 1.5 * np.mean((trace.mean - trait) ** 2)


def test_variance_follows_the_gain_only_if_the_log_says_so():
    rng = np.random.default_rng(1)
    gain = rng.exponential(1.0, 5000)
    noise = np.full(5000, 0.05)
    grows = shrunk_residual(
        Levels(rng.normal(0, np.sqrt(0.3 * np.minimum(gain, 3) + noise)), noise), gain, None
    ).prior
    even = shrunk_residual(Levels(rng.normal(0, np.sqrt(0.3 + noise)), noise), gain, None).prior
    low, high = gain < 0.3, gain > 2
    assert grows[high].mean() > 5 * grows[low].mean()
    assert even[high].mean() == pytest.approx(even[low].mean(), rel=0.25)


def test_nothing_hidden_leaves_no_residual():
    noise = np.full(2000, 0.1)
    gap = Levels(np.random.default_rng(2).normal(0, 0.1**0.5, 2000), noise)
    assert np.abs(shrunk_residual(gap, np.ones(2000), None).mean).mean() < 0.05


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


def evidence_of(simulation):
    d = simulation.data
    sizes = {"n_users": d.n_users, "n_items": d.n_items}
    return Evidence.from_log(d.logged.user, d.logged.item, users=d.users, items=d.items, **sizes)


@pytest.fixture(scope="module")
def half_complete():
    simulation = simulate("half-complete", rng=3)
    return simulation, evidence_of(simulation)


def test_residuals_follow_hidden_traits_and_know_their_error(half_complete):
    simulation, evidence = half_complete
    phi = simulation.truth.matrix("phi").mean(axis=1)
    incomplete = evidence.users["mood"].is_null().to_numpy()
    trace = pair_shift(evidence, "features")[1]
    assert np.corrcoef(trace.mean[incomplete], phi[incomplete])[0, 1] > 0.9
    assert np.abs(trace.mean[~incomplete]).mean() < 0.1  # recorded: nothing left to find
    error = trace.mean - phi
    assert np.sqrt(np.mean(error[incomplete] ** 2)) < 0.35
    assert np.mean(np.abs(error) < 2.0 * np.sqrt(trace.variance) + 0.02) > 0.9


def test_items_without_traits_leave_no_residual(half_complete):
    _, evidence = half_complete
    assert np.abs(exposure_residuals(evidence, "features")[1].mean).mean() < 0.08


def test_features_too_fine_for_bins_are_hidden_from_cells_only():
    evidence = evidence_of(simulate("no-confounding", rng=0))
    cleared = np.abs(exposure_residuals(evidence, "features")[0].mean).mean()
    assert cleared < 0.6 * np.abs(exposure_residuals(evidence, "cells")[0].mean).mean()
    assert cleared < 0.08


def test_shift_from_cell_rates_is_below_zero_where_traits_are_strong(half_complete):
    _, evidence = half_complete
    shift = cell_shift(evidence.two_way, evidence.counts)
    assert shift.shape == evidence.counts.cells.shape
    weight = evidence.counts.pairs / evidence.counts.pairs.sum()
    assert -0.5 < (weight * shift).sum() < 0.0  # the mean over traits lies above the typical pair
