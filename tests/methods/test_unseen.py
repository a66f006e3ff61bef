from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from puidrec.objective.terms import Observed
from puidrec.train.solver import Model

from puidrec.data.dataset import Dataset
from puidrec.data.sources import load_dataset
from puidrec.evaluation.auc import auc
from puidrec.exposure.fitted import TableGamma
from puidrec.losses.signed import additive_log_gamma as log_parts
from puidrec.losses.worst_case import Box
from puidrec.methods.stages import stages_of
from puidrec.model import Recommender
from puidrec.optimise.adam import Trainer
from puidrec.scores.low_rank import LowRank


def problem_of(prepared, doubles=False):
    """The main problem after its naive stage; in float64 where asked, to compare to the last digits."""
    first, main = stages_of(prepared)
    done = {first.name: Trainer(first.build({}), prepared.settings, None, stage=first.name, save=None).run()}
    problem = main.build(done)
    if doubles:
        problem.phi.double()
        observed = problem.observed
        box = Box(observed.bounds.a.double(), observed.bounds.b.double())
        problem.observed = Observed(observed.pattern, observed.target.double(), box)
        q = problem.seen
        problem.seen = LowRank(tuple(x.double() for x in q.lefts), tuple(x.double() for x in q.rights))
        problem.log_users, problem.log_items = log_parts(problem.gamma, observed.target.double())
    return problem


def additive_log_gamma(gamma, shape):
    """log Γ of all pairs, or its additive fit, each side floored at 0."""
    users, items = (x.ravel() for x in np.meshgrid(*map(np.arange, shape), indexing="ij"))
    log = np.log(gamma.at(users, items)).reshape(shape)
    if gamma.additive_parts is not None:
        return log
    half = log.mean() / 2
    return np.maximum(log.mean(1) - half, 0)[:, None] + np.maximum(log.mean(0) - half, 0)


def brute_force(prepared, problem, dense) -> float:
    """Seen and unseen part by visiting every pair."""
    settings, at = prepared.settings, (prepared.rows.user, prepared.rows.item)
    prediction, q = dense(problem.phi.factors()), dense(problem.seen)
    seen = np.zeros(q.shape, bool)
    seen[at] = True
    weight = problem.observed.bounds.a.double().numpy()
    fit = (weight * (prediction[at] - prepared.log.target(prepared.rows)) ** 2).sum() / seen.sum()
    if settings.spec.end == "signed":
        shrink = np.exp(-problem.gamma_scale * additive_log_gamma(problem.gamma, q.shape))
        m = q * shrink if settings.picks_liked else 1 - (1 - q) * shrink
        distance = (prediction - m) ** 2
    else:
        users, items = (x.ravel() for x in np.meshgrid(*map(np.arange, q.shape), indexing="ij"))
        gamma, q = problem.gamma.at(users, items).reshape(q.shape) ** problem.gamma_scale, np.clip(q, 0, 1)
        low, high = np.maximum(q / gamma, 1 - gamma * (1 - q)), np.minimum(gamma * q, 1 - (1 - q) / gamma)
        distance = np.maximum((prediction - low) ** 2, (prediction - high) ** 2)
    return fit + settings.unseen_weight * distance[~seen].mean()


@pytest.mark.parametrize("target", ["rating", "binary"])
@pytest.mark.parametrize(
    "given",
    [
        {"method": "signed-rd", "gamma": 2.0},
        {"method": "signed-rd", "gamma": 2.0, "liked": False, "unseen_weight": 3.0},
        {"method": "signed-puid", "gamma": "exposure-gap"},
        {"method": "signed-puid", "gamma": "random", "liked": False},
        {"method": "sharp-rd", "gamma": 2.0},
        {"method": "sharp-puid", "gamma": "random", "unseen_weight": 0.5},
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_the_loss_equals_brute_force(given, target, prepare, dense_scores) -> None:
    prepared = prepare(**given, target=target, backbone="mf")
    problem = problem_of(prepared, doubles=True)
    loss = float(problem.loss(0, problem.n_users).detach())
    assert loss == pytest.approx(brute_force(prepared, problem, dense_scores), rel=1e-9)


@pytest.mark.parametrize("method", ["signed-rd", "signed-puid", "sharp-rd", "sharp-puid"])
def test_in_single_precision_too(method, prepare, dense_scores) -> None:
    prepared = prepare(method)
    problem = problem_of(prepared)
    loss = float(problem.loss(0, problem.n_users).detach())
    assert loss == pytest.approx(brute_force(prepared, problem, dense_scores), rel=1e-5)


def test_a_rule_that_is_not_separable_uses_its_additive_fit(prepare, dense_scores) -> None:
    prepared = prepare("signed-puid", gamma="random", backbone="mf")
    problem = problem_of(prepared, doubles=True)
    rng, gamma = np.random.default_rng(0), problem.gamma
    bins = (np.arange(40) % 4, np.arange(25) % 3)
    assert isinstance(gamma, TableGamma)
    table = TableGamma.make(bins, np.abs(rng.normal(0, 0.6, (4, 3))), cap=20.0)
    assert table.additive_parts is None
    users, items = log_parts(table, problem.observed.target)
    problem = replace(problem, gamma=table, log_users=users, log_items=items)
    loss = float(problem.loss(0, problem.n_users).detach())
    assert loss == pytest.approx(brute_force(prepared, problem, dense_scores), rel=1e-9)


@pytest.mark.parametrize("size", [1, 11, 39])
@pytest.mark.parametrize("method", ["signed-puid", "sharp-puid"])
def test_block_losses_average_to_the_whole(method, size, prepare) -> None:
    problem = problem_of(prepare(method, gamma="random"))
    users = problem.n_users
    blocks = [(start, min(start + size, users)) for start in range(0, users, size)]
    average = sum((stop - start) / users * float(problem.loss(start, stop).detach()) for start, stop in blocks)
    assert average == pytest.approx(float(problem.loss(0, users).detach()), rel=1e-5)


def test_gradients_equal_dense_autograd(prepare) -> None:
    prepared = prepare("sharp-rd", gamma=2.0, backbone="mf")
    problem = problem_of(prepared, doubles=True)
    weight = problem.phi.user_towers[0].weight
    problem.loss(0, problem.n_users).backward()
    engine = weight.grad.clone()
    weight.grad = None
    q = problem.seen.tile().clamp(0, 1)
    low, high = torch.maximum(q / 2, 1 - 2 * (1 - q)), torch.minimum(2 * q, 1 - (1 - q) / 2)
    prediction = problem.phi.factors().tile()
    seen = torch.zeros(q.shape, dtype=torch.bool)
    at = tuple(torch.tensor(codes.tolist()) for codes in (prepared.rows.user, prepared.rows.item))
    seen[at] = True
    fit = problem.observed.bounds.a @ (prediction[at] - problem.observed.target).square() / seen.sum()
    far = torch.maximum((prediction - low).square(), (prediction - high).square())
    (fit + prepared.settings.unseen_weight * far[~seen].mean()).backward()
    torch.testing.assert_close(engine, weight.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("target", ["rating", "binary"])
def test_q_lives_where_the_bounds_do(target, prepare) -> None:
    problem = problem_of(prepare("signed-rd", target=target, epochs=100, patience=0))
    q = problem.seen.tile()
    assert float(((q > -0.3) & (q < 1.3)).float().mean()) > 0.95
    assert float(problem.observed.target.min()) >= 0.0


def test_a_larger_gamma_lowers_unseen_scores_and_disliked_raises_them(prepare, dense_scores) -> None:
    means = []
    for given in ({"gamma": 3.0}, {"gamma": 1.0}, {"gamma": 3.0, "liked": False}):
        prepared = prepare("signed-rd", epochs=120, patience=0, select="none", lr=0.05, **given)
        problem = problem_of(prepared)
        fitted = Trainer(problem, prepared.settings, None, stage="main", save=None).run()
        means.append(dense_scores(fitted.phi).mean())
    assert means[0] < means[1] - 0.05
    assert means[2] > means[1] + 0.05


def all_rank(prepared):
    """The problem of `all-rank`, in float64."""
    (stage,) = stages_of(prepared)
    problem = stage.build({})
    problem.phi.double()
    observed = problem.observed
    box = Box(observed.bounds.a.double(), observed.bounds.b.double())
    problem.observed = Observed(observed.pattern, observed.target.double(), box)
    return problem


@pytest.mark.parametrize("liked", [True, False])
def test_all_rank_pulls_unseen_pairs_to_the_end_of_the_scale(liked, prepare, dense_scores) -> None:
    prepared = prepare("all-rank", backbone="mf", liked=liked, unseen_weight=2.0)
    problem = all_rank(prepared)
    rows, prediction = prepared.rows, dense_scores(problem.phi.factors())
    seen = np.zeros(prediction.shape, bool)
    seen[rows.user, rows.item] = True
    fit = np.mean((prediction[rows.user, rows.item] - prepared.log.target(rows)) ** 2)
    pull = np.mean((prediction[~seen] - (0.0 if liked else 1.0)) ** 2)
    loss = float(problem.loss(0, problem.n_users).detach())
    assert loss == pytest.approx(fit + 2.0 * pull, rel=1e-6)


def test_all_rank_is_signed_rd_as_gamma_grows(prepare) -> None:
    same = {"backbone": "mf", "unseen_weight": 3.0, "solver": "least-squares", "l2_vectors": 0.5}
    limit = all_rank(prepare("all-rank", **same))
    signed = problem_of(prepare("signed-rd", gamma=1e8, **same), doubles=True)
    signed.phi.load_state_dict(limit.phi.state_dict())
    losses = [float(problem.loss(0, problem.n_users).detach()) for problem in (signed, limit)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_all_rank_trains_on_positives_alone() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 90), rng.integers(0, 3, 40)
    user, item = np.nonzero(rng.random((90, 40)) < np.where(group[0][:, None] == group[1], 0.4, 0.02))
    log = pl.DataFrame({"user_id": user, "item_id": item, "rating": np.ones(user.size)})
    log = log.with_columns(rating=pl.when(pl.arange(pl.len()) == 0).then(0.99).otherwise(1.0))  # one all but positive
    data = Dataset.from_frame(log, scale=(0.0, 1.0))
    model = Recommender("all-rank", dim=4, rng=0).fit(data)
    scores, alike = model.user_factors_ @ model.item_factors_.T, group[0][:, None] == group[1]
    assert scores[alike].mean() > 1.5 * scores.mean()
    assert auc(scores.ravel(), alike.ravel()) > 0.9


@pytest.mark.parametrize(("backbone", "by"), [("mf", 1e-7), ("mf-linear", 1e-2)])
def test_all_rank_ends_at_an_optimum_that_a_moved_start_does_not_change(backbone, by, monkeypatch) -> None:
    """With IDs alone columns are found, and a start is dropped if it is next to nothing; with features it is used."""
    data, start = load_dataset("simulated", world="mixed", seed=0, n_users=120, n_items=80), Model.start
    fits = []
    for shift in (0.0, by):
        monkeypatch.setattr(Model, "start", lambda *a, own=shift: {k: v + own for k, v in start(*a).items()})
        fits.append(Recommender("all-rank", backbone=backbone, dim=8, rng=0).fit(data))
    still, moved = (model.user_factors_ @ model.item_factors_.T for model in fits)
    assert np.abs(still - moved).max() <= 1e-4
    assert all("not_converged" not in model.report_ for model in fits)
    assert np.linalg.matrix_rank(still - still.mean(), tol=0.1) > 2  # vectors, not biases alone
