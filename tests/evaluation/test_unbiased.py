"""Estimates from biased rows: unbiased over draws with the true propensity, intervals that cover, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.unbiased import evaluate_biased, unbiased_error

N_USERS, N_ITEMS = 60, 50


@pytest.fixture(scope="module")
def world() -> dict[str, np.ndarray]:
    """A whole matrix of errors, and propensities that go along with them; rows of users × items."""
    rng = np.random.default_rng(0)
    taste = rng.normal(size=(N_USERS, 1)) + rng.normal(size=N_ITEMS)
    error = np.exp(0.5 * taste)
    p = 1 / (1 + np.exp(1.0 - taste))
    return {"user": np.repeat(np.arange(N_USERS), N_ITEMS), "error": error.ravel(), "p": p.ravel()}


def _draws(world, trials: int, **options) -> np.ndarray:
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(trials):
        seen = rng.random(world["p"].size) < world["p"]
        wrong = options.get("wrong")
        p = np.full(seen.sum(), world["p"].mean()) if wrong == "p" else world["p"][seen]
        imputed = np.full(world["p"].size, 0.3) if wrong == "imputation" else 0.999 * world["error"]
        total = np.bincount(world["user"], weights=imputed)
        found = unbiased_error(
            world["user"][seen],
            world["error"][seen],
            p,
            estimator=options["estimator"],
            n_users=N_USERS,
            n_items=N_ITEMS,
            imputed=imputed[seen],
            imputed_by_user=total,
        )
        rows.append((found.value, found.low, found.high))
    return np.array(rows)


@pytest.mark.parametrize(
    ("estimator", "wrong"), [("ips", None), ("snips", None), ("dr", None), ("dr", "imputation"), ("dr", "p")]
)
def test_unbiased_over_draws(world, estimator, wrong) -> None:
    truth = world["error"].mean()
    value = _draws(world, 400, estimator=estimator, wrong=wrong)[:, 0]
    spread = value.std() / np.sqrt(400)
    assert abs(value.mean() - truth) < 3 * spread + 0.002 * truth
    seen = np.random.default_rng(2).random(world["p"].size) < world["p"]
    assert world["error"][seen].mean() > 1.1 * truth  # what the plain mean would say


def test_snips_ignores_the_scale_of_propensities_and_ips_does_not(world) -> None:
    at = slice(0, 900)
    rows = (world["user"][at], world["error"][at])
    full, half = (unbiased_error(*rows, c * world["p"][at]).value for c in (1.0, 0.5))
    assert full == pytest.approx(half)
    size = {"estimator": "ips", "n_users": N_USERS, "n_items": N_ITEMS}
    full, half = (unbiased_error(*rows, c * world["p"][at], **size).value for c in (1.0, 0.5))
    assert half == pytest.approx(2 * full)


def test_intervals_cover_users_drawn_anew() -> None:
    """Users are the sampling unit: each draw meets new people whose errors differ."""
    rng, hits, trials = np.random.default_rng(3), 0, 400
    for _ in range(trials):
        level, items = rng.normal(1.0, 0.3, size=(80, 1)), rng.normal(0.0, 0.2, size=(80, 30))
        error = level + items
        p = 1 / (1 + np.exp(1 - 2 * items))
        user, item = np.nonzero(rng.random(p.shape) < p)
        found = unbiased_error(user, error[user, item], p[user, item])
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
    names, user = ["uauc", "ndcg@20", "precision@20"], np.nonzero(biased)[0]
    truth = evaluate_scores(np.nonzero(uniform)[0], score[uniform], label[uniform], metrics=names)
    plain = evaluate_scores(user, score[biased], label[biased], metrics=names)
    weighted = evaluate_biased(user, score[biased], label[biased], p[biased], metrics=names)
    assert weighted.weighted
    for name in names:
        assert abs(weighted[name] - truth[name]) < 0.25 * abs(plain[name] - truth[name]), name


def test_the_bias_of_self_normalising_fades_as_lists_grow() -> None:
    """UAUC weighted, less UAUC over all pairs: a ratio's bias is of order 1 / rows, so ten times the rows cut it."""
    gaps = []
    for n_users, n_items in ((1200, 100), (120, 1000)):
        score, label, p, rng = _ranking_world(n_users, n_items)
        seen, user = rng.random(p.shape) < p, np.repeat(np.arange(n_users), n_items)
        full = evaluate_scores(user, score.ravel(), label.ravel(), metrics=["uauc"])
        found = evaluate_biased(user[seen.ravel()], score[seen], label[seen], p[seen], metrics=["uauc"])
        gaps.append(abs(found["uauc"] - full["uauc"]))
    assert gaps[1] < 0.4 * gaps[0]


def test_missing_or_bad_inputs_are_refused(refusal) -> None:
    rows = (np.array([0, 1]), np.array([0.5, 0.2]), np.array([0.5, 0.4]))
    refusal(lambda: unbiased_error(*rows, estimator="ips"), "n_users")
    refusal(lambda: unbiased_error(*rows, estimator="dr", n_items=3), "imputed")
    refusal(lambda: unbiased_error(*rows, estimator="magic"), "magic")
    refusal(lambda: unbiased_error(*rows[:2], np.array([0.5, 1.5])), "row 2", "1.5")
    refusal(lambda: unbiased_error(*rows[:2], np.array([0.0, 0.5])), "row 1")
    refusal(lambda: unbiased_error(*rows, estimator="ips", n_users=1, n_items=3), "user code")
