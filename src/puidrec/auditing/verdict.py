"""The verdict, and the sentence that says it.

overturned  the log does not show the model ahead even if nothing is hidden (the interval of Γ* reaches down to 1), or
            uniform ratings show it behind, or they prove more hidden confounding than the sharp set needs to tip the
            comparison, and do not themselves show the model ahead
robust      even the lower end of Γ* is beyond every yardstick: 1.5, the strongest recorded feature (were it hidden),
            and the Γ that uniform ratings certify
fragile     anything between
single      one model alone: nothing to overturn
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from puidrec.auditing.tipping import Tipping
from puidrec.sensitivity.calibrate import Calibration
from puidrec.sensitivity.certify import Certificate

Verdict = Literal["robust", "fragile", "overturned", "single"]
FLOOR = 1.5
"""No conclusion is called robust that a Γ of this size overturns: the classic data sets prove as much of themselves."""


@dataclass(frozen=True)
class Yardsticks:
    """What a Γ can be measured by; None where the data hold nothing of the kind."""

    calibration: Calibration | None = None
    certificate: Certificate | None = None
    uniform_gap: tuple[float, float, float] | None = None
    """The gap on uniform test rows, which needs no Γ: value, and 95 % interval."""

    @property
    def strongest(self) -> tuple[str, float] | None:
        """The feature whose hiding moves the odds of exposure most, and how far."""
        rows = self.calibration.rows if self.calibration is not None else ()
        best = max(rows, key=lambda row: row.gamma_mean, default=None)
        return (best.feature, best.gamma_mean) if best is not None and best.gamma_mean > 1.0 else None

    @property
    def reference(self) -> float:
        """The Γ that a robust conclusion must survive."""
        feature = self.strongest[1] if self.strongest else 1.0
        proved = self.certificate.gamma if self.certificate is not None else 1.0
        return max(FLOOR, feature, proved)

    @property
    def proved(self) -> float:
        """The Γ that the uniform ratings prove at least; 1 without them."""
        return self.certificate.lower if self.certificate is not None else 1.0


def judge(tipping: Tipping, yardsticks: Yardsticks) -> Verdict:
    """The verdict of a comparison."""
    confirmed = yardsticks.uniform_gap is not None and yardsticks.uniform_gap[1] > 0.0
    refuted = yardsticks.uniform_gap is not None and yardsticks.uniform_gap[2] < 0.0
    outweighed = yardsticks.proved > 1.0 and yardsticks.proved >= tipping.sharp and not confirmed
    if tipping.gamma <= 1.0 or tipping.low <= 1.0 or refuted or outweighed:
        return "overturned"
    return "robust" if tipping.low > yardsticks.reference else "fragile"


def sentence(names: tuple[str, str], tipping: Tipping, yardsticks: Yardsticks, point: float) -> str:
    """The conclusion in one plain sentence."""
    model, against = names
    verdict = judge(tipping, yardsticks)
    gap = yardsticks.uniform_gap
    drawn = _drawn(gap)
    if tipping.gamma <= 1.0:
        less = "no better than" if point == 0.0 else "behind"
        return (
            f"The log does not show {model} ahead of {against}: weighted by exposure, {model} is {less} "
            f"{against}{drawn}."
        )
    if tipping.low <= 1.0:
        return (
            f"The log does not show {model} ahead of {against} beyond chance: resampling its users can tip the "
            f"comparison without any hidden confounding (Γ* = {_gamma(tipping.gamma)}, 95 % {_span(tipping)}){drawn}."
        )
    if verdict == "overturned" and gap is not None and gap[2] < 0.0:
        return (
            f"The log shows {model} ahead of {against}, but the uniform ratings show it behind: what is hidden has "
            f"overturned the comparison already (Γ* = {_gamma(tipping.gamma)})."
        )
    if verdict == "overturned":
        return (
            f"The lead of {model} over {against} in the log proves nothing: hidden confounding of Γ = "
            f"{_gamma(tipping.sharp)} could produce it, and the uniform ratings prove Γ of at least "
            f"{_gamma(yardsticks.proved)}."
        )
    if np.isinf(tipping.gamma):
        return f"{model} does better than {against} on every logged pair, so no hidden confounding can overturn that."
    word = "is robust" if verdict == "robust" else "is fragile"
    return (
        f"The lead of {model} over {against} {word}: it could be overturned if something hidden changed the odds of "
        f"being seen by a factor of {_gamma(tipping.gamma)} (95 % {_span(tipping)}){_compared(tipping, yardsticks)}."
    )


def _drawn(gap: tuple[float, float, float] | None) -> str:
    """What uniform ratings add where the log shows no lead."""
    if gap is None or gap[1] <= 0.0 <= gap[2]:
        return ""
    return "; the uniform ratings do show it ahead" if gap[1] > 0.0 else "; the uniform ratings show it behind"


def single_sentence(model: str, point: float, low: float, high: float, gamma: float) -> str:
    """One model alone: how far its error may be off."""
    return (
        f"The mean squared error of {model} over all pairs is {point:.4f} if nothing is hidden, and lies between "
        f"{low:.4f} and {high:.4f} if something hidden changes the odds of being seen by up to Γ = {gamma:.2f}."
    )


def benchmarks(calibration: Calibration | None, gamma: float | None) -> list[dict[str, Any]]:
    """Every recorded feature as a unit of Γ: how many times over it would have to be hidden to reach Γ*."""
    rows = sorted(calibration.rows, key=lambda row: -row.gamma_mean) if calibration is not None else []
    return [
        {
            "feature": row.feature, "side": row.side, "gamma": row.gamma_mean, "gamma_90": row.gamma_90,
            "times_hidden": times_hidden(gamma, row.gamma_mean),
        }
        for row in rows
    ]  # fmt: skip


def times_hidden(gamma: float | None, shift: float) -> float | None:
    """log Γ* / log shift: log odds add up, so that many such features; None where no number of them would do."""
    if gamma is None or not np.isfinite(gamma) or shift <= 1.0:
        return None
    return max(0.0, float(np.log(gamma) / np.log(shift)))


def _compared(tipping: Tipping, yardsticks: Yardsticks) -> str:
    """The tipping point in units of the strongest feature, or of what uniform ratings say."""
    strongest = yardsticks.strongest
    words = ""
    if strongest is not None:
        times = times_hidden(tipping.gamma, strongest[1])
        words = f", as if a feature like {strongest[0]} had been hidden {times:.1f} times over"
    gap = yardsticks.uniform_gap
    if gap is not None and gap[1] > 0.0:
        words += "; the uniform ratings confirm the lead"
    return words


def _gamma(value: float) -> str:
    return "∞" if np.isinf(value) else f"{value:.2f}"


def _span(tipping: Tipping) -> str:
    return f"{_gamma(tipping.low)} to {_gamma(tipping.high)}"
