"""What uniform rows measure of a lead over pairs that are not in the log: there nobody chose, so no
Γ is needed.

uniform   the lead on uniform rows themselves, paired by row and clustered by user
adjusted  the lead in the log, once its weights follow the tilt that uniform rows measure
          (`exposure.tilt`): far more rows, and the assumption that log odds of being seen are
          linear in the rating
combined  of rankings both, by their precision, where they agree within chance; uniform rows decide
          where they do not

Few uniform rows fall into lists, and few logged rows that do carry most of the weight 1/p − 1. So
rankings are measured in two steps (`carried`), as surveys are: a regression of what is liked on the
scores of both models and the propensity, from all rows that were judged, says what each pair of the
lists is worth; what it leaves over among rows that are in the lists corrects it. Where the
regression is wrong, the correction takes that out; where it is right, there is little left to vary.
Corrected by uniform rows it holds whatever drove the log. Corrected by logged rows it varies less,
and is off where the tilt or the regression are (`MISFIT`). Squared error is decided by uniform rows
alone: they suffice. `bench/guarantees.py` counts all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from puidrec.auditing.estimates import Estimate, Limits, quantile, ratio
from puidrec.auditing.inputs import NEAR, AuditInputs, gap
from puidrec.auditing.rows import AS_IS
from puidrec.auditing.slots import SlotLead, exchanged_pairs, slot_discounts, slots_of
from puidrec.data.dataset import Interactions
from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.sequential import Settlement, settle
from puidrec.exposure.tilt import TiltFit
from puidrec.rng import Rng, generator

STEP = 1e-4
"""Of the slope, for the derivative of a lead by it."""
LIKELY = 0.02
"""No pair is taken for liked with a smaller or larger chance than this and its complement."""
MISFIT = 0.03
"""How far off the adjusted log is beyond chance, in the share liked on either side of an exchange,
as a standard deviation. It does not shrink with the rows. In 24 simulated logs of six worlds it was
.027 (.01 to .05 by world); without it, 85 % of the 95 % intervals that decide a ranking hold the
true lead."""
RIDGE = 1e-9
TINY = 1e-300


@dataclass(frozen=True)
class Measured:
    """A lead as uniform rows measure it; above 0, the model is ahead."""

    n: int
    """Uniform rows."""
    uniform: Limits
    adjusted: Limits | None = None
    combined: Limits | None = None
    """None: squared error, or there is no adjusted lead."""

    @property
    def decides(self) -> Limits:
        """The interval that confirms or refutes."""
        return self.combined or self.uniform


def measure_error(inputs: AuditInputs) -> Measured | None:
    """The lead in squared error."""
    rows = inputs.uniform_test
    if rows is None or not inputs.two:
        return None
    own, other = inputs.uniform_predictions
    value = gap(own, other, inputs.outcome(rows))
    uniform = _mean(rows.user, value, np.ones(value.size), inputs.data.n_users)
    arrays, level = inputs.arrays, inputs.level

    def lead(tilted: np.ndarray) -> Estimate:
        weight = arrays.odds * tilted  # a row stands for unseen pairs only
        return _mean(arrays.user, arrays.gaps.value, weight, inputs.data.n_users)

    adjusted = None if inputs.tilt is None else _tilted(inputs, inputs.tilt, lead).limits(level)
    return Measured(value.size, uniform.limits(level), adjusted)


def measure_slots(inputs: AuditInputs, metric: str) -> Measured | None:
    """The lead in DCG or precision by slots; None where no uniform row is in an exchanged slot."""
    rows, level, k = inputs.uniform_test, inputs.level, inputs.k
    if rows is None or not inputs.two or not inputs.scorable:
        return None
    discount, shape = slot_discounts(metric, k), (inputs.data.n_users, inputs.data.n_items)
    first, second = inputs.lists_of(AS_IS)
    assert second is not None  # noqa: S101 (there are two)
    users = inputs.listed_users
    slots = slots_of(users, first[:, :k], second[:, :k], rows.user, rows.item)
    own, alike = slots.row, (np.ones(slots.row.size), np.zeros(slots.row.size))
    found = SlotLead.of(slots, discount, rows.label[own], alike, rows.user[own], shape[0])
    if not (found.gain.rows and found.loss.rows):
        return None
    uniform = found.estimate.limits(level)
    if inputs.tilt is None:
        return Measured(len(rows), uniform)
    listed, log, drawn = _evidence(inputs, metric, rows, (first, second))

    def lead(tilted: np.ndarray) -> Estimate:
        return carried(listed, log, tilted, log._replace(weight=tilted * log.weight), shape)

    def corrected(tilted: np.ndarray) -> Estimate:
        return carried(listed, log, tilted, drawn, shape)

    adjusted = _tilted(inputs, inputs.tilt, lead)
    gain = listed[1]
    masses = float(gain[gain > 0.0].sum()), float(gain[gain < 0.0].sum())
    misfit = MISFIT**2 * (masses[0] ** 2 + masses[1] ** 2)
    adjusted += Estimate(0.0, np.zeros(shape[0]), misfit)
    combined = _together(_tilted(inputs, inputs.tilt, corrected), adjusted, level)
    return Measured(len(rows), uniform, adjusted.limits(level), combined.limits(level))


class LabelledRows(NamedTuple):
    """Rows with a label, each in the lists of one model, both or none."""

    features: np.ndarray
    label: np.ndarray
    gain: np.ndarray
    """Discount by the model − discount by the other; 0 in no list."""
    weight: np.ndarray
    user: np.ndarray
    item: np.ndarray

    def by_user(self, value: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Sums over users, and the variance that items add: rows of an item have much in common."""
        item = np.bincount(self.item, value, shape[1])
        more = float(item @ item - value @ value)
        return np.bincount(self.user, value, shape[0]), max(more, 0.0)


def features(predictions: Sequence[np.ndarray], propensity: np.ndarray) -> np.ndarray:
    """What the regression knows of a pair: both models' predictions, log odds of being unseen."""
    unseen = np.log(np.maximum(1.0 / propensity - 1.0, 1e-6))
    return np.stack([np.ones_like(unseen), *predictions, unseen], axis=1)


def _evidence(
    inputs: AuditInputs, metric: str, rows: Interactions, lists: tuple[np.ndarray, np.ndarray]
) -> tuple[tuple[np.ndarray, np.ndarray], LabelledRows, LabelledRows]:
    """What `carried` takes: the lists' pairs, the judged logged rows, and the uniform rows.

    Rows count as in a list if they are in one `NEAR` times as long: a regression is off there as in
    the list itself, and they are that many more. Logged rows are weighted by the square roots of
    the odds of being unseen: what goes with the odds the regression has taken out.
    """
    arrays, near = inputs.arrays, slot_discounts(metric, NEAR * inputs.k)
    columns = features(inputs.predictions, arrays.propensity)
    gain = inputs.near_slots.exchanged(near, len(arrays.user))
    weight = np.sqrt(arrays.odds)
    log = LabelledRows(columns, arrays.label, gain, weight, arrays.user, arrays.item)

    columns = features(inputs.uniform_predictions, inputs.nominal.propensity_of(rows))
    slots = slots_of(inputs.listed_users, *lists, rows.user, rows.item)
    gain = slots.exchanged(near, len(rows))
    drawn = LabelledRows(columns, rows.label, gain, np.ones(len(rows)), rows.user, rows.item)

    own, other = (one[:, : inputs.k] for one in lists)
    place, item, rank, against = exchanged_pairs(own, other)
    discount = slot_discounts(metric, inputs.k)
    gain = discount[rank] - discount[against]
    moved = np.flatnonzero(gain)
    codes = {"user": inputs.listed_users[place[moved]], "item": item[moved]}
    frame = pl.DataFrame(codes, schema={"user": pl.Int32, "item": pl.Int32})
    pairs = Interactions(frame, rows.users, rows.items, rows.scale)
    propensity = inputs.nominal.propensity.predict(pairs.user, pairs.item, None)
    columns = features(inputs.measured_predictions(pairs), propensity)
    return (columns, gain[moved] / max(len(own), 1)), log, drawn


def carried(
    listed: tuple[np.ndarray, np.ndarray],
    log: LabelledRows,
    tilted: np.ndarray,
    rows: LabelledRows,
    shape: tuple[int, int],
) -> Estimate:
    """The lead as a regression carries it from logged rows to the lists, corrected by what it
    leaves over among `rows`.

        β = argmin Σ_log l (liked − xβ)²
        lead = Σ_lists g xβ + Σ_sides ± |g| of the side · Σ_rows w |g| (liked − xβ) / Σ_rows w |g|

    l: the measured tilt. Errors have users and items as clusters; a correction varies at least as
    much as labels with the chances xβ do, even where its few rows are all liked.
    """
    columns, gain = listed
    moment = log.features.T @ (tilted[:, None] * log.features)
    inverse = np.linalg.inv(moment + RIDGE * np.trace(moment) * np.eye(len(moment)))
    beta = inverse @ (log.features.T @ (tilted * log.label))
    lever = gain @ columns
    sides = []
    for sign in (1.0, -1.0):
        mass = float(np.maximum(sign * gain, 0.0).sum())
        own = np.flatnonzero(sign * rows.gain > 0.0)
        weight = rows.weight[own] * np.abs(rows.gain[own])
        if own.size == 0 or mass == 0.0:  # no row says how far the regression is off
            sides.append(Estimate(0.0, np.zeros(shape[0]), (0.5 * mass) ** 2))
            continue
        share, x = weight / weight.sum(), rows.features[own]
        left, chance = rows.label[own] - x @ beta, np.clip(x @ beta, LIKELY, 1.0 - LIKELY)
        mean = float(share @ left)
        one = LabelledRows(x, left, share, share, rows.user[own], rows.item[own])
        influence, more = one.by_user(mass * share * (left - mean), shape)
        least = mass**2 * float(share**2 @ (chance * (1.0 - chance)))
        slack = max(least - float(influence @ influence), more)
        users = np.bincount(one.user, share)
        sides.append(sign * Estimate(mass * mean, influence, slack, 1.0 / float(users @ users)))
        lever = lever - sign * mass * (share @ x)
    moved = tilted * (log.label - log.features @ beta) * (log.features @ (inverse @ lever))
    influence, more = log.by_user(moved, shape)
    return Estimate(float(gain @ (columns @ beta)), influence, more) + sides[0] + sides[1]


def measure_ndcg(inputs: AuditInputs) -> Measured | None:
    """The lead in NDCG@K with each user's uniform rows as the list: fully rated, so that its
    normaliser is known."""
    rows = inputs.uniform_test
    if rows is None or not inputs.two:
        return None
    name = f"ndcg@{inputs.k}"
    own, other = (
        evaluate_scores(rows.user, model.scores(rows), rows.label, metrics=[name]).per_user[name]
        for model in inputs.measuring
    )
    if not len(own):
        return None
    return Measured(
        len(rows), ratio(own.values - other.values, np.ones(len(own))).limits(inputs.level)
    )


def _mean(user: np.ndarray, value: np.ndarray, weight: np.ndarray, n_users: int) -> Estimate:
    """Σ w z / Σ w with the influence of each user."""
    return ratio(np.bincount(user, weight * value, n_users), np.bincount(user, weight, n_users))


def _tilted(inputs: AuditInputs, tilt: TiltFit, lead: Callable[[np.ndarray], Estimate]) -> Estimate:
    """A lead where unseen pairs are l times as many as the propensity says, with the error of the
    measured l."""
    arrays, slope, unseen = inputs.arrays, float(tilt.slope[0]), inputs.arrays.odds

    def at(slope: float) -> Estimate:
        change = np.exp(-slope * arrays.outcome)
        return lead(change * float(unseen.sum() / max(unseen @ change, TINY)))

    found = at(slope)
    derivative = (at(slope + STEP).value - found.value) / STEP
    return found + Estimate(0.0, derivative * tilt.influence[:, 0])


def _together(one: Estimate, other: Estimate, level: float) -> Estimate:
    """Both by their precision; the one alone where they differ by more than chance."""
    between = one - other
    degrees = round(min(max(between.effective - 1.0, 1.0), 1e6), 3)
    if abs(between.value) > quantile(level, degrees) * np.sqrt(between.variance):
        return one
    total = one.variance + other.variance
    share = other.variance / total if total > 0.0 else 0.5
    return one * share + other * (1.0 - share)


def settlement(inputs: AuditInputs, rng: Rng) -> Settlement | None:
    """Whether the uniform test rows settle who is ahead in squared error, however often one looks.

    In the order of their timestamps; without these users come in random order, each with all rows
    at once.
    """
    rows = inputs.uniform_test
    if rows is None or not inputs.two:
        return None
    outcome = inputs.outcome(rows)
    losses = [(np.clip(own, 0.0, 1.0) - outcome) ** 2 for own in inputs.uniform_predictions]
    if "timestamp" in rows.frame.columns:
        order = np.argsort(rows.frame["timestamp"].to_numpy(), kind="stable")
    else:
        place = generator(rng, "arrival").permutation(inputs.data.n_users)
        order = np.argsort(place[rows.user], kind="stable")
    return settle((losses[1] - losses[0])[order], rows.user[order], alpha=1.0 - inputs.level)
