"""Ranks by blocks: against the metric's own DCG, brute force, and in any tiling."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing import ranks
from puidrec.auditing.ranks import rank, rank_credits, sample_users
from puidrec.evaluation.ranking import top_k


@pytest.fixture
def world() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=(2, 30, 25)), 1).astype(np.float32)  # rounded: there are ties
    seen = np.argwhere(rng.random((30, 25)) < 0.3)
    return {"scores": scores, "user": seen[:, 0], "item": seen[:, 1]}


def ranked(world: dict[str, np.ndarray], users: np.ndarray, two: bool = True) -> ranks.Ranked:
    start = np.searchsorted(world["user"], np.arange(31))
    scorers = tuple(lambda u, k=k: world["scores"][k][u].copy() for k in (0, 1))
    seen = (start, world["item"])
    return rank(users, world["user"], world["item"], seen, (scorers[0], scorers[1] if two else None), 25)


def test_credits_are_those_of_ranks_and_ties_share_them() -> None:
    found = rank_credits(np.array([[3.0, 1.0, 2.0], [5.0, 5.0, 1.0], [0.0, 0.0, 0.0]]))
    one, two, three = 1 / np.log2([2, 3, 4])
    np.testing.assert_allclose(found[0], [one, three, two])
    np.testing.assert_allclose(found[1], [(one + two) / 2, (one + two) / 2, three])
    np.testing.assert_allclose(found[2], (one + two + three) / 3)


def test_the_sum_of_label_times_credit_is_the_dcg_of_the_whole_list() -> None:
    from sklearn.metrics import dcg_score

    rng = np.random.default_rng(1)
    scores, labels = np.round(rng.normal(size=(20, 15)), 1), rng.integers(0, 2, (20, 15))
    expected = [dcg_score(labels[[k]], scores[[k]]) for k in range(20)]
    np.testing.assert_allclose((labels * rank_credits(scores)).sum(axis=1), expected, atol=1e-12)


def test_rows_get_the_credit_of_their_own_user_and_item(world: dict[str, np.ndarray]) -> None:
    users = np.array([2, 5, 6, 29])
    found = ranked(world, users)
    assert set(world["user"][found.rows]) == set(users)
    assert found.rows.size == np.isin(world["user"], users).sum()
    for m, credit in enumerate((found.credit, found.against_credit)):
        everywhere = rank_credits(world["scores"][m])
        np.testing.assert_allclose(credit, everywhere[world["user"][found.rows], world["item"][found.rows]])


def test_recommendations_are_the_best_unseen_items(world: dict[str, np.ndarray]) -> None:
    scores = world["scores"] + 1e-3 * np.random.default_rng(2).random(world["scores"].shape)  # no ties
    found = ranked({**world, "scores": scores}, np.arange(30))
    seen = np.zeros((30, 25), bool)
    seen[world["user"], world["item"]] = True
    best = [[set(np.argsort(np.where(seen[u], np.inf, -scores[m][u]))[:10]) for u in range(30)] for m in range(2)]
    for m, slots in enumerate((found.slots, found.against_slots)):
        np.testing.assert_array_equal(slots, [sum(i in chosen for chosen in best[m]) for i in range(25)])
    np.testing.assert_allclose(found.overlap, [len(a & b) / 10 for a, b in zip(*best, strict=True)])


def test_a_model_agrees_with_itself(world: dict[str, np.ndarray]) -> None:
    same = {**world, "scores": np.stack([world["scores"][0]] * 2)}
    found = ranked(same, np.arange(30))
    np.testing.assert_array_equal(found.overlap, 1.0)
    np.testing.assert_array_equal(found.slots, found.against_slots)


def test_tiles_change_nothing(world: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ranked(world, np.arange(30))
    monkeypatch.setattr(ranks, "TILE", 60)
    tiled = ranked(world, np.arange(30))
    for name in ("rows", "credit", "against_credit", "overlap", "slots", "against_slots"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(tiled, name))


def test_one_model_alone(world: dict[str, np.ndarray]) -> None:
    found = ranked(world, np.arange(30), two=False)
    assert found.against_credit is None
    assert found.overlap is None
    assert found.slots.sum() == 300


def test_users_are_sampled_where_all_would_be_too_many() -> None:
    user = np.repeat(np.arange(100), 3)
    assert sample_users(user, 10, 0).size == 100
    few = sample_users(user, 10, 0, most=200)
    assert few.size == 20
    assert (np.diff(few) > 0).all()
    np.testing.assert_array_equal(few, sample_users(user, 10, 0, most=200))
    assert sample_users(np.array([4, 4, 7]), 10, 0).tolist() == [4, 7]


def test_ties_are_recommended_in_the_order_of_the_items_as_a_recommender_does() -> None:
    scores = np.zeros((1, 40))
    scores[0, [30, 35]] = 1.0
    start, item = np.array([0, 2]), np.array([1, 30])
    found = rank(np.array([0]), np.array([0, 0]), item, (start, item), (lambda users: scores[users], None), 40)
    best, _ = top_k(np.where(np.isin(np.arange(40), item), -np.inf, scores), 10)
    assert np.flatnonzero(found.slots).tolist() == sorted(best[0].tolist()) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 35]
