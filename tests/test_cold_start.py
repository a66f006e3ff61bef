"""ColdStart: what features say is what the trained towers say of them, the rest is the population's
mean."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.cold_start import ColdStart, Side
from puidrec.data.dataset import Dataset
from puidrec.model import Recommender
from puidrec.serve.answers import Answers
from puidrec.serve.limits import Policy
from puidrec.serve.schema import RecommendRequest, ScoreRequest, Unknown

FAST = {"dim": 4, "l2": 0.1, "epochs": 3, "rng": 0}
pytestmark = pytest.mark.usefixtures("one_thread")


def features(data: Dataset, side: Side) -> list[dict[str, Any]]:
    table = data.users if side == "user" else data.items
    assert table is not None
    return table.drop(f"{side}_id").to_dicts()


def factors(model: Recommender, side: Side) -> np.ndarray:
    return model.user_factors_ if side == "user" else model.item_factors_


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("method", ["mf", "rd-dr", "brd-ips", "signed-rd"])
@pytest.mark.parametrize("backbone", ["mf-linear", "mf-mlp"])
def test_without_ids_a_twin_is_the_trained_entity(
    tiny_data: Dataset, side: Side, method: str, backbone: str
) -> None:
    model = Recommender(method, backbone=backbone, ids=False, **FAST).fit(tiny_data)
    found = ColdStart(model).represent(side, features(tiny_data, side))
    np.testing.assert_allclose(found, factors(model, side), atol=1e-5)


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("ids", [True, "bias"])
def test_with_ids_cold_start_users_with_everybodys_features_average_to_the_average(
    tiny_data: Dataset, side: Side, ids: Any
) -> None:
    model = Recommender("rd-ips", ids=ids, **FAST).fit(tiny_data)
    found = ColdStart(model).represent(side, features(tiny_data, side))
    np.testing.assert_allclose(found.mean(0), factors(model, side).mean(0), atol=1e-5)
    assert np.abs(found - factors(model, side)).max() > 1e-4  # a twin is not the entity itself
    assert np.abs(found - found.mean(0)).max() > 1e-3  # and not everybody either


def test_a_saved_model_knows_cold_start_users_as_well(
    tiny_data: Dataset, tiny_model: Recommender, tmp_path
) -> None:
    tiny_model.save(tmp_path / "model")
    again = ColdStart(Recommender.load(tmp_path / "model"))
    rows = features(tiny_data, "item")
    assert np.array_equal(
        again.represent("item", rows), ColdStart(tiny_model).represent("item", rows)
    )


def test_models_that_read_no_features_say_so(tiny_data: Dataset) -> None:
    for method, more in (("item-rate", {}), ("mf", {"backbone": "mf"}), ("multi-dr", {})):
        cold_start = ColdStart(Recommender(method, **FAST, **more).fit(tiny_data))
        assert cold_start.names("user") == cold_start.names("item") == []
    one_sided = dataclasses.replace(tiny_data, users=None)
    cold_start = ColdStart(Recommender("mf", **FAST).fit(one_sided))
    assert cold_start.names("user") == []
    assert cold_start.names("item")


def test_a_name_left_out_counts_as_unknown(tiny_model: Recommender) -> None:
    cold_start = ColdStart(tiny_model)
    none, null = {}, dict.fromkeys(cold_start.names("user"))
    found = cold_start.represent("user", [none, null])
    assert np.array_equal(found[0], found[1])


def test_a_name_nobody_knows_is_refused(tiny_model: Recommender, refusal) -> None:
    refusal(
        lambda: ColdStart(tiny_model).represent("user", [{"agee": 3}]),
        "user feature",
        "agee",
        "age",
    )


def mixed_data() -> Dataset:
    """Side tables with every kind of column; categories may look like numbers or truth values."""
    rng = np.random.default_rng(0)
    log = pl.DataFrame(
        {
            "user_id": np.arange(200) % 20,
            "item_id": np.arange(200) // 20,
            "rating": rng.integers(1, 6, 200),
        }
    )
    users = pl.DataFrame(
        {
            "user_id": range(20),
            "age": rng.normal(40, 9, 20),
            "code": [str(k % 3) for k in range(20)],
            "member": [["true", "false"][k % 2] for k in range(20)],
            "tags": [["a", "b"][: k % 3] for k in range(20)],
        }
    )
    return Dataset.from_frame(log, users=users)


def test_values_take_the_type_of_their_column(refusal) -> None:
    cold_start = ColdStart(Recommender("mf", **FAST).fit(mixed_data()))
    text = {"age": 33.0, "code": "2", "member": "true", "tags": ["a"]}
    loose = {"age": 33, "code": 2, "member": True, "tags": ["a"]}
    found = cold_start.represent("user", [text, loose])
    assert np.array_equal(found[0], found[1])
    for name, wrong in (
        ("age", "old"),
        ("age", True),
        ("code", 1.5),
        ("code", ["2"]),
        ("tags", "a"),
        ("tags", [1.5]),
    ):
        refusal(lambda name=name, wrong=wrong: cold_start.represent("user", [{name: wrong}]), name)


def test_half_a_character_is_no_text(tiny_model: Recommender, refusal) -> None:
    for text in ("\ud800", "a\udfff"):
        given = {"segment": text}
        refusal(
            lambda given=given: ColdStart(tiny_model).represent("user", [given]),
            "user feature",
            "half a character",
        )


def test_damaged_encoders_and_parameters_are_refused(
    tiny_model: Recommender, refusal, tmp_path
) -> None:
    tiny_model.save(tmp_path / "model")
    damaged = Recommender.load(tmp_path / "model")
    damaged.encoders_ = {"user_id": [{"kind": "category"}]}
    refusal(lambda: ColdStart(damaged), "damaged")
    damaged = Recommender.load(tmp_path / "model")
    damaged.parameters_ = {}
    refusal(lambda: ColdStart(damaged), "do not fit")


@pytest.fixture(scope="module")
def signed_model(tiny_data: Dataset) -> Recommender:
    """Biases as IDs, and linear features."""
    return Recommender("signed-rd", ids="bias", **FAST).fit(tiny_data)


@pytest.fixture(scope="module")
def new_rows(tiny_data: Dataset) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Twins of some users and items under ids that nobody has."""
    users, items = tiny_data.users[:5], tiny_data.items[:4]
    return users.with_columns(pl.col("user_id") + 1000), items.with_columns(
        pl.col("item_id") + 2000
    )


def test_without_ids_a_twin_is_scored_and_served_like_the_trained_entity(
    tiny_data: Dataset, new_rows
) -> None:
    users, items = new_rows
    model = Recommender("mf", ids=False, **FAST).fit(tiny_data)
    known = model.predict([0, 1, 2, 3], [0, 1, 2, 3])
    found = model.predict(
        users["user_id"][:4], items["item_id"], user_features=users, item_features=items
    )
    np.testing.assert_allclose(found, known, atol=1e-5)
    own, twin = (
        model.recommend([0], k=5, exclude_seen=False),
        model.recommend([1000], k=5, user_features=users),
    )
    assert (
        own["item_id"].to_list() == twin["item_id"].to_list()
    )  # and a cold-start user has seen nothing


def test_trained_users_are_scored_as_trained_whatever_the_table_says(
    signed_model: Recommender, tiny_data: Dataset, new_rows
) -> None:
    lies = tiny_data.users.with_columns(
        pl.lit(9.0).alias(tiny_data.users.columns[1]).cast(tiny_data.users.dtypes[1])
    )
    users, items = [0, 5, 5], [3, 3, 8]
    assert np.array_equal(
        signed_model.predict(users, items, user_features=lies), signed_model.predict(users, items)
    )
    assert signed_model.recommend(users, 4, user_features=lies).equals(
        signed_model.recommend(users, 4)
    )


def test_ids_that_nobody_describes_get_the_average(signed_model: Recommender, new_rows) -> None:
    alone = signed_model.predict([-5, 1000], [3, 3])
    told = signed_model.predict([-5, 1000], [3, 3], user_features=new_rows[0])
    assert told[0] == alone[0] == alone[1] != told[1]


def test_new_items_join_the_candidates(signed_model: Recommender, new_rows) -> None:
    _, items = new_rows
    every = signed_model.recommend([0], k=10_000, exclude_seen=False, item_features=items)
    assert every.height == 44
    assert set(items["item_id"]) <= set(every["item_id"])
    assert every["score"].is_sorted(descending=True)
    unseen = signed_model.recommend([0], k=10_000, item_features=items)
    assert unseen.height == signed_model.recommend([0], k=10_000).height + 4


def test_the_server_says_the_same(signed_model: Recommender, new_rows) -> None:
    users, items = new_rows
    answers = Answers(signed_model, Policy(unknown=Unknown.REFUSE))
    rows = users.drop("user_id").to_dicts()
    named = [{"id": own, "features": row} for own, row in zip(users["user_id"], rows, strict=True)]
    scored = answers.scores(ScoreRequest(pairs=[{"user": one, "item": 7} for one in named]))
    found = signed_model.predict(users["user_id"], [7] * 5, user_features=users, scale="unit")
    np.testing.assert_allclose(found, scored["scores"], atol=1e-6)
    new = [
        {"id": own, "features": row}
        for own, row in zip(items["item_id"], items.drop("item_id").to_dicts(), strict=True)
    ]
    plan = answers.plan(RecommendRequest(users=[*named, 3], k=6, new_items=new))
    served = plan.entries(answers.engine.best(plan.query))
    own = signed_model.recommend(
        [*users["user_id"], 3], 6, user_features=users, item_features=items, scale="unit"
    )
    assert [item for part in served for item in part["items"]] == own["item_id"].to_list()
    np.testing.assert_allclose(
        [score for part in served for score in part["scores"]], own["score"], atol=1e-6
    )


def test_tables_of_any_kind_and_columns_left_out(signed_model: Recommender, new_rows) -> None:
    users, _ = new_rows
    first, number = (
        users.columns[1],
        next(name for name in users.columns[1:] if users[name].dtype == pl.Float64),
    )
    found = [
        signed_model.predict(users["user_id"], [0] * 5, user_features=table)
        for table in (
            users,
            users.to_pandas(),
            users.to_arrow(),
            users.with_columns(pl.lit(None).alias(first)),
        )
    ]
    bare = [
        signed_model.predict(users["user_id"], [0] * 5, user_features=table)
        for table in (users.drop(number), users.with_columns(pl.lit(None).alias(number)))
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(*bare)
    assert np.array_equal(
        found[3], signed_model.predict(users["user_id"], [0] * 5, user_features=users.drop(first))
    )


def test_a_saved_model_and_one_fitted_again_score_cold_start_users_alike(
    signed_model: Recommender, tiny_data, new_rows, tmp_path
) -> None:
    users, _ = new_rows
    signed_model.save(tmp_path / "model")
    pairs = users["user_id"], [0] * 5
    again = Recommender.load(tmp_path / "model")
    assert np.array_equal(
        again.predict(*pairs, user_features=users),
        signed_model.predict(*pairs, user_features=users),
    )
    other = Recommender("mf", **FAST).fit(tiny_data)
    before = other.predict(*pairs, user_features=users, scale="unit")
    other.set_params(l2=1.0).fit(tiny_data)  # another seed would find the same optimum
    after = other.predict(*pairs, user_features=users, scale="unit")
    assert not np.array_equal(before, after)
    expected = (
        ColdStart(other).represent("user", users.drop("user_id").to_dicts())
        @ other.item_factors_[0]
    )
    np.testing.assert_allclose(after, expected, atol=1e-5)


def test_what_is_refused(signed_model: Recommender, tiny_data: Dataset, new_rows, refusal) -> None:
    users, _ = new_rows
    first = users.columns[1]

    def ask(table, asked=signed_model):
        return lambda: asked.predict([1000], [0], user_features=table)

    refusal(ask(users.drop("user_id")), "user_features", "user_id")
    refusal(ask(pl.concat([users, users])), "user_features", "twice")
    refusal(
        ask(users.with_columns(pl.col("user_id").cast(pl.String))), "user_features", "another type"
    )
    refusal(ask(users.rename({first: "colour"})), "user_features", "unknown user feature", "colour")
    refusal(ask(users.with_columns(pl.lit(3).alias(first))), "user_features", first, "another kind")
    refusal(
        ask(users, Recommender("mf", backbone="mf", **FAST).fit(tiny_data)),
        "reads no user features",
        "mf-linear",
    )
    refusal(lambda: signed_model.recommend([1000]), "unknown user", "1000", "user_features")
