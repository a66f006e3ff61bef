"""The verdict on a lead, and its words. Error and ranking are judged by the same rule, side by side.

refuted    uniform ratings show the other model ahead, beyond chance
undecided  the log does not show the model ahead beyond chance (the interval of Γ* reaches down to 1), or the scores of
           a model reproduce the ratings they are judged by, so that nothing can be learned from these rows
robust     even the lower end of Γ* is above every yardstick, and above the Γ that uniform ratings prove
fragile    a lead beyond chance that one of these could overturn
single     one model alone: there is no lead

A yardstick is a Γ that is known or imaginable here: 1.5, each recorded feature and group of features (were it hidden),
a named scenario. Of uniform ratings the lower limit counts, never an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from puidrec.auditing.tipping import Limits, Tipping

AuditVerdict = Literal["robust", "fragile", "undecided", "refuted", "single"]
FLOOR = 1.5
"""No conclusion is called robust that a Γ of this size overturns: the classic data sets prove as much of themselves."""


@dataclass(frozen=True)
class Yardstick:
    """A Γ to compare with: what it is the Γ of, in words that follow "as strong as"."""

    words: str
    gamma: float
    feature: str = ""
    """The recorded feature whose hiding it is, if it is one."""


@dataclass(frozen=True)
class Yardsticks:
    """All that a Γ can be measured by in one audit."""

    rows: tuple[Yardstick, ...] = ()
    proved: float = 1.0
    """The Γ that uniform ratings prove at least, hidden or missed by the propensity; 1 without them."""

    @property
    def largest(self) -> Yardstick:
        """What a robust lead must survive."""
        floor = Yardstick(f"a factor of {FLOOR:g}", FLOOR)
        proved = Yardstick("what uniform ratings prove to be hidden, or missed by the propensity", self.proved)
        return max((floor, *self.rows, proved), key=lambda row: row.gamma)

    @property
    def strongest_feature(self) -> Yardstick | None:
        """The feature whose hiding moves the odds of exposure most; None where none moves them."""
        features = [row for row in self.rows if row.feature and row.gamma > 1.0]
        return max(features, key=lambda row: row.gamma, default=None)


@dataclass(frozen=True)
class Lead:
    """What a log, and uniform ratings where there are some, say of one model against another by one metric."""

    metric: str
    """`squared error`, `DCG@10`, `NDCG@10`."""
    tipping: Tipping
    uniform: Limits | None = None
    """The same difference on uniform test rows, which needs no Γ; above 0 where the model is ahead."""
    n_uniform: int = 0
    leak: str = ""
    """Why the rows show nothing (scores that reproduce the ratings), in words; empty where they may."""

    @property
    def level(self) -> bool:
        """Whether no row tells the two models apart."""
        lead = self.tipping.lead
        return lead.value == lead.low == lead.high == 0.0

    @property
    def confirmed(self) -> bool:
        """Whether uniform rows show the model ahead, beyond chance."""
        return self.uniform is not None and self.uniform.low > 0.0

    @property
    def refuted(self) -> bool:
        """Whether uniform rows show it behind, beyond chance."""
        return self.uniform is not None and self.uniform.high < 0.0


def judge(lead: Lead, yardsticks: Yardsticks) -> AuditVerdict:
    """The verdict on a lead."""
    if lead.refuted:
        return "refuted"
    if lead.leak or lead.tipping.low <= 1.0:
        return "undecided"
    return "robust" if lead.tipping.low > yardsticks.largest.gamma else "fragile"


def sentence(names: tuple[str, str], asked: Lead, others: tuple[Lead, ...], yardsticks: Yardsticks) -> str:
    """The conclusion in one plain sentence: by the metric asked for, then by the others, and whether they disagree."""
    main = judge(asked, yardsticks)
    text = _WORDS[main](names, asked, yardsticks)
    for lead in others:
        verdict = judge(lead, yardsticks)
        if verdict == main:
            text += f"; by {lead.metric} it is {verdict} too: {_short(names, lead, verdict)}"
        else:
            text += f"; {lead.metric} disagrees, by it the lead is {verdict}: {_short(names, lead, verdict)}"
    return f"{text}."


def _robust(names: tuple[str, str], lead: Lead, yardsticks: Yardsticks) -> str:
    tipping, largest = lead.tipping, yardsticks.largest
    confirmed = "; the uniform ratings confirm it" if lead.confirmed else ""
    if np.isinf(tipping.gamma):
        return (
            f"The lead of {names[0]} over {names[1]} in {lead.metric} is robust: no finite Γ overturns it, since "
            f"{names[0]} does no worse on any of these rows{confirmed}"
        )
    return (
        f"The lead of {names[0]} over {names[1]} in {lead.metric} is robust: to overturn it, something hidden would "
        f"have to change the odds of being seen by a factor of Γ* = {gamma_text(tipping.gamma)} (95 % "
        f"{_span(tipping)}), more than every yardstick here (the largest: {largest.words}, "
        f"Γ = {largest.gamma:.2f}){confirmed}"
    )


def _fragile(names: tuple[str, str], lead: Lead, yardsticks: Yardsticks) -> str:
    tipping, compared = lead.tipping, ""
    feature = yardsticks.strongest_feature
    if yardsticks.proved >= tipping.low and yardsticks.proved > 1.0:
        compared = (
            f", and the uniform ratings show that Γ is at least {yardsticks.proved:.2f} here (hidden, or missed by the "
            "propensity)"
        )
    elif feature is not None and np.isfinite(tipping.gamma):
        times = np.log(tipping.gamma) / np.log(feature.gamma)
        compared = f", {times:.1f} × as strong as {feature.words}"
    confirmed = "; the uniform ratings confirm the lead, which needs no Γ" if lead.confirmed else ""
    return (
        f"The lead of {names[0]} over {names[1]} in {lead.metric} is fragile: it could be overturned if something "
        f"hidden changed the odds of being seen by a factor of Γ* = {gamma_text(tipping.gamma)} (95 % "
        f"{_span(tipping)}){compared}{confirmed}"
    )


def _undecided(names: tuple[str, str], lead: Lead, yardsticks: Yardsticks) -> str:
    confirmed = f"; the {lead.n_uniform:,} uniform ratings do show {names[0]} ahead" if lead.confirmed else ""
    return f"{names[0]} against {names[1]} in {lead.metric} is undecided: {_why(names, lead)}{confirmed}"


def _refuted(names: tuple[str, str], lead: Lead, yardsticks: Yardsticks) -> str:
    assert lead.uniform is not None  # noqa: S101 (refuted by uniform rows only)
    shown = "" if lead.tipping.low > 1.0 else "does not even show"
    claim = f"the log shows {names[0]} ahead" if not shown else f"the log {shown} it ahead beyond chance"
    return (
        f"The lead of {names[0]} over {names[1]} in {lead.metric} is refuted: {claim}, and {lead.n_uniform:,} uniform "
        f"ratings show {names[1]} ahead (difference {number(lead.uniform.value)}, 95 % {number(lead.uniform.low)} to "
        f"{number(lead.uniform.high)})"
    )


_WORDS = {"robust": _robust, "fragile": _fragile, "undecided": _undecided, "refuted": _refuted}


def _why(names: tuple[str, str], lead: Lead) -> str:
    """Why the log shows no lead."""
    found = lead.tipping.lead
    if lead.leak:
        return f"these rows show nothing: {lead.leak}"
    if lead.level:
        return "their scores do not tell them apart on these rows"
    if found.high < 0.0:
        return f"the log shows {names[1]} ahead, not {names[0]} ({_difference(found)})"
    side = "behind" if found.value < 0.0 else "ahead"
    return f"the log shows {names[0]} {side}, but not beyond chance ({_difference(found)})"


def _difference(found: Limits) -> str:
    if not np.isfinite(found.low):
        return f"difference {number(found.value)}, carried by one user"
    return f"difference {number(found.value)}, 95 % {number(found.low)} to {number(found.high)}"


def _short(names: tuple[str, str], lead: Lead, verdict: AuditVerdict) -> str:
    if verdict == "undecided":
        return _why(names, lead)
    if verdict == "refuted":
        return f"uniform ratings show {names[1]} ahead"
    return f"Γ* = {gamma_text(lead.tipping.gamma)}, 95 % {_span(lead.tipping)}"


def single_sentence(model: str, point: float, low: float, high: float, gamma: float) -> str:
    """One model alone: how far its error may be off."""
    return (
        f"The mean squared error of {model} over all pairs is {point:.4f} if nothing is hidden, and lies between "
        f"{low:.4f} and {high:.4f} if something hidden changes the odds of being seen by up to Γ = {gamma:.2f}."
    )


def gamma_text(value: float) -> str:
    """A Γ as text."""
    return "∞" if np.isinf(value) else f"{value:.2f}"


def number(value: float) -> str:
    """A difference as text: four decimals, or three significant digits of a smaller one."""
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0.0 else f"{value:.2e}"


def _span(tipping: Tipping) -> str:
    return f"{gamma_text(tipping.low)} to {gamma_text(tipping.high)}"
