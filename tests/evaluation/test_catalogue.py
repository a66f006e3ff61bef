"""Recall over the catalogue: against a full sort, for tables and data sets, and refusals; users
without a positive."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.evaluation import unseen_items
from puidrec.evaluation.evaluator import evaluate, evaluate_scores


class Scores:
    """Predicts from a matrix; ids are codes."""

    def __init__(self, score: np.ndarray) -> None:
        self.score = score

    def predict(self, users, items) -> np.ndarray:
        return self.score[users, items]


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, Dataset]:
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((30, 25)) < 0.3)
    rows = pl.DataFrame(
        {"user_id": user, "item_id": item, "rating": rng.integers(1, 6, user.size).astype(float)}
    )
    return rng.random((30, 25)), Dataset.from_frame(rows, scale=(1, 5))


@pytest.mark.parametrize("k", [1, 4, 24, 25, 100])
def test_it_is_the_share_of_positives_that_a_full_sort_puts_among_the_first_k(
    world, k: int, monkeypatch
) -> None:
    monkeypatch.setattr(unseen_items, "PAIRS_AT_ONCE", 60)
    score, data = world
    found = evaluate(Scores(score), data.logged, [f"catalogue-recall@{k}", "uauc"])
    frame = data.logged.to_frame().filter(pl.col("rating") >= 4)
    expected = {}
    for user in frame["user_id"].unique():
        liked = frame.filter(pl.col("user_id") == user)["item_id"].to_numpy()
        expected[user] = np.isin(liked, np.argsort(-score[user])[:k]).mean()
    values = found.per_user[f"catalogue-recall@{k}"]
    assert dict(zip(values.users.tolist(), values.values.tolist(), strict=True)) == pytest.approx(
        expected
    )
    assert found[f"catalogue-recall@{k}"] == pytest.approx(np.mean(list(expected.values())))
    assert "uauc" in found


def test_a_tie_with_the_next_item_is_no_hit_and_large_catalogues_are_left_out(
    world, refusal, monkeypatch
) -> None:
    score, data = world
    assert (
        evaluate(Scores(np.zeros_like(score)), data.logged, ["catalogue-recall@3"])[
            "catalogue-recall@3"
        ]
        == 0.0
    )
    monkeypatch.setattr(unseen_items, "MOST_PAIRS", 10)
    assert np.isnan(
        evaluate(Scores(score), data.logged, ["catalogue-recall@3"])["catalogue-recall@3"]
    )
    refusal(lambda: evaluate(Scores(score), data.logged, ["catalogue-recall@0"]), "cut-off")
    table = data.logged.to_frame()
    refusal(
        lambda: evaluate(Scores(score), table, ["catalogue-recall@3"], scale=(1, 5)), "all items"
    )


def test_where_all_users_count_one_without_a_positive_scores_1_in_ndcg_alone() -> None:
    user, label = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([1, 0, 0, 0, 0, 1, 1])
    score = np.array([0.1, 0.9, 0.8, 0.3, 0.4, 0.2, 0.3])
    names = ["ndcg@2", "recall@1", "uauc"]
    found = evaluate_scores(user, score, label, metrics=names, users="all")
    assert found["ndcg@2"] == pytest.approx((0.0 + 1.0 + 1.0) / 3)
    assert found["recall@1"] == pytest.approx((0.0 + 0.5) / 2)
    assert found["uauc"] == 0.0
    assert evaluate_scores(user, score, label, metrics=names)["ndcg@2"] == 0.0
