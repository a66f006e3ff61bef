"""The inputs of an audit, from a data set, a split and one or two models: rows, scores, ranks, propensities, Γ.

`AuditInputs` is all that the log says, `AuditArrays` the rows an audit looks at, as plain arrays, `RankedRows` their
ranks under both models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from puidrec.auditing.envelope import Pairs, sums_by_user
from puidrec.auditing.models import IsotonicMap, ScoreScale, isotonic_map, outcome_scale, to_unit
from puidrec.auditing.ndcg import LikedRows
from puidrec.auditing.ranks import catalogue_credits, rated_credits, sample_users, seen_items
from puidrec.auditing.tipping import Limits, limits
from puidrec.auditing.unseen import LEAK, Fits, Judged, leakage
from puidrec.auditing.yardsticks import group_calibration
from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.sequential import Settlement, settle
from puidrec.exposure.calibrate import Calibration
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.certify import with_checks
from puidrec.exposure.gamma import Gamma, GammaSpec
from puidrec.exposure.nominal import NominalExposure, Outcome
from puidrec.rng import Rng, generator

MAX_HIDING = 500_000
"""Rows in which features are hidden one by one: odds ratios do not depend on how many rows there are."""
ROWS_PER_STRATUM = 200
MAX_CHECKED = 1_000_000
"""Logged rows up to which a certificate comes with its placebo and its segments."""
MAX_STRATA = 50
SAME = 1e-6
"""Predictions of [0, 1] that differ by less are the same: rounding must not decide which model is ahead."""
Lists = Literal["catalogue", "rated"]


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
    log_gamma: np.ndarray
    """log Γ_ui by the Γ rule."""

    @property
    def name(self) -> str:
        """The quantity that decides: the gap of two models, or the loss of one."""
        return "model_loss" if self.against is None else "loss_gap"

    @cached_property
    def personal(self) -> bool:
        """Whether Γ_ui is above 1 anywhere."""
        return bool(self.log_gamma.max() > 1e-9)

    @cached_property
    def main(self) -> Pairs:
        """The pairs of that quantity."""
        return self.losses(self.model) if self.against is None else self.gaps

    @cached_property
    def gaps(self) -> Pairs:
        """Squared error of `against` minus that of `model`: above 0 where the model does better.

        Given the difference of the predictions the gap is linear in the rating, so that difference makes the strata.
        """
        return Pairs(self.gap_at(self.outcome), self.propensity, strata(self.model - self._other))

    def gap_at(self, outcome: np.ndarray | float) -> np.ndarray:
        """The gap if the outcomes were these."""
        apart = np.abs(self.model - self._other) > SAME
        gap: np.ndarray = np.where(apart, (self._other - outcome) ** 2 - (self.model - outcome) ** 2, 0.0)
        return gap

    @property
    def least_favourable(self) -> np.ndarray:
        """The gap at the outcome, 0 or 1, that favours the model least."""
        worst: np.ndarray = np.minimum(self.gap_at(0.0), self.gap_at(1.0))
        return worst

    @property
    def _other(self) -> np.ndarray:
        assert self.against is not None  # noqa: S101 (asked for with two models only)
        return self.against

    def losses(self, prediction: np.ndarray) -> Pairs:
        """Squared error of one model; strata of its predictions."""
        return Pairs((prediction - self.outcome) ** 2, self.propensity, strata(prediction))


def strata(known: np.ndarray, per_stratum: int = ROWS_PER_STRATUM, most: int = MAX_STRATA) -> np.ndarray:
    """Groups of about equal size by a number that is known of seen and unseen pairs alike; ties stay together.

    Few enough that a balance within each is estimated, not assumed: at least `per_stratum` rows on average.
    """
    n = int(np.clip(known.size // per_stratum, 1, most))
    sample = known if known.size <= 1_000_000 else known[:: known.size // 1_000_000 + 1]
    edges = np.unique(np.quantile(sample, np.arange(1, n) / n)) if n > 1 else np.zeros(0)
    codes: np.ndarray = np.searchsorted(edges, known, side="left").astype(np.uint8)
    return codes


@dataclass(frozen=True)
class RankedRows:
    """Rows with the earned of their ranks under both models."""

    lists: Lists
    """Ranked among the catalogue, or among the rated items of the user."""
    users: np.ndarray
    """Codes of the users that were ranked."""
    rows: np.ndarray
    """Positions among the rows of the audit."""
    credit: np.ndarray
    against: np.ndarray | None
    length: float
    """Items of a list, on average."""

    @property
    def known(self) -> np.ndarray:
        """The credit, or the difference of both models' earned: known of every pair, seen or not."""
        return self.credit if self.against is None else self.credit - self.against


@dataclass(frozen=True)
class AuditInputs:
    """Everything an audit needs of the log and the models; each part is made when first asked for, once."""

    data: Dataset
    split: Split
    judged: Judged
    model: Fits
    against: Fits | None
    propensity_name: str
    min_propensity: float | None
    rule: GammaSpec
    seed: int
    k: int = 10
    groups: Mapping[str, Sequence[str]] | None = None
    level: float = 0.95

    @property
    def rows(self) -> Interactions:
        """The logged rows that are audited."""
        return self.judged.rows

    @property
    def fits(self) -> tuple[Fits, ...]:
        """The models, one or two."""
        return (self.model,) if self.against is None else (self.model, self.against)

    @cached_property
    def seen(self) -> Interactions:
        """All logged rows under the protocol: what was seen, whichever part of it trains."""
        return self.data.logged.labelled(self.split.protocol)

    @cached_property
    def nominal(self) -> NominalExposure:
        """Propensities and evidence from the whole log: they learn from exposure, not from ratings."""
        return NominalExposure(
            self.data, self.seen, self.split.propensity, self.propensity_name, self.min_propensity, self.seed,
            calibration_rows=MAX_HIDING,
        )  # fmt: skip

    @cached_property
    def group_calibration(self) -> Calibration | None:
        """The shift that hiding groups of features causes."""
        return group_calibration(self.nominal.evidence, self.groups)

    @cached_property
    def gamma(self) -> Gamma:
        """Γ_ui by the rule."""
        return self.nominal.gamma(self.rule)

    @cached_property
    def scores(self) -> tuple[np.ndarray, ...]:
        """The scores of the rows as each model gives them."""
        return tuple(fits.scores(self.judged) for fits in self.fits)

    @cached_property
    def scales(self) -> tuple[ScoreScale, ...]:
        """The scale of each model's scores."""
        outcome = self.outcome(self.rows)
        return tuple(
            fits.own.scale or outcome_scale(score, outcome, self.data.scale)
            for fits, score in zip(self.fits, self.scores, strict=True)
        )

    @property
    def mapped(self) -> bool:
        """Whether scores had to be mapped to ratings: both models' are, so that neither gains by it alone."""
        return "other" in self.scales

    @cached_property
    def maps(self) -> tuple[IsotonicMap, ...]:
        """Maps from scores to ratings, where they are needed."""
        outcome = self.outcome(self.rows)
        return tuple(isotonic_map(score, outcome, self.seed) for score in self.scores)

    @cached_property
    def predictions(self) -> tuple[np.ndarray, ...]:
        """Scores of the rows on the scale of the outcome."""
        if self.mapped:
            return tuple(own.own(score) for own, score in zip(self.maps, self.scores, strict=True))
        return tuple(to_unit(s, kind, self.data.scale) for s, kind in zip(self.scores, self.scales, strict=True))

    def predicted(self, which: int, rows: Interactions) -> np.ndarray:
        """Predictions of other rows (uniform ones) by a model as it is, on the scale of the outcome."""
        score = self.fits[which].own.scores(rows)
        return self.maps[which].whole(score) if self.mapped else to_unit(score, self.scales[which], self.data.scale)

    @property
    def one_outcome(self) -> str:
        """Why squared error says nothing where all audited ratings are one number (likes); empty where they are not."""
        outcome = self.outcome(self.rows)
        if outcome.min() < outcome.max():
            return ""
        return "all audited ratings are the same, which a model that says one number for all would fit best"

    @cached_property
    def leaks(self) -> tuple[float, ...]:
        """What each model explains of these ratings beyond user and item means (`unseen.leakage`)."""
        outcome = self.outcome(self.rows)
        return tuple(leakage(prediction, outcome, self.rows, self.seed) for prediction in self.predictions)

    def leak(self, names: tuple[str, str]) -> str:
        """Whose scores reproduce the ratings, in words; empty where none do."""
        found = [f"{name} ({share:.0%})" for name, share in zip(names, self.leaks, strict=False) if share > LEAK]
        if not found:
            return ""
        return (
            f"leakage, scores of {' and '.join(found)} reproduce the ratings: they explain more of what user and item "
            "means leave open than rows that a model has not seen allow"
        )

    @cached_property
    def arrays(self) -> AuditArrays:
        """The audited rows as arrays."""
        rows, predictions = self.rows, self.predictions
        return AuditArrays(
            rows.user, rows.item, self.outcome(rows), rows.label, predictions[0],
            predictions[1] if len(predictions) > 1 else None,
            self.nominal.seen_propensity if len(rows) == len(self.seen) else self.nominal.propensity_of(rows),
            self.gamma.log_at(rows.user, rows.item),
        )  # fmt: skip

    def outcome(self, rows: Interactions) -> np.ndarray:
        """What predictions are compared with, in [0, 1]."""
        unit = rows.label if self.model.own.target == "binary" else self.data.scale.unit(rows.rating)
        return unit.astype(np.float64)

    @cached_property
    def ranked_users(self) -> np.ndarray:
        """Users whose lists are ranked: all of the rows, or a sample where that is too much."""
        return sample_users(self.rows.user, self.data.n_items, self.seed)

    @cached_property
    def ranked(self) -> RankedRows:
        """The audited rows ranked: among all items where every fit can score all, else among the rated ones."""
        scorers = [fits.scorers(self.data) for fits in self.fits]
        rows = self.rows
        if any(own is None for own in scorers):
            earned = [rated_credits(rows.user, score, self.k) for score in self.scores]
            users, everything = np.unique(rows.user), np.arange(len(rows))
            return RankedRows(
                "rated", users, everything, earned[0], earned[1] if len(earned) > 1 else None, len(rows) / users.size
            )
        positions, parts = [], [[] for _ in self.fits]  # type: ignore[var-annotated]
        for part in range(len(self.judged.trained_on)):
            mine = np.flatnonzero(self.judged.part == part)
            users = np.intersect1d(self.ranked_users, rows.user[mine])
            seen = self.judged.seen(part, self.data.n_users)
            for m, own in enumerate(scorers):
                assert own is not None  # noqa: S101 (looked at above)
                scorer = own[min(part, len(own) - 1)]
                found, credit = catalogue_credits(users, rows.user[mine], rows.item[mine], scorer, self.k, seen)
                parts[m].append(credit)
            positions.append(mine[found])
        earned = [np.concatenate(own) for own in parts]
        return RankedRows(
            "catalogue", self.ranked_users, np.concatenate(positions), earned[0],
            earned[1] if len(earned) > 1 else None, float(self.data.n_items),
        )  # fmt: skip

    @cached_property
    def dcg(self) -> Pairs:
        """DCG@K, or its difference, as a mean over D of label × credit × items of a list."""
        ranked, arrays = self.ranked, self.arrays
        value = arrays.label[ranked.rows] * ranked.known * ranked.length
        return Pairs(value, arrays.propensity[ranked.rows], strata(ranked.known))

    @cached_property
    def liked(self) -> LikedRows:
        """The liked rows, for NDCG@K."""
        ranked, arrays = self.ranked, self.arrays
        liked = np.flatnonzero(arrays.label[ranked.rows] > 0)
        odds = self.dcg.odds
        n_users = int(np.unique(arrays.user[ranked.rows]).size)
        scale = ranked.length * n_users / self.dcg.nominal
        return LikedRows.of(arrays.user[ranked.rows][liked], ranked.known[liked], odds[liked], scale, self.k)

    @cached_property
    def uniform(self) -> Interactions | None:
        """All uniform rows that the protocol keeps; None where there are none."""
        rows = self.data.uniform.labelled(self.split.protocol) if self.data.uniform is not None else None
        return rows if rows is not None and len(rows) else None

    def certificate(self, rng: Rng) -> tuple[Certificate, str] | None:
        """The smallest Γ that the uniform rows prove beyond the nominal propensity, by rating level or by label.

        Where they do, with its placebo and its segments, unless the log is so large that these would take minutes.
        """
        uniform = self.uniform
        if uniform is None:
            return None
        by_level = self.model.own.target == "rating" and self.nominal.certifies_levels(uniform)
        kind: Outcome = "rating" if by_level else "label"
        try:
            found = self.nominal.certificate(kind, uniform, rng=rng)
            if found.lower > 1.0 and len(self.nominal.seen) <= MAX_CHECKED:
                found = with_checks(found, self.nominal, uniform, kind)
        except InputError:
            return None  # everything was seen: there is no unseen part to certify
        return found, "rating levels" if kind == "rating" else "labels"

    @cached_property
    def uniform_test(self) -> Interactions | None:
        """Uniform rows that trained and chose nothing, where every model can score them; else None."""
        rows = self.split.test
        if self.split.evaluation != "uniform" or not len(rows) or any(fits.own.lacks(rows) for fits in self.fits):
            return None
        return rows

    def settlement(self, rng: Rng) -> Settlement | None:
        """Whether the uniform test rows settle who is ahead in squared error, however often one looks.

        In the order of their timestamps; without these users come in random order, each with all rows at once.
        """
        rows = self.uniform_test
        if rows is None or self.against is None:
            return None
        outcome = self.outcome(rows)
        losses = [(np.clip(self.predicted(m, rows), 0.0, 1.0) - outcome) ** 2 for m in range(2)]
        if "timestamp" in rows.frame.columns:
            order = np.argsort(rows.frame["timestamp"].to_numpy(), kind="stable")
        else:
            place = generator(rng, "arrival").permutation(self.data.n_users)
            order = np.argsort(place[rows.user], kind="stable")
        return settle((losses[1] - losses[0])[order], rows.user[order], alpha=1.0 - self.level)

    @cached_property
    def uniform_differences(self) -> dict[str, Limits]:
        """Leads on the uniform test rows, which need no propensity and no Γ: in error, DCG@K and NDCG@K."""
        rows = self.uniform_test
        if rows is None:
            return {}
        outcome, user = self.outcome(rows), rows.user
        losses = [(self.predicted(m, rows) - outcome) ** 2 for m in range(len(self.fits))]
        found = {"model_loss": self._mean(user, losses[0])}
        if self.against is None:
            return found
        found |= {"against_loss": self._mean(user, losses[1]), "loss_gap": self._mean(user, losses[1] - losses[0])}
        earned, length = self._uniform_credits(rows)
        found["dcg_gap"] = self._mean(user, rows.label * (earned[0] - earned[1]) * length)
        return found | self._uniform_ndcg(rows)

    def _uniform_credits(self, rows: Interactions) -> tuple[list[np.ndarray], float]:
        """Rank earned of uniform rows by the models as they are."""
        scorers = [fits.own.scorer(self.data) for fits in self.fits]
        trained = self.split.train if any(fits.own.refits for fits in self.fits) else None
        if self.ranked.lists == "rated" or len(np.unique(rows.user)) * self.data.n_items > 2 * 10**7:
            scores = [fits.own.scores(rows) for fits in self.fits]
            return [rated_credits(rows.user, score, self.k) for score in scores], len(rows) / np.unique(rows.user).size
        seen = None if trained is None else seen_items(trained.user, trained.item, self.data.n_users)
        found = []
        for scorer in scorers:
            assert scorer is not None  # noqa: S101 (the catalogue was ranked)
            positions, credit = catalogue_credits(np.unique(rows.user), rows.user, rows.item, scorer, self.k, seen)
            placed = np.empty(len(rows))
            placed[positions] = credit
            found.append(placed)
        return found, float(self.data.n_items)

    def _uniform_ndcg(self, rows: Interactions) -> dict[str, Limits]:
        """The difference of NDCG@K as tests of the field measure it: each user's uniform rows ranked."""
        name = f"ndcg@{self.k}"
        own, other = (
            evaluate_scores(rows.user, fits.own.scores(rows), rows.label, metrics=[name]).per_user[name]
            for fits in self.fits
        )
        return {"ndcg_gap": limits((own.values - other.values) / own.values.size, self.level)} if len(own) else {}

    def _mean(self, user: np.ndarray, value: np.ndarray) -> Limits:
        """A mean over rows with its interval over users."""
        return limits(sums_by_user(user, value)[:, 0] / value.size, self.level)


def describe_limits(found: Limits) -> dict[str, float | None]:
    """As plain values; an end that is not known is null."""
    ends = {"value": found.value, "low": found.low, "high": found.high}
    return {name: float(end) if np.isfinite(end) else None for name, end in ends.items()}
