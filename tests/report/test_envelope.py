"""The chart: sentences filled without searching in names; a drawing to scale; words of marks that
never overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.envelope import (
    CHARACTER,
    HIGH,
    LEFT,
    LOW,
    OUTER_HIGH,
    OUTER_LOW,
    RIGHT,
    SIZES,
    Band,
    Mark,
    Panel,
    X,
)

GRID = [1.0, 2.0, 4.0, 8.0]
Draw = Callable[..., ET.Element]
MARKS = st.lists(st.tuples(st.floats(1, 8), st.integers(1, 60)), max_size=8)


def panel(name: str = "A", **changes: Any) -> Panel:
    band = Band("Sharp", [0.5, -0.25], [0.5, 1.0], ["ahead", "open"])
    values: dict[str, Any] = {
        "label": "gap",
        "grid": [1.0, 2.0],
        "y_label": "y",
        "bands": [band],
        "format": ".2f",
        "sentences": {
            "ahead": f"{name} is ahead by {LOW}",
            "open": f"{X}: {LOW} to {HIGH}",
        },
    }
    return Panel(**(values | changes))


def said(chart: Panel, at: int) -> str:
    return "".join(text for text, _ in chart.words(chart.bands[0], at))


def test_the_sentence_belongs_to_the_point_of_the_grid() -> None:
    assert [said(panel(), at) for at in (0, 1)] == ["A is ahead by 0.50", "2.00: −0.25 to 1.00"]


def test_slots_are_never_looked_for_in_names(nasty: str) -> None:
    nasty = nasty.replace("\0", "")  # the only character that sets off a slot
    assert said(panel(nasty), 0) == f"{nasty} is ahead by 0.50"
    assert said(panel("{x} {low}"), 0) == "{x} {low} is ahead by 0.50"


def test_the_range_with_sampling_error_can_be_quoted_where_it_is_known() -> None:
    band = Band(
        "Sharp", [0.5, 0.5], [0.5, 1.0], ["s", "s"], outer_low=[0.1, 0.2], outer_high=[0.9, None]
    )
    chart = panel(bands=[band], sentences={"s": f"{OUTER_LOW} to {OUTER_HIGH}"})
    assert [said(chart, at) for at in (0, 1)] == ["0.10 to 0.90", "0.20 to –"]
    assert chart.data()["bands"][0]["outer_high"] == ["0.90", "–"]


def test_what_is_not_known_is_said_with_a_dash() -> None:
    band = Band("Sharp", [None, None], [1.0, 1.0], ["open", "open"])
    assert said(panel(bands=[band]), 1) == "2.00: – to 1.00"


def test_the_script_gets_the_same_words_as_the_server_writes() -> None:
    chart = panel()
    data = chart.data()
    band = data["bands"][0]
    for at in (0, 1):
        values = {"x": data["x"][at], "low": band["low"][at], "high": band["high"][at]}
        pieces = data["sentences"][band["says"][at]]
        assert "".join(p if isinstance(p, str) else values[p["slot"]] for p in pieces) == said(
            chart, at
        )


def drawn(
    low: list[float | None], high: list[float | None], *, marks: tuple[Mark, ...] = ()
) -> Panel:
    tip = next((mark for mark in marks if mark.kind == "tipping"), None)
    band = Band("Sharp", low, high, ["s"] * len(low), tip=tip)
    rest = tuple(mark for mark in marks if mark is not tip)
    return Panel("l", "y", GRID, [band], {"s": "words"}, marks=rest, point=0.0)


@pytest.fixture(scope="module")
def parsed(blocks_page: Any) -> Callable[..., ET.Element]:
    """Draws a panel."""

    def make(chart: Panel, size: str = "wide") -> ET.Element:
        text = blocks_page(
            "{{ drawn.drawing(chart, chart.bands[0], size) }}", chart=chart, size=size
        )
        return ET.fromstring(text[text.index("<svg") : text.rindex("</svg>") + 6])

    return make


def numbers(root: ET.Element, name: str) -> list[float]:
    return [float(v) for v in root.attrib[name].split(",")]


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis(parsed: Draw) -> None:
    xs = numbers(parsed(drawn([0.0] * 4, [1.0] * 4)), "data-xs")
    assert xs[0] == LEFT
    assert xs[-1] == SIZES["wide"].width - RIGHT
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
    root = parsed(drawn([start] * 4, [start + width] * 4), "narrow")
    foot = float(root.attrib["viewBox"].split()[3]) - 26
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
    for size in SIZES:
        root = parsed(chart, size)
        words = [one for one in root.iter() if one.attrib.get("class") == "mark-words benchmark"]
        assert len(words) == len(marks)
        assert len({one.attrib["y"] for one in words}) == len(words)
        for one in words:
            start = float(one.attrib["x"])
            assert start >= 2.0
            assert start + CHARACTER * len(one.text or "") <= SIZES[size].width - 1.9


def test_words_stand_right_of_their_line_and_at_the_edge_left_of_it(parsed: Draw) -> None:
    marks = (Mark(2.0, "inner", "benchmark"), Mark(7.9, "at the edge", "certificate"))
    nodes = list(parsed(drawn([0.0] * 4, [1.0] * 4, marks=marks)).iter())
    lines = [
        float(one.attrib["x1"]) for one in nodes if one.attrib.get("class", "").startswith("mark ")
    ]
    starts = [
        float(one.attrib["x"])
        for one in nodes
        if one.attrib.get("class", "").startswith("mark-words")
    ]
    assert lines == sorted(lines)
    assert starts[0] == lines[0] + 4
    assert starts[1] + CHARACTER * len("at the edge") == pytest.approx(lines[1] - 4, abs=0.1)
