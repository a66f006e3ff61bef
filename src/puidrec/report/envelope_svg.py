"""Draw one band of a panel as SVG: axes, range, range with sampling error, marks, and a cursor for the script to move.

Colours are classes of the style sheet, so one drawing serves light, dark and print. Two widths are drawn, one for
phones, because text in a picture that shrinks with the window cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from puidrec.report.envelope import Band, Mark, Number, Panel
from puidrec.report.formatting import clip_text, finite, show
from puidrec.report.mark_lanes import Placed, place, text_width

LEFT, RIGHT, BOTTOM, LANE = 62.0, 14.0, 26.0, 19.0
HEIGHT = {"wide": 320.0, "narrow": 250.0}
WIDTH = {"wide": 760.0, "narrow": 358.0}
LABEL = {"wide": 44, "narrow": 30}


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linear or by ratio."""

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
    across = Scale(panel.grid[0], panel.grid[-1], LEFT, width - RIGHT, panel.log)
    marks = _placed((*panel.marks, *band.marks), across, size)
    top = 8.0 + LANE * (max((place.lane for _, place in marks), default=-1) + 1)
    up = Scale(*_range(panel, band), top + height, top)
    parts = [_axes(across, up, panel, size), _inside(panel, band, across, up), _marks(marks, up)]
    span = " to ".join(show(end, panel.x_format) for end in (panel.grid[0], panel.grid[-1]))
    words = (
        f"Chart of {panel.y_label}, {band.label}, for {panel.symbol} from {span}; the sentence above says it in words"
    )
    frame = Markup(
        '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}" '
        'data-xs="{}" data-lows="{}" data-highs="{}">{}</svg>'
    )
    pixels = (_join(across(x) for x in panel.grid), _join(_up(band.low, up)), _join(_up(band.high, up)))
    content = Markup("").join([*parts, _cursor(panel, band, across, up)])
    return frame.format(size, f"{width:g}", f"{top + height + BOTTOM:g}", words, *pixels, content)


def ticks(low: float, high: float, count: int, *, log: bool = False) -> list[float]:
    """Round values within a range, at most about `count`: steps of 1, 2 or 5; by ratio 1, 1.5, 2, 3, 5, 7."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = [m * 10.0**k for k in decades for m in (1, 1.5, 2, 3, 5, 7)]
        inside = [v for v in every if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(inside) >= 4:
            return inside if len(inside) <= count else [v for v in inside if f"{v:e}"[:3] in ("1.0", "2.0", "5.0")]
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _range(panel: Panel, band: Band) -> tuple[float, float]:
    """The vertical extent: everything of this band, its estimate, and 0 where 0 is a border."""
    values = [finite(v) for v in (*band.low, *band.high, *band.outer_low, *band.outer_high, panel.point)]
    numbers = [v for v in values if v is not None] + ([0.0] if panel.zero else [])
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    room = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    return low - room, high + room


def _up(values: Sequence[Number], up: Scale) -> list[Number]:
    return [None if (number := finite(v)) is None else up(number) for v in values]


def _join(values: Iterable[Number]) -> str:
    return ",".join("" if value is None else str(value) for value in values)


def _axes(across: Scale, up: Scale, panel: Panel, size: str) -> Markup:
    grid = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="tick" x="{}" y="{}" {}>{}</text>')
    end, below = Markup('text-anchor="end"'), Markup('text-anchor="middle"')
    levels = ticks(up.low, up.high, 7)
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    digits = max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 2
    lines = [
        grid.format(across.start, across.end, up(v), up(v), across.start - 8, up(v) + 4, end, show(v, f".{digits}f"))
        for v in levels
    ]
    places = ticks(across.low, across.high, 9 if size == "wide" else 5, log=panel.log)
    lines += [
        grid.format(across(v), across(v), up.start, up.start + 5, across(v), up.start + 20, below, show(v, "g"))
        for v in places
    ]
    return Markup("").join(lines)


def _inside(panel: Panel, band: Band, across: Scale, up: Scale) -> Markup:
    """What is clipped to the plot: a nested drawing clips by itself and needs no id."""
    xs = [across(x) for x in panel.grid]
    parts = []
    tip = next((mark.at for mark in (*panel.marks, *band.marks) if mark.kind == "tipping"), None)
    if tip is not None and across.low <= tip <= across.high:
        parts.append(Markup('<rect class="beyond" x="{}" y="{}" width="{}" height="{}"/>').format(
            across(tip), up.end, round(across.end - across(tip), 1), round(up.start - up.end, 1)))  # fmt: skip
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
    frame = Markup('<svg x="{0}" y="{1}" width="{2}" height="{3}" viewBox="{0} {1} {2} {3}">{4}</svg>')
    return frame.format(*box, Markup("").join(parts))


def _area(name: str, xs: Sequence[float], low: Sequence[Number], high: Sequence[Number], up: Scale) -> Markup:
    both = [
        (x, a, b) for x, a, b in zip(xs, _up(low, up), _up(high, up), strict=True) if a is not None and b is not None
    ]
    if not both:
        return Markup("")
    there = [f"{x} {b}" for x, _, b in both]
    back = [f"{x} {a}" for x, a, _ in reversed(both)]
    return Markup('<path class="{}" d="M{}Z"/>').format(name, "L".join(there + back))


def _line(name: str, xs: Sequence[float], values: Sequence[Number], up: Scale) -> Markup:
    points = [f"{x} {y}" for x, y in zip(xs, _up(values, up), strict=False) if y is not None]
    return Markup('<path class="{}" d="M{}"/>').format(name, "L".join(points)) if len(points) > 1 else Markup("")


def _placed(marks: Sequence[Mark], across: Scale, size: str) -> list[tuple[Mark, Placed]]:
    """Marks within the axis, their words cut to what fits, and where the words go."""
    inside = [mark for mark in marks if across.low <= mark.at <= across.high]
    words = [mark.short if size == "narrow" and mark.short else mark.label for mark in inside]
    cut = [replace(mark, label=clip_text(text, LABEL[size])) for mark, text in zip(inside, words, strict=True)]
    spots = place([across(m.at) for m in cut], [text_width(m.label) for m in cut], 2.0, WIDTH[size] - 2.0)
    return list(zip(cut, spots, strict=True))


def _marks(marks: Sequence[tuple[Mark, Placed]], up: Scale) -> Markup:
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


def _cursor(panel: Panel, band: Band, across: Scale, up: Scale) -> Markup:
    x = across(panel.grid[panel.start])
    ends = [value for value in (finite(band.low[panel.start]), finite(band.high[panel.start])) if value is not None]
    low, high = (up(ends[0]), up(ends[-1])) if ends else (up.start, up.start)
    return Markup(
        '<g class="cursor"><line class="cursor-line" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        '<line class="cursor-range" x1="{0}" x2="{0}" y1="{3}" y2="{4}"/>'
        '<circle class="cursor-dot" cx="{0}" cy="{3}" r="4.5"/>'
        '<circle class="cursor-dot" cx="{0}" cy="{4}" r="4.5"/></g>'
    ).format(x, up.end, up.start, low, high)
