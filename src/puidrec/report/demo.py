"""The page of the demo: what the log says, what is true, and what an audit would have said without
knowing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure as Drawing

from puidrec.report.audit import audit_page
from puidrec.report.blocks import Cell, Column, Figure, Table
from puidrec.report.charts import BLUE, DARK, canvas
from puidrec.report.html import render

Rows = Sequence[Mapping[str, Any]]


def demo_html(facts: Mapping[str, Any], audit: Mapping[str, Any]) -> str:
    """The demo's tables and chart in front of the audit's own page."""
    page = replace(audit_page(audit), title="What a confounded log hides", kind="Demo", lead="")
    rows = facts["methods"]
    judged = rows[:-1]  # the last one knows the true propensities
    best = min(judged, key=lambda row: float(row["true_mse"]))
    alt = f"Two errors per method; on all pairs {best['method']} has the lowest, {best['true_mse']:.4f}"
    return render(
        page,
        "demo",
        facts=facts,
        best=best,
        seeming=min(judged, key=lambda row: float(row["naive_mse"])),
        chart=Figure.of(slope_chart(rows), alt),
        truth=_truth(rows, rows.index(best)),
        estimates=_estimates(facts["estimates"]),
    )


def _truth(rows: Rows, best: int) -> Table:
    columns = (
        "method",
        Column(
            "on the log", ".4f", "mean squared error on held-out rows of the log, ratings in 0 to 1"
        ),
        Column(
            "on all pairs", ".4f", "mean squared error on every pair: known only in a simulation"
        ),
        Column(
            "repaired",
            ".0%",
            "share of the way from `mf` to a model that knows the true propensities",
        ),
    )
    body = [[r["method"], r["naive_mse"], r["true_mse"], _repaired(r)] for r in rows]
    return Table(columns, body, "By what the log shows and by what is true", emphasised=[best])


def _repaired(row: Mapping[str, Any]) -> Cell:
    """Only what was made to repair confounding is judged by it."""
    return (
        Cell(None)
        if row["method"] in ("item-rate", "mf")
        else Cell(row["repaired"], bar=row["repaired"])
    )


def slope_chart(rows: Rows) -> Drawing:
    """A line per method from its error on the log to its error on all pairs, drawn as two dots."""
    drawing, axes = canvas(
        7.2,
        1.9 + 0.27 * len(rows),
        "Error on the log and on all pairs",
        "Open: held-out rows of the log. Filled: all pairs. Further left is better.",
    )
    order = sorted(rows, key=lambda row: -row["true_mse"])
    for height, row in enumerate(order):
        ends = (row["naive_mse"], row["true_mse"])
        axes.plot(ends, (height, height), color="#b5b5b5", linewidth=1.4, zorder=1)
        axes.plot(
            ends[:1],
            [height],
            "o",
            markersize=7,
            markerfacecolor="white",
            markeredgecolor=DARK,
            zorder=2,
        )
        axes.plot(ends[1:], [height], "o", markersize=7, color=BLUE, zorder=3)
    axes.set_yticks(range(len(order)), [row["method"] for row in order], fontsize=9)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlabel("mean squared error, ratings in 0 to 1")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return drawing


def _estimates(rows: Rows) -> Table:
    columns = (
        "mean rating of all pairs, from",
        Column("mean", ".3f"),
        Column("± 95 %", ".3f"),
        Column("error", "+.3f"),
        "needs",
    )
    body = [[r["name"], r["value"], r["half_width"], r["error"], r["needs"]] for r in rows]
    return Table(columns, body, "Ratings from 1 to 5")
