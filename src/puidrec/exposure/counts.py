"""Observed pairs by bins, and how much features tell about exposure: entropies of o and
information gains, from these counts only, in nats.

Every quantity is a sum over bins of (pairs of D, observed pairs); D itself is never enumerated.
Composite bins overfit: even features of pure noise "explain" exposure a little, because users (and
items) differ in activity. The `permutation` estimator measures that artefact by permuting whole
feature rows among users (items) and subtracts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self, get_args

import numpy as np
from scipy import sparse
from scipy.special import entr, rel_entr

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError
from puidrec.rng import Rng, generator

Estimator = Literal["plugin", "permutation"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)


@dataclass(frozen=True)
class ExposureCounts:
    """Observed pairs by bins, against the population D = users × items: all that propensities,
    entropies and Γ need of a log, in tables much smaller than it.

    One pass over the log gives the observed pairs per (user bin, item) and per user. Cells of bins,
    item degrees and every permutation of feature rows follow from these.
    """

    user_bin: np.ndarray
    """Bin of each user (int32)."""
    item_bin: np.ndarray
    """Bin of each item (int32)."""
    user_degree: np.ndarray
    """Observed pairs of each user (int64)."""
    by_item: np.ndarray
    """Observed pairs, [user bins, items] (int64)."""

    @classmethod
    def from_pairs(
        cls, user: np.ndarray, item: np.ndarray, user_bin: np.ndarray, item_bin: np.ndarray
    ) -> Self:
        """Count a log in memory: codes of users and items, and the bin of every user and item."""
        if user.shape != item.shape:
            check_pairs(user, item, user_bin.size, item_bin.size)
        return cls.from_batches(
            ((user[part], item[part]) for part in row_slices(user.size)), user_bin, item_bin
        )

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[tuple[np.ndarray, np.ndarray]],
        user_bin: np.ndarray,
        item_bin: np.ndarray,
    ) -> Self:
        """Count a log that arrives in batches of (user codes, item codes)."""
        for name, codes in (("user_bin", user_bin), ("item_bin", item_bin)):
            if codes.ndim != 1 or codes.size == 0 or codes.min() < 0:
                raise InputError(
                    "bins must be a vector of codes from 0", column=name, found=codes.shape
                )
        n_users, n_items = user_bin.size, item_bin.size
        n_bins = int(user_bin.max()) + 1
        offset = user_bin.astype(np.int64) * n_items
        degree, table = np.zeros(n_users, np.int64), np.zeros(n_bins * n_items, np.int64)
        for user, item in batches:
            check_pairs(user, item, n_users, n_items)
            degree += np.bincount(user, minlength=n_users)
            table += np.bincount(offset[user] + item, minlength=table.size)
        return cls(user_bin, item_bin, degree, table.reshape(n_bins, n_items))

    @property
    def n_users(self) -> int:
        """Users of the population."""
        return int(self.user_bin.size)

    @property
    def n_items(self) -> int:
        """Items of the population."""
        return int(self.item_bin.size)

    @cached_property
    def n_observed(self) -> int:
        """Observed pairs: the size of O."""
        return int(self.user_degree.sum())

    @property
    def rate(self) -> float:
        """Share of D that was observed."""
        return self.n_observed / (self.n_users * self.n_items)

    @cached_property
    def item_degree(self) -> np.ndarray:
        """Observed pairs of each item."""
        return self.by_item.sum(axis=0)

    @cached_property
    def cells(self) -> np.ndarray:
        """Observed pairs per (user bin, item bin)."""
        return (one_hot(self.item_bin).T @ self.by_item.T).T.astype(np.int64)

    @cached_property
    def users_in_bin(self) -> np.ndarray:
        """Users per user bin."""
        return np.bincount(self.user_bin, minlength=self.by_item.shape[0])

    @cached_property
    def items_in_bin(self) -> np.ndarray:
        """Items per item bin."""
        return np.bincount(self.item_bin)

    @cached_property
    def pairs(self) -> np.ndarray:
        """Pairs of D per (user bin, item bin), as float64 (they exceed int64 nowhere, but divide
        often)."""
        return np.multiply.outer(
            self.users_in_bin.astype(np.float64), self.items_in_bin.astype(np.float64)
        )


def one_hot(codes: np.ndarray, n: int | None = None) -> sparse.csr_array:
    """Codes as indicator columns, [entities, n or largest code + 1]."""
    shape = (codes.size, int(codes.max()) + 1 if n is None else n)
    return sparse.csr_array((np.ones(codes.size), codes, np.arange(codes.size + 1)), shape=shape)


def check_pairs(user: np.ndarray, item: np.ndarray, n_users: int, n_items: int) -> None:
    """Refuse codes that do not pair up or lie outside the population: they would count in another
    cell."""
    if user.shape != item.shape or user.ndim != 1:
        raise InputError(
            "user and item codes must be vectors of one length",
            found=f"{user.shape} and {item.shape}",
        )
    for name, codes, size in (("user", user, n_users), ("item", item, n_items)):
        if codes.dtype.kind not in "iu":
            raise InputError(f"{name} codes must be integers", found=str(codes.dtype))
        if codes.size and (codes.min() < 0 or codes.max() >= size):
            worst = codes.min() if codes.min() < 0 else codes.max()
            raise InputError(
                f"{name} code out of range", found=int(worst), expected=f"0 to {size - 1}"
            )


@dataclass(frozen=True)
class Null:
    """What a gain looks like when the features know nothing: its mean and 95 % range under
    permutation."""

    mean: float
    low: float
    high: float
    local: np.ndarray
    """Mean score per bin or cell under permutation."""


@dataclass(frozen=True)
class Gains:
    """Entropies of exposure and what users' and items' features take off them."""

    estimator: Estimator
    H: float
    """H(o)."""
    H_u: float
    """H(o | x_u), plug-in."""
    H_ui: float
    """H(o | x_u, x_i), plug-in (`eq:Houi_x`)."""
    gain_user: float
    """H(o) - H(o|x_u), corrected by the estimator, at least 0."""
    gain_item: float
    """H(o|x_u) - H(o|x_u,x_i), corrected by the estimator, at least 0."""
    user: np.ndarray
    """Local scores [user bins]: their mean over D is `gain_user`."""
    item: np.ndarray
    """Local scores [user bins, item bins]: their mean over D is `gain_item`."""
    null_user: Null | None = None
    null_item: Null | None = None

    @property
    def plugin_user(self) -> float:
        """The uncorrected gain of the user's features."""
        return max(0.0, self.H - self.H_u)

    @property
    def plugin_item(self) -> float:
        """The uncorrected gain of the item's features."""
        return max(0.0, self.H_u - self.H_ui)


def bernoulli_entropy(rate: np.ndarray | float) -> np.ndarray:
    """Entropy of a coin in nats."""
    p = np.asarray(rate, np.float64)
    return entr(p) + entr(1.0 - p)


def bernoulli_kl(p: np.ndarray, q: np.ndarray | float) -> np.ndarray:
    """KL(p ‖ q) of two coins in nats."""
    divergence = rel_entr(p, q) + rel_entr(1.0 - np.asarray(p), 1.0 - np.asarray(q))
    return np.maximum(divergence, 0.0)


def conditional_entropy(observed: np.ndarray, pairs: np.ndarray) -> float:
    """H(o | bins) of `eq:Houi_x`, plug-in: mean over D of the entropy of each bin's exposure
    rate."""
    return float((pairs * bernoulli_entropy(_rate(observed, pairs))).sum() / pairs.sum())


def local_scores(counts: ExposureCounts) -> tuple[np.ndarray, np.ndarray]:
    """Plug-in local information: KL(p_{B_u} ‖ p) per user bin, KL(p_{B_u,B_i} ‖ p_{B_u}) per cell.

    Each is at least 0, and their means over D are exactly the two information gains of
    `eq:gamma_ui`.
    """
    by_user, pairs_user = counts.cells.sum(axis=1), counts.pairs.sum(axis=1)
    return _user_score(by_user, pairs_user), _item_score(counts.cells, counts.pairs)


def information_gains(
    counts: ExposureCounts,
    estimator: Estimator = "permutation",
    n_permutations: int = 100,
    rng: Rng = 0,
) -> Gains:
    """Entropies, gains and local scores under an estimator.

    Corrected local scores are the plug-in ones minus their expectation when features know nothing
    (per bin: small bins overfit more), floored at 0 and scaled so that their mean over D is the
    corrected gain, also floored at 0.
    """
    if estimator not in ESTIMATORS:
        raise InputError(
            "unknown entropy estimator", found=estimator, expected=", ".join(ESTIMATORS)
        )
    user, item = local_scores(counts)
    weight, weight_user = counts.pairs, counts.pairs.sum(axis=1)
    null_user = null_item = None
    excess_user, excess_item = np.zeros_like(user), np.zeros_like(item)
    if estimator == "permutation":
        null_user = _permute_users(counts, n_permutations, generator(rng, "permute-users"))
        null_item = _permute_items(counts, n_permutations, generator(rng, "permute-items"))
        excess_user, excess_item = null_user.local, null_item.local
    gain_user, user = _correct(user, excess_user, weight_user)
    gain_item, item = _correct(item, excess_item, weight)
    return Gains(
        estimator,
        float(bernoulli_entropy(counts.rate)),
        conditional_entropy(counts.cells.sum(axis=1), weight_user),
        conditional_entropy(counts.cells, weight),
        gain_user,
        gain_item,
        user,
        item,
        null_user,
        null_item,
    )


def _rate(observed: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return observed / np.where(pairs > 0, pairs, 1.0)


def _user_score(by_user: np.ndarray, pairs_user: np.ndarray) -> np.ndarray:
    rate = by_user.sum() / pairs_user.sum()
    return np.where(pairs_user > 0, bernoulli_kl(_rate(by_user, pairs_user), rate), 0.0)


def _item_score(cells: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    marginal = _rate(cells.sum(axis=1), pairs.sum(axis=1))[:, None]
    return np.where(
        pairs > 0, bernoulli_kl(_rate(cells, pairs), np.broadcast_to(marginal, pairs.shape)), 0.0
    )


def _correct(score: np.ndarray, excess: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Subtract the excess and floor: of the mean exactly, of the local scores so that they keep
    that mean."""
    total = weight.sum()
    gain = max(0.0, float((weight * (score - excess)).sum() / total))
    floored = np.maximum(score - excess, 0.0)
    mean = float((weight * floored).sum() / total)
    return gain, floored * (gain / mean if mean > 0.0 else 0.0)


def _permute_users(counts: ExposureCounts, n: int, rng: np.random.Generator) -> Null:
    """Null of the user gain: permute the bins of users; only degrees matter.

    Users come in the order of their degrees, bins in their own: the draws do not depend on what
    users are called.
    """
    pairs_user = counts.pairs.sum(axis=1)
    degree, bins = np.sort(counts.user_degree).astype(np.float64), np.sort(counts.user_bin)

    def draw() -> np.ndarray:
        shuffled = rng.permutation(bins)
        return _user_score(np.bincount(shuffled, degree, minlength=pairs_user.size), pairs_user)

    return _null(draw, pairs_user, n)


def _permute_items(counts: ExposureCounts, n: int, rng: np.random.Generator) -> Null:
    """Null of the item gain given x_u: permute the bins of items; the table of user bins by item
    stays."""
    shape = (counts.pairs.shape[1], counts.n_items)
    table = np.ascontiguousarray(counts.by_item.T, np.float64)
    table, bins = table[np.lexsort(table.T)], np.sort(counts.item_bin)
    one, start = np.ones(counts.n_items), np.arange(counts.n_items + 1)

    def draw() -> np.ndarray:
        membership = sparse.csc_array((one, rng.permutation(bins), start), shape=shape)
        return _item_score(np.asarray(membership @ table).T, counts.pairs)

    return _null(draw, counts.pairs, n)


def _null(draw: Callable[[], np.ndarray], weight: np.ndarray, n: int) -> Null:
    if n < 1:
        raise InputError("too few permutations", found=n, expected="n_permutations >= 1")
    local, gains = np.zeros(weight.shape), np.empty(n)
    for k in range(n):
        score = draw()
        local += score
        gains[k] = (weight * score).sum() / weight.sum()
    low, high = np.quantile(gains, [0.025, 0.975])
    return Null(float(gains.mean()), float(low), float(high), local / n)
