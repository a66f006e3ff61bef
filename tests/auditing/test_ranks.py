"""Ranks by blocks: against the metric's own DCG, brute force, and in any tiling."""

from __future__ import annotations

import numpy as np
import pytest

from puidrec.auditing import ranks
from puidrec.auditing.ranks import catalogue_credits, rank_credits, rated_credits, recommended, sample_users, seen_items
from puidrec.evaluation.ranking import top_k


@pytest.fixture
def world() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=(2, 30, 25)), 1).astype(np.float32)  # rounded: there are ties
    seen = np.argwhere(rng.random((30, 25)) < 0.3)
    return {"scores": scores, "user": seen[:, 0], "item": seen[:, 1]}


def ranked(world: dict[str, np.ndarray], users: np.ndarray, two: bool = True) -> ranks.Recommended:
    scorers = tuple(lambda u, k=k: world["scores"][k][u] for k in (0, 1))
    seen = seen_items(world["user"], world["item"], 30)
    return recommended(users, seen, (scorers[0], scorers[1] if two else None), 25)


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


def test_a_list_is_cut_at_k_and_ties_across_the_cut_share_what_is_left() -> None:
    from sklearn.metrics import dcg_score

    rng = np.random.default_rng(1)
    scores, labels = np.round(rng.normal(size=(20, 15)), 1), rng.integers(0, 2, (20, 15))
    expected = [dcg_score(labels[[k]], scores[[k]], k=4) for k in range(20)]
    np.testing.assert_allclose((labels * rank_credits(scores, 4)).sum(axis=1), expected, atol=1e-12)


def test_rated_rows_are_ranked_among_the_rows_of_their_user() -> None:
    from sklearn.metrics import dcg_score

    rng = np.random.default_rng(3)
    user, score, label = rng.integers(0, 12, 200), np.round(rng.normal(size=200), 1), rng.integers(0, 2, 200)
    for k in (None, 3):
        gained = np.bincount(user, label * rated_credits(user, score, k))
        expected = [dcg_score(label[None, user == u], score[None, user == u], k=k) for u in range(12)]
        np.testing.assert_allclose(gained, expected, atol=1e-12)


@pytest.mark.parametrize("k", [3, 25])
def test_rows_get_the_credit_of_their_own_user_and_item(world: dict[str, np.ndarray], k: int) -> None:
    users = np.array([2, 5, 6, 29])
    rows, credit = catalogue_credits(users, world["user"], world["item"], lambda u: world["scores"][0][u], k)
    assert set(world["user"][rows]) == set(users)
    assert rows.size == np.isin(world["user"], users).sum()
    everywhere = rank_credits(world["scores"][0], k)
    np.testing.assert_allclose(credit, everywhere[world["user"][rows], world["item"][rows]])


def test_items_that_a_fit_has_seen_take_no_rank(world: dict[str, np.ndarray]) -> None:
    """Every other row trained the fit: the rest is ranked as if these items did not exist."""
    trained = np.arange(world["user"].size) % 2 == 0
    seen = seen_items(world["user"][trained], world["item"][trained], 30)
    judged = {name: world[name][~trained] for name in ("user", "item")}
    scores = world["scores"][0].astype(np.float64)
    rows, credit = catalogue_credits(np.arange(30), judged["user"], judged["item"], lambda u: scores[u], 5, seen)
    without = scores.copy()
    without[world["user"][trained], world["item"][trained]] = -1e9
    expected = rank_credits(without, 5)[judged["user"][rows], judged["item"][rows]]
    np.testing.assert_allclose(credit, expected)
    np.testing.assert_array_equal(scores, world["scores"][0])  # the model's own scores are left as they are


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
    for name in ("overlap", "slots", "against_slots"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(tiled, name))
    asked = np.arange(30), world["user"], world["item"], lambda u: world["scores"][0][u], 5
    tiled_rows = catalogue_credits(*asked)
    monkeypatch.undo()
    for one, two in zip(tiled_rows, catalogue_credits(*asked), strict=True):
        np.testing.assert_array_equal(one, two)


def test_one_model_alone(world: dict[str, np.ndarray]) -> None:
    found = ranked(world, np.arange(30), two=False)
    assert found.against_slots is None
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
    found = recommended(np.array([0]), (start, item), (lambda users: scores[users], None), 40)
    best, _ = top_k(np.where(np.isin(np.arange(40), item), -np.inf, scores), 10)
    assert np.flatnonzero(found.slots).tolist() == sorted(best[0].tolist()) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 35]
