"""The interactive chart of an audit: how a range widens as Γ grows, in a drawing and in words.

A gap is oriented so that above 0 the audited model is the better one. Each way of finding the range
tips at its own strength: where its lower end (upper, if the other model is ahead) meets 0.

Drawing and sentences are made here, once (`templates/envelope.html.j2`); the page's script only
shows the chosen one and moves the cursor. So what is printed, what is seen without a script, and
what is seen with one, are the same. Two widths are drawn, one for phones, because text in a picture
that shrinks with the window cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from puidrec.report.charts import factor_ticks, ticks
from puidrec.report.page import clip_text, finite, show

MarkKind = Literal["tipping", "benchmark", "certificate"]
Number = float | None
WAYS = {
    "normalised": ("Normalised", "weights within the bounds, divided by their own sum"),
    "sharp": (
        "Sharp",
        "weights that also average to 1/p among pairs with similar predictions: the tightest range",
    ),
    "box": ("Box", "every weight at its own worst end: the widest range"),
}
LEADS = {"loss_gap": "error", "dcg_gap": "ranking", "precision_gap": "precision"}
"""The part of an audit that judges a difference."""
SHOWN_BENCHMARKS = 4
"""Features drawn on the chart, strongest first; the table has all."""
NAME = 26
LEFT, RIGHT, LANE = 62.0, 14.0, 19.0
CHARACTER = 6.9
"""Generous width of a character at the size marks are set in, in pixels."""


class Size(NamedTuple):
    """How large a drawing is, in pixels, with the characters of a mark and the ticks it has room
    for."""

    width: float
    height: float
    label: int
    ticks: int


SIZES = {"wide": Size(760.0, 320.0, 44, 9), "narrow": Size(358.0, 250.0, 30, 5)}
X, LOW, HIGH, OUTER_LOW, OUTER_HIGH = (
    f"\0{name}\0" for name in ["x", "low", "high", "outer_low", "outer_high"]
)
"""Places in a sentence that the slider fills, set off by a character that no name has."""


@dataclass(frozen=True)
class ModelNames:
    """The two models in words; `other` is None where one is audited alone."""

    model: str
    other: str | None


@dataclass(frozen=True)
class Mark:
    """A value of Γ that matters, with its words, and fewer for a phone."""

    at: float
    label: str
    kind: MarkKind
    short: str = ""


@dataclass(frozen=True)
class Band:
    """The range by one way of finding it, per point of the panel's grid; `outer` with sampling
    error (bootstrap), where known. `says`: which sentence of the panel holds there."""

    label: str
    low: Sequence[Number]
    high: Sequence[Number]
    says: Sequence[str]
    note: str = ""
    outer_low: Sequence[Number] = ()
    outer_high: Sequence[Number] = ()
    tip: Mark | None = None

    def ends(self) -> dict[str, Sequence[Number]]:
        """The curves that a sentence can quote; those with sampling error where they are known."""
        found = {name: getattr(self, name) for name in ("low", "high", "outer_low", "outer_high")}
        return {name: values for name, values in found.items() if len(values)}


@dataclass(frozen=True)
class Panel:
    """One quantity as Γ grows. A gap has a border at 0, an error is just a number. `start`: where
    the slider stands at first."""

    label: str
    y_label: str
    grid: Sequence[float]
    bands: Sequence[Band]
    sentences: Mapping[str, str]
    gap: bool = True
    point: Number = None
    """The estimate if nothing is hidden, drawn as a line."""
    marks: Sequence[Mark] = ()
    start: int = 0
    format: str = ".4f"

    def pieces(self, state: str) -> list[str | dict[str, str]]:
        """A sentence as words and slots in order; words are never searched for slots."""
        parts = self.sentences[state].split("\0")
        return [{"slot": part} if k % 2 else part for k, part in enumerate(parts)]

    def words(self, band: Band, at: int) -> list[tuple[str, bool]]:
        """The sentence at a point of the grid, in parts: text, and whether it came from the
        slider."""
        values = {name: show(found[at], self.format) for name, found in band.ends().items()}
        values["x"] = show(self.grid[at], ".2f")
        return [
            (piece, False) if isinstance(piece, str) else (values[piece["slot"]], True)
            for piece in self.pieces(band.says[at])
        ]

    def data(self) -> dict[str, Any]:
        """What the script needs: texts per point of the grid, and sentences with their slots."""
        return {
            "label": self.label,
            "start": self.start,
            "x": [show(v, ".2f") for v in self.grid],
            "sentences": {name: self.pieces(name) for name in self.sentences},
            "bands": [
                {"label": band.label, "says": list(band.says)}
                | {k: [show(v, self.format) for v in ends] for k, ends in band.ends().items()}
                for band in self.bands
            ],
        }


# What an audit says


class Quantity(NamedTuple):
    """What an envelope is about."""

    label: str
    y_label: str
    noun: str
    gap: bool


def envelopes_of(audit: Mapping[str, Any], names: ModelNames) -> list[Panel]:
    """All envelopes of an audit, that of the metric asked for first."""
    grid, envelopes = audit.get("gamma_grid") or [], audit.get("envelopes") or {}
    asked = next((key for key, name in LEADS.items() if name == audit.get("metric")), "loss_gap")
    order = sorted(quantities(names).items(), key=lambda item: item[0] != asked)
    return [
        _panel(grid, envelopes[key], quantity, names, audit, tipping_of(audit, key))
        for key, quantity in order
        if isinstance(envelopes.get(key), Mapping) and len(grid) > 1
    ]


def tipping_of(audit: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The tipping point of a difference; empty where there is none."""
    lead = audit.get(LEADS.get(key, "")) or {}
    return lead.get("tipping") or (audit.get("tipping") if key == "loss_gap" else None) or {}


def quantities(names: ModelNames) -> dict[str, Quantity]:
    """Envelopes by their name in the audit, in the order in which the reader may choose them."""
    words = {"loss": "error", "dcg": "DCG", "precision": "precision"}
    model, other = clip_text(names.model, NAME), clip_text(names.other or "", NAME)
    if model == other:
        model, other = "the audited model", "the other model"
    found = {}
    if names.other is not None:
        for key, word in words.items():
            first, second = (other, model) if key == "loss" else (model, other)
            y_label = f"{word} of {first} minus {second}; above 0, {model} is better"
            noun = f"the difference in {word}"
            found[f"{key}_gap"] = Quantity(
                noun[4:].capitalize().replace("dcg", "DCG"), y_label, noun, True
            )
    sides = [("model", model, names.model), ("against", other, names.other)]
    for key, word in list(words.items())[: 2 if names.other else 3]:
        for side, short, full in sides if names.other else sides[:1]:
            label = f"{word[0].upper()}{word[1:]}" + (f" of {short}" if names.other else "")
            found[f"{side}_{key}"] = Quantity(
                label, f"{word} of {short}", f"the {word} of {full}", False
            )
    return found


def _panel(
    grid: Sequence[float],
    curves: Mapping[str, Any],
    quantity: Quantity,
    names: ModelNames,
    audit: Mapping[str, Any],
    tipping: Mapping[str, Any],
) -> Panel:
    # box and normalised range share their tipping point
    bands = [
        _band(
            way,
            curves,
            grid,
            quantity.gap,
            finite(tipping.get("sharp" if way == "sharp" else "gamma")),
        )
        for way in WAYS
        if way in curves
    ]
    point = finite(curves.get("point"))
    sides = [_side(word) for word in bands[0].says]
    held = max(k for k, side in enumerate(sides) if side == sides[0])
    # three significant digits of the estimate (of the widest range where it is 0)
    ends = [abs(v) for band in bands for v in (*band.low, *band.high) if v is not None]
    size = abs(point) if point else max(ends, default=1.0)
    return Panel(
        quantity.label,
        quantity.y_label,
        grid,
        bands,
        _sentences(quantity.noun, names.model, names.other),
        quantity.gap,
        point,
        _marks(audit),
        start=held if held < len(grid) - 1 else len(grid) // 2,
        format=f".{min(max(2 - math.floor(math.log10(size or 1.0)), 1), 7)}f",
    )


def _band(
    way: str, curves: Mapping[str, Any], grid: Sequence[float], gap: bool, exact: Number
) -> Band:
    label, note = WAYS[way]
    shared = curves.get("band") if curves.get("band_of", "normalised") == way else None
    low, high, outer_low, outer_high = (
        [finite(v) for v in curve.get(end) or ()]
        for curve in (curves[way], curves[way].get("band") or shared or {})
        for end in ("low", "high")
    )
    says = [_state(*ends, gap) for ends in zip(grid, low, high, strict=True)]
    if outer_low and outer_high:
        for k, word in enumerate(says):
            if word != "unknown" and None not in (outer_low[k], outer_high[k]):
                says[k] = f"{word}+"
    side, mark = _side(says[0]), None
    if gap and side in ("ahead", "behind"):
        # the audit's tipping point is that of the audited model's lead
        found = exact if side == "ahead" else None
        tip = crossing(grid, low if side == "ahead" else high) if found is None else found
        text = f"Γ* = {show(tip, '.2f')}"
        mark = None if tip is None else Mark(tip, f"tipping point {text}", "tipping", text)
    return Band(label, low, high, says, note, outer_low, outer_high, mark)


def _side(word: str) -> str:
    return word.rstrip("+").removesuffix("-first")


def crossing(grid: Sequence[float], values: Sequence[Number]) -> Number:
    """Where a curve first changes sign, between two points of its grid by a straight line over
    log Γ; None where it does not."""
    for k in range(1, len(grid)):
        before, after = values[k - 1], values[k]
        if before is not None and after is not None and before != 0.0 and before * after <= 0.0:
            share = before / (before - after)
            return float(grid[k - 1] * (grid[k] / grid[k - 1]) ** share)
    return None


def _state(gamma: float, low: Number, high: Number, gap: bool) -> str:
    """Which sentence holds: who is ahead, or that either may be; in words of its own where nothing
    is hidden."""
    if low is None or high is None:
        return "unknown"
    side = "range" if not gap else "ahead" if low > 0.0 else "behind" if high < 0.0 else "open"
    # slots without a logged row leave a range even at Γ = 1
    point = abs(high - low) <= 1e-9 * max(1.0, abs(low))
    return f"{side}-first" if gamma == 1.0 and point else side


def _sentences(noun: str, *names: str | None) -> dict[str, str]:
    """A sentence per state; with `+`, the range with sampling error follows."""
    noun, model, other = (str(name).replace("\0", "") for name in (noun, *names))
    start = f"If hidden factors changed the odds of being seen by up to Γ = {X}, "
    nothing = "If nothing is hidden (Γ = 1), "
    lies, plain = f": {noun} lies between {LOW} and {HIGH}", f": {noun} is {LOW}"
    found = {
        "ahead": f"{start}{model} would still be ahead of {other}{lies}",
        "behind": f"{start}{other} would be ahead of {model}{lies}",
        "open": f"{start}either {model} or {other} could be ahead{lies}",
        "range": f"{start}{noun} would lie between {LOW} and {HIGH}",
        "ahead-first": f"{nothing}{model} is ahead of {other}{plain}",
        "behind-first": f"{nothing}{other} is ahead of {model}{plain}",
        "open-first": f"{nothing}{model} and {other} are level{plain}",
        "range-first": f"{nothing}{noun} is {LOW}",
    }
    sampled = f"; with sampling error, between {OUTER_LOW} and {OUTER_HIGH}."
    return {
        **{name: f"{words}." for name, words in found.items()},
        **{f"{name}+": f"{words}{sampled}" for name, words in found.items()},
        "unknown": f"{start}the range is not known.",
    }


def _marks(audit: Mapping[str, Any]) -> list[Mark]:
    """The strongest features, and what uniform data prove."""
    rows = [row for row in audit.get("benchmarks") or [] if (finite(row.get("gamma")) or 0.0) > 1.0]
    rows = sorted(rows, key=lambda row: -float(row["gamma"]))[:SHOWN_BENCHMARKS]
    marks = []
    for row in rows:
        name = clip_text(str(row.get("feature")), NAME)
        side = {"user": " (users)", "item": " (items)"}.get(str(row.get("side")), "")
        short = f"as {clip_text(name, 14)}"
        marks.append(Mark(float(row["gamma"]), f"as {name}{side}", "benchmark", short))
    proved = finite((audit.get("certificate") or {}).get("low"))
    if proved is not None and proved > 1.0:
        text = f"Γ ≥ {show(proved, '.2f')}"
        short = f"proved: {text}"
        marks.append(Mark(proved, f"uniform ratings prove {text}", "certificate", short))
    return marks


# The drawing


@dataclass(frozen=True)
class Drawing:
    """One panel by one way of finding the range, at one size, in pixels."""

    width: float
    top: float
    foot: float
    x: list[float]
    low: list[Number]
    high: list[Number]
    across: list[tuple[float, str]]  # ticks
    up: list[tuple[float, str]]
    area: list[tuple[float, float]]  # the range as a polygon
    lines: list[tuple[str, list[tuple[float, float]]]]  # curves, by class of the style sheet
    marks: list[tuple[str, str, float, float]]  # kind, words, where its line is, where they begin
    tip: Number


def draw(panel: Panel, band: Band, size: str) -> Drawing:
    """The drawing at one size, `wide` or `narrow`."""
    room, ends = SIZES[size], (panel.grid[0], panel.grid[-1])

    def across(value: float) -> float:
        return _scaled(
            math.log(value), (math.log(ends[0]), math.log(ends[1])), (LEFT, room.width - RIGHT)
        )

    marks = _placed((*panel.marks, *([band.tip] if band.tip else [])), ends, across, size)
    top = 8.0 + LANE * len(marks)
    foot, heights = top + room.height, _heights(panel, band)

    def up(values: Iterable[Number]) -> list[Number]:
        known = map(finite, values)
        return [None if v is None else _scaled(v, heights, (foot, top)) for v in known]

    x = [across(value) for value in panel.grid]
    low, high, levels = up(band.low), up(band.high), ticks(*heights, 7)
    both = [k for k in range(len(x)) if low[k] is not None and high[k] is not None]
    area = [(k, high) for k in both] + [(k, low) for k in reversed(both)]
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    digits = max(0, -math.floor(math.log10(abs(step)) + 1e-9))
    tip = band.tip.at if band.tip else None
    curves: dict[str, list[Sequence[Number]]] = {
        "other": [end for one in panel.bands if one is not band for end in (one.low, one.high)],
        "outer": [band.outer_low, band.outer_high],
        "edge": [band.low, band.high],
        "zero": [[0.0] * len(x)] if panel.gap else [],
        "point": [[panel.point] * len(x)],
    }
    return Drawing(
        room.width,
        top,
        foot,
        x,
        low,
        high,
        [(across(v), show(v, "g")) for v in factor_ticks(*ends, room.ticks)],
        [(y, show(v, f".{digits}f")) for y, v in _known(up(levels), levels)],
        _known([x[k] for k, _ in area], [edge[k] for k, edge in area]),
        [(name, _known(x, up(values))) for name, some in curves.items() for values in some],
        marks,
        across(tip) if tip is not None and ends[0] <= tip <= ends[1] else None,
    )


def _scaled(value: float, ends: tuple[float, float], pixels: tuple[float, float]) -> float:
    share = (value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5
    return round(pixels[0] + share * (pixels[1] - pixels[0]), 1)


def _known(x: Sequence[Number], y: Sequence[Number]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(x, y, strict=False) if a is not None and b is not None]


def _heights(panel: Panel, band: Band) -> tuple[float, float]:
    """The vertical extent: everything of this band, its estimate, and 0 where 0 is a border."""
    values = [v for ends in band.ends().values() for v in map(finite, ends)]
    numbers = [v for v in (*values, panel.point) if v is not None] + [0.0] * panel.gap
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    room = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    return low - room, high + room


def _placed(
    marks: Sequence[Mark], ends: tuple[float, float], across: Callable[[float], float], size: str
) -> list[tuple[str, str, float, float]]:
    """Marks within the axis from left to right, each with its words in a lane of its own: right of
    its line, else left of it, else where they fit."""
    room = SIZES[size]
    found: list[tuple[str, str, float, float]] = []
    for mark in sorted(marks, key=lambda mark: mark.at):
        if ends[0] <= mark.at <= ends[1]:
            words = clip_text((mark.short if size == "narrow" else "") or mark.label, room.label)
            x, width, high = across(mark.at), CHARACTER * len(words), room.width - 2.0
            left = x - 4.0 - width
            fits_left = left if left >= 2.0 else high - width
            found.append(
                (mark.kind, words, x, x + 4.0 if x + 4.0 + width <= high else max(2.0, fits_left))
            )
    return found
