"""Ranking by slots: what a list of K recommendations is worth, from logged rows that it holds.

A list is worth Σ_k discount_k · P(liked | slot k). A held-out logged row that a model puts into its
list says whether that slot is liked; it stands for h + k·l pairs of lists, with k = 1/p − 1, h the
share of the log that was held out, and l in [1/Γ, Γ] if something hidden has strength Γ. With g the
discount of its slot, the value is a ratio,

    size of the list · Σ g (h + k l) liked / Σ g (h + k l),

so it lies in [0, Σ discounts] for any weights. Labels are 0 or 1, so the linear-fractional program
over l is solved by sorting the rows into two groups: liked ones at one end of [1/Γ, Γ], the others
at the other end.

Two models differ only where they *exchange* discounts: g = discount by the one − discount by the
other. Over a list what one gains is what it loses, and how much that is the lists alone tell,
without a rating. So the lead is

    exchanged · (share liked where the model ranks higher − share liked where the other does),

two ratios over different rows: their extremes are found apart, and exactly. A slot that no logged
row has been in is *unsupported*: its share is taken as anything from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puidrec.auditing.estimates import Curve, End, Estimate
from puidrec.evaluation.metrics import discounts
from puidrec.evaluation.unseen_items import Seen, best_unseen
from puidrec.rng import Rng, generator

Scorer = Callable[[np.ndarray], np.ndarray]
"""Scores of all items for some users (codes): [users, items]."""
TILE = 2_000_000
"""Pairs scored at a time."""
MAX_PAIRS = 10_000_000
"""Pairs ranked in all; users are sampled where all of them would be more."""


def sample_users(user: np.ndarray, n_items: int, rng: Rng, most: int = MAX_PAIRS) -> np.ndarray:
    """The users of the rows; where ranking all items for all of them is too much, as many as are
    not."""
    present = np.flatnonzero(np.bincount(user))
    wanted = max(1, most // n_items)
    if present.size <= wanted:
        return present
    return np.sort(generator(rng, "ranks").choice(present, wanted, replace=False))


def top_lists(users: np.ndarray, scorer: Scorer, k: int, seen: Seen | None) -> np.ndarray:
    """The k best items of each user but those seen, best first, [users, k]; −1 where there are
    fewer."""
    n_items = scorer(users[:1]).shape[1] if users.size else 0

    def scores(block: np.ndarray) -> np.ndarray:
        return np.array(scorer(block), np.float64)  # in memory of its own: it is masked

    lists = best_unseen(scores, users, n_items, [] if seen is None else [seen], k, TILE)
    return np.pad(lists, ((0, 0), (0, k - lists.shape[1])), constant_values=-1).astype(np.int32)


@dataclass(frozen=True)
class Slots:
    """Where logged rows stand in the lists of two models, and where all pairs of these lists do;
    rank K: in no list."""

    row: np.ndarray
    """Positions of the rows, among those asked about, that are in a list."""
    rank: np.ndarray
    """Rank of each by the model, from 0."""
    against: np.ndarray
    """The same by the other; K everywhere where there is none."""
    pairs: np.ndarray
    """Pairs of a list by both ranks, on average over lists, [K + 1, K + 1]."""
    n_lists: int

    @property
    def k(self) -> int:
        """Where lists are cut."""
        return int(self.pairs.shape[0]) - 1

    def exchanged(self, discount: np.ndarray, n: int) -> np.ndarray:
        """Discount by the one − discount by the other, of each of the n rows asked about."""
        found = np.zeros(n)
        found[self.row] = discount[self.rank] - discount[self.against]
        return found

    def alone(self, which: int) -> Slots:
        """The slots of one model, as if there were no other."""
        rank, k = (self.rank, self.against)[which], self.k
        kept = np.flatnonzero(rank < k)
        pairs = np.zeros_like(self.pairs)
        pairs[:, k] = self.pairs.sum(axis=1 - which)
        return Slots(self.row[kept], rank[kept], np.full(kept.size, k), pairs, self.n_lists)


def slots_of(
    users: np.ndarray,
    own: np.ndarray,
    other: np.ndarray | None,
    row_user: np.ndarray,
    row_item: np.ndarray,
) -> Slots:
    """Look the rows up in the lists of `users` (ascending codes) by one or two models."""
    other = np.full_like(own, -1) if other is None else other
    k = own.shape[1]
    at = np.minimum(np.searchsorted(users, row_user), users.size - 1)
    row = np.flatnonzero(users[at] == row_user)
    ranks = [_rank(one, at[row], row_item[row]) for one in (own, other)]
    kept = np.minimum(*ranks) < k
    _, _, first, second = exchanged_pairs(own, other)
    pairs = np.bincount(first * (k + 1) + second, minlength=(k + 1) ** 2).reshape(k + 1, k + 1)
    return Slots(row[kept], ranks[0][kept], ranks[1][kept], pairs / max(users.size, 1), users.size)


def exchanged_pairs(
    own: np.ndarray, other: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of the lists [users, K] of two models: place of the user, item, and rank by each
    model (K: not in its list)."""
    n, k = own.shape
    everyone, place = np.repeat(np.arange(n), k), np.tile(np.arange(k), n)
    first, second = own.ravel() >= 0, other.ravel() >= 0
    second &= _rank(own, everyone, other.ravel()) == k  # in both lists: counted with the first
    user = np.concatenate([everyone[first], everyone[second]])
    item = np.concatenate([own.ravel()[first], other.ravel()[second]])
    rank = np.concatenate([place[first], np.full(int(second.sum()), k)])
    against = np.concatenate([_rank(other, everyone, own.ravel())[first], place[second]])
    return user, item, rank, against


def rated_lists(
    user: np.ndarray, item: np.ndarray, scores: tuple[np.ndarray, ...], k: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The users of some rated pairs, and the k best of each one's rated items by each model, as
    `top_lists` has them: where only rated pairs have scores."""
    users, place = np.unique(user, return_inverse=True)
    found = []
    for score in scores:
        order = np.lexsort((-score, place))
        own = place[order]
        rank = np.arange(own.size) - np.searchsorted(own, own)
        lists = np.full((users.size, k), -1, np.int32)
        lists[own[rank < k], rank[rank < k]] = item[order][rank < k]
        found.append(lists)
    return users, found


def joined(parts: list[tuple[np.ndarray, Slots]]) -> Slots:
    """Slots of several parts of the rows, each in lists of its own; with the positions of each
    part's rows."""
    total = sum(part.n_lists for _, part in parts)
    pairs = sum((part.pairs * part.n_lists for _, part in parts), np.zeros_like(parts[0][1].pairs))
    return Slots(
        np.concatenate([rows[part.row] for rows, part in parts]),
        np.concatenate([part.rank for _, part in parts]),
        np.concatenate([part.against for _, part in parts]),
        pairs / max(total, 1),
        total,
    )


def _rank(lists: np.ndarray, at: np.ndarray, item: np.ndarray) -> np.ndarray:
    """The place of each item in the list `at` it; K where it is not in it."""
    rank = np.full(at.size, lists.shape[1])
    for place in range(lists.shape[1]):
        rank[lists[at, place] == item] = place
    rank[item < 0] = lists.shape[1]
    return rank


def slot_discounts(metric: str, k: int) -> np.ndarray:
    """What a liked item earns by its rank, 0 below the list: `dcg` 1/log2(rank + 2), `precision`
    1/K; [K + 1]."""
    earned = np.diff(discounts(k)) if metric == "dcg" else np.full(k, 1.0 / k)
    return np.append(earned, 0.0)


@dataclass(frozen=True)
class Side:
    """The slots in which one model earns more: sums of their logged rows by user, and what they
    exchange."""

    sums: np.ndarray
    """Σ g h and Σ g k of liked rows, then of the others, by user, [users, 4]."""
    mass: float
    """Discount exchanged in supported slots, per list."""
    unsupported: float
    """Discount exchanged in slots that no logged row has been in."""
    rows: int
    slots: int
    """Slots without a logged row."""

    @cached_property
    def total(self) -> np.ndarray:
        """Sums over users."""
        total: np.ndarray = self.sums.sum(axis=0)
        return total

    def parts(self, sums: np.ndarray, gamma: float, end: End) -> tuple[np.ndarray, np.ndarray]:
        """Σ w liked and Σ w of sums [..., 4] at an end of the range."""
        up, down = (gamma, 1.0 / gamma) if end == "high" else (1.0 / gamma, gamma)
        liked = sums[..., 0] + up * sums[..., 1]
        return liked, liked + sums[..., 2] + down * sums[..., 3]

    def share(
        self, gamma: float = 1.0, end: End = "low", sums: np.ndarray | None = None
    ) -> np.ndarray:
        """The lowest or highest share liked in supported slots under Γ."""
        liked, whole = self.parts(self.total if sums is None else sums, gamma, end)
        found: np.ndarray = np.divide(liked, whole, out=np.full_like(whole, 0.5), where=whole > 0.0)
        return found

    def estimate(self, gamma: float, end: End) -> Estimate:
        """That share times what is exchanged, as an estimate over users.

        Ten rows that are all liked have no spread, and yet are only ten: the variance is at least
        that of a share in so many independent rows, with one liked and one other row added.
        """
        share = float(self.share(gamma, end))
        liked, whole = self.parts(self.sums, gamma, end)
        mass = float(whole.sum())
        if mass <= 0.0:
            return Estimate(self.mass * share, np.zeros(whole.size), 0.0, np.inf)
        influence = self.mass * (liked - share * whole) / mass
        units = mass**2 / float(whole @ whole)
        near = (share * units + 1.0) / (units + 2.0)
        least = self.mass**2 * near * (1.0 - near) / units
        return Estimate(
            self.mass * share, influence, max(least - float(influence @ influence), 0.0), units
        )


@dataclass(frozen=True)
class SlotLead:
    """The value of lists (one model), or the lead of one over another, and its range under Γ."""

    gain: Side
    loss: Side

    @classmethod
    def of(
        cls,
        slots: Slots,
        discount: np.ndarray,
        label: np.ndarray,
        weights: tuple[np.ndarray, np.ndarray],
        user: np.ndarray,
        n_users: int,
    ) -> SlotLead:
        """From rows in lists: label, (h, k), and user of each row of `slots.row`."""
        table = discount[:, None] - discount[None, :]
        gap = table[slots.rank, slots.against]
        sides = []
        for sign, rank, axis in ((1.0, slots.rank, 1), (-1.0, slots.against, 0)):
            earned = np.maximum(sign * gap, 0.0)
            mine = np.flatnonzero(earned > 0.0)
            mass = (np.maximum(sign * table, 0.0) * slots.pairs).sum(axis=axis)
            known = np.bincount(rank[mine], minlength=mass.size) > 0
            sums = np.zeros((n_users, 4))
            for column, own in enumerate((label[mine] > 0, label[mine] <= 0)):
                for which, weight in enumerate(weights):
                    value = earned[mine] * weight[mine] * own
                    sums[:, 2 * column + which] = np.bincount(user[mine], value, n_users)
            missing = ~known & (mass > 0.0)
            masses = float(mass[known].sum()), float(mass[missing].sum())
            sides.append(Side(sums, *masses, mine.size, int(missing.sum())))
        return cls(*sides)

    @property
    def size(self) -> float:
        """The most that the lead, or the value, can be."""
        return self.gain.mass + self.gain.unsupported

    @property
    def point(self) -> float:
        """The estimate if nothing is hidden, unsupported slots as liked as the others."""
        found = [
            (one.mass + one.unsupported) * float(one.share()) for one in (self.gain, self.loss)
        ]
        return found[0] - found[1]

    @property
    def estimate(self) -> Estimate:
        """That estimate with its error."""
        sides = [
            (1.0 + one.unsupported / one.mass if one.mass > 0.0 else 1.0) * one.estimate(1.0, "low")
            for one in (self.gain, self.loss)
        ]
        return sides[0] - sides[1]

    def at(self, gamma: float, end: End) -> Estimate:
        """An end of the range under Γ, unsupported slots at worst, as an estimate over users."""
        other: End = "high" if end == "low" else "low"
        found = self.gain.estimate(gamma, end) - self.loss.estimate(gamma, other)
        return found + (-self.loss.unsupported if end == "low" else self.gain.unsupported)

    def values(self, grid: np.ndarray, end: End, sums: np.ndarray | None = None) -> np.ndarray:
        """That end over a grid of Γ; for sums of resampled users [replicates, 8], [replicates,
        grid]."""
        other: End = "high" if end == "low" else "low"
        own, against = (None, None) if sums is None else (sums[:, :4], sums[:, 4:])
        gain, loss = self.gain, self.loss
        found = [
            gain.mass * gain.share(float(g), end, own)
            - loss.mass * loss.share(float(g), other, against)
            for g in grid
        ]
        return np.stack(found, axis=-1) + (-loss.unsupported if end == "low" else gain.unsupported)

    def curve(self, grid: np.ndarray) -> Curve:
        """Both ends over a grid of Γ."""
        return Curve(self.values(grid, "low"), self.values(grid, "high"))

    @cached_property
    def sums(self) -> np.ndarray:
        """Users' sums of both sides, [users, 8]."""
        return np.concatenate([self.gain.sums, self.loss.sums], axis=1)
