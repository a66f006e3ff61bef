"""What is known of Γ here, and the verdict on a lead with its words. Error and ranking are judged
by the same rule, side by side.

confirmed  measured: uniform ratings (with the log adjusted by them) show the model ahead
refuted    measured: they show the other model ahead
robust     not measured, and even the lower end of Γ* is above what is known of Γ here (`deciding`)
fragile    a lead beyond chance in the log, which what is known of Γ could overturn
undecided  the log shows no lead beyond chance; or its rows show nothing (leakage); or nothing is
           known of Γ here, so that Γ* is told, and no adjective
single     one model alone: there is no lead

Three yardsticks *decide*, since something is known of them: the Γ that uniform ratings prove and
measure, your own number (`believe`), and `TIMES` × the strongest recorded feature (that many traits
like it hidden together: log odds add up). Your number takes the place of the features; what uniform
ratings prove stands beside it. Scenarios (a trait that some share of users holds and that
multiplies their exposure) and single features illustrate, and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from puidrec.auditing.envelope import Tipping
from puidrec.auditing.estimates import Limits
from puidrec.auditing.measured import Measured
from puidrec.errors import InputError
from puidrec.exposure.evidence import Calibration, Evidence, calibrate

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
    def settled(self) -> bool:
        """Whether uniform ratings have decided, so that no Γ matters."""
        return self.verdict in ("confirmed", "refuted")

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
    if lead.settled:
        assert measured is not None  # noqa: S101 (by uniform rows only)
        ahead = f"{one} is ahead of {two}" if verdict == "confirmed" else f"{two} is ahead of {one}"
        what = "the log adjusted by them" if measured.combined is not None else ""
        rows = f"{measured.n:,} uniform ratings" + (f" and {what}" if what else "")
        return f"Measured: {ahead} in {lead.metric} ({_difference(measured.decides)}, on {rows})."
    if verdict == "undecided" and not (lead.shown and not lead.leak):
        return f"{one} against {two} in {lead.metric} is undecided: {why(names, lead)}."
    assert tipping is not None  # noqa: S101 (a lead is shown)
    low, high = gamma_text(tipping.low), gamma_text(tipping.high)
    star = f"Γ* = {gamma_text(tipping.gamma)} (95 % {low} to {high})"
    if verdict == "undecided" or lead.known is None:
        if np.isinf(tipping.gamma):
            return f"The log shows {one} ahead of {two} in {lead.metric}, whatever Γ is: {star}."
        return (
            f"The log shows {one} ahead of {two} in {lead.metric} if hidden confounding stays "
            f"below {star}."
        )
    than = "more than" if verdict == "robust" else "not clearly more than"
    known = f"{lead.known.words} (Γ = {lead.known.gamma:.2f})"
    return (
        f"The lead of {one} over {two} in {lead.metric} is {verdict}: it ends at {star}, {than} "
        f"{known}."
    )


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
        f"The mean squared error of {model} over all pairs is {point:.4f} if nothing is hidden, "
        f"and lies between {low:.4f} and {high:.4f} if something hidden changes the odds of being "
        f"seen by up to Γ = {gamma:.2f}."
    )


def gamma_text(value: float) -> str:
    """A Γ as text."""
    return "∞" if np.isinf(value) else f"{value:.2f}"


def number(value: float) -> str:
    """A difference as text: four decimals, or three significant digits of a smaller one."""
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0.0 else f"{value:.2e}"


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

    @property
    def words(self) -> str:
        """The scenario in words."""
        by = {2.0: "doubles", 3.0: "triples"}.get(self.factor, f"multiplies by {self.factor:g}")
        return f"a hidden trait of {self.share:.0%} of the users that {by} their exposure"

    def possible(self, rate: float) -> bool:
        """Whether those who hold the trait saw less than everything, where a share `rate` of the
        pairs was seen."""
        return rate * self.factor < 1.0 - self.share + self.share * self.factor

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
"""Shown in an audit, where the log is not too dense for them."""


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
    sides = {
        side: [] if frame is None else [name for name in frame.columns if name != f"{side}_id"]
        for side, frame in (("user", evidence.users), ("item", evidence.items))
    }
    known, named = {*sides["user"], *sides["item"]}, dict(groups or {})
    for name, own in named.items():
        unknown = next((column for column in own if column not in known), None)
        if unknown is not None:
            raise InputError(
                f"no such feature, in group {name}",
                found=unknown,
                expected=", ".join(sorted(known)),
            )
    wanted = named | {ALL[side]: own for side, own in sides.items() if len(own) > 1}
    if not wanted:
        return None
    found = calibrate(evidence, wanted)
    whole = {
        name: side for side, name in ALL.items()
    }  # a column may have the same name on both sides
    return Calibration(
        tuple(row for row in found.rows if whole.get(row.feature, row.side) == row.side)
    )


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
    found = [(one, one.gamma(rate)) for one in SCENARIOS if one.possible(rate)]
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
