from __future__ import annotations

import numpy as np
import pytest

from puidrec.data.simulator.population import (
    BASE_RATING,
    WORLDS,
    SimulationOptions,
    make_population,
)
from puidrec.data.synthetic import simulation_options
from puidrec.errors import InputError


@pytest.mark.parametrize(
    "world", sorted(name for name, world in WORLDS.items() if not world.ordinal)
)
def test_mean_ratings_cannot_leave_the_scale(world: str) -> None:
    """The largest feature effects and the largest hidden effect together stay within 1..5, for any
    seed."""
    for seed in range(5):
        options = simulation_options(world, 3_000, 3_000, rng=seed, rating_strength=1.0)
        population = make_population(options)
        u, i, s = population.users, population.items, population.strengths
        own = (s.user + s.genre + s.pair)[:, None] + np.multiply.outer(s.gate, s.item)
        reach = options.rating_strength * own.max()  # |h| is 1 at most
        slopes = np.abs(u.slope).max() * np.abs(i.slope).max()
        known = np.where(
            s.user[u.strength_class] == 0, u.stars, u.stars + reach
        )  # recorded traits are in `stars`
        top = known.max() + i.stars.max() + population.cell_stars.max() + slopes
        known = np.where(s.user[u.strength_class] == 0, u.stars, u.stars - reach)
        bottom = known.min() + i.stars.min() + population.cell_stars.min() - slopes
        assert BASE_RATING + top <= 5.0
        assert BASE_RATING + bottom >= 1.0


def test_hidden_traits_are_unrelated_to_features() -> None:
    users = make_population(simulation_options("entity", 20_000, 100)).users
    numeric = users.frame.select("age", "activity").to_numpy().T
    correlation = np.corrcoef([*numeric, users.logit, users.stars, users.hidden])[-1, :-1]
    assert np.abs(correlation).max() < 4 / np.sqrt(20_000)


def test_the_two_sides_share_feature_effects() -> None:
    """Features drive exposure and rating in one direction, so that they confound as well."""
    for seed in range(5):
        population = make_population(simulation_options("no-confounding", 500, 500, rng=seed))
        assert np.corrcoef(population.items.logit, population.items.stars)[0, 1] > 0.3
        assert np.corrcoef(population.cell_logit.ravel(), population.cell_stars.ravel())[0, 1] > 0.3


def test_features_have_plain_types_and_every_level() -> None:
    population = make_population(simulation_options("half-complete", 500, 300))
    assert population.users.frame.columns == [
        "user_id",
        "segment",
        "region",
        "age",
        "activity",
        "mood",
    ]
    assert population.items.frame.columns == ["item_id", "genre", "price", "quality"]
    assert population.users.frame["segment"].n_unique() == 4
    assert population.items.frame["genre"].n_unique() == 6
    assert population.users.frame["age"].is_between(18, 70).all()


def test_no_world_can_pull_beyond_one() -> None:
    assert list(WORLDS) == [
        "entity",
        "pair",
        "mixed",
        "half-complete",
        "proportional",
        "no-confounding",
        "reversed",
        "mixed-sign",
        "trait-genre",
        "heavy-tailed",
        "ordinal",
        "benign-activity",
        "awkward",
    ]
    for world in WORLDS.values():
        assert 0.0 <= world.user + world.item + world.genre + world.pair <= 1.0
        assert 0.0 <= world.rest <= 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world": "flat"}, "world"),
        ({"n_users": 1}, "n_users"),
        ({"n_items": 0}, "n_items"),
        ({"density": 0.0}, "density"),
        ({"density": float("nan")}, "density"),
        ({"n_rows": 10**9}, "density"),
        ({"n_uniform": 10**9}, "n_uniform"),
        ({"exposure_strength": -1.0}, "exposure_strength"),
        ({"rating_strength": 1.5}, "rating_strength"),
        ({"sign": 0}, "sign"),
        ({"affected_share": 1.2}, "affected_share"),
        ({"rng": -3}, "seed"),
    ],
)
def test_options_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        simulation_options(**change)  # type: ignore[arg-type]
    assert "expected" in str(caught.value)


def test_options_survive_json() -> None:
    options = simulation_options("pair", 300, 200, 1_000, sign=-1, rng=7)
    assert SimulationOptions(**options.as_dict()) == options
    assert options.density * options.n_pairs == pytest.approx(1_000)
