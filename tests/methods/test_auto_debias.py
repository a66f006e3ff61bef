"""`auto-debias`: its loss by brute force, its gradient by differences of a step that is made, and
its limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puidrec.data.synthetic import simulate
from puidrec.methods.all_pairs import LOOK_AHEAD
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender


@pytest.fixture
def problem(many_uniform, prepare):
    prepared = prepare("auto-debias", data=many_uniform, unseen_weight=0.6)
    problem = stages_of(prepared)[0].build({})
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for module in (problem.phi, problem.learned):
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return prepared, problem


def dense_loss(prepared, weights, score: np.ndarray, lam: float) -> float:
    """L by visiting every pair."""
    rows, (z_u, z_i) = prepared.rows, prepared.log.activity
    target = np.asarray(prepared.log.target(rows), np.float64)
    seen, everywhere = (x.detach().double().numpy() for x in (weights.seen, weights.everywhere))
    m = weights.values().detach().double().numpy()
    high = target > prepared.log.target_mean
    at = (rows.user, rows.item)
    w1 = np.exp(seen[0] * z_u[at[0]] + seen[1] * z_i[at[1]] + seen[2] * (high - 0.5))
    o = np.zeros(score.shape)
    o[at] = 1.0
    w2 = np.exp(
        everywhere[0] + everywhere[1] * z_u[:, None] + everywhere[2] * z_i + everywhere[3] * o
    )
    imputed = np.full(score.shape, m[0])
    imputed[at] = np.where(high, m[2], m[1])
    return np.mean(w1 * (score[at] - target) ** 2) + lam * np.mean(w2 * (score - imputed) ** 2)


def test_the_loss_is_a_sum_over_the_log_and_all_pairs(problem, dense_scores) -> None:
    prepared, problem = problem
    expected = dense_loss(prepared, problem.learned, dense_scores(problem.factors()), 0.6)
    assert float(problem.loss(problem.factors()).detach()) == pytest.approx(expected, rel=1e-5)


def after_a_step(prepared, problem) -> float:
    """mean_U e after the step is really made, in float64."""
    phi = problem.factors().detach()
    left, right = (x[0].double().numpy() for x in (phi.lefts, phi.rights))
    rows, uniform = prepared.rows, prepared.uniform_rows()
    lam, n_users = problem.settings.unseen_weight, problem.phi.n_users

    def loss(left):
        return dense_loss(prepared, problem.learned, left @ right.T, lam)

    down = np.zeros_like(left)
    for at in np.ndindex(
        left.shape
    ):  # the loss is quadratic in a vector: central differences are exact
        shift = np.zeros_like(left)
        shift[at] = 0.5
        down[at] = loss(left + shift) - loss(left - shift)
    per_user = np.bincount(rows.user, minlength=n_users) * n_users / len(rows)
    moved = left - (LOOK_AHEAD * n_users / (per_user + lam))[:, None] * down
    score = np.sum(moved[uniform.user] * right[uniform.item], 1)
    return float(np.mean((score - prepared.log.target(uniform)) ** 2))


def test_the_gradient_of_the_weights_is_that_of_the_step_that_follows(problem) -> None:
    prepared, problem = problem
    value = problem.look_ahead()
    assert float(value.detach()) == pytest.approx(after_a_step(prepared, problem), rel=1e-4)
    slopes = torch.autograd.grad(value, list(problem.learned.parameters()))
    for parameter, slope, k in zip(problem.learned.parameters(), slopes, (2, 1, 0), strict=True):
        values = []
        with torch.no_grad():
            for shift in (0.05, -0.1):
                parameter[k] += shift
                values.append(after_a_step(prepared, problem))
            parameter[k] += 0.05
        assert float(slope[k]) == pytest.approx((values[0] - values[1]) / 0.1, rel=0.05, abs=1e-7)


def test_with_all_weights_one_and_no_unseen_pairs_it_is_the_loss_of_the_log(
    many_uniform, prepare, dense_scores
) -> None:
    prepared = prepare("auto-debias", data=many_uniform, unseen_weight=0.0)
    problem = stages_of(prepared)[0].build({})
    rows = prepared.rows
    score = dense_scores(problem.factors())[rows.user, rows.item]
    expected = np.mean((score - prepared.log.target(rows)) ** 2)
    assert float(problem.loss(problem.factors()).detach()) == pytest.approx(expected, rel=1e-5)


def test_it_learns_from_uniform_rows_and_says_so(many_uniform) -> None:
    model = Recommender("auto-debias", rng=0, dim=3, l2=0.1, epochs=40, select="none").fit(
        many_uniform
    )
    learned = model.parameters_["weights.everywhere"]
    assert float(learned.abs().max()) > 0.0
    assert "training (weights and imputed values)" in model.report_["uniform_rows_used"]


def test_without_uniform_rows_it_is_refused(refusal) -> None:
    few = simulate("mixed", 40, 25, density=0.3, n_uniform=200, rng=3).data
    refusal(
        lambda: Recommender("auto-debias").fit(few, protocol="rd"),
        "auto-debias trains on uniform ratings",
        "at least 50",
    )
