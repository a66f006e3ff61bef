"""Logs of another family than the package's simulator, with the truth: what guarantees are tested
on.

    exposure   probit with a floor: p = f + (1 − f) Φ(c + features + activity (user) + popularity (item) + a·h)
    activity   log-normal, popularity too: benign, they drive who sees what and nothing else; in `quality` worlds
               popular items are better and active users like more (recorded by exposure itself:
               nothing is hidden)
    ratings    ordinal: a latent value cut at fixed points, L levels
    latent     features + tastes (low rank, Student's t with 4 degrees of freedom) + sign · b·h + noise
    h          what is hidden; a world says whether it belongs to users and items, to pairs, or to trait × genre

In `misfit` nothing is hidden: recorded features drive exposure and ratings in a form that is not
additive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.special import ndtr

from puidrec.data.dataset import Dataset

N_SEGMENTS, N_GENRES, N_TASTES = 4, 5, 3


@dataclass(frozen=True)
class World:
    """What is hidden, and how strongly it acts."""

    name: str
    hidden: str = "none"
    """`none`, `entity`, `pair`, `taste`, `trait-genre`, `misfit` (recorded, but not additive)."""
    sign: str = "positive"
    """People pick what they like (`positive`), avoid it (`reversed`), or it depends on the user
    (`mixed`)."""
    exposure: float = 0.6
    """a: probit units that one standard deviation of h adds."""
    rating: float = 0.8
    """b: standard deviations of the latent rating."""
    benign: float = 0.5
    """Standard deviation of log activity and log popularity, in probit units."""
    quality: float = 0.0
    """Standard deviations of the latent rating that popularity adds, and half as many that activity
    adds."""


WORLDS = {
    world.name: world
    for world in (
        World("nothing"),
        World("benign-activity", benign=1.0),
        World("entity", "entity"),
        World("pair", "pair"),
        World("trait-genre", "trait-genre"),
        World("reversed", "pair", sign="reversed"),
        World("mixed-sign", "pair", sign="mixed"),
        World("misfit", "misfit", exposure=1.0, rating=1.2),
        World("quality", quality=0.6),
        World("quality-pair", "pair", quality=0.6),
    )
}

TASTE = World("taste", "taste")
"""Low-rank tastes that drive who sees what and what is liked, and that no feature records."""


@dataclass(frozen=True)
class Truth:
    """A simulated population: what would be rated and what is seen, for every pair."""

    world: World
    users: pl.DataFrame
    items: pl.DataFrame
    rating: np.ndarray
    """[users, items], levels 1 … L."""
    propensity: np.ndarray
    """The chance that was used, hidden parts included, [users, items]."""
    nominal: np.ndarray
    """The chance given all but h: exact where nothing is hidden, [users, items]."""
    seen: np.ndarray
    """Boolean, [users, items]."""
    mean: np.ndarray
    """Expected rating as a share of the scale, noise apart, [users, items]."""

    def redrawn(self, rng: np.random.Generator) -> Truth:
        """The same population with another log."""
        return replace(self, seen=rng.random(self.propensity.shape) < self.propensity)

    @property
    def log(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """User, item and rating of the seen pairs."""
        user, item = np.nonzero(self.seen)
        return user, item, self.rating[user, item]

    def uniform(
        self, n: int, rng: np.random.Generator, *, per_user: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pairs drawn at random from those not seen; `per_user`: all rows of a few random users
        instead."""
        unseen = ~self.seen
        if per_user is None:
            pairs = rng.choice(np.flatnonzero(unseen), n, replace=False)
        else:
            chosen = rng.choice(self.seen.shape[0], -(-n // per_user), replace=False)
            drawn = [
                u * self.seen.shape[1] + rng.choice(np.flatnonzero(unseen[u]), per_user, False)
                for u in chosen
            ]
            pairs = np.concatenate(drawn)[:n]
        user, item = np.divmod(pairs, self.seen.shape[1])
        return user, item, self.rating[user, item]

    def dataset(
        self, n_uniform: int, rng: np.random.Generator, *, per_user: int | None = None
    ) -> Dataset:
        """The log, the uniform rows and the side tables, as a user would load them."""
        frames = [
            pl.DataFrame({"user_id": u, "item_id": i, "rating": r.astype(np.float64)})
            for u, i, r in (self.log, self.uniform(n_uniform, rng, per_user=per_user))
        ]
        return Dataset.from_frame(
            frames[0],
            uniform=frames[1] if n_uniform else None,
            users=self.users,
            items=self.items,
            scale=(1.0, float(self.rating.max())),
            unknown_ids="keep",
            name=self.world.name,
        )


def make_world(
    world: str | World,
    seed: int,
    *,
    n_users: int = 500,
    n_items: int = 250,
    density: float = 0.08,
    n_levels: int = 5,
    floor: float = 0.01,
) -> Truth:
    """Draw a population and its log; equal arguments give equal worlds."""
    world = WORLDS[world] if isinstance(world, str) else world
    rng = np.random.default_rng([seed, n_users, n_items, n_levels, *world.name.encode()])
    segment, genre = rng.integers(N_SEGMENTS, size=n_users), rng.integers(N_GENRES, size=n_items)
    age, price = rng.normal(size=n_users), rng.normal(size=n_items)
    cell = rng.normal(0.0, 0.35, (N_SEGMENTS, N_GENRES))
    features = cell[segment][:, genre] + 0.25 * age[:, None] + 0.25 * price
    tastes = rng.standard_t(4, (n_users, N_TASTES)) @ rng.normal(0.0, 0.35, (N_TASTES, n_items))
    hidden = _hidden(world, rng, genre, age, price)
    sign = {"positive": 1.0, "reversed": -1.0}.get(world.sign) or rng.choice(
        [-1.0, 1.0], (n_users, 1)
    )
    activity, popularity = (
        rng.normal(0.0, world.benign, n_users),
        rng.normal(0.0, world.benign, n_items),
    )
    push = 0.5 * features + activity[:, None] + popularity
    start = _intercept(push + world.exposure * hidden, density, floor)
    propensity = _probit(start + push + world.exposure * hidden, floor)
    nominal = propensity
    if world.hidden not in ("none", "misfit"):
        values = world.exposure * np.quantile(hidden, (np.arange(32) + 0.5) / 32)
        nominal = sum(_probit(start + push + value, floor) for value in values) / values.size
    latent = 0.8 * features + tastes + sign * world.rating * hidden
    if world.quality:  # what is popular is good, and the active like more
        latent = latent + world.quality * (popularity + 0.5 * activity[:, None]) / world.benign
    cuts = np.quantile(
        latent + rng.normal(0.0, 0.7, latent.shape), np.arange(1, n_levels) / n_levels
    )
    return Truth(
        world,
        pl.DataFrame({"user_id": np.arange(n_users), "segment": _names("s", segment), "age": age}),
        pl.DataFrame({"item_id": np.arange(n_items), "genre": _names("g", genre), "price": price}),
        1 + np.searchsorted(cuts, latent + rng.normal(0.0, 0.7, latent.shape)),
        propensity,
        nominal,
        rng.random(propensity.shape) < propensity,
        ndtr((latent[..., None] - cuts) / 0.7).mean(axis=-1),
    )


def with_exposure(world: str, **change: float) -> World:
    """A named world with other strengths."""
    return replace(WORLDS[world], **change)  # type: ignore[arg-type]


def _hidden(
    world: World, rng: np.random.Generator, genre: np.ndarray, age: np.ndarray, price: np.ndarray
) -> np.ndarray:
    """h of every pair, mean 0 and standard deviation about 1; `misfit` is a function of recorded
    features."""
    n_users, n_items = age.size, price.size
    trait, quality = (
        rng.standard_t(4, n_users) / np.sqrt(2.0),
        rng.standard_t(4, n_items) / np.sqrt(2.0),
    )
    if world.hidden == "entity":
        return (trait[:, None] + quality) / np.sqrt(2.0)
    if world.hidden == "pair":
        return rng.standard_t(4, (n_users, n_items)) / np.sqrt(2.0)
    if world.hidden == "taste":  # several tastes that nobody recorded: exposure shows them
        return rng.normal(size=(n_users, N_TASTES)) @ rng.normal(
            0.0, N_TASTES**-0.5, (N_TASTES, n_items)
        )
    if world.hidden == "trait-genre":
        return trait[:, None] * rng.choice([-1.0, 1.0], N_GENRES)[genre]
    if world.hidden == "misfit":  # two waves over quantiles of age and price, and their product
        waves = [np.sin(3.0 * np.pi * ndtr(x)) for x in (age, price)]
        return 0.9 * (waves[0][:, None] + waves[1]) + 1.2 * np.multiply.outer(*waves)
    return np.zeros((n_users, n_items))


def _probit(push: np.ndarray, floor: float) -> np.ndarray:
    """f + (1 − f) Φ(push)."""
    return floor + (1.0 - floor) * ndtr(push)


def _intercept(push: np.ndarray, density: float, floor: float) -> float:
    """c such that the mean of f + (1 − f) Φ(c + push) is the density."""
    return float(
        brentq(lambda c: _probit(c + push, floor).mean() - density, -12.0, 12.0, xtol=1e-4)
    )


def _names(letter: str, codes: np.ndarray) -> list[str]:
    return [f"{letter}{code}" for code in codes.tolist()]
