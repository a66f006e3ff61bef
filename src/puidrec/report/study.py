"""A study for people: dots with intervals per metric, tables with verdicts, one self-contained
page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from puidrec.atomic import atomic_path, write_text
from puidrec.comparing.comparison import Comparison
from puidrec.comparing.summary import (
    SummaryRow,
    by,
    conditions,
    figure,
    given,
    grouped,
    interval,
    notes,
)
from puidrec.comparing.tune import Tuning
from puidrec.report.charts import BLUE, DARK, GREY, LIGHT, canvas, canvas_of_rows, save_png
from puidrec.report.page import clip_text, fragment, markdown_page, render
from puidrec.reproduce.grids import MASK_RATIOS, METRICS, PRESETS, SHARES, printed
from puidrec.reproduce.run import PAPER_QUESTIONS

SHAPES = {"wins": ("^", BLUE), "ties": ("o", GREY), "loses": ("v", DARK)}
"""Shape and colour by verdict: told apart without colour."""


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
    bars = f" Bars: 95 % interval of the paired difference to {reference}."
    caption = f"Protocol {first.protocol}, mean over {seeds} seed{'s' if seeds > 1 else ''}."
    drawing, axes = canvas_of_rows(
        [clip_text(row.label, 34) for row in order],
        f"{first.metric} on {first.data}",
        f"{caption}{bars if base else ' No reference.'}",
        f"{first.metric} ({'higher' if first.higher_is_better else 'lower'} is better)",
    )
    for height, row in enumerate(order):
        shape, colour = SHAPES.get(row.verdict or "", ("D" if row.is_reference else "o", DARK))
        if base is not None and row.difference_low is not None and row.difference_high is not None:
            ends = (base.mean + row.difference_low, base.mean + row.difference_high)
            line: Any = {"linewidth": 1.6, "solid_capstyle": "butt", "zorder": 2}
            axes.plot(ends, (height, height), color=colour, **line)
        axes.plot([row.mean], [height], shape, color=colour, markersize=6.5, zorder=3)
    if base is not None:
        axes.axvline(base.mean, color=DARK, linewidth=0.9, linestyle="--", zorder=1)
    _legend(axes, {row.verdict or "" for row in rows}, reference if base is not None else None)
    return drawing


def _legend(axes: Axes, verdicts: set[str], reference: str | None) -> None:
    """Say which mark is which, only those that occur."""
    handles = [
        Line2D([], [], color=colour, marker=shape, linestyle="none", label=word)
        for word, (shape, colour) in SHAPES.items()
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
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    return drawing


def study_html(comparison: Comparison) -> str:
    """The page of a comparison: what holds, charts and tables, what the figures depend on."""
    groups = grouped(comparison.rows)
    return render(
        "study",
        comparison=comparison,
        groups=[(group, conditions(group), given(group)) for group in groups],
        judged=[r for r in groups[0] if r.metric == comparison.metrics[0] and r.verdict],
        notes=notes(comparison.rows),
        figure=figure,
        interval=interval,
        dot_chart=dot_chart,
    )


def comparison_view(comparison: Comparison) -> str:
    """A headline per metric, and a table per data set and metric."""
    tables = [
        (metric, words, [(row, figure(row), interval(row)) for row in rows])
        for metric, words, rows in comparison.tables
    ]
    failed = [f"Not finished: {failure}." for failure in comparison.results.failures]
    words = " ".join([*comparison.sentences, *failed])
    return fragment("comparison_view", found=comparison, tables=tables, words=words)


# The pages of a reproduction, paper.md and field.md, from the summary alone: sentences follow from
# the figures by rule, so that other figures give other sentences.

Row = Mapping[str, Any]
NAMES = {"coat": "Coat", "yahoo-r3": "Yahoo!R3", "kuairec": "KuaiRec", "ml-100k": "MovieLens 100K"}
METRIC_NAMES = {name for names in METRICS.values() for name in names}
MARKS = {"wins": "▲", "loses": "▼"}
DR_VARIANTS = ("mrdr", "dr-mse", "tdr", "stable-dr", "d-dr", "dr-v2", "kernel-dr")
ALS = "implicit’s ALS"
BASELINES = ("popularity", "item-rate", "bias", "all-rank", "ease", ALS)


def write_reproduction(out: Path, summary: Row, command: str) -> list[Path]:
    """Write the page of the paper's questions, and that of the field, as far as they were asked."""
    pages = {}
    if {*PAPER_QUESTIONS} & {*summary["questions"]}:
        pages["paper.md"] = paper_text(summary, f"Made by `{command}`.")
    if "field" in summary["questions"]:
        pages["field.md"] = field_text(summary, f"Made by `{command}`.")
    for name, text in pages.items():
        write_text(out / name, text)
    return [out / name for name in pages]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("|" + "|".join(line) + "|" for line in lines)


def _figure(row: Row | None) -> str:
    """A mean, half of its interval over users, and whether it beats the reference."""
    if row is None:
        return "–"
    half = "" if row["half"] is None else f"±{row['half']:.3f}"
    return f"{row['mean']:.3f}{half}{MARKS.get(row['verdict'], '')}"


def _counts(rows: Iterable[Row], key: str = "verdict") -> str:
    count = Counter(row[key] for row in rows)
    return f"{count['wins']} won, {count['ties']} tied, {count['loses']} lost"


# The paper


def paper_text(summary: Row, made: str) -> str:
    """What became of each claim of the paper, then the tables."""
    tables = summary["tables"]
    return markdown_page(
        "paper",
        made=made,
        summary=summary,
        presets=PRESETS,
        claims=table(("the paper's claim", "what we found", "how sure"), claims(summary)),
        rq1=[
            (NAMES[name], rq1_table(own, name, metric), metric.upper(), _basis(summary, own, name))
            for name, own in by(tables.get("rq1", ()), lambda row: row["source"]).items()
            for metric in METRICS[name]
        ],
        rq2=[
            (NAMES[name], rq2_table(own, name))
            for name, own in by(tables.get("rq2", ()), lambda row: row["source"]).items()
        ],
        shares=SHARES,
        ablation=ablation_table(tables["ablation"]) if tables.get("ablation") else "",
    )


def claims(summary: Row) -> list[tuple[str, ...]]:
    """Claim, finding and how sure it is, for all that the summary has figures for."""
    rq1, rq2, ablation = (
        [
            row
            for row in summary["tables"].get(name, ())
            if row["metric"] == "uauc" or name == "ablation"
        ]
        for name in ("rq1", "rq2", "ablation")
    )
    contrasts = [
        {
            **row,
            "size": abs(row["difference"]),
            "half_width": (row["high"] - row["low"]) / 2,
            "of_paper": row["preset"].startswith("paper"),
        }
        for row in summary["contrasts"]
    ]
    masked = by(rq2, lambda row: (row["source"], row["mask"])).values()
    best = Counter(max(own, key=lambda row: float(row["mean"]))["label"] for own in masked)
    at = {(row["preset"], row["label"]): row["mean"] for row in rq1 if row["source"] == "kuairec"}
    text = markdown_page(
        "claims",
        summary={**summary, "contrasts": contrasts},
        NAMES=NAMES,
        by=lambda rows, key: by(rows, lambda row: row[key]).items(),
        counts=_counts,
        rq1=[{**row, "printed": printed(row["label"], row["source"], "uauc")} for row in rq1],
        rq2=rq2,
        leaders=best.most_common(),
        ablation=[row for row in ablation if row["verdict"] and "+" not in row["label"]],
        overlap=[
            mean - at["paper", label]
            for (preset, label), mean in at.items()
            if preset == "paper-overlapping" and ("paper", label) in at
        ],
    )
    return [tuple(line.split("|")) for line in text.splitlines() if line]


def pivot(
    rows: Sequence[Row],
    keys: Sequence[str],
    labels: Iterable[str],
    head: Sequence[str],
    lead: Callable[[str], Sequence[str]] = lambda label: [label],
) -> str:
    """Labels × (values of the keys), each with its mean, half of its interval and its mark."""
    columns = dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
    at = {(*(row[key] for key in keys), row["label"]): row for row in rows}
    names = [
        ", ".join(part.upper() if part in METRIC_NAMES else part for part in c) for c in columns
    ]
    body = [[*lead(x), *(_figure(at.get((*column, x))) for column in columns)] for x in labels]
    return table((*head, *names), body)


def rq1_table(rows: Sequence[Row], name: str, metric: str) -> str:
    """Methods × (printed, then preset and protocol)."""
    own = [row for row in rows if row["metric"] == metric]
    order = [row.label or row.method for preset in PRESETS.values() for row in preset.rows]
    found = {row["label"] for row in own}
    labels = [label for label in dict.fromkeys(order) if label in found]

    def lead(label: str) -> list[str]:
        figure = printed(label, name, metric)
        return [label, "–" if figure is None else f"{figure:.3f}"]

    return pivot(own, ("preset", "protocol"), labels, ("method", "printed"), lead)


def _basis(summary: Row, rows: Sequence[Row], name: str) -> str:
    """Positive rates, seeds, and what random orders score."""
    facts: Row = next((row for row in summary["facts"] if row["data"] == name), {"chance": {}})
    rates = {row["protocol"]: row["positive_rate"] for row in rows}
    parts = []
    for protocol, rate in rates.items():
        random = facts["chance"].get(protocol, {})
        scores = "/".join(f"{random[key]:.3f}" for key in METRICS[name] if key in random)
        parts.append(f"{protocol} {rate:.1%}" + (f" (random order {scores})" if scores else ""))
    seeds = {
        key: max(row["n_seeds"] for row in own)
        for key, own in by(rows, lambda r: r["preset"]).items()
    }
    told = ", ".join(f"{key} {n}" for key, n in seeds.items())
    return f"Positive test rows: {', '.join(parts)}. Seeds: {told}."


def rq2_table(rows: Sequence[Row], name: str) -> str:
    """Methods × masks, UAUC: printed → ours."""
    at = {(row["label"], row["mask"]): row for row in rows if row["metric"] == "uauc"}
    labels = sorted({label for label, _ in at}, key=[*_printed_order(), "item-rate"].index)
    body = []
    for label in labels:
        cells = []
        for mask in MASK_RATIOS:
            figure = printed(label, name, "uauc", mask)
            shown = "" if figure is None else f"{figure:.3f}→"
            cells.append(shown + _figure(at.get((label, mask))))
        body.append([label, *cells])
    return table(("method", *(f"{mask:.0%} removed" for mask in MASK_RATIOS)), body)


def _printed_order() -> list[str]:
    return [row.method for row in PRESETS["paper"].rows if row.label is None]


def ablation_table(rows: Sequence[Row]) -> str:
    """Variants × (preset, metric)."""
    labels = sorted({row["label"] for row in rows}, key=lambda x: (x[0], x[1] == "+", x))
    return pivot(rows, ("preset", "metric"), labels, ("variant",))


# The field


PUBLISHED = {
    ("coat", "rd"): "AutoDebias AUC .766, NDCG@5 .522; RD's public code UAUC .684, NDCG@5 .509",
    ("yahoo-r3", "rd"): "AutoDebias AUC .741, NDCG@5 .645; RD's public code UAUC .681, NDCG@5 .582",
    ("coat", "cvib"): "D-DR AUC .7804; UPO NDCG@5 .691",
    ("yahoo-r3", "cvib"): "CVIB AUC .7231, NDCG@5 .7133; UPO AUC .717, NDCG@5 .694",
    ("coat", "idcf"): "IViDR NDCG@5 .5903; iDCF NDCG@5 .5638",
    ("yahoo-r3", "idcf"): "IViDR NDCG@5 .6602; iDCF NDCG@5 .6410",
}
"""Figures in print, each under its own protocol."""


def field_text(summary: Row, made: str) -> str:
    """Five sentences, then methods × data sets by three metrics."""
    rows = summary["tables"]["field"]
    columns = list(dict.fromkeys((row["data"], row["protocol"]) for row in rows))
    first = {
        column: [r for r in rows if (r["data"], r["protocol"]) == column] for column in columns
    }
    return markdown_page(
        "field",
        made=made,
        findings=field_findings(rows),
        matrices=[
            (metric.upper(), field_matrix(rows, columns, metric))
            for metric in dict.fromkeys(row["metric"] for row in rows)
        ],
        basis=[
            (_title(column), f"{own[0]['positive_rate']:.1%}", max(r["n_seeds"] for r in own))
            for column, own in first.items()
        ],
        published=[(_title(key), PUBLISHED[key]) for key in columns if key in PUBLISHED],
        failed=summary["failed"],
        unfinished=summary["unfinished"],
    )


def _title(column: tuple[str, str]) -> str:
    return f"{NAMES.get(column[0], column[0])} {column[1]}"


def field_matrix(rows: Sequence[Row], columns: Sequence[tuple[str, str]], metric: str) -> str:
    """Means with marks; the last row is the typical half-width of a paired difference to `mf`."""
    own = [row for row in rows if row["metric"] == metric]
    at = {(row["data"], row["protocol"], row["label"]): row for row in own}
    means = by(own, lambda row: row["label"])
    labels = sorted(means, key=lambda x: (-_wins(own, x), -sum(r["mean"] for r in means[x]), x))
    body = []
    for label in labels:
        found = [at.get((*column, label)) for column in columns]
        cells = ["–" if r is None else _figure({**r, "half": None}) for r in found]
        body.append([f"`{label}`", str(max(r["uniform_rows"] for r in found if r)), *cells])
    typical = []
    for column in columns:
        halves = sorted(
            (r["difference_high"] - r["difference_low"]) / 2
            for r in own
            if (r["data"], r["protocol"]) == column and r["difference_high"] is not None
        )
        typical.append(f"±{halves[len(halves) // 2]:.3f}" if halves else "–")
    head = ("method", "uniform rows", *map(_title, columns))
    return table(head, [*body, ["*typical ±*", "", *typical]])


def _wins(rows: Iterable[Row], label: str) -> float:
    count = Counter(row["verdict"] for row in rows if row["label"] == label)
    return count["wins"] - count["loses"]


def field_findings(rows: Sequence[Row]) -> list[str]:
    """The five sentences that matter, by UAUC."""
    own = [row for row in rows if row["metric"] == "uauc"]
    judged = [row for row in own if row["verdict"]]
    labels = dict.fromkeys(row["label"] for row in judged)
    best = {
        _title(key): max(part, key=lambda row: float(row["mean"]))
        for key, part in by(own, lambda row: (row["data"], row["protocol"])).items()
    }
    text = markdown_page(
        "findings",
        rows=own,
        judged=judged,
        best=best,
        ahead=[label for label in labels if _wins(judged, label) > 0],
        with_rows=[row["label"] for row in own if row["uniform_rows"]],
        variants=DR_VARIANTS,
        baselines=list(BASELINES),
        counts=_counts,
    )
    return text.splitlines() if own else []
