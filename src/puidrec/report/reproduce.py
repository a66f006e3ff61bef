"""A reproduction as files: results.md, table.md, charts and one self-contained page, from the summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from puidrec.atomic import atomic_path, write_text
from puidrec.report.blocks import Block, Callout, Figure, Page, Paragraph, Section
from puidrec.report.charts import save_png
from puidrec.report.html import write_page
from puidrec.report.reproduce_charts import all_charts
from puidrec.report.reproduce_facts import (
    RATIOS,
    chance_sheet,
    combination_sheet,
    gamma_sheet,
    ratio_map,
    ratio_sheet,
    rise_sheet,
)
from puidrec.report.reproduce_findings import findings
from puidrec.report.reproduce_setup import SETUP, TRAINED
from puidrec.report.reproduce_tables import READING, Sheet, comparison_sheets, contrast_sheet, mask_sheets

TITLES = {
    "rq1": "RQ1: methods compared", "rq2": "RQ2: the log loses rows",
    "rq3": "RQ3: observed against hidden features", "rq4": "RQ4: more hidden features",
    "ablation": "The ablation on Coat",
}  # fmt: skip


def write_reproduction(out: Path, summary: Mapping[str, Any], command: str) -> list[Path]:
    """Write everything that people read; equal summaries give equal bytes. Returns the paths."""
    charts = all_charts(summary)
    for name, draw in charts.items():
        with atomic_path(out / name) as temporary:
            save_png(draw(), temporary)
    write_text(out / "table.md", table_text(summary))
    write_text(out / "results.md", results_text(summary, command))
    write_page(out / "report.html", page(summary, out, command))
    return [out / name for name in ("report.html", "results.md", "table.md", *charts)]


def sheets(summary: Mapping[str, Any], question: str) -> list[Sheet]:
    """The tables of a question."""
    if question == "rq3":
        rq3 = summary["rq3"]
        return [ratio_sheet(rq3), *(combination_sheet(rq3, ratio) for ratio in RATIOS)] if rq3 else []
    if question == "rq4":
        return [rise_sheet(summary["rq4"])] if summary["rq4"] else []
    own = mask_sheets(summary) if question == "rq2" else comparison_sheets(summary, question)
    contrasts = [
        row for row in summary["contrasts"]
        if row["experiment"] == question and row["kind"].startswith("personalised")
    ]  # fmt: skip
    if contrasts:
        caption = "Paired over users; p-values adjusted for the number of pairs of a kind (Holm)."
        own.append(contrast_sheet(contrasts, "Personalised Γ against one Γ, random Γ and none", caption))
    return own


def table_text(summary: Mapping[str, Any]) -> str:
    """All tables as Markdown."""
    parts = [f"{READING}\n"] if set(TRAINED) & set(summary["questions"]) else []
    for question in summary["questions"]:
        own = sheets(summary, question)
        if own:
            parts += [f"## {TITLES[question]}\n", *(sheet.markdown() for sheet in own), *_notes(summary, question)]
    return "\n".join(parts)


def results_text(summary: Mapping[str, Any], command: str) -> str:
    """The page of results: what was found, the tables, and where the set-up differs."""
    parts = [
        "# The paper's tables, run again\n",
        f"Made by `{command}`; every sentence and figure follows from its results.json and summary.json.\n",
        *([f"**{_quick(summary)}**\n"] if summary["quick"] else []),
        "## What was found\n",
        *(f"* **{point.title}.** {point.text}" for point in findings(summary)),
        "\n## The data\n",
        *(sheet.markdown() for sheet in _facts(summary)),
        "## Where the set-up differs from the paper\n",
        *(f"* {line}" for line in _setup(summary)),
        "",
        table_text(summary),
    ]
    left = [*summary["skipped"], *(_failure(row) for row in summary["failed"])]
    if left:
        parts += ["## Left out\n", *(f"* {line}" for line in left), ""]
    return "\n".join(parts)


def page(summary: Mapping[str, Any], charts: Path, command: str) -> Page:
    """The page, with the charts that lie in a folder."""
    first: list[Block] = [Callout("warn", "A quick run", _quick(summary))] if summary["quick"] else []
    first += [Callout(point.tone, point.title, point.text) for point in findings(summary)]
    facts: list[Block] = [sheet.block() for sheet in _facts(summary)]
    sections = [Section("found", "What was found", first), Section("data", "The data", facts)]
    for question in summary["questions"]:
        blocks: list[Block] = [Paragraph(READING)] if question in ("rq1", "ablation") else []
        blocks += [Paragraph(line) for line in summary["notes"].get(question, ())]
        blocks += [_figure(charts / name) for name in all_charts(summary) if name.startswith(question)]
        blocks += _maps(summary["rq3"]) if question == "rq3" else []
        blocks += [sheet.block() for sheet in sheets(summary, question)]
        if len(blocks) > 1 or question in ("rq3", "rq4"):
            sections.append(Section(question, TITLES[question], blocks))
    sections.append(
        Section("setup", "Where the set-up differs from the paper", [Paragraph(line) for line in _setup(summary)])
    )
    left = [*summary["skipped"], *(_failure(row) for row in summary["failed"])]
    if left:
        sections.append(Section("left-out", "Left out", [Paragraph(line) for line in left]))
    seeds = summary["seeds"]
    lead = f"Questions {', '.join(summary['questions'])}; {seeds} seed{'s' if seeds > 1 else ''}. Made by `{command}`."
    return Page("The paper's tables, run again", lead, sections, kind="Reproduction")


def _setup(summary: Mapping[str, Any]) -> list[str]:
    return [line for questions, line in SETUP if set(questions) & set(summary["questions"])]


def _facts(summary: Mapping[str, Any]) -> list[Sheet]:
    return [sheet for sheet in (gamma_sheet(summary["facts"]), chance_sheet(summary["facts"])) if sheet.rows]


def _maps(rq3: Mapping[str, Any]) -> list[Block]:
    words = (("plugin", "plug-in (the paper)", "none"), ("permutation", "minus equally fine noise", "none"),
             ("plugin", "plug-in, rows of features permuted", "permuted"))  # fmt: skip
    return [ratio_map(rq3, ratio, *key) for ratio in RATIOS for key in words] if rq3 else []


def _figure(path: Path) -> Figure:
    return Figure(path.read_bytes(), f"Chart {path.stem}; its figures are in the tables of this section.")


def _notes(summary: Mapping[str, Any], question: str) -> Sequence[str]:
    return [f"{line}\n" for line in summary["notes"].get(question, ())]


def _quick(summary: Mapping[str, Any]) -> str:
    return (
        "This is a quick run: few epochs, few methods, few orders. It shows that everything works; its figures say "
        "nothing about methods."
    )


def _failure(row: Mapping[str, Any]) -> str:
    return f"{row['label']} on {row['data']}, preset {row['preset']}, seed {row['seed']} failed: {row['error']}"
