"""RQ3: do observed and hidden features inform on exposure in proportion? Both ratios, and what is left of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.experiments.paper_tables import SHARES
from puidrec.experiments.reproduce.chain import (
    ESTIMATORS,
    PERMUTATIONS,
    Exposed,
    Gain,
    Side,
    item_gain,
    user_gain,
)
from puidrec.features.bins import cross
from puidrec.rng import generator

DRAWS = 10
"""Random choices of the observed features, at least: they are cheap."""
STEPS = ("x_u", "x_i", "h_u", "h_i")
RATIOS = {"ratio_user": ("x_u", "h_u"), "ratio_item": ("x_i", "h_i")}
"""`eq:entropy-ratios`: the gain of observed features over that of hidden ones."""


def run_rq3(exposed: Exposed, seed: int, n_permutations: int = PERMUTATIONS) -> list[dict[str, Any]]:
    """Both ratios for the 16 combinations of shares, for one random order of the features.

    An order is drawn once per seed, and a share takes its first features, so that shares are nested. The control
    has whole rows of features permuted: whatever gain it shows is artefact.
    """
    rng = generator(seed, "rq3")
    order = rng.permutation(len(exposed.users)), rng.permutation(len(exposed.items))
    rows = []
    for control, log in (("none", exposed), ("permuted", exposed.shuffled(rng))):
        for r_user in SHARES:
            for r_item in SHARES:
                users, items = _parts(log.users, order[0], r_user), _parts(log.items, order[1], r_item)
                gains = chain_gains(log, users, items, rng, n_permutations)
                rows.append({"control": control, "share_user": r_user, "share_item": r_item, **_row(gains)})
    return [{"experiment": "rq3", "seed": seed, **row} for row in rows]


def observed_features(n: int, one_in: int) -> int:
    """How many features a share of one in `one_in` is: rounded, and at least one."""
    return max(1, round(n / one_in))


def chain_gains(
    exposed: Exposed,
    users: tuple[np.ndarray, np.ndarray],
    items: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    n: int = PERMUTATIONS,
) -> dict[str, Gain]:
    """The four gains of the chain o | x_u | x_i | h_u | h_i, as the paper orders it."""
    (x_u, h_u), (x_i, h_i) = users, items
    nobody, nothing = np.zeros_like(x_u), np.zeros_like(x_i)
    return {
        "x_u": user_gain(exposed, nobody, x_u, nothing, rng, n),
        "x_i": item_gain(exposed, x_u, nothing, x_i, rng, n),
        "h_u": user_gain(exposed, x_u, h_u, x_i, rng, n),
        "h_i": item_gain(exposed, cross(x_u, h_u), x_i, h_i, rng, n),
    }


def ratios(gains: dict[str, Gain]) -> dict[str, dict[str, float | None]]:
    """Both ratios under every estimator; None where the hidden gain is not positive.

    Corrected by permutation, a ratio also needs both gains beyond chance: a quotient of noise says nothing.
    """
    return {
        name: {estimator: _ratio(gains[top], gains[bottom], estimator) for estimator in ESTIMATORS}
        for name, (top, bottom) in RATIOS.items()
    }


def _ratio(top: Gain, bottom: Gain, estimator: str) -> float | None:
    if estimator == "permutation" and not (top.beyond_chance and bottom.beyond_chance):
        return None
    below = bottom.by(estimator)
    return top.by(estimator) / below if below > 1e-12 else None


def _row(gains: dict[str, Gain]) -> dict[str, Any]:
    return {"gains": {step: gain.row() for step, gain in gains.items()}, **ratios(gains)}


def _parts(side: Side, order: np.ndarray, one_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of observed and of hidden features."""
    n = observed_features(len(side), one_in)
    return side.block(order[:n].tolist()), side.block(order[n:].tolist())
