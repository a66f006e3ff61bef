from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.synthetic import simulate
from puidrec.evaluation import evaluate
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender
from puidrec.scores.towers import EXPOSURE, IMPUTATION, RATING


def lowest(prepared) -> float:
    """The smallest propensity that is believed: a quarter of the mean exposure, or the clipping
    limit."""
    return max(prepared.settings.min_propensity, 0.25 * rate_of(prepared))


def rate_of(prepared) -> float:
    return len(prepared.split.train) / prepared.data.n_pairs


def curvature(prepared) -> float:
    """Half the second derivative of cross-entropy at the mean exposure, by differences."""
    rate, step = rate_of(prepared), 1e-4

    def entropy(c: float) -> float:
        return -rate * np.log(c) - (1.0 - rate) * np.log(1.0 - c)

    return (entropy(rate + step) - 2.0 * entropy(rate) + entropy(rate - step)) / step**2 / 2.0


def problem_of(prepared, seed=3):
    """The problem with biases and maps moved off their start, so that every part counts."""
    (stage,) = stages_of(prepared)
    problem, rng = stage.build({}), np.random.default_rng(seed)
    for parameter in problem.heads.parameters():
        noise = rng.normal(0, 0.1, tuple(parameter.shape)).astype(np.float32)
        parameter.data += parameter.new_tensor(noise)
    return problem


def brute_force(prepared, problem, dense) -> float:
    """The joint loss by visiting every pair."""
    at, target = (
        (prepared.rows.user, prepared.rows.item),
        prepared.log.target(prepared.rows).astype(np.float64),
    )
    exposure, rating = dense(problem.heads.factors(EXPOSURE)), dense(problem.heads.factors(RATING))
    seen = np.zeros(exposure.shape)
    seen[at] = 1.0
    weight = 1.0 / np.clip(exposure[at], lowest(prepared), 1.0)
    total = curvature(prepared) * ((exposure - seen) ** 2).sum()
    error = (rating[at] - target) ** 2
    if not prepared.settings.spec.imputes:
        return (total + (weight * error).sum()) / seen.size
    pseudo = dense(problem.heads.factors(IMPUTATION))
    imputed = (rating - pseudo) ** 2
    total += (
        imputed.sum()
        + (weight * (error - imputed[at])).sum()
        + (weight * (pseudo[at] - target) ** 2).sum()
    )
    return total / seen.size


@pytest.mark.parametrize("backbone", ["mf", "mf-linear", "mf-mlp"])
@pytest.mark.parametrize("target", ["rating", "binary"])
@pytest.mark.parametrize("method", ["multi-ips", "multi-dr"])
def test_the_joint_loss_equals_brute_force(method, target, backbone, prepare, dense_scores) -> None:
    prepared = prepare(method, target=target, backbone=backbone)
    problem = problem_of(prepared)
    loss = float(problem.loss().detach())
    assert loss == pytest.approx(brute_force(prepared, problem, dense_scores), rel=1e-5)


def test_weights_and_pseudo_labels_are_constants_for_the_rating_loss(prepare) -> None:
    """The exposure head moves by its own fit only: with all ratings met exactly, its gradient is
    that of the fit."""
    prepared = prepare("multi-ips", backbone="mf")
    problem = problem_of(prepared)
    problem.loss().backward()
    with_rating = problem.heads.means.grad[EXPOSURE].item()
    exposure = problem.heads.factors(EXPOSURE).tile().detach().double().numpy()
    seen = np.zeros(exposure.shape)
    seen[prepared.rows.user, prepared.rows.item] = 1.0
    assert with_rating == pytest.approx(
        2.0 * curvature(prepared) * (exposure - seen).mean(), rel=1e-5
    )


CHOICE_OF_DIM = (
    "dim and L2 are chosen by ratings alone: they leave no columns for what exposure says of taste"
)


@pytest.mark.parametrize(
    "options",
    [
        {"dim": 16, "l2": 0.1},
        pytest.param({}, marks=pytest.mark.xfail(reason=CHOICE_OF_DIM, strict=True)),
    ],
    ids=["given", "chosen"],
)
def test_where_co_exposure_carries_taste_sharing_beats_mf(options) -> None:
    data = simulate(
        "trait-genre", 600, 120, n_rows=8_000, n_uniform=8_000, exposure_strength=2.5, rng=0
    ).data
    found = {}
    for method in ("mf", "multi-ips"):
        model = Recommender(method, backbone="mf", rng=0, **options).fit(data, protocol="rd")
        found[method] = evaluate(model, data.test, ["auc"])["auc"]
    assert found["multi-ips"] > found["mf"] + 0.02


def test_heads_share_representations(prepare) -> None:
    problem = problem_of(prepare("multi-dr", backbone="mf"))
    before = [
        problem.heads.factors(head).tile().detach() for head in (EXPOSURE, RATING, IMPUTATION)
    ]
    problem.heads.backbone.user_towers[0].weight.data[0] += 1.0
    after = [problem.heads.factors(head).tile().detach() for head in (EXPOSURE, RATING, IMPUTATION)]
    for one, other in zip(before, after, strict=True):
        assert not np.allclose(one[0], other[0])
        np.testing.assert_array_equal(one[1:], other[1:])


def test_the_rating_step_does_not_move_the_pseudo_labels(prepare, dense_scores) -> None:
    """The imputation head learns from its own mismatch on the log only, however far the ratings are
    from it."""
    prepared = prepare("multi-dr", backbone="mf")
    problem = problem_of(prepared)
    problem.loss().backward()
    at, target = (
        (prepared.rows.user, prepared.rows.item),
        prepared.log.target(prepared.rows).astype(np.float64),
    )
    exposure, pseudo = (
        dense_scores(problem.heads.factors(head))[at] for head in (EXPOSURE, IMPUTATION)
    )
    weight = 1.0 / np.clip(exposure, lowest(prepared), 1.0)
    expected = (2.0 * weight * (pseudo - target)).sum() / prepared.data.n_pairs
    assert problem.heads.means.grad[IMPUTATION].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("method", ["multi-ips", "multi-dr"])
def test_maps_cannot_grow_where_vectors_shrink(method, prepare) -> None:
    """The same scores from vectors of half the size and maps of four times it must not be the
    cheaper ones."""
    (stage,) = stages_of(prepare(method, backbone="mf"))
    problem = stage.build({})
    heads, (step,) = problem.heads, problem.steps
    before = float(step.penalty().detach())
    scores = heads.factors(RATING).tile().detach()
    for towers in (heads.backbone.user_towers, heads.backbone.item_towers):
        towers[0].weight.data[:, :-1] *= 0.5
    heads.maps.data *= 4.0
    np.testing.assert_allclose(heads.factors(RATING).tile().detach(), scores, atol=1e-6)
    assert float(step.penalty().detach()) > before


@pytest.mark.parametrize("backbone", ["mf", "mf-linear"])
def test_at_the_start_every_gain_has_a_slope(backbone, prepare) -> None:
    """Adam's first step has its full size however small a slope is: one that is 0 but for rounding
    is decided by it."""
    prepared = prepare("multi-dr", backbone=backbone)
    problem = stages_of(prepared)[0].build({})
    (problem.loss() + problem.steps[0].penalty()).backward()
    gains = problem.heads.gains.grad
    assert float(gains.abs().min()) > 1e-5 * float(problem.heads.means.grad.abs().max())
