"""Recall, precision and MAP: scikit-learn without ties, the mean over all orders with ties."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from puidrec.evaluation.evaluator import evaluate_scores

NAMES = ["recall@2", "precision@2", "map", "recall@9", "precision@9"]


def _by_definition(ranked: np.ndarray) -> list[float]:
    """The five figures of one fixed order of labels."""
    at = np.flatnonzero(ranked)
    average = float(np.mean((np.arange(at.size) + 1) / (at + 1)))
    m = ranked.sum()
    return [ranked[:2].sum() / m, ranked[:2].sum() / 2, average, 1.0, m / 9]


def test_by_hand() -> None:
    result = evaluate_scores([0, 0, 0, 0], [4, 3, 2, 1], [1, 0, 1, 0], metrics=NAMES)
    assert [result[name] for name in NAMES] == pytest.approx([0.5, 0.5, 5 / 6, 1.0, 2 / 9], abs=1e-15)


def test_map_equals_scikit_learn_without_ties() -> None:
    rng = np.random.default_rng(0)
    user, score, label = rng.integers(0, 12, 300), rng.normal(size=300), rng.integers(0, 2, 300)
    result = evaluate_scores(user, score, label, metrics=["map"]).per_user["map"]
    for u, value in zip(result.users, result.values, strict=True):
        assert value == pytest.approx(average_precision_score(label[user == u], score[user == u]), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=6))
def test_ties_are_averaged_over_all_orders(rows) -> None:
    score, label = (np.array(column) for column in zip(*rows, strict=True))
    if not label.any():
        return
    orders = [list(p) for p in permutations(range(score.size)) if (np.diff(score[list(p)]) <= 0).all()]
    expected = np.mean([_by_definition(label[order]) for order in orders], axis=0)
    user = np.append(np.full(score.size, 5), [2, 2, 8])  # neighbours that must not leak in
    result = evaluate_scores(
        user, np.append(score, [9, 0, 1]), np.append(label, [1, 0, 1]), metrics=NAMES, users="any-positive"
    )
    found = [result.per_user[name].values[result.per_user[name].users == 5][0] for name in NAMES]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_map_has_no_weighted_form(refusal) -> None:
    refusal(lambda: evaluate_scores([0, 0], [1, 2], [0, 1], metrics=["map"], weight=[1.0, 2.0]), "map", "weight")
