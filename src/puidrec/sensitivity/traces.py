"""Hidden traits of both sides from the evidence of a log, relative to what the bounds will be put around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import logit

from puidrec.features.counts import ExposureCounts
from puidrec.propensity.cells import smoothed_rates
from puidrec.propensity.two_way import TwoWayEffects
from puidrec.sensitivity.evidence import Evidence
from puidrec.sensitivity.shift import Levels, Trace, fitted_level, local_gain, trait_trace, unshrunk

Around = Literal["features", "cells", "two-way"]
Spread = Literal["fitted", "even"]


@dataclass(frozen=True)
class PairShift:
    """logit p_true - logit p of a pair is cell[B_u, B_i] + user trait + item trait."""

    cell: np.ndarray
    user: Trace
    item: Trace


def entity_traces(evidence: Evidence, around: Around, spread: Spread = "fitted") -> tuple[Trace, Trace]:
    """What users and items show beyond their features: s_u - E[s|x_u] and t_i - E[t|x_i], shrunk.

    Around `cells`, E[·|x] is the level of the bin, so features too fine for bins count as hidden; else it is a
    regression on every feature. `spread`: whether the variance of traits is fitted to gain and completeness or even.
    """
    counts, effects = evidence.counts, evidence.two_way
    row = effects.cell_logit @ (counts.items_in_bin / counts.n_items)
    column = (counts.users_in_bin / counts.n_users) @ effects.cell_logit
    user_level, item_level = row[counts.user_bin], column[counts.item_bin]
    users = unshrunk(effects.user_effect, effects.user_variance, effects.ridge.user, user_level)
    items = unshrunk(effects.item_effect, effects.item_variance, effects.ridge.item, item_level)
    user_fit = fitted_level(users, evidence.user_design, counts.user_bin)
    item_fit = fitted_level(items, evidence.item_design, counts.item_bin)
    user_centre, item_centre = (user_level, item_level) if around == "cells" else (user_fit, item_fit)
    user_gap, item_gap = Levels(users.value - user_centre, users.noise), Levels(items.value - item_centre, items.noise)
    if spread == "even":
        return trait_trace(user_gap), trait_trace(item_gap)
    return (
        trait_trace(user_gap, local_gain(user_fit, counts.rate), evidence.user_missing),
        trait_trace(item_gap, local_gain(item_fit, counts.rate), evidence.item_missing),
    )


def pair_shift(evidence: Evidence, around: Around, spread: Spread = "fitted") -> PairShift:
    """The posterior of a pair's shift from the nominal propensity.

    `features`: p averages over traits, and a trait of variance v lifts that average: an entity without any sits about
    v/2 below p. `cells`: p is the rate of the cell. `two-way`: p has the traits in it; their uncertainty remains.
    """
    user, item = entity_traces(evidence, around, spread)
    if around == "cells":
        return PairShift(cell_shift(evidence.two_way, evidence.counts), user, item)
    none = np.zeros(evidence.counts.cells.shape)
    if around == "two-way":
        return PairShift(none, user.centred_at(np.zeros_like(user.mean)), item.centred_at(np.zeros_like(item.mean)))
    return PairShift(none, user.centred_at(user.mean - 0.5 * user.prior), item.centred_at(item.mean - 0.5 * item.prior))


def cell_shift(effects: TwoWayEffects, counts: ExposureCounts) -> np.ndarray:
    """Log-odds of a typical pair of a cell minus those of the cell's rate, which averages over traits."""
    rate, _ = smoothed_rates(counts)
    shift: np.ndarray = effects.cell_logit - logit(np.clip(rate, 1e-12, 1.0 - 1e-12))
    return shift
