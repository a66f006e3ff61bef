"""What is a large Γ here? What uniform rows say, what you believe, recorded features, scenarios,
ratings replaced.

Three of them *decide*, since something is known of them: the Γ that uniform ratings prove and
measure, your own number (`believe`), and `TIMES` × the strongest recorded feature (that many traits
like it hidden together: log odds add up). Your number takes the place of the features; what uniform
ratings prove stands beside it. Scenarios (a trait that some share of users holds and that
multiplies their exposure) and single features illustrate, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from puidrec.errors import InputError
from puidrec.exposure.evidence import Calibration, Evidence, calibrate

TIMES = 2.0
"""How many features like the strongest a robust lead must survive, hidden together."""
TINY = 1e-6
"""No share of pairs is taken for closer to 0 or 1: odds must be finite."""
ALL = {"user": "all user features together", "item": "all item features together"}


@dataclass(frozen=True)
class Scenario:
    """A hidden trait held by a share of the users, whose chance to see an item it multiplies."""

    share: float
    factor: float

    def __post_init__(self) -> None:
        if not (0.0 < self.share < 1.0 and 0.0 < self.factor < np.inf):
            raise InputError(
                "a scenario needs a share of users between 0 and 1 and a factor above 0",
                found=f"{self.share:g} and {self.factor:g}",
            )

    @property
    def words(self) -> str:
        """The scenario in words."""
        by = {2.0: "doubles", 3.0: "triples"}.get(self.factor, f"multiplies by {self.factor:g}")
        return f"a hidden trait of {self.share:.0%} of the users that {by} their exposure"

    def gamma(self, rate: float) -> float:
        """Its Γ where a share `rate` of the pairs was seen.

        Those without the trait have exposure p₀ = rate / (1 - share + share·factor), those with it
        p₁ = factor·p₀. Γ is the largest ratio between the odds of either group and the odds of all,
        which are what the log shows.
        """
        rate = min(max(rate, TINY), 1.0 - TINY)
        without = rate / (1.0 - self.share + self.share * self.factor)
        held = min(self.factor * without, 1.0 - TINY)
        odds = [p / (1.0 - p) for p in (rate, without, held)]
        return max(max(o / odds[0], odds[0] / o) for o in odds[1:])


SCENARIOS = (Scenario(0.2, 2.0), Scenario(0.05, 3.0), Scenario(0.5, 1.5))
"""Shown in every audit."""


@dataclass(frozen=True)
class Yardstick:
    """A Γ to compare with: what it is the Γ of."""

    words: str
    gamma: float


def group_calibration(
    evidence: Evidence, groups: Mapping[str, Sequence[str]] | None
) -> Calibration | None:
    """The shift of every named group of columns, and of each side's features together; None where
    there are none."""
    if evidence.log is None:
        return None
    wanted: dict[str, Sequence[str]] = dict(groups or {})
    for side, frame in (("user", evidence.users), ("item", evidence.items)):
        columns = _features(frame, side)
        if len(columns) > 1:
            wanted[ALL[side]] = columns
    known = {*_features(evidence.users, "user"), *_features(evidence.items, "item")}
    for name, own in (groups or {}).items():
        unknown = next((column for column in own if column not in known), None)
        if unknown is not None:
            raise InputError(
                f"no such feature, in group {name}",
                found=unknown,
                expected=", ".join(sorted(known)),
            )
    if not wanted:
        return None
    found = calibrate(evidence, wanted)
    whole = {
        name: side for side, name in ALL.items()
    }  # a column may have the same name on both sides
    return Calibration(
        tuple(row for row in found.rows if whole.get(row.feature, row.side) == row.side)
    )


def _features(frame: pl.DataFrame | None, side: str) -> list[str]:
    return [] if frame is None else [name for name in frame.columns if name != f"{side}_id"]


def deciding(
    believe: float | None, proved: Yardstick | None, features: Calibration | None
) -> Yardstick | None:
    """The Γ that a robust lead must survive; None where nothing is known of Γ here.

    proved: what uniform ratings say of Γ. features: taken where the caller believes nothing.
    """
    if believe is not None and not 1.0 <= believe < np.inf:
        raise InputError("believe is a Γ", found=believe, expected="1 or more", hint="Try 1.5.")
    known = [proved] if proved is not None else []
    if believe is not None:
        known.append(Yardstick("what you believe to be the most", believe))
    else:
        strongest = max(_rows(features), key=lambda row: row.gamma_mean, default=None)
        if strongest is not None and strongest.gamma_mean > 1.0:
            words = f"{TIMES:g} × hiding the strongest feature, {strongest.feature}"
            known.append(Yardstick(words, float(strongest.gamma_mean**TIMES)))
    return max(known, key=lambda row: row.gamma, default=None)


def _rows(calibration: Calibration | None) -> list[Any]:
    return list(calibration.rows) if calibration is not None else []


def benchmarks(calibration: Calibration | None, gamma: float | None) -> list[dict[str, Any]]:
    """Every recorded feature (or group) as a yardstick for Γ: what hiding it does, and how much
    stronger Γ* is."""
    return [
        {
            "feature": row.feature,
            "side": row.side,
            "gamma": row.gamma_mean,
            "gamma_90": row.gamma_90,
            "times_hidden": times_as_strong(gamma, row.gamma_mean),
        }
        for row in sorted(_rows(calibration), key=lambda row: -row.gamma_mean)
    ]


def scenarios(rate: float, gamma: float | None) -> list[dict[str, Any]]:
    """The named scenarios, each with its Γ and whether the lead survives it."""
    found = [(one, one.gamma(rate)) for one in SCENARIOS]
    return [
        {
            "scenario": one.words,
            "share": one.share,
            "factor": one.factor,
            "gamma": own,
            "survived": None if gamma is None else bool(gamma > own),
        }
        for one, own in found
    ]


def times_as_strong(gamma: float | None, shift: float) -> float | None:
    """log Γ* / log shift: how many features like it, hidden together, reach Γ* (log odds add up).

    None where no number of them would.
    """
    if gamma is None or not np.isfinite(gamma) or shift <= 1.0:
        return None
    return max(0.0, float(np.log(gamma) / np.log(shift)))


def replaced(value: np.ndarray, worst: np.ndarray, weight: np.ndarray) -> int | None:
    """The fewest rows whose replacement by the least favourable outcome ends a lead.

    Minimise |R| subject to Σ_{i∉R} w z + Σ_{i∈R} w z_min <= 0: the rows that lose most first. None
    where there is no lead, or where replacing all would not end it.
    """
    total = float(weight @ value)
    if total <= 0.0:
        return None
    loss = np.sort(weight * (value - worst))[::-1]
    lost = np.cumsum(loss)
    return int(np.searchsorted(lost, total)) + 1 if lost[-1] >= total else None
