"""The closer look of an audit's page: which pairs, users and items, is the log good enough, and how
all was set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from puidrec.report.audit_envelope import ModelNames
from puidrec.report.blocks import (
    Block,
    Cell,
    Column,
    Details,
    Facts,
    HeatMap,
    Paragraph,
    Section,
    Table,
)
from puidrec.report.formatting import MISSING, Value, bin_values, finite, short_labels, show

LABEL = 48
"""Characters of a group's label on the map of Γ."""
DOCS = (
    (
        "docs/equations.md",
        "every formula, the function that computes it, and the test that checks it",
    ),
    ("docs/deviations.md", "what the paper leaves open, and what is done instead"),
    ("docs/truth.md", "what methods and rules for Γ find in worlds where the truth is known"),
)
SEGMENT = {
    "entities": Column("size", ",d", "users or items in the group"),
    "ratings": Column("ratings", ",d"),
    "n": Column("logged pairs", ",d", "of the group, among the rows of this audit"),
    "gamma_mean": Column("mean Γ", ".2f"),
    "gamma_p95": Column("Γ, 95 %", ".2f", "one in twenty of the group is above"),
    "low": Column("$ from", ".3f"),
    "high": Column("$ to", ".3f", "its range in the group; a lead above 0 is the audited model's"),
    "width": Column("width", ".3f", "of that range"),
    "score_shift": Column(
        "score shift", "+.3f", "mean score of the audited model minus the other's"
    ),
    "overlap": Column("same", ".0%", "share of a list that both models recommend"),
    "recommended_per_100": Column("per 100", ".1f", "users out of 100 in whose list it is"),
    "against_per_100": Column("other per 100", ".1f", "the same for the other model"),
    "change_per_100": Column("change", "+.1f", "the difference of these two"),
}
QUANTILES = {
    "min": "least",
    "p1": "1 %",
    "p5": "5 %",
    "median": "median",
    "p95": "95 %",
    "p99": "99 %",
    "max": "most",
}
HEADLINES = {
    "ess": ("effective sample size", ",.0f"),
    "ess_share": ("as a share of the rows", ".1%"),
    "share_clipped": ("propensities clipped", ".1%"),
    "share_without_support": ("pairs in groups without a logged row", ".1%"),
    "calibration_error": ("calibration error", ".1%"),
    "gini": ("Gini coefficient of exposure", ".2f"),
    "top1_items_share": ("log taken by 1 % of items", ".1%"),
    "top10_items_share": ("log taken by 10 % of items", ".1%"),
}
WORDS = {
    "n_users": "users",
    "n_items": "items",
    "n_logged": "logged pairs",
    "n_uniform": "uniform ratings",
    "positive_rate": "positive rate",
    "n": "pairs audited",
    "level": "confidence",
    "sha256": "SHA-256 begins with",
}


def gamma_map(audit: Mapping[str, Any]) -> Section | None:
    """Where may hidden confounding be strong? Γ by group of users and items."""
    table = audit.get("gamma_map") or {}
    if not table.get("values"):
        return None
    users, by_user = _axis(table["user_bins"], "users")
    items, by_item = _axis(table["item_bins"], "items")
    chart = HeatMap(
        table["values"],
        users,
        items,
        "Γ by group of users and group of items (geometric mean over pairs).",
        by_user,
        by_item,
        "Γ from",
        log=True,
    )
    return Section("map", "Where may hidden confounding be strong?", [chart], short="Γ by group")


def _axis(labels: Sequence[object], side: str) -> tuple[list[str], str]:
    """Labels `age=20 to 30, gender=f` as `20 to 30 · f`, with the names of the columns in the title
    of the axis."""
    texts = [str(label) for label in labels]
    columns = re.findall(r"(?:^|, )([^=,]+)=", texts[0]) if texts else []
    if not all(len(bin_values(text, columns)) == len(columns) and columns for text in texts):
        columns = []
    short, shown = short_labels(texts, columns, LABEL)
    return short, f"{side}, by {', '.join(shown)}" if shown else side


def segments(audit: Mapping[str, Any], names: ModelNames) -> Section | None:
    """Which users and items are most affected? Groups by their columns, and single ones with the
    largest Γ."""
    values = audit.get("segments") or {}
    found: list[Block] = []
    what, explained = "lead" if names.other is not None else "error", set[str]()
    for side in ("users", "items"):
        rows, single = values.get(side) or [], values.get(f"largest_{side}") or []
        if rows:
            labels = [f"{row.get('column', '')}: {row.get('segment', '')}" for row in rows]
            caption = f"Groups of {side}, by their columns; the largest mean Γ first."
            found.append(_group_table(f"group of {side}", labels, rows, caption, what, explained))
        if single:
            labels = [str(row.get("id")) for row in single]
            caption = f"{side.capitalize()} with the largest Γ."
            table = _group_table(side[:-1], labels, single, caption, what, explained)
            found.append(Details(f"Single {side} with the largest Γ", [table]))
    if found and values.get("strength"):
        found.insert(0, Paragraph(f"Ranges are the sharp ones at {values['strength']}."))
    return (
        Section(
            "segments", "Which users and items are most affected?", found, short="Users and items"
        )
        if found
        else None
    )


def _group_table(
    name: str,
    labels: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    caption: str,
    what: str,
    explained: set[str],
) -> Table:
    """Known columns in their order, then whatever else the rows hold; each column is explained once
    on the page.

    what: the word for the quantity whose range the group has, lead or error.
    """
    present = dict.fromkeys(key for row in rows for key, value in row.items() if scalar(value))
    others = [key for key in present if key not in (*SEGMENT, "column", "segment", "id")]
    keys = [*(key for key in SEGMENT if key in present), *others]
    columns = [SEGMENT.get(key, Column(key.replace("_", " "))) for key in keys]
    columns = [
        replace(c, name=c.name.replace("$", what), help="" if c.name in explained else c.help)
        for c in columns
    ]
    explained |= {SEGMENT[key].name for key in keys if key in SEGMENT}
    cells = [
        [label, *(row.get(key) for key in keys)] for label, row in zip(labels, rows, strict=True)
    ]
    return Table([Column(name), *columns], cells, caption)


def diagnostics(audit: Mapping[str, Any]) -> Section | None:
    """Is the log good enough for this answer? Sizes, weights, calibration; new figures are shown as
    they are."""
    values = dict(audit.get("diagnostics") or {})
    items: list[tuple[str, Value]] = [
        (words, show(values.pop(key), spec))
        for key, (words, spec) in HEADLINES.items()
        if scalar(values.get(key, {}))
    ]
    items += [
        (key.replace("_", " "), values.pop(key)) for key in list(values) if scalar(values[key])
    ]
    found: list[Block] = [Facts(items)] if items else []
    found += _calibration(values.get("calibration") or [])
    found += _spread(values)
    found += _deciles(values.get("ess_by_item_decile") or [])
    return (
        Section(
            "diagnostics", "Is the log good enough for this answer?", found, short="Diagnostics"
        )
        if found
        else None
    )


def _calibration(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Observed rates as bars, the predicted ones as ticks on them."""
    ends = [
        v
        for row in rows
        for v in map(finite, (row.get("predicted"), row.get("observed")))
        if v is not None
    ]
    if not rows or not ends or max(ends) <= 0.0:
        return []
    top = max(ends)
    cells: list[list[Any]] = []
    for row in rows:
        predicted, observed = finite(row.get("predicted")), finite(row.get("observed"))
        bar = None if observed is None else observed / top
        tick = None if predicted is None else predicted / top
        cells.append(
            [
                row.get("decile"),
                row.get("pairs"),
                row.get("seen"),
                predicted,
                Cell(observed, bar=bar, tick=tick),
            ]
        )
    columns = [
        Column("tenth"),
        Column("pairs", ",d"),
        Column("seen", ",d"),
        Column("predicted", ".1%"),
        Column("observed", ".1%", "the bar; the tick on it is what was predicted"),
    ]
    return [
        Table(
            columns,
            cells,
            "Are propensities right? Pairs by tenths of their propensity: how many were seen.",
        )
    ]


def _spread(values: Mapping[str, Any]) -> list[Block]:
    """Quantiles of weights and propensities in one table, and the few single figures beside them."""
    names = {
        "propensity": ("propensities of logged pairs", ".3f"),
        "propensity_all_pairs": ("propensities of all pairs", ".3f"),
        "weights": ("weights of audited pairs", ",.1f"),
    }
    parts = {key: values.get(key) or {} for key in names}
    rows: list[list[Any]] = [
        [
            words,
            *(Cell(parts[key].get(name), show(parts[key].get(name), spec)) for name in QUANTILES),
        ]
        for key, (words, spec) in names.items()
        if any(name in parts[key] for name in QUANTILES)
    ]
    propensity, weights = parts["propensity"], parts["weights"]
    facts: list[tuple[str, Value]] = [
        ("propensity model", propensity.get("name")),
        ("smallest propensity allowed", show(propensity.get("smallest_allowed"), ".3f")),
        ("weight on the heaviest 1 %", show(weights.get("top1_weight_share"), ".3f")),
    ]
    table = Table(
        ["", *QUANTILES.values()], rows, "How propensities and weights spread.", sortable=False
    )
    return [table, Facts(facts)] if rows else []


def _deciles(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return []
    columns = [
        Column("tenth of items"),
        Column("items", ",d"),
        Column("share of the log", ".1%"),
        Column("rows", ",d"),
        Column(
            "effective size",
            ",.0f",
            "as many rows of equal weight say as much; the bar: as a share of the rows",
        ),
        Column("mean weight", ".1f"),
    ]
    cells: list[list[Any]] = []
    for row in rows:
        ess, n = finite(row.get("ess")), finite(row.get("rows"))
        bar = ess / n if ess is not None and n else None
        start = [row.get(key) for key in ("decile", "items", "share_of_log", "rows")]
        cells.append([*start, Cell(ess, bar=bar), row.get("mean_weight")])
    return [
        Table(
            columns, cells, "Where is the log thin? Items by popularity, the most seen tenth first."
        )
    ]


def methods(audit: Mapping[str, Any], names: ModelNames) -> Section:
    """How all was set: models side by side, data, rows, the closed form, and where to read on."""
    found: list[Block] = _models(audit, names)
    for title, key in (("Data", "data"), ("Rows and intervals", "rows")):
        values = audit.get(key) or {}
        items = [
            (WORDS.get(k, k.replace("_", " ")), _fact(k, v)) for k, v in values.items() if scalar(v)
        ]
        found += [Paragraph(f"**{title}**"), Facts(items)] if items else []
    form = (audit.get("tipping") or {}).get("closed_form")
    if form:
        words = {"S_plus": "S₊", "S_minus": "S₋"}
        found.append(
            Paragraph("**Tipping point in closed form**: Γ* = (T + √(T² + 4 S₋S₊)) / (2 S₋), with")
        )
        found.append(
            Facts([(words.get(key, key), show(value, ",.4g")) for key, value in form.items()])
        )
    found.append(
        Table(["page", "what it holds"], DOCS, "To read on, in the documentation.", sortable=False)
    )
    return Section("methods", "Methods and settings", found, short="Methods")


def _fact(key: str, value: Value) -> Value:
    if key == "sha256" and isinstance(value, str):
        return value[:16]
    return (
        show(value, ".1%" if key == "positive_rate" else ".0%")
        if key in ("positive_rate", "level")
        else value
    )


def _models(audit: Mapping[str, Any], names: ModelNames) -> list[Block]:
    """The models side by side; settings that differ are stressed."""
    sides = [audit.get("model") or {}, *([audit["against"]] if audit.get("against") else [])]
    heads = ["", *[name for name in (names.model, names.other) if name is not None]]
    flat = [
        {k: v for k, v in {**side, **(side.get("training") or {})}.items() if scalar(v)}
        for side in sides
    ]
    found: list[Block] = [
        _beside(heads, flat, "The models, and how they were trained.", stress=False)
    ]
    settings = [dict(side.get("settings") or {}) for side in sides]
    if any(settings):
        text = "Settings; those that differ are stressed." if len(sides) > 1 else "Settings."
        found.append(Details("All settings", [_beside(heads, settings, text)]))
    return found if any(flat) or any(settings) else []


def _beside(
    heads: Sequence[str], sides: Sequence[Mapping[str, Any]], caption: str, *, stress: bool = True
) -> Table:
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [[key.replace("_", " "), *(_setting(side.get(key)) for side in sides)] for key in keys]
    differ = [k for k, row in enumerate(rows) if stress and len(set(row[1:])) > 1]
    return Table(heads, rows, caption, sortable=False, emphasised=differ)


def _setting(value: object) -> str:
    return MISSING if value is None else show(value) if scalar(value) else str(value)


def scalar(value: object) -> bool:
    """Whether a value fits in one cell."""
    return value is None or isinstance(value, str | bool | Real)
