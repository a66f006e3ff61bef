"""Balanced weights of the log: constraints by brute force over all pairs, and the limits in which
nothing moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender
from puidrec.scores.low_rank import LowRank


@pytest.fixture
def both_stages(problem_after):
    """The first fit and the second problem. By Adam: solved, both models of DR have the same
    scores."""

    def run(prepared):
        problem, done = problem_after(prepared)
        return done["first"], problem

    return run


def parts(prepared, done, problem, dense_scores):
    """Weights, errors, imputed errors on the log, and the mean imputed error over D, by visiting
    every pair."""
    rows = prepared.rows
    prediction = dense_scores(done.phi)
    error = (prediction[rows.user, rows.item] - prepared.log.target(rows)) ** 2
    imputed = (
        np.zeros_like(prediction)
        if done.theta is None
        else (prediction - dense_scores(done.theta)) ** 2
    )
    return (
        problem.columns["b"].values.double().numpy(),
        error,
        imputed[rows.user, rows.item],
        imputed.mean(),
    )


def test_stable_dr_balances_imputed_errors_to_their_mean_over_all_pairs(
    many_uniform, dense_scores, prepare, both_stages
) -> None:
    prepared = prepare("stable-dr", data=many_uniform, epochs=30, solver="adam")
    done, problem = both_stages(prepared)
    w, _, imputed, mean = parts(prepared, done, problem, dense_scores)
    assert w.sum() == pytest.approx(many_uniform.n_users * many_uniform.n_items, rel=1e-5)
    assert w @ imputed / w.sum() == pytest.approx(mean, rel=1e-3)
    plain = 1 / prepared.log.nominal.propensity_of(prepared.rows)
    assert abs(plain @ imputed / plain.sum() - mean) > 10 * abs(w @ imputed / w.sum() - mean)
    ratio = np.log(w / plain)  # a tilt: log w/b is linear in ê
    assert np.corrcoef(ratio, imputed)[0, 1] ** 2 == pytest.approx(1.0, abs=1e-6)
    error = (
        dense_scores(problem.factors())[prepared.rows.user, prepared.rows.item]
        - prepared.log.target(prepared.rows)
    ) ** 2
    loss = float(problem.steps[0].loss().detach())
    assert loss == pytest.approx(w @ error / w.sum(), rel=1e-5)


def test_stable_dr_does_not_balance_rounding(many_uniform, prepare, both_stages) -> None:
    """Converged models of the same weights and L2 have the same scores: ê is rounding, no reason to
    move weights."""
    prepared = prepare("stable-dr", data=many_uniform, epochs=30, solver="adam")
    first, main = stages_of(prepared)[-2:]
    done, _ = both_stages(prepared)
    left, right = done.phi.lefts[0], done.phi.rights[0]
    noise = torch.randn(left.shape, generator=torch.Generator().manual_seed(0))
    same = replace(done, theta=LowRank.of(left * (1.0 + 1e-7 * noise), right))
    w = main.build({first.name: same}).columns["b"].values.double().numpy()
    plain = 1 / prepared.log.nominal.propensity_of(prepared.rows)
    np.testing.assert_allclose(w / w.sum(), plain / plain.sum(), rtol=1e-5)


@pytest.mark.parametrize("method", ["bal-ips", "bal-dr"])
def test_bal_moves_the_loss_of_the_log_to_that_of_uniform_rows(
    method, many_uniform, dense_scores, prepare, both_stages
) -> None:
    prepared = prepare(method, data=many_uniform, epochs=30, solver="adam")
    done, problem = both_stages(prepared)
    w, error, imputed, mean = parts(prepared, done, problem, dense_scores)
    uniform = prepared.split.propensity
    own = (dense_scores(done.phi)[uniform.user, uniform.item] - prepared.log.target(uniform)) ** 2
    slack = own.var(ddof=1) / own.size
    plain = 1 / prepared.log.nominal.propensity_of(prepared.rows)

    def above(weight):
        return mean + weight @ (error - imputed) / weight.sum() - own.mean()

    assert abs(above(w)) < 0.2 * abs(above(plain))
    ratio = np.log(w / plain)
    slope, _ = np.polyfit(error - imputed, ratio, 1)
    assert -slope * slack == pytest.approx(
        above(w), abs=1e-4
    )  # the optimality condition of the penalised problem


def test_a_log_of_all_pairs_needs_no_balancing(prepare, both_stages) -> None:
    """Everything is seen, so that means over the log are means over D: the weights stay equal, and
    stable-dr is mf."""
    pair, rng = np.arange(600), np.random.default_rng(0)
    rows = pl.DataFrame(
        {"user_id": pair // 20, "item_id": pair % 20, "rating": rng.integers(1, 6, 600)}
    )
    data = Dataset.from_frame(rows, rows, scale=(1.0, 5.0), overlap="keep")
    prepared = prepare("stable-dr", data=data, epochs=30, solver="adam")
    _, problem = both_stages(prepared)
    w = problem.columns["b"].values.numpy()
    assert len(prepared.rows) == 600
    assert w == pytest.approx(np.ones_like(w), abs=1e-4)


@pytest.mark.parametrize("solver", ["adam", "least-squares"])
@pytest.mark.parametrize("method", ["stable-dr", "bal-ips", "bal-dr"])
def test_both_solvers_train_it_and_reports_name_the_uniform_rows(
    method, solver, many_uniform
) -> None:
    model = Recommender(method, rng=0, dim=3, l2=0.1, epochs=20, solver=solver).fit(many_uniform)
    assert np.isfinite(model.user_factors_).all()
    assert ("weights of the log" in model.report_["uniform_rows_used"]) is method.startswith("bal")


def test_rows_that_train_neither_validate_nor_test(many_uniform, prepare) -> None:
    prepared = prepare("bal-dr", data=many_uniform, epochs=30, solver="adam")
    key = lambda rows: set(zip(rows.user.tolist(), rows.item.tolist(), strict=True))  # noqa: E731
    used = key(prepared.uniform_rows())
    assert len(used) >= 50
    assert not used & key(prepared.split.validation)
    assert not used & key(prepared.split.test)


def test_too_few_uniform_rows_are_refused(refusal) -> None:
    few = simulate("mixed", 40, 25, density=0.3, n_uniform=200, rng=3).data
    refusal(
        lambda: Recommender("bal-ips").fit(few, protocol="rd"),
        "bal-ips trains on uniform ratings",
        "at least 50",
    )
