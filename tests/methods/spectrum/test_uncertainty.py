"""Intervals of the mixture: what they hold of a small world whose truth is known, and how they are
asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array

from puidrec.data.dataset import Dataset
from puidrec.errors import InputError
from puidrec.methods.spectrum.learned import gamma_interval, gamma_of
from puidrec.methods.spectrum.uncertainty import Means, level_rows
from puidrec.model import Recommender

pytestmark = pytest.mark.usefixtures("one_thread")
USERS, ITEMS = 150, 80


def small_world(seed: int, strength: float):
    """Ratings of taste, an own level and a hidden trait that also drives who sees what; 500 uniform
    rows."""
    rng = np.random.default_rng(seed)
    trait, kind = rng.normal(size=(USERS, 1)), rng.choice([-1.0, 1.0], ITEMS)
    latent = (
        rng.normal(0.0, 0.4, (USERS, 1)) + rng.normal(0.0, 0.4, ITEMS) + strength * trait * kind
    )
    mean = 1.0 / (1.0 + np.exp(-latent))
    rating = 1 + rng.binomial(4, mean)
    seen = rng.random(mean.shape) < 1.0 / (1.0 + np.exp(2.0 - strength * trait * kind))
    user, item = np.nonzero(seen)
    drawn = rng.choice(np.flatnonzero(~seen), 1_500, replace=False)
    log = pl.DataFrame({"user_id": user, "item_id": item, "rating": rating[user, item]})
    other = np.divmod(drawn, ITEMS)
    uniform = pl.DataFrame({"user_id": other[0], "item_id": other[1], "rating": rating[other]})
    users = pl.DataFrame(
        {"user_id": np.arange(USERS), "half": np.where(trait[:, 0] > 0, "up", "down")}
    )
    data = Dataset.from_frame(log, uniform[:500], users=users, scale=(1, 5), unknown_ids="keep")
    return data, uniform[500:], mean, seen


@pytest.fixture(scope="module", params=[0.0, 1.0])
def fitted(request):
    """A model, rows it has not seen, the true means and who saw what."""
    data, test, mean, seen = small_world(0, request.param)
    split = data.split("rd", 0)
    none = split.test.take(np.zeros(len(split.test), bool))
    uniform = data.uniform.labelled(split.protocol)
    whole = replace(split, propensity=uniform, validation=none, test=none)
    model = Recommender("spectrum", dim=4, rng=0).fit(data, whole)
    at = np.ix_(np.asarray(model.user_ids_.ids), np.asarray(model.item_ids_.ids))
    return model, test, mean[at], seen[at], data


def test_intervals_of_users_items_and_pairs_hold_the_truth(fitted) -> None:
    model, _, mean, seen, _ = fitted
    known = model.uncertainty()
    for side, axis in (("user", 1), ("item", 0)):
        own = known.means(side)
        truth = (mean * ~seen).sum(axis) / (~seen).sum(axis)
        inside = np.abs(truth - own.expected) < 1.645 * np.sqrt(own.variance)
        assert 0.85 <= inside.mean() <= 1.0, side
        assert np.sqrt(own.variance).mean() < 0.12
        frame, true_gamma = model.gamma(by=side), gamma_of(own.logged, truth)
        held = (frame["low"].to_numpy() <= true_gamma + 1e-9) & (
            true_gamma <= frame["high"].to_numpy() + 1e-9
        )
        assert held.mean() >= inside.mean()
        assert frame["rows"].sum() == 500
    user, item = np.nonzero(~seen)
    pairs = known.pairs(user, item)
    assert (
        np.mean(np.abs(mean[user, item] - pairs.expected) < 1.645 * np.sqrt(pairs.variance)) >= 0.85
    )


def test_predictive_intervals_hold_ratings_at_their_level(fitted) -> None:
    model, test, *_ = fitted
    for level in (0.9, 0.6):
        found = model.predict(test["user_id"], test["item_id"], interval=level)
        inside = (found["low"] <= test["rating"]) & (test["rating"] <= found["high"])
        assert inside.mean() == pytest.approx(level, abs=0.08)
    np.testing.assert_array_equal(
        found["score"].to_numpy(), model.predict(test["user_id"], test["item_id"])
    )


def test_unseen_means_are_those_of_all_unseen_pairs(fitted) -> None:
    model, _, _, seen, _ = fitted
    scores = model.user_factors_ @ model.item_factors_.T
    known = model.uncertainty()
    for side, axis in (("user", 1), ("item", 0)):
        np.testing.assert_allclose(
            known.means(side).expected, (scores * ~seen).sum(axis) / (~seen).sum(axis), atol=1e-4
        )
    one = known.segments("user", np.zeros(USERS, int), 1)
    assert one.expected[0] == pytest.approx(scores[~seen].mean(), abs=1e-4)
    assert one.variance[0] < known.means("user").variance.mean()


def test_variances_of_blocks_are_those_of_pairs(fitted) -> None:
    known = fitted[0].uncertainty()
    users = np.array([0, 3, 7])
    block = known.block_variance(users, np.arange(ITEMS))
    pairs = known.pair_variance(np.repeat(users, ITEMS), np.tile(np.arange(ITEMS), 3)).reshape(
        3, ITEMS
    )
    np.testing.assert_allclose(block, pairs, rtol=1e-8)


def test_cautious_recommendations_rank_by_the_lower_end(fitted) -> None:
    model, _, _, seen, _ = fitted
    frame = model.recommend(model.user_ids_.ids[:2], 3, cautious=True, scale="unit")
    lower = (model.user_factors_ @ model.item_factors_.T)[:2]
    lower = lower - 1.2816 * np.sqrt(
        model.uncertainty().block_variance(np.arange(2), np.arange(ITEMS))
    )
    lower[seen[:2]] = -np.inf
    best = np.argsort(-lower, axis=1)[:, :3]
    assert frame["item_id"].to_list() == np.asarray(model.item_ids_.ids)[best].ravel().tolist()
    np.testing.assert_allclose(
        frame["score"], np.take_along_axis(lower, best, 1).ravel(), atol=1e-5
    )


def test_a_saved_model_has_the_same_intervals(fitted, tmp_path) -> None:
    model, test, _, _, data = fitted
    model.save(tmp_path / "m")
    again = Recommender.load(tmp_path / "m")
    assert again.gamma(by="item").equals(model.gamma(by="item"))
    assert again.gamma(by="half", table=data.users).equals(model.gamma(by="half"))
    with pytest.raises(InputError, match="no such column"):
        again.gamma(by="half")
    given = test["user_id"][:5], test["item_id"][:5]
    assert again.predict(*given, interval=0.5).equals(model.predict(*given, interval=0.5))


def test_segments_pairs_and_mistakes(fitted) -> None:
    model = fitted[0]
    frame = model.gamma(by="half")
    assert frame["half"].to_list() == ["down", "up"]
    assert (frame["low"] <= frame["gamma"]).all()
    assert (frame["gamma"] <= frame["high"]).all()
    pair = model.gamma(by="pair", users=[0, 1], items=2)
    assert pair.columns == ["user_id", "item_id", "gamma", "low", "high", "direction", "rows"]
    for wrong in ({"level": 1.0}, {"by": "hair"}):
        with pytest.raises(InputError):
            model.gamma(**wrong)
    with pytest.raises(InputError, match="unknown users or items"):
        model.gamma(by="pair", users=[10_000], items=[0])


def test_without_uniform_rows_it_says_that_the_log_cannot_tell(fitted) -> None:
    log = fitted[4].logged.to_frame().select("user_id", "item_id", "rating")
    model = Recommender("spectrum", dim=2, epochs=5, rng=0).fit(
        Dataset.from_frame(log, scale=(1, 5))
    )
    for ask in (
        model.gamma,
        lambda: model.predict(0, 0, interval=0.9),
        lambda: model.recommend([0], cautious=True),
    ):
        with pytest.raises(InputError, match="the log alone cannot tell"):
            ask()


def test_gamma_is_the_smallest_that_moves_q_to_r() -> None:
    q, r = np.array([0.6, 0.6, 0.5]), np.array([0.3, 0.8, 0.5])
    np.testing.assert_allclose(gamma_of(q, r), [2.0, 2.0, 1.0])
    sure = Means(r, q, np.full(3, 1e-6), np.zeros(3), np.zeros(3))
    found = gamma_interval(sure, 0.9)
    assert found.direction.tolist() == ["below", "above", "open"]
    assert (found.low[:2] > 1.9).all()
    assert found.low[2] == 1.0
    wide = gamma_interval(sure._replace(variance=np.full(3, 0.1)), 0.9)
    assert (wide.low == 1.0).all()
    assert (wide.high > found.high).all()


def test_levels_are_worth_the_rows_that_their_variance_says() -> None:
    """ν = noise variance over variance between: 4 for users; items have no levels of their own."""
    rng = np.random.default_rng(0)
    seen = rng.random((400, 300)) < 0.1
    user, item = np.nonzero(seen)
    values = 0.5 + 0.1 * rng.normal(size=400)[user] + 0.2 * rng.normal(size=user.size)
    rows = csr_array((values, (user, item)), shape=(400, 300))
    of_users, of_items = level_rows(rows)
    assert of_users == pytest.approx(4.0, rel=0.15)
    assert of_items > 200.0
