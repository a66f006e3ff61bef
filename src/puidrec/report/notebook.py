"""Results in a notebook: audits, certificates and comparisons as small tables of HTML, and their
charts.

The HTML has no colours of its own beyond a mark per verdict, so that it follows the notebook's
theme, light or dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from puidrec.comparing.comparison import Comparison
from puidrec.comparing.summary import SummaryRow, figure, grouped, interval, title
from puidrec.exposure.certificate import Certificate
from puidrec.report.audit import VERDICTS, factor, judged_leads, names_of, span
from puidrec.report.audit_envelope import envelope_of
from puidrec.report.charts import BLUE, DARK, GREY, canvas, panels_of
from puidrec.report.formatting import finite, show
from puidrec.view import html_table, view

MARKS = {"good": "✓", "warn": "!", "bad": "✗", "info": "–"}
VERDICT_MARKS = {"wins": "✓ wins", "ties": "– ties", "loses": "✗ loses"}


def audit_view(audit: Mapping[str, Any]) -> str:
    """The sentence, and a row per metric."""
    tone, label = VERDICTS.get(str(audit.get("verdict")), ("info", str(audit.get("verdict"))))
    rows = []
    for lead in judged_leads(audit):
        tipping = lead.get("tipping") or {}
        mark = MARKS[VERDICTS.get(str(lead.get("verdict")), ("info", ""))[0]]
        rows.append(
            (
                lead.get("metric"),
                f"{mark} {lead.get('verdict')}",
                span(lead.get("lead")),
                factor(tipping, "gamma"),
                factor(tipping, "low"),
                span(lead.get("uniform")),
                span(lead.get("combined")),
            )
        )
    heads = (
        "metric",
        "verdict",
        "lead in the log",
        "Γ*",
        "Γ*, limit",
        "on uniform rows",
        "with the adjusted log",
    )
    data = (audit.get("data") or {}).get("name", "")
    return view(
        f"{MARKS[tone]} {label}", f"({data}): {audit.get('sentence', '')}", html_table(heads, rows)
    )


def certificate_view(certificate: Certificate) -> str:
    """The sentence and a table of levels, and of the segments in which something is proved."""
    rows = [
        (
            row.name,
            f"{row.seen:.1%}",
            f"{row.unseen:.1%}",
            f"{row.lower:.3f}",
            f"{row.gamma:.3f}",
            f"{row.p_value:.3g}",
        )
        for row in certificate.levels
    ]
    rows += [
        (
            f"{row.side}s, {row.name}",
            "",
            f"{row.n_uniform:,} rows",
            f"{row.lower:.3f}",
            f"{row.gamma:.3f}",
            f"{row.p_value:.3g}",
        )
        for row in certificate.segments
        if row.lower > 1.0
    ]
    heads = ("", "seen", "unseen", "Γ ≥", "estimate, biased upward", "p (Holm)")
    return view(
        f"Γ ≥ {certificate.lower:.2f}",
        f"({certificate.finding}): {certificate.sentence}",
        html_table(heads, rows),
    )


def comparison_view(comparison: Comparison) -> str:
    """A headline per metric, and a table per data set and metric."""
    heads = ("method", "mean", f"to {comparison.reference}", "95 % interval", "p (Holm)", "verdict")
    tables = [
        Markup("<p>{}</p>{}").format(
            f"{metric}: {title(group)}", html_table(heads, map(_comparison_row, own))
        )
        for group in grouped(comparison.rows)
        for metric in comparison.metrics
        if (own := [row for row in group if row.metric == metric])
    ]
    failed = [f"Not finished: {failure}." for failure in comparison.results.failures]
    words = " ".join([*comparison.sentences, *failed])
    return view(f"Against {comparison.reference}", words, Markup("").join(tables))


def _comparison_row(row: SummaryRow) -> Sequence[str]:
    away = "" if row.difference is None else f"{row.difference:+.4f}"
    verdict = "reference" if row.is_reference else VERDICT_MARKS.get(row.verdict or "", "")
    return (
        row.label,
        figure(row),
        away,
        interval(row),
        "" if row.p_value is None else f"{row.p_value:.3f}",
        verdict,
    )


def certificate_figure(certificate: Certificate) -> Figure:
    """Left: shares of every event among seen and unseen pairs. Right: the limit of Γ that each
    proves."""
    rows = certificate.levels
    figure, (shares, limits) = panels_of(
        2,
        1.8 + 0.34 * max(len(rows), 1),
        "What uniform ratings prove",
        certificate.sentence,
        share_y=True,
    )
    places = list(range(len(rows)))
    shares.set_yticks(places, [row.name for row in rows])
    for place, row in zip(places, rows, strict=True):
        shares.plot(
            [100 * row.seen, 100 * row.unseen], [place, place], color=GREY, linewidth=1.2, zorder=1
        )
        limits.plot(
            [1.0, row.lower], [place, place], color=BLUE, linewidth=5.0, solid_capstyle="butt"
        )
    shares.scatter(
        [100 * row.seen for row in rows], places, color=BLUE, label="seen, reweighted", zorder=2
    )
    shares.scatter(
        [100 * row.unseen for row in rows],
        places,
        color=DARK,
        marker="D",
        label="unseen (uniform rows)",
        zorder=2,
    )
    limits.scatter(
        [row.gamma for row in rows],
        places,
        facecolors="none",
        edgecolors=GREY,
        label="point estimate (biased upward)",
    )
    limits.scatter(
        [row.lower for row in rows],
        places,
        color=BLUE,
        marker="|",
        s=90,
        label="proved: lower limit",
    )
    shares.set_xlabel("share of pairs (%)")
    limits.set_xlabel("Γ")
    limits.axvline(1.0, color=DARK, linewidth=0.8)
    for axes in (shares, limits):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
        axes.legend(
            fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2
        )
    return figure


def audit_chart(audit: Mapping[str, Any]) -> Figure:
    """The range of the lead by the metric asked for (or of the error) over Γ: sharp, normalised,
    and with its band."""
    names = names_of(audit)
    chart = envelope_of(audit, names)
    if chart is None:
        figure, _ = canvas(7.2, 4.0, "Nothing to draw", "the audit has no envelope")
        return figure
    panel = chart.panels[0]
    caption = "Shaded: what the lead may be if something hidden has strength Γ. Lines: with sampling error."
    figure, axes = canvas(
        7.2, 4.4, panel.y_label, caption if panel.zero else caption.replace("lead", "error")
    )
    for band, shade in zip(panel.bands, (0.18, 0.40, 0.10), strict=False):
        low, high = ([finite(v) for v in ends] for ends in (band.low, band.high))
        axes.fill_between(
            panel.grid,
            low,  # type: ignore[arg-type]
            high,  # type: ignore[arg-type]
            color=BLUE,
            alpha=shade,
            linewidth=0,
            label=band.label,
        )
    first = panel.bands[0]
    for outer in (first.outer_low, first.outer_high):
        if len(outer):
            axes.plot(
                panel.grid,
                [finite(v) for v in outer],  # type: ignore[arg-type]
                color=BLUE,
                linewidth=1.0,
                linestyle="--",
            )
    if panel.zero:
        axes.axhline(0.0, color=GREY, linewidth=1.0)
    for mark in first.marks:
        axes.axvline(mark.at, color=GREY, linewidth=1.0, linestyle=":")
        axes.annotate(
            f"Γ* = {show(mark.at, '.2f')}",
            (mark.at, 1.0),
            xycoords=("data", "axes fraction"),
            ha="left",
            va="top",
            fontsize=9,
            xytext=(4, -4),
            textcoords="offset points",
        )
    axes.set_xscale("log")
    ticks = [x for x in (1, 1.25, 1.5, 2, 3, 5, 10, 20) if x <= panel.grid[-1] * 1.001]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlim(panel.grid[0], panel.grid[-1])
    axes.set_xlabel(panel.x_label)
    axes.legend(frameon=False, fontsize=9)
    return figure
