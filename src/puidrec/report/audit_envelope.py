"""The envelopes of an audit as panels of the interactive chart, with the sentences the slider
changes.

A gap is oriented so that above 0 the audited model is the better one. Each way of finding the range
tips at its own
strength: where its lower end (upper, if the other model is ahead) meets 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puidrec.report.envelope import Band, Envelope, Mark, MarkKind, Number, Panel, Sentence, Slot
from puidrec.report.formatting import clip_text, finite, show

WAYS = {
    "normalised": ("Normalised", "weights within the bounds, divided by their own sum"),
    "sharp": (
        "Sharp",
        "weights that also average to 1/p among pairs with similar predictions: the tightest range",
    ),
    "box": ("Box", "every weight at its own worst end: the widest range"),
}
SHOWN_BENCHMARKS = 4
"""Features drawn on the chart, strongest first; the table has all."""
NAME = 26


@dataclass(frozen=True)
class ModelNames:
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


def envelope_of(audit: Mapping[str, Any], names: ModelNames) -> Envelope | None:
    """All envelopes of an audit, the one that decides the verdict first; None where there are none."""
    grid, envelopes = audit.get("gamma_grid") or [], audit.get("envelopes") or {}
    panels = [
        _panel(grid, envelopes[key], quantity, names, audit, tipping_of(audit, key))
        for key, quantity in _asked_first(audit, quantities(names)).items()
        if isinstance(envelopes.get(key), Mapping) and len(grid) > 1
    ]
    if not panels:
        return None
    return Envelope(
        panels, caption=CAPTION, title="Range of the result by strength of hidden confounding"
    )


LEADS = {"loss_gap": "error", "dcg_gap": "ranking", "precision_gap": "precision"}
"""The part of an audit that judges a difference."""


def tipping_of(audit: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The tipping point of a difference; empty where there is none."""
    lead = audit.get(LEADS.get(key, "")) or {}
    return lead.get("tipping") or (audit.get("tipping") if key == "loss_gap" else None) or {}


def _asked_first(audit: Mapping[str, Any], found: dict[str, Quantity]) -> dict[str, Quantity]:
    """The quantity of the metric asked for comes first."""
    asked = next((key for key, name in LEADS.items() if name == audit.get("metric")), "loss_gap")
    return dict(sorted(found.items(), key=lambda item: item[0] != asked))


CAPTION = (
    "Γ is the factor by which something hidden may multiply or divide the odds that a user sees an item. Γ = 1: "
    "nothing is hidden. Move the slider, or drag along the chart."
)


def quantities(names: ModelNames) -> dict[str, Quantity]:
    """Envelopes by their name in the audit, in the order in which the reader may choose them."""
    model, other = clip_text(names.model, NAME), clip_text(names.other or "", NAME)
    if model == other:
        model, other = "the audited model", "the other model"

    def one(label: str, what: str, short: str, full: str) -> Quantity:
        return Quantity(label, f"{what} of {short}", f"the {what} of {full}", gap=False)

    if names.other is None:
        return {
            "model_loss": one("Error", "error", model, names.model),
            "model_dcg": one("DCG", "DCG", model, names.model),
            "model_precision": one("Precision", "precision", model, names.model),
        }
    better = f"above 0, {model} is better"
    return {
        "loss_gap": Quantity(
            "Difference in error",
            f"error of {other} minus {model}; {better}",
            "the difference in error",
            gap=True,
        ),
        "dcg_gap": Quantity(
            "Difference in DCG",
            f"DCG of {model} minus {other}; {better}",
            "the difference in DCG",
            gap=True,
        ),
        "precision_gap": Quantity(
            "Difference in precision",
            f"precision of {model} minus {other}; {better}",
            "the difference in precision",
            gap=True,
        ),
        "model_loss": one(f"Error of {model}", "error", model, names.model),
        "against_loss": one(f"Error of {other}", "error", other, names.other),
        "model_dcg": one(f"DCG of {model}", "DCG", model, names.model),
        "against_dcg": one(f"DCG of {other}", "DCG", other, names.other),
    }


def _panel(
    grid: Sequence[float],
    curves: Mapping[str, Any],
    quantity: Quantity,
    names: ModelNames,
    audit: Mapping[str, Any],
    tipping: Mapping[str, Any],
) -> Panel:
    ways = [key for key in WAYS if key in curves]
    # box and normalised range share their tipping point
    exact = {key: finite(tipping.get("sharp" if key == "sharp" else "gamma")) for key in ways}
    bands = [_band(key, curves, grid, quantity.gap, exact[key]) for key in ways]
    point = finite(curves.get("point"))
    says = bands[0].says
    held = max(k for k in range(len(grid)) if _side(says[k]) == _side(says[0]))
    return Panel(
        label=quantity.label,
        group="One Γ for all pairs",
        grid=grid,
        symbol="Γ",
        bands=bands,
        point=point,
        zero=quantity.gap,
        x_label="Γ, on a logarithmic scale",
        y_label=quantity.y_label,
        sentences=_sentences(quantity, names),
        marks=_benchmarks(audit),
        start=held if held < len(grid) - 1 else len(grid) // 2,
        format=_digits(bands, point),
    )


def _band(
    key: str, curves: Mapping[str, Any], grid: Sequence[float], gap: bool, exact: Number
) -> Band:
    label, note = WAYS[key]
    curve = curves[key]
    low, high = _numbers(curve, "low"), _numbers(curve, "high")
    outer = (
        curve.get("band")
        or (curves.get("band") if curves.get("band_of", "normalised") == key else None)
        or {}
    )
    outer_low, outer_high = _numbers(outer, "low"), _numbers(outer, "high")
    says = [
        _state(a, b, nothing=x == 1.0, gap=gap) for x, a, b in zip(grid, low, high, strict=True)
    ]
    if outer_low and outer_high:
        known = [
            a is not None and b is not None for a, b in zip(outer_low, outer_high, strict=True)
        ]
        says = [
            f"{word}+" if there and word != "unknown" else word
            for word, there in zip(says, known, strict=True)
        ]
    tip = None
    if gap and _side(says[0]) in ("ahead", "behind"):
        ahead = _side(says[0]) == "ahead"
        found = (
            exact if ahead else None
        )  # the audit's tipping point is that of the audited model's lead
        tip = found if found is not None else crossing(grid, low if ahead else high, log=True)
    text = f"Γ* = {show(tip, '.2f')}"
    mark = [] if tip is None else [Mark(tip, f"tipping point {text}", "tipping", text)]
    return Band(label, low, high, says, note, outer_low, outer_high, mark)


def _side(word: str) -> str:
    return word.rstrip("+").removesuffix("-first")


def _numbers(curve: Mapping[str, Any], end: str) -> list[Number]:
    return [finite(v) for v in curve.get(end) or ()]


def crossing(grid: Sequence[float], values: Sequence[Number], *, log: bool) -> Number:
    """Where a curve first changes sign, between two points of its grid by a straight line; None
    where it does not."""
    for k in range(1, len(grid)):
        before, after = values[k - 1], values[k]
        if before is not None and after is not None and before != 0.0 and before * after <= 0.0:
            share = before / (before - after)
            scale = math.log if log else float
            at = scale(grid[k - 1]) + share * (scale(grid[k]) - scale(grid[k - 1]))
            return math.exp(at) if log else at
    return None


def _state(low: Number, high: Number, *, nothing: bool, gap: bool) -> str:
    """Which sentence holds: who is ahead, or that either may be; in words of its own where nothing
    is hidden."""
    if low is None or high is None:
        return "unknown"
    side = "range" if not gap else "ahead" if low > 0.0 else "behind" if high < 0.0 else "open"
    point = abs(high - low) <= 1e-9 * max(
        1.0, abs(low)
    )  # slots without a logged row leave a range even at Γ = 1
    return f"{side}-first" if nothing and point else side


def _sentences(quantity: Quantity, names: ModelNames) -> dict[str, Sentence]:
    """A sentence per state; with `+`, the range with sampling error follows."""
    start: list[str | Slot] = [
        "If hidden factors changed the odds of being seen by up to Γ = ",
        Slot.X,
        ", ",
    ]
    nothing, model, other = "If nothing is hidden (Γ = 1), ", names.model, names.other
    lies: list[str | Slot] = [f": {quantity.noun} lies between ", Slot.LOW, " and ", Slot.HIGH]
    plain: list[str | Slot] = [f": {quantity.noun} is ", Slot.LOW]
    sampled: list[str | Slot] = [
        "; with sampling error, between ",
        Slot.OUTER_LOW,
        " and ",
        Slot.OUTER_HIGH,
    ]
    sentences: dict[str, list[str | Slot]] = {
        "ahead": [*start, f"{model} would still be ahead of {other}", *lies],
        "behind": [*start, f"{other} would be ahead of {model}", *lies],
        "open": [*start, f"either {model} or {other} could be ahead", *lies],
        "range": [*start, f"{quantity.noun} would lie between ", Slot.LOW, " and ", Slot.HIGH],
        "ahead-first": [nothing, f"{model} is ahead of {other}", *plain],
        "behind-first": [nothing, f"{other} is ahead of {model}", *plain],
        "open-first": [nothing, f"{model} and {other} are level", *plain],
        "range-first": [nothing, f"{quantity.noun} is ", Slot.LOW],
    }
    full = {f"{name}+": [*sentence, *sampled, "."] for name, sentence in sentences.items()}
    short = {name: [*sentence, "."] for name, sentence in sentences.items()}
    return {**short, **full, "unknown": [*start, "the range is not known."]}


def _benchmarks(audit: Mapping[str, Any]) -> list[Mark]:
    """The strongest features, and what uniform data prove."""
    rows = [row for row in audit.get("benchmarks") or [] if (finite(row.get("gamma")) or 0.0) > 1.0]
    rows = sorted(rows, key=lambda row: -float(row["gamma"]))[:SHOWN_BENCHMARKS]
    marks = [Mark(float(row["gamma"]), *_feature_words(row)) for row in rows]
    proved = finite((audit.get("certificate") or {}).get("low"))
    if proved is not None and proved > 1.0:
        text = f"Γ ≥ {show(proved, '.2f')}"
        marks.append(
            Mark(proved, f"uniform ratings prove {text}", "certificate", f"proved: {text}")
        )
    return marks


def _feature_words(row: Mapping[str, Any]) -> tuple[str, MarkKind, str]:
    name = clip_text(str(row.get("feature")), NAME)
    side = {"user": " (users)", "item": " (items)"}.get(str(row.get("side")), "")
    return f"as {name}{side}", "benchmark", f"as {clip_text(name, 14)}"


def _digits(bands: Sequence[Band], point: Number) -> str:
    """Three significant digits of the estimate (of the widest range where it is 0)."""
    ends = [abs(v) for band in bands for v in (*band.low, *band.high) if v is not None]
    size = abs(point) if point else max(ends, default=1.0)
    return f".{min(max(2 - math.floor(math.log10(size or 1.0)), 1), 7)}f"
