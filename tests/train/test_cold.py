"""Strangers: what features say is what the trained towers say of them, the rest is the population's mean."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.model import Recommender
from puidrec.train.cold import Side, Strangers

FAST = {"dim": 4, "epochs": 3, "rng": 0}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tiny_data: Dataset) -> Dataset:
    return tiny_data


@pytest.fixture(scope="module")
def model(tiny_model: Recommender) -> Recommender:
    return tiny_model


def features(data: Dataset, side: Side) -> list[dict[str, Any]]:
    table = data.users if side == "user" else data.items
    assert table is not None
    return table.drop(f"{side}_id").to_dicts()


def factors(model: Recommender, side: Side) -> np.ndarray:
    return model.user_factors_ if side == "user" else model.item_factors_


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("method", ["mf", "rd-dr", "brd-ips", "signed-rd", "multi-ips", "multi-dr"])
@pytest.mark.parametrize("backbone", ["mf-linear", "mf-mlp"])
def test_without_ids_a_twin_is_the_trained_entity(data: Dataset, side: Side, method: str, backbone: str) -> None:
    model = Recommender(method, backbone=backbone, ids=False, **FAST).fit(data)
    found = Strangers(model).represent(side, features(data, side))
    np.testing.assert_allclose(found, factors(model, side), atol=1e-5)


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("method", ["rd-ips", "multi-dr"])
@pytest.mark.parametrize("ids", [True, "bias"])
def test_with_ids_strangers_with_everybodys_features_average_to_the_average(
    data: Dataset, side: Side, method: str, ids: Any
) -> None:
    model = Recommender(method, ids=ids, **FAST).fit(data)
    found = Strangers(model).represent(side, features(data, side))
    np.testing.assert_allclose(found.mean(0), factors(model, side).mean(0), atol=1e-5)
    assert np.abs(found - factors(model, side)).max() > 1e-4  # a twin is not the entity itself
    assert np.abs(found - found.mean(0)).max() > 1e-3  # and not everybody either


def test_a_saved_model_knows_strangers_as_well(data: Dataset, model: Recommender, tmp_path) -> None:
    model.save(tmp_path / "model")
    again = Strangers(Recommender.load(tmp_path / "model"))
    rows = features(data, "item")
    assert np.array_equal(again.represent("item", rows), Strangers(model).represent("item", rows))


def test_models_that_read_no_features_say_so(data: Dataset) -> None:
    for method, more in (("item-rate", {}), ("mf", {"backbone": "mf"})):
        strangers = Strangers(Recommender(method, **FAST, **more).fit(data))
        assert strangers.names("user") == strangers.names("item") == []
    one_sided = dataclasses.replace(data, users=None)
    strangers = Strangers(Recommender("mf", **FAST).fit(one_sided))
    assert strangers.names("user") == []
    assert strangers.names("item")


def test_a_name_left_out_counts_as_unknown(model: Recommender) -> None:
    strangers = Strangers(model)
    none, null = {}, dict.fromkeys(strangers.names("user"))
    found = strangers.represent("user", [none, null])
    assert np.array_equal(found[0], found[1])


def test_a_name_nobody_knows_is_refused(model: Recommender, refusal) -> None:
    refusal(lambda: Strangers(model).represent("user", [{"agee": 3}]), "user feature", "agee", "age")


def mixed_data() -> Dataset:
    """Side tables with every kind of column; categories may look like numbers or truth values."""
    rng = np.random.default_rng(0)
    log = pl.DataFrame(
        {"user_id": np.arange(200) % 20, "item_id": np.arange(200) // 20, "rating": rng.integers(1, 6, 200)}
    )
    users = pl.DataFrame({
        "user_id": range(20), "age": rng.normal(40, 9, 20), "code": [str(k % 3) for k in range(20)],
        "member": [["true", "false"][k % 2] for k in range(20)], "tags": [["a", "b"][: k % 3] for k in range(20)],
    })  # fmt: skip
    return Dataset.from_frame(log, users=users)


def test_values_take_the_type_of_their_column(refusal) -> None:
    strangers = Strangers(Recommender("mf", **FAST).fit(mixed_data()))
    text = {"age": 33.0, "code": "2", "member": "true", "tags": ["a"]}
    loose = {"age": 33, "code": 2, "member": True, "tags": ["a"]}
    found = strangers.represent("user", [text, loose])
    assert np.array_equal(found[0], found[1])
    for name, wrong in (("age", "old"), ("age", True), ("code", 1.5), ("code", ["2"]), ("tags", "a"), ("tags", [1.5])):
        refusal(lambda name=name, wrong=wrong: strangers.represent("user", [{name: wrong}]), name)


def test_damaged_encoders_and_parameters_are_refused(model: Recommender, refusal, tmp_path) -> None:
    model.save(tmp_path / "model")
    damaged = Recommender.load(tmp_path / "model")
    damaged.encoders_ = {"user_id": [{"kind": "category"}]}
    refusal(lambda: Strangers(damaged), "damaged")
    damaged = Recommender.load(tmp_path / "model")
    damaged.parameters_ = {}
    refusal(lambda: Strangers(damaged), "do not fit")
