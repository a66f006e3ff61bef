"""The verdict on a lead, and its words. Error and ranking are judged by the same rule, side by
side.

confirmed  measured: uniform ratings (with the log adjusted by them, where both agree) show the model ahead
refuted    measured: they show the other model ahead
robust     not measured, and even the lower end of Γ* is above what is known of Γ here (`yardsticks.deciding`)
fragile    a lead beyond chance in the log, which what is known of Γ could overturn
undecided  the log shows no lead beyond chance; or its rows show nothing (leakage); or nothing is known of Γ here, so
           that Γ* is told, and no adjective
single     one model alone: there is no lead
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from puidrec.auditing.estimates import Limits
from puidrec.auditing.measured import Measured
from puidrec.auditing.tipping import Tipping
from puidrec.auditing.yardsticks import Yardstick

Verdict = Literal["confirmed", "robust", "fragile", "undecided", "refuted", "single"]


@dataclass(frozen=True)
class Lead:
    """What a log, and uniform ratings where there are some, say of one model against another by one
    metric."""

    metric: str
    """`squared error`, `DCG@10`, `precision@10`, `NDCG@10`."""
    tipping: Tipping | None = None
    """None: the log cannot say (NDCG needs lists whose every item is rated)."""
    measured: Measured | None = None
    leak: str = ""
    """Why the rows show nothing (scores that reproduce the ratings), in words; empty where they
    may."""
    known: Yardstick | None = None
    """What is known of Γ here."""
    replaced: int | None = None
    """The fewest ratings whose replacement by the least favourable ones would end the lead."""
    unsupported: int = 0
    """Slots of the lists that no logged row has been in; their share liked may be anything."""

    @property
    def verdict(self) -> Verdict:
        """By the rule above."""
        found = self.measured.decides if self.measured is not None else None
        if found is not None and found.high < 0.0:
            return "refuted"
        if found is not None and found.low > 0.0:
            return "confirmed"
        if self.leak or not self.shown or self.known is None or self.tipping is None:
            return "undecided"
        return "robust" if self.tipping.low > self.known.gamma else "fragile"

    @property
    def shown(self) -> bool:
        """Whether the log shows the model ahead, beyond chance."""
        return self.tipping is not None and self.tipping.low > 1.0

    @property
    def tipping_point(self) -> float | None:
        """Γ*: 1 where the log shows no lead, infinite where no Γ ends it."""
        return None if self.tipping is None else self.tipping.gamma

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of Γ*."""
        return None if self.tipping is None else (self.tipping.low, self.tipping.high)

    @property
    def lead(self) -> Limits | None:
        """The lead over all pairs if nothing is hidden; above 0, the model is ahead."""
        return None if self.tipping is None else self.tipping.lead

    @property
    def uniform(self) -> Limits | None:
        """The same on uniform test rows alone, which needs no Γ."""
        return None if self.measured is None else self.measured.uniform


def sentence(names: tuple[str, str], lead: Lead) -> str:
    """The conclusion in one clause."""
    one, two = names
    measured, tipping, verdict = lead.measured, lead.tipping, lead.verdict
    if verdict in ("confirmed", "refuted"):
        assert measured is not None  # noqa: S101 (by uniform rows only)
        ahead = f"{one} is ahead of {two}" if verdict == "confirmed" else f"{two} is ahead of {one}"
        what = "the log adjusted by them" if measured.combined is not None else ""
        rows = f"{measured.n:,} uniform ratings" + (f" and {what}" if what else "")
        return f"Measured: {ahead} in {lead.metric} ({_difference(measured.decides)}, on {rows})."
    if verdict == "undecided" and not (lead.shown and not lead.leak):
        return f"{one} against {two} in {lead.metric} is undecided: {why(names, lead)}."
    assert tipping is not None  # noqa: S101 (a lead is shown)
    star = f"Γ* = {gamma_text(tipping.gamma)} (95 % {gamma_text(tipping.low)} to {gamma_text(tipping.high)})"
    if verdict == "undecided" or lead.known is None:
        if np.isinf(tipping.gamma):
            return f"The log shows {one} ahead of {two} in {lead.metric}, whatever Γ is: {star}."
        return f"The log shows {one} ahead of {two} in {lead.metric} if hidden confounding stays below {star}."
    than = "more than" if verdict == "robust" else "not clearly more than"
    known = f"{lead.known.words} (Γ = {lead.known.gamma:.2f})"
    return f"The lead of {one} over {two} in {lead.metric} is {verdict}: it ends at {star}, {than} {known}."


def why(names: tuple[str, str], lead: Lead) -> str:
    """Why the log shows no lead."""
    if lead.leak:
        return f"these rows show nothing: {lead.leak}"
    if lead.tipping is None:
        found = None if lead.measured is None else lead.measured.decides
        return "uniform ratings do not show who is ahead" + (
            "" if found is None else f" ({_difference(found)})"
        )
    found = lead.tipping.lead
    if found == (0.0, 0.0, 0.0):
        return "their scores do not tell them apart on these rows"
    if found.high < 0.0:
        return f"the log shows {names[1]} ahead, not {names[0]} ({_difference(found)})"
    side = "behind" if found.value < 0.0 else "ahead"
    return f"the log shows {names[0]} {side}, but not beyond chance ({_difference(found)})"


def _difference(found: Limits) -> str:
    if not np.isfinite(found.low):
        return f"difference {number(found.value)}, carried by one user"
    return f"difference {number(found.value)}, 95 % {number(found.low)} to {number(found.high)}"


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
