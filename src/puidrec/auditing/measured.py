"""What uniform rows measure of a lead over pairs that are not in the log: there nobody chose, so no
Γ is needed.

uniform   the lead on uniform rows themselves, paired by row and clustered by user
adjusted  the lead in the log, once its weights follow the tilt that uniform rows measure (`exposure.tilt`): far more
          rows, and the assumption that log odds of being seen are linear in the rating
combined  of rankings both, by their precision, where they agree within chance; uniform rows alone where they do not

Few uniform rows fall into lists, so rankings need both: with 500 of them two thirds of true leads
of 10 % were decided instead of a fifth, 1 % of all wrongly. Squared error is decided by uniform
rows alone: they suffice (99 %), and with the adjusted error of cross-fitted models, which have less
to learn from, a tenth was wrong in one world. `bench/guarantees.py` counts this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from puidrec.auditing.estimates import Estimate, Limits, quantile, ratio
from puidrec.auditing.inputs import AuditInputs, gap
from puidrec.auditing.slots import SlotLead, slot_discounts
from puidrec.evaluation.evaluator import evaluate_scores
from puidrec.evaluation.sequential import Settlement, settle
from puidrec.rng import Rng, generator

STEP = 1e-4
"""Of the slope, for the derivative of a lead by it."""


@dataclass(frozen=True)
class Measured:
    """A lead as uniform rows measure it; above 0, the model is ahead."""

    n: int
    """Uniform rows."""
    uniform: Limits
    adjusted: Limits | None = None
    combined: Limits | None = None
    """None: squared error, or there is no adjusted lead, or it disagrees with the uniform rows."""

    @property
    def decides(self) -> Limits:
        """The interval that confirms or refutes."""
        return self.combined or self.uniform


def measure_error(inputs: AuditInputs) -> Measured | None:
    """The lead in squared error."""
    rows = inputs.uniform_test
    if rows is None or not inputs.two:
        return None
    own, other = inputs.uniform_predictions(rows)
    value = gap(own, other, inputs.outcome(rows))
    uniform = _mean(rows.user, value, np.ones(value.size), inputs.data.n_users)
    arrays = inputs.arrays

    def lead(odds_ratio: np.ndarray) -> Estimate:
        weight = (1.0 / arrays.propensity - 1.0) * odds_ratio  # a row stands for unseen pairs only
        return _mean(arrays.user, arrays.gaps.value, weight, inputs.data.n_users)

    return replace(_measured(inputs, value.size, uniform, lead), combined=None)


def measure_slots(inputs: AuditInputs, metric: str) -> Measured | None:
    """The lead in DCG or precision by slots; None where no uniform row is in an exchanged slot."""
    rows, slots = inputs.uniform_test, inputs.uniform_slots
    if rows is None or slots is None or not inputs.two:
        return None
    own, user = slots.row, rows.user[slots.row]
    weights = np.ones(own.size), np.zeros(own.size)
    discount = slot_discounts(metric, inputs.k)
    found = SlotLead.of(slots, discount, rows.label[own], weights, user, inputs.data.n_users)
    if not (found.gain.rows and found.loss.rows):
        return None

    def lead(odds_ratio: np.ndarray) -> Estimate:
        log = inputs.slot_lead(metric, odds_ratio)
        open_half = Estimate(0.0, np.zeros(inputs.data.n_users), (0.5 * log.unsupported) ** 2)
        return log.estimate + open_half

    return _measured(inputs, len(rows), found.estimate, lead)


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


def _measured(
    inputs: AuditInputs, n: int, uniform: Estimate, lead: Callable[[np.ndarray], Estimate]
) -> Measured:
    """lead: the lead in the log, where unseen pairs are l times as many as the propensity says, of
    every row."""
    own, tilt, level = uniform.limits(inputs.level), inputs.tilt, inputs.level
    if tilt is None:
        return Measured(n, own)
    arrays = inputs.arrays
    odds = 1.0 / arrays.propensity - 1.0

    def at(slope: float) -> Estimate:
        change = np.exp(-slope * arrays.outcome)
        return lead(change * float(odds.sum() / max(odds @ change, 1e-300)))

    slope = float(tilt.slope[0])
    found = at(slope)
    derivative = (at(slope + STEP).value - at(slope - STEP).value) / (2.0 * STEP)
    adjusted = found + Estimate(0.0, derivative * tilt.influence[:, 0])
    between = uniform - adjusted
    reach = quantile(level, round(min(max(between.effective - 1.0, 1.0), 1e6), 3)) * np.sqrt(
        between.variance
    )
    if abs(between.value) > reach:
        return Measured(n, own, adjusted.limits(level))
    total = uniform.variance + adjusted.variance
    share = adjusted.variance / total if total > 0.0 else 0.5
    both = uniform * share + adjusted * (1.0 - share)
    return Measured(n, own, adjusted.limits(level), both.limits(level))


def settlement(inputs: AuditInputs, rng: Rng) -> Settlement | None:
    """Whether the uniform test rows settle who is ahead in squared error, however often one looks.

    In the order of their timestamps; without these users come in random order, each with all rows
    at once.
    """
    rows = inputs.uniform_test
    if rows is None or not inputs.two:
        return None
    outcome = inputs.outcome(rows)
    losses = [(np.clip(own, 0.0, 1.0) - outcome) ** 2 for own in inputs.uniform_predictions(rows)]
    if "timestamp" in rows.frame.columns:
        order = np.argsort(rows.frame["timestamp"].to_numpy(), kind="stable")
    else:
        place = generator(rng, "arrival").permutation(inputs.data.n_users)
        order = np.argsort(place[rows.user], kind="stable")
    return settle((losses[1] - losses[0])[order], rows.user[order], alpha=1.0 - inputs.level)
