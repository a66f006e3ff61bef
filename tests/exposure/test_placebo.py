"""The placebo calls misfit misfit, and what is hidden hidden."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.exposure import certify as placebo
from puidrec.exposure.estimate import estimate_exposure


def world(hidden: bool, seed: int = 0) -> tuple[pr.Dataset, np.ndarray]:
    """Exposure and ratings follow waves over two recorded features, or something that varies from
    pair to pair."""
    rng = np.random.default_rng(seed)
    age, price = rng.random(300), rng.random(150)
    waves = [np.sin(3 * np.pi * x) for x in (age, price)]
    h = waves[0][:, None] + waves[1] + 1.2 * np.multiply.outer(*waves)
    h = rng.normal(0.0, 1.0, h.shape) if hidden else h
    p = 1.0 / (1.0 + np.exp(2.6 - 1.4 * h))
    rating = (
        1.0
        + (rng.random((300, 150)) < 1.0 / (1.0 + np.exp(0.4 - 1.6 * h)))
        + (rng.random((300, 150)) < 0.5)
    )
    seen = rng.random(p.shape) < p
    drawn = rng.choice(p.size, 1_500, replace=False)
    pairs = [np.nonzero(seen), np.divmod(drawn, 150)]
    frames = [pl.DataFrame({"user_id": u, "item_id": i, "rating": rating[u, i]}) for u, i in pairs]
    users = pl.DataFrame({"user_id": np.arange(300), "age": age})
    items = pl.DataFrame({"item_id": np.arange(150), "price": price})
    return pr.Dataset.from_frame(
        *frames, users=users, items=items, scale=(1, 3), unknown_ids="keep"
    ), p


@pytest.mark.parametrize("hidden", [False, True])
def test_what_vanishes_around_trees_is_called_misfit(hidden: bool) -> None:
    found = pr.certify(world(hidden)[0], propensity="logistic")
    assert found.lower > 1.05
    assert found.placebo is not None
    assert found.finding == ("hidden or missed" if hidden else "misfit")
    assert ("Nothing hidden is proved" in found.sentence) is not hidden
    assert ("hidden, or missed by the propensity" in found.sentence) is hidden


def test_trees_are_nearer_to_the_truth_than_a_model_that_cannot_follow() -> None:
    data, p = world(hidden=False)
    nominal = estimate_exposure(data, data.logged, propensity="logistic")
    true = p[data.logged.user, data.logged.item]
    trees = placebo.tree_propensity(nominal, data.logged)
    error = [np.abs(np.log(found / true)).mean() for found in (trees, nominal.seen_propensity)]
    assert error[0] < 0.75 * error[1]
    assert (1.0 / trees).sum() == pytest.approx(
        data.n_pairs, rel=0.15
    )  # propensities are right on average


def test_of_a_large_log_a_sample_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = world(hidden=False)
    monkeypatch.setattr(placebo, "MAX_ROWS", 3_000)
    rows = placebo.sample_of(data.logged, 0)
    assert len(rows) == 3_000
    nominal = estimate_exposure(data, data.logged)
    assert (1.0 / placebo.tree_propensity(nominal, rows)).mean() * len(
        data.logged
    ) == pytest.approx(data.n_pairs, rel=0.2)
