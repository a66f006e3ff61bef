"""Evaluating a model by the caller's own ids, from data sets and from tables, and the refusals on the way."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.schema import RatingScale
from puidrec.evaluation import evaluate, evaluate_scores


class Table:
    """Predicts from a dictionary of ids."""

    def __init__(self, scores: dict) -> None:
        self.scores = scores

    def predict(self, users, items):
        return [self.scores[pair] for pair in zip(users, items, strict=True)]


ROWS = {
    "user_id": ["zoe", "zoe", "zoe", "amy", "amy", "bob"],
    "item_id": [10, 20, 30, 10, 20, 10],
    "rating": [5.0, 1.0, 4.0, 2.0, 5.0, 5.0],
}
MODEL = Table(
    {("zoe", 10): 0.9, ("zoe", 20): 0.5, ("zoe", 30): 0.4, ("amy", 10): 0.7, ("amy", 20): 0.2, ("bob", 10): 1}
)


def test_a_part_of_a_data_set() -> None:
    data = Dataset.from_frame(pl.DataFrame(ROWS), scale=(1, 5))
    result = evaluate(MODEL, data.logged, ["uauc", "precision@1", "mse"])
    assert result["uauc"] == pytest.approx(0.25)
    assert result.per_user["uauc"].users.tolist() == ["amy", "zoe"]
    assert result.per_user["uauc"].values.tolist() == [0.0, 0.5]
    assert result["mse"] == pytest.approx((0.1**2 + 0.5**2 + 0.35**2 + 0.45**2 + 0.8**2 + 0) / 6, abs=1e-7)
    assert (result.n_users, result.n_rows, result.positive_rate) == (2, 6, pytest.approx(4 / 6))
    assert dict(result) == result.means
    assert len(result) == 3


def test_tables_of_any_kind_agree_with_the_data_set() -> None:
    data = Dataset.from_frame(pl.DataFrame(ROWS), scale=(1, 5))
    names = ["uauc", "ndcg@2", "ndcg-graded@2", "mse", "auc"]
    expected = evaluate(MODEL, data.logged, names)
    frame = pl.DataFrame(ROWS)
    for table in (frame, frame.to_pandas(), frame.to_arrow(), ROWS, frame.sample(fraction=1, shuffle=True, seed=1)):
        assert dict(evaluate(MODEL, table, names, scale=(1, 5))) == pytest.approx(dict(expected), abs=1e-6)
    labelled = frame.with_columns(label=(pl.col("rating") >= 4).cast(pl.Int8)).drop("rating")
    assert evaluate(MODEL, labelled, ["uauc"])["uauc"] == expected["uauc"]


def test_the_protocol_labels_and_drops() -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "rating": [3, 5, 1]})
    model = Table({(1, 1): 0.9, (1, 2): 0.5, (1, 3): 0.1})
    found = [evaluate(model, frame, ["uauc"], protocol=p, scale=(1, 5)) for p in ("rd", "paper", "ge3")]
    assert [r["uauc"] for r in found] == [0.5, 1.0, 1.0]
    assert [r.n_rows for r in found] == [3, 2, 3]


def test_targets() -> None:
    scale = RatingScale(1, 5)
    rows = (np.array([0, 0]), np.array([0.5, 0.5]), np.array([1, 0]), np.array([4.0, 2.0]))
    found = {
        t: evaluate_scores(*rows, metrics=["mae"], scale=scale, target=t)["mae"] for t in ("rating", "binary", "label")
    }
    assert found == pytest.approx({"rating": 0.25, "binary": 1.0, "label": 0.5})


def test_graded_gains_count_stars_above_the_lowest() -> None:
    user, score, label, rating = [0, 0], [2.0, 1.0], [0, 1], np.array([1.0, 5.0])
    with_scale = evaluate_scores(
        user, score, label, rating, metrics=["ndcg-graded@1", "ndcg-graded"], scale=RatingScale(1, 5)
    )
    assert with_scale["ndcg-graded@1"] == 0.0
    assert with_scale["ndcg-graded"] == pytest.approx(1 / np.log2(3))
    assert evaluate_scores(user, score, label, rating, metrics=["ndcg-graded@1"])["ndcg-graded@1"] == pytest.approx(
        1 / 31
    )


def test_no_user_that_counts_gives_nan_not_a_number() -> None:
    result = evaluate_scores([0, 1], [0.1, 0.2], [0, 1], metrics=["uauc", "ndcg@5"])
    assert np.isnan([result["uauc"], result["ndcg@5"]]).all()
    assert result.n_users == 0


def test_intervals_need_values_per_user(refusal) -> None:
    result = evaluate_scores([0, 0, 1, 1], [1, 2, 3, 4], [0, 1, 1, 0], metrics=["uauc", "auc"])
    assert result.interval("uauc").n_users == 2
    refusal(lambda: result.interval("auc"), "auc", "uauc")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (([0, 0], [1.0], [0, 1]), ["score", "(2,)"]),
        (([0, 0], [1.0, np.nan], [0, 1]), ["score", "row 2"]),
        (([0, 0], [1.0, 2.0], [1, -1]), ["labels must be 0 or 1"]),
        (([0, 0], ["a", "b"], [0, 1]), ["not numbers"]),
        (([], [], []), ["0 rows"]),
        (([0, 0], [1.0, 2.0], [0, 1], [np.inf, 1.0]), ["rating", "row 1"]),
    ],
)
def test_bad_arrays_are_refused(arguments, parts, refusal) -> None:
    refusal(lambda: evaluate_scores(*arguments), *parts)


def test_bad_options_are_refused(refusal) -> None:
    rows = ([0, 0], [1.0, 2.0], [0, 1])
    refusal(lambda: evaluate_scores(*rows, target="stars"), "stars")
    refusal(lambda: evaluate_scores(*rows, users="all"), "both-labels")
    refusal(lambda: evaluate_scores(*rows, weight=[1.0, 0.0]), "weight", "row 2")
    refusal(lambda: evaluate(MODEL, pl.DataFrame(ROWS)), "scale=(1, 5)")
    refusal(lambda: evaluate(MODEL, pl.DataFrame(ROWS).drop("item_id")), "item_id")
    refusal(lambda: evaluate(MODEL, pl.DataFrame(ROWS).head(0), scale=(1, 5)), "empty")
