"""Neighbours are those of the scores, however these are factored; candidates are what the caller
allows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.recommending import nearest, profiles


def test_similarity_is_the_correlation_of_scores(tiny_model: pr.Recommender) -> None:
    scores = tiny_model.user_factors_.astype(np.float64) @ tiny_model.item_factors_.T
    expected = np.corrcoef((scores - scores.mean(1, keepdims=True)).T)
    np.fill_diagonal(expected, -2.0)
    table = tiny_model.similar_items(tiny_model.item_ids_, k=3)
    best = np.sort(expected, axis=1)[:, ::-1][:, :3]
    np.testing.assert_allclose(table["similarity"].to_numpy().reshape(-1, 3), best, atol=1e-5)
    first = table.filter(pl.col("rank") == 1)["similar_id"].to_numpy()
    assert (first == tiny_model.item_ids_.ids.to_numpy()[expected.argmax(1)]).mean() > 0.95
    people = np.corrcoef(scores - scores.mean(0))
    np.fill_diagonal(people, -2.0)
    closest = tiny_model.similar_users(tiny_model.user_ids_, k=1)["similarity"]
    np.testing.assert_allclose(closest, people.max(1), atol=1e-5)


def test_blocks_and_groups_find_what_a_sort_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vectors = profiles(rng.normal(size=(1_003, 5)), rng.normal(size=(50, 5)))
    monkeypatch.setattr("puidrec.recommending.SIMILARITIES", 100_000)
    place, value = nearest(vectors, np.arange(1_003), 4)
    every = vectors @ vectors.T
    np.fill_diagonal(every, -2.0)
    np.testing.assert_allclose(value, np.sort(every, axis=1)[:, ::-1][:, :4], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(every, place, 1), value, atol=1e-6)


def test_similar_refuses_what_is_not_there(
    tiny_model: pr.Recommender, refusal: Callable[..., str]
) -> None:
    refusal(lambda: tiny_model.similar_items([0, 10**6]), "1 unknown item(s)", "1000000")
    for k in (0, -1, "10", 2.5, True):
        refusal(lambda k=k: tiny_model.similar_users(0, k=k), "k must be")
        refusal(lambda k=k: tiny_model.recommend(0, k=k), "k must be")


def test_candidates_are_those_allowed(
    tiny_model: pr.Recommender, refusal: Callable[..., str]
) -> None:
    users, items = tiny_model.user_ids_.ids, tiny_model.item_ids_.ids
    everything = tiny_model.recommend(users, k=len(items))
    some = items.gather([1, 4, 9, 12])
    only = tiny_model.recommend(users, k=len(items), items=some)
    expected = everything.filter(pl.col("item_id").is_in(some.implode()))
    assert only.select("user_id", "item_id").equals(expected.select("user_id", "item_id"))
    np.testing.assert_allclose(only["score"], expected["score"], rtol=1e-5)
    rest = tiny_model.recommend(users, k=3, exclude=some)
    assert not set(rest["item_id"]) & set(some)
    one = tiny_model.recommend(users, k=2, items=some[0])
    assert set(one["item_id"]) <= {some[0]}
    refusal(lambda: tiny_model.recommend(users, items=[10**6]), "unknown item")
    refusal(lambda: tiny_model.recommend(users, items=some, exclude=some), "no item is left")


def test_a_table_of_pairs_filters_by_user(tiny_model: pr.Recommender) -> None:
    users, items = tiny_model.user_ids_.ids, tiny_model.item_ids_.ids
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "user_id": users.sample(300, with_replacement=True, seed=0),
            "item_id": items.gather(rng.integers(0, len(items), 300)),
        }
    ).unique()
    asked = users.reverse()
    found = tiny_model.recommend(asked, k=len(items), filter=table)
    everything = tiny_model.recommend(asked, k=len(items))
    expected = everything.join(table, on=["user_id", "item_id"], how="semi", maintain_order="left")
    assert found.select("user_id", "item_id").equals(expected.select("user_id", "item_id"))


def test_a_filter_that_cannot_be_of_this_model_is_refused(
    tiny_model: pr.Recommender, refusal: Callable[..., str]
) -> None:
    text = pl.DataFrame({"user_id": ["0"], "item_id": [1]})
    refusal(lambda: tiny_model.recommend(0, filter=text), "filter", "user_id", "another type")
    refusal(lambda: tiny_model.recommend(0, filter=text.drop("item_id")), "filter", "item_id")


def test_stability_looks_at_the_candidates_only(tiny_data: pr.Dataset) -> None:
    model = pr.Recommender("spectrum").fit(tiny_data)
    some = model.item_ids_.ids[:3]
    found = model.recommend(model.user_ids_, k=3, items=some, stable=True, exclude_seen=False)
    assert (
        found["gamma_max"] == float("inf")
    ).all()  # of three candidates all three stay, whatever Γ is


def test_where_only_biases_are_left_nothing_is_told_apart() -> None:
    """Scores that differ by a bias of the item are alike up to rounding, which is no neighbour."""
    bias = np.linspace(0.0, 1.0, 40)
    items = np.column_stack([np.ones(40), bias])
    users = np.column_stack([np.linspace(1.0, 2.0, 30), np.ones(30)]) * (1.0 + 1e-15)
    assert not profiles(items, users).any()
