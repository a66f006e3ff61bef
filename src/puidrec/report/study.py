"""A study for people: dots with intervals per metric, tables with verdicts, one self-contained
page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from puidrec.atomic import atomic_path, write_text
from puidrec.comparing.comparison import Comparison
from puidrec.comparing.summary import (
    SummaryRow,
    conditions,
    figure,
    given,
    grouped,
    interval,
    notes,
)
from puidrec.comparing.tune import Tuning
from puidrec.report.charts import BLUE, DARK, GREY, LIGHT, canvas, canvas_of_rows, save_png
from puidrec.report.page import clip_text, fragment, render

MARKS = {"wins": ("^", BLUE), "ties": ("o", GREY), "loses": ("v", DARK)}
"""Shape and colour by verdict: told apart without colour."""


def write_report(out: Path, comparison: Comparison) -> list[Path]:
    """Write report.html and one chart per table and metric; returns the charts' paths."""
    paths = []
    groups, reference, metrics = grouped(comparison.rows), comparison.reference, comparison.metrics
    for number, group in enumerate(groups):
        for metric in metrics:
            own = [row for row in group if row.metric == metric]
            if own:
                place = f"-{number + 1}" if len(groups) > 1 else ""
                paths.append(out / f"chart{place}-{re.sub('[^a-z0-9]+', '-', metric)}.png")
                with atomic_path(paths[-1]) as temporary:
                    save_png(dot_chart(own, reference), temporary)
    write_text(out / "report.html", study_html(comparison))
    return paths


def dot_chart(rows: Sequence[SummaryRow], reference: str) -> Drawing:
    """Methods of one metric as dots, best on top, with the interval of their paired difference to
    the reference.

    The interval is drawn where the reference's own mean is added to it: it misses the line exactly
    where the difference is clear of 0.
    """
    first = rows[0]
    order = sorted(rows, key=lambda row: row.mean, reverse=not first.higher_is_better)
    base = next((row for row in rows if row.is_reference), None)
    seeds = max(row.n_seeds for row in rows)
    bars = f" Bars: 95 % interval of the paired difference to {reference}."
    caption = f"Protocol {first.protocol}, mean over {seeds} seed{'s' if seeds > 1 else ''}."
    drawing, axes = canvas_of_rows(
        [clip_text(row.label, 34) for row in order],
        f"{first.metric} on {first.data}",
        f"{caption}{bars if base else ' No reference.'}",
        f"{first.metric} ({'higher' if first.higher_is_better else 'lower'} is better)",
    )
    for height, row in enumerate(order):
        shape, colour = MARKS.get(row.verdict or "", ("D" if row.is_reference else "o", DARK))
        if base is not None and row.difference_low is not None and row.difference_high is not None:
            ends = (base.mean + row.difference_low, base.mean + row.difference_high)
            line: Any = {"linewidth": 1.6, "solid_capstyle": "butt", "zorder": 2}
            axes.plot(ends, (height, height), color=colour, **line)
        axes.plot([row.mean], [height], shape, color=colour, markersize=6.5, zorder=3)
    if base is not None:
        axes.axvline(base.mean, color=DARK, linewidth=0.9, linestyle="--", zorder=1)
    _legend(axes, {row.verdict or "" for row in rows}, reference if base is not None else None)
    return drawing


def _legend(axes: Axes, verdicts: set[str], reference: str | None) -> None:
    """Say which mark is which, only those that occur."""
    handles = [
        Line2D([], [], color=colour, marker=shape, linestyle="none", label=word)
        for word, (shape, colour) in MARKS.items()
        if word in verdicts
    ]
    if reference is not None:
        handles.append(
            Line2D([], [], color=DARK, marker="D", linestyle="--", linewidth=0.9, label=reference)
        )
    if handles:
        axes.legend(
            handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )


def search_chart(tuning: Tuning) -> Drawing:
    """The score of each trial in the order of trying, and the best so far."""
    caption = (
        f"{tuning.job.method}, {len(tuning.trials)} trials ({tuning.sampler}); higher is better."
    )
    drawing, axes = canvas(7.2, 3.8, f"Search by validation {tuning.metric}", caption)
    scored = [(trial.number, trial.score) for trial in tuning.trials if trial.score is not None]
    axes.plot(*zip(*scored, strict=True), "o", color=GREY, markersize=5, label="a trial")
    axes.plot(
        *zip(*tuning.curve(), strict=True), color=BLUE, drawstyle="steps-post", label="best so far"
    )
    axes.set_xlabel("trial (0: the settings as given)")
    axes.set_ylabel(f"validation {tuning.metric}")
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    return drawing


def study_html(comparison: Comparison) -> str:
    """The page of a comparison: what holds, charts and tables, what the figures depend on."""
    groups = grouped(comparison.rows)
    return render(
        "study",
        comparison=comparison,
        groups=[(group, conditions(group), given(group)) for group in groups],
        judged=[r for r in groups[0] if r.metric == comparison.metrics[0] and r.verdict],
        notes=notes(comparison.rows),
        figure=figure,
        interval=interval,
        dot_chart=dot_chart,
    )


def comparison_view(comparison: Comparison) -> str:
    """A headline per metric, and a table per data set and metric."""
    tables = [
        (metric, words, [(row, figure(row), interval(row)) for row in rows])
        for metric, words, rows in comparison.tables
    ]
    failed = [f"Not finished: {failure}." for failure in comparison.results.failures]
    words = " ".join([*comparison.sentences, *failed])
    return fragment("comparison_view", found=comparison, tables=tables, words=words)
