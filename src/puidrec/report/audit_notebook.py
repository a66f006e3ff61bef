"""An audit in a notebook: its verdicts as a small table of HTML, and the chart of the range as Γ grows.

The HTML has no colours of its own beyond a mark per verdict, so that it follows the notebook's theme, light or dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from puidrec.report.audit import VERDICTS, factor, judged_leads, names_of, span
from puidrec.report.audit_envelope import envelope_of
from puidrec.report.charts import BLUE, GREY, canvas
from puidrec.report.formatting import MISSING, finite, show

MARKS = {"good": "✓", "warn": "!", "bad": "✗", "info": "–"}
HEADS = ("metric", "verdict", "Γ*", "95 %", "lead in the log", "lead on uniform rows")


def notebook_view(audit: Mapping[str, Any]) -> str:
    """The sentence, and a row per metric."""
    tone, label = VERDICTS.get(str(audit.get("verdict")), ("info", str(audit.get("verdict"))))
    rows = []
    for lead in judged_leads(audit):
        tipping = lead.get("tipping") or {}
        between = f"{factor(tipping, 'low')} to {factor(tipping, 'high')}"
        mark = MARKS[VERDICTS.get(str(lead.get("verdict")), ("info", ""))[0]]
        cells = (
            lead.get("metric"), f"{mark} {lead.get('verdict')}", factor(tipping, "gamma"), between,
            span(lead.get("lead")), span(lead.get("uniform")) if lead.get("uniform") else MISSING,
        )  # fmt: skip
        rows.append(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells))
    head = Markup("").join(Markup("<th scope='col'>{}</th>").format(name) for name in HEADS)
    body = Markup("").join(Markup("<tr>{}</tr>").format(row) for row in rows)
    table = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body) if rows else ""
    data = escape((audit.get("data") or {}).get("name", ""))
    return str(
        Markup("<div><p><strong>{} {}</strong> ({}): {}</p>{}</div>").format(
            MARKS[tone], label, data, audit.get("sentence", ""), table
        )
    )


def audit_chart(audit: Mapping[str, Any]) -> Figure:
    """The range of the lead by the metric asked for (or of the error) over Γ: sharp, normalised, and with its band."""
    names = names_of(audit)
    chart = envelope_of(audit, names)
    if chart is None:
        figure, _ = canvas(7.2, 4.0, "Nothing to draw", "the audit has no envelope")
        return figure
    panel = chart.panels[0]
    caption = "Shaded: what the lead may be if something hidden has strength Γ. Lines: with sampling error."
    figure, axes = canvas(7.2, 4.4, panel.y_label, caption if panel.zero else caption.replace("lead", "error"))
    for band, shade in zip(panel.bands, (0.18, 0.40, 0.10), strict=False):
        low, high = ([finite(v) for v in ends] for ends in (band.low, band.high))
        axes.fill_between(panel.grid, low, high, color=BLUE, alpha=shade, linewidth=0, label=band.label)  # type: ignore[arg-type]
    first = panel.bands[0]
    for outer in (first.outer_low, first.outer_high):
        if len(outer):
            axes.plot(panel.grid, [finite(v) for v in outer], color=BLUE, linewidth=1.0, linestyle="--")  # type: ignore[arg-type]
    if panel.zero:
        axes.axhline(0.0, color=GREY, linewidth=1.0)
    for mark in first.marks:
        axes.axvline(mark.at, color=GREY, linewidth=1.0, linestyle=":")
        axes.annotate(f"Γ* = {show(mark.at, '.2f')}", (mark.at, 1.0), xycoords=("data", "axes fraction"),
                      ha="left", va="top", fontsize=9, xytext=(4, -4), textcoords="offset points")  # fmt: skip
    axes.set_xscale("log")
    ticks = [x for x in (1, 1.25, 1.5, 2, 3, 5, 10, 20) if x <= panel.grid[-1] * 1.001]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlim(panel.grid[0], panel.grid[-1])
    axes.set_xlabel(panel.x_label)
    axes.legend(frameon=False, fontsize=9)
    return figure
