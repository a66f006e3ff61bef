"""Where a Γ comes from: one function per source, from a rule and the evidence to a fitted Γ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from puidrec.plugins import Table
from puidrec.rng import Rng, generator
from puidrec.sensitivity.calibrate import SideName
from puidrec.sensitivity.entropy import Gains, Null, bernoulli_entropy
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.fitted import Gamma, TableGamma
from puidrec.sensitivity.traced import TraceGamma
from puidrec.sensitivity.traces import entity_traces, pair_shift

if TYPE_CHECKING:
    from puidrec.sensitivity.gamma import GammaRule

RANDOM_CLASSES = 64


def information(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """`eq:gamma_ui`, composed: scores of scope and direction, weights α and β, and a link that keeps Γ >= 1."""
    counts = evidence.counts
    gains = evidence.gains(rule.entropy, rule.n_permutations, rng)
    user, item = _scores(rule, gains, counts.cells / np.maximum(counts.pairs, 1.0), counts.pairs)
    weight = counts.pairs / counts.pairs.sum()
    alpha, user = _weight(rule, rule.alpha, user, weight, evidence, gains, "user")
    beta, item = _weight(rule, rule.beta, item, weight, evidence, gains, "item")
    printed = alpha * user + beta * item
    clipped = 0.0
    if rule.link == "exp":
        log_gamma = printed
    elif rule.link == "one-plus":
        log_gamma = np.log1p(printed)
    elif rule.link == "clip":
        log_gamma = np.log(np.maximum(printed, 1.0))
        clipped = float(weight[printed < 1.0].sum())
    else:  # info: KL(p + d ‖ p) ≈ (Δ logit)² p(1-p)/2, solved for Δ logit = log Γ
        scale = counts.rate * (1.0 - counts.rate)
        log_gamma = np.sqrt(2.0 * (user + item) / scale) if scale > 0.0 else np.zeros_like(user)
    return TableGamma.make((counts.user_bin, counts.item_bin), log_gamma, cap=rule.cap, share_clipped=clipped)


def exposure_gap(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """log Γ_ui = α |s_u - E[s|x_u]| + β |t_i - E[t|x_i]|: exposed more, or less, than features say; separable.

    `auto`: the mean of a side's part is the shift of hiding a typical feature of that side.
    """
    del rng
    user, item = (np.abs(trace.mean) for trace in entity_traces(evidence, rule.around, rule.spread))
    alpha = _auto(evidence, "user", float(user.mean())) if rule.alpha == "auto" else rule.alpha
    beta = _auto(evidence, "item", float(item.mean())) if rule.beta == "auto" else rule.beta
    counts = evidence.counts
    none = np.zeros(counts.cells.shape)
    return TableGamma.make((counts.user_bin, counts.item_bin), none, (alpha * user, beta * item), cap=rule.cap)


def recovered(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """The Γ that holds a pair's hidden shift with probability `level`, given what its user and item gave away.

    Signed: a user seen too often and an item seen too rarely cancel. What varies from pair to pair leaves no trace.
    """
    del rng
    counts = evidence.counts
    shift = pair_shift(evidence, rule.around, rule.spread)
    bins = (counts.user_bin, counts.item_bin)
    return TraceGamma(*bins, rule.cap, 0.0, shift.cell, shift.user, shift.item, rule.level)


def constant(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """One Γ for every pair: the robust deconfounder's."""
    del rng
    counts = evidence.counts
    bins = (np.zeros_like(counts.user_bin), np.zeros_like(counts.item_bin))
    return TableGamma.make(bins, np.full((1, 1), np.log(rule.value)), cap=max(rule.cap, rule.value))


def random(rule: GammaRule, evidence: Evidence, rng: Rng) -> Gamma:
    """The ablation: log Γ uniform on [0, 2 log value], by random classes of users and items that mean nothing."""
    draw = generator(rng, "gamma-random")
    counts = evidence.counts
    users, items = (draw.integers(0, RANDOM_CLASSES, n).astype(np.int32) for n in (counts.n_users, counts.n_items))
    table = draw.uniform(0.0, 2.0 * np.log(rule.value), (RANDOM_CLASSES, RANDOM_CLASSES))
    weight = np.multiply.outer(*(np.bincount(c, minlength=RANDOM_CLASSES) / c.size for c in (users, items)))
    mean = float((weight * table).sum())
    return TableGamma.make((users, items), table * (np.log(rule.value) / mean if mean > 0.0 else 0.0), cap=rule.cap)


Source = Callable[["GammaRule", Evidence, Rng], Gamma]
_BUILT_IN: dict[str, Source] = {
    "information": information,
    "exposure-gap": exposure_gap,
    "recovered": recovered,
    "constant": constant,
    "random": random,
}
SOURCES = Table(
    "puidrec.gamma_rules", _BUILT_IN, lambda _, source: source if callable(source) else None,
    "a function (rule, evidence, rng) -> Gamma",
)  # fmt: skip
"""A new source is one function here (or in a file of its own) and one line."""


def _scores(rule: GammaRule, gains: Gains, rate: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """User and item scores as tables [user bins, item bins]; their means over D do not depend on the scope."""
    full = np.ones_like(rate)
    if rule.direction == "proportional":
        if rule.scope == "global":
            return gains.gain_user * full, gains.gain_item * full
        return gains.user[:, None] * full, gains.item
    if gains.H <= 0.0:
        return 0.0 * full, 0.0 * full
    left = gains.H - gains.gain_user, max(0.0, gains.H - gains.gain_user - gains.gain_item)
    if rule.scope == "global":
        return left[0] / gains.H * full, left[1] / gains.H * full
    by_user = (rate * pairs).sum(axis=1) / np.maximum(pairs.sum(axis=1), 1.0)
    user = bernoulli_entropy(by_user)[:, None] * (left[0] / gains.H_u if gains.H_u > 0.0 else 0.0) * full
    item = bernoulli_entropy(rate) * (left[1] / gains.H_ui if gains.H_ui > 0.0 else 0.0)
    return user / gains.H, item / gains.H


def _weight(
    rule: GammaRule,
    choice: float | str,
    score: np.ndarray,
    weight: np.ndarray,
    evidence: Evidence,
    gains: Gains,
    side: SideName,
) -> tuple[float, np.ndarray]:
    """α or β and the scores it multiplies. `auto`: the side's mean log Γ is the shift of hiding a typical feature.

    Where the features' gain is not beyond chance, its distribution over bins is noise: the shift is spread evenly.
    """
    if rule.link == "info":
        return 1.0, score
    if choice != "auto":
        return float(choice), score
    shift = evidence.calibration.shift(side)
    target = float(np.expm1(shift)) if rule.link == "one-plus" else shift
    null, plugin = (gains.null_user, gains.plugin_user) if side == "user" else (gains.null_item, gains.plugin_item)
    mean = float((weight * score).sum())
    if mean <= 0.0 or (rule.direction == "proportional" and _by_chance(null, plugin)):
        return target, np.ones_like(score)
    return target / mean, score


def _auto(evidence: Evidence, side: SideName, mean: float) -> float:
    """The weight that makes a part of this mean as large as the shift of hiding a feature."""
    return evidence.calibration.shift(side) / mean if mean > 0.0 else 0.0


def _by_chance(null: Null | None, plugin: float) -> bool:
    return null is not None and plugin <= null.high
