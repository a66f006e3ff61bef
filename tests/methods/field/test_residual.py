"""Residuals learned from uniform rows: a shift that is known, limits in which there is none, and
brute force."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.methods.field.weights import corrected_labels, corrected_weights, log_odds_shift
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender


def world(shift: np.ndarray, n: int = 200_000):
    """Pairs with a nominal propensity, a true one that is off by a log-odds shift, errors, and a
    uniform sample."""
    rng = np.random.default_rng(0)
    basis = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    nominal = rng.uniform(0.1, 0.5, n)
    true = 1.0 / (1.0 + (1.0 / nominal - 1.0) * np.exp(-basis @ shift))
    errors = rng.gamma(2.0, 0.5, n) * np.exp(0.3 * basis[:, 1])
    seen, uniform = rng.random(n) < true, rng.choice(n, 20_000, replace=False)
    return nominal, basis, errors, seen, uniform


@pytest.mark.parametrize("shift", [(0.0, 0.0, 0.0), (0.4, -0.3, 0.2), (-0.5, 0.2, 0.3)])
def test_a_known_shift_of_the_log_odds_is_found(shift) -> None:
    nominal, basis, errors, seen, uniform = world(np.array(shift))
    at = errors[uniform, None] * basis[uniform]
    found = log_odds_shift(1 / nominal[seen], basis[seen], errors[seen], at, nominal.size)
    assert found == pytest.approx(shift, abs=0.06)


@pytest.fixture
def first_fit(problem_after):
    """By Adam: solved, both models of DR have the same scores."""
    return lambda prepared: problem_after(prepared)[1]["first"]


def test_labels_move_by_shrunk_means_of_what_they_miss(
    many_uniform, dense_scores, prepare, first_fit
) -> None:
    prepared = prepare("res-dr", data=many_uniform, epochs=30, solver="adam")
    done, uniform = first_fit(prepared), prepared.uniform_rows()
    before, after = (
        dense_scores(x) for x in (done.theta, corrected_labels(prepared, done.theta, uniform))
    )
    moved = after - before
    assert moved - moved.mean(0) - moved.mean(1, keepdims=True) + moved.mean() == pytest.approx(
        0.0, abs=1e-5
    )  # additive
    at = (uniform.user, uniform.item)
    missed = [np.mean((prepared.log.target(uniform) - x[at]) ** 2) for x in (before, after)]
    assert missed[1] < missed[0]


def test_the_second_stage_is_dr_with_these_labels_and_weights(
    many_uniform, dense_scores, prepare, first_fit
) -> None:
    prepared = prepare("res-dr", data=many_uniform, epochs=30, solver="adam")
    done, uniform, rows = first_fit(prepared), prepared.uniform_rows(), prepared.rows
    problem = stages_of(prepared)[-1].build({"first": done})
    w = corrected_weights(prepared, done, uniform)
    assert (w >= 1.0).all()
    label, score = (
        dense_scores(corrected_labels(prepared, done.theta, uniform)),
        dense_scores(problem.factors()),
    )
    imputed, at = (score - label) ** 2, (rows.user, rows.item)
    error = (score[at] - prepared.log.target(rows)) ** 2
    expected = (imputed.sum() + w @ (error - imputed[at])) / imputed.size
    assert float(problem.steps[0].loss().detach()) == pytest.approx(expected, rel=1e-5)
    assert [step.name for step in problem.steps] == ["phi"]


@pytest.mark.parametrize("solver", ["adam", "least-squares"])
@pytest.mark.parametrize("method", ["res-ips", "res-dr"])
def test_both_solvers_train_it_and_reports_name_the_uniform_rows(
    method, solver, many_uniform
) -> None:
    model = Recommender(method, rng=0, dim=3, l2=0.1, epochs=20, solver=solver).fit(many_uniform)
    assert np.isfinite(model.user_factors_).all()
    assert "training (residuals" in model.report_["uniform_rows_used"]


def test_only_pseudo_labels_are_corrected(many_uniform, refusal) -> None:
    refusal(
        lambda: Recommender("res-dr", head="residual", dim=3, l2=0.1).fit(many_uniform),
        "pseudo-labels",
        "head residual",
    )


def test_without_uniform_rows_it_is_refused(refusal) -> None:
    few = simulate("mixed", 40, 25, density=0.3, n_uniform=200, rng=3).data
    refusal(
        lambda: Recommender("res-dr").fit(few, protocol="rd"),
        "res-dr trains on uniform ratings",
        "at least 50",
    )
