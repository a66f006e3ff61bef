"""Weights of logged pairs against the variances, biases and constraints they are derived from."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.losses import log_weights as weights

RNG = np.random.default_rng(0)
P = RNG.uniform(0.05, 0.95, 400)
GAP = RNG.normal(size=400)
"""e − ê of all pairs of a small world."""
DRAWS = np.random.default_rng(1).random((20_000, 400)) < P
"""Which pairs are seen, over many logs of the same world."""


def doubly_robust(seen: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The error of DR in each draw: Σ_D (1 − o w)(ê − e)."""
    return (1.0 - seen * weight) @ -GAP


def test_the_variance_weight_estimates_the_variance_of_dr_without_bias() -> None:
    variance = doubly_robust(DRAWS, 1 / P).var()
    assert (DRAWS @ (weights.variance_weight(P) * GAP**2)).mean() == pytest.approx(
        variance, rel=0.03
    )
    assert np.sum((1 - P) / P * GAP**2) == pytest.approx(variance, rel=0.03)


def test_the_bias_weight_counts_seen_pairs_as_all_pairs_like_them() -> None:
    expected = np.sum((1 - 1 / P) ** 2 * GAP**2)  # every pair as if it were seen
    assert (DRAWS @ (weights.bias_weight(P) * GAP**2)).mean() == pytest.approx(expected, rel=0.05)


def test_dr_mse_lies_between_its_ends() -> None:
    assert np.array_equal(weights.mean_square_weight(P, 0.0), weights.variance_weight(P))
    assert np.array_equal(weights.mean_square_weight(P, 1.0), weights.bias_weight(P))


def test_the_dynamic_weight_is_flat_for_rare_pairs_and_inverse_for_common_ones() -> None:
    rare, common = np.array([1e-4, 1e-3, 0.01, 0.1]), np.array([0.13, 0.3, 0.7, 0.999])
    assert weights.dynamic_weight(rare) == pytest.approx(5.0 / (1.0 - rare), rel=1e-9)
    assert weights.dynamic_weight(common) == pytest.approx(1.0 / np.log2(1.0 + common), rel=1e-9)
    assert weights.dynamic_weight(np.ones(1)) == pytest.approx(1.0)


def test_the_dynamic_power_is_clipped_pair_by_pair() -> None:
    p = np.linspace(1e-3, 0.999, 300)
    f = np.log(1 + p) / np.log(2)
    alpha = [
        min(max(np.log(0.2 * (1 - q)) / np.log(g), 0.0), 1.0) for q, g in zip(p, f, strict=True)
    ]
    assert weights.dynamic_weight(p) == pytest.approx(1.0 / f ** np.array(alpha), rel=1e-9)


def slope_of(seen: np.ndarray) -> float:
    h = 1 / P - 1
    return weights.targeting_slope(
        h.mean(), np.sum((h / P)[seen]), np.sum((h**2 / P)[seen]), P.size
    )


def test_targeted_weights_give_the_estimate_with_moved_imputations() -> None:
    seen, h = DRAWS[0], 1 / P - 1
    w = 1 / P[seen]
    epsilon = np.sum(w * h[seen] * GAP[seen]) / np.sum(w * h[seen] ** 2)
    moved = np.sum(epsilon * h) + np.sum(w * (GAP[seen] - epsilon * h[seen]))
    targeted = w * (1 + slope_of(seen) * h[seen])
    assert targeted.min() > 1.0
    assert weights.targeted_weight(P[seen], slope_of(seen)) == pytest.approx(targeted)
    assert np.sum(weights.targeted_weight(P[seen], slope_of(seen)) * GAP[seen]) == pytest.approx(
        moved
    )


def test_targeted_weights_reproduce_what_is_known_of_all_pairs() -> None:
    for seen in DRAWS[:20]:
        w = weights.targeted_weight(P[seen], slope_of(seen))
        if w.min() > 1.0:
            assert np.sum(w * (1 / P[seen] - 1)) == pytest.approx(np.sum(1 / P - 1))


def test_a_log_that_is_calibrated_already_keeps_its_weights() -> None:
    everything = np.ones(4)
    assert weights.targeting_slope(0.0, 0.0, 0.0, 4) == 0.0
    assert np.array_equal(weights.targeted_weight(everything, 0.0), everything)
    assert weights.targeted_weight(P, 0.0) == pytest.approx(1 / P)
