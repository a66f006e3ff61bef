"""Envelopes of every quantity as plain values: over Γ for all pairs alike, and over κ for the personalised shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puidrec.auditing.case import Case, strata
from puidrec.auditing.envelope import KINDS, Curve, Kind, Pairs, Strength, over_grid, over_kappa, personalised
from puidrec.auditing.ranks import Ranked
from puidrec.auditing.resample import band
from puidrec.rng import Rng

BAND_OF: Kind = "normalised"
N_KAPPA, FEW_KAPPA, MANY_ROWS = 21, 7, 2_000_000


@dataclass(frozen=True)
class Bootstrap:
    """How bands are drawn; no replicates, no bands."""

    replicates: int
    level: float
    rng: Rng


@dataclass(frozen=True)
class Quantity:
    """A mean over D that an audit bounds: its pairs, the rows they are of, and their users."""

    pairs: Pairs
    user: np.ndarray
    log_gamma: np.ndarray


def quantities(case: Case, ranked: Ranked | None, n_items: int) -> Iterator[tuple[str, Quantity]]:
    """The gap (or the loss of one model) first, then what it is made of, and DCG; one at a time, for memory."""
    yield case.name, Quantity(case.main, case.user, case.log_gamma)
    if case.against is not None:
        yield "model_loss", Quantity(case.losses(case.model), case.user, case.log_gamma)
        yield "against_loss", Quantity(case.losses(case.against), case.user, case.log_gamma)
    if ranked is not None and ranked.rows.size:
        rows = ranked.rows
        known = ranked.credit if ranked.against_credit is None else ranked.credit - ranked.against_credit
        pairs = Pairs(case.label[rows] * known * n_items, case.propensity[rows], strata(known))
        name = "model_dcg" if ranked.against_credit is None else "dcg_gap"
        yield name, Quantity(pairs, case.user[rows], case.log_gamma[rows])


def over_gammas(quantity: Quantity, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """All envelopes of a quantity over a grid of Γ."""
    curves = {kind: over_grid(quantity.pairs, kind, grid) for kind in KINDS}
    return _plain(quantity, curves, [float(g) for g in grid], bootstrap)


def over_kappas(quantity: Quantity, kappas: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """All envelopes of a quantity over a grid of κ, Γ_ui^κ."""
    curves = over_kappa(quantity.pairs, quantity.log_gamma, kappas)
    strengths = [personalised(quantity.log_gamma, float(k)) for k in kappas] if bootstrap.replicates else []
    return _plain(quantity, curves, strengths, bootstrap)


def kappa_grid(log_gamma: np.ndarray, limit: float) -> np.ndarray:
    """κ from 0 to where the mean Γ_ui^κ of the rows reaches the Γ limit, κ = 1 among them where it is below that."""
    mean = float(log_gamma.mean())
    top = max(1.0, float(np.log(limit)) / mean) if mean > 0.0 else 1.0
    top = min(top, 20.0)
    size = N_KAPPA if log_gamma.size <= MANY_ROWS else FEW_KAPPA
    grid = np.linspace(0.0, top, size)
    grid[np.abs(grid - 1.0).argmin()] = 1.0
    return grid


def _plain(
    quantity: Quantity, curves: dict[Kind, Curve], strengths: Sequence[Strength], bootstrap: Bootstrap
) -> dict[str, Any]:
    found: dict[str, Any] = {"point": quantity.pairs.point}
    for kind, curve in curves.items():
        found[kind] = _ends(curve)
        if bootstrap.replicates:
            drawn = band(
                quantity.pairs, kind, strengths, quantity.user,
                replicates=bootstrap.replicates, level=bootstrap.level, rng=bootstrap.rng,
            )  # fmt: skip
            found[kind]["band"] = _ends(drawn)
    if bootstrap.replicates:
        found |= {"band": found[BAND_OF]["band"], "band_of": BAND_OF}
    return found


def _ends(curve: Curve) -> dict[str, list[float]]:
    return {"low": curve.low.tolist(), "high": curve.high.tolist()}
