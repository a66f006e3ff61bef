"""The learned Γ of a trained model as files: `gamma.parquet`, `summary.json`, a chart and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from matplotlib.figure import Figure as Drawing

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json
from puidrec.model import Recommender
from puidrec.report.blocks import Block, Column, Figure, Page, Paragraph, Section, Table, VerdictBox
from puidrec.report.charts import histogram, save_png
from puidrec.report.formatting import Value, clip_text
from puidrec.report.html import write_page

FILES = ("gamma.parquet", "summary.json", "gamma_histogram.png", "report.html")
SHOWN = 10
"""Users and items, and segments of each side, that are listed."""
LEVEL = 0.9
SIDES: tuple[Literal["user", "item"], ...] = ("user", "item")


def learned_tables(model: Recommender, tables: Sequence[pl.DataFrame | None] = ()) -> pl.DataFrame:
    """One long table: `kind` is user, item or the column of a side table, `name` the id or the
    value."""
    parts = [model.gamma(by=side, level=LEVEL).rename({f"{side}_id": "name"}) for side in SIDES]
    kinds: list[str] = [*SIDES]
    for table in tables:
        for column in [] if table is None else table.columns:
            if column not in ("user_id", "item_id"):
                parts.append(
                    model.gamma(by=column, table=table, level=LEVEL).rename({column: "name"})
                )
                kinds.append(column)
    named = [
        part.with_columns(pl.col("name").cast(pl.String), kind=pl.lit(kind))
        for kind, part in zip(kinds, parts, strict=True)
    ]
    return pl.concat(named).select("kind", "name", "gamma", "low", "high", "direction", "rows")


def learned_summary(model: Recommender, table: pl.DataFrame) -> dict[str, Any]:
    """Distribution, width and the share that is error of the fit, for users and items; who has the
    largest."""
    sides = {f"{side}s": _side(model, table, side) for side in SIDES}
    segments = table.filter(~pl.col("kind").is_in(SIDES)).sort("low", "gamma", descending=True)
    return {
        "sentence": _sentence(sides),
        "method": model.settings.method,
        "level": LEVEL,
        "uniform_rows": int(table.filter(pl.col("kind") == "user")["rows"].sum()),
        **sides,
        "segments": segments.to_dicts(),
    }


def _side(model: Recommender, table: pl.DataFrame, side: Literal["user", "item"]) -> dict[str, Any]:
    own = table.filter(pl.col("kind") == side)
    means = model.uncertainty().means(side)
    gamma = own["gamma"].to_numpy()
    clear = own.filter(pl.col("direction") != "open")
    return {
        "number": own.height,
        "gamma": {
            f"q{round(100 * q)}": float(np.quantile(gamma, q))
            for q in (0.05, 0.25, 0.5, 0.75, 0.95)
        },
        "direction": {
            word: int((own["direction"] == word).sum()) for word in ("below", "above", "open")
        },
        "width": float((own["high"] / own["low"]).median()),  # type: ignore[arg-type]
        "share_of_the_fit": float(np.mean(means.fit / means.variance)),
        "largest": clear.sort("low", "gamma", descending=True).head(SHOWN).drop("kind").to_dicts(),
    }


def _sentence(sides: dict[str, dict[str, Any]]) -> str:
    users, items = sides["users"], sides["items"]
    clear = [side["number"] - side["direction"]["open"] for side in (users, items)]
    return (
        f"The median user's Γ is {users['gamma']['q50']:.2f}, the median item's {items['gamma']['q50']:.2f}; the whole "
        f"{LEVEL:.0%} interval is above 1 for {clear[0]:,} of {users['number']:,} users and {clear[1]:,} of "
        f"{items['number']:,} items, where chance alone gives one in ten. Error of the fit, which more logged "
        f"rows would lower, is {users['share_of_the_fit']:.0%} of the uncertainty of a user and "
        f"{items['share_of_the_fit']:.0%} of that of an item; "
        "the rest is what uniform rows leave open."
    )


def learned_page(table: pl.DataFrame, summary: dict[str, Any], name: str) -> Page:
    """The same for people."""
    columns = (
        "",
        Column("Γ", ".2f"),
        Column("low", ".2f", f"{LEVEL:.0%} interval"),
        Column("high", ".2f"),
        Column("unseen ratings are", "", "against what the log says"),
        Column("uniform rows", ",d"),
    )

    def rows(found: Sequence[dict[str, Any]]) -> list[list[Value]]:
        keys = ("gamma", "low", "high", "direction", "rows")
        return [[clip_text(_name(one), 40), *(one[key] for key in keys)] for one in found]

    sections = []
    for side in SIDES:
        own = summary[f"{side}s"]
        counts = ", ".join(f"{n:,} {word}" for word, n in own["direction"].items())
        blocks: list[Block] = [
            Paragraph(
                f"Unseen ratings against the log: {counts}. The upper end of the median interval is {own['width']:.2f} "
                f"times the lower one; {own['share_of_the_fit']:.0%} of the variance is error of the fit."
            ),
            Figure.of(
                histogram_of(table, side, name), alt=f"Histogram of the learned Γ of {side}s"
            ),
        ]
        if own["largest"]:
            blocks.append(
                Table(
                    columns,
                    rows(own["largest"]),
                    caption=f"{side.capitalize()}s with the largest Γ.",
                )
            )
        sections.append(Section(f"{side}s", f"{side.capitalize()}s", blocks))
    if summary["segments"]:
        listed = Table(
            columns,
            rows(summary["segments"][: 2 * SHOWN]),
            caption="By the lower end of the interval.",
        )
        sections.append(Section("segments", "Segments", [listed]))
    return Page(
        title=f"Learned Γ of {name}",
        kind="Γ",
        sections=sections,
        lead=f"From {summary['uniform_rows']:,} uniform ratings. Γ is the smallest under which the expected unseen "
        "ratings are possible: a lower bound on what is hidden.",
        verdict=VerdictBox("info", "Learned", summary["sentence"]),
    )


def _name(row: dict[str, Any]) -> str:
    return f"{row['kind']} = {row['name']}" if "kind" in row else str(row["name"])


def histogram_of(table: pl.DataFrame, side: str, name: str) -> Drawing:
    """Γ of users or items, with its median."""
    values = table.filter(pl.col("kind") == side)["gamma"].to_numpy()
    middle = float(np.median(values))
    return histogram(
        values,
        title=f"Learned Γ of {side}s ({name})",
        start=1.0,
        marks=[(middle, f"median: {middle:.2f}")],
        caption="Γ = 1: unseen ratings are what the log says.",
        x="Γ that unseen ratings ask for",
        y=f"share of {side}s (%)",
    )


def check_learned_target(folder: Path) -> None:
    """Refuse a folder that holds anything else: it would be lost."""
    refuse_other_files(folder, FILES, "an earlier study of the learned Γ", always=FILES[:-1])


def write_learned(table: pl.DataFrame, summary: dict[str, Any], name: str, folder: Path) -> None:
    """Write all files; the folder appears whole or not at all."""
    with locked(folder):
        check_learned_target(folder)
        with atomic_folder(folder) as temporary:
            table.write_parquet(temporary / "gamma.parquet")
            write_json(temporary / "summary.json", summary)
            save_png(histogram_of(table, "user", name), temporary / "gamma_histogram.png")
            write_page(temporary / "report.html", learned_page(table, summary, name))
