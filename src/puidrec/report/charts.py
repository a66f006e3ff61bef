"""Charts that speak for themselves: words on the axes, a title that says what is seen, colours that
survive grey print.

Figures are objects of their own (no global state of a plotting library) and render without a
display.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from puidrec.view import pictured

DPI = 150
BLUE, DARK, GREY, LIGHT = "#3a6ea5", "#222222", "#8a8a8a", "#dddddd"
WIDE_RANGE = 8.0
"""Factors that differ by more than this are drawn on a logarithmic axis."""


def histogram(
    values: np.ndarray,
    *,
    title: str,
    caption: str,
    x: str,
    y: str,
    start: float,
    marks: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Share of values per interval, in percent, from `start` on, with vertical marks (position,
    words)."""
    figure, axes = canvas(7.2, 4.4, title, caption)
    points = [start, float(values.min()), float(values.max()), *(position for position, _ in marks)]
    low, high = min(points), max(points)
    wide = low > 0.0 and high / low > WIDE_RANGE
    if high - low < 1e-9 * max(abs(high), 1.0):
        high = low + 0.5
    edges = np.geomspace(low, high, 41) if wide else np.linspace(low, high, 41)
    axes.hist(
        values,
        bins=edges.tolist(),
        weights=np.full(values.size, 100.0 / values.size),
        color=BLUE,
        edgecolor="white",
        linewidth=0.4,
    )
    if wide:
        axes.set_xscale("log")
        _factor_ticks(axes.xaxis, low, high)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    for (position, words), style in zip(marks, ("-", "--"), strict=False):
        axes.axvline(position, color=DARK, linewidth=1.1, linestyle=style, label=words)
    if marks:
        axes.legend(frameon=False, fontsize=9)
    return figure


def to_svg(figure: Figure) -> str:
    """A figure as SVG, letters as paths; equal figures give equal text."""
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "puidrec"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def save_png(figure: Figure, path: Path) -> None:
    """Render a figure to a PNG file without a trace of when or by what it was made: equal data,
    equal bytes."""
    figure.savefig(path, dpi=DPI, format="png", metadata={"Software": None})


def canvas(width: float, height: float, title: str, caption: str) -> tuple[Figure, Axes]:
    """A figure with a bold title and a caption in a smaller type, both wrapped to its width."""
    figure = pictured(Figure(figsize=(width, height), layout="constrained"))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    words, style = fill(title, int(width * 10)), {"fontsize": 12, "fontweight": "bold"}
    figure.suptitle(words, x=0.01, ha="left", color=DARK, **style)
    axes.set_title(fill(caption, int(width * 13)), loc="left", fontsize=9, color=DARK)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def canvas_of_rows(names: Sequence[str], title: str, caption: str, x: str) -> tuple[Figure, Axes]:
    """A figure with a row per name, the last one on top."""
    figure, axes = canvas(7.2, 1.9 + 0.27 * len(names), title, caption)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(x)
    axes.grid(axis="x", color=LIGHT, linewidth=0.6)
    return figure, axes


def _factor_ticks(axis: Axis, low: float, high: float) -> None:
    axis.set_major_locator(FixedLocator(factor_ticks(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values within a range, at most about `count`: steps of 1, 2 or 5."""
    # one tick may do: a finer step in place of one just outside the range would give too many
    locator = MaxNLocator(max(count - 1, 1), steps=[1, 2, 5, 10], min_n_ticks=1)
    found, slack = locator.tick_values(low, high), 1e-9 * (high - low)
    return [float(v) for v in found if low - slack <= v <= high + slack]


def factor_ticks(low: float, high: float, count: int = 14) -> list[float]:
    """Round factors within a range: powers of ten times 1, 1.5, 2, 3, 5, 7, fewer where these are
    too many; steps where they are too few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [(m, m * 10.0**k) for k in decades for m in (1, 1.5, 2, 3, 5, 7)]
    inside = [(m, v) for m, v in every if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
    if len(inside) < 4:
        return ticks(low, high, min(count, 5))
    return [v for m, v in inside if len(inside) <= count or m in (1, 2, 5)]
