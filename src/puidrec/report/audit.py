"""The page of an audit, from the plain values of `audit.json`: verdict first, then why, where, what
it leaves open. The words are in `templates/audit.html.j2`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from puidrec.report.charts import BLUE, DARK, GREY, canvas, canvas_of_rows, factor_ticks
from puidrec.report.envelope import ModelNames, draw, envelopes_of
from puidrec.report.page import (
    Column,
    Table,
    Tone,
    bin_values,
    finite,
    fragment,
    render,
    short_labels,
    show,
)

METRICS = ("error", "ranking", "precision", "ndcg")
VERDICTS: dict[str, tuple[Tone, str]] = {
    "confirmed": ("good", "Confirmed"),
    "robust": ("good", "Robust"),
    "fragile": ("warn", "Fragile"),
    "undecided": ("info", "Undecided"),
    "refuted": ("bad", "Refuted"),
    "single": ("info", "One model alone"),
}
LABEL = 48
"""Characters of a group's label on the map of Γ."""


def audit_html(audit: Mapping[str, Any], **more: Any) -> str:
    """The page of one audit; a part that the file lacks is left out. `more` goes to the
    template."""
    names = names_of(audit)
    tone, label = VERDICTS.get(
        str(audit.get("verdict")), ("info", str(audit.get("verdict") or "Audit"))
    )
    return render(
        more.pop("template", "audit"),
        lenient=True,
        audit=audit,
        names=names,
        tone=tone,
        label=label,
        leads=judged_leads(audit),
        panels=envelopes_of(audit, names),
        draw=draw,
        gamma_map=_gamma_map(audit.get("gamma_map") or {}),
        **more,
    )


def demo_html(facts: Mapping[str, Any], audit: Mapping[str, Any]) -> str:
    """The demo's tables and chart in front of the audit's own page."""
    return audit_html(audit, template="demo", facts=facts, chart=slope_chart(facts["methods"]))


def slope_chart(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line per method from its error on the log to its error on all pairs, drawn as two dots."""
    order = sorted(rows, key=lambda row: -row["true_mse"])
    drawing, axes = canvas_of_rows(
        [row["method"] for row in order],
        "Error on the log and on all pairs",
        "Open: held-out rows of the log. Filled: all pairs. Further left is better.",
        "mean squared error, ratings in 0 to 1",
    )
    for height, row in enumerate(order):
        ends = (row["naive_mse"], row["true_mse"])
        axes.plot(ends, (height, height), color=GREY, linewidth=1.4, zorder=1)
        axes.plot(*ends[:1], height, "o", markersize=7, mfc="white", mec=DARK, zorder=2)
        axes.plot(*ends[1:], height, "o", markersize=7, color=BLUE, zorder=3)
    return drawing


def names_of(audit: Mapping[str, Any]) -> ModelNames:
    """What to call the two models; their method where they have no name, and told apart where they
    are called alike."""
    model, against = audit.get("model") or {}, audit.get("against")
    first = str(model.get("name") or model.get("method") or "the model")
    if not against:
        return ModelNames(first, None)
    second = str(against.get("name") or against.get("method") or "the other model")
    if first == second:
        return ModelNames(f"{first} (audited)", f"{second} (compared with)")
    return ModelNames(first, second)


def judged_leads(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The leads by each metric, the one asked for first, with what a table shows of them."""
    asked = str(audit.get("metric") or "error")
    order = [asked, *(name for name in METRICS if name != asked)]
    found = []
    for lead in (audit[name] for name in order if isinstance(audit.get(name), Mapping)):
        tipping = lead.get("tipping") or {}
        texts = {key: span(lead.get(key)) for key in ("lead", "uniform", "adjusted", "combined")}
        stars = {f"star_{key}": factor(tipping, key) for key in ("gamma", "low", "high")}
        tone = VERDICTS.get(str(lead.get("verdict")), ("info", ""))[0]
        open_slots = lead.get("unsupported_slots") or None
        found.append({**lead, **texts, **stars, "found": lead, "tone": tone, "open": open_slots})
    return found


def span(found: Mapping[str, Any] | None) -> str:
    """A difference with its interval."""
    values = [show((found or {}).get(key), ".4f") for key in ("value", "low", "high")]
    return values[0] if "–" in values else "{} ({} to {})".format(*values)


def factor(tipping: Mapping[str, Any], key: str) -> str:
    """A tipping point in words: infinite where flagged so, a dash where unknown."""
    return "∞" if tipping.get(f"{key}_infinite") else show(tipping.get(key), ".2f")


def _gamma_map(found: Mapping[str, Any]) -> Table | None:
    """Γ by group of users and group of items; None for the file of an earlier version without
    it."""
    if not found.get("values"):
        return None
    (users, by_user), (items, by_item) = (
        _axis(found[f"{side}_bins"], f"{side}s") for side in ("user", "item")
    )
    rows = [[label, *values] for label, values in zip(users, found["values"], strict=True)]
    caption = f"Γ by group of users and group of items (geometric mean over pairs); {by_item}."
    return Table([by_user, *(Column(name, ".2f") for name in items)], rows, caption)


def _axis(labels: Sequence[object], side: str) -> tuple[list[str], str]:
    """Labels `age=20 to 30, gender=f` as `20 to 30 · f`, with the names of the columns in the title
    of the axis."""
    texts = [str(label) for label in labels]
    columns = re.findall(r"(?:^|, )([^=,]+)=", texts[0]) if texts else []
    if not all(len(bin_values(text, columns)) == len(columns) for text in texts):
        columns = []
    short, shown = short_labels(texts, columns, LABEL)
    return short, f"{side}, by {', '.join(shown)}" if shown else side


# In a notebook

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


def audit_chart(audit: Mapping[str, Any]) -> Figure:
    """The range of the lead by the metric asked for (or of the error) over Γ: sharp, normalised,
    and with its band."""
    panels = envelopes_of(audit, names_of(audit))
    if not panels:
        return canvas(7.2, 4.0, "Nothing to draw", "the audit has no envelope")[0]
    panel, lead = panels[0], "lead" if panels[0].gap else "error"
    caption = (
        f"Shaded: what the {lead} may be if something hidden has strength Γ. Lines: with "
        "sampling error."
    )
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
