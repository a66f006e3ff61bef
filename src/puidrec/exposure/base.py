"""What a propensity is fitted on, what it can be asked, and what all of them share: checks, and the
only place where propensities are clipped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from scipy import sparse

from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError, not_fitted
from puidrec.features.bins import bin_side
from puidrec.features.encode import exposure_design

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset, Interactions


DEFAULT_LOW = 1e-6
"""A guard, not variance control: raise it (`low=0.01`) to cap the weights 1/p of an estimator."""


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


Values = TypeVar("Values", bound=Any)


def clip_values(p: Values, low: float, high: float = 1.0) -> Values:
    """Propensities moved into [low, high]: arrays, and tensors of a model that learns them."""
    return p.clip(low, high)


@dataclass(frozen=True)
class Clipped:
    """Propensities inside [low, high], and how many had to be moved there."""

    values: np.ndarray
    n_low: int
    n_high: int

    @property
    def share(self) -> float:
        """Share of the values that were moved; every report prints it."""
        return (self.n_low + self.n_high) / self.values.size if self.values.size else 0.0


def check_limits(low: float, high: float = 1.0) -> None:
    """Refuse limits under which a propensity could leave (0, 1]."""
    if not 0.0 < low <= high <= 1.0:
        raise InputError(
            "clipping limits out of range",
            found=f"[{low:g}, {high:g}]",
            expected="0 < low <= high <= 1",
            hint="Inverse propensity weights need p above 0.",
        )


def clip(p: np.ndarray, low: float = DEFAULT_LOW, high: float = 1.0) -> Clipped:
    """Move propensities into [low, high]; NaN is an error, since no limit could be right for it."""
    check_limits(low, high)
    values = np.asarray(p, dtype=np.float64)
    missing = int(np.isnan(values).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {values.size:,} propensities are not a number",
            expected="probabilities in (0, 1]",
            hint="Check the column or file they come from.",
        )
    n_low, n_high = int((values < low).sum()), int((values > high).sum())
    return Clipped(clip_values(values, low, high), n_low, n_high)


@dataclass(frozen=True)
class Rated:
    """Rated pairs as arrays: codes of users and items, and the rating of each."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray


@dataclass(frozen=True)
class Exposure:
    """Which pairs of D = users × items were seen, and what a propensity may explain that with.

    `counts` suffices for `cells`, `two-way` and (on bins) `logistic`, so a log too large for memory
    is fitted from one streaming pass. "Seen" means: a training row. A rating that the protocol
    drops does not count as seen.
    """

    counts: ExposureCounts
    log: Rated | None = None
    user_features: sparse.csr_array | None = None
    """Design matrix [users, columns]; see `features.encode.exposure_design`."""
    item_features: sparse.csr_array | None = None
    uniform: Rated | None = None
    """Uniformly drawn ratings held out for propensities. Only those with `uses_uniform` look at
    them."""
    uniform_unseen: bool = False
    """Whether the uniform ratings are of unseen pairs alone: rows that repeat a logged pair were
    dropped."""
    given: np.ndarray | None = None
    """Propensities that came with the log, one per pair of `given_pairs`."""
    given_pairs: tuple[np.ndarray, np.ndarray] | None = None
    """Users and items that `given` speaks of: all logged rows, held-out ones included; None: the
    rows of `log`."""

    @classmethod
    def from_log(
        cls,
        user: np.ndarray,
        item: np.ndarray,
        *,
        user_bin: np.ndarray,
        item_bin: np.ndarray,
        rating: np.ndarray | None = None,
        **parts: Any,
    ) -> Self:
        """From codes in memory and the bin of every user and item (zeros where there are no
        features)."""
        counts = ExposureCounts.from_pairs(user, item, user_bin, item_bin)
        return cls(
            counts, Rated(user, item, np.ones(user.size) if rating is None else rating), **parts
        )

    @classmethod
    def from_rows(
        cls,
        data: Dataset,
        rows: Interactions,
        uniform: Interactions | None = None,
        counts: ExposureCounts | None = None,
    ) -> Self:
        """From rows that count as seen, and uniform rows held out for propensities.

        counts: of the rows under bins of the side tables, where they are known; else the tables are
        binned here.
        """
        if counts is None:
            sides = ((data.users, "user_id", data.n_users), (data.items, "item_id", data.n_items))
            bins = [bin_side(frame, id_column=key, n_entities=n).codes for frame, key, n in sides]
            counts = ExposureCounts.from_pairs(rows.user, rows.item, *bins)
        if (counts.n_users, counts.n_items) != (data.n_users, data.n_items):
            raise InputError(
                "counts of another population",
                found=f"{counts.n_users} users and {counts.n_items} items",
                expected=f"{data.n_users} users and {data.n_items} items",
            )
        return cls(
            counts,
            Rated(rows.user, rows.item, rows.rating),
            user_features=exposure_design(data.users, "user_id"),
            item_features=exposure_design(data.items, "item_id"),
            uniform=Rated(uniform.user, uniform.item, uniform.rating)
            if uniform is not None
            else None,
            uniform_unseen=data.overlap.dropped > 0,
            given=data.logged.propensity,
            given_pairs=(data.logged.user, data.logged.item),
        )

    @property
    def n_seen(self) -> int:
        """Observed pairs."""
        return int(self.counts.user_degree.sum())

    @property
    def n_pairs(self) -> int:
        """The size of D."""
        return self.counts.n_users * self.counts.n_items

    @property
    def rate(self) -> float:
        """Share of D that was seen, kept inside (0, 1) by half a pair."""
        return (self.n_seen + 0.5) / (self.n_pairs + 1.0)


class FittedPropensity(ABC):
    """P(o = 1 | what is known of the pair), fitted once, asked for any pairs. Checks before,
    clipping after: a propensity writes `_fit` and `_raw` and gets the rest here.

    Inherited rather than composed because the order (check, compute, clip) is what must not vary.
    """

    name: str
    uses_uniform: bool = False
    """Whether fitting looks at uniform rows; reports say so."""

    def __init__(self, *, low: float = DEFAULT_LOW) -> None:
        check_limits(low)
        self.low = low

    @abstractmethod
    def _fit(self, data: Exposure) -> None:
        """Learn; sets attributes that end in `_`."""

    @abstractmethod
    def _raw(self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None) -> np.ndarray:
        """Propensities before clipping, for codes that were checked."""

    def _details(self) -> dict[str, Any]:
        """What `describe` adds for this kind."""
        return {}

    def fit(self, data: Exposure) -> Self:
        """Learn from the seen and unseen pairs of D."""
        if data.n_seen == 0:
            raise InputError(
                "no pair was seen, so there is no propensity to learn",
                expected="at least one log row",
            )
        self._fit(data)
        self.shape_ = (data.counts.n_users, data.counts.n_items)
        self.rate_ = data.rate
        log = data.log
        self.log_summary_: dict[str, Any] = {}
        if log is not None:
            self.log_summary_ = self._summary(log)
        return self

    def _summary(self, log: Rated) -> dict[str, Any]:
        """What clipping does to the log, some rows at a time."""
        moved, smallest = 0, 1.0
        for part in row_slices(log.user.size):
            clipped = self.predict_clipped(log.user[part], log.item[part], log.rating[part])
            moved, smallest = (
                moved + clipped.n_low + clipped.n_high,
                min(smallest, float(clipped.values.min())),
            )
        return {"share_clipped": moved / log.user.size, "smallest": smallest}

    def predict(
        self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None = None
    ) -> np.ndarray:
        """Propensities in (0, 1] of pairs given as codes, float64. `rating` matters to
        `naive-bayes` only."""
        return self.predict_clipped(users, items, rating).values

    def predict_clipped(
        self, users: np.ndarray, items: np.ndarray, rating: np.ndarray | None = None
    ) -> Clipped:
        """Propensities of pairs, with the count of values that clipping moved."""
        self._require_fitted()
        users, items = np.asarray(users), np.asarray(items)
        check_pairs(users, items, *self.shape_)
        if rating is not None and np.shape(rating) != users.shape:
            raise InputError(
                "one rating per pair", found=np.shape(rating), expected=f"{users.shape}"
            )
        return clip(self._raw(users, items, rating), self.low)

    def describe(self) -> dict[str, Any]:
        """Name, use of uniform data, overall rate, and what clipping did to the log rows."""
        self._require_fitted()
        general = {
            "name": self.name,
            "uses_uniform": self.uses_uniform,
            "rate": self.rate_,
            "low": self.low,
        }
        return {**general, **self.log_summary_, **self._details()}

    def _require_fitted(self) -> None:
        if not hasattr(self, "shape_"):
            raise not_fitted(f"propensity {self.name}")
