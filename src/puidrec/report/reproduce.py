"""A reproduction as files: results.md, table.md, charts and one self-contained page, from the
summary alone.

Sentences follow from the figures by rule: other figures, other sentences. Where the set-up differs
from the paper is
said by question: facts about the code, not results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puidrec.atomic import atomic_path, write_text
from puidrec.comparing.summary import by
from puidrec.report.blocks import Callout, Figure, Page, Tone
from puidrec.report.charts import save_png
from puidrec.report.html import markdown_page, render
from puidrec.report.reproduce_tables import (
    SIDES,
    Row,
    all_charts,
    data_name,
    data_sheets,
    metric_name,
    sheets,
)


@dataclass(frozen=True)
class Chart:
    """A chart of the page, by the name of its file."""

    name: str
    figure: Figure


def write_reproduction(out: Path, summary: Mapping[str, Any], command: str) -> list[Path]:
    """Write everything that people read; equal summaries give equal bytes. Returns the paths."""
    charts = all_charts(summary)
    for name, draw in charts.items():
        with atomic_path(out / name) as temporary:
            save_png(draw(), temporary)
    write_text(out / "table.md", table_text(summary))
    write_text(out / "results.md", results_text(summary, command))
    write_text(out / "report.html", page_text(summary, out, command))
    return [out / name for name in ("report.html", "results.md", "table.md", *charts)]


def _values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the templates of a reproduction fill in."""
    failed = (
        f"{row['label']} on {row['data']}, preset {row['preset']}, seed {row['seed']} failed: {row['error']}"
        for row in summary["failed"]
    )
    return {
        "summary": summary,
        "tables": {question: sheets(summary, question) for question in summary["questions"]},
        "reading": bool({"rq1", "rq2", "ablation"} & set(summary["questions"])),
        "findings": findings(summary),
        "data": data_sheets(summary["facts"]),
        "left_out": [*summary["skipped"], *failed],
    }


def table_text(summary: Mapping[str, Any]) -> str:
    """All tables as Markdown."""
    return markdown_page("table", **_values(summary))


def results_text(summary: Mapping[str, Any], command: str) -> str:
    """The page of results: what was found, the tables, and where the set-up differs."""
    return markdown_page("results", command=command, **_values(summary))


def page_text(summary: Mapping[str, Any], folder: Path, command: str) -> str:
    """The page, with the charts that lie in a folder."""
    seeds = summary["seeds"]
    lead = f"Questions {', '.join(summary['questions'])}; {seeds} seed{'s' if seeds > 1 else ''}. Made by `{command}`."
    page = Page("The paper's tables, run again", lead, kind="Reproduction")
    words = "Chart {}; its figures are in the tables of this section."
    charts = [
        Chart(name, Figure((folder / name).read_bytes(), words.format(name.removesuffix(".png"))))
        for name in all_charts(summary)
    ]
    return render(page, "reproduce", charts=charts, **_values(summary))


ZERO = 1e-9
WHOLE = 1.0 - 1e-9
STEADY = 1.5
"""Ratios that differ by a larger factor are no proportion."""


def finding(title: str, text: str, tone: Tone = "info") -> Callout:
    """One point: a heading of a few words, and what the figures say about it."""
    return Callout(tone, title, text)


def findings(summary: Mapping[str, Any]) -> list[Callout]:
    """All points that the summary has figures for, in the order of the questions."""
    points = [
        *gamma_findings(summary["facts"]),
        *protocol_findings(summary),
        *gamma_contrasts(summary["contrasts"]),
        *floor_findings(summary["contrasts"]),
        *overlap_findings(summary["tables"]),
        *mask_findings(summary["tables"]),
        *limit_findings(summary["limits"]),
    ]
    if summary["rq3"]:
        points += ratio_findings(summary["rq3"])
    if summary["rq4"]:
        points += rise_findings(summary["rq4"])
    return points


def gamma_findings(facts: Sequence[Row]) -> list[Callout]:
    """Whether the printed equation is a bound at all, and whether users' features can inform it."""
    rows = [row for row in facts if row["experiment"] == "gamma"]
    if not rows:
        return []
    parts = [
        f"{row['value']:.4f} on {data_name(row['data'])} with {row['features']} features "
        f"({row['share_below_one']:.1%} of the pairs below 1)"
        for row in rows
    ]
    every = all(row["share_below_one"] >= WHOLE for row in rows)
    end = (
        "A bound on an odds ratio cannot be below 1, so clipped at 1 the equation allows no hidden confounding here."
        if every
        else "A bound on an odds ratio cannot be below 1; where it is, it has to be raised to 1."
    )
    text = f"With α = 2 and β = 5 the printed equation gives {_join(parts)}. {end}"
    points = [
        finding(
            "Γ as printed", text, "warn" if any(r["share_below_one"] > 0 for r in rows) else "good"
        )
    ]
    zero = [row for row in rows if row["gain_user"]["plugin"] < ZERO]
    for data, own in by(zero, lambda row: row["data"]).items():
        low, high = own[0]["user_degrees"]
        why = (
            f": every user has {low} logged ratings, so no user feature can predict exposure"
            if low == high
            else ""
        )
        points.append(
            finding(
                f"The user term on {data_name(data)}",
                f"The gain of user features is 0{why}.",
                "warn",
            )
        )
    return points


def protocol_findings(summary: Mapping[str, Any]) -> list[Callout]:
    """Which protocol brings the paper's settings nearest to the paper's figures."""
    rows = [
        r
        for r in summary["tables"]
        if r["experiment"] == "rq1" and r["preset"] == "paper" and r["paper"]
    ]
    points = []
    for data, own in by(rows, lambda row: row["source"]).items():
        groups = by(own, lambda row: row["protocol"])
        if len(groups) < 2:
            continue
        gap = {
            key: _mean([abs(row["paper_difference"]) for row in part])
            for key, part in groups.items()
        }
        rate = {key: part[0]["positive_rate"] for key, part in groups.items()}
        best = min(gap, key=lambda key: gap[key])
        parts = [
            f"{gap[key]:.3f} under {key} ({rate[key]:.1%} of the test rows positive)" for key in gap
        ]
        text = (
            f"Under the paper's settings our figures differ from the printed ones by {_join(parts)}, on average over "
            f"methods and metrics. Of the protocols tried, {best} fits best."
        )
        points.append(finding(f"The protocol behind the figures on {data_name(data)}", text))
    return points


def gamma_contrasts(contrasts: Sequence[Row]) -> list[Callout]:
    """Personalised Γ against one Γ, random ones, none: wins, ties and losses of paired comparisons."""
    points = []
    for kind, rows in by(
        [r for r in contrasts if r["kind"].startswith("personalised")], lambda r: r["kind"]
    ).items():
        count = Counter(row["verdict"] for row in rows)
        widest = max(rows, key=lambda row: abs(row["difference"]))
        if not count["wins"]:
            end = "No personalised method is ahead beyond chance."
        elif count["wins"] > count["loses"]:
            won = [row for row in rows if row["verdict"] == "wins"]
            names = {
                f"{row['method']} on {data_name(row['source'])} ({row['preset']})" for row in won
            }
            end = f"Ahead: {_join(sorted(names))}."
        else:
            end = "It loses at least as often as it wins."
        text = (
            f"Of {len(rows)} paired comparisons, {count['wins']} are won, {count['ties']} tied, {count['loses']} lost "
            f"(largest difference {widest['difference']:+.4f}, {widest['method']} on {data_name(widest['source'])}, "
            f"{metric_name(widest['metric'])}). {end}"
        )
        tone: Tone = "good" if count["wins"] > count["loses"] else "warn"
        points.append(finding(kind[0].upper() + kind[1:], text, tone))
    return points


def floor_findings(contrasts: Sequence[Row]) -> list[Callout]:
    """Every method against the item rate: a table in which the trivial baseline is not shown hides
    this."""
    rows = [
        row
        for row in contrasts
        if row["kind"] == "against the item rate" and row["experiment"] == "rq1"
    ]
    points = []
    for (data, preset), own in by(rows, lambda row: (row["source"], row["preset"])).items():
        parts = []
        for (metric, protocol), part in by(
            own, lambda row: (row["metric"], row["protocol"])
        ).items():
            count = Counter(row["verdict"] for row in part)
            best = max(part, key=lambda row: float(row["difference"]))
            parts.append(
                f"{metric_name(metric)} ({protocol}): {count['wins']} of {len(part)} rows win, "
                f"{count['ties']} tie, {count['loses']} lose; best is {best['method']} at {best['difference']:+.4f} "
                f"[{best['low']:+.4f}, {best['high']:+.4f}]"
            )
        seen = {row["verdict"] for row in own}
        tone: Tone = "warn" if "loses" in seen else "good" if "wins" in seen else "info"
        points.append(
            finding(
                f"Against the item rate on {data_name(data)}, preset {preset}",
                f"{'; '.join(parts)}.",
                tone,
            )
        )
    return points


def overlap_findings(tables: Sequence[Row]) -> list[Callout]:
    """What scoring training pairs, as the paper does on KuaiRec, adds to the figures."""
    rows = [row for row in tables if row["experiment"] == "rq1" and row["source"] == "kuairec"]
    at = {(row["preset"], row["label"], row["metric"]): row for row in rows}
    parts = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        pairs = [
            (row, at["paper", label, metric])
            for (preset, label, other), row in at.items()
            if preset == "paper-overlapping" and other == metric and ("paper", label, metric) in at
        ]
        if pairs:
            up = _mean([over["mean"] - held["mean"] for over, held in pairs])
            told = [(over, held) for over, held in pairs if over["paper"] is not None]
            near = ""
            if told:
                far = [
                    _mean([abs(row["paper_difference"]) for row in column])
                    for column in zip(*told, strict=True)
                ]
                near = f" (distance to the printed figures {far[0]:.3f} instead of {far[1]:.3f})"
            parts.append(
                f"{metric_name(metric)} changes by {up:+.3f} over {len(pairs)} methods{near}"
            )
    if not parts:
        return []
    return [
        finding(
            "Scoring training pairs on KuaiRec", f"With training pairs in the test, {_join(parts)}."
        )
    ]


def mask_findings(tables: Sequence[Row]) -> list[Callout]:
    """RQ2: does the order of methods in the paper hold as the log loses rows?"""
    rows = [r for r in tables if r["experiment"] == "rq2" and r["metric"] == "uauc"]
    points = []
    for (data, preset), own in by(rows, lambda row: (row["source"], row["preset"])).items():
        best: Counter[str] = Counter()
        for part in by(own, lambda row: tuple(row["mask"])).values():
            best[max(part, key=lambda row: float(row["mean"]))["label"]] += 1
        total = sum(best.values())
        parts = [f"{label} {count}" for label, count in best.most_common()]
        text = f"The best UAUC at the {total} masks is reached by: {_join(parts)} (times)."
        points.append(finding(f"Masks on {data_name(data)}, preset {preset}", text))
    return points


def limit_findings(limits: Sequence[Row]) -> list[Callout]:
    """Fits that ended because of the limit of epochs: a caveat that the figures need."""
    parts = [
        f"{row['at_the_limit']} of {row['fits']} on {data_name(row['data'])} under preset {row['preset']} "
        f"(limit {row['epochs']})"
        for row in limits
        if row["at_the_limit"]
    ]
    if not parts:
        return []
    text = f"These fits were still improving when their epochs ran out: {_join(parts)}. More epochs might raise them."
    return [finding("Fits cut short", text)]


def ratio_findings(rq3: Mapping[str, Any]) -> list[Callout]:
    """RQ3: signs and sizes of the ratios, and what of them survives."""
    points = []
    for ratio, side in (("ratio_user", "user"), ("ratio_item", "item")):
        rows = [row for row in rq3["ratios"] if row["ratio"] == ratio]
        plain, control, left = (
            [row for row in rows if (row["control"], row["estimator"]) == key]
            for key in (("none", "plugin"), ("permuted", "plugin"), ("none", "permutation"))
        )
        values = [row["mean"] for row in plain if row["mean"] is not None]
        both = _mean([row["n"] / row["of"] for row in left])
        spread = f"from {min(values):.2f} to {max(values):.2f}" if values else "nowhere"
        factor = max(values) / min(values) if values and min(values) > 0 else 1.0
        steady = "no steady proportion" if factor > STEADY else "a steady proportion"
        useless = _mean([row["positive"] for row in control]) >= 0.95 * _mean(
            [row["positive"] for row in plain]
        )
        end = "So the sign says nothing." if useless else "So the sign says something."
        text = (
            f"Plug-in ratios are positive in {_mean([r['positive'] for r in plain]):.0%} of the cases, and in "
            f"{_mean([r['positive'] for r in control]):.0%} with permuted feature rows, which carry no information. "
            f"{end} Over the 16 combinations the mean ratio runs {spread}, {steady}. Both gains exceed "
            f"those of noise with equally many bins in {both:.0%} of the cases."
        )
        points.append(
            finding(f"RQ3, {side} side", text, "warn" if useless or both < 0.5 else "good")
        )
    return points


def rise_findings(rq4: Mapping[str, Any]) -> list[Callout]:
    """RQ4: how much of the rise is made by finer bins."""
    points = []
    for side in SIDES:
        facts = rq4["sides"][side]
        rising, final = facts["rising"], facts["final"]
        share = facts["artefact_at_the_end"]
        text = (
            f"The plug-in gain does not fall in {rising['plugin']:.0%} of the steps; nested bins allow nothing else. "
            f"Noise with equally many bins does so in {rising['noise']:.0%}, and with all features hidden it gains "
            f"{final['noise']['mean']:.4f} of {final['plugin']['mean']:.4f} nats: {share:.0%} is artefact. "
            f"{facts['beyond_chance']:.0%} of the gains are beyond chance."
        )
        points.append(
            finding(f"RQ4, hidden {side} features", text, "warn" if share > 0.5 else "good")
        )
    return points


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
