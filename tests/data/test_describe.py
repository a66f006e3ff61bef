"""A data set in figures: hand-worked counts, and the sentence that follows from them."""

from __future__ import annotations

import json

import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.describe import describe_dataset

LOGGED = {"user_id": [1, 1, 2, 2], "item_id": [1, 2, 1, 3], "rating": [5, 5, 4, 4]}
UNIFORM = {"user_id": [1, 2] * 20, "item_id": sorted(range(4, 24)) * 2, "rating": [1, 2] * 20}


def data(uniform: dict | None = None) -> Dataset:
    pairs = (
        None
        if uniform is None
        else {**uniform, "item_id": [i for i in range(4, 24) for _ in range(2)]}
    )
    return Dataset.from_frame(LOGGED, pairs, scale=(1, 5), name="tiny")


def test_counts_and_means_of_a_log() -> None:
    facts = describe_dataset(data())
    logged = facts["regimes"]["logged"]
    assert (facts["n_users"], facts["n_items"], logged["rows"]) == (2, 3, 4)
    assert logged["density"] == pytest.approx(4 / 6)
    assert logged["mean_rating"] == pytest.approx(4.5)
    assert logged["positive_rate"] == 1.0
    assert logged["half_width"] == pytest.approx(1.96 * 0.5 / 2)
    assert "No uniform rows" in facts["sentence"]
    json.dumps(facts)


def test_the_sentence_says_which_way_the_log_leans() -> None:
    assert (
        "higher than ratings of items drawn at random"
        in describe_dataset(data(UNIFORM))["sentence"]
    )
    seen = {
        key: [*column, extra]
        for (key, column), extra in zip(UNIFORM.items(), (1, 1, 5), strict=True)
    }
    seen["item_id"] = [*(i for i in range(4, 24) for _ in range(2)), 1]
    for overlap, words in (
        ("drop", "ratings of unseen items drawn at random"),
        ("keep", "ratings of items drawn at"),
    ):
        found = Dataset.from_frame(LOGGED, seen, scale=(1, 5), overlap=overlap)
        assert words in describe_dataset(found)["sentence"]
    low = {**UNIFORM, "rating": [5] * 40}
    assert "lower than ratings" in describe_dataset(data(low))["sentence"]
    same = {**UNIFORM, "rating": [4, 5] * 20}
    assert "agree on average" in describe_dataset(data(same))["sentence"]


def test_the_protocol_decides_what_is_liked() -> None:
    uniform = {**UNIFORM, "rating": [3] * 39 + [1]}
    liked = {
        name: describe_dataset(data(uniform), name)["regimes"]["uniform"]["positive_rate"]
        for name in ("rd", "ge3")
    }
    assert liked == {"rd": 0.0, "ge3": pytest.approx(39 / 40)}


def test_the_histogram_has_a_bar_per_fifth_of_the_scale() -> None:
    assert describe_dataset(data(UNIFORM))["regimes"]["uniform"]["histogram"] == "██▁▁▁"
