"""The drawing is to scale: pixels of the curves give back the values, whatever the range."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.envelope import Band, Mark, Panel
from puidrec.report.envelope_svg import BOTTOM, LEFT, RIGHT, WIDTH, Scale, draw, ticks

GRID = [1.0, 2.0, 4.0, 8.0]


def panel(
    low: list[float | None], high: list[float | None], *, log: bool = True, marks: tuple[Mark, ...] = ()
) -> Panel:
    band = Band("Sharp", low, high, ["s"] * len(low))
    return Panel("l", "g", GRID, "Γ", "x", "y", [band], {"s": ["words"]}, marks=marks, log=log, point=0.0)


def parsed(chart: Panel, size: str = "wide") -> ET.Element:
    return ET.fromstring(str(draw(chart, chart.bands[0], size)))


def numbers(root: ET.Element, name: str) -> list[float]:
    return [float(v) for v in root.attrib[name].split(",")]


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis() -> None:
    xs = numbers(parsed(panel([0.0] * 4, [1.0] * 4)), "data-xs")
    assert xs[0] == LEFT
    assert xs[-1] == WIDTH["wide"] - RIGHT
    assert [b - a for a, b in pairwise(xs)] == pytest.approx([(xs[-1] - xs[0]) / 3] * 3, abs=0.11)


def test_equal_differences_are_equal_distances_on_a_plain_axis() -> None:
    xs = numbers(parsed(panel([0.0] * 4, [1.0] * 4, log=False)), "data-xs")
    assert (xs[2] - xs[0]) / (xs[1] - xs[0]) == pytest.approx(3.0, abs=0.01)


def test_heights_are_to_scale_and_up_is_more() -> None:
    root = parsed(panel([0.0, -1.0, -2.0, -3.0], [0.0, 1.0, 2.0, 4.0]))
    low, high = numbers(root, "data-lows"), numbers(root, "data-highs")
    unit = (low[3] - low[0]) / 3
    assert unit > 10
    assert high[3] == pytest.approx(low[0] - 4 * unit, abs=0.3)


def test_what_is_unknown_has_no_pixel_and_breaks_nothing() -> None:
    root = parsed(panel([None, 0.0, 0.1, None], [1.0, 1.0, None, None]))
    assert root.attrib["data-lows"].startswith(",")
    assert parsed(panel([None] * 4, [None] * 4)).attrib["data-lows"] == ",,,"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_any_range_can_be_drawn(start: float, width: float) -> None:
    root = parsed(panel([start] * 4, [start + width] * 4), "narrow")
    foot = float(root.attrib["viewBox"].split()[3]) - BOTTOM
    assert all(0 <= y <= foot for name in ("data-lows", "data-highs") for y in numbers(root, name))


def test_marks_outside_the_axis_are_left_out() -> None:
    inside, outside = Mark(2.0, "inside", "benchmark"), Mark(9.0, "outside", "tipping")
    texts = [node.text for node in parsed(panel([0.0] * 4, [1.0] * 4, marks=(inside, outside))).iter()]
    assert "inside" in texts
    assert "outside" not in texts


def test_beyond_the_tipping_point_the_ground_is_tinted() -> None:
    mark = Mark(4.0, "tip", "tipping")
    root = parsed(panel([0.0] * 4, [1.0] * 4, marks=(mark,)))
    tint = next(node for node in root.iter() if node.attrib.get("class") == "beyond")
    assert float(tint.attrib["x"]) == numbers(root, "data-xs")[2]


def test_names_are_escaped(nasty: str) -> None:
    nasty = nasty.translate({0: None, 27: None})  # no characters of XML
    texts = [node.text for node in parsed(panel([0.0] * 4, [1.0] * 4, marks=(Mark(2.0, nasty, "benchmark"),))).iter()]
    assert any(text and nasty.startswith(text.rstrip("…")) for text in texts)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(3, 9))
def test_ticks_are_round_inside_and_not_too_many(low: float, width: float, count: int) -> None:
    found = ticks(low, low + width, count)
    assert len(found) <= count + 1
    assert all(low - 1e-6 * width <= v <= low + width * (1 + 1e-6) for v in found)


@given(st.floats(1.05, 1e4))
def test_ticks_of_ratios_are_inside_and_more_than_one(limit: float) -> None:
    found = ticks(1.0, limit, 9, log=True)
    assert 2 <= len(found) <= 14
    assert all(1.0 - 1e-6 <= v <= limit * (1 + 1e-6) for v in found)


def test_a_scale_of_one_value_stays_in_the_middle() -> None:
    assert Scale(2.0, 2.0, 0.0, 10.0)(2.0) == 5.0
    assert Scale(1.0, math.e, 0.0, 10.0, log=True)(math.sqrt(math.e)) == 5.0
