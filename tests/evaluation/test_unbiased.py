"""Metrics from rows that users chose, weighted by propensity: close to those of uniform rows, intervals, refusals."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.evaluation.evaluator import Evaluation, evaluate, evaluate_scores

N_USERS, N_ITEMS = 60, 50


class Scores:
    """Predicts from a matrix; ids are codes."""

    def __init__(self, score: np.ndarray) -> None:
        self.score = score

    def predict(self, users, items) -> np.ndarray:
        return self.score[users, items]


def weighted(user, item, score, label, p, metrics) -> Evaluation:
    table = pl.DataFrame({"user_id": user, "item_id": item, "label": label[user, item]})
    return evaluate(Scores(score), table, metrics, propensity=p[user, item])


@pytest.fixture(scope="module")
def world() -> dict[str, np.ndarray]:
    """A whole matrix of scores whose errors go along with the propensities."""
    taste = np.random.default_rng(0).normal(size=(N_USERS, 1)) + np.random.default_rng(1).normal(size=N_ITEMS)
    score = 1.0 + np.exp(0.25 * taste)
    return {"score": score, "label": np.ones(score.shape, int), "p": 1 / (1 + np.exp(1.0 - taste))}


def test_the_weighted_error_is_that_of_all_pairs(world) -> None:
    truth, rng, found = ((world["score"] - 1.0) ** 2).mean(), np.random.default_rng(1), []
    for _ in range(200):
        user, item = np.nonzero(rng.random(world["p"].shape) < world["p"])
        found.append(weighted(user, item, **world, metrics=["mse"])["mse"])
    assert abs(np.mean(found) - truth) < 3 * np.std(found) / np.sqrt(200) + 0.002 * truth
    assert ((world["score"][user, item] - 1.0) ** 2).mean() > 1.1 * truth  # what the plain mean would say


def test_a_common_factor_of_the_propensities_does_not_matter(world) -> None:
    user, item = np.divmod(np.arange(900), N_ITEMS)
    full, half = (weighted(user, item, **{**world, "p": c * world["p"]}, metrics=["mse"])["mse"] for c in (1.0, 0.5))
    assert full == pytest.approx(half)


def test_intervals_cover_users_drawn_anew() -> None:
    """Users are the sampling unit: each draw meets new people whose errors differ."""
    rng, hits, trials = np.random.default_rng(3), 0, 400
    for _ in range(trials):
        level, items = rng.normal(1.0, 0.3, size=(80, 1)), rng.normal(0.0, 0.2, size=(80, 30))
        error = level + items
        p = 1 / (1 + np.exp(1 - 2 * items))
        user, item = np.nonzero(rng.random(p.shape) < p)
        score = np.sqrt(np.maximum(error, 0.0))  # labels are 0, so the squared error is `error`
        found = evaluate_scores(
            user, score[user, item], np.zeros(user.size), metrics=["mse"], weight=1.0 / p[user, item]
        ).interval("mse")
        hits += found.low <= 1.0 <= found.high
    assert 0.91 < hits / trials < 0.98


def _ranking_world(n_users: int, n_items: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Scores, labels and propensities: positives are seen more, and the rows that the model gets right most."""
    rng = np.random.default_rng(4)
    hidden = rng.normal(size=(n_users, n_items))
    label = (hidden + rng.normal(size=hidden.shape) > 1).astype(int)
    score = hidden + rng.normal(size=hidden.shape)
    p = 1 / (1 + np.exp(1.5 - label - np.where(label == 1, score, -score)))
    return score, label, p, rng


def test_weighted_rankings_recover_the_uniform_ones() -> None:
    score, label, p, rng = _ranking_world(400, 300)
    uniform, biased = rng.random(p.shape) < 0.4, rng.random(p.shape) < p
    names, (user, item) = ["uauc", "ndcg@20", "precision@20"], np.nonzero(biased)
    truth = evaluate_scores(np.nonzero(uniform)[0], score[uniform], label[uniform], metrics=names)
    plain = evaluate_scores(user, score[biased], label[biased], metrics=names)
    found = weighted(user, item, score, label, p, names)
    assert found.weighted
    for name in names:
        assert abs(found[name] - truth[name]) < 0.25 * abs(plain[name] - truth[name]), name


def test_the_bias_of_self_normalising_fades_as_lists_grow() -> None:
    """UAUC weighted, less UAUC over all pairs: a ratio's bias is of order 1 / rows, so ten times the rows cut it."""
    gaps = []
    for n_users, n_items in ((1200, 100), (120, 1000)):
        score, label, p, rng = _ranking_world(n_users, n_items)
        user, item = np.nonzero(rng.random(p.shape) < p)
        every = np.repeat(np.arange(n_users), n_items)
        full = evaluate_scores(every, score.ravel(), label.ravel(), metrics=["uauc"])
        gaps.append(abs(weighted(user, item, score, label, p, ["uauc"])["uauc"] - full["uauc"]))
    assert gaps[1] < 0.4 * gaps[0]


def test_propensities_stay_with_their_rows_where_the_protocol_drops_some() -> None:
    rows = {"user_id": [0, 0, 1], "item_id": [0, 1, 2], "rating": [5.0, 3.0, 1.0]}
    p, score = np.array([0.5, 0.1, 0.25]), np.array([[0.9, 0.5, 0.4], [0.9, 0.5, 0.4]])
    expected = (2 * 0.1**2 + 4 * 0.4**2) / 6  # the paper's protocol drops the 3
    data = Dataset.from_frame(pl.DataFrame(rows), scale=(1, 5))
    for part in (data.logged, pl.DataFrame(rows)):
        found = evaluate(Scores(score), part, ["mse"], protocol="paper", scale=(1, 5), propensity=p)
        assert (found.n_rows, found["mse"]) == (2, pytest.approx(expected, abs=1e-6))


def test_bad_propensities_are_refused(refusal) -> None:
    table = {"user_id": [0, 0], "item_id": [0, 1], "label": [0, 1]}

    def ask(*p: float) -> Evaluation:
        return evaluate(Scores(np.zeros((1, 2))), table, ["mse"], propensity=np.array(p))

    refusal(lambda: ask(0.5, 1.5), "row 2", "1.5")
    refusal(lambda: ask(0.0, 0.5), "row 1")
    refusal(lambda: ask(0.5), "one entry per row")
