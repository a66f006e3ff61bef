"""The same lists, scores and rows give the same figures, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.data.schema import RatingScale
from puidrec.data.synthetic import simulate
from puidrec.evaluation.any_model import outcome_scale
from puidrec.evaluation.evaluator import rows_of, strata_of, training_counts
from puidrec.evaluation.result import Weights
from puidrec.exposure import make_propensity
from puidrec.exposure.base import Exposure

LISTS = [f"unseen-{name}@5" for name in ("recall", "ndcg", "hit", "mrr", "novelty", "coverage")]


@pytest.fixture(scope="module")
def data() -> pr.Dataset:
    return simulate("mixed", n_users=50, n_items=30, density=0.3, rng=1).data


@pytest.fixture(scope="module")
def split(data: pr.Dataset) -> Any:
    return data.split()


@pytest.fixture(scope="module")
def model(data: pr.Dataset, split: Any) -> pr.Recommender:
    return pr.Recommender("mf", dim=3, epochs=20).fit(data, split)


class Foreign:
    """A model of another package: it predicts, and that is all."""

    def __init__(self, model: pr.Recommender) -> None:
        self._model = model

    def predict(self, users: Any, items: Any) -> np.ndarray:
        return self._model.predict(users, items, scale="unit")


def test_lists_by_table_by_predict_and_by_factors_agree(
    model: pr.Recommender, data: pr.Dataset, split: Any
) -> None:
    own = pr.evaluate(model, split.test, LISTS)
    table = model.recommend(model.user_ids_, k=5, exclude_seen="training")
    by_table = pr.evaluate(table.drop("score"), split.test, LISTS, exclude=split.train)
    by_pandas = pr.evaluate(
        table.to_pandas(), split.test, LISTS, exclude=split.train.to_frame().to_pandas()
    )
    by_predict = pr.evaluate(Foreign(model), split.test, LISTS, exclude=split.train)
    for name in LISTS:
        assert by_table[name] == pytest.approx(own[name], abs=1e-9)
        assert by_pandas[name] == pytest.approx(own[name], abs=1e-9)
        assert by_predict[name] == pytest.approx(own[name], abs=1e-9)


def test_lists_by_hand() -> None:
    lists = pl.DataFrame(
        {"user_id": [1, 1, 1, 2, 2, 2], "item_id": [7, 8, 9, 8, 7, 9], "rank": [1, 2, 3, 1, 2, 3]}
    )
    rows = pl.DataFrame({"user_id": [1, 1, 2, 3], "item_id": [8, 5, 9, 7]})
    found = pr.evaluate(
        lists, rows, ["unseen-recall@2", "unseen-mrr@3", "unseen-hit@3", "unseen-ndcg@3"]
    )
    assert found["unseen-recall@2"] == pytest.approx(
        (0.5 + 0 + 0) / 3
    )  # user 3 has no list and has found nothing
    assert found["unseen-mrr@3"] == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert found["unseen-hit@3"] == pytest.approx(2 / 3)
    ideal = 1 / np.log2(2) + 1 / np.log2(3)
    assert found["unseen-ndcg@3"] == pytest.approx(
        (1 / np.log2(3) / ideal + 1 / np.log2(4) + 0) / 3
    )


def test_a_table_of_scores_is_a_model(
    model: pr.Recommender, split: Any, refusal: Callable[..., str]
) -> None:
    rows = split.test.to_frame()
    scores = rows.select("user_id", "item_id").with_columns(
        score=Foreign(model).predict(rows["user_id"], rows["item_id"])
    )
    by_table = pr.evaluate(scores, split.test)
    own = pr.evaluate(Foreign(model), split.test)
    assert {name: pytest.approx(value) for name, value in own.items()} == dict(by_table)
    refusal(lambda: pr.evaluate(scores[:-3], split.test), "no score for 3 of")
    refusal(lambda: pr.evaluate(pl.concat([scores, scores]), split.test), "scored twice")
    ranked = scores.with_columns(rank=pl.lit(1))
    refusal(lambda: pr.evaluate(ranked, split.test), "has no scores of rows", "unseen-recall@10")
    refusal(lambda: pr.evaluate(ranked, split.test, "unseen-novelty@5"), "exclude=training rows")


def test_a_function_is_a_model_and_what_is_none_is_refused(
    data: pr.Dataset, split: Any, refusal: Callable[..., str]
) -> None:
    class Constant:
        def predict(self, users: Any, items: Any) -> np.ndarray:
            return np.full(len(users), 3.0)

    expected = pr.evaluate(Constant(), split.test, "mse")["mse"]
    assert pr.evaluate(Constant().predict, split.test, "mse")["mse"] == expected
    for wrong in (3, None, np.zeros(4), [1.0]):
        refusal(
            lambda wrong=wrong: pr.evaluate(wrong, split.test),
            "no model",
            type(wrong).__name__,
            "predict(users, items)",
        )


def test_a_propensity_object_weighs_rows_and_says_what_they_are_worth(
    model: pr.Recommender, data: pr.Dataset, refusal: Callable[..., str]
) -> None:
    rows = data.logged
    fitted = make_propensity("two-way").fit(Exposure.from_rows(data, rows))
    p = fitted.predict(rows.user, rows.item)
    options: dict[str, Any] = {"metrics": "mse", "overlap": "keep"}
    by_object, by_array = (
        pr.evaluate(model, rows, propensity=given, **options) for given in (fitted, p)
    )
    assert by_object["mse"] == by_array["mse"] != pr.evaluate(model, rows, **options)["mse"]
    kept = (
        p[np.isin(np.arange(len(rows)), np.arange(by_array.n_rows))]
        if by_array.n_rows < len(rows)
        else p
    )
    assert by_array.weights is not None
    assert by_array.weights.effective_rows == pytest.approx(
        (1 / kept).sum() ** 2 / (1 / kept**2).sum(), rel=1e-6
    )
    assert "equal ones" in by_array._repr_html_()
    assert str(by_array) == f"mse {by_array['mse']:.4f}"
    refusal(
        lambda: pr.evaluate(model, rows, propensity=np.full(len(rows), 0.3), **options),
        "constant",
        "two-way",
    )


def test_effective_rows_by_hand() -> None:
    found = Weights.of(np.array([1.0, 0.5, 0.25]))  # weights 1, 2, 4
    assert found.effective_rows == pytest.approx(49 / 21)
    assert (found.smallest, found.largest_share) == (0.25, pytest.approx(4 / 7))


@pytest.mark.parametrize("by", ["popularity", "activity", "known"])
def test_strata_divide_the_rows(model: pr.Recommender, split: Any, by: str) -> None:
    whole = pr.evaluate(model, split.test, ["mse", "auc"], by=by)
    assert whole.strata is not None
    errors = whole.strata.filter(pl.col("metric") == "mse")
    assert errors["rows"].sum() == whole.n_rows
    assert (errors["value"] * errors["rows"]).sum() / whole.n_rows == pytest.approx(whole["mse"])
    assert whole["mse"] == pr.evaluate(model, split.test, "mse")["mse"]


def test_strata_by_hand(refusal: Callable[..., str]) -> None:
    train = pl.DataFrame({"user_id": [1, 1, 1, 2, 2, 3], "item_id": [1, 2, 3, 1, 2, 1]})
    rows = pl.DataFrame({"user_id": [1, 2, 3, 9], "item_id": [1, 2, 9, 3]})
    counts = training_counts(None, train)
    assert counts is not None
    assert rows_of(counts, rows, "user_id").tolist() == [3, 2, 1, 0]
    assert strata_of(rows, counts, "known").tolist() == [
        "known user, known item",
        "known user, known item",
        "known user, new item",
        "new user, known item",
    ]
    refusal(lambda: strata_of(rows, counts, "age"), "unknown strata", "popularity")
    refusal(lambda: strata_of(rows, None, "known"), "training rows")


def test_new_users_are_counted(data: pr.Dataset) -> None:
    log = data.logged.to_frame().select("user_id", "item_id", "rating").sort("user_id")
    timed = pr.Dataset.from_frame(log.with_columns(timestamp=pl.int_range(pl.len())), scale=(1, 5))
    split = timed.split("temporal")  # the last users come last in time
    late = pr.Recommender("bias").fit(timed, split)
    expected = len(set(split.test.user) - set(split.train.user))
    assert expected > 0
    assert pr.evaluate(late, split.test, "mse").n_new_users == expected
    assert pr.evaluate(late, split.test, "unseen-recall@5").n_new_users == expected
    for rest in (split.validation, split.validation.to_frame()):  # left out of lists, no training
        for metric in ("mse", "unseen-recall@5"):
            found = pr.evaluate(late, split.test, metric, exclude=rest)
            assert found.n_new_users == expected


def test_a_scale_is_told_by_where_scores_lie() -> None:
    stars, rng = RatingScale(1, 5), np.random.default_rng(0)
    outcome = rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], 500)
    near = np.clip(outcome + rng.normal(0, 0.2, 500), 0, 1)
    assert outcome_scale(near, outcome, stars) == "unit"
    assert outcome_scale(1 + 4 * near, outcome, stars) == "rating"
    assert outcome_scale(near, outcome, RatingScale(0, 1)) in ("unit", "rating")
    assert outcome_scale(0.1 * near, outcome, stars) == "other"  # an implicit ALS
    assert outcome_scale(8 * near - 4, outcome, stars) == "other"  # logits
