"""From a log to its nominal propensities and Γ: the one place where evidence, p, Γ and bounds are
put together.

    logged rows + side tables → evidence (counts by bins) → propensity p → Γ of pairs → bounds of
    1/p → certificate

"Nominal" means: as far as what was recorded explains who saw what. Γ says how far the truth may be
from it. Training, audits and `puid gamma` all start here. The rows may be in memory or on disk:
what is fitted goes over them some rows at a time, and what is asked for is computed for the rows at
hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import StoredInteractions, row_slices
from puidrec.data.overlap import pairs_in
from puidrec.errors import InputError
from puidrec.exposure import Exposure, Propensity, make_propensity, require_propensity
from puidrec.exposure.bounds import Bounds, bounds
from puidrec.exposure.certificate import (
    LEVELS_MAX,
    Certificate,
    SeenSums,
    Segments,
    all_levels,
    certificate,
    level_index,
)
from puidrec.exposure.clip import DEFAULT_LOW
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import Gamma, GammaSpec, resolve_gamma
from puidrec.exposure.melding import UniformRows
from puidrec.rng import Rng, generator

Outcome = Literal["label", "rating"]
"""What a certificate is about: the protocol's positive label, or every rating level."""
LARGEST_LOW = 0.01
"""Where the caller names no smallest propensity: this, or a tenth of the share of pairs that was
seen."""
SAMPLED = 5_000_000
"""Pairs of a population over which a mean is taken; of a smaller one, all."""
CALIBRATION_BINS, CALIBRATION_ROWS = 20, 50
"""Ranges of p within which weights are calibrated, of equally many pairs, and the fewest seen rows
of each."""


@dataclass(frozen=True)
class WeightCalibration:
    """What weights 1/p − 1 are multiplied by, by ranges of p: seen rows then stand for as many
    pairs as are unseen.

    Who was exposed is known of every pair, so this needs no rating. A propensity whose form is
    wrong in the tails (a logistic curve, where rare pairs are seen by a floor) gives few rows too
    large weights; what differs from it within a range of p is left as it is.
    """

    edges: np.ndarray
    """Where the ranges after the first begin."""
    factor: np.ndarray

    @classmethod
    def of(cls, edges: np.ndarray, pairs: np.ndarray, seen: np.ndarray, weight: np.ndarray) -> Self:
        """From pairs, seen rows and their weights 1/p − 1 by ranges; those of few rows are joined
        to the next."""
        group, rows = np.zeros(seen.size, np.int64), 0
        for k in range(1, seen.size):
            rows += int(seen[k - 1])
            full = rows >= CALIBRATION_ROWS and seen[k:].sum() >= CALIBRATION_ROWS
            group[k], rows = group[k - 1] + full, 0 if full else rows
        total, unseen = (
            np.bincount(group, weight),
            np.maximum(np.bincount(group, pairs - seen), 0.0),
        )
        factor = np.divide(
            unseen, total, out=np.ones(total.size), where=(total > 0.0) & (unseen > 0.0)
        )
        return cls(edges[np.flatnonzero(np.diff(group))], factor)

    def applied(self, propensity: np.ndarray) -> np.ndarray:
        """Propensities whose weights 1/p − 1 are the calibrated ones."""
        factor = self.factor[np.searchsorted(self.edges, propensity, side="right")]
        found: np.ndarray = 1.0 / (1.0 + factor * (1.0 / propensity - 1.0))
        return found


@dataclass(frozen=True)
class NominalExposure:
    """Who sees what, as far as a log and its side tables tell; each part is made when first asked
    for, once."""

    data: Dataset
    seen: Interactions
    """The rows that count as seen: the training rows, or all logged rows."""
    held_out: Interactions | None = None
    """Uniform rows held out for propensities; only those that say so (`uses_uniform`) look at them.
    """
    propensity_name: str = "two-way"
    min_propensity: float | None = DEFAULT_LOW
    """Propensities below it are raised to it; None: `LARGEST_LOW`, or a tenth of the share seen."""
    seed: int = 0
    calibration_rows: int | None = None
    """Rows in which features are hidden one by one, where fewer will do: odds ratios do not depend
    on their number."""

    def __post_init__(self) -> None:
        require_propensity(
            self.propensity_name
        )  # before any work, also where no propensity is asked for

    @cached_property
    def evidence(self) -> Evidence:
        """Counts of the rows under bins of features, and what follows from them."""
        data, rows = self.data, self.seen
        found = Evidence.from_log(
            rows.user,
            rows.item,
            n_users=data.n_users,
            n_items=data.n_items,
            users=data.users,
            items=data.items,
        )
        step = 1 if self.calibration_rows is None else -(-len(rows) // self.calibration_rows)
        return found if step <= 1 else replace(found, log=(rows.user[::step], rows.item[::step]))

    @cached_property
    def exposure(self) -> Exposure:
        """Seen and unseen pairs, and what a propensity may explain them with."""
        return Exposure.from_rows(self.data, self.seen, self.held_out, self.evidence.counts)

    @cached_property
    def propensity(self) -> Propensity:
        """The fitted propensity: it learns from exposure, and from ratings only if it says so."""
        low = (
            min(LARGEST_LOW, 0.1 * self.exposure.rate)
            if self.min_propensity is None
            else self.min_propensity
        )
        return make_propensity(self.propensity_name, low=low).fit(self.exposure)

    @property
    def fitted_propensity(self) -> Propensity | None:
        """The propensity if something has asked for it, for reports."""
        return self.__dict__.get("propensity")

    @cached_property
    def seen_propensity(self) -> np.ndarray:
        """Propensities of the seen rows, for a log in memory."""
        return self.propensity.predict(self.seen.user, self.seen.item, self.seen.rating)

    def propensity_of(self, rows: Interactions) -> np.ndarray:
        """Propensities of rows, float64; those of the seen rows are kept."""
        return (
            self.seen_propensity
            if rows is self.seen
            else self.propensity.predict(rows.user, rows.item, rows.rating)
        )

    def mean_over_pairs(self, value: Callable[[np.ndarray], np.ndarray]) -> float:
        """Mean of a function of p over all pairs, tile by tile; of a large population over
        `SAMPLED` random pairs."""
        size = min(self.data.n_users * self.data.n_items, SAMPLED)
        return sum(float(np.sum(value(part))) for part in self._population()) / size

    def _population(self) -> Iterator[np.ndarray]:
        """Propensities of all pairs, tile by tile; of a large population those of `SAMPLED` random
        pairs."""
        n_items = self.data.n_items
        n_pairs, rng = self.data.n_users * n_items, generator(self.seed, "all pairs")
        size = min(n_pairs, SAMPLED)
        for part in row_slices(size):
            pair = np.arange(part.start, min(part.stop, size)) if size == n_pairs else None
            pair = (
                rng.integers(n_pairs, size=min(part.stop, size) - part.start)
                if pair is None
                else pair
            )
            yield self.propensity.predict(pair // n_items, pair % n_items)

    @cached_property
    def weight_calibration(self) -> WeightCalibration | None:
        """The calibration of weights 1/p − 1; None where p is given for the log alone, or depends
        on ratings."""
        if self.propensity.uses_uniform or self.propensity_name == "given":
            return None
        population = np.concatenate(list(self._population()))
        edges = np.unique(
            np.quantile(population, np.arange(1, CALIBRATION_BINS) / CALIBRATION_BINS)
        )
        n_bins, scale = edges.size + 1, self.data.n_users * self.data.n_items / population.size
        pairs = (
            np.bincount(np.searchsorted(edges, population, side="right"), minlength=n_bins) * scale
        )
        seen, weight = np.zeros(n_bins), np.zeros(n_bins)
        for rows in self._parts():
            own = self.propensity_of(rows)
            code = np.searchsorted(edges, own, side="right")
            seen += np.bincount(code, minlength=n_bins)
            weight += np.bincount(code, 1.0 / own - 1.0, minlength=n_bins)
        return WeightCalibration.of(edges, pairs, seen, weight)

    def gamma(
        self, spec: GammaSpec, *, alpha: float | str | None = None, beta: float | str | None = None
    ) -> Gamma:
        """Γ of every pair by a rule, a preset's name or a number; α and β replace those of the rule
        where given."""
        weights = {
            name: value for name, value in (("alpha", alpha), ("beta", beta)) if value is not None
        }
        return resolve_gamma(spec, **weights).fit(self.evidence, rng=self.seed)

    def bounds_of(self, rows: Interactions, gamma: Gamma) -> Bounds:
        """The interval of 1/p that Γ allows for each row."""
        return bounds(self.propensity_of(rows), gamma.at(rows.user, rows.item))

    def certifies_levels(self, uniform: Interactions) -> bool:
        """Whether there are rating levels to certify one by one: more than two, and not too many."""
        found = np.unique(uniform.rating)
        for part in row_slices(len(self.seen)):
            found = np.union1d(found, self.seen.rating[part])
            if found.size > LEVELS_MAX:
                break
        return 2 < found.size <= LEVELS_MAX

    def certificate(
        self,
        outcome: Outcome,
        uniform: Interactions,
        *,
        adjust: bool = True,
        confidence: float = 0.95,
        rng: Rng | None = None,
    ) -> Certificate:
        """The Γ that uniform rows prove, beyond what the propensity explains (or, not adjusted, at
        all).

        Rows whose pair is in the log say nothing of unseen pairs and are left out.
        """
        seed = self.seed if rng is None else rng
        rows, value, levels = self.unseen_values(uniform, outcome)
        sums = self.seen_sums(outcome, levels, adjust=adjust, calibrate=adjust, rng=seed)
        found = certificate(
            sums,
            UniformRows(level_index(value, levels), rows.user, self.data.n_users),
            adjusted=adjust,
            confidence=confidence,
            rng=seed,
        )
        return replace(found, propensity=self.propensity_name if adjust else None)

    def seen_sums(
        self,
        outcome: Outcome,
        levels: np.ndarray,
        *,
        adjust: bool = True,
        calibrate: bool = False,
        segments: Segments | None = None,
        rng: Rng = 0,
    ) -> SeenSums:
        """Seen rows by level, with the weight 1/p − 1 where adjusted; by segment of users or items
        where given.

        calibrate: weights are calibrated first (`weight_calibration`).
        """
        calibration = self.weight_calibration if calibrate else None
        sums = SeenSums(levels, self.data.n_users, 1 if segments is None else segments.n, rng)
        for rows in self._parts():
            propensity = self.propensity_of(rows) if adjust else None
            if propensity is not None and calibration is not None:
                propensity = calibration.applied(propensity)
            own = None if segments is None else segments.of(rows.user, rows.item)
            sums.add(getattr(rows, outcome).astype(np.float64), propensity, rows.user, own)
        return sums

    def unseen(self, uniform: Interactions) -> Interactions:
        """Uniform rows whose pair is not among the seen rows: a random sample of what nobody chose."""
        logged = pairs_in(uniform.user, uniform.item, self.data.n_items, self._parts())
        if logged.all():
            raise InputError(
                "no uniform row of an unseen pair",
                found=f"{len(uniform):,} uniform rows, all of pairs in the log",
                expected="ratings of items drawn at random",
                hint="A certificate needs pairs that are not in the log.",
            )
        return uniform.take(~logged) if logged.any() else uniform

    def unseen_values(
        self, uniform: Interactions, outcome: Outcome
    ) -> tuple[Interactions, np.ndarray, np.ndarray]:
        """Uniform rows of unseen pairs, what is certified of them, and all levels of it, seen ones
        too."""
        rows = self.unseen(uniform)
        value = getattr(rows, outcome).astype(np.float64)
        return (
            rows,
            value,
            all_levels(value, np.array([0.0, 1.0]) if outcome == "label" else self.seen_levels()),
        )

    def seen_levels(self) -> np.ndarray:
        """The ratings that occur among the seen rows."""
        parts = [np.unique(self.seen.rating[part]) for part in row_slices(len(self.seen))]
        return np.unique(np.concatenate(parts)).astype(np.float64)

    def _parts(self) -> Iterator[Interactions]:
        """The seen rows: all at once where they are in memory, some at a time where they are on
        disk."""
        if isinstance(self.seen, StoredInteractions):
            yield from (self.seen.part(rows) for rows in row_slices(len(self.seen)))
        else:
            yield self.seen
