"""The envelopes of an audit as panels of the interactive chart, with the sentences the slider changes.

A gap is oriented so that above 0 the audited model is the better one. Each way of finding the range tips at its own
strength: where its lower end (upper, if the other model is ahead) meets 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puidrec.report.envelope import Band, Envelope, Mark, Number, Panel, Sentence, Slot
from puidrec.report.labels import clip_text
from puidrec.report.numbers import finite, show

WAYS = {
    "normalised": ("Normalised", "weights within the bounds, divided by their own sum"),
    "sharp": ("Sharp", "weights that also average to what is known: the tightest range"),
    "box": ("Box", "every weight at its own worst: the widest range"),
}
SHOWN_BENCHMARKS = 4
"""Features drawn on the chart, strongest first; the table has all."""
NAME = 26


@dataclass(frozen=True)
class Names:
    """The two models in words; `other` is None where one is audited alone."""

    model: str
    other: str | None


@dataclass(frozen=True)
class Quantity:
    """What an envelope is about."""

    label: str
    y_label: str
    noun: str
    gap: bool


def envelope_of(audit: Mapping[str, Any], names: Names) -> Envelope | None:
    """All envelopes of an audit, the one that decides the verdict first; None where there are none."""
    panels = []
    personal = audit.get("personal") or {}
    kinds = (
        ("One Γ for all pairs", "Γ", audit.get("gamma_grid") or [], audit.get("envelopes") or {}),
        ("Γ per user and item", "κ", personal.get("kappa_grid") or [], personal.get("envelopes") or personal),
    )
    for group, symbol, grid, envelopes in kinds:
        for key, quantity in quantities(names).items():
            curves = envelopes.get(key)
            if isinstance(curves, Mapping) and len(grid) > 1:
                panels.append(_panel(group, symbol, grid, curves, quantity, names, audit, decisive=key == "loss_gap"))
    if not panels:
        return None
    return Envelope(panels, caption=CAPTION, title="Range of the result against the strength of what is hidden")


CAPTION = (
    "Γ is the factor by which something hidden may multiply or divide the odds that a user sees an item. Γ = 1: "
    "nothing is hidden. Where Γ differs by user and item, κ stretches all of them: Γ to the power κ. Move the slider, "
    "or drag along the chart."
)


def quantities(names: Names) -> dict[str, Quantity]:
    """Envelopes by their name in the audit, in the order in which the reader may choose them."""
    model, other = clip_text(names.model, NAME), clip_text(names.other or "", NAME)
    if model == other:
        model, other = "the audited model", "the other model"
    if names.other is None:
        return {
            "model_loss": Quantity(
                "Error", f"error of {model} over all pairs", f"the error of {names.model}", gap=False
            ),
            "model_dcg": Quantity("DCG", f"DCG of {model} over all pairs", f"the DCG of {names.model}", gap=False),
        }
    gap = f"{other} minus {model}; above 0, {model} is better"
    return {
        "loss_gap": Quantity("Difference in error", f"error of {gap}", "the difference in error", gap=True),
        "dcg_gap": Quantity(
            "Difference in DCG", f"DCG of {model} minus {other}; above 0, {model} is better", "the difference in DCG",
            gap=True,
        ),
        "model_loss": Quantity(
            f"Error of {model}", f"error of {model} over all pairs", f"the error of {names.model}", gap=False
        ),
        "against_loss": Quantity(
            f"Error of {other}", f"error of {other} over all pairs", f"the error of {names.other}", gap=False
        ),
    }  # fmt: skip


def _panel(
    group: str, symbol: str, grid: Sequence[float], curves: Mapping[str, Any], quantity: Quantity, names: Names,
    audit: Mapping[str, Any], *, decisive: bool,
) -> Panel:  # fmt: skip
    tipping = audit.get("tipping") or {}
    exact = finite(tipping.get("gamma" if symbol == "Γ" else "kappa")) if decisive else None
    bands = [_band(key, curves, grid, symbol, quantity, exact) for key in WAYS if key in curves]
    point = finite(curves.get("point"))
    says = bands[0].says
    held = max(k for k in range(len(grid)) if says[k].split("-")[0] == says[0].split("-")[0])
    return Panel(
        label=quantity.label, group=group, grid=grid, symbol=symbol, bands=bands, point=point, zero=quantity.gap,
        x_label="Γ, on a logarithmic scale" if symbol == "Γ" else "κ: the strength to which every Γ is stretched",
        y_label=quantity.y_label, sentences=_sentences(symbol, quantity, names), log=symbol == "Γ",
        marks=_benchmarks(audit) if symbol == "Γ" else (), start=held if held < len(grid) - 1 else len(grid) // 2,
        format=_digits(bands, point),
    )  # fmt: skip


def _band(
    key: str, curves: Mapping[str, Any], grid: Sequence[float], symbol: str, quantity: Quantity, exact: Number
) -> Band:
    label, note = WAYS[key]
    curve = curves[key]
    low, high = [[finite(v) for v in curve[end]] for end in ("low", "high")]
    says = [
        _state(a, b, first=k == 0 and symbol == "Γ", gap=quantity.gap)
        for k, (a, b) in enumerate(zip(low, high, strict=True))
    ]
    outer = curve.get("band") or (curves.get("band") if curves.get("band_of", "normalised") == key else None) or {}
    tip = None
    if quantity.gap and says[0].startswith(("ahead", "behind")):
        end = low if says[0].startswith("ahead") else high
        tip = exact if exact is not None and key != "sharp" else crossing(grid, end, log=symbol == "Γ")
    mark = [] if tip is None else [Mark(tip, f"tipping point {symbol}* = {show(tip, '.2f')}", "tipping")]
    return Band(label, low, high, says, note, outer.get("low", ()), outer.get("high", ()), mark)


def crossing(grid: Sequence[float], values: Sequence[Number], *, log: bool) -> Number:
    """Where a curve first changes sign, between two points of its grid by a straight line; None where it does not."""
    for k in range(1, len(grid)):
        before, after = values[k - 1], values[k]
        if before is not None and after is not None and before != 0.0 and before * after <= 0.0:
            share = before / (before - after)
            scale = math.log if log else float
            at = scale(grid[k - 1]) + share * (scale(grid[k]) - scale(grid[k - 1]))
            return math.exp(at) if log else at
    return None


def _state(low: Number, high: Number, *, first: bool, gap: bool) -> str:
    """Which sentence holds: who is ahead, or that either may be; at Γ = 1 in words of its own."""
    if low is None or high is None:
        return "unknown"
    side = "range" if not gap else "ahead" if low > 0.0 else "behind" if high < 0.0 else "open"
    return f"{side}-first" if first else side


def _sentences(symbol: str, quantity: Quantity, names: Names) -> dict[str, Sentence]:
    if symbol == "Γ":
        start: list[str | Slot] = ["If hidden factors changed the odds of being seen by up to Γ = ", Slot.X, ", "]
    else:
        start = ["If hidden factors were as strong as Γ per user and item says, to the power κ = ", Slot.X, ", "]
    lies: list[str | Slot] = [f": {quantity.noun} lies between ", Slot.LOW, " and ", Slot.HIGH, "."]
    nothing, model, other = "If nothing is hidden (Γ = 1), ", names.model, names.other
    plain: list[str | Slot] = [f": {quantity.noun} is ", Slot.LOW, "."]
    return {
        "ahead": [*start, f"{model} would still be ahead of {other}", *lies],
        "behind": [*start, f"{other} would be ahead of {model}", *lies],
        "open": [*start, f"either {model} or {other} could be ahead", *lies],
        "range": [*start, f"{quantity.noun} would lie between ", Slot.LOW, " and ", Slot.HIGH, "."],
        "ahead-first": [nothing, f"{model} is ahead of {other}", *plain],
        "behind-first": [nothing, f"{other} is ahead of {model}", *plain],
        "open-first": [nothing, f"{model} and {other} are level", *plain],
        "range-first": [nothing, f"{quantity.noun} is ", Slot.LOW, "."],
        "unknown": [*start, "the range is not known."],
    }


def _benchmarks(audit: Mapping[str, Any]) -> list[Mark]:
    """The strongest features, and what uniform data prove."""
    rows = [row for row in audit.get("benchmarks") or [] if (finite(row.get("gamma")) or 0.0) > 1.0]
    rows = sorted(rows, key=lambda row: -float(row["gamma"]))[:SHOWN_BENCHMARKS]
    words = [f"as strong as {clip_text(str(row['feature']), NAME)}" for row in rows]
    marks = [Mark(float(row["gamma"]), text, "benchmark") for row, text in zip(rows, words, strict=True)]
    proved = finite((audit.get("certificate") or {}).get("low"))
    if proved is not None and proved > 1.0:
        marks.append(Mark(proved, f"uniform ratings prove Γ ≥ {show(proved, '.2f')}", "certificate"))
    return marks


def _digits(bands: Sequence[Band], point: Number) -> str:
    """Three significant digits of the estimate (of the widest range where it is 0)."""
    ends = [abs(v) for band in bands for v in (*band.low, *band.high) if v is not None]
    size = abs(point) if point else max(ends, default=1.0)
    return f".{min(max(2 - math.floor(math.log10(size or 1.0)), 1), 7)}f"
