"""The truth about any pairs: nominal and true propensity, φ(h), Γ, the rating each pair has or
would have.

true propensity  p_true = sigmoid(m(x) + exposure_strength · t)      t: hidden, see `population`
nominal          p      = E[p_true | x]: what the features alone say
φ(h) = logit p_true - logit p,  Γ = exp|φ|: the paper's odds-ratio inequality holds with equality
rating           1 + Binomial(4, (y - 1) / 4),  y = base + f(x) + sign · rating_strength · t,
                 so E[r | x] = base + f(x)

In ordinal worlds a rating counts the uneven cut points below y + logistic noise. Where all is
recorded, the form of
exposure may be a probit: then p = p_true = Φ(0.6 m(x)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr

from puidrec.data.schema import check_choice
from puidrec.data.simulator.population import (
    BASE_RATING,
    SimulatedPopulation,
    SimulatedWorld,
    SimulationOptions,
    Strengths,
    get_world,
    hidden_from_uniform,
    hidden_nodes,
    make_population,
)
from puidrec.errors import InputError
from puidrec.rng import GOLDEN, derive_seed, generator, mix64

_GRID = np.linspace(-30.0, 16.0, 46 * 16 + 1)
PROBIT_SCALE = 0.6
CUTS = np.array([1.9, 2.5, 3.0, 3.9])
"""Where the rating rises by one star, on the scale of the latent rating: uneven, few people use two
stars."""
CUT_NOISE = 0.45
MAX_DENSE_PAIRS = 25_000_000
_TILE_PAIRS = 1_000_000
Quantity = Literal[
    "propensity",
    "true_propensity",
    "phi",
    "gamma",
    "rating",
    "expected_rating",
    "utility",
]


@dataclass(frozen=True)
class Truth:
    """Answers for vectors of user and item codes, which are the ids of a simulated data set."""

    options: SimulationOptions
    population: SimulatedPopulation
    intercept: float
    """Solved so that the nominal propensities average to the density."""
    nominal: HiddenMean

    @classmethod
    def from_options(cls, options: SimulationOptions, intercept: float | None = None) -> Truth:
        """Build the truth of a simulation; `intercept` skips solving for it."""
        population = make_population(options)
        table = HiddenMean(population.strengths, options.exposure_strength, expit, logit)
        truth = cls(options, population, intercept or 0.0, table)
        return truth if intercept is not None else replace(truth, intercept=_solve_intercept(truth))

    def propensity(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Nominal p(x): the probability of exposure given the features."""
        return exposed(self._nominal_logit(*self._checked(users, items)))

    def true_propensity(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """p_true: the probability of exposure given the features and what is hidden."""
        users, items = self._checked(users, items)
        return exposed(self._index(users, items) + self._shift(users, items), self.world.probit)

    def phi(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """φ(h) = logit p_true - logit p."""
        users, items = self._checked(users, items)
        if self.world.probit:  # nothing is hidden there
            return np.zeros(users.shape)
        return (
            self._index(users, items)
            + self._shift(users, items)
            - self._nominal_logit(users, items)
        )

    def gamma(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Γ = exp|φ(h)|, the smallest that is valid for the pair."""
        return np.exp(np.abs(self.phi(users, items)))

    def expected_rating(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """E[r | x] over all of D: what a features-only model should predict."""
        users, items = self._checked(users, items)
        latent = self._latent(users, items)
        if not self.world.ordinal:
            return latent
        return self._mean_rating.mean(latent, *self._classes(users, items))

    def utility(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """E[r | x, h]: the mean rating given what is hidden, too."""
        users, items = self._checked(users, items)
        taste = self._taste(users, items)
        return mean_by_cuts(taste) if self.world.ordinal else taste

    def rating(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The realised rating, 1 to 5 (uint8), of each pair, observed or not."""
        users, items = self._checked(users, items)
        u, taste = (
            pair_uniform(stream_key(self.options.seed, "rating"), users, items),
            self._taste(users, items),
        )
        if self.world.ordinal:
            return level_by_cuts(taste, u)
        q = (taste - 1.0) / 4.0
        s, low, high = 1.0 - q, (1.0 - q) ** 3, q**3
        cdf = s * low, (s + 4.0 * q) * low, 1.0 - (q + 4.0 * s) * high, 1.0 - q * high
        level = np.ones(u.shape, np.uint8)
        for below in cdf:  # of Binomial(4, q)
            level += u > below
        return level

    def matrix(self, quantity: Quantity) -> np.ndarray:
        """A quantity for all of D, [users, items]; refused where that would be large."""
        n_users, n_items = self.options.n_users, self.options.n_items
        check_choice("quantity", quantity, get_args(Quantity))
        if self.options.n_pairs > MAX_DENSE_PAIRS:
            raise InputError(
                "too many pairs for a dense matrix",
                found=f"{n_users:,} x {n_items:,}",
                hint="Ask for the pairs you need instead.",
            )
        ask, items = getattr(self, quantity), np.arange(n_items)
        return np.stack([ask(np.full(n_items, user), items) for user in range(n_users)])

    def hidden_effect(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The hidden effect t_ui; 0 where the confounder is recorded."""
        sides, strengths = self.population, self.population.strengths
        c, own = sides.users.strength_class[users], sides.items.strength_class[items]
        t: np.ndarray = strengths.user[c] * sides.users.hidden[users]
        t += strengths.gate[c] * strengths.item[own] * sides.items.hidden[items]
        if sides.users.genre_hidden is not None:
            t += strengths.genre[c] * sides.users.genre_hidden[users, sides.items.cell[items]]
        if strengths.pair.any():
            t += strengths.pair[c] * self.pair_hidden(users, items)
        return t

    @property
    def world(self) -> SimulatedWorld:
        """The world it is the truth of."""
        return get_world(self.options.world)

    @property
    def gain(self) -> float:
        """Stars per unit of the hidden effect, without the users' own signs."""
        return (
            self.options.sign * self.world.sign * self.world.rating * self.options.rating_strength
        )

    def _taste(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """y: the latent rating, with what is hidden."""
        own = self.population.users.sign
        hidden = self.gain * self.hidden_effect(users, items)
        return self._latent(users, items) + (hidden if own is None else own[users] * hidden)

    @cached_property
    def _mean_rating(self) -> HiddenMean:
        """E[r | x] of ordinal ratings, by the latent rating that the features give."""
        return HiddenMean(self.population.strengths, self.gain, mean_by_cuts, lambda mean: mean)

    def _classes(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The visible class of each user, and that of each item."""
        sides = self.population
        group = sides.strengths.group[sides.users.strength_class[users]]
        return group, sides.items.strength_class[items]

    def pair_hidden(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """h_ui, the confounder that varies by pair."""
        return hidden_from_uniform(
            pair_uniform(stream_key(self.options.seed, "hidden"), users, items)
        )

    def _shift(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return self.options.exposure_strength * self.hidden_effect(users, items)

    def _index(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """m(x): what the features do to the exposure logit."""
        u, i = self.population.users, self.population.items
        m: np.ndarray = (
            u.logit[users]
            + i.logit[items]
            + self.population.cell_logit[u.cell[users], i.cell[items]]
        )
        return m + self.intercept

    def _latent(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        u, i = self.population.users, self.population.items
        f: np.ndarray = u.stars[users] + i.stars[items] + u.slope[users] * i.slope[items]
        f += self.population.cell_stars[u.cell[users], i.cell[items]]
        return BASE_RATING + f

    def _nominal_logit(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return self.nominal_at(self._index(users, items), *self._classes(users, items))

    def nominal_at(
        self, m: np.ndarray, user_group: np.ndarray, item_class: np.ndarray
    ) -> np.ndarray:
        """logit p(x) for exposure indices m of pairs of these classes."""
        if self.world.probit:
            return logit(exposed(m, probit=True))
        return self.nominal.mean(m, user_group, item_class)

    def _checked(self, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = np.asarray(users), np.asarray(items)
        if pairs[0].shape != pairs[1].shape:
            found = f"{pairs[0].shape} and {pairs[1].shape}"
            raise InputError("users and items must pair up", found=found)
        sizes = {"user": self.options.n_users, "item": self.options.n_items}
        for codes, (name, size) in zip(pairs, sizes.items(), strict=True):
            if codes.size and (codes.min() < 0 or codes.max() >= size):
                raise InputError(f"unknown {name}", expected=f"codes 0 to {size - 1}")
        return pairs


def exposed(m: np.ndarray, probit: bool = False) -> np.ndarray:
    """The probability of exposure of an index; a probit is scaled so that indices act about as in a
    logit."""
    return ndtr(PROBIT_SCALE * m) if probit else expit(m)


def mean_by_cuts(taste: np.ndarray) -> np.ndarray:
    """The mean of a rating that counts the cut points below taste + logistic noise."""
    return 1.0 + expit(np.subtract.outer(taste, CUTS) / CUT_NOISE).sum(axis=-1)


def level_by_cuts(taste: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The realised rating, 1 to 5 (uint8), by a uniform draw."""
    noisy = taste + CUT_NOISE * logit(uniform)
    return (1 + (np.subtract.outer(noisy, CUTS) > 0.0).sum(axis=-1)).astype(np.uint8)


def _solve_intercept(truth: Truth) -> float:
    """The intercept for which the mean nominal propensity over D (or over a million pairs of it) is
    the density."""
    options = truth.options
    if options.n_pairs <= _TILE_PAIRS:
        users, items = np.divmod(np.arange(options.n_pairs), options.n_items)
    else:
        rng = generator(options.seed, "intercept")
        users = rng.integers(0, options.n_users, _TILE_PAIRS)
        items = rng.integers(0, options.n_items, _TILE_PAIRS)
    m = truth._index(users, items)
    classes = truth._classes(users, items)

    def excess(intercept: float) -> float:
        return float(expit(truth.nominal_at(m + intercept, *classes)).mean()) - options.density

    centre = float(logit(options.density) - np.average(m))
    return float(brentq(excess, centre - 8.0, centre + 8.0, xtol=1e-10))


def pair_uniform(key: int, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Uniform draws in (0, 1), one per pair: each user owns a splitmix64 sequence, the item is its
    counter.

    The draw of a pair is a hash of (key, user, item), so the truth can be asked for any pairs, in
    any order and any chunk, and nothing of the size of D is ever stored.
    """
    state = users.astype(np.uint64) * GOLDEN
    state += np.uint64(key)
    state = mix64(state)
    state += (items.astype(np.uint64) + np.uint64(1)) * GOLDEN
    draw = (mix64(state) >> np.uint64(11)).astype(np.float64)
    draw += 0.5
    draw *= 2.0**-53
    return draw


def stream_key(seed: int, stream: str) -> int:
    """The 63-bit key of a named stream of pair draws."""
    return derive_seed(seed, "pair", stream)


def average_over_hidden(
    of: Callable[[np.ndarray], np.ndarray],
    m: np.ndarray,
    amplitudes: tuple[float, ...],
    *,
    heavy: bool = False,
) -> np.ndarray:
    """E[of(m + Σ_k a_k h_k)] over independent h_k, for a vector m."""
    nodes, weights = hidden_nodes(heavy)
    shift, weight = np.zeros(1), np.ones(1)
    for amplitude in amplitudes:
        if amplitude:
            shift = np.add.outer(shift, amplitude * nodes).ravel()
            weight = np.multiply.outer(weight, weights).ravel()
    total = np.zeros_like(m)
    parts = max(1, shift.size // 500)
    for part, share in zip(
        np.array_split(shift, parts), np.array_split(weight, parts), strict=True
    ):
        total += of(np.add.outer(m, part)) @ share
    return total


@lru_cache(maxsize=512)
def _mean_on_grid(
    of: Callable[[np.ndarray], np.ndarray], amplitudes: tuple[float, ...], heavy: bool
) -> np.ndarray:
    """`average_over_hidden` on the grid of splines; kept, for it is most of the work of a world
    simulated again."""
    mean = average_over_hidden(of, _GRID, amplitudes, heavy=heavy)
    mean.flags.writeable = False
    return mean


class HiddenMean:
    """The mean over what is hidden of a function of m(x) + hidden, by visible class of the user and
    class of the item.

    With expit it is the nominal propensity p(x), with the mean of an ordinal rating E[r | x]. The
    bounded h are cosines of uniform angles, so expectations over them are Gauss–Chebyshev sums,
    exact to about 1e-8. The mean depends on a pair only through m(x) and its visible class: one
    spline per class, of `form` of the mean.
    """

    def __init__(
        self,
        strengths: Strengths,
        strength: float,
        of: Callable[[np.ndarray], np.ndarray],
        form: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        n_items = strengths.item.size
        shift = np.empty((_GRID.size, strengths.n_groups * n_items))
        for group in range(strengths.n_groups):
            for item in range(n_items):
                mean = np.zeros_like(_GRID)
                for c in np.flatnonzero((strengths.group == group) & (strengths.share > 0)):
                    parts = (
                        strengths.user[c],
                        strengths.gate[c] * strengths.item[item],
                        strengths.genre[c],
                        strengths.pair[c],
                    )
                    scaled = tuple(float(strength * a) for a in parts)
                    mean += strengths.share[c] * _mean_on_grid(of, scaled, strengths.heavy)
                shift[:, group * n_items + item] = form(mean) - _GRID
        self._coefficients = CubicSpline(_GRID, shift).c
        self._n_items = n_items

    def mean(self, m: np.ndarray, user_group: np.ndarray, item_class: np.ndarray) -> np.ndarray:
        """`form` of the mean for pairs with the index m."""
        position = (m - _GRID[0]) * 16.0
        cell = np.clip(position.astype(np.int64), 0, _GRID.size - 2)
        column = user_group.astype(np.int64) * self._n_items + item_class
        x = (position - cell) / 16.0
        c3, c2, c1, c0 = (table[cell, column] for table in self._coefficients)
        return m + ((c3 * x + c2) * x + c1) * x + c0
