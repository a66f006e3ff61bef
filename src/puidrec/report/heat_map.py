"""A table of numbers as colours that stays a table: every figure can be read, copied and heard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from puidrec.errors import InputError
from puidrec.report.numbers import finite, show

STEPS = 8
"""Shades from lightest to darkest; the style sheet has a pair of colours for each."""


@dataclass(frozen=True)
class HeatMap:
    """Values by row and column, shaded between the smallest and the largest; missing values are blank.

    `log` shades by ratio, which is right for factors such as Γ. `low` and `high` fix the ends of the scale, so that
    two maps can be compared.
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
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        shapes = {len(row) for row in self.values}
        if len(self.values) != len(self.rows) or (shapes - {len(self.columns)}):
            raise InputError(
                "values of a heat map do not fit its labels", found=f"{len(self.values)} rows of {sorted(shapes)}",
                expected=f"{len(self.rows)} rows of {len(self.columns)}",
            )  # fmt: skip

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
        """Shades that occur, each with the value at its lower edge; one alone where all values are equal."""
        low, high = self._ends()
        if not any(finite(v) is not None for row in self.values for v in row):
            return []
        if high <= low:
            return [(show(low, self.format), self._shade(low, low, high) or 0)]
        edges = [self._value_at(k / STEPS, low, high) for k in range(STEPS)]
        return [(show(edge, self.format), k) for k, edge in enumerate(edges)]

    @property
    def top(self) -> str:
        """The value at the upper end of the scale."""
        return show(self._ends()[1], self.format)

    def _ends(self) -> tuple[float, float]:
        numbers = [n for row in self.values for n in map(finite, row) if n is not None]
        low = self.low if self.low is not None else min(numbers, default=0.0)
        high = self.high if self.high is not None else max(numbers, default=low)
        return low, high

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
        return min(max(int(share * STEPS), 0), STEPS - 1)
