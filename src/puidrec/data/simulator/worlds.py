"""Named worlds and the options of a simulation.

One hidden pull t_ui in [-1, 1] drives both sides: `exposure_strength` · t is added to the exposure logit, and
`sign` · `rating_strength` · t stars to the rating. With independent h of mean 0 on [-1, 1],

    t_ui = s_u · (user · h_u + item · h_i + pair · h_ui),

where s_u is 1 for the affected share of the users and `rest` for the others. A world is a row of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from puidrec.errors import InputError

MAX_EXPOSURE_STRENGTH = 4.0
MAX_RATING_STRENGTH = 1.0
"""Stars; beyond it a rating's mean would leave the scale."""
DENSITY_RANGE = (1e-6, 0.9)


@dataclass(frozen=True)
class World:
    """Who carries the hidden confounder. The weights sum to at most 1, so that |t| does not exceed 1."""

    name: str
    description: str
    user: float = 0.0
    item: float = 0.0
    pair: float = 0.0
    affected_share: float = 1.0
    rest: float = 0.0
    """The factor s_u of users who are not affected."""
    recorded: bool = False
    """The confounder of unaffected users is a feature column: it acts on them too, but is not hidden."""
    graded: bool = False
    """`user` and `item` weights grow in proportion to the information gain of the entity's own features."""


_ROWS = (
    World("entity", "hidden traits of users and of items", user=0.5, item=0.5),
    World("pair", "varies by pair; strong for half of the users", pair=1.0, affected_share=0.5, rest=0.3),
    World("mixed", "traits of users and items, and a part that varies by pair", user=0.35, item=0.25, pair=0.4),
    World("half-complete", "recorded for half of the users only", user=1.0, affected_share=0.5, recorded=True),
    World("proportional", "as strong as the features' own information gain", user=0.5, item=0.5, graded=True),
    World("no-confounding", "nothing hidden"),
)
WORLDS = {world.name: world for world in _ROWS}
"""The named worlds. Except in `half-complete`, features do not tell who is affected."""


def get_world(world: str | World) -> World:
    """Look a world up by name."""
    if isinstance(world, World):
        return world
    if world not in WORLDS:
        raise InputError("unknown world", found=world, expected=f"one of {', '.join(WORLDS)}")
    return WORLDS[world]


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
        _require(self.n_users >= 2, "number of users", self.n_users, "at least 2")
        _require(self.n_items >= 2, "number of items", self.n_items, "at least 2")
        _require(max(self.n_users, self.n_items) < 2**31, "number of users or items", self.n_users, "below 2^31")
        low, high = DENSITY_RANGE
        _require(low <= self.density <= high, "density", self.density, f"{low:g} to {high:g}")
        _require(0 <= self.n_uniform <= self.n_pairs, "uniform sample size", self.n_uniform, f"0 to {self.n_pairs}")
        strength, stars = self.exposure_strength, self.rating_strength
        _require(
            0 <= strength <= MAX_EXPOSURE_STRENGTH, "exposure strength", strength, f"0 to {MAX_EXPOSURE_STRENGTH:g}"
        )
        _require(0 <= stars <= MAX_RATING_STRENGTH, "rating strength", stars, f"0 to {MAX_RATING_STRENGTH:g} stars")
        _require(self.sign in (1, -1), "sign", self.sign, "1 or -1")
        _require(0 <= self.affected_share <= 1, "affected share", self.affected_share, "0 to 1")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")

    @property
    def n_pairs(self) -> int:
        """The size of D."""
        return self.n_users * self.n_items

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for a data set's notes."""
        return asdict(self)


def require_numbers(whole: Mapping[str, object], real: Mapping[str, object]) -> None:
    """Refuse options that are no numbers, before anything is computed from them; None stands for a default."""
    for numbers, kinds, words in (
        (whole, int | np.integer, "a whole number"),
        (real, int | float | np.number, "a number"),
    ):
        for name, found in numbers.items():
            if found is not None and (isinstance(found, bool) or not isinstance(found, kinds)):
                raise InputError(f"option {name} is not {words}", found=found, expected=words)


def _require(holds: bool | np.bool_, what: str, found: object, expected: str) -> None:
    if not holds:
        raise InputError(f"{what} out of range", found=found, expected=expected)
