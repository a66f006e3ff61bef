"""Which pairs are exposed: an exact draw of Bernoulli(p_true) for every pair of D, at a cost linear
in the rows drawn.

A pair is exposed when a Poisson variable of rate softplus(z) = -log(1 - sigmoid(z)) is above 0.
Poisson points can be drawn for whole buckets of users × items at the bucket's largest rate and
thinned to each pair's own rate, so unexposed pairs cost nothing; points that fall on the same pair
are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from puidrec.data.simulator.truth import PROBIT_SCALE, Truth
from puidrec.rng import generator

_LEVEL = 0.25
"""Width of a bucket on the logit scale: wider buckets are fewer, but more of the drawn points are
rejected."""
_ROWS_PER_BLOCK = 250_000


@dataclass(frozen=True)
class Buckets:
    """Entities grouped so that those of one bucket share a key and lie within one level of the
    logit."""

    members: np.ndarray
    start: np.ndarray
    count: np.ndarray
    top: np.ndarray
    """Largest logit in the bucket."""

    @property
    def first(self) -> np.ndarray:
        """One member of each bucket, to read what all its members share."""
        member: np.ndarray = self.members[self.start]
        return member

    def pick(self, bucket: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """A member of each given bucket, by a uniform draw."""
        count = self.count[bucket]
        offset = np.minimum((uniform * count).astype(np.int64), count - 1)
        member: np.ndarray = self.members[self.start[bucket] + offset]
        return member


def make_buckets(members: np.ndarray, key: np.ndarray, logit: np.ndarray) -> Buckets:
    """Group entities by key (what must be equal) and by level of their logit."""
    level = np.floor((logit - logit.min()) / _LEVEL).astype(np.int64)
    code = key.astype(np.int64) * (int(level.max()) + 1) + level
    order = np.argsort(code, kind="stable")
    start = np.flatnonzero(np.diff(code[order], prepend=-1))
    count = np.diff(start, append=order.size)
    return Buckets(members[order], start, count, np.maximum.reduceat(logit[order], start))


class ExposureSampler:
    """Draws the log of a world block by block of users; a block's draw depends on the seed and the
    block only."""

    def __init__(self, truth: Truth) -> None:
        sides, strength = truth.population, truth.options.exposure_strength
        self._truth = truth
        c = sides.users.strength_class
        self._user_logit = (
            sides.users.logit + strength * sides.strengths.user[c] * sides.users.hidden
        )
        self._amplitude = strength * sides.strengths.pair[c]
        self._gate = sides.strengths.gate[c]
        self._gates = np.unique(self._gate)
        self._item_logit = {g: self._gated_logit(float(g)) for g in self._gates}
        tastes = sides.users.genre_hidden
        self._tastes = (
            None if tastes is None else strength * sides.strengths.genre[c][:, None] * tastes
        )
        genres = [None] if tastes is None else list(range(tastes.shape[1]))
        self._items = {
            (g, genre): self._bucketed(g, genre) for g in self._gates for genre in genres
        }

    @property
    def block_users(self) -> int:
        """Users per block: a fixed function of the options, so that chunking cannot change the
        data."""
        options = self._truth.options
        return int(
            np.clip(_ROWS_PER_BLOCK / (options.n_items * options.density), 1, options.n_users)
        )

    @property
    def n_blocks(self) -> int:
        """Blocks that cover all users."""
        return -(-self._truth.options.n_users // self.block_users)

    def block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Exposed pairs of one block of users, as (users, items) sorted by user, then item."""
        options = self._truth.options
        rng = generator(options.seed, "exposure", number)
        low = number * self.block_users
        users = np.arange(low, min(low + self.block_users, options.n_users))
        keys = [
            self._keys(users[self._gate[users] == g], g, genre, rng) for g, genre in self._items
        ]
        key = np.sort(np.concatenate(keys))
        key = key[np.diff(key, prepend=-1) > 0]
        user, item = np.divmod(key, options.n_items)
        return user.astype(np.int32), item.astype(np.int32)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All blocks in order of users."""
        return (self.block(number) for number in range(self.n_blocks))

    def _gated_logit(self, gate: float) -> np.ndarray:
        """Items' part of the logit for users on whom item traits act with factor `gate`; has the
        intercept."""
        items, strengths = self._truth.population.items, self._truth.population.strengths
        trait = gate * strengths.item[items.strength_class] * items.hidden
        logit: np.ndarray = items.logit + self._truth.options.exposure_strength * trait
        return logit + self._truth.intercept

    def _bucketed(self, gate: float, genre: int | None) -> Buckets | None:
        """Items by level of their logit: all of them, or those of one genre, where users have
        tastes for genres."""
        cell = self._truth.population.items.cell
        members = np.arange(cell.size) if genre is None else np.flatnonzero(cell == genre)
        return (
            make_buckets(members, cell[members], self._item_logit[gate][members])
            if members.size
            else None
        )

    def _keys(
        self, users: np.ndarray, gate: np.float64, genre: int | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Kept Poisson points of users of one gate, as user · n_items + item; a pair may come up
        more than once."""
        columns = self._items[gate, genre]
        if not users.size or columns is None:
            return np.zeros(0, np.int64)
        sides, probit = self._truth.population, self._truth.world.probit
        own = (
            self._user_logit if self._tastes is None else self._user_logit + self._tastes[:, genre]
        )
        shared = sides.users.strength_class[users] * len(sides.cell_logit) + sides.users.cell[users]
        rows = make_buckets(users, shared, own[users])
        cell = sides.cell_logit[
            np.ix_(sides.users.cell[rows.first], sides.items.cell[columns.first])
        ]
        ceiling = _rate(
            np.add.outer(rows.top + self._amplitude[rows.first], columns.top) + cell, probit
        )
        points = rng.poisson(ceiling * np.multiply.outer(rows.count, columns.count)).ravel()
        bucket = np.repeat(np.arange(points.size), points)
        row, column = np.divmod(np.arange(points.size), columns.count.size)
        user = rows.pick(np.repeat(row, points), rng.random(bucket.size))
        item = columns.pick(np.repeat(column, points), rng.random(bucket.size))
        z = own[user] + self._item_logit[gate][item] + np.repeat(cell.ravel(), points)
        if self._amplitude.any():
            z += self._amplitude[user] * self._truth.pair_hidden(user, item)
        kept = rng.random(bucket.size) * np.repeat(ceiling.ravel(), points) < _rate(z, probit)
        key: np.ndarray = user[kept] * np.int64(self._truth.options.n_items) + item[kept]
        return key


def _rate(z: np.ndarray, probit: bool) -> np.ndarray:
    """−log(1 − p), the Poisson rate with P(at least one) = p; for a logit softplus(z), z is at most
    about 20 here."""
    rate: np.ndarray = -log_ndtr(-PROBIT_SCALE * z) if probit else np.log1p(np.exp(z))
    return rate
