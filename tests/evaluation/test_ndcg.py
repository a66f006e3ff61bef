"""NDCG, recall, precision and MAP against scikit-learn, all orders of ties, and hand-worked
lists."""

from __future__ import annotations

from itertools import permutations
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

from puidrec.evaluation import evaluate_scores
from puidrec.evaluation.ranking import rank_lists
from puidrec.evaluation.significance import PerUser


def user_ndcg(user, score, label, k=10**6, users="both-labels", weight=None) -> PerUser:
    name = f"ndcg@{k}"
    return evaluate_scores(user, score, label, metrics=[name], users=users, weight=weight).per_user[
        name
    ]


def user_graded_ndcg(user, score, relevance, k=10**6) -> PerUser:
    """Of every user: all rows are called positive, so that every list counts."""
    name, label = f"ndcg-graded@{k}", np.ones(len(user), int)
    return evaluate_scores(
        user, score, label, relevance, metrics=[name], users="any-positive"
    ).per_user[name]


def test_by_hand() -> None:
    user, score, label = [1, 1, 1, 4, 4, 6], [0.9, 0.8, 0.1, 0.5, 0.5, 0.2], [0, 1, 1, 1, 0, 1]
    ideal = 1 + 1 / log2(3)
    result = user_ndcg(user, score, label)
    assert result.users.tolist() == [1, 4]
    np.testing.assert_allclose(result.values, [(1 / log2(3) + 0.5) / ideal, ideal / 2], atol=1e-15)
    assert user_ndcg(user, score, label, k=1).values.tolist() == [0.0, 0.5]
    assert user_ndcg(user, score, label, k=1, users="any-positive").values.tolist() == [
        0.0,
        0.5,
        1.0,
    ]


def _rows(seed: int, levels: int | None, n: int = 500) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 40, n)
    score = rng.normal(size=n) if levels is None else rng.integers(0, levels, n).astype(float)
    return user, score, rng.integers(0, 5, n)


@pytest.mark.parametrize("k", [1, 3, 5, 50])
@pytest.mark.parametrize("levels", [None, 1, 4])
def test_equals_scikit_learn(k, levels) -> None:
    user, score, rating = _rows(1, levels)
    label = (rating >= 4).astype(int)
    binary, graded = user_ndcg(user, score, label, k), user_graded_ndcg(user, score, rating, k)
    for result, gain in ((binary, label), (graded, 2.0**rating - 1)):
        assert len(result) > 20
        for u, value in zip(result.users, result.values, strict=True):
            at = user == u
            if at.sum() > 1:
                assert value == pytest.approx(
                    ndcg_score(gain[None, at], score[None, at], k=k), abs=1e-12
                )


def test_nothing_to_gain_is_zero() -> None:
    assert user_graded_ndcg([0, 0], [1.0, 2.0], [0, 0]).values.tolist() == [0.0]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 3)), min_size=1, max_size=12
    ),
    st.integers(1, 6),
)
def test_a_weight_stands_for_so_many_tied_rows(rows, k) -> None:
    """Row weights are scaled to mean 1, so compare with copies whose number is scaled by the same
    factor: k too."""
    score, label, copies = (np.array(column) for column in zip(*rows, strict=True))
    if not label.any():
        return
    user, scale = np.zeros(score.size, int), copies.mean()
    weighted = rank_lists(user, score.astype(float), copies.astype(float)).blocks(label)
    repeated = rank_lists(np.repeat(user, copies), np.repeat(score, copies).astype(float)).blocks(
        np.repeat(label, copies)
    )
    np.testing.assert_allclose(weighted.begin * scale, repeated.begin, atol=1e-9)
    np.testing.assert_allclose(weighted.end * scale, repeated.end, atol=1e-9)
    np.testing.assert_allclose(weighted.gain * scale, repeated.gain, atol=1e-9)
    found = user_ndcg(user, score, label, k, "any-positive", copies.astype(float)).values[0]
    assert 0.0 <= found <= 1.0 + 1e-12


def test_weighted_by_hand() -> None:
    """Weights 3 and 1 become 1.5 and 0.5: the positive spans positions 1.5 to 2 of the list,
    ideally 0 to 0.5."""
    found = user_ndcg([0, 0], [2.0, 1.0], [0, 1], weight=np.array([3.0, 1.0])).values[0]
    assert found == pytest.approx((0.5 / log2(3)) / 0.5, abs=1e-12)


def test_bad_requests_are_refused(refusal) -> None:
    refusal(lambda: user_ndcg([0], [1.0], [1], users="some"), "some", "both-labels")
    refusal(lambda: user_graded_ndcg([0], [1.0], [-1]), "relevance")


NAMES = ["recall@2", "precision@2", "map", "recall@9", "precision@9"]


def _by_definition(ranked: np.ndarray) -> list[float]:
    """The five figures of one fixed order of labels."""
    at = np.flatnonzero(ranked)
    average = float(np.mean((np.arange(at.size) + 1) / (at + 1)))
    m = ranked.sum()
    return [ranked[:2].sum() / m, ranked[:2].sum() / 2, average, 1.0, m / 9]


def test_hits_by_hand() -> None:
    result = evaluate_scores([0, 0, 0, 0], [4, 3, 2, 1], [1, 0, 1, 0], metrics=NAMES)
    assert [result[name] for name in NAMES] == pytest.approx(
        [0.5, 0.5, 5 / 6, 1.0, 2 / 9], abs=1e-15
    )


def test_map_equals_scikit_learn_without_ties() -> None:
    rng = np.random.default_rng(0)
    user, score, label = rng.integers(0, 12, 300), rng.normal(size=300), rng.integers(0, 2, 300)
    result = evaluate_scores(user, score, label, metrics=["map"]).per_user["map"]
    for u, value in zip(result.users, result.values, strict=True):
        assert value == pytest.approx(
            average_precision_score(label[user == u], score[user == u]), abs=1e-12
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=6))
def test_ties_are_averaged_over_all_orders(rows) -> None:
    score, label = (np.array(column) for column in zip(*rows, strict=True))
    if not label.any():
        return
    orders = [
        list(p) for p in permutations(range(score.size)) if (np.diff(score[list(p)]) <= 0).all()
    ]
    expected = np.mean([_by_definition(label[order]) for order in orders], axis=0)
    user = np.append(np.full(score.size, 5), [2, 2, 8])  # neighbours that must not leak in
    result = evaluate_scores(
        user,
        np.append(score, [9, 0, 1]),
        np.append(label, [1, 0, 1]),
        metrics=NAMES,
        users="any-positive",
    )
    found = [result.per_user[name].values[result.per_user[name].users == 5][0] for name in NAMES]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_map_has_no_weighted_form(refusal) -> None:
    refusal(
        lambda: evaluate_scores([0, 0], [1, 2], [0, 1], metrics=["map"], weight=[1.0, 2.0]),
        "map",
        "weight",
    )
