"""From a log to propensities p, Γ and bounds: `estimate_exposure` does it, step by step.

    logged rows and side tables → counts by bins of features → p of any pair → Γ → interval of 1/p

p is *nominal*: it says who sees what as far as recorded features, activity and popularity explain
it. Γ says how far the truth may be from p. Training, audits and `puid gamma` all start here. The
rows may be in memory or on disk: what is fitted goes over them some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.on_disk import row_slices
from puidrec.errors import InputError
from puidrec.exposure import Exposure, FittedPropensity, make_propensity, require_propensity
from puidrec.exposure.base import DEFAULT_LOW
from puidrec.exposure.bounds import Gamma
from puidrec.exposure.certificate import (
    LEVELS_MAX,
    Certificate,
    SeenSums,
    UniformRows,
    certificate,
    level_index,
)
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import GammaSpec, resolve_gamma
from puidrec.rng import Rng, generator

Outcome = Literal["label", "rating"]
"""What a certificate is about: the protocol's positive label, or every rating level."""
Parts = Iterable[tuple[Interactions, np.ndarray | None]]
"""Seen rows, and their propensities where they are weighted."""
LARGEST_LOW = 0.01
"""Where the caller names no smallest propensity: this, or a tenth of the share of pairs that was
seen."""
SAMPLED = 5_000_000
"""Pairs over which a mean over the population is taken; of a smaller population, all."""
CALIBRATION_BINS, CALIBRATION_ROWS = 20, 50
"""Ranges of p within which weights are calibrated, of equally many pairs, and the fewest seen rows
of each."""


def estimate_exposure(
    data: Dataset,
    seen: Interactions,
    uniform: Interactions | None = None,
    propensity: str = "two-way",
    gamma: GammaSpec = 1.0,
    *,
    min_propensity: float | None = DEFAULT_LOW,
    seed: int = 0,
    evidence: Evidence | None = None,
) -> NominalExposure:
    """Log → p → Γ → bounds.

    data: the population and its side tables (features). seen: the rows that count as seen, such as
    the training rows. uniform: uniform rows held out for propensities; only `naive-bayes` looks at
    them. gamma: a rule, a preset's name or a number; 1 means that nothing is hidden.
    min_propensity: smaller propensities are raised to it; None: `LARGEST_LOW`, or a tenth of the
    share seen. evidence: of these rows, where it was made before.
    """
    require_propensity(propensity)
    rule = resolve_gamma(gamma)
    evidence = Evidence.of_rows(data, seen) if evidence is None else evidence
    exposure = Exposure.from_rows(data, seen, uniform, evidence.counts)
    low = min(LARGEST_LOW, 0.1 * exposure.rate) if min_propensity is None else min_propensity
    fitted = make_propensity(propensity, low=low).fit(exposure)
    return NominalExposure(
        data, seen, evidence, exposure, propensity, fitted, rule.fit(evidence, rng=seed), seed
    )


@dataclass(frozen=True)
class NominalExposure:
    """Propensity, Γ and bounds of any pairs; made by `estimate_exposure`."""

    data: Dataset
    seen: Interactions
    """The rows that count as seen: the training rows, or all logged rows."""
    evidence: Evidence
    """Counts of these rows by bins of features."""
    exposure: Exposure
    """What the propensity was fitted on."""
    propensity_name: str
    propensity: FittedPropensity
    gamma: Gamma
    seed: int

    @cached_property
    def seen_propensity(self) -> np.ndarray:
        """Propensities of the seen rows, for a log in memory; kept, since training asks often."""
        return self.propensity.predict(self.seen.user, self.seen.item, self.seen.rating)

    def propensity_of(self, rows: Interactions) -> np.ndarray:
        """Propensities of rows, float64."""
        if rows is self.seen:
            return self.seen_propensity
        return self.propensity.predict(rows.user, rows.item, rows.rating)

    def mean_over_pairs(self, value: Callable[[np.ndarray], np.ndarray]) -> float:
        """Mean of a function of p over all pairs, or over `SAMPLED` random ones."""
        size = min(self.data.n_pairs, SAMPLED)
        return sum(float(np.sum(value(part))) for part in self._population()) / size

    def _population(self) -> Iterator[np.ndarray]:
        """Propensities of all pairs, or of `SAMPLED` random ones, some at a time."""
        n_items, n_pairs, rng = (
            self.data.n_items,
            self.data.n_pairs,
            generator(self.seed, "all pairs"),
        )
        for part in row_slices(min(n_pairs, SAMPLED)):
            pair = np.arange(part.start, part.stop)
            if n_pairs > SAMPLED:
                pair = rng.integers(n_pairs, size=pair.size)
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
        n_bins, scale = edges.size + 1, self.data.n_pairs / population.size
        place = np.searchsorted(edges, population, side="right")
        pairs = np.bincount(place, minlength=n_bins) * scale
        seen, weight = np.zeros(n_bins), np.zeros(n_bins)
        for rows in self.seen.parts():
            own = self.propensity_of(rows)
            code = np.searchsorted(edges, own, side="right")
            seen += np.bincount(code, minlength=n_bins)
            weight += np.bincount(code, 1.0 / own - 1.0, minlength=n_bins)
        return WeightCalibration.of(edges, pairs, seen, weight)

    def certifies_levels(self, uniform: Interactions) -> bool:
        """Whether there are rating levels to certify one by one: more than two, and not too
        many."""
        return 2 < self.levels(uniform, "rating").size <= LEVELS_MAX

    def levels(self, uniform: Interactions, outcome: Outcome) -> np.ndarray:
        """All values that labels or ratings have among seen and uniform rows."""
        if outcome == "label":
            return np.array([0.0, 1.0])
        seen = [np.unique(self.seen.rating[part]) for part in row_slices(len(self.seen))]
        return np.unique(np.concatenate([uniform.rating, *seen])).astype(np.float64)

    def certificate(
        self,
        outcome: Outcome,
        uniform: Interactions,
        *,
        adjust: bool = True,
        confidence: float = 0.95,
        rng: Rng | None = None,
        parts: Parts | None = None,
    ) -> Certificate:
        """The Γ that uniform rows prove beyond what the propensity explains; not adjusted: at all.

        Rows whose pair is in the log say nothing of unseen pairs and are left out. parts: seen rows
        with other propensities.
        """
        seed = self.seed if rng is None else rng
        rows, levels = self.unseen(uniform), self.levels(uniform, outcome)
        sums = SeenSums(levels, self.data.n_users, rng=seed)
        for part, p in self.weighted(adjust) if parts is None else parts:
            sums.add(getattr(part, outcome).astype(np.float64), p, part.user)
        value = level_index(getattr(rows, outcome), levels)
        drawn = UniformRows(value, rows.user, self.data.n_users)
        found = certificate(sums, drawn, adjusted=adjust, confidence=confidence, rng=seed)
        return replace(found, propensity=self.propensity_name if adjust else None)

    def weighted(self, adjust: bool = True) -> Parts:
        """Seen rows, some at a time, with the propensities by whose 1/p − 1 they stand for the
        unseen pairs: calibrated ones; not adjusted: none."""
        for rows in self.seen.parts():
            p = self.propensity_of(rows) if adjust else None
            if p is not None and self.weight_calibration is not None:
                p = self.weight_calibration.applied(p)
            yield rows, p

    def unseen(self, uniform: Interactions) -> Interactions:
        """Uniform rows whose pair is not among the seen rows: a random sample of the unseen
        pairs."""
        logged = self.seen.holds(uniform.user, uniform.item)
        if logged.all():
            raise InputError(
                "no uniform row of an unseen pair",
                found=f"{len(uniform):,} uniform rows, all of pairs in the log",
                expected="ratings of items drawn at random",
                hint="A certificate needs pairs that are not in the log.",
            )
        return uniform.take(~logged) if logged.any() else uniform


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
        return 1.0 / (1.0 + factor * (1.0 / propensity - 1.0))
