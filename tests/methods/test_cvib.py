"""`cvib` against brute force, and at its limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puidrec.methods.stages import stages_of, train_stages
from puidrec.model import Recommender


def problem_of(prepare, **given):
    return stages_of(prepare("cvib", **given))[0].build({})


@pytest.mark.parametrize(("alpha", "gamma"), [(0.7, 0.3), (0.7, 0.0), (0.0, 0.3), (0.0, 0.0)])
def test_the_loss_is_that_of_the_paper_over_all_pairs(alpha, gamma, prepare, dense_scores) -> None:
    prepared = prepare("cvib", information_weight=alpha, confidence_penalty=gamma)
    problem = stages_of(prepared)[0].build({})
    with torch.no_grad():
        for parameter in problem.phi.parameters():
            parameter.add_(
                0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            )
    rows = prepared.rows
    p = 1.0 / (1.0 + np.exp(-dense_scores(problem.factors())))
    seen = np.zeros(p.shape, bool)
    seen[rows.user, rows.item] = True
    y, at = prepared.log.target(rows), p[rows.user, rows.item]
    fit = np.mean(-y * np.log(at) - (1 - y) * np.log(1 - at))
    m1, m0 = p[seen].mean(), p[~seen].mean()
    contrast = -m1 * np.log(m0) - (1 - m1) * np.log(1 - m0)
    entropy = np.mean(p * np.log(p) + (1 - p) * np.log(1 - p))
    expected = fit + alpha * contrast + gamma * entropy
    assert float(problem.loss().detach()) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_is_that_of_the_loss(prepare) -> None:
    problem = problem_of(prepare, information_weight=2.0, confidence_penalty=0.5)
    mean = problem.phi.mean
    (slope,) = torch.autograd.grad(problem.loss(), mean)
    with torch.no_grad():
        values = []
        for shift in (1e-2, -2e-2):
            mean.add_(shift)
            values.append(float(problem.loss().detach()))
    assert float(slope) == pytest.approx((values[0] - values[1]) / 2e-2, rel=1e-2)


def test_without_both_terms_it_is_cross_entropy_on_the_log(prepare) -> None:
    same = {"epochs": 5, "select": "none", "solver": "adam"}
    plain = prepare("mf", loss="cross-entropy", **same)
    ours = prepare("cvib", information_weight=0.0, confidence_penalty=0.0, **same)
    fits = [train_stages(prepared) for prepared in (plain, ours)]
    assert fits[0].parameters.keys() == fits[1].parameters.keys()
    for a, b in zip(fits[0].parameters.values(), fits[1].parameters.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_it_draws_the_means_of_logged_and_unseen_pairs_together(world) -> None:
    gaps = []
    for alpha in (0.0, 20.0):
        model = Recommender(
            "cvib",
            rng=0,
            dim=3,
            l2=0.1,
            epochs=60,
            select="none",
            information_weight=alpha,
        ).fit(world())
        data = world()
        p = 1.0 / (1.0 + np.exp(-(model.user_factors_ @ model.item_factors_.T)))
        seen = np.zeros(p.shape, bool)
        seen[data.logged.user, data.logged.item] = True
        m1, m0 = p[seen].mean(), p[~seen].mean()
        gaps.append(-m1 * np.log(m0) - (1 - m1) * np.log(1 - m0))
    assert gaps[1] < gaps[0]


def test_only_cross_entropy_trains_it(refusal) -> None:
    refusal(lambda: Recommender("cvib", loss="squared"), "cvib cannot be trained with this loss")
