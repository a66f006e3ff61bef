"""Charts are checked by what is on them: texts inside the canvas and apart from each other, bars
that sum to 100 %."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from puidrec.report.charts import (
    factor_ticks,
    histogram,
    save_png,
    ticks,
    to_svg,
)

WORDS = {
    "title": "What it shows",
    "caption": "How it was made.",
    "x": "words for x",
    "y": "words for y",
}


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """Visible texts and their boxes in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    found = [
        t
        for t in figure.findobj(Text)
        if isinstance(t, Text) and t.get_visible() and t.get_text().strip()
    ]
    return [(t.get_text(), t.get_window_extent(renderer)) for t in found]


def bars(figure: Figure) -> np.ndarray:
    return np.array([patch.get_height() for patch in figure.axes[0].patches])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).lognormal(0.5, 0.2, 1000) + 1.0,
        np.random.default_rng(0).lognormal(0.0, 2.0, 1000) + 1.0,
        np.ones(10),
        np.full(10, 3.0),
    ],
    ids=["narrow", "wide", "ones", "constant"],
)
def test_a_histogram_accounts_for_every_value(values: np.ndarray) -> None:
    marks = [(float(np.median(values)), "the middle"), (1.3, "a proof of something in many words")]
    figure = histogram(values, **WORDS, start=1.0, marks=marks)
    assert bars(figure).sum() == pytest.approx(100.0)
    shown = dict(texts(figure))
    assert {*WORDS.values(), "the middle", "a proof of something in many words"} <= set(shown)
    boxes = [shown[words] for _, words in marks]
    for box in [*boxes, *(shown[words] for words in WORDS.values())]:
        assert box.x0 >= -1
        assert box.x1 <= figure.bbox.width + 1
    assert not boxes[0].overlaps(boxes[1])


def test_a_wide_range_is_logarithmic() -> None:
    scales = [
        histogram(np.array([1.0, top]), **WORDS, start=1.0).axes[0].get_xscale()
        for top in (3.0, 20.0)
    ]
    assert scales == ["linear", "log"]


def test_equal_figures_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_png(histogram(np.arange(1.0, 9.0), **WORDS, start=1.0), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes().startswith(b"\x89PNG")


def test_no_global_plotting_state() -> None:
    import subprocess
    import sys

    code = "import puidrec.report.charts, sys; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_drawing_is_text_of_equal_bytes() -> None:
    one, two = (to_svg(histogram(np.arange(1.0, 9.0), **WORDS, start=1.0)) for _ in range(2))
    assert one == two
    assert ET.fromstring(one).tag.endswith("svg")


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(3, 9))
@example(1e-271, 8e5, 3)
@example(
    368298.0, 1e-05, 4
)  # far from 0 a multiple of the step is off by more than the range forgives
def test_ticks_are_round_inside_and_not_too_many(low: float, width: float, count: int) -> None:
    found = ticks(low, low + width, count)
    assert len(found) <= count + 1
    assert all(low - 1e-6 * width <= v <= low + width * (1 + 1e-6) for v in found)


def test_ticks_are_the_decimals_a_reader_expects() -> None:
    assert ticks(0.0, 0.5, 6) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert ticks(-0.3, 0.3, 7) == pytest.approx([-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3])
    assert ticks(-1_000.0, 2_000.0, 4) == [-1_000.0, 0.0, 1_000.0, 2_000.0]
    assert ticks(1e6, 1e6 + 1e-6, 4) == pytest.approx([1e6, 1000000.0000005, 1000000.000001])


@given(st.floats(1.05, 1e4))
def test_ticks_of_ratios_are_inside_and_more_than_one(limit: float) -> None:
    found = factor_ticks(1.0, limit, 9)
    assert 2 <= len(found) <= 14
    assert all(1.0 - 1e-6 <= v <= limit * (1 + 1e-6) for v in found)
