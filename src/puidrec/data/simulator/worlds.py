"""The named worlds, and all that a simulation depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from puidrec.errors import InputError


@dataclass(frozen=True)
class SimulatedWorld:
    """Who carries the hidden confounder. The weights sum to at most 1, so that |t| does not exceed
    1."""

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
    if name not in WORLDS:
        raise InputError("unknown world", found=name, expected=f"one of {', '.join(WORLDS)}")
    return WORLDS[name]


RANGES: dict[str, tuple[str, type, float, float]] = {
    "n_users": ("number of users", int, 2, 2**31 - 1),
    "n_items": ("number of items", int, 2, 2**31 - 1),
    "n_rows": ("number of rows", int, 1, math.inf),
    "n_uniform": ("uniform sample size", int, 0, math.inf),
    "density": ("density", float, 1e-6, 0.9),
    "exposure_strength": ("exposure strength", float, 0, 4),
    "rating_strength": ("rating strength (stars)", float, 0, 1),
    "sign": ("sign", int, -1, 1),
    "affected_share": ("affected share", float, 0, 1),
    "seed": ("seed", int, 0, math.inf),
}
"""Each number of a simulation: in words, its type, the lowest and the highest value. Beyond one
star a mean rating would leave the scale."""


def check_numbers(options: Mapping[str, object]) -> None:
    """Refuse options that are no numbers or out of range, before anything is computed from them;
    None stands for a default."""
    for name, (words, kind, low, high) in RANGES.items():
        found: Any = options.get(name)
        if found is None:
            continue
        kinds, expected = (
            (int | np.integer, "a whole number")
            if kind is int
            else (int | float | np.number, "a number")
        )
        if isinstance(found, bool) or not isinstance(found, kinds):
            raise InputError(f"option {name} is not {expected}", found=found, expected=expected)
        if not low <= found <= high or (name == "sign" and not found):
            expected = "1 or -1" if name == "sign" else f"{low:g} to {high:g}"
            raise InputError(f"{words} out of range", found=found, expected=expected)


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
            raise InputError(
                "uniform sample size out of range", found=self.n_uniform, expected=expected
            )

    @property
    def n_pairs(self) -> int:
        """The size of D."""
        return self.n_users * self.n_items

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for a data set's notes."""
        return asdict(self)
