"""An interactive chart of ranges that widen as an assumption weakens: the data of it, and what it says in words.

The drawing is made once, in `envelope_svg`; the page's script only shows the chosen one and moves the cursor. So what
is printed, what is seen without a script, and what is seen with one, are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal

from puidrec.errors import InputError
from puidrec.report.formatting import show

MarkKind = Literal["tipping", "benchmark", "certificate"]
Number = float | None


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
        return {Slot.LOW: self.low, Slot.HIGH: self.high, **{k: v for k, v in outer.items() if len(v)}}


@dataclass(frozen=True)
class Panel:
    """One quantity against one kind of strength: its bands, marks, and sentences."""

    label: str
    """The quantity, among which the reader chooses: `Difference in error`."""
    group: str
    """The kind of strength, among which the reader chooses: `One Γ for all`."""
    grid: Sequence[float]
    symbol: str
    """Γ or κ."""
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
                    found=f"{len(band.low)}, {len(band.high)} and {len(band.says)} values", expected=f"{n} each",
                )  # fmt: skip
        if not self.bands or not 0 <= self.start < n:
            raise InputError("a chart needs a band and a start on its grid", found=self.start, expected=f"0 to {n - 1}")

    def words(self, band: Band, at: int) -> list[tuple[str, bool]]:
        """The sentence at a point of the grid, in pieces: text, and whether it came from the slider."""
        ends = {name: show(values[at], self.format) for name, values in band.ends().items()}
        values = {Slot.X: show(self.grid[at], self.x_format), **ends}
        sentence = self.sentences[band.says[at]]
        return [(values[piece], True) if isinstance(piece, Slot) else (piece, False) for piece in sentence]


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
            "label": band.label, "note": band.note, "says": list(band.says),
            **{slot.value: [show(v, panel.format) for v in values] for slot, values in band.ends().items()},
        }
        for band in panel.bands
    ]  # fmt: skip
    return {
        "label": panel.label, "group": panel.group, "symbol": panel.symbol, "start": panel.start,
        "x": [show(v, panel.x_format) for v in panel.grid], "sentences": sentences, "bands": bands,
    }  # fmt: skip
