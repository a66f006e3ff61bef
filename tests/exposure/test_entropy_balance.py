"""Balanced weights against a general solver of the same problem, and at its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from puidrec.exposure.balancing import entropy_balance

RNG = np.random.default_rng(0)
BASE = RNG.uniform(1.0, 20.0, 12)
MOMENTS = RNG.normal(size=(12, 2))


def tilted(base: np.ndarray, moments: np.ndarray, target, variance=0.0) -> np.ndarray:
    return base * entropy_balance(base, moments, np.asarray(target, float), variance).factor(
        moments
    )


@pytest.mark.parametrize("variance", [0.01, 0.3])
def test_equal_to_a_general_solver_of_the_primal_problem(variance) -> None:
    target, share = np.array([0.3, -0.2]), BASE / BASE.sum()

    def primal(logits: np.ndarray) -> float:
        w = np.exp(logits - logits.max())
        w /= w.sum()
        return float(
            np.sum(w * np.log(w / share)) + 0.5 * np.sum((w @ MOMENTS - target) ** 2) / variance
        )

    best = minimize(primal, np.log(share), method="BFGS", options={"gtol": 1e-9})
    w = np.exp(best.x - best.x.max())
    assert tilted(BASE, MOMENTS, target, variance) == pytest.approx(
        w / w.sum() * BASE.sum(), rel=1e-4
    )


def test_targets_that_can_be_met_are_met_and_the_sum_of_weights_is_kept() -> None:
    w = tilted(BASE, MOMENTS, [0.3, -0.2])
    assert (w > 0).all()
    assert w.sum() == pytest.approx(BASE.sum())
    assert w @ MOMENTS / w.sum() == pytest.approx([0.3, -0.2], abs=1e-6)


def test_what_is_balanced_already_keeps_its_weights() -> None:
    assert tilted(BASE, MOMENTS, BASE @ MOMENTS / BASE.sum()) == pytest.approx(BASE)
    assert tilted(BASE, np.ones(12), 5.0) == pytest.approx(
        BASE
    )  # a constant moment cannot be moved
    far = entropy_balance(BASE, MOMENTS, np.array([9.0, 9.0]), 1e12)  # a target nobody knows
    assert far.factor(MOMENTS) == pytest.approx(np.ones(12), abs=1e-6)


def test_a_target_out_of_reach_is_approached() -> None:
    w = tilted(BASE, MOMENTS[:, 0], MOMENTS[:, 0].max() + 1.0)
    assert np.isfinite(w).all()
    assert w @ MOMENTS[:, 0] / w.sum() == pytest.approx(MOMENTS[:, 0].max(), abs=1e-3)


def test_scales_of_moments_do_not_matter() -> None:
    big = MOMENTS * np.array([1e6, 1e-6])
    expected = tilted(BASE, MOMENTS, [0.3, -0.2])
    assert tilted(BASE, big, [0.3e6, -0.2e-6]) == pytest.approx(expected, rel=1e-6)


def test_nonsense_is_refused(refusal) -> None:
    refusal(lambda: entropy_balance(BASE[:3], MOMENTS, 0.0), "one weight")
    refusal(lambda: entropy_balance(-BASE, MOMENTS, 0.0), "one weight")
    refusal(lambda: entropy_balance(BASE, MOMENTS * np.nan, 0.0), "not finite")
