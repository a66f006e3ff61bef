"""The chart: a drawing to scale; words of marks that never overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.audit import LEFT, RIGHT, WIDTH, Band, Mark, Panel

CHARACTER = 10.0
"""Generous width of a character on a phone, in units of the drawing."""
GRID = [1.0, 2.0, 4.0, 8.0]
Draw = Callable[..., ET.Element]
MARKS = st.lists(st.tuples(st.floats(1, 8), st.integers(1, 29)), max_size=8)


def drawn(
    low: list[float | None], high: list[float | None], *, marks: tuple[Mark, ...] = ()
) -> Panel:
    tip = next((mark for mark in marks if mark.kind == "tipping"), None)
    ends = np.array([low, high], float)
    ends[:, np.isnan(ends.sum(axis=0))] = np.nan
    unknown = np.full(len(low), np.nan)
    band = Band("Sharp", "", *ends, unknown, unknown, ["s"] * len(low), tip)
    rest = tuple(mark for mark in marks if mark is not tip)
    return Panel("l", "y", GRID, [band], marks=rest, point=0.0)


@pytest.fixture(scope="module")
def parsed(blocks_page: Any) -> Callable[..., ET.Element]:
    """Draws a panel."""

    def make(chart: Panel) -> ET.Element:
        text = blocks_page("{{ drawn.drawing(chart, chart.bands[0]) }}", chart=chart)
        return ET.fromstring(text[text.index("<svg") : text.rindex("</svg>") + 6])

    return make


def numbers(root: ET.Element, name: str) -> list[float]:
    return [float(v) for v in root.attrib[name].split(",")]


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis(parsed: Draw) -> None:
    xs = numbers(parsed(drawn([0.0] * 4, [1.0] * 4)), "data-xs")
    assert xs[0] == LEFT
    assert xs[-1] == WIDTH - RIGHT
    assert [b - a for a, b in pairwise(xs)] == pytest.approx([(xs[-1] - xs[0]) / 3] * 3, abs=0.11)


def test_heights_are_to_scale_and_up_is_more(parsed: Draw) -> None:
    root = parsed(drawn([0.0, -1.0, -2.0, -3.0], [0.0, 1.0, 2.0, 4.0]))
    low, high = numbers(root, "data-lows"), numbers(root, "data-highs")
    unit = (low[3] - low[0]) / 3
    assert unit > 10
    assert high[3] == pytest.approx(low[0] - 4 * unit, abs=0.3)


def test_what_is_unknown_has_no_pixel_and_breaks_nothing(parsed: Draw) -> None:
    root = parsed(drawn([None, 0.0, 0.1, None], [1.0, 1.0, None, None]))
    assert root.attrib["data-lows"].startswith(",")
    assert parsed(drawn([None] * 4, [None] * 4)).attrib["data-lows"] == ",,,"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_any_range_can_be_drawn(parsed: Draw, start: float, width: float) -> None:
    root = parsed(drawn([start] * 4, [start + width] * 4))
    foot = float(root.attrib["viewBox"].split()[3]) - 28
    assert all(0 <= y <= foot for name in ("data-lows", "data-highs") for y in numbers(root, name))


def test_marks_outside_the_axis_are_left_out(parsed: Draw) -> None:
    inside, outside = Mark(2.0, "inside", "benchmark"), Mark(9.0, "outside", "tipping")
    texts = [
        node.text for node in parsed(drawn([0.0] * 4, [1.0] * 4, marks=(inside, outside))).iter()
    ]
    assert "inside" in texts
    assert "outside" not in texts


def test_beyond_the_tipping_point_the_ground_is_tinted(parsed: Draw) -> None:
    mark = Mark(4.0, "tip", "tipping")
    root = parsed(drawn([0.0] * 4, [1.0] * 4, marks=(mark,)))
    tint = next(node for node in root.iter() if node.attrib.get("class") == "beyond")
    assert float(tint.attrib["x"]) == numbers(root, "data-xs")[2]


def test_names_are_escaped(nasty: str, parsed: Draw) -> None:
    nasty = nasty.translate({0: None, 27: None})  # no characters of XML
    texts = [
        node.text
        for node in parsed(
            drawn([0.0] * 4, [1.0] * 4, marks=(Mark(2.0, nasty, "benchmark"),))
        ).iter()
    ]
    assert any(text and nasty.startswith(text.rstrip("…")) for text in texts)


@given(MARKS)
def test_words_of_marks_are_inside_and_each_in_a_lane_of_its_own(
    parsed: Draw, marks: list[tuple[float, int]]
) -> None:
    chart = drawn(
        [0.0] * 4, [1.0] * 4, marks=tuple(Mark(x, "x" * n, "benchmark") for x, n in marks)
    )
    root = parsed(chart)
    words = [one for one in root.iter() if one.attrib.get("class") == "mark-words benchmark"]
    assert len(words) == len(marks)
    assert len({one.attrib["y"] for one in words}) == len(words)
    for one in words:
        at, long = float(one.attrib["x"]), CHARACTER * len(one.text or "")
        left = at - long if one.attrib.get("text-anchor") == "end" else at
        assert left >= 0
        assert left + long <= WIDTH


def test_words_stand_right_of_their_line_and_at_the_edge_left_of_it(parsed: Draw) -> None:
    marks = (Mark(2.0, "inner", "benchmark"), Mark(7.9, "at the edge", "certificate"))
    nodes = list(parsed(drawn([0.0] * 4, [1.0] * 4, marks=marks)).iter())
    lines = [
        float(one.attrib["x1"]) for one in nodes if one.attrib.get("class", "").startswith("mark ")
    ]
    words = [one for one in nodes if one.attrib.get("class", "").startswith("mark-words")]
    assert lines == sorted(lines)
    assert [float(one.attrib["x"]) for one in words] == [lines[0] + 4, lines[1] - 4]
    assert [one.attrib.get("text-anchor") for one in words] == [None, "end"]
