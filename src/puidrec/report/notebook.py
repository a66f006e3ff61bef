"""Results in a notebook: audits, certificates and comparisons as small tables of HTML
(`templates/*_view.html.j2`), and their charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from puidrec.comparing.comparison import Comparison
from puidrec.comparing.summary import figure, interval
from puidrec.exposure.certificate import Certificate
from puidrec.report.audit import VERDICTS, judged_leads, names_of
from puidrec.report.charts import BLUE, DARK, GREY, LIGHT, canvas, factor_ticks, panels_of
from puidrec.report.envelope import envelopes_of
from puidrec.report.formatting import finite, show
from puidrec.report.page import fragment

MARKS = {"good": "✓", "warn": "!", "bad": "✗", "info": "–"}


def audit_view(audit: Mapping[str, Any]) -> str:
    """The sentence, and a row per metric."""
    tone, label = VERDICTS.get(str(audit.get("verdict")), ("info", str(audit.get("verdict"))))
    return fragment(
        "audit_view",
        MARKS=MARKS,
        tone=tone,
        label=label,
        leads=judged_leads(audit),
        data=(audit.get("data") or {}).get("name", ""),
        sentence=audit.get("sentence", ""),
    )


def certificate_view(certificate: Certificate) -> str:
    """The sentence and a table of levels, and of the segments in which something is proved."""
    return fragment("certificate_view", found=certificate)


def comparison_view(comparison: Comparison) -> str:
    """A headline per metric, and a table per data set and metric."""
    tables = [
        (metric, words, [(row, figure(row), interval(row)) for row in rows])
        for metric, words, rows in comparison.tables
    ]
    failed = [f"Not finished: {failure}." for failure in comparison.results.failures]
    words = " ".join([*comparison.sentences, *failed])
    return fragment("comparison_view", found=comparison, tables=tables, words=words)


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
    seen, unseen = ([100 * getattr(row, key) for row in rows] for key in ("seen", "unseen"))
    lower, gamma = [row.lower for row in rows], [row.gamma for row in rows]
    shares.hlines(places, seen, unseen, color=GREY, linewidth=1.2, zorder=1)
    shares.scatter(seen, places, color=BLUE, label="seen, reweighted", zorder=2)
    shares.scatter(unseen, places, color=DARK, marker="D", label="unseen (uniform rows)", zorder=2)
    limits.hlines(places, 1.0, lower, color=BLUE, linewidth=5.0)
    estimate = "point estimate (biased upward)"
    limits.scatter(gamma, places, facecolors="none", edgecolors=GREY, label=estimate)
    limits.scatter(lower, places, color=BLUE, marker="|", s=90, label="proved: lower limit")
    shares.set_xlabel("share of pairs (%)")
    limits.set_xlabel("Γ")
    limits.axvline(1.0, color=DARK, linewidth=0.8)
    for axes in (shares, limits):
        axes.grid(axis="x", color=LIGHT, linewidth=0.6)
        axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
        axes.legend(
            fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2
        )
    return figure


def audit_chart(audit: Mapping[str, Any]) -> Figure:
    """The range of the lead by the metric asked for (or of the error) over Γ: sharp, normalised,
    and with its band."""
    panels = envelopes_of(audit, names_of(audit))
    if not panels:
        return canvas(7.2, 4.0, "Nothing to draw", "the audit has no envelope")[0]
    panel, lead = panels[0], "lead" if panels[0].gap else "error"
    caption = f"Shaded: what the {lead} may be if something hidden has strength Γ. Lines: with sampling error."
    figure, axes = canvas(7.2, 4.4, panel.y_label, caption)
    grid, first = np.asarray(panel.grid), panel.bands[0]
    for band, shade in zip(panel.bands, (0.18, 0.40, 0.10), strict=False):
        low, high = (np.array(list(map(finite, v)), float) for v in (band.low, band.high))
        axes.fill_between(grid, low, high, color=BLUE, alpha=shade, linewidth=0, label=band.label)
    for outer in (first.outer_low, first.outer_high):
        if len(outer):
            line = np.array(list(map(finite, outer)), float)
            axes.plot(grid, line, color=BLUE, linewidth=1.0, linestyle="--")
    if panel.gap:
        axes.axhline(0.0, color=GREY, linewidth=1.0)
    if first.tip is not None:
        axes.axvline(first.tip.at, color=GREY, linewidth=1.0, linestyle=":")
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        words = f"Γ* = {show(first.tip.at, '.2f')}"
        axes.annotate(words, (first.tip.at, 1.0), xytext=(4, -4), va="top", fontsize=9, **place)
    axes.set_xscale("log")
    ticks = factor_ticks(grid[0], grid[-1], 9)
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlim(grid[0], grid[-1])
    axes.set_xlabel("Γ, on a logarithmic scale")
    axes.legend(frameon=False, fontsize=9)
    return figure
