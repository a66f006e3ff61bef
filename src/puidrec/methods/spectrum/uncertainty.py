"""How sure the mixture is: of the mean of a user, an item, a segment or a pair.

The variance of an expected rating has three parts, kept apart:

    coefficients   xᵀCx, x the columns of the pair or their means over a user's or an item's pairs
    effects        what uniform rows leave open of this user's and this item's own effect
    fit            σ²/(n + ν): the error of `mf` itself for an entity with n logged rows, σ² the
                   log's squared residuals, ν the variance of ratings within entities over that
                   between them

and a single rating, or the expected rating of a single pair, has all that one rating per pair
cannot tell from noise on top. Of a pair xᵀCx is kept as |ℓ_u + ℓ_i − ℓ|² with a few loadings ℓ per
user and item, plus the mean of what they leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from puidrec.data.row_matrix import item_count
from puidrec.data.tables import Matrix
from puidrec.errors import InputError
from puidrec.methods.prepare import Prepared
from puidrec.methods.spectrum.mixture import Posterior
from puidrec.optimise.stopping import pair_scores
from puidrec.scores.low_rank import LowRank

if TYPE_CHECKING:
    from puidrec.methods.spectrum.blend import Column

LOADINGS = 8
"""Directions of coefficients that are kept per user and item."""
PREFIX = "posterior."
CAUTION = 1.2816
"""Standard deviations below the expected rating that cautious rankings go by: one in ten lies
lower."""
SideName = Literal["user", "item"]
SIDES: tuple[SideName, SideName] = ("user", "item")
PairsByUser = tuple[np.ndarray, np.ndarray]


def summarise(
    prepared: Prepared,
    columns: Sequence[Column],
    posterior: Posterior,
    rows: tuple[np.ndarray, np.ndarray],
    mf: LowRank | None,
    log_noise: float,
) -> dict[str, Tensor]:
    """The posterior as a few numbers per user and item, to keep with the model. `rows`: users and
    items of the rows that calibrated. log_noise: the mean squared residual of the log."""
    slopes = [side.slope for side in posterior.sides]
    means = zip(*(column.means() for column in columns), strict=True)
    by_side = [np.column_stack(own) for own in means]
    shared = [slope.mean(0) for slope in slopes]
    x = [by_side[k] - slopes[k] - shared[1 - k] for k in (0, 1)]
    turn = _leading(posterior.covariance, np.concatenate(x))
    loading, middle = [side @ turn for side in x], (by_side[0].mean(0) - sum(shared)) @ turn
    at_rows = np.column_stack([column.at(*rows) for column in columns])
    at_rows -= slopes[0][rows[0]] + slopes[1][rows[1]]
    exact = np.einsum("rk,kl,rl->r", at_rows, posterior.covariance, at_rows)
    additive = ((loading[0][rows[0]] + loading[1][rows[1]] - middle) ** 2).sum(1)
    rest = max(float(np.mean(exact - additive)), 0.0)
    tensors = {
        "middle": middle,
        "numbers": np.array([posterior.noise, rest, log_noise]),
        "level_rows": np.array(level_rows(prepared.log.ratings)),
    }
    for k, name in enumerate(SIDES):
        effect = posterior.sides[k].variance
        tensors |= {f"{name}.loading": loading[k], f"{name}.effect": effect}
        tensors[f"{name}.rows"] = np.bincount(rows[k], minlength=effect.size)
    found = {name: torch.from_numpy(value) for name, value in tensors.items()}
    if mf is not None:
        found |= {"mf.left": mf.lefts[0], "mf.right": mf.rights[0]}
    return {f"{PREFIX}{name}": value.float().contiguous() for name, value in found.items()}


def _leading(covariance: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A map of columns to loadings whose squared length is xᵀCx, by the directions that matter most
    at x."""
    values, axes = np.linalg.eigh(covariance)
    root = axes * np.sqrt(np.maximum(values, 0.0))
    gram = x @ root
    _, turned = np.linalg.eigh(gram.T @ gram)
    return np.asarray(root @ turned[:, ::-1][:, :LOADINGS])


def level_rows(ratings: Matrix) -> list[float]:
    """ν of users and of items: how many rows the level of an entity is worth before it has any, by
    one-way analysis of variance."""
    n = ratings.nnz
    squares = float(ratings.data @ ratings.data)
    found = []
    for count, total in (
        (np.diff(ratings.indptr), ratings.sum(1)),
        (item_count(ratings), ratings.sum(0)),
    ):
        explained, k = np.sum(total**2 / np.maximum(count, 1)), np.count_nonzero(count)
        within = (squares - explained) / max(n - k, 1)
        between = explained - total.sum() ** 2 / n - (k - 1) * within
        variance = between / max(n - np.sum(count**2.0) / n, 1.0)
        found.append(float(np.clip(within / max(variance, 1e-12), 1.0, n)))
    return found


class Means(NamedTuple):
    """Expected unseen ratings beside what `mf` says of the same pairs."""

    expected: np.ndarray
    logged: np.ndarray
    variance: np.ndarray
    fit: np.ndarray
    """The part of the variance that is the error of `mf` itself."""
    rows: np.ndarray
    """Uniform rows of each."""


@dataclass(frozen=True)
class Uncertainty:
    """The posterior of a fitted model."""

    tensors: Mapping[str, np.ndarray]
    users: np.ndarray
    items: np.ndarray
    """Factors of the model."""
    seen: PairsByUser

    @classmethod
    def of(
        cls,
        parameters: Mapping[str, Tensor],
        users: np.ndarray,
        items: np.ndarray,
        seen: PairsByUser,
    ) -> Uncertainty | None:
        """What a model keeps; None where it keeps nothing."""
        own = {
            name.removeprefix(PREFIX): value.cpu().double().numpy()
            for name, value in parameters.items()
            if name.startswith(PREFIX)
        }
        return cls(own, users.astype(np.float64), items.astype(np.float64), seen) if own else None

    @property
    def noise(self) -> float:
        """Variance of a single rating around its expectation."""
        return float(self.tensors["numbers"][0])

    def counts(self, side: SideName) -> np.ndarray:
        """Logged rows of each user or item."""
        row_start, items = self.seen
        return (
            np.diff(row_start) if side == "user" else np.bincount(items, minlength=len(self.items))
        )

    def fit_error(self, side: SideName) -> np.ndarray:
        """σ²/(n + ν) of each user or item."""
        level_rows = self.tensors["level_rows"][SIDES.index(side)]
        return np.asarray(self.tensors["numbers"][2] / (self.counts(side) + level_rows))

    @cached_property
    def _variance(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors whose product is the variance of the expected rating of a pair: |ℓ_u + ℓ_i − ℓ|²
        and what either side and all pairs have on top. The last row is an entity without rows."""
        found = []
        for side, nu in zip(SIDES, self.tensors["level_rows"], strict=True):
            loading, own = self.tensors[f"{side}.loading"], self.tensors[f"{side}.effect"]
            alone = own.max() + self.tensors["numbers"][2] / nu
            loading = np.concatenate([loading, loading.mean(0, keepdims=True)])
            found.append((loading, np.append(own + self.fit_error(side), alone)))
        (left, own), (right, effect) = found
        left = left - self.tensors["middle"]
        own = own + (left**2).sum(1) + self.tensors["numbers"][1]
        return (
            np.column_stack([2.0 * left, own, np.ones(len(left))]),
            np.column_stack([right, np.ones(len(right)), effect + (right**2).sum(1)]),
        )

    def pair_variance(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Variance of expected ratings of pairs; code −1, or one beyond the last, is an entity
        without rows."""
        left, right = map(_rows_of, self._variance, (user, item))
        return np.maximum(np.einsum("rk,rk->r", left, right), 0.0)

    def block_variance(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The same of some users against some items, [users, items]."""
        left, right = map(_rows_of, self._variance, (users, items))
        return np.maximum(left @ right.T, 0.0)

    def means(self, side: SideName) -> Means:
        """Of each user over unseen items, or of each item over users who have not seen it."""
        logged = self.tensors["mf.left"], self.tensors["mf.right"]
        expected = self._unseen(side, self.users, self.items)
        effect, fit = self.tensors[f"{side}.effect"], self.fit_error(side)
        variance = (self.tensors[f"{side}.loading"] ** 2).sum(1) + effect + fit
        return Means(
            expected, self._unseen(side, *logged), variance, fit, self.tensors[f"{side}.rows"]
        )

    def _unseen(self, side: SideName, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        row_start, item = self.seen
        user = np.repeat(np.arange(len(left)), np.diff(row_start))
        factors = LowRank.of(torch.from_numpy(left), torch.from_numpy(right))
        known = pair_scores(factors, user, np.asarray(item))
        if side == "user":
            total, others, code = left @ right.sum(0), len(right), user
        else:
            total, others, code = right @ left.sum(0), len(left), np.asarray(item)
        total = total - np.bincount(code, known, total.size)
        return np.asarray(total / np.maximum(others - self.counts(side), 1))

    def segments(self, side: SideName, code: np.ndarray, n: int) -> Means:
        """Of groups of users or items: means of their members' means, weighted by their unseen
        pairs."""
        one, others = self.means(side), len(self.items if side == "user" else self.users)
        weight = np.maximum(others - self.counts(side), 0).astype(np.float64)
        total = np.maximum(np.bincount(code, weight, n), 1e-12)

        def mean(values: np.ndarray, power: int = 1) -> np.ndarray:
            return np.asarray(np.bincount(code, weight**power * values, n) / total**power)

        loading = np.column_stack([mean(column) for column in self.tensors[f"{side}.loading"].T])
        fit = mean(one.fit, 2)
        variance = (loading**2).sum(1) + mean(self.tensors[f"{side}.effect"], 2) + fit
        return Means(
            mean(one.expected), mean(one.logged), variance, fit, np.bincount(code, one.rows, n)
        )

    def pairs(self, user: np.ndarray, item: np.ndarray) -> Means:
        """Of single pairs: with all that one rating cannot tell from noise."""
        expected, logged = (
            np.einsum("rk,rk->r", left[user], right[item])
            for left, right in (
                (self.users, self.items),
                (self.tensors["mf.left"], self.tensors["mf.right"]),
            )
        )
        fit = self.fit_error("user")[user] + self.fit_error("item")[item]
        rows = np.zeros(user.size)
        return Means(expected, logged, self.pair_variance(user, item) + self.noise, fit, rows)


def _rows_of(factors: np.ndarray, code: np.ndarray) -> np.ndarray:
    last = len(factors) - 1
    return np.asarray(factors[np.where((code < 0) | (code > last), last, code)])


def score_interval(
    known: Uncertainty, scores: np.ndarray, user: np.ndarray, item: np.ndarray, level: float
) -> dict[str, np.ndarray]:
    """Scores with the interval that holds the share `level` of ratings, on the model's scale."""
    require_level(level)
    reach = float(ndtri(0.5 + level / 2.0)) * np.sqrt(known.pair_variance(user, item) + known.noise)
    low, high = (np.clip(scores + step, 0.0, 1.0).astype(np.float32) for step in (-reach, reach))
    return {"score": scores, "low": low, "high": high}


def lower_scores(
    known: Uncertainty, scores: np.ndarray, users: np.ndarray, items: np.ndarray
) -> np.ndarray:
    """The lower ends of the 80 % intervals of expected ratings of some users, [users, items]."""
    return np.asarray(scores - CAUTION * np.sqrt(known.block_variance(users, items))).astype(
        np.float32
    )


def require_level(level: float) -> None:
    """Refuse what is no share."""
    if not isinstance(level, float | int) or not 0.0 < level < 1.0:
        raise InputError(
            "the level of an interval is a share",
            found=level,
            expected="0 < level < 1, such as 0.9",
        )
