"""Information gains on exposure as blocks of features are added, with the gain of noise that has
equally many bins.

Finer bins never raise a plug-in entropy, so every further block of features "gains", informative or
not. The null of a gain permutes the block's values among users (or items) that agree in all
features used before: bins keep their number and sizes, and carry no further information.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset
from puidrec.errors import InputError
from puidrec.exposure.entropy import conditional_entropy, miller_madow_bias
from puidrec.features.bins import cross
from puidrec.features.encode import feature_codes

PERMUTATIONS = 19
"""A gain above all of them is beyond chance at the 5 % level (1 in 20)."""
Entropy = Callable[[np.ndarray], tuple[float, float]]
ESTIMATORS = ("plugin", "miller-madow", "permutation")


@dataclass(frozen=True)
class SideFeatures:
    """The features of users, or of items: names, and codes [features, entities]."""

    names: tuple[str, ...]
    codes: np.ndarray

    @classmethod
    def of(cls, frame: pl.DataFrame | None, id_column: str) -> SideFeatures:
        """Numbers in four bins; text of more than two values, and lists, as one yes/no feature per
        value."""
        if frame is None or frame.width < 2:
            raise InputError(
                "this experiment needs features",
                found="none",
                expected=f"a table beside {id_column}",
            )
        return cls(*feature_codes(frame, id_column))

    def __len__(self) -> int:
        return len(self.names)

    def block(self, features: Sequence[int]) -> np.ndarray:
        """Composite code of some features; one bin for none."""
        if not len(features):
            return np.zeros(self.codes.shape[1], np.int32)
        return cross(*self.codes[np.asarray(features)])

    def shuffled(self, rng: np.random.Generator) -> SideFeatures:
        """Whole rows given to other users (or items): the same features, without information on
        exposure."""
        return SideFeatures(self.names, self.codes[:, rng.permutation(self.codes.shape[1])])


@dataclass(frozen=True)
class ExposureLog:
    """Who saw what, and the features of both sides."""

    user: np.ndarray
    item: np.ndarray
    users: SideFeatures
    items: SideFeatures

    @classmethod
    def of(cls, data: Dataset) -> ExposureLog:
        """The whole log of a data set: exposure is what is explained, so no row is held out."""
        sides = SideFeatures.of(data.users, "user_id"), SideFeatures.of(data.items, "item_id")
        return cls(data.logged.user, data.logged.item, *sides)

    def shuffled(self, rng: np.random.Generator) -> ExposureLog:
        """The control: rows of features permuted on both sides."""
        return ExposureLog(self.user, self.item, self.users.shuffled(rng), self.items.shuffled(rng))

    def entropy(self, users: np.ndarray, items: np.ndarray) -> tuple[float, float]:
        """H(o | user bins, item bins) plug-in, and its Miller–Madow bias: a half per mixed cell and
        pair of D.

        Cells without an observed pair have no entropy; they are counted together.
        """
        width = int(items.max()) + 1
        observed = np.bincount(users[self.user].astype(np.int64) * width + items[self.item])
        cell = np.flatnonzero(observed)
        seen = observed[cell]
        pairs = (
            np.bincount(users)[cell // width].astype(np.float64) * np.bincount(items)[cell % width]
        )
        total = float(users.size * items.size)
        plugin = conditional_entropy(np.append(seen, 0), np.append(pairs, total - pairs.sum()))
        return plugin, float(pairs @ miller_madow_bias(seen, pairs)) / total


@dataclass(frozen=True)
class Gain:
    """By how much a block of features lowers the entropy, and by how much noise with equally many
    bins does."""

    plugin: float
    miller_madow: float
    noise: float
    """Mean over permutations."""
    noise_high: float
    """The largest of them."""

    @property
    def permutation(self) -> float:
        """The plug-in gain minus that of noise; may fall below 0, as an unbiased estimate of 0
        must."""
        return self.plugin - self.noise

    @property
    def beyond_chance(self) -> bool:
        """Whether the gain exceeds that of every permutation."""
        return self.plugin > self.noise_high + 1e-12

    def by(self, estimator: str) -> float:
        """The gain under an estimator of entropy."""
        return {
            "plugin": self.plugin,
            "miller-madow": self.miller_madow,
            "permutation": self.permutation,
        }[estimator]

    def row(self) -> dict[str, float | bool]:
        """Plain values."""
        return {
            "plugin": self.plugin,
            "miller-madow": self.miller_madow,
            "permutation": self.permutation,
            "noise": self.noise,
            "noise_high": self.noise_high,
            "beyond_chance": self.beyond_chance,
        }


def user_gain(
    exposed: ExposureLog,
    known: np.ndarray,
    added: np.ndarray,
    items: np.ndarray,
    rng: np.random.Generator,
    n: int = PERMUTATIONS,
) -> Gain:
    """H(o | known, items) - H(o | known, added, items) for blocks of user features."""
    return _gain(lambda users: exposed.entropy(users, items), known, added, rng, n)


def item_gain(
    exposed: ExposureLog,
    users: np.ndarray,
    known: np.ndarray,
    added: np.ndarray,
    rng: np.random.Generator,
    n: int = PERMUTATIONS,
) -> Gain:
    """H(o | users, known) - H(o | users, known, added) for blocks of item features."""
    return _gain(lambda items: exposed.entropy(users, items), known, added, rng, n)


def _gain(
    entropy: Entropy, known: np.ndarray, added: np.ndarray, rng: np.random.Generator, n: int
) -> Gain:
    before, after = entropy(known), entropy(cross(known, added))
    null = before[0] - np.array(
        [entropy(cross(known, permuted_within(added, known, rng)))[0] for _ in range(n)]
    )
    return Gain(
        before[0] - after[0], sum(before) - sum(after), float(null.mean()), float(null.max())
    )


def permuted_within(values: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values permuted within groups."""
    result = np.empty_like(values)
    result[np.argsort(groups, kind="stable")] = values[
        np.lexsort((rng.random(groups.size), groups))
    ]
    return result
