"""Users and items of a simulated world: their features, what the features do, and their hidden traits.

Exposure and mean rating are both bilinear in the features (one-hot and numeric): main effects, a table
segment × genre, and age × price. The two sides share effects, so features confound as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from puidrec.data.simulator.nominal import Strengths, hidden_from_uniform
from puidrec.data.simulator.worlds import SimulationOptions, World, get_world
from puidrec.rng import generator

BASE_RATING = 2.9
"""Mean rating where all effects are 0; with |feature effects| <= 0.9 and |hidden| <= 1 the mean stays in 1..5."""
_SEGMENTS = ("casual", "regular", "collector", "visitor")
_REGIONS = ("north", "south", "islands")
_GENRES = ("action", "comedy", "documentary", "drama", "family", "thriller")
_LEVELS = 8
"""Steps of the graded strengths of world `proportional`."""


@dataclass(frozen=True)
class Side:
    """Users, or items: one row per entity."""

    frame: pl.DataFrame
    """The observed features, ids first."""
    cell: np.ndarray
    """Row (segment) or column (genre) of the interaction tables."""
    logit: np.ndarray
    """Main effect on the exposure logit."""
    stars: np.ndarray
    """Main effect on the mean rating."""
    slope: np.ndarray
    """Factor of age × price in the mean rating."""
    hidden: np.ndarray
    """h_u or h_i."""
    strength_class: np.ndarray


@dataclass(frozen=True)
class Population:
    """Both sides, the interaction tables, and the strengths of what is hidden."""

    users: Side
    items: Side
    cell_logit: np.ndarray
    cell_stars: np.ndarray
    strengths: Strengths


def make_population(options: SimulationOptions) -> Population:
    """Draw a population; the seed decides everything, so it is rebuilt rather than stored."""
    world = get_world(options.world)
    cell_logit, cell_stars = _tables(options.seed)
    users = _users(options)
    items = _items(options)
    user_level = _graded(users.logit) if world.graded else np.zeros(options.n_users, np.int64)
    item_level = _graded(items.logit) if world.graded else np.zeros(options.n_items, np.int64)
    strengths = _strengths(world, options.affected_share)
    affected = (generator(options.seed, "affected").random(options.n_users) < options.affected_share).astype(np.int64)
    users = replace(users, strength_class=2 * user_level + affected)
    items = replace(items, strength_class=item_level)
    if world.recorded:
        users = _recorded(users, affected == 0, options, world)
    return Population(users, items, cell_logit, cell_stars, strengths)


def _users(options: SimulationOptions) -> Side:
    rng, n = generator(options.seed, "users"), options.n_users
    segment = rng.choice(4, n, p=(0.35, 0.3, 0.2, 0.15))
    region = rng.choice(3, n, p=(0.5, 0.3, 0.2))
    age, activity = rng.uniform(-1, 1, (2, n))
    frame = pl.DataFrame(
        {
            "user_id": np.arange(n, dtype=np.int32),
            "segment": pl.Series(np.array(_SEGMENTS)[segment]),
            "region": pl.Series(np.array(_REGIONS)[region]),
            "age": np.round(44 + 26 * age, 3),
            "activity": np.round(8 + 7 * activity, 3),
        }
    )
    logit = np.array([-0.3, 0.1, 0.4, -0.1])[segment] + np.array([0.1, -0.05, -0.2])[region] + 0.6 * activity
    stars = np.array([-0.06, 0.02, 0.1, -0.04])[segment] + np.array([0.02, -0.02, 0.04])[region] + 0.06 * activity
    hidden = hidden_from_uniform(generator(options.seed, "user traits").random(n))
    return Side(frame, segment, logit, stars, 0.1 * age, hidden, np.zeros(n, np.int64))


def _items(options: SimulationOptions) -> Side:
    rng, n = generator(options.seed, "items"), options.n_items
    genre = rng.choice(6, n, p=(0.22, 0.2, 0.12, 0.2, 0.12, 0.14))
    price, quality = rng.uniform(-1, 1, (2, n))
    frame = pl.DataFrame(
        {
            "item_id": np.arange(n, dtype=np.int32),
            "genre": pl.Series(np.array(_GENRES)[genre]),
            "price": np.round(30 + 25 * price, 3),
            "quality": np.round(0.5 + 0.5 * quality, 5),
        }
    )
    logit = np.array([0.3, 0.2, -0.4, 0.0, -0.1, 0.1])[genre] + 0.5 * quality - 0.3 * price
    stars = np.array([0.03, 0.0, 0.05, 0.02, -0.05, -0.02])[genre] + 0.28 * quality - 0.02 * price
    hidden = hidden_from_uniform(generator(options.seed, "item traits").random(n))
    return Side(frame, genre, logit, stars, price, hidden, np.zeros(n, np.int64))


def _tables(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Segment × genre effects on exposure and on stars, drawn per seed and positively related."""
    rng = generator(seed, "effects")
    taste, habit = rng.uniform(-1, 1, (2, len(_SEGMENTS), len(_GENRES)))
    return 0.35 * taste + 0.25 * habit, 0.25 * taste


def _graded(main_effect: np.ndarray) -> np.ndarray:
    """Level 0..7 in proportion to the local information gain: KL of the entity's exposure rate to the average one.

    For rare exposure and rate ratio r, KL is proportional to r log r - r + 1; the top tenth shares the last level.
    """
    ratio = np.exp(main_effect) / np.exp(main_effect).mean()
    gain = ratio * np.log(ratio) - ratio + 1.0
    share = np.minimum(1.0, gain / np.quantile(gain, 0.9))
    level: np.ndarray = np.ceil(share * _LEVELS - 1e-9).astype(np.int64).clip(1) - 1
    return level


def _strengths(world: World, affected_share: float) -> Strengths:
    """Classes 2·level (not affected) and 2·level + 1 (affected); levels are told by features, being affected is not,
    unless the confounder is recorded for the others."""
    grade = (np.arange(_LEVELS) + 0.5) / (_LEVELS - 0.5) if world.graded else np.ones(1)
    rest = 0.0 if world.recorded else world.rest
    factor = np.tile([rest, 1.0], grade.size)
    return Strengths(
        user=factor * world.user * np.repeat(grade, 2),
        gate=factor,
        pair=factor * world.pair,
        group=np.arange(2) if world.recorded else np.repeat(np.arange(grade.size), 2),
        share=np.ones(2) if world.recorded else np.tile([1.0 - affected_share, affected_share], grade.size),
        item=world.item * grade,
    )


def _recorded(users: Side, complete: np.ndarray, options: SimulationOptions, world: World) -> Side:
    """Write the trait of complete users into the column `mood`: for them it is a feature, with the same effects."""
    mood = np.where(complete, world.user * users.hidden, 0.0)
    column = pl.Series("mood", users.hidden).zip_with(pl.Series(complete), pl.Series("mood", [None], pl.Float64))
    return replace(
        users,
        frame=users.frame.with_columns(column),
        logit=users.logit + options.exposure_strength * mood,
        stars=users.stars + options.sign * options.rating_strength * mood,
    )
