"""Bands over users: percentiles of what envelopes become when the users are drawn anew.

A replicate would sort its own rows; by the envelope theorem that is not needed. The thresholds of the whole sample are
kept, and only the users' sums behind them are drawn again: wrong by the square of the sampling error only. For the
sharp set the multipliers of the balance are kept (its dual), which errs outwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from puidrec.auditing.envelope import Curve, End, Kind, Pairs, Strength, normalised
from puidrec.evaluation.significance import resampled_sums
from puidrec.rng import Rng, generator

ENDS: tuple[End, End] = ("low", "high")


@dataclass(frozen=True)
class Users:
    """Rows by user, as codes without gaps."""

    code: np.ndarray
    n: int

    @classmethod
    def of(cls, user: np.ndarray) -> Users:
        """From any integer codes."""
        present = np.zeros(int(user.max()) + 1, bool)
        present[user] = True
        code = np.cumsum(present) - 1
        return cls(code[user], int(present.sum()))

    def sums(self, *values: np.ndarray) -> np.ndarray:
        """Σ of each value per user, [users, values]."""
        return np.stack([np.bincount(self.code, value, minlength=self.n) for value in values], axis=1)


def contributions(pairs: Pairs, kind: Kind, gamma: Strength, end: End) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of each row in an end of an envelope: their sums' ratio is that end."""
    z, k = pairs.value, pairs.odds
    sign = 1.0 if end == "high" else -1.0
    if kind == "sharp":
        levels = pairs.stratified.lifts(gamma).thresholds(high=end == "high")
        level = levels[0] if pairs.stratum is None else levels[pairs.stratum]
        beyond = z - level
        return z + k * (level + beyond * np.where(sign * beyond > 0.0, gamma, 1.0 / gamma)), 1.0 + k
    threshold = getattr(normalised(pairs, gamma), end) if kind == "normalised" else 0.0
    weight = 1.0 + k * np.where(sign * (z - threshold) > 0.0, gamma, 1.0 / gamma)
    return weight * z, weight if kind == "normalised" else 1.0 + k


def band(
    pairs: Pairs,
    kind: Kind,
    strengths: Sequence[Strength],
    user: np.ndarray,
    *,
    replicates: int = 200,
    level: float = 0.95,
    rng: Rng = 0,
) -> Curve:
    """The percentile band of an envelope: the lower tail of its low end, the upper tail of its high end.

    All strengths share their replicates, so that a band is as smooth as its envelope.
    """
    users = Users.of(user)
    ends: list[np.ndarray] = []
    for end in ENDS:
        columns = [users.sums(*contributions(pairs, kind, gamma, end)) for gamma in strengths]
        totals = resampled_sums(np.concatenate(columns, axis=1), replicates, generator(rng, "band"))
        tail = (1.0 - level) / 2.0
        at = tail if end == "low" else 1.0 - tail
        ends.append(np.quantile(totals[:, 0::2] / totals[:, 1::2], at, axis=0))
    return Curve(ends[0], ends[1])
