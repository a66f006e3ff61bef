import numpy as np
import polars as pl
import pytest

from puidrec.exposure.counts import ExposureCounts
from puidrec.exposure.evidence import (
    Calibration,
    Evidence,
    calibrate,
    calibrate_sides,
    entity_variance,
)


def world(seed, effect=0.8, spread=0.0, n_users=600, n_items=300):
    """Feature `strong` moves the log-odds by ±effect, `weak` by a quarter of it, `noise` not at
    all."""
    rng = np.random.default_rng(seed)
    strong, weak, noise = rng.choice(["a", "b"], (3, n_users))
    genre, colour = rng.choice(["x", "y"], (2, n_items))
    z = (
        -2.5
        + effect * (strong == "a")[:, None] * 2
        - effect
        + effect / 4 * np.where(weak == "a", 1, -1)[:, None]
    )
    z = z + 0.4 * np.where(genre == "x", 1, -1)[None] + spread * rng.normal(size=(n_users, 1))
    user, item = np.nonzero(rng.random(z.shape) < 1 / (1 + np.exp(-z)))
    users = pl.DataFrame(
        {"user_id": np.arange(n_users), "noise": noise, "weak": weak, "strong": strong}
    )
    items = pl.DataFrame({"item_id": np.arange(n_items), "genre": genre, "colour": colour})
    return user, item, users, items


def run(user, item, users, items, **options):
    sizes = {"n_users": 600, "n_items": 300}
    evidence = Evidence.from_log(user, item, users=users, items=items, **sizes)
    return calibrate(evidence, **options)


def test_hiding_a_feature_shows_the_odds_ratio_it_carried():
    rows = {row.feature: row for row in run(*world(0)).rows}
    assert np.log(rows["strong"].gamma_mean) == pytest.approx(
        0.8, rel=0.25
    )  # the mixture moves one side's logit more
    assert np.log(rows["weak"].gamma_mean) == pytest.approx(0.2, rel=0.35)
    assert np.log(rows["genre"].gamma_mean) == pytest.approx(0.4, rel=0.25)
    assert rows["strong"].gain > rows["weak"].gain > 0
    assert rows["strong"].gamma_90 >= rows["strong"].gamma_mean
    assert {rows[name].side for name in ("noise", "weak", "strong")} == {"user"}
    assert rows["genre"].side == "item"


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_noise_features_are_worth_nothing_even_when_users_differ_in_activity(spread):
    worth = [
        row.gamma_mean
        for s in range(6)
        for row in run(*world(s, spread=spread)).rows
        if row.feature == "noise"
    ]
    assert np.mean(np.log(worth)) < 0.03


def test_noise_of_many_levels_is_worth_nothing_even_when_tastes_differ():
    rng = np.random.default_rng(0)
    worth = []
    for seed in range(4):
        user, item, users, items = world(seed, effect=0.0, spread=1.0)
        keep = (
            rng.random((600, 2))[user, (items["genre"] == "x").to_numpy()[item].astype(int)] < 0.7
        )  # own tastes
        many = users.select(
            "user_id", many=pl.Series(rng.integers(0, 14, 600)).cast(pl.String), weak="weak"
        )
        worth += [
            np.log(row.gamma_mean)
            for row in run(user[keep], item[keep], many, items).rows
            if row.side == "user"
        ]
    assert np.mean(worth) < 0.06


def test_groups_are_hidden_together():
    calibration = run(
        *world(1), groups={"taste": ["strong", "weak"], "look": ["genre"], "absent": ["shoe"]}
    )
    assert [row.feature for row in calibration.rows] == ["taste", "look"]
    assert calibration.rows[0].gain > max(row.gain for row in run(*world(1)).rows)


def test_typical_shift_and_table():
    calibration = run(*world(2))
    shifts = [np.log(row.gamma_mean) for row in calibration.rows if row.side == "user"]
    assert calibration.shift("user") == pytest.approx(np.mean(shifts))
    table = calibration.to_frame()
    assert table["feature"][0] == "strong"
    assert table["gamma_mean"].is_sorted(descending=True)
    assert Calibration(()).shift("item") == 0.0
    assert Calibration(()).to_frame().is_empty()


def test_without_tables_there_is_nothing_to_hide_and_with_one_only_its_side():
    user, item, users, _ = world(3)
    assert run(user, item, None, None).rows == ()
    assert {row.side for row in run(user, item, users, None).rows} == {"user"}


def test_counts_alone_hide_whole_sides():
    user, item, users, items = world(4)
    bins = [
        (frame[name] == value).to_numpy().astype(np.int32)
        for frame, name, value in ((users, "strong", "a"), (items, "genre", "x"))
    ]
    rows = calibrate_sides(ExposureCounts.from_pairs(user, item, *bins)).rows
    assert [np.log(row.gamma_mean) for row in rows] == pytest.approx([0.8, 0.4], rel=0.25)
    one = calibrate_sides(ExposureCounts.from_pairs(user, item, 0 * bins[0], bins[1]))
    assert [row.side for row in one.rows] == ["item"]


def test_entity_variance_sees_activity_but_not_chance():
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 5, 20_000)
    base = 20.0 * (1 + bins)
    assert entity_variance(rng.poisson(base), bins) < 0.002
    lively = base * np.exp(rng.normal(-0.045, 0.3, bins.size))
    assert entity_variance(rng.poisson(lively), bins) == pytest.approx(np.expm1(0.09), rel=0.1)
