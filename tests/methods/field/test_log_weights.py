"""Rows that change the weights of the log or of the imputation: their losses by brute force, and
their limits."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.methods.field import weights as formulas
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender

IMPUTATION = {
    "mrdr": formulas.variance_weight,
    "dr-mse": lambda p: formulas.mean_square_weight(p, 0.5),
}
LOG = {"d-ips": formulas.dynamic_weight, "d-dr": formulas.dynamic_weight}


def problem_of(prepared):
    return stages_of(prepared)[-1].build({})


def everywhere(prepared) -> np.ndarray:
    """Propensities of all pairs, asked for one by one."""
    users, items = np.divmod(
        np.arange(prepared.data.n_users * prepared.data.n_items), prepared.data.n_items
    )
    return prepared.log.nominal.propensity.predict(users, items)


@pytest.mark.parametrize("method", IMPUTATION)
def test_imputation_losses_equal_brute_force(method, prepare, dense_scores) -> None:
    prepared = prepare(method)
    problem, rows = problem_of(prepared), prepared.rows
    p = prepared.log.nominal.propensity_of(rows)
    weight = IMPUTATION[method](p)
    weight /= weight.sum()
    mismatch = dense_scores(problem.imputation())[rows.user, rows.item] - prepared.log.target(rows)
    expected = np.sum(weight * mismatch**2)
    assert float(problem.steps[1].loss().detach()) == pytest.approx(expected, rel=1e-5)
    plain = np.average(mismatch**2, weights=1 / p)
    assert abs(plain - expected) > 1e-4  # the weights matter here


@pytest.mark.parametrize("method", [*LOG, "tdr"])
def test_prediction_losses_equal_brute_force(method, prepare, oracle) -> None:
    prepared = prepare(method)
    problem, dense = problem_of(prepared), oracle(prepared)
    p = prepared.log.nominal.propensity_of(prepared.rows)
    if method == "tdr":
        w, all_w = 1 / p, 1 / everywhere(prepared)
        slope = (np.sum(all_w - 1) - np.sum(w * (w - 1))) / np.sum(w * (w - 1) ** 2)
        weight = np.maximum(w * (1 + slope * (w - 1)), 1.0)
        assert not np.allclose(weight, w)
    else:
        weight = LOG[method](p)
    dense.a = dense.b = weight
    expected = dense.prediction_loss(problem.factors(), problem.imputation())
    assert float(problem.steps[0].loss().detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["mrdr", "dr-mse"])
@pytest.mark.parametrize("solver", ["adam", "least-squares"])
def test_with_one_propensity_for_all_pairs_each_is_dr(method, solver, world) -> None:
    """All propensities are raised to one that is above them."""
    options = {
        "propensity": "cells",
        "min_propensity": 0.5,
        "dim": 3,
        "l2": 0.1,
        "epochs": 10,
        "solver": solver,
        "rng": 0,
    }
    one, other = (Recommender(name, **options).fit(world()) for name in (method, "dr"))
    assert one.user_factors_ == pytest.approx(other.user_factors_, abs=2e-5)


def test_targeting_one_propensity_for_all_pairs_finds_the_share_that_was_seen(prepare) -> None:
    """Whatever the propensity says, weights that reproduce the sum over D are |D|/|O|: DR with the
    true rate."""
    prepared = prepare("tdr", min_propensity=0.5)
    weight = problem_of(prepared).columns["b"].values.numpy()
    assert weight == pytest.approx(
        prepared.data.n_users * prepared.data.n_items / len(prepared.rows), rel=1e-5
    )
    assert weight.min() > 3.0  # and not 1/0.5


@pytest.mark.parametrize("method", [*IMPUTATION, *LOG, "tdr"])
def test_least_squares_ends_where_the_weighted_loss_is_flat(method, world, prepare) -> None:
    """The solver and Adam have the same loss: its gradient, as Adam computes it, is 0 at the
    solver's answer."""
    problem = problem_of(prepare(method))
    options = {
        "propensity": "cells",
        "dim": 3,
        "epochs": 500,
        "solver": "least-squares",
        "select": "none",
        "rng": 0,
    }
    options["l2"] = 0.1
    model = Recommender(method, **options).fit(world())

    def slope(step) -> float:
        step.module.zero_grad()
        (step.loss() + step.penalty()).backward()
        return (
            sum(
                float(p.grad.square().sum()) for p in step.module.parameters() if p.grad is not None
            )
            ** 0.5
        )

    before = [slope(step) for step in problem.steps]
    for step in problem.steps:
        own = {
            k.removeprefix(f"{step.name}."): v
            for k, v in model.parameters_.items()
            if k.startswith(f"{step.name}.")
        }
        step.module.load_state_dict(own)
    after = [slope(step) for step in problem.steps]
    assert all(now < 0.02 * then for now, then in zip(after, before, strict=True)), (before, after)


def test_imputation_weights_change_the_model(world) -> None:
    options = {"propensity": "two-way", "dim": 3, "l2": 0.1, "epochs": 10, "rng": 0}
    first, second = (Recommender(name, **options).fit(world()) for name in ("dr", "mrdr"))
    assert np.abs(first.user_factors_ - second.user_factors_).max() > 1e-3


# the weights against the variances, biases and constraints they are derived from

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
    assert (DRAWS @ (formulas.variance_weight(P) * GAP**2)).mean() == pytest.approx(
        variance, rel=0.03
    )
    assert np.sum((1 - P) / P * GAP**2) == pytest.approx(variance, rel=0.03)


def test_the_bias_weight_counts_seen_pairs_as_all_pairs_like_them() -> None:
    expected = np.sum((1 - 1 / P) ** 2 * GAP**2)  # every pair as if it were seen
    assert (DRAWS @ (formulas.bias_weight(P) * GAP**2)).mean() == pytest.approx(expected, rel=0.05)


def test_dr_mse_lies_between_its_ends() -> None:
    assert np.array_equal(formulas.mean_square_weight(P, 0.0), formulas.variance_weight(P))
    assert np.array_equal(formulas.mean_square_weight(P, 1.0), formulas.bias_weight(P))


def test_the_dynamic_weight_is_flat_for_rare_pairs_and_inverse_for_common_ones() -> None:
    rare, common = np.array([1e-4, 1e-3, 0.01, 0.1]), np.array([0.13, 0.3, 0.7, 0.999])
    assert formulas.dynamic_weight(rare) == pytest.approx(5.0 / (1.0 - rare), rel=1e-9)
    assert formulas.dynamic_weight(common) == pytest.approx(1.0 / np.log2(1.0 + common), rel=1e-9)
    assert formulas.dynamic_weight(np.ones(1)) == pytest.approx(1.0)


def test_the_dynamic_power_is_clipped_pair_by_pair() -> None:
    p = np.linspace(1e-3, 0.999, 300)
    f = np.log(1 + p) / np.log(2)
    alpha = [
        min(max(np.log(0.2 * (1 - q)) / np.log(g), 0.0), 1.0) for q, g in zip(p, f, strict=True)
    ]
    assert formulas.dynamic_weight(p) == pytest.approx(1.0 / f ** np.array(alpha), rel=1e-9)


def slope_of(seen: np.ndarray) -> float:
    h = 1 / P - 1
    return formulas.targeting_slope(
        h.mean(), np.sum((h / P)[seen]), np.sum((h**2 / P)[seen]), P.size
    )


def test_targeted_weights_give_the_estimate_with_moved_imputations() -> None:
    seen, h = DRAWS[0], 1 / P - 1
    w = 1 / P[seen]
    epsilon = np.sum(w * h[seen] * GAP[seen]) / np.sum(w * h[seen] ** 2)
    moved = np.sum(epsilon * h) + np.sum(w * (GAP[seen] - epsilon * h[seen]))
    targeted = w * (1 + slope_of(seen) * h[seen])
    assert targeted.min() > 1.0
    assert formulas.targeted_weight(P[seen], slope_of(seen)) == pytest.approx(targeted)
    assert np.sum(formulas.targeted_weight(P[seen], slope_of(seen)) * GAP[seen]) == pytest.approx(
        moved
    )


def test_targeted_weights_reproduce_what_is_known_of_all_pairs() -> None:
    for seen in DRAWS[:20]:
        w = formulas.targeted_weight(P[seen], slope_of(seen))
        if w.min() > 1.0:
            assert np.sum(w * (1 / P[seen] - 1)) == pytest.approx(np.sum(1 / P - 1))


def test_a_log_that_is_calibrated_already_keeps_its_weights() -> None:
    everything = np.ones(4)
    assert formulas.targeting_slope(0.0, 0.0, 0.0, 4) == 0.0
    assert np.array_equal(formulas.targeted_weight(everything, 0.0), everything)
    assert formulas.targeted_weight(P, 0.0) == pytest.approx(1 / P)
