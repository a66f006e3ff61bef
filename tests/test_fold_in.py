"""Users by what they did: exact for `mf`, close for others; and new rows taken in without a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec import fold_in
from puidrec.data.synthetic import simulate
from puidrec.fold_in import BySeen, by_entity, solve

EXACT: dict[str, Any] = {"dim": 4, "l2": 0.1, "select": "none", "epochs": 2_000}


@pytest.fixture(scope="module")
def data() -> pr.Dataset:
    log = simulate("mixed", n_users=120, n_items=60, density=0.2, rng=0).data.logged.to_frame()
    return pr.Dataset.from_frame(log.select("user_id", "item_id", "rating"), scale=(1, 5))


@pytest.fixture(scope="module")
def model(data: pr.Dataset) -> pr.Recommender:
    return pr.Recommender("mf", **EXACT).fit(data)


def training_rows(model: pr.Recommender) -> pl.DataFrame:
    assert model.train_rows_ is not None
    return model.train_rows_.to_frame().select("user_id", "item_id", "rating")


def scores(model: pr.Recommender) -> np.ndarray:
    return np.asarray(model.user_factors_ @ model.item_factors_.T)


def test_solve_is_the_ridge_of_each_user() -> None:
    rng = np.random.default_rng(0)
    x, user, other = rng.normal(size=(9, 3)), rng.integers(0, 5, 40), rng.integers(0, 9, 40)
    target = rng.normal(size=40)
    user[user == 2] = 1  # user 2 has no row
    rows, order = by_entity(user, other, 5)
    z = solve(x, rows, target[order], 0.7)
    for k in range(5):
        own = x[other[user == k]]
        expected = np.linalg.solve(own.T @ own + 0.7 * np.eye(3), own.T @ target[user == k])
        np.testing.assert_allclose(z[k], expected, atol=1e-12)


def test_users_are_expected_by_what_they_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leave-one-out residuals that choose and spread are those of fits without the user."""
    monkeypatch.setattr(fold_in, "RIDGES", np.array([0.1]))
    rng = np.random.default_rng(2)
    items, saw = rng.normal(size=(9, 2)), rng.random((12, 9)) < 0.5
    users = rng.normal(size=(12, 2))
    user, other = np.nonzero(saw)
    seen = by_entity(user, other, 12)[0]
    found = BySeen.of(users, items, seen)
    n = saw.sum(1)
    x = np.column_stack([saw @ items / np.sqrt(n + 1.0)[:, None], np.log1p(n)])
    x = (x - x.mean(0)) / x.std(0)
    ridge, left = np.diag([0.0, *3 * [1.2]]), np.zeros((12, 2))
    for k in range(12):
        a, rest = np.column_stack([np.ones(12), x]), np.arange(12) != k
        fit = np.linalg.solve(a[rest].T @ a[rest] + ridge, a[rest].T @ users[rest])
        left[k] = users[k] - a[k] @ fit
    np.testing.assert_allclose(found.basis @ found.basis.T, left.T @ left / 12, atol=1e-10)
    whole = np.linalg.solve(a.T @ a + ridge, a.T @ users)
    np.testing.assert_allclose(found.mean(seen, items), a @ whole, atol=1e-10)


def test_rows_before_count_again_without_their_targets() -> None:
    rng = np.random.default_rng(1)
    x, user, other = (
        rng.normal(size=(9, 3)),
        np.sort(rng.integers(0, 4, 60)),
        rng.integers(0, 9, 60),
    )
    target, late = rng.normal(size=60), rng.random(60) < 0.3
    everything = solve(x, by_entity(user, other, 4)[0], target, 0.5)
    start = solve(x, by_entity(user[~late], other[~late], 4)[0], target[~late], 0.5)
    left = np.where(late, target - np.einsum("kd,kd->k", start[user], x[other]), 0.0)
    more = solve(x, by_entity(user, other, 4)[0], left, 0.5)
    np.testing.assert_allclose(start + more, everything, atol=1e-12)


@pytest.mark.parametrize("features", [False, True])
def test_a_user_folded_in_with_the_training_rows_scores_as_trained(
    features: bool, tiny_data: pr.Dataset
) -> None:
    options = {**EXACT, "backbone": "mf-linear" if features else "mf"}
    fitted = pr.Recommender("mf", **options).fit(tiny_data)
    folded = fitted.fold_in(training_rows(fitted))
    assert folded.user_ids_.ids.equals(fitted.user_ids_.ids)
    np.testing.assert_allclose(scores(folded), scores(fitted), atol=2e-4)
    twice = folded.fold_in(training_rows(fitted))
    np.testing.assert_allclose(scores(twice), scores(folded), atol=1e-5)


@pytest.mark.parametrize("method", ["spectrum", "bias", "ips"])
def test_other_models_come_close(method: str, data: pr.Dataset) -> None:
    """In level and order; clearly closer than the average user would be.

    On this log nine tenths of what `spectrum` says of a user come from which items the user saw.
    """
    fitted = pr.Recommender(method, dim=4, l2=0.1).fit(data)
    trained, folded = scores(fitted), scores(fitted.fold_in(training_rows(fitted)))
    alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(trained, folded, strict=True)]
    assert np.mean(alike) > 0.95
    average = np.sqrt(
        np.mean((trained - trained.mean(0)) ** 2)
    )  # what the average user would be off
    assert np.sqrt(np.mean((trained - folded) ** 2)) < 0.5 * average


def test_a_new_user_gets_other_items_than_the_history(
    model: pr.Recommender, data: pr.Dataset
) -> None:
    someone = training_rows(model).filter(pl.col("user_id") == data.user_ids.ids[3])
    history = someone.with_columns(user_id=pl.lit(10**6))
    frame = model.recommend(history=history, k=5)
    assert frame["user_id"].unique().to_list() == [10**6]
    assert not set(frame["item_id"]) & set(history["item_id"])
    anonymous = model.recommend(history=history.drop("user_id"), k=5)
    assert anonymous["item_id"].to_list() == frame["item_id"].to_list()
    known = model.fold_in(history)
    assert len(known.user_ids_) == len(model.user_ids_) + 1
    np.testing.assert_array_equal(known.user_factors_[:-1], model.user_factors_)
    assert known.recommend([10**6], k=5)["item_id"].to_list() == frame["item_id"].to_list()
    assert known.predict(pl.DataFrame({"user_id": [10**6], "item_id": [0]}))["known"].to_list() == [
        True
    ]


def test_a_history_without_users_is_of_the_one_asked_for(model: pr.Recommender) -> None:
    rows = training_rows(model)
    user = int(rows["user_id"][0])
    own = rows.filter(pl.col("user_id") == user)
    named = model.recommend(history=own, k=3)
    assert model.recommend(user, history=own.drop("user_id"), k=3).equals(named)
    asked = model.recommend(np.array(10**6), history=own.drop("user_id"), k=3)
    assert asked["user_id"].unique().to_list() == [10**6]


def test_intervals_are_of_the_fit_alone(tiny_data: pr.Dataset, refusal: Callable[..., str]) -> None:
    """Rows taken in move factors, and nothing says how sure they are: refused, not ignored."""
    fitted = pr.Recommender("spectrum", dim=2, l2=0.1).fit(tiny_data)
    row = {"user_id": [10**6], "item_id": [int(tiny_data.item_ids.ids[0])], "rating": [5.0]}
    assert fitted.recommend(0, k=2, cautious=True).height == 2
    refusal(lambda: fitted.recommend(history=row, k=2, cautious=True), "no intervals")
    folded, updated = fitted.fold_in(row), fitted.partial_fit(row)
    for changed in (folded, updated):
        refusal(lambda changed=changed: changed.predict(0, 0, interval=0.9), "no intervals")
        refusal(changed.gamma, "no intervals")
        refusal(lambda changed=changed: changed.recommend(0, stable=True), "nothing folded in")
        assert changed.recommend([0, 10**6], k=2).height == 4


def test_what_cannot_be_folded_in_is_refused(
    model: pr.Recommender, refusal: Callable[..., str]
) -> None:
    refusal(
        lambda: model.recommend(history=pl.DataFrame({"item_id": [10**7], "rating": [3.0]})),
        "in training",
    )
    refusal(
        lambda: model.recommend(history=pl.DataFrame({"item_id": [0], "rating": [9.0]})),
        "out of range",
    )
    refusal(
        lambda: model.recommend(history=pl.DataFrame({"item_id": ["0"], "rating": [3.0]})),
        "another type",
    )
    refusal(model.recommend, "users must be ids", "history")


def test_new_rows_are_taken_in(data: pr.Dataset) -> None:
    log = data.logged.to_frame().select("user_id", "item_id", "rating")
    late = np.random.default_rng(0).random(log.height) < 0.02
    old, new = log.filter(pl.Series(~late)), log.filter(pl.Series(late))
    kept = {"scale": (1, 5), "unknown_ids": "keep"}
    start = pr.Dataset.from_frame(
        old, users=log.select("user_id").unique(), items=log.select("item_id").unique(), **kept
    )
    whole = start.split(seed=0)
    before = pr.Recommender("mf", **EXACT).fit(start, whole)
    full = scores(before)
    untouched = ~before.user_ids_.ids.is_in(new["user_id"].implode()).to_numpy()
    frozen = before.user_factors_[untouched].copy()
    error = before.predict(new["user_id"], new["item_id"]) - new["rating"].to_numpy()
    assert before.partial_fit(new) is before
    after = before.predict(new["user_id"], new["item_id"]) - new["rating"].to_numpy()
    assert np.mean(after**2) < np.mean(error**2)
    np.testing.assert_array_equal(before.user_factors_[untouched], frozen)
    assert before.report_["partial_fit"][0]["new_rows"] == new.height
    assert before.trained_on(new["user_id"], new["item_id"]).all()
    both = pl.concat([whole.train.frame, data_part(before, new)], how="diagonal").sort(
        "user", "item"
    )
    refit = pr.Recommender("mf", **EXACT).fit(
        start, replace(whole, train=replace(whole.train, frame=both))
    )
    assert distance(scores(before), scores(refit)) < distance(
        full, scores(refit)
    )  # nearer to a full fit than before


def data_part(model: pr.Recommender, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows as codes, all labelled, to train on."""
    return pl.DataFrame(
        {
            "user": model.user_ids_.encode(rows["user_id"]),
            "item": model.item_ids_.encode(rows["item_id"]),
            "rating": rows["rating"].cast(pl.Float32),
            "label": (rows["rating"] >= 4).cast(pl.Int8),
        }
    )


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.sqrt(np.mean((one - other) ** 2)))


def test_new_users_and_items_join(
    model: pr.Recommender, data: pr.Dataset, refusal: Callable[..., str], tmp_path: Path
) -> None:
    model.save(tmp_path / "m")
    mine = pr.Recommender.load(tmp_path / "m")
    item = int(data.item_ids.ids[2])
    mine.partial_fit(
        pl.DataFrame(
            {"user_id": [10**6, 10**6, 1], "item_id": [item, 10**6, 10**6], "rating": [5.0, 1, 1]}
        )
    )
    assert (len(mine.user_ids_), len(mine.item_ids_)) == (
        len(data.user_ids) + 1,
        len(data.item_ids) + 1,
    )
    low, high = mine.predict([10**6, 10**6], [10**6, item])
    assert low < high
    again = pl.DataFrame({"user_id": [10**6], "item_id": [item], "rating": [5.0]})
    refusal(lambda: mine.partial_fit(again), "all trained on")
    mine.save(tmp_path / "n")
    assert pr.Recommender.load(tmp_path / "n").recommend([10**6], k=3).height == 3


def test_contributions_add_up_to_the_prediction(
    model: pr.Recommender, refusal: Callable[..., str], tmp_path: Path
) -> None:
    user, item = model.user_ids_.ids[4], model.item_ids_.ids[7]
    table = model.explain(user, item)
    assert table["contribution"].sum() == pytest.approx(model.predict(user, item)[0], abs=1e-5)
    rest = table.filter(pl.col("part") == "rest")["contribution"].sum()
    assert abs(rest) < 1e-3
    rows = training_rows(model).filter(pl.col("user_id") == user)
    assert set(table["item_id"].drop_nulls()) == set(rows["item_id"])
    model.save(tmp_path / "m")
    loaded = pr.Recommender.load(tmp_path / "m")
    refusal(lambda: loaded.explain(user, item), "history=")
    refusal(lambda: model.explain([user, 1], item), "user must be one id", "list")
    given = loaded.explain(user, item, history=rows)
    np.testing.assert_allclose(given["contribution"], table["contribution"], atol=1e-6)
    # leaving one rated item out changes the fold-in as its contribution at least says in sign
    largest = table.filter(pl.col("part") == "rated item").row(0, named=True)
    without = model.fold_in(rows.filter(pl.col("item_id") != largest["item_id"])).predict(
        user, item
    )[0]
    assert np.sign(model.predict(user, item)[0] - without) == np.sign(largest["contribution"])


def test_a_model_without_directions_folds_anybody_in(tiny_data: pr.Dataset) -> None:
    """All users of `popularity` have the same factors: there is nothing to learn of another."""
    likes = tiny_data.logged.to_frame().select("user_id", "item_id")
    model = pr.Recommender("popularity").fit(likes)
    new = pl.DataFrame({"user_id": [10**6] * 2, "item_id": [0, 1]})
    folded = model.fold_in(new)
    np.testing.assert_allclose(folded.predict(10**6, [2, 3]), model.predict(0, [2, 3]))
    assert not {0, 1} & set(folded.recommend(10**6, k=50)["item_id"])
