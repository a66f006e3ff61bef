"""A study for people: dots with intervals per metric, tables with verdicts, one self-contained page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from puidrec.atomic import atomic_path
from puidrec.comparing.comparison import Comparison
from puidrec.comparing.job import Result
from puidrec.comparing.summary import (
    ONE_SEED,
    SummaryRow,
    conditions,
    figure,
    grouped,
    headline,
    interval,
    notes,
    title,
)
from puidrec.comparing.tune import Tuning
from puidrec.report.blocks import (
    Block,
    Callout,
    Cell,
    Column,
    Details,
    Figure,
    Page,
    Paragraph,
    Section,
    Table,
    Tone,
    VerdictBox,
)
from puidrec.report.charts import BLUE, DARK, GREY, canvas, save_png
from puidrec.report.formatting import clip_text
from puidrec.report.html import write_page

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
    write_page(out / "report.html", study_page(comparison))
    return paths


def dot_chart(rows: Sequence[SummaryRow], reference: str) -> Drawing:
    """Methods of one metric as dots, best on top, with the interval of their paired difference to the reference.

    The interval is drawn where the reference's own mean is added to it: it misses the line exactly where the difference
    is clear of 0.
    """
    first = rows[0]
    order = sorted(rows, key=lambda row: row.mean, reverse=not first.higher_is_better)
    base = next((row for row in rows if row.is_reference), None)
    compared = (
        f"bars: 95 % interval of the paired difference to {reference}, over users and seeds" if base else "no reference"
    )
    drawing, axes = canvas(
        7.2,
        1.9 + 0.27 * len(rows),
        f"{first.metric} on {first.data}",
        f"Under {conditions(rows)}. Mean over seeds; {compared}.",
    )
    for height, row in enumerate(order):
        shape, colour = MARKS.get(row.verdict or "", ("D" if row.is_reference else "o", DARK))
        if base is not None and row.difference_low is not None and row.difference_high is not None:
            ends = (base.mean + row.difference_low, base.mean + row.difference_high)
            axes.plot(ends, (height, height), color=colour, linewidth=1.6, solid_capstyle="butt", zorder=2)
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
        handles.append(Line2D([], [], color=DARK, marker="D", linestyle="--", linewidth=0.9, label=reference))
    if handles:
        axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def search_chart(tuning: Tuning) -> Drawing:
    """The score of each trial in the order of trying, and the best so far."""
    caption = f"{tuning.job.method}, {len(tuning.trials)} trials ({tuning.sampler}); higher is better."
    drawing, axes = canvas(7.2, 3.8, f"Search by validation {tuning.metric}", caption)
    scored = [(trial.number, trial.score) for trial in tuning.trials if trial.score is not None]
    axes.plot(*zip(*scored, strict=True), "o", color=GREY, markersize=5, label="a trial")
    axes.plot(*zip(*tuning.curve(), strict=True), color=BLUE, drawstyle="steps-post", label="best so far")
    axes.set_xlabel("trial (0: the settings as given)")
    axes.set_ylabel(f"validation {tuning.metric}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    return drawing


def study_page(comparison: Comparison) -> Page:
    """The page of a study: what holds, table and chart of each data set, what the figures depend on."""
    results, rows = comparison.results, comparison.rows
    reference, metrics = comparison.reference, comparison.metrics
    failures = [str(failure) for failure in results.failures]
    groups = grouped(rows)
    sections = [
        Section(
            f"table-{number}", title(group), _blocks(group, reference, metrics),
            short=f"{group[0].data}, {group[0].preset}",
        )
        for number, group in enumerate(groups, 1)
    ]  # fmt: skip
    basis: list[Block] = [*map(Paragraph, notes(rows)), _basis(results)]
    if failures:
        basis.append(Callout("bad", f"{len(failures)} jobs are missing", points=failures))
    return Page(
        title=f"Comparison with {reference}", kind="Comparison",
        lead=f"{len({row.label for row in rows})} methods on {', '.join(dict.fromkeys(row.data for row in rows))}.",
        verdict=_verdict(groups, reference, metrics),
        sections=[*sections, Section("basis", "How to read it", basis)],
    )  # fmt: skip


def _verdict(groups: Sequence[Sequence[SummaryRow]], reference: str, metrics: Sequence[str]) -> VerdictBox:
    """One headline per table and metric; with one seed, what it leaves out."""
    wins = sum(row.verdict == "wins" for group in groups for row in group if row.metric == metrics[0])
    words = [f"{group[0].data}, {headline(group, metric, reference)}" for group in groups for metric in metrics]
    sentence = f"Against {reference}. {' '.join(words)}"
    if max(row.n_seeds for group in groups for row in group) == 1:
        sentence += f" {ONE_SEED}"
    return VerdictBox("good" if wins else "info", "Wins" if wins else "No win", sentence)


def _blocks(group: Sequence[SummaryRow], reference: str, metrics: Sequence[str]) -> list[Block]:
    """Per metric a chart and its table."""
    blocks: list[Block] = []
    for metric in metrics:
        own = [row for row in group if row.metric == metric]
        if own:
            best = own[0] if own[0].metric == metrics[0] else max(own, key=lambda row: row.mean)
            alt = f"Dots with intervals, one per method; {best.label} has {best.mean:.4f}"
            blocks += [Figure.of(dot_chart(own, reference), alt=alt), _table(own, reference)]
    return blocks


def _table(rows: Sequence[SummaryRow], reference: str) -> Table:
    columns = (
        "method", Column(rows[0].metric, ".4f"), Column("sd", ".4f", "over seeds"),
        Column(f"to {reference}", "+.4f", "paired difference"),
        Column("interval", "", "95 %, bootstrap over users and seeds"),
        Column("p", ".3f", "adjusted for the number of methods (Holm)"), "verdict",
    )  # fmt: skip
    body = [
        [
            Cell(row.label), Cell(row.mean, figure(row)), row.sd, row.difference, interval(row) or None, row.p_value,
            Cell("reference" if row.is_reference else row.verdict, tone=TONES.get(row.verdict or "")),
        ]
        for row in rows
    ]  # fmt: skip
    stressed = [k for k, row in enumerate(rows) if row.is_reference]
    return Table(columns, body, caption=f"{rows[0].metric}: {title(rows)}", emphasised=stressed)


def _basis(results: Sequence[Result]) -> Details:
    """What the figures depend on, one row per result."""
    columns = ("data", "method", "seed", "test rows", Column("positive", ".1%"), "tested on", "uniform rows used for",
               "trials", Column("validation", ".4f"))  # fmt: skip
    body = [
        [
            r.job.data.title, r.job.name, r.job.seed, r.context.get("test_rows"), r.context.get("positive_rate"),
            r.context.get("evaluated_on"), r.context.get("uniform_rows_used"), r.context.get("trials"), r.validation,
        ]
        for r in results
    ]  # fmt: skip
    return Details("What each figure depends on", [Table(columns, body, caption="One row per method and seed.")])
