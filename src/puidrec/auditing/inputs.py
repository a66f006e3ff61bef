"""The inputs of an audit, from a data set, a split and one or two models: rows, scores, lists,
propensities, Γ.

`AuditInputs` is all that the log and the uniform rows say, `AuditArrays` the rows an audit looks
at, as plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puidrec.auditing.envelope import Pairs
from puidrec.auditing.models import AuditedModel, isotonic_map
from puidrec.auditing.rows import AS_IS, LEAK, Fits, Judged, leakage
from puidrec.auditing.slots import (
    SlotLead,
    Slots,
    joined,
    rated_lists,
    sample_users,
    slot_discounts,
    slots_of,
    top_lists,
)
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Split
from puidrec.data.tables import row_starts
from puidrec.errors import InputError
from puidrec.evaluation.any_model import ScoreScale, outcome_scale, to_unit
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.certify import with_checks
from puidrec.exposure.estimate import NominalExposure, Outcome, estimate_exposure
from puidrec.exposure.evidence import Evidence
from puidrec.exposure.gamma import Gamma, GammaSpec
from puidrec.exposure.tilt import MIN_ROWS, SegmentTilt, TiltFit, fit_tilt, tilt_rows

MAX_HIDING = 500_000
"""Rows in which features are hidden one by one: odds ratios do not depend on how many rows there
are."""
ROWS_PER_STRATUM, MAX_STRATA = 200, 50
MAX_CHECKED = 1_000_000
"""Logged rows up to which a certificate comes with its placebo and its segments."""
NEAR = 2
"""Lists so many times as long say how far a regression is off near the top (`measured.carried`)."""
SAME = 1e-6
"""Predictions of [0, 1] that differ by less are the same: rounding must not decide which model is
ahead."""


@dataclass(frozen=True)
class AuditArrays:
    """Logged pairs with all that envelopes, tipping points and segments need of them."""

    user: np.ndarray
    item: np.ndarray
    outcome: np.ndarray
    """Ratings, or labels, in [0, 1]."""
    label: np.ndarray
    """1 where the protocol calls the rating positive, else 0."""
    model: np.ndarray
    """Predictions on the scale of the outcome."""
    against: np.ndarray | None
    propensity: np.ndarray

    @property
    def odds(self) -> np.ndarray:
        """Unseen pairs that each row stands for, if nothing is hidden."""
        return np.asarray(1.0 / self.propensity - 1.0)

    @property
    def name(self) -> str:
        """The quantity that decides: the gap of two models, or the loss of one."""
        return "model_loss" if self.against is None else "loss_gap"

    @cached_property
    def main(self) -> Pairs:
        """The pairs of that quantity."""
        return self.losses(self.model) if self.against is None else self.gaps

    @cached_property
    def gaps(self) -> Pairs:
        """Squared error of `against` minus that of `model`: above 0 where the model does better.

        Given the difference of the predictions the gap is linear in the rating, so that difference
        makes the strata.
        """
        assert self.against is not None  # noqa: S101 (asked for with two models only)
        value = gap(self.model, self.against, self.outcome)
        return Pairs(value, self.propensity, strata(self.model - self.against))

    @property
    def least_favourable(self) -> np.ndarray:
        """The gap at the outcome, 0 or 1, that favours the model least."""
        assert self.against is not None  # noqa: S101 (asked for with two models only)
        worst: np.ndarray = np.minimum(*(gap(self.model, self.against, end) for end in (0.0, 1.0)))
        return worst

    def losses(self, prediction: np.ndarray) -> Pairs:
        """Squared error of one model; strata of its predictions."""
        return Pairs((prediction - self.outcome) ** 2, self.propensity, strata(prediction))


def gap(model: np.ndarray, against: np.ndarray, outcome: np.ndarray | float) -> np.ndarray:
    """Squared error of the other minus that of the model."""
    apart = np.abs(model - against) > SAME
    found: np.ndarray = np.where(apart, (against - outcome) ** 2 - (model - outcome) ** 2, 0.0)
    return found


def strata(
    known: np.ndarray, per_stratum: int = ROWS_PER_STRATUM, most: int = MAX_STRATA
) -> np.ndarray:
    """Groups of about equal size by a number that is known of seen and unseen pairs alike; ties
    stay together.

    Few enough that a balance within each is estimated, not assumed: at least `per_stratum` rows on
    average.
    """
    n = int(np.clip(known.size // per_stratum, 1, most))
    sample = known if known.size <= 1_000_000 else known[:: known.size // 1_000_000 + 1]
    edges = np.unique(np.quantile(sample, np.arange(1, n) / n)) if n > 1 else np.zeros(0)
    codes: np.ndarray = np.searchsorted(edges, known, side="left").astype(np.uint8)
    return codes


@dataclass(frozen=True)
class AuditInputs:
    """Everything an audit needs of the log and the models; each part is made when first asked for,
    once."""

    data: Dataset
    split: Split
    judged: Judged
    fits: tuple[Fits, ...]
    """The models, one or two."""
    propensity_name: str
    min_propensity: float | None
    rule: GammaSpec
    seed: int
    k: int = 10
    groups: Mapping[str, Sequence[str]] | None = None
    level: float = 0.95
    replicates: int = 0
    """Bootstrap draws of users for the bands."""

    @property
    def rows(self) -> Interactions:
        """The logged rows that are audited."""
        return self.judged.rows

    @property
    def two(self) -> bool:
        """Whether there is another model."""
        return len(self.fits) > 1

    @property
    def target(self) -> str:
        """What the models predict: `rating` or `binary`."""
        return self.fits[0].own.target

    @cached_property
    def seen(self) -> Interactions:
        """All logged rows under the protocol: what was seen, whichever part of it trains."""
        return self.data.logged.labelled(self.split.protocol)

    @cached_property
    def nominal(self) -> NominalExposure:
        """Propensities and evidence from the whole log: they learn from exposure, not ratings."""
        return estimate_exposure(
            self.data,
            self.seen,
            self.split.propensity,
            self.propensity_name,
            self.rule,
            min_propensity=self.min_propensity,
            seed=self.seed,
            evidence=Evidence.of_rows(self.data, self.seen, MAX_HIDING),
        )

    @cached_property
    def gamma(self) -> Gamma:
        """Γ_ui by the rule."""
        return self.nominal.gamma

    @cached_property
    def scores(self) -> tuple[np.ndarray, ...]:
        """The scores of the rows as each model gives them."""
        return tuple(fits.scores(self.judged) for fits in self.fits)

    @cached_property
    def scales(self) -> tuple[ScoreScale, ...]:
        """The scale of each model's scores."""
        return tuple(
            fits.own.scale or outcome_scale(score, self.outcome(self.rows), self.data.scale)
            for fits, score in zip(self.fits, self.scores, strict=True)
        )

    @property
    def mapped(self) -> bool:
        """Whether scores had to be mapped to ratings: both models' are, so that neither gains by it
        alone."""
        return "other" in self.scales

    @cached_property
    def maps(self) -> tuple[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]], ...]:
        """The rows' scores as ratings, and the map to them, of each model; where that is needed."""
        outcome = self.outcome(self.rows)
        return tuple(isotonic_map(score, outcome, self.seed) for score in self.scores)

    def unit(self, which: int, score: np.ndarray) -> np.ndarray:
        """Scores of a model on the scale of the outcome."""
        if self.mapped:
            return self.maps[which][1](score)
        return to_unit(score, self.scales[which], self.data.scale)

    @cached_property
    def predictions(self) -> tuple[np.ndarray, ...]:
        """Predictions of the rows."""
        if self.mapped:
            return tuple(own for own, _ in self.maps)
        return tuple(self.unit(which, score) for which, score in enumerate(self.scores))

    @property
    def one_outcome(self) -> str:
        """Why squared error says nothing where all audited ratings are one number (likes); empty
        where they are not."""
        outcome = self.outcome(self.rows)
        if outcome.min() < outcome.max():
            return ""
        return (
            "all audited ratings are the same, which a model that says one number for all would "
            "fit best"
        )

    @cached_property
    def leaks(self) -> tuple[float, ...]:
        """What each model explains of these ratings beyond user and item means (`rows.leakage`)."""
        outcome = self.outcome(self.rows)
        return tuple(leakage(prediction, outcome, self.rows) for prediction in self.predictions)

    def leak(self, names: tuple[str, str]) -> str:
        """Whose scores reproduce the ratings, in words; empty where none do."""
        found = [
            (name, f"{share:.0%}")
            for name, share in zip(names, self.leaks, strict=False)
            if share > LEAK
        ]
        if not found:
            return ""
        leaky, shares = (" and ".join(part) for part in zip(*found, strict=True))
        return (
            f"scores of {leaky} reproduce the ratings (leakage): they explain {shares} of what "
            "user and item means leave open, too much for ratings that a model has not seen"
        )

    @cached_property
    def arrays(self) -> AuditArrays:
        """The audited rows as arrays."""
        rows, predictions = self.rows, self.predictions
        return AuditArrays(
            rows.user,
            rows.item,
            self.outcome(rows),
            rows.label,
            predictions[0],
            predictions[1] if self.two else None,
            self.nominal.seen_propensity
            if len(rows) == len(self.seen)
            else self.nominal.propensity_of(rows),
        )

    def outcome(self, rows: Interactions) -> np.ndarray:
        """What predictions are compared with, in [0, 1]."""
        unit = rows.label if self.target == "binary" else self.data.scale.unit(rows.rating)
        return unit.astype(np.float64)

    # lists

    @cached_property
    def listed_users(self) -> np.ndarray:
        """Users whose lists are made: all of the log, or a sample where that is too much."""
        return sample_users(self.seen.user, self.data.n_items, self.seed)

    @cached_property
    def scorable(self) -> bool:
        """Whether every pair has a score, by every fit."""
        every = (fit for fits in self.fits for fit in fits.parts)
        return all(fit.scorer(self.data) is not None for fit in every)

    def lists_of(self, part: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Lists of the models for a part of the rows (or `AS_IS`), `NEAR` times as long as asked.

        By the fits that judge the part, without any logged pair but those that the part judges by.
        They are kept with the fits, which other comparisons may share.
        """
        found: list[np.ndarray] = []
        for fits, measuring in zip(self.fits, self.measuring, strict=True):
            if part not in fits.lists:
                if part == AS_IS:
                    model, logged = measuring, self.seen
                    starts = row_starts(np.asarray(logged.user), self.data.n_users)
                    seen = starts, np.asarray(logged.item)
                else:
                    model = fits.parts[min(part, len(fits.parts) - 1)]
                    seen = self.judged.not_judged(part, self.seen, self.listed_users)
                scorer = model.scorer(self.data)
                assert scorer is not None  # noqa: S101 (`scorable` has asked)
                fits.lists[part] = top_lists(self.listed_users, scorer, NEAR * self.k, seen)
            found.append(fits.lists[part])
        return found[0], found[1] if self.two else None

    @cached_property
    def slots(self) -> Slots:
        """Where the audited rows stand in the lists of both models."""
        if self.scorable:
            return self.slots_within(self.k)
        user, item = self.rows.user, self.rows.item
        users, lists = rated_lists(user, item, self.scores, self.k)
        return slots_of(users, lists[0], lists[1] if self.two else None, user, item)

    @cached_property
    def near_slots(self) -> Slots:
        """The same in lists `NEAR` times as long, where all pairs have scores."""
        return self.slots_within(NEAR * self.k)

    def slots_within(self, k: int) -> Slots:
        """Where the audited rows stand in lists of k."""
        rows, parts = self.rows, []
        for part in range(len(self.judged.trained_on)):
            mine, (own, other) = self.judged.rows_of(part), self.lists_of(part)
            short = own[:, :k], None if other is None else other[:, :k]
            found = slots_of(self.listed_users, *short, rows.user[mine], rows.item[mine])
            parts.append((mine, found))
        return joined(parts)

    def slot_lead(self, metric: str, *, slots: Slots | None = None) -> SlotLead:
        """DCG or precision by slots, from the log: h is the share of logged rows that the part of a
        row holds."""
        slots, arrays, part = slots or self.slots, self.arrays, self.judged.part
        held = np.minimum(np.bincount(part) / max(len(self.seen), 1), 1.0)[part]
        own = slots.row
        return SlotLead.of(
            slots,
            slot_discounts(metric, self.k),
            arrays.label[own],
            (held[own], arrays.odds[own]),
            arrays.user[own],
            self.data.n_users,
        )

    # uniform rows

    @cached_property
    def uniform(self) -> Interactions | None:
        """All uniform rows that the protocol keeps; None where there are none."""
        if self.data.uniform is None:
            return None
        rows = self.data.uniform.labelled(self.split.protocol)
        return rows if len(rows) else None

    @cached_property
    def measuring(self) -> tuple[AuditedModel, ...]:
        """The fits that uniform rows judge: the models as they are, unless they learned from these
        rows."""
        return tuple(
            fits.parts[0]
            if fits.own.uses_uniform and fits.own.trained_on(self.split.test).any()
            else fits.own
            for fits in self.fits
        )

    @cached_property
    def uniform_test(self) -> Interactions | None:
        """Uniform rows that trained and chose nothing, if every model can score them; else None."""
        rows = self.split.test
        if (
            self.split.evaluation != "uniform"
            or not len(rows)
            or any(model.lacks(rows) for model in self.measuring)
        ):
            return None
        used = np.any(
            [model.trained_on(rows) & model.uses_uniform for model in self.measuring], axis=0
        )
        return rows if not used.any() else rows.take(~used) if not used.all() else None

    def measured_predictions(self, rows: Interactions) -> list[np.ndarray]:
        """Predictions of any pairs by the models that uniform rows judge, on the scale of the
        outcome."""
        return [self.unit(which, model.scores(rows)) for which, model in enumerate(self.measuring)]

    @cached_property
    def uniform_predictions(self) -> list[np.ndarray]:
        """Predictions of the uniform test rows."""
        rows = self.uniform_test
        return [] if rows is None else self.measured_predictions(rows)

    @cached_property
    def tilt(self) -> TiltFit | None:
        """How exposure depends on the rating, as uniform rows measure it; None where they are too
        few."""
        if self.uniform is None or self.target != "rating" or self.one_outcome:
            return None
        try:
            drawn = self.nominal.unseen(self.uniform)
        except InputError:
            return None  # everything was seen
        if len(drawn) < MIN_ROWS:
            return None
        return fit_tilt(
            tilt_rows(self.nominal, drawn.user, drawn.item, drawn.rating), self.data.n_users
        )

    @property
    def tilt_limits(self) -> SegmentTilt | None:
        """The tilt over all pairs with its interval."""
        if self.tilt is None or self.uniform is None:
            return None
        low, high = map(float, self.tilt.limits(self.level)[:, 0])
        rows = len(self.uniform), len(self.seen)
        return SegmentTilt("all pairs", *rows, float(self.tilt.slope[0]), low, high)

    @property
    def certified(self) -> Outcome:
        """What a certificate is about: rating levels or labels."""
        by_level = (
            self.target == "rating"
            and self.uniform is not None
            and self.nominal.certifies_levels(self.uniform)
        )
        return "rating" if by_level else "label"

    @cached_property
    def certificate(self) -> Certificate | None:
        """The smallest Γ that the uniform rows prove beyond the nominal propensity, by rating level
        or by label.

        Where they do, with its placebo and its segments, unless the log is so large that these
        would take minutes.
        """
        uniform, kind = self.uniform, self.certified
        if uniform is None:
            return None
        try:
            found = self.nominal.certificate(kind, uniform, rng=self.seed)
            if found.lower > 1.0 and len(self.nominal.seen) <= MAX_CHECKED:
                found = with_checks(found, self.nominal, uniform, kind)
        except InputError:
            return None  # everything was seen: there is no unseen part to certify
        return found
