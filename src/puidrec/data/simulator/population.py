"""The named worlds of the simulator, what a simulation depends on, and its users and items.

Exposure and mean rating are both bilinear in the features (one-hot and numeric): main effects, a
table segment × genre, and age × price. The two share effects, so features confound as well.

One hidden effect t_ui in [-1, 1] drives both: `exposure_strength` · t is added to the exposure
logit, and `sign` · `rating_strength` · t stars to the rating. With independent h of mean 0:

    t_ui = s_u · (user · h_u + item · h_i + genre · h_u,genre(i) + pair · h_ui),

where s_u is 1 for the affected share of the users and `rest` for the others. A world is a row of
weights. Other rows change what methods might assume: the sign, that a hidden effect on exposure is
one on ratings, the form of exposure and of ratings, the law of h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy.special import stdtrit

from puidrec.data.schema import check_choice
from puidrec.errors import InputError
from puidrec.rng import generator

BASE_RATING = 2.9
"""Mean rating without effects; feature effects of 0.9 and hidden ones of 1 keep it in 1..5."""
_SEGMENTS = ("casual", "regular", "collector", "visitor")
_REGIONS = ("north", "south", "islands")
_GENRES = ("action", "comedy", "documentary", "drama", "family", "thriller")
_NODES, _HEAVY_NODES = 20, 48
_HEAVY_TAIL = 5e-4
_HEAVY_SCALE = float(np.sqrt(0.5) / np.sqrt(3.0))
"""h in [-1, 1] has the variance 1/2, Student's t with 3 degrees of freedom 3: now both 1/2."""
_LEVELS = 8
"""Steps of the graded strengths of world `proportional`."""


@dataclass(frozen=True)
class SimulatedWorld:
    """Who carries the hidden confounder. The weights sum to at most 1, and so |t| is at most 1."""

    name: str
    description: str
    user: float = 0.0
    item: float = 0.0
    pair: float = 0.0
    affected_share: float = 1.0
    rest: float = 0.0
    """The factor s_u of users who are not affected."""
    recorded: bool = False
    """The confounder of unaffected users is a feature column: it acts on them too, but is not
    hidden."""
    graded: bool = False
    """`user` and `item` weights grow in proportion to the information gain of the entity's own
    features."""
    genre: float = 0.0
    """Weight of the user's own hidden taste for the genre of the item."""
    sign: int = 1
    """Multiplies the sign of the options: −1 where people avoid what they like."""
    flipped_share: float = 0.0
    """Share of users, unknown which, whose sign is the other one."""
    rating: float = 1.0
    """Factor of the effect on ratings; 0: what is hidden drives exposure only, and confounds
    nothing."""
    probit: bool = False
    """Exposure follows a probit model; only for worlds in which nothing is hidden."""
    interactions: bool = False
    """Features act by U-shapes and interactions that bins and bilinear models miss."""
    heavy: bool = False
    """h has the heavy tails of Student's t with 3 degrees of freedom, not bounds; for traits of
    users and items."""
    ordinal: bool = False
    """Ratings come from a latent taste by uneven cut points, not from a binomial law."""


_ROWS = (
    SimulatedWorld("entity", "hidden traits of users and of items", user=0.5, item=0.5),
    SimulatedWorld(
        "pair",
        "varies by pair; strong for half of the users",
        pair=1.0,
        affected_share=0.5,
        rest=0.3,
    ),
    SimulatedWorld(
        "mixed",
        "traits of users and items, and a part that varies by pair",
        user=0.35,
        item=0.25,
        pair=0.4,
    ),
    SimulatedWorld(
        "half-complete",
        "recorded for half of the users only",
        user=1.0,
        affected_share=0.5,
        recorded=True,
    ),
    SimulatedWorld(
        "proportional",
        "as strong as the features' own information gain",
        user=0.5,
        item=0.5,
        graded=True,
    ),
    SimulatedWorld("no-confounding", "nothing hidden"),
    SimulatedWorld(
        "reversed", "people avoid what they like", user=0.2, item=0.2, pair=0.6, sign=-1
    ),
    SimulatedWorld(
        "mixed-sign",
        "half of the users avoid what they like",
        user=0.2,
        pair=0.8,
        flipped_share=0.5,
    ),
    SimulatedWorld("trait-genre", "a hidden taste of each user for each genre", genre=1.0),
    SimulatedWorld(
        "heavy-tailed",
        "hidden traits of users and items with heavy tails",
        user=0.35,
        item=0.35,
        heavy=True,
        ordinal=True,
    ),
    SimulatedWorld(
        "ordinal",
        "by pair and user; ratings by uneven cut points",
        user=0.3,
        pair=0.7,
        ordinal=True,
    ),
    SimulatedWorld(
        "benign-activity", "unrecorded activity that confounds nothing", user=1.0, rating=0.0
    ),
    SimulatedWorld(
        "awkward",
        "all is recorded, but acts by probit and interactions",
        probit=True,
        interactions=True,
    ),
)
WORLDS = {world.name: world for world in _ROWS}
"""The named worlds. Except in `half-complete`, features do not reveal who is affected."""


def get_world(name: str) -> SimulatedWorld:
    """Look a world up by name."""
    check_choice("world", name, tuple(WORLDS))
    return WORLDS[name]


RANGES: dict[str, tuple[Any, float, float]] = {
    "n_users": (Integral, 2, 2**31 - 1),
    "n_items": (Integral, 2, 2**31 - 1),
    "n_rows": (Integral, 1, math.inf),
    "n_uniform": (Integral, 0, math.inf),
    "density": (Real, 1e-6, 0.9),
    "exposure_strength": (Real, 0, 4),
    "rating_strength": (Real, 0, 1),
    "sign": (Integral, -1, 1),
    "affected_share": (Real, 0, 1),
    "seed": (Integral, 0, math.inf),
}
"""The type of each number of a simulation, the lowest and the highest value. Beyond one star a mean
rating would leave the scale."""


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse options that are no numbers or out of range; None stands for a default."""
    for name, (kind, low, high) in RANGES.items():
        found = options.get(name)
        if found is None:
            continue
        if isinstance(found, bool) or not isinstance(found, kind):
            expected = "a whole number" if kind is Integral else "a number"
            raise InputError(f"option {name} is not {expected}", found=found)
        if not low <= found <= high or (name == "sign" and not found):
            expected = "1 or -1" if name == "sign" else f"{low:g} to {high:g}"
            raise InputError(f"{name} out of range", found=found, expected=expected)


@dataclass(frozen=True)
class SimulationOptions:
    """All that a simulation depends on; equal options give equal data, in memory or in files."""

    world: str
    n_users: int
    n_items: int
    density: float
    """Expected share of D that is logged."""
    n_uniform: int
    """Pairs drawn uniformly from D without replacement."""
    exposure_strength: float
    """Largest shift of the exposure logit by what is hidden; exp of it is about the largest Γ."""
    rating_strength: float
    """Largest shift of the mean rating, in stars, by what is hidden."""
    sign: Literal[1, -1]
    """+1: people pick what they like."""
    affected_share: float
    """Share of users with the full hidden confounder."""
    seed: int

    def __post_init__(self) -> None:
        get_world(self.world)
        check_numbers(self.as_dict())
        if self.n_uniform > self.n_pairs:
            expected = f"0 to {self.n_pairs}, all pairs"
            raise InputError("n_uniform out of range", found=self.n_uniform, expected=expected)

    @property
    def n_pairs(self) -> int:
        """The size of D."""
        return self.n_users * self.n_items

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for a data set's notes."""
        return asdict(self)


@dataclass(frozen=True)
class Strengths:
    """Weights of the hidden terms per class: t = user[c] h_u + gate[c] item[d] h_i + genre[c] h_ug
    + pair[c] h_ui.

    A user class c belongs to a group that the features reveal; which class of it a user has is
    hidden, only the `share` of each class is known.
    """

    user: np.ndarray
    gate: np.ndarray
    pair: np.ndarray
    group: np.ndarray
    share: np.ndarray
    item: np.ndarray
    genre: np.ndarray
    heavy: bool = False

    @property
    def n_groups(self) -> int:
        """Groups of users that the features distinguish."""
        return int(self.group.max()) + 1


@dataclass(frozen=True)
class EntityColumns:
    """The users, or the items: one row each."""

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
    genre_hidden: np.ndarray | None = None
    """h_ug, the user's hidden taste for each genre, [users, genres]; None in worlds without it."""
    sign: np.ndarray | None = None
    """±1 per user, where users differ in the sign of what is hidden."""


@dataclass(frozen=True)
class SimulatedPopulation:
    """Users and items, the segment × genre tables, and the strengths of what is hidden."""

    users: EntityColumns
    items: EntityColumns
    cell_logit: np.ndarray
    cell_stars: np.ndarray
    strengths: Strengths


def make_population(options: SimulationOptions) -> SimulatedPopulation:
    """Draw a population; the seed decides everything, so it is rebuilt rather than stored."""
    world = get_world(options.world)
    cell_logit, cell_stars = _tables(options.seed)
    users = _users(options, world.heavy)
    items = _items(options, world.heavy)
    if world.interactions:
        users, items, cell_logit, cell_stars = _interacting(users, items, cell_logit, cell_stars)
    user_level = _graded(users.logit) if world.graded else np.zeros(options.n_users, np.int64)
    item_level = _graded(items.logit) if world.graded else np.zeros(options.n_items, np.int64)
    strengths = _strengths(world, options.affected_share)
    affected = (
        generator(options.seed, "affected").random(options.n_users) < options.affected_share
    ).astype(np.int64)
    shape = (options.n_users, len(_GENRES))
    uniform = generator(options.seed, "genre traits").random(shape) if world.genre else None
    tastes = None if uniform is None else hidden_from_uniform(uniform)
    flipped = generator(options.seed, "signs").random(options.n_users) < world.flipped_share
    signs = np.where(flipped, -1.0, 1.0) if world.flipped_share else None
    users = replace(
        users, strength_class=2 * user_level + affected, genre_hidden=tastes, sign=signs
    )
    items = replace(items, strength_class=item_level)
    if world.recorded:
        users = _recorded(users, affected == 0, options, world)
    return SimulatedPopulation(users, items, cell_logit, cell_stars, strengths)


def hidden_from_uniform(uniform: np.ndarray, heavy: bool = False) -> np.ndarray:
    """h from a uniform draw: in [-1, 1], with the law of the Gauss–Chebyshev weights; or with heavy
    tails.

    The heavy law is Student's t with 3 degrees of freedom at the same spread, cut at its 0.05 %
    quantiles, so that a few people are an order of magnitude more extreme than the others.
    """
    if heavy:
        return _HEAVY_SCALE * stdtrit(3.0, np.clip(uniform, _HEAVY_TAIL, 1.0 - _HEAVY_TAIL))
    return np.cos(np.pi * uniform)


def hidden_nodes(heavy: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Values of h and their weights, for expectations: Gauss–Chebyshev, or Gauss–Legendre that
    crowds in the tails."""
    if not heavy:
        return hidden_from_uniform((np.arange(_NODES) + 0.5) / _NODES), np.full(
            _NODES, 1.0 / _NODES
        )
    w, weight = np.polynomial.legendre.leggauss(_HEAVY_NODES)
    half = 0.5 - _HEAVY_TAIL
    inner = half * 0.5 * np.pi * np.cos(0.5 * np.pi * w) * weight
    uniform = np.concatenate([[0.0], 0.5 + half * np.sin(0.5 * np.pi * w), [1.0]])
    return hidden_from_uniform(uniform, heavy=True), np.concatenate(
        [[_HEAVY_TAIL], inner, [_HEAVY_TAIL]]
    )


def _interacting(
    users: EntityColumns, items: EntityColumns, cell_logit: np.ndarray, cell_stars: np.ndarray
) -> tuple[EntityColumns, EntityColumns, np.ndarray, np.ndarray]:
    """Finer cells of users and items, whose tables add U-shapes of age × price and a match of
    region and quality.

    The middle third of ages takes to the middle third of prices and the others to the ends, on
    average to neither: no main effect shows it. Both effects act on exposure and on ratings, so
    whoever misses them is confounded.
    """
    region = users.frame["region"].replace_strict(_REGIONS, range(3)).to_numpy()
    good = (items.frame["quality"] > 0.5).cast(pl.Int64).to_numpy()
    age, price = _third(users.frame["age"]), _third(items.frame["price"])
    shape = np.array([1.0, -2.0, 1.0]) / 2.0
    bend = np.multiply.outer(shape, shape)[np.arange(36) // 3 % 3][:, np.arange(36) // 2 % 3]
    match = np.where((np.arange(36) % 3 == 0)[:, None] == (np.arange(36) % 2 == 1), 0.5, -0.5)
    coarse = np.ix_(np.arange(36) // 9, np.arange(36) // 6)
    logits = cell_logit[coarse] + 1.0 * bend + 0.8 * match
    stars = cell_stars[coarse] + 0.35 * bend + 0.3 * match
    users = replace(users, cell=9 * users.cell + 3 * age + region)
    return users, replace(items, cell=6 * items.cell + 2 * price + good), logits, stars


def _third(values: pl.Series) -> np.ndarray:
    """0, 1 or 2: the third of its range that a value is in."""
    column = values.to_numpy()
    return np.clip(3 * (column - column.min()) / np.ptp(column), 0, 2).astype(np.int64)


def _users(options: SimulationOptions, heavy: bool) -> EntityColumns:
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
    logit = (
        np.array([-0.3, 0.1, 0.4, -0.1])[segment]
        + np.array([0.1, -0.05, -0.2])[region]
        + 0.6 * activity
    )
    stars = (
        np.array([-0.06, 0.02, 0.1, -0.04])[segment]
        + np.array([0.02, -0.02, 0.04])[region]
        + 0.06 * activity
    )
    hidden = hidden_from_uniform(generator(options.seed, "user traits").random(n), heavy)
    return EntityColumns(frame, segment, logit, stars, 0.1 * age, hidden, np.zeros(n, np.int64))


def _items(options: SimulationOptions, heavy: bool) -> EntityColumns:
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
    hidden = hidden_from_uniform(generator(options.seed, "item traits").random(n), heavy)
    return EntityColumns(frame, genre, logit, stars, price, hidden, np.zeros(n, np.int64))


def _tables(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Segment × genre effects on exposure and on stars, drawn per seed and positively related."""
    rng = generator(seed, "effects")
    taste, habit = rng.uniform(-1, 1, (2, len(_SEGMENTS), len(_GENRES)))
    return 0.35 * taste + 0.25 * habit, 0.25 * taste


def _graded(main_effect: np.ndarray) -> np.ndarray:
    """Level 0..7 in proportion to the local information gain: KL of the entity's exposure rate to
    the average one.

    For rare exposure and rate ratio r, KL is proportional to r log r - r + 1; the top tenth shares
    the last level.
    """
    ratio = np.exp(main_effect) / np.exp(main_effect).mean()
    gain = ratio * np.log(ratio) - ratio + 1.0
    share = np.minimum(1.0, gain / np.quantile(gain, 0.9))
    return np.ceil(share * _LEVELS - 1e-9).astype(np.int64).clip(1) - 1


def _strengths(world: SimulatedWorld, affected_share: float) -> Strengths:
    """Classes 2·level (not affected) and 2·level + 1 (affected); features reveal the level, but
    not who is affected, unless the confounder is recorded for the unaffected."""
    grade = (np.arange(_LEVELS) + 0.5) / (_LEVELS - 0.5) if world.graded else np.ones(1)
    rest = 0.0 if world.recorded else world.rest
    factor = np.tile([rest, 1.0], grade.size)
    return Strengths(
        user=factor * world.user * np.repeat(grade, 2),
        gate=factor,
        pair=factor * world.pair,
        group=np.arange(2) if world.recorded else np.repeat(np.arange(grade.size), 2),
        share=np.ones(2)
        if world.recorded
        else np.tile([1.0 - affected_share, affected_share], grade.size),
        item=world.item * grade,
        genre=factor * world.genre,
        heavy=world.heavy,
    )


def _recorded(
    users: EntityColumns, complete: np.ndarray, options: SimulationOptions, world: SimulatedWorld
) -> EntityColumns:
    """Write the trait of complete users into the column `mood`: for them it is a feature, with the
    same effects."""
    mood = np.where(complete, world.user * users.hidden, 0.0)
    seen = pl.when(pl.Series(complete)).then(pl.Series(users.hidden))
    return replace(
        users,
        frame=users.frame.with_columns(mood=seen),
        logit=users.logit + options.exposure_strength * mood,
        stars=users.stars + options.sign * options.rating_strength * mood,
    )
