"""What a report is made of: plain data, without a word of HTML. `html.render` turns a `Page` into
one file.

Every text is escaped where it is rendered, so ids and names may hold anything. In texts of
paragraphs, captions, call-outs and details, `` `code` `` and `**strong**` are understood, nothing
else. Numbers may be missing (None), NaN or infinite. Example:

    Page(
        title="Four methods on Coat", lead="UAUC over five seeds.",
        sections=[Section("results", "Results", [
            Table(["method", Column("UAUC", ".3f")], [["mf", 0.702], ["ips", 0.711]], caption="Means
            over seeds."), Figure.of(matplotlib_figure, alt="Dots with intervals, ips first",
            caption="The same as a chart."),
        ])],
    )
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

from puidrec.errors import InputError
from puidrec.report.formatting import MISSING, Value, as_number, finite, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from puidrec.report.envelope import Envelope

Tone = Literal["good", "warn", "bad", "info"]
"""good: it holds; warn: with care; bad: it does not hold; info: neither. Boxes show it by icon and
word, not by colour alone."""


TALL = 16
"""Rows of a table beyond which it scrolls in its own region."""
SHADES = 8
"""Shades from lightest to darkest; the style sheet has a pair of colours for each."""


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    template: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, how its numbers read (`.3f`, `+.3f`, `.1%`, `,d`), and what it
    means."""

    name: str
    format: str = ""
    help: str = ""
    """Shown below the table, one line per column that has it."""


@dataclass(frozen=True)
class Cell:
    """A cell that needs more than a value: other words than its number (`0.71 ± 0.02`), a tone, or
    a small bar.

    It sorts by `value`, so that "0.71 ± 0.02" with value 0.71 stands where it should.
    """

    value: Value
    text: str | None = None
    tone: Tone | None = None
    bar: float | None = None
    """Length of a bar beside the text, from 0 to 1."""
    tick: float | None = None
    """Where on the bar a tick stands, from 0 to 1: what was expected."""


class Shown(NamedTuple):
    """A cell as it is rendered."""

    text: str
    number: float | None
    tone: Tone | None
    bar: float | None
    tick: float | None


@dataclass(frozen=True)
class Table:
    """Rows of values. Wide tables scroll inside their own region; with a script, columns sort by a
    click.

    Columns whose values are all numbers are set right. `emphasised` are indices of rows to stress
    (the reference, the winner). An empty table says so in words.
    """

    template: ClassVar[str] = "table"
    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Value | Cell]]
    caption: str
    sortable: bool = True
    emphasised: Sequence[int] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InputError(
                    "a row of a report's table has another length",
                    row=number,
                    found=len(row),
                    expected=f"{len(self.columns)} cells",
                )

    def without_constants(self) -> Table:
        """The same without columns in which all rows agree (but the first), which the caption says
        instead."""
        if len(self.rows) < 2:
            return self
        body, names = self.body, [c if isinstance(c, str) else c.name for c in self.columns]
        same = [k for k in range(1, len(names)) if len({row[k].text for row in body}) == 1]
        said = [f"{names[k]}: {body[0][k].text}" for k in same if body[0][k].text != MISSING]
        kept = [k for k in range(len(self.columns)) if k not in same]
        return replace(
            self,
            columns=[self.columns[k] for k in kept],
            rows=[[row[k] for k in kept] for row in self.rows],
            caption=f"{self.caption} In all rows: {'; '.join(said)}." if said else self.caption,
        )

    @property
    def head(self) -> list[tuple[Column, bool]]:
        """Columns, each with whether it holds numbers."""
        columns = [Column(c) if isinstance(c, str) else c for c in self.columns]
        return [(column, self._numeric(k)) for k, column in enumerate(columns)]

    @property
    def body(self) -> list[list[Shown]]:
        """Per row and cell: text, number to sort by, tone, bar and tick."""
        return [[self._cell(k, cell) for k, cell in enumerate(row)] for row in self.rows]

    @property
    def tall(self) -> bool:
        """Whether it has so many rows that it scrolls in its own region, below a head that stays."""
        return len(self.rows) > TALL

    def _cell(self, k: int, cell: Value | Cell) -> Shown:
        column = self.columns[k]
        full = cell if isinstance(cell, Cell) else Cell(cell)
        text = (
            full.text
            if full.text is not None
            else show(full.value, "" if isinstance(column, str) else column.format)
        )
        bar, tick = (
            None if v is None else round(min(max(v, 0.0), 1.0), 4)
            for v in map(finite, (full.bar, full.tick))
        )
        return Shown(text, as_number(full.value), full.tone, bar, tick)

    def _numeric(self, k: int) -> bool:
        values = [
            cell.value if isinstance(cell, Cell) else cell for cell in (row[k] for row in self.rows)
        ]
        present = [value for value in values if value is not None]
        return bool(present) and all(not isinstance(v, str | bool) for v in present)


@dataclass(frozen=True)
class HeatMap:
    """Values by row and column, shaded between the smallest and the largest; missing values are
    blank.

    `log` shades by ratio, which is right for factors such as Γ.
    """

    template: ClassVar[str] = "heat_map"
    values: Sequence[Sequence[float | None]]
    rows: Sequence[str]
    columns: Sequence[str]
    caption: str
    row_title: str = ""
    column_title: str = ""
    unit: str = ""
    """What the figures are, for the legend."""
    format: str = ".2f"
    log: bool = False

    def __post_init__(self) -> None:
        shapes = {len(row) for row in self.values}
        if len(self.values) != len(self.rows) or (shapes - {len(self.columns)}):
            raise InputError(
                "values of a heat map do not fit its labels",
                found=f"{len(self.values)} rows of {sorted(shapes)}",
                expected=f"{len(self.rows)} rows of {len(self.columns)}",
            )

    @property
    def body(self) -> list[tuple[str, list[tuple[str, int | None]]]]:
        """Per row: its label, and per cell the text and the shade."""
        low, high = self._ends()
        return [
            (label, [(show(value, self.format), self._shade(value, low, high)) for value in row])
            for label, row in zip(self.rows, self.values, strict=True)
        ]

    @property
    def legend(self) -> list[tuple[str, int]]:
        """Shades that occur, each with the value at its lower edge; one alone where all values are
        equal."""
        low, high = self._ends()
        if not any(finite(v) is not None for row in self.values for v in row):
            return []
        if high <= low:
            return [(show(low, self.format), self._shade(low, low, high) or 0)]
        edges = [self._value_at(k / SHADES, low, high) for k in range(SHADES)]
        return [(show(edge, self.format), k) for k, edge in enumerate(edges)]

    @property
    def top(self) -> str:
        """The value at the upper end of the scale."""
        return show(self._ends()[1], self.format)

    def _ends(self) -> tuple[float, float]:
        numbers = [n for row in self.values for n in map(finite, row) if n is not None]
        return min(numbers, default=0.0), max(numbers, default=0.0)

    def _scale(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value

    def _value_at(self, share: float, low: float, high: float) -> float:
        at = self._scale(low) + share * (self._scale(high) - self._scale(low))
        return math.exp(at) if self.log else at

    def _shade(self, value: float | None, low: float, high: float) -> int | None:
        number = finite(value)
        if number is None:
            return None
        width = self._scale(high) - self._scale(low)
        share = (self._scale(number) - self._scale(low)) / width if width > 0 else 0.5
        return min(max(int(share * SHADES), 0), SHADES - 1)


@dataclass(frozen=True)
class Figure:
    """A picture inside the file: PNG bytes or SVG text (drawn as an image: nothing in it can run)."""

    template: ClassVar[str] = "figure"
    image: bytes | str
    alt: str
    """What a reader who cannot see it needs to know."""
    caption: str = ""

    dark: bytes | None = None
    """The same for a dark page, where there is one."""

    @classmethod
    def of(cls, drawing: Drawing, alt: str, caption: str = "") -> Figure:
        """From a Matplotlib figure, which becomes dark; equal figures give equal bytes."""
        from puidrec.report.charts import in_dark

        light = _png(drawing)
        return cls(light, alt, caption, _png(in_dark(drawing)))

    @property
    def uri(self) -> str:
        """The picture as a `data:` address."""
        return _uri(self.image)

    @property
    def dark_uri(self) -> str | None:
        """The picture for a dark page."""
        return None if self.dark is None else _uri(self.dark)


def _png(drawing: Drawing) -> bytes:
    from puidrec.report.charts import DPI

    buffer = io.BytesIO()
    drawing.savefig(buffer, dpi=DPI, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _uri(image: bytes | str) -> str:
    raw, kind = (image.encode(), "svg+xml") if isinstance(image, str) else (image, "png")
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


@dataclass(frozen=True)
class Facts:
    """Labels and values, side by side: settings, sizes, key figures."""

    template: ClassVar[str] = "facts"
    items: Sequence[tuple[str, Value]]

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Labels with values as text."""
        return [(label, show(value)) for label, value in self.items]


@dataclass(frozen=True)
class Callout:
    """A box that must not be overlooked: tone, title, text, and points if there are several."""

    template: ClassVar[str] = "callout"
    tone: Tone
    title: str
    text: str = ""
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Details:
    """Blocks behind a summary line that opens; printed open."""

    template: ClassVar[str] = "details"
    summary: str
    blocks: Sequence[Block]


Block: TypeAlias = "Paragraph | Table | Figure | Facts | Callout | Details | HeatMap | Envelope"


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading; `id` is its anchor (letters, digits, hyphens)."""

    id: str
    title: str
    blocks: Sequence[Block] = ()
    short: str = ""
    """Its name in the list of contents, where the title is long."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.id):
            raise InputError(
                "a section of a report needs a plain id",
                found=self.id,
                expected="letters, digits, hyphens",
            )


@dataclass(frozen=True)
class VerdictBox:
    """What the page concludes: one word or two beside the icon, one sentence."""

    tone: Tone
    label: str
    sentence: str
    facts: Sequence[tuple[str, Value]] = ()
    """Two to four headline figures below the sentence."""
    points: Sequence[str] = ()
    """What else follows, one line each."""


@dataclass(frozen=True)
class Page:
    """A report: title, what it is about in a sentence or two, an optional verdict, sections."""

    title: str
    lead: str
    sections: Sequence[Section] = ()
    verdict: VerdictBox | None = None
    kind: str = "Report"
    """Small word above the title: Audit, Comparison, Reproduction."""

    def __post_init__(self) -> None:
        ids = [section.id for section in self.sections]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise InputError(
                "two sections of a report have the same id",
                found=", ".join(twice),
                expected="one each",
            )
