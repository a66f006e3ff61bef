"""Yardsticks for Γ on the page of an audit: what uniform ratings say and prove, what features are worth, and where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from puidrec.report.blocks import Block, Callout, Column, Facts, HeatMap, Paragraph, Section, Table, Tone
from puidrec.report.formatting import bin_values, finite, short_labels, show

LABEL = 48


def strength(audit: Mapping[str, Any]) -> Section | None:
    """What is a large Γ here? Each yardstick that the data offer."""
    found: list[Block] = [*_uniform(audit), *_certificate(audit), *_benchmarks(audit)]
    gamma = audit.get("gamma") or {}
    words = {"median": "median pair", "p95": "one pair in twenty is above", "max": "largest", "rule": "rule"}
    items = [(words.get(key, key), value if key == "rule" else show(value, ".2f")) for key, value in gamma.items()]
    if items:
        found += [Paragraph("**Γ of the pairs of this log, as the rule sets it**"), Facts(items)]
    return Section("strength", "What is a large Γ here?", found, short="Yardsticks for Γ") if found else None


def _uniform(audit: Mapping[str, Any]) -> list[Block]:
    """What uniform test rows measure of the same comparison: there nobody chose, so no Γ is needed."""
    uniform = audit.get("uniform") or {}
    gap = uniform.get("loss_gap")
    if not gap or finite(gap.get("value")) is None:
        return []
    low, high = finite(gap.get("low")), finite(gap.get("high"))
    span = f" (95 %: {show(low, '.4f')} to {show(high, '.4f')})" if low is not None and high is not None else ""
    ahead, behind = low is not None and low > 0.0, high is not None and high < 0.0
    tone: Tone = "good" if ahead else "bad" if behind else "info"
    word = "confirm the lead" if ahead else "show the other model ahead" if behind else "leave open which one is ahead"
    text = (
        f"On {show(uniform.get('n'))} ratings of items that nobody chose, the difference in error is "
        f"**{show(gap['value'], '.4f')}**{span}: they {word}."
    )
    return [Callout(tone, "What uniform ratings show", text)]


def _certificate(audit: Mapping[str, Any]) -> list[Block]:
    certificate = audit.get("certificate")
    if not certificate:
        return []
    low = finite(certificate.get("low"))
    if low is None or low <= 1.0:
        text = "The uniform ratings prove no hidden confounding; nor do they prove that there is none."
        return [Callout("info", "What uniform ratings prove of Γ", text)]
    text = (
        f"They refute every Γ below **{show(low, '.2f')}** (95 % confidence; best estimate "
        f"{show(certificate.get('gamma_min'), '.2f')}): something hidden did drive the log, at least so much."
    )
    return [Callout("info", "What uniform ratings prove of Γ", text)]


def _benchmarks(audit: Mapping[str, Any]) -> list[Block]:
    rows = sorted(audit.get("benchmarks") or [], key=lambda row: -(finite(row.get("gamma")) or 0.0))
    if not rows:
        return []
    text = (
        "To judge a Γ, hide a feature that was recorded and see how far the odds of being seen move: that is the Γ of "
        "a hidden trait as strong as this feature."
    )
    columns = [
        Column("feature"), Column("of"), Column("Γ", ".2f", "typical factor by which the odds move"),
        Column("Γ, 90 %", ".2f", "one pair in ten moves by more"),
        Column("times hidden", ".1f", "how many such traits, acting together, it takes to reach the tipping point"),
    ]  # fmt: skip
    keys = ("gamma", "gamma_90", "times_hidden")
    cells: list[list[Any]] = [
        [str(row.get("feature")), f"{row.get('side', '')}s", *(row.get(key) for key in keys)] for row in rows
    ]
    keep = [k for k, column in enumerate(columns) if k < 3 or any(finite(row[k]) is not None for row in cells)]
    table = [[row[k] for k in keep] for row in cells]
    return [Paragraph(text), Table([columns[k] for k in keep], table, "Features as a yardstick for Γ.")]


def gamma_map(audit: Mapping[str, Any]) -> Section | None:
    """Where may it be strong? Γ by group of users and items."""
    table = audit.get("gamma_map") or {}
    if not table.get("values"):
        return None
    users, by_user = _axis(table["user_bins"], "users")
    items, by_item = _axis(table["item_bins"], "items")
    chart = HeatMap(
        table["values"], users, items, "Γ by group of users and group of items (geometric mean over pairs).",
        by_user, by_item, "Γ from", log=True,
    )  # fmt: skip
    return Section("map", "Where may it be strong?", [chart], short="Γ by group")


def _axis(labels: Sequence[object], side: str) -> tuple[list[str], str]:
    """Labels `age=20 to 30, gender=f` as `20 to 30 · f`, with the names of the columns in the title of the axis."""
    texts = [str(label) for label in labels]
    columns = re.findall(r"(?:^|, )([^=,]+)=", texts[0]) if texts else []
    if not all(len(bin_values(text, columns)) == len(columns) and columns for text in texts):
        columns = []
    short, shown = short_labels(texts, columns, LABEL)
    return short, f"{side}, by {', '.join(shown)}" if shown else side
