"""The page of the demo: what the log says, what is true, and what an audit would have said without knowing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure as Drawing

from puidrec.report.audit import audit_page
from puidrec.report.blocks import Callout, Cell, Column, Figure, Page, Paragraph, Section, Table
from puidrec.report.charts import BLUE, DARK, canvas

Rows = Sequence[Mapping[str, Any]]


def demo_page(facts: Mapping[str, Any], audit: Mapping[str, Any]) -> Page:
    """The demo's tables and chart in front of the audit's own page."""
    page = audit_page(audit)
    gamma = facts["gamma"]
    lead = (
        f"A simulated log: {facts['rows']:,} ratings that {facts['n_users']:,} users chose to give to "
        f"{facts['n_items']:,} items. Something hidden changed the odds of a choice by a factor Γ of "
        f"{gamma['median']:.2f} for the median pair, {gamma['p95']:.2f} for one in twenty. The truth behind all "
        f"{facts['n_pairs']:,} pairs is known, so every figure can be checked."
    )
    sections = [_truth(facts), _estimates(facts["estimates"]), *page.sections]
    return replace(page, title="What a confounded log hides", kind="Demo", lead=lead, sections=sections)


def _truth(facts: Mapping[str, Any]) -> Section:
    rows = facts["methods"]
    columns = (
        "method", Column("on the log", ".4f", "mean squared error on held-out rows of the log, ratings in 0 to 1"),
        Column("on all pairs", ".4f", "mean squared error on every pair, seen or not: known only in a simulation"),
        Column("repaired", ".0%", "share of the way from `mf` to a model that knows the true propensities"),
    )  # fmt: skip
    body = [[r["method"], r["naive_mse"], r["true_mse"], _repaired(r)] for r in rows]
    best, seeming = (min(range(len(rows) - 1), key=lambda k: rows[k][kind]) for kind in ("true_mse", "naive_mse"))
    text = (
        f"By held-out rows of the log, `{rows[seeming]['method']}` is best. By all pairs, `{rows[best]['method']}` is: "
        f"it repairs {rows[best]['repaired']:.0%} of what a model repairs that knows the true propensities."
    )
    table = Table(columns, body, "Every method by what the log shows and by what is true.", emphasised=[best])
    alt = f"Two errors per method; on all pairs {rows[best]['method']} has the lowest, {rows[best]['true_mse']:.4f}"
    return Section(
        "truth", "What the log shows, and what is", [Paragraph(text), Figure.of(slope_chart(rows), alt), table],
        short="Log and truth",
    )  # fmt: skip


def _repaired(row: Mapping[str, Any]) -> Cell:
    """Only what was made to repair confounding is judged by it."""
    return Cell(None) if row["method"] in ("item-rate", "mf") else Cell(row["repaired"], bar=row["repaired"])


def slope_chart(rows: Rows) -> Drawing:
    """A line per method from its error on the log to its error on all pairs, drawn as two dots."""
    drawing, axes = canvas(
        7.2, 1.9 + 0.27 * len(rows), "Error on the log and on all pairs",
        "Open: held-out rows of the log. Filled: all pairs. Further left is better.",
    )  # fmt: skip
    order = sorted(rows, key=lambda row: -row["true_mse"])
    for height, row in enumerate(order):
        ends = (row["naive_mse"], row["true_mse"])
        axes.plot(ends, (height, height), color="#b5b5b5", linewidth=1.4, zorder=1)
        axes.plot(ends[:1], [height], "o", markersize=7, markerfacecolor="white", markeredgecolor=DARK, zorder=2)
        axes.plot(ends[1:], [height], "o", markersize=7, color=BLUE, zorder=3)
    axes.set_yticks(range(len(order)), [row["method"] for row in order], fontsize=9)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlabel("mean squared error, ratings in 0 to 1")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return drawing


def _estimates(rows: Rows) -> Section:
    columns = (
        "mean rating of all pairs, from", Column("mean", ".3f"), Column("± 95 %", ".3f"), Column("error", "+.3f"),
        "needs",
    )  # fmt: skip
    body = [[r["name"], r["value"], r["half_width"], r["error"], r["needs"]] for r in rows]
    note = Callout("info", "Features explain a part", "What is left after weighting by them is hidden confounding.")
    return Section("estimates", "One number, four ways", [Table(columns, body, "Ratings from 1 to 5."), note])
