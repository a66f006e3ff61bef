"""A study for people: dots with intervals per metric, tables with verdicts, one self-contained
page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from puidrec.atomic import atomic_path, write_text
from puidrec.comparing.comparison import Comparison
from puidrec.comparing.job import Result
from puidrec.comparing.summary import (
    ONE_SEED,
    SummaryRow,
    conditions,
    figure,
    given,
    grouped,
    headline,
    interval,
    notes,
)
from puidrec.comparing.tune import Tuning
from puidrec.report.blocks import Cell, Column, Figure, Page, Table, Tone, VerdictBox
from puidrec.report.charts import BLUE, DARK, GREY, canvas, save_png
from puidrec.report.formatting import Value, clip_text
from puidrec.report.html import render

MARKS = {"wins": ("^", BLUE), "ties": ("o", GREY), "loses": ("v", DARK)}
"""Shape and colour by verdict: told apart without colour."""
TONES: dict[str, Tone] = {"wins": "good", "loses": "bad"}


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
    bars = f" Bars: 95 % interval of the paired difference to {reference}." if base else ""
    caption = f"Protocol {first.protocol}, mean over {seeds} seed{'s' if seeds > 1 else ''}.{bars}"
    title = f"{first.metric} on {first.data}"
    drawing, axes = canvas(
        7.2, 1.9 + 0.27 * len(rows), title, caption if base else f"{caption} No reference."
    )
    for height, row in enumerate(order):
        shape, colour = MARKS.get(row.verdict or "", ("D" if row.is_reference else "o", DARK))
        if base is not None and row.difference_low is not None and row.difference_high is not None:
            ends = (base.mean + row.difference_low, base.mean + row.difference_high)
            axes.plot(
                ends, (height, height), color=colour, linewidth=1.6, solid_capstyle="butt", zorder=2
            )
        axes.plot([row.mean], [height], shape, color=colour, markersize=6.5, zorder=3)
    if base is not None:
        axes.axvline(base.mean, color=DARK, linewidth=0.9, linestyle="--", zorder=1)
    axes.set_yticks(range(len(order)), [clip_text(row.label, 34) for row in order], fontsize=9)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlabel(f"{first.metric} ({'higher' if first.higher_is_better else 'lower'} is better)")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
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
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    return drawing


@dataclass(frozen=True)
class MetricView:
    """A metric of one table: dots with intervals, and their figures."""

    chart: Figure
    table: Table


@dataclass(frozen=True)
class GroupView:
    """What stands in one section: a data set under one protocol and preset."""

    title: str
    conditions: str
    metrics: list[MetricView]
    given: Table | None


def study_html(comparison: Comparison) -> str:
    """The page of a comparison: what holds, charts and tables, what the figures depend on."""
    rows, reference = comparison.rows, comparison.reference
    groups = grouped(rows)
    data = list(dict.fromkeys(row.data for row in rows))
    page = Page(
        title=f"Comparison with {reference}",
        kind="Comparison",
        lead=f"{len({row.label for row in rows})} methods on {', '.join(data)}.",
        verdict=_verdict(groups, reference, comparison.metrics),
    )
    several = len({row.preset for row in rows}) > 1
    views = [
        GroupView(
            f"{group[0].data}, {group[0].preset} settings" if several else group[0].data,
            f"{conditions(group)[0].upper()}{conditions(group)[1:]}",
            _metrics(group, reference, comparison.metrics),
            _given(group),
        )
        for group in groups
    ]
    return render(
        page,
        "study",
        groups=views,
        notes=notes(rows),
        basis=_basis(comparison.results).without_constants(),
        failures=[str(failure) for failure in comparison.results.failures],
    )


def _verdict(
    groups: Sequence[Sequence[SummaryRow]], reference: str, metrics: Sequence[str]
) -> VerdictBox:
    """How many methods beat the reference by the first metric; one line per table and metric."""
    judged = [row for row in groups[0] if row.metric == metrics[0] and row.verdict]
    wins = sum(row.verdict == "wins" for row in judged)
    count = f"{wins} of {len(judged)} methods {'beats' if wins == 1 else 'beat'}"
    sentence = f"{count if wins else 'No method beats'} {reference} in {metrics[0]}."
    if not judged:
        sentence = f"Nothing can be compared with {reference}."
    points = [
        f"{f'{group[0].data}, ' if len(groups) > 1 else ''}{headline(group, metric, reference)}"
        for group in groups
        for metric in metrics
    ]
    if max(row.n_seeds for group in groups for row in group) == 1:
        points.append(ONE_SEED)
    return VerdictBox(
        "good" if wins else "info", "Wins" if wins else "No win", sentence, points=points
    )


def _metrics(
    group: Sequence[SummaryRow], reference: str, metrics: Sequence[str]
) -> list[MetricView]:
    """Per metric a chart and its table, best on top."""
    views = []
    for metric in metrics:
        own = [row for row in group if row.metric == metric]
        own.sort(key=lambda row: -row.mean if row.higher_is_better else row.mean)
        if own:
            alt = f"Dots with intervals, one per method; {own[0].label} has {own[0].mean:.4f}"
            chart = Figure.of(dot_chart(own, reference), alt=alt)
            views.append(MetricView(chart, _table(own, reference)))
    return views


def _table(rows: Sequence[SummaryRow], reference: str) -> Table:
    columns = (
        "method",
        Column(rows[0].metric, ".4f"),
        Column(f"to {reference}", "+.4f"),
        "95 % interval",
        Column("p (Holm)", ".3f"),
        "verdict",
    )
    body = [
        [
            Cell(row.label),
            Cell(row.mean, figure(row)),
            row.difference,
            interval(row).replace(" ", "\u00a0") or None,
            row.p_value,
            Cell(
                "reference" if row.is_reference else row.verdict, tone=TONES.get(row.verdict or "")
            ),
        ]
        for row in rows
    ]
    stressed = [k for k, row in enumerate(rows) if row.is_reference]
    return Table(columns, body, caption=f"{rows[0].metric}, best on top", emphasised=stressed)


def _given(group: Sequence[SummaryRow]) -> Table | None:
    """What each method was given, where that differs."""
    columns = given(group)
    heads: list[Column | str] = ["method", *(Column(name, ",d") for name in columns)]
    body: list[list[Value | Cell]] = [
        [label, *(values[label] for values in columns.values())]
        for label in dict.fromkeys(row.label for row in group)
    ]
    return Table(heads, body, caption="What each method was given, per seed") if columns else None


def _basis(results: Sequence[Result]) -> Table:
    """What the figures depend on, one row per result."""
    columns = (
        "method",
        "data",
        "seed",
        "test rows",
        Column("positive", ".1%"),
        "tested on",
        "new users",
        "uniform rows used for",
        "uniform rows used",
        "configurations",
        Column("validation", ".4f"),
        "validated by",
    )
    names = (
        "test_rows",
        "positive_rate",
        "evaluated_on",
        "new_users",
        "uniform_rows_used",
        "uniform_rows_given",
        "trials",
    )
    body = [
        [
            r.job.name,
            r.job.data.title,
            r.job.seed,
            *(r.context.get(name) for name in names),
            r.validation,
            r.context.get("validation_metric"),
        ]
        for r in results
    ]
    return Table(columns, body, caption="One row per method and seed.")
