"""How much features tell about exposure: entropies of o and information gains, from counts only, in
nats.

Every quantity is a sum over bins of (pairs of D, observed pairs); D itself is never enumerated.
Composite bins
overfit: even features of pure noise "explain" exposure a little, because users (and items) differ
in activity. The `permutation` estimator measures that artefact by permuting whole feature rows
among users (items) and subtracts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.sparse import csc_array
from scipy.special import entr, rel_entr

from puidrec.errors import InputError
from puidrec.exposure.base import ExposureCounts
from puidrec.rng import Rng, generator

Estimator = Literal["plugin", "permutation"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)


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
        membership = csc_array((one, rng.permutation(bins), start), shape=shape)
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
