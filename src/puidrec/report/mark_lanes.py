"""Where the words of vertical marks go, so that no two overlap and lines seldom run through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHARACTER = 6.9
"""Generous width of a character at the size marks are set in, in pixels."""
GAP = 8.0


@dataclass(frozen=True)
class Placed:
    """The words of one mark: lane (0 is the top one), the span they cover, and on which side of the line they are."""

    x: float
    lane: int
    left: float
    right: float
    anchor: str
    """`start`: right of the line; `end`: left of it."""


def text_width(text: str) -> float:
    """An upper guess of how wide a text is drawn."""
    return CHARACTER * len(text)


def place(positions: Sequence[float], widths: Sequence[float], low: float, high: float) -> list[Placed]:
    """Lanes for marks at `positions` whose words are `widths` wide, all within [low, high].

    Marks whose words fit only to the left of their line come first, from the right; then the others, from the left.
    Each takes the highest lane where its words meet no other words, its line (which runs down from its lane) meets no
    words below, and no line from above meets its words; where there is none, a new lane below.
    """
    placed: list[Placed] = []
    turned = [x + 4.0 + width > high for x, width in zip(positions, widths, strict=True)]
    order = sorted(range(len(positions)), key=lambda k: (-1, -positions[k], k) if turned[k] else (0, positions[k], k))
    for k in order:
        options = [option for option in _sides(positions[k], widths[k]) if option[0] >= low and option[1] <= high]
        options = options or [_squeezed(positions[k], widths[k], low, high)]
        lanes = max((mark.lane for mark in placed), default=-1) + 2
        free = [
            Placed(positions[k], lane, left, right, anchor)
            for lane in range(lanes)
            for left, right, anchor in options
        ]  # fmt: skip
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
        if other.lane == mark.lane and mark.left < other.right + GAP and other.left < mark.right + GAP:
            return False
        if other.lane > mark.lane and other.left - 2.0 < mark.x < other.right + 2.0:
            return False
        if other.lane < mark.lane and mark.left - 2.0 < other.x < mark.right + 2.0:
            return False
    return True
