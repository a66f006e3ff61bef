"""An interactive chart of ranges that widen as an assumption weakens: its data, what it says in
words, its drawing.

The drawing is made here, once, as SVG; the page's script only shows the chosen one and moves the
cursor. So what is printed, what is seen without a script, and what is seen with one, are the same.
Colours are classes of the style sheet, so one drawing serves light, dark and print. Two widths are
drawn, one for phones, because text in a picture that shrinks with the window cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Literal

from markupsafe import Markup

from puidrec.errors import InputError
from puidrec.report.formatting import clip_text, finite, show

MarkKind = Literal["tipping", "benchmark", "certificate"]
Number = float | None
LEFT, RIGHT, BOTTOM, LANE = 62.0, 14.0, 26.0, 19.0
HEIGHT = {"wide": 320.0, "narrow": 250.0}
WIDTH = {"wide": 760.0, "narrow": 358.0}
LABEL = {"wide": 44, "narrow": 30}
CHARACTER = 6.9
"""Generous width of a character at the size marks are set in, in pixels."""
GAP = 8.0


class Slot(Enum):
    """A place in a sentence that the slider fills."""

    X = "x"
    LOW = "low"
    HIGH = "high"
    OUTER_LOW = "outer_low"
    OUTER_HIGH = "outer_high"


Sentence = Sequence[str | Slot]
"""Words and slots in order. Words are never searched for slots, so names may hold anything."""


@dataclass(frozen=True)
class Mark:
    """A place on the horizontal axis that matters, with its words."""

    at: float
    label: str
    kind: MarkKind
    short: str = ""
    """Fewer words, for a phone."""


@dataclass(frozen=True)
class Band:
    """The range under one kind of assumption, per point of the panel's grid."""

    label: str
    low: Sequence[Number]
    high: Sequence[Number]
    says: Sequence[str]
    """Per point of the grid, which sentence of the panel holds there."""
    note: str = ""
    """What this kind assumes, in a line."""
    outer_low: Sequence[Number] = ()
    outer_high: Sequence[Number] = ()
    """The range with sampling error (bootstrap), if known."""
    marks: Sequence[Mark] = ()
    """Marks of this band alone, beside the panel's: where it tips."""

    def ends(self) -> dict[Slot, Sequence[Number]]:
        """The curves that a sentence can quote; those with sampling error where they are known."""
        outer = {Slot.OUTER_LOW: self.outer_low, Slot.OUTER_HIGH: self.outer_high}
        return {
            Slot.LOW: self.low,
            Slot.HIGH: self.high,
            **{k: v for k, v in outer.items() if len(v)},
        }


@dataclass(frozen=True)
class Panel:
    """One quantity against one kind of strength: its bands, marks, and sentences."""

    label: str
    """The quantity, among which the reader chooses: `Difference in error`."""
    group: str
    """The kind of strength, among which the reader chooses: `One Γ for all`."""
    grid: Sequence[float]
    symbol: str
    """Γ."""
    x_label: str
    y_label: str
    bands: Sequence[Band]
    sentences: Mapping[str, Sentence]
    point: Number = None
    """The estimate if nothing is hidden, drawn as a line."""
    marks: Sequence[Mark] = ()
    log: bool = True
    """Whether the horizontal axis is logarithmic: right for factors."""
    zero: bool = True
    """Whether 0 is a border that matters (gaps) or just a number (errors)."""
    start: int = 0
    """Where the slider stands at first."""
    format: str = ".4f"
    x_format: str = ".2f"

    def __post_init__(self) -> None:
        n = len(self.grid)
        for band in self.bands:
            if {len(band.says), *map(len, band.ends().values())} != {n}:
                raise InputError(
                    f"band {band.label!r} of a chart does not fit its grid",
                    found=f"{len(band.low)}, {len(band.high)} and {len(band.says)} values",
                    expected=f"{n} each",
                )
        if not self.bands or not 0 <= self.start < n:
            raise InputError(
                "a chart needs a band and a start on its grid",
                found=self.start,
                expected=f"0 to {n - 1}",
            )

    def words(self, band: Band, at: int) -> list[tuple[str, bool]]:
        """The sentence at a point of the grid, in parts: text, and whether it came from the slider."""
        ends = {name: show(values[at], self.format) for name, values in band.ends().items()}
        values = {Slot.X: show(self.grid[at], self.x_format), **ends}
        sentence = self.sentences[band.says[at]]
        return [
            (values[piece], True) if isinstance(piece, Slot) else (piece, False)
            for piece in sentence
        ]


@dataclass(frozen=True)
class Envelope:
    """Panels among which the reader chooses, a slider along the grid, and the sentence it changes."""

    template: ClassVar[str] = "envelope"
    panels: Sequence[Panel]
    caption: str
    title: str = "How far could it be off?"

    def __post_init__(self) -> None:
        if not self.panels:
            raise InputError("an interactive chart needs a panel")

    @property
    def groups(self) -> list[str]:
        """Kinds of strength, in the order of the panels."""
        return list(dict.fromkeys(panel.group for panel in self.panels))

    @property
    def quantities(self) -> list[str]:
        """Quantities, in the order of the panels."""
        return list(dict.fromkeys(panel.label for panel in self.panels))

    @property
    def band_names(self) -> list[str]:
        """Kinds of assumption, in the order of the panels."""
        return list(dict.fromkeys(band.label for panel in self.panels for band in panel.bands))

    def data(self) -> dict[str, Any]:
        """What the script needs: texts per point of the grid, and sentences with their slots."""
        choices = {"quantity": self.quantities, "band": self.band_names, "group": self.groups}
        return {"panels": [_panel_data(panel) for panel in self.panels], "choices": choices}


def _panel_data(panel: Panel) -> dict[str, Any]:
    sentences = {
        name: [{"slot": piece.value} if isinstance(piece, Slot) else piece for piece in sentence]
        for name, sentence in panel.sentences.items()
    }
    bands = [
        {
            "label": band.label,
            "note": band.note,
            "says": list(band.says),
            **{
                slot.value: [show(v, panel.format) for v in values]
                for slot, values in band.ends().items()
            },
        }
        for band in panel.bands
    ]
    return {
        "label": panel.label,
        "group": panel.group,
        "symbol": panel.symbol,
        "start": panel.start,
        "x": [show(v, panel.x_format) for v in panel.grid],
        "sentences": sentences,
        "bands": bands,
    }


@dataclass(frozen=True)
class Axis:
    """One axis of the drawing: values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def draw(panel: Panel, band: Band, size: str) -> Markup:
    """The drawing at one size (`wide` or `narrow`), with the cursor where the slider starts."""
    width, height = WIDTH[size], HEIGHT[size]
    across = Axis(panel.grid[0], panel.grid[-1], LEFT, width - RIGHT, panel.log)
    marks = _placed((*panel.marks, *band.marks), across, size)
    top = 8.0 + LANE * (max((place.lane for _, place in marks), default=-1) + 1)
    up = Axis(*_range(panel, band), top + height, top)
    parts = [_axes(across, up, panel, size), _inside(panel, band, across, up), _marks(marks, up)]
    span = " to ".join(show(end, panel.x_format) for end in (panel.grid[0], panel.grid[-1]))
    words = f"Chart of {panel.y_label}, {band.label}, for {panel.symbol} from {span}; the sentence above says it in words"
    frame = Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}" '
        'data-xs="{}" data-lows="{}" data-highs="{}">{}</svg>'
    )
    pixels = (
        _join(across(x) for x in panel.grid),
        _join(_up(band.low, up)),
        _join(_up(band.high, up)),
    )
    content = Markup("").join([*parts, _cursor(panel, band, across, up)])
    return frame.format(size, f"{width:g}", f"{top + height + BOTTOM:g}", words, *pixels, content)


def ticks(low: float, high: float, count: int, *, log: bool = False) -> list[float]:
    """Round values within a range, at most about `count`: steps of 1, 2 or 5; by ratio 1, 1.5, 2,
    3, 5, 7."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = [m * 10.0**k for k in decades for m in (1, 1.5, 2, 3, 5, 7)]
        inside = [v for v in every if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(inside) >= 4:
            return (
                inside
                if len(inside) <= count
                else [v for v in inside if f"{v:e}"[:3] in ("1.0", "2.0", "5.0")]
            )
    raw = (high - low) / max(count - 1, 1)
    digit = math.floor(math.log10(raw)) if raw > 0 else 0
    step = next(
        m * 10.0**digit for m in (1.0, 2.0, 5.0, 10.0) if m * 10.0**digit >= raw * (1 - 1e-9)
    )
    # far from 0 a multiple is off by more than a narrow range forgives: rounded, and looked at
    # again
    near = range(math.floor(low / step), math.ceil(high / step) + 1)
    slack = 1e-9 * (high - low)
    return [v for k in near if low - slack <= (v := round(k * step, -digit)) <= high + slack]


def _range(panel: Panel, band: Band) -> tuple[float, float]:
    """The vertical extent: everything of this band, its estimate, and 0 where 0 is a border."""
    values = [
        finite(v) for v in (*band.low, *band.high, *band.outer_low, *band.outer_high, panel.point)
    ]
    numbers = [v for v in values if v is not None] + ([0.0] if panel.zero else [])
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    room = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    return low - room, high + room


def _up(values: Sequence[Number], up: Axis) -> list[Number]:
    return [None if (number := finite(v)) is None else up(number) for v in values]


def _join(values: Iterable[Number]) -> str:
    return ",".join("" if value is None else str(value) for value in values)


def _axes(across: Axis, up: Axis, panel: Panel, size: str) -> Markup:
    grid = Markup(
        '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="tick" x="{}" y="{}" {}>{}</text>'
    )
    end, below = Markup('text-anchor="end"'), Markup('text-anchor="middle"')
    levels = ticks(up.low, up.high, 7)
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    digits = max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 2
    lines = [
        grid.format(
            across.start,
            across.end,
            up(v),
            up(v),
            across.start - 8,
            up(v) + 4,
            end,
            show(v, f".{digits}f"),
        )
        for v in levels
    ]
    places = ticks(across.low, across.high, 9 if size == "wide" else 5, log=panel.log)
    lines += [
        grid.format(
            across(v),
            across(v),
            up.start,
            up.start + 5,
            across(v),
            up.start + 20,
            below,
            show(v, "g"),
        )
        for v in places
    ]
    return Markup("").join(lines)


def _inside(panel: Panel, band: Band, across: Axis, up: Axis) -> Markup:
    """What is clipped to the plot: a nested drawing clips by itself and needs no id."""
    xs = [across(x) for x in panel.grid]
    parts = []
    tip = next((mark.at for mark in (*panel.marks, *band.marks) if mark.kind == "tipping"), None)
    if tip is not None and across.low <= tip <= across.high:
        parts.append(
            Markup('<rect class="beyond" x="{}" y="{}" width="{}" height="{}"/>').format(
                across(tip), up.end, round(across.end - across(tip), 1), round(up.start - up.end, 1)
            )
        )
    parts.append(_area("range", xs, band.low, band.high, up))
    for other in (one for one in panel.bands if one is not band):
        parts += [_line("other", xs, other.low, up), _line("other", xs, other.high, up)]
    parts += [_line("outer", xs, band.outer_low, up), _line("outer", xs, band.outer_high, up)]
    parts += [_line("edge", xs, band.low, up), _line("edge", xs, band.high, up)]
    if panel.zero:
        parts.append(_line("zero", [across.start, across.end], [0.0, 0.0], up))
    if panel.point is not None:
        parts.append(_line("point", [across.start, across.end], [panel.point] * 2, up))
    box = (across.start, up.end, round(across.end - across.start, 1), round(up.start - up.end, 1))
    frame = Markup(
        '<svg x="{0}" y="{1}" width="{2}" height="{3}" viewBox="{0} {1} {2} {3}">{4}</svg>'
    )
    return frame.format(*box, Markup("").join(parts))


def _area(
    name: str, xs: Sequence[float], low: Sequence[Number], high: Sequence[Number], up: Axis
) -> Markup:
    both = [
        (x, a, b)
        for x, a, b in zip(xs, _up(low, up), _up(high, up), strict=True)
        if a is not None and b is not None
    ]
    if not both:
        return Markup("")
    there = [f"{x} {b}" for x, _, b in both]
    back = [f"{x} {a}" for x, a, _ in reversed(both)]
    return Markup('<path class="{}" d="M{}Z"/>').format(name, "L".join(there + back))


def _line(name: str, xs: Sequence[float], values: Sequence[Number], up: Axis) -> Markup:
    points = [f"{x} {y}" for x, y in zip(xs, _up(values, up), strict=False) if y is not None]
    return (
        Markup('<path class="{}" d="M{}"/>').format(name, "L".join(points))
        if len(points) > 1
        else Markup("")
    )


def _placed(marks: Sequence[Mark], across: Axis, size: str) -> list[tuple[Mark, Placed]]:
    """Marks within the axis, their words cut to what fits, and where the words go."""
    inside = [mark for mark in marks if across.low <= mark.at <= across.high]
    words = [mark.short if size == "narrow" and mark.short else mark.label for mark in inside]
    cut = [
        replace(mark, label=clip_text(text, LABEL[size]))
        for mark, text in zip(inside, words, strict=True)
    ]
    spots = place(
        [across(m.at) for m in cut], [CHARACTER * len(m.label) for m in cut], 2.0, WIDTH[size] - 2.0
    )
    return list(zip(cut, spots, strict=True))


def _marks(marks: Sequence[tuple[Mark, Placed]], up: Axis) -> Markup:
    """Lines first, words over them."""
    line = Markup('<line class="mark {}" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    text = Markup('<text class="mark-words {}" x="{:.1f}" y="{:g}" text-anchor="{}">{}</text>')
    lines, words = [], []
    for mark, spot in marks:
        y = 4.0 + LANE * spot.lane
        lines.append(line.format(mark.kind, spot.x, spot.x, y, up.start))
        edge = spot.left if spot.anchor == "start" else spot.right
        words.append(text.format(mark.kind, edge, y + 12, spot.anchor, mark.label))
    return Markup("").join(lines + words)


def _cursor(panel: Panel, band: Band, across: Axis, up: Axis) -> Markup:
    x = across(panel.grid[panel.start])
    ends = [
        value
        for value in (finite(band.low[panel.start]), finite(band.high[panel.start]))
        if value is not None
    ]
    low, high = (up(ends[0]), up(ends[-1])) if ends else (up.start, up.start)
    return Markup(
        '<g class="cursor"><line class="cursor-line" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        '<line class="cursor-range" x1="{0}" x2="{0}" y1="{3}" y2="{4}"/>'
        '<circle class="cursor-dot" cx="{0}" cy="{3}" r="4.5"/>'
        '<circle class="cursor-dot" cx="{0}" cy="{4}" r="4.5"/></g>'
    ).format(x, up.end, up.start, low, high)


@dataclass(frozen=True)
class Placed:
    """The words of one mark: lane (0 is the top one), the span they cover, and on which side of the
    line they are."""

    x: float
    lane: int
    left: float
    right: float
    anchor: str
    """`start`: right of the line; `end`: left of it."""


def place(
    positions: Sequence[float], widths: Sequence[float], low: float, high: float
) -> list[Placed]:
    """Lanes for marks at `positions` whose words are `widths` wide, all within [low, high].

    Marks whose words fit only to the left of their line come first, from the right; then the
    others, from the left. Each takes the highest lane where its words meet no other words, its line
    (which runs down from its lane) meets no words below, and no line from above meets its words;
    where there is none, a new lane below.
    """
    placed: list[Placed] = []
    turned = [x + 4.0 + width > high for x, width in zip(positions, widths, strict=True)]
    order = sorted(
        range(len(positions)),
        key=lambda k: (-1, -positions[k], k) if turned[k] else (0, positions[k], k),
    )
    for k in order:
        options = [
            option
            for option in _sides(positions[k], widths[k])
            if option[0] >= low and option[1] <= high
        ]
        options = options or [_squeezed(positions[k], widths[k], low, high)]
        lanes = max((mark.lane for mark in placed), default=-1) + 2
        free = [
            Placed(positions[k], lane, left, right, anchor)
            for lane in range(lanes)
            for left, right, anchor in options
        ]
        placed.append(next((mark for mark in free if _fits(mark, placed)), free[-1]))
    back = dict(zip(order, placed, strict=True))
    return [back[k] for k in range(len(positions))]


def _sides(x: float, width: float) -> list[tuple[float, float, str]]:
    return [(x + 4.0, x + 4.0 + width, "start"), (x - 4.0 - width, x - 4.0, "end")]


def _squeezed(x: float, width: float, low: float, high: float) -> tuple[float, float, str]:
    """Words too wide for either side: as far right as they go."""
    left = max(low, min(x + 4.0, high - width))
    return left, left + width, "start"


def _fits(mark: Placed, others: Sequence[Placed]) -> bool:
    for other in others:
        if (
            other.lane == mark.lane
            and mark.left < other.right + GAP
            and other.left < mark.right + GAP
        ):
            return False
        if other.lane > mark.lane and other.left - 2.0 < mark.x < other.right + 2.0:
            return False
        if other.lane < mark.lane and mark.left - 2.0 < other.x < mark.right + 2.0:
            return False
    return True
