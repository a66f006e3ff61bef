"""Strangers in the library: what features say of them is what the server says of them; the known stay as trained."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.model import Recommender
from puidrec.serve import Unknown
from puidrec.serve.answers import Answers
from puidrec.serve.limits import Limits
from puidrec.serve.schema import RecommendRequest, ScoreRequest
from puidrec.train.cold import Strangers

pytestmark = pytest.mark.usefixtures("one_thread")
FAST = {"dim": 4, "epochs": 4, "rng": 0}


@pytest.fixture(scope="module")
def data(tiny_data: Dataset) -> Dataset:
    return tiny_data


@pytest.fixture(scope="module")
def model(data: Dataset) -> Recommender:
    return Recommender("signed-rd", ids="bias", **FAST).fit(data)


@pytest.fixture(scope="module")
def strange(data: Dataset) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Twins of some users and items under ids that nobody has."""
    return data.users[:5].with_columns(pl.col("user_id") + 1000), data.items[:4].with_columns(pl.col("item_id") + 2000)


def test_without_ids_a_twin_is_scored_and_served_like_the_trained_entity(data: Dataset, strange) -> None:
    users, items = strange
    model = Recommender("mf", ids=False, **FAST).fit(data)
    known = model.predict([0, 1, 2, 3], [0, 1, 2, 3])
    found = model.predict(users["user_id"][:4], items["item_id"], user_features=users, item_features=items)
    np.testing.assert_allclose(found, known, atol=1e-5)
    own, twin = model.recommend([0], k=5, exclude_seen=False), model.recommend([1000], k=5, user_features=users)
    assert own["item_id"].to_list() == twin["item_id"].to_list()  # and a stranger has seen nothing


def test_the_known_are_scored_as_trained_whatever_the_table_says(model: Recommender, data: Dataset, strange) -> None:
    lies = data.users.with_columns(pl.lit(9.0).alias(data.users.columns[1]).cast(data.users.dtypes[1]))
    users, items = [0, 5, 5], [3, 3, 8]
    assert np.array_equal(model.predict(users, items, user_features=lies), model.predict(users, items))
    assert model.recommend(users, 4, user_features=lies).equals(model.recommend(users, 4))


def test_ids_that_nobody_describes_get_the_average(model: Recommender, strange) -> None:
    alone = model.predict([-5, 1000], [3, 3])
    told = model.predict([-5, 1000], [3, 3], user_features=strange[0])
    assert told[0] == alone[0] == alone[1] != told[1]


def test_new_items_join_the_candidates(model: Recommender, strange) -> None:
    _, items = strange
    every = model.recommend([0], k=10_000, exclude_seen=False, item_features=items)
    assert every.height == 44
    assert set(items["item_id"]) <= set(every["item_id"])
    assert every["score"].is_sorted(descending=True)
    unseen = model.recommend([0], k=10_000, item_features=items)
    assert unseen.height == model.recommend([0], k=10_000).height + 4


def test_the_server_says_the_same(model: Recommender, strange) -> None:
    users, items = strange
    answers = Answers(model, Unknown.REFUSE, Limits())
    rows = users.drop("user_id").to_dicts()
    named = [{"id": own, "features": row} for own, row in zip(users["user_id"], rows, strict=True)]
    scored = answers.scores(ScoreRequest(pairs=[{"user": one, "item": 7} for one in named]))
    found = model.predict(users["user_id"], [7] * 5, user_features=users)
    np.testing.assert_allclose(found, scored["scores"], atol=1e-6)
    new = [
        {"id": own, "features": row}
        for own, row in zip(items["item_id"], items.drop("item_id").to_dicts(), strict=True)
    ]
    plan = answers.plan(RecommendRequest(users=[*named, 3], k=6, new_items=new))
    served = answers.recommendations(plan, answers.engine.best(plan.query))["recommendations"]
    own = model.recommend([*users["user_id"], 3], 6, user_features=users, item_features=items)
    assert [item for part in served for item in part["items"]] == own["item_id"].to_list()
    np.testing.assert_allclose([score for part in served for score in part["scores"]], own["score"], atol=1e-6)


def test_tables_of_any_kind_and_columns_left_out(model: Recommender, strange) -> None:
    users, _ = strange
    first, number = users.columns[1], next(name for name in users.columns[1:] if users[name].dtype == pl.Float64)
    found = [
        model.predict(users["user_id"], [0] * 5, user_features=table)
        for table in (users, users.to_pandas(), users.to_arrow(), users.with_columns(pl.lit(None).alias(first)))
    ]
    bare = [
        model.predict(users["user_id"], [0] * 5, user_features=table)
        for table in (users.drop(number), users.with_columns(pl.lit(None).alias(number)))
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(*bare)
    assert np.array_equal(found[3], model.predict(users["user_id"], [0] * 5, user_features=users.drop(first)))


def test_a_saved_model_and_one_fitted_again_know_their_own_strangers(
    model: Recommender, data, strange, tmp_path
) -> None:
    users, _ = strange
    model.save(tmp_path / "model")
    pairs = users["user_id"], [0] * 5
    again = Recommender.load(tmp_path / "model")
    assert np.array_equal(again.predict(*pairs, user_features=users), model.predict(*pairs, user_features=users))
    other = Recommender("mf", **FAST).fit(data)
    before = other.predict(*pairs, user_features=users)
    other.set_params(rng=5).fit(data)
    after = other.predict(*pairs, user_features=users)
    assert not np.array_equal(before, after)
    expected = Strangers(other).represent("user", users.drop("user_id").to_dicts()) @ other.item_factors_[0]
    np.testing.assert_allclose(after, expected, atol=1e-5)


def test_what_is_refused(model: Recommender, data: Dataset, strange, refusal) -> None:
    users, _ = strange
    first = users.columns[1]

    def ask(table, asked=model):
        return lambda: asked.predict([1000], [0], user_features=table)

    refusal(ask(users.drop("user_id")), "user_features", "user_id")
    refusal(ask(pl.concat([users, users])), "user_features", "twice")
    refusal(ask(users.with_columns(pl.col("user_id").cast(pl.String))), "user_features", "another type")
    refusal(ask(users.rename({first: "colour"})), "user_features", "unknown user feature", "colour")
    refusal(ask(users.with_columns(pl.lit(3).alias(first))), "user_features", first, "another kind")
    refusal(ask(users, Recommender("mf", backbone="mf", **FAST).fit(data)), "reads no user features", "mf-linear")
    refusal(lambda: model.recommend([1000]), "unknown user", "1000", "user_features")
