"""AUC against scikit-learn, brute force and hand-worked lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from puidrec.evaluation.metrics import auc, auc_by_user, user_auc
from puidrec.evaluation.significance import PerUser, mean_interval


def test_by_hand() -> None:
    user = [7, 7, 7, 7, 2, 2, 5, 5]
    score = [0.9, 0.5, 0.5, 0.1, 1.0, 1.0, 0.3, 0.4]
    label = [1, 1, 0, 0, 1, 0, 1, 1]
    result = user_auc(user, score, label)
    assert result.users.tolist() == [2, 7]  # 5 has one label
    assert result.values.tolist() == [0.5, 0.875]
    assert result.mean == 0.6875


def _rows(seed: int, levels: int | None, n: int = 600) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 25, n) * 1_000_003 - 40  # codes need be neither small nor dense
    score = rng.normal(size=n) if levels is None else rng.integers(0, levels, n) / 3.0
    label = (rng.random(n) < rng.random(25)[user % 25]).astype(int)
    label[user == user.min()], label[user == user.max()] = 1, 0
    return user, score, label, rng.random(n) + 0.05


@pytest.mark.parametrize("levels", [None, 1, 2, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_scikit_learn(levels, dtype) -> None:
    user, score, label, weight = _rows(0, levels)
    score = score.astype(dtype)
    both = [u for u in np.unique(user) if 0 < label[user == u].mean() < 1]
    assert len(both) < np.unique(user).size
    for w in (None, weight):
        result = user_auc(user, score, label, w)
        assert result.users.tolist() == both
        for u, value in zip(both, result.values, strict=True):
            at = user == u
            expected = roc_auc_score(
                label[at], score[at], sample_weight=None if w is None else w[at]
            )
            assert value == pytest.approx(expected, abs=1e-12)
        assert auc(score, label, w) == pytest.approx(
            roc_auc_score(label, score, sample_weight=w), abs=1e-12
        )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-3, 3), st.booleans()), min_size=1, max_size=25
    )
)
def test_equals_counting_pairs(rows) -> None:
    user, score, label = (np.array(column) for column in zip(*rows, strict=True))
    result = user_auc(user, score.astype(float), label.astype(int))
    for u, value in zip(result.users, result.values, strict=True):
        gap = np.subtract.outer(score[(user == u) & label], score[(user == u) & ~label])
        assert value == pytest.approx((np.sign(gap) + 1).mean() / 2, abs=1e-12)


def test_a_growing_map_of_scores_changes_nothing() -> None:
    user, score, label, _ = _rows(3, 7)
    assert np.array_equal(
        user_auc(user, score, label).values, user_auc(user, np.exp(score), label).values
    )


def test_reversed_scores_give_the_complement() -> None:
    user, score, label, weight = _rows(4, 5)
    forth, back = user_auc(user, score, label, weight), user_auc(user, -score, label, weight)
    np.testing.assert_allclose(forth.values + back.values, 1.0, atol=1e-12)


def test_one_label_has_no_auc() -> None:
    assert np.isnan(auc(np.array([0.1, 0.2]), np.array([1, 1])))
    assert np.isnan(user_auc([0, 0], [0.1, 0.2], [1, 1]).mean)


@pytest.mark.parametrize("weighted", [False, True])
def test_values_per_user_have_the_mean_and_the_spread_of_the_pooled_auc(weighted) -> None:
    rng = np.random.default_rng(0)
    code = np.sort(rng.integers(60, size=1_500))
    label = (rng.random(1_500) < 0.3).astype(np.int8)
    taste = rng.standard_normal(60)[code]
    score = np.round(label + taste + rng.standard_normal(1_500), 1)  # with ties
    weight = rng.uniform(0.5, 2.0, 1_500) if weighted else None
    found = auc_by_user(np.arange(60), code, score, label, weight)
    assert isinstance(found, PerUser)
    assert found.mean == pytest.approx(roc_auc_score(label, score, sample_weight=weight), abs=1e-12)
    without = []
    for user in range(60):
        kept = code != user
        own = None if weight is None else weight[kept]
        without.append(roc_auc_score(label[kept], score[kept], sample_weight=own))
    jackknife = np.sqrt(59 / 60 * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert mean_interval(found).standard_error == pytest.approx(jackknife, rel=0.05)


def test_one_label_has_no_pooled_auc_per_user() -> None:
    found = auc_by_user(np.arange(2), np.array([0, 1]), np.array([0.1, 0.2]), np.array([1, 1]))
    assert isinstance(found, float)
    assert np.isnan(found)
