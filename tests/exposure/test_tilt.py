"""The measured tilt: found where it is, by segment, with intervals that hold; equal to a logistic
regression."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import puidrec as pr
from puidrec.data.dataset import Dataset
from puidrec.exposure.tilt import TiltRows, fit_tilt, measure_tilt


def draw(
    slopes: tuple[float, ...], rng: np.random.Generator, n_users: int = 200, per_user: int = 40
) -> TiltRows:
    """Logged and uniform rows of users in segments with these slopes; users have propensities of
    their own."""
    user = np.repeat(np.arange(n_users), per_user)
    segment = user % len(slopes)
    rating = np.clip(rng.normal(0.5, 0.1, n_users)[user] + rng.normal(0, 0.25, user.size), 0, 1)
    offset = rng.normal(-1.5, 0.5, n_users)[user]
    logged = rng.random(user.size) < 1 / (
        1 + np.exp(-(offset + np.array(slopes)[segment] * rating))
    )
    kept = logged | (rng.random(user.size) < 0.1)  # a tenth of what was not seen is rated at random
    return TiltRows(rating[kept], offset[kept], logged[kept] * 1.0, user[kept], segment[kept])


def test_equal_to_a_logistic_regression_with_an_offset() -> None:
    from scipy.optimize import minimize

    rows = draw((1.0,), np.random.default_rng(0))

    def loss(theta: np.ndarray) -> float:
        eta = rows.offset + theta[0] + theta[1] * rows.rating
        return float(np.sum(np.logaddexp(0.0, eta) - rows.logged * eta))

    expected = minimize(loss, np.zeros(2), tol=1e-10).x
    found = fit_tilt(rows, 200)
    np.testing.assert_allclose([found.intercept[0], found.slope[0]], expected, atol=1e-4)


def test_slopes_of_segments_are_found_each_on_its_own() -> None:
    rng = np.random.default_rng(1)
    slopes = (2.0, 0.0, -2.0)
    found = np.array([fit_tilt(draw(slopes, rng), 200, 3).slope for _ in range(40)])
    np.testing.assert_allclose(found.mean(axis=0), slopes, atol=0.15)
    rows = draw(slopes, rng)
    own = rows.segment == 1
    alone = fit_tilt(
        TiltRows(*(part[own] for part in rows[:4]), np.zeros(own.sum(), np.int64)), 200
    )
    assert fit_tilt(rows, 200, 3).slope[1] == pytest.approx(alone.slope[0], abs=1e-7)


@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_intervals_cover_the_slope(slope: float) -> None:
    """200 logs: between 91 and 98 % of the 95 % intervals hold it."""
    rng, held = np.random.default_rng(2), []
    for _ in range(200):
        low, high = fit_tilt(draw((slope,), rng, 120, 30), 120).limits(0.95)[:, 0]
        held.append(low <= slope <= high)
    assert 0.91 <= np.mean(held) <= 0.985


def test_influences_are_what_leaving_a_user_out_changes() -> None:
    rows = draw((1.0,), np.random.default_rng(3))
    fit = fit_tilt(rows, 200)
    for user in (0, 57):
        kept = rows.user != user
        without = fit_tilt(TiltRows(*(part[kept] for part in rows)), 200)
        assert fit.slope[0] - without.slope[0] == pytest.approx(
            fit.influence[user, 0], abs=0.02 * np.abs(fit.influence).max() + 1e-4
        )


def tilted(slope: float, seed: int = 0) -> Dataset:
    """A log that people chose by what they like, and ratings of random items."""
    rng = np.random.default_rng(seed)
    rating = rng.integers(1, 6, (300, 120))
    chance = 1 / (1 + np.exp(-(-3.2 + slope * (rating - 1) / 4)))
    user, item = np.nonzero(rng.random(rating.shape) < chance)
    pairs = rng.choice(rating.size, 1_500, replace=False)
    drawn = np.divmod(pairs, 120)
    frames = [
        pl.DataFrame({"user_id": u, "item_id": i, "rating": rating[u, i].astype(float)})
        for u, i in ((user, item), drawn)
    ]
    users = pl.DataFrame({"user_id": np.arange(300), "kind": ["a", "b"] * 150})
    return Dataset.from_frame(
        frames[0], uniform=frames[1], users=users, scale=(1, 5), unknown_ids="keep"
    )


def test_the_public_function_finds_direction_and_size() -> None:
    found = pr.measure_tilt(tilted(1.5))
    row = found.rows[0]
    assert row.low < 1.5 < row.high
    assert row.direction == "liked is seen"
    assert row.gamma == pytest.approx(np.exp(row.slope))
    assert "liked is seen" in found.sentence
    assert measure_tilt(tilted(-1.5)).rows[0].direction == "disliked is seen"
    assert measure_tilt(tilted(0.0, 4)).rows[0].direction == "open"


def test_by_segments() -> None:
    data = tilted(1.5)
    for by in ("kind", "activity", "popularity"):
        found = measure_tilt(data, by=by)
        table = found.to_frame()
        assert table.height == len(found.rows) >= 2
        assert table["n_uniform"].sum() <= 1_500
        assert {"segment", "slope", "low", "high", "gamma", "direction"} <= set(table.columns)
    assert [row.segment for row in measure_tilt(data, by="kind").rows] == ["kind: a", "kind: b"]


def test_what_cannot_be_measured_is_refused(refusal) -> None:
    data = tilted(1.0)
    refusal(lambda: measure_tilt(data, by="colour"), "no such segments", "colour", "kind")
    log = data.logged.to_frame().select("user_id", "item_id", "rating")
    refusal(lambda: measure_tilt(Dataset.from_frame(log, scale=(1, 5))), "needs uniform rows")
    few = Dataset.from_frame(
        log,
        uniform=data.uniform.to_frame().select("user_id", "item_id", "rating")[:5],
        scale=(1, 5),
    )
    refusal(lambda: measure_tilt(few), "too few uniform rows")
