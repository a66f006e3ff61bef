"""The page of an audit, from the plain values of `audit.json`: verdict first, then why, where, what it leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from puidrec.report.audit_envelope import ModelNames, envelope_of
from puidrec.report.blocks import (
    Block,
    Callout,
    Cell,
    Column,
    Details,
    Facts,
    HeatMap,
    Page,
    Paragraph,
    Section,
    Table,
    Tone,
    VerdictBox,
)
from puidrec.report.formatting import MISSING, Value, bin_values, finite, short_labels, show

LABEL = 48
METRICS = ("error", "ranking", "ndcg")
"""Characters of a group's label on the map of Γ."""
SOURCES = {
    "held-out": "held-out logged", "hold-out": "held-out logged", "cross-fitted": "cross-fitted logged",
    "given": "unseen logged", "claimed": "logged",
}  # fmt: skip
VERDICTS: dict[str, tuple[Tone, str]] = {
    "robust": ("good", "Robust"),
    "fragile": ("warn", "Fragile"),
    "undecided": ("info", "Undecided"),
    "refuted": ("bad", "Refuted"),
    "single": ("info", "One model alone"),
}
DOCS = (
    ("docs/equations.md", "every formula, the function that computes it, and the test that checks it"),
    (
        "docs/gamma-truth.md",
        "which rules for Γ rank pairs by the strength of hidden confounding, where the truth is known",
    ),
    ("docs/deviations.md", "what the paper leaves open, and what is done instead"),
    ("docs/truth.md", "what each method repairs in worlds where the truth is known"),
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
    "score_shift": Column("score shift", "+.3f", "mean score of the audited model minus the other's"),
    "top10_overlap": Column("same of 10", ".0%", "share of ten recommendations that both models make"),
    "recommended_per_100": Column("per 100", ".1f", "users out of 100 to whom it is among ten recommendations"),
    "against_per_100": Column("other per 100", ".1f", "the same for the other model"),
    "change_per_100": Column("change", "+.1f", "the difference of these two"),
}
QUANTILES = {"min": "least", "p1": "1 %", "p5": "5 %", "median": "median", "p95": "95 %", "p99": "99 %", "max": "most"}
HEADLINES = {
    "ess": ("effective sample size", ",.0f"), "ess_share": ("as a share of the rows", ".1%"),
    "share_clipped": ("propensities clipped", ".1%"),
    "share_without_support": ("pairs in groups without a logged row", ".1%"),
    "calibration_error": ("calibration error", ".1%"),
    "gini": ("Gini coefficient of exposure", ".2f"), "top1_items_share": ("log taken by 1 % of items", ".1%"),
    "top10_items_share": ("log taken by 10 % of items", ".1%"),
}  # fmt: skip
WORDS = {
    "n_users": "users", "n_items": "items", "n_logged": "logged pairs", "n_uniform": "uniform ratings",
    "positive_rate": "positive rate", "n": "pairs audited", "level": "confidence", "sha256": "SHA-256 begins with",
}  # fmt: skip


def audit_page(audit: Mapping[str, Any]) -> Page:
    """The page of one audit; a part that the file lacks is left out."""
    names = names_of(audit)
    data = audit.get("data") or {}
    where = f" on {data['name']}" if data.get("name") else ""
    title = f"{names.model}{where}" if names.other is None else f"{names.model} against {names.other}{where}"
    parts = (
        leads(audit), _envelopes(audit, names), yardsticks(audit), gamma_map(audit), segments(audit, names),
        diagnostics(audit), _limits(audit), methods(audit, names),
    )  # fmt: skip
    return Page(
        title=title, lead=_lead(audit, names), sections=[part for part in parts if part], verdict=_verdict(audit),
        kind="Audit",
    )  # fmt: skip


def names_of(audit: Mapping[str, Any]) -> ModelNames:
    """What to call the two models; their method where they have no name, and told apart where they are called alike."""
    model, against = audit.get("model") or {}, audit.get("against")
    first = str(model.get("name") or model.get("method") or "the model")
    if not against:
        return ModelNames(first, None)
    second = str(against.get("name") or against.get("method") or "the other model")
    return (
        ModelNames(first, second) if first != second else ModelNames(f"{first} (audited)", f"{second} (compared with)")
    )


def _lead(audit: Mapping[str, Any], names: ModelNames) -> str:
    rows = audit.get("rows") or {}
    held = SOURCES.get(str(rows.get("source")), "logged")
    count = f"{show(rows['n'])} {held} pairs" if rows.get("n") is not None else f"{held} pairs"
    if names.other is None:
        return f"The error of one recommender, from {count}, and its range if something hidden drove the log."
    return f"Two recommenders, compared on {count}: would the better one stay ahead if something hidden drove the log?"


def _verdict(audit: Mapping[str, Any]) -> VerdictBox:
    tone, label = VERDICTS.get(str(audit.get("verdict")), ("info", str(audit.get("verdict") or "Audit")))
    certificate, reference = audit.get("certificate") or {}, audit.get("reference") or {}
    shown: list[tuple[str, Value]] = []
    for lead in judged_leads(audit)[:2]:
        tipping = lead.get("tipping") or {}
        shown.append((f"Γ* by {lead.get('metric')}{interval(tipping, 'low', 'high')}", factor(tipping, "gamma")))
    if finite(reference.get("gamma")) is not None:
        shown.append((f"Γ of the largest yardstick: {reference.get('words')}", show(reference["gamma"], ".2f")))
    if finite(certificate.get("low")) is not None:
        shown.append(("Γ proved by uniform ratings", f"≥ {show(certificate['low'], '.2f')}"))
    return VerdictBox(tone, label, str(audit.get("sentence") or ""), shown[:4])


def judged_leads(audit: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The leads by each metric, the one asked for first."""
    asked = str(audit.get("metric") or "error")
    order = [asked, *(name for name in METRICS if name != asked)]
    return [audit[name] for name in order if isinstance(audit.get(name), Mapping)]


def leads(audit: Mapping[str, Any]) -> Section | None:
    """The verdict by each metric, with what it rests on."""
    columns = [
        Column("metric"), Column("verdict"), Column("Γ*", ".2f", "the least Γ at which the lead could vanish; 1: none"),
        Column("95 %"), Column("lead in the log", "", "if nothing is hidden, with its 95 % interval"),
        Column("lead on uniform rows", "", "needs no Γ"),
        Column("ratings replaced", ",d", "the fewest whose replacement by the least favourable would end the lead"),
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for lead in judged_leads(audit):
        tipping = lead.get("tipping") or {}
        tone = VERDICTS.get(str(lead.get("verdict")), ("info", ""))[0]
        rows.append([
            str(lead.get("metric")), Cell(str(lead.get("verdict")), tone=tone),
            Cell(finite(tipping.get("gamma")), factor(tipping, "gamma")),
            f"{factor(tipping, 'low')} to {factor(tipping, 'high')}", span(lead.get("lead")),
            span(lead.get("uniform")), lead.get("replaced"),
        ])  # fmt: skip
    if not rows:
        return None
    keep = [k for k in range(len(columns)) if k < 5 or any(row[k] not in (None, MISSING) for row in rows)]
    table = Table([columns[k] for k in keep], [[row[k] for k in keep] for row in rows], "", sortable=False)
    table = replace(table, caption="By error and by ranking. Above 0, the audited model is ahead.")
    return Section("leads", "By error and by ranking", [table], short="Verdicts")


def span(found: Mapping[str, Any] | None) -> str:
    """A difference with its interval."""
    if not found or finite(found.get("value")) is None:
        return MISSING
    low, high = finite(found.get("low")), finite(found.get("high"))
    ends = "" if low is None or high is None else f" ({show(low, '.4f')} to {show(high, '.4f')})"
    return f"{show(found['value'], '.4f')}{ends}"


def _tips(audit: Mapping[str, Any]) -> bool:
    """Whether there is a lead in the log, and so a strength that would end it."""
    tipping = audit.get("tipping")
    return bool(audit.get("against") and tipping and not tipping.get("no_lead"))


def factor(tipping: Mapping[str, Any], key: str) -> str:
    """A tipping point in words: infinite where flagged so, a dash where unknown."""
    return "∞" if tipping.get(f"{key}_infinite") else show(tipping.get(key), ".2f")


def interval(tipping: Mapping[str, Any], low: str, high: str) -> str:
    """The 95 % interval in brackets; nothing where it was not computed."""
    ends = factor(tipping, low), factor(tipping, high)
    return "" if ends == ("–", "–") else f" (95 %: {ends[0]} to {ends[1]})"


def _envelopes(audit: Mapping[str, Any], names: ModelNames) -> Section | None:
    chart = envelope_of(audit, names)
    if chart is None:
        return None
    panel = chart.panels[0]
    step = max(1, (len(panel.grid) - 1) // 10)
    rows = [
        [panel.grid[k], *(end for band in panel.bands for end in (band.low[k], band.high[k]))]
        for k in range(0, len(panel.grid), step)
    ]
    columns = [Column(panel.symbol, panel.x_format)]
    columns += [Column(f"{band.label}, {end}", panel.format) for band in panel.bands for end in ("from", "to")]
    table = Table(columns, rows, f"{panel.label}: {panel.y_label}.", sortable=False)
    title = "How strong would hidden confounding have to be?" if names.other else "How far could the error be off?"
    tips: list[Block] = [_tipping(audit["tipping"])] if _tips(audit) else []
    blocks: list[Block] = [chart, *tips, Details("The figures behind the first chart", [table])]
    return Section("envelope", title, blocks, short="Envelope")


def _tipping(tipping: Mapping[str, Any]) -> Facts:
    """Where the lead ends, by each way of finding the range and each kind of strength."""
    items: list[tuple[str, Value]] = [(f"Γ*{interval(tipping, 'low', 'high')}", factor(tipping, "gamma"))]
    if "sharp" in tipping:
        items.append(("Γ* of the sharp range", factor(tipping, "sharp")))
    if "kappa" in tipping:
        items.append((f"κ*{interval(tipping, 'kappa_low', 'kappa_high')}", factor(tipping, "kappa")))
    if finite(tipping.get("kappa_mean_gamma")) is not None:
        items.append(("mean Γ at κ*", show(tipping["kappa_mean_gamma"], ".2f")))
    return Facts(items)


def _limits(audit: Mapping[str, Any]) -> Section | None:
    points = [str(text) for text in audit.get("limits") or []]
    box = Callout("warn", "Read this before you rely on it", "", points)
    return Section("limits", "What this does not tell you", [box], short="Limits") if points else None


def yardsticks(audit: Mapping[str, Any]) -> Section | None:
    """What is a large Γ here? Each yardstick that the data offer."""
    found: list[Block] = [*_uniform(audit), *_certificate(audit), *_benchmarks(audit), *_scenarios(audit)]
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
    word = (
        "show the audited model ahead" if ahead else "show the other model ahead" if behind
        else "leave open which one is ahead"
    )  # fmt: skip
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
    title = "What uniform ratings prove of Γ"
    if low is None or low <= 1.0:
        text = "The uniform ratings prove no hidden confounding. They do not prove that there is none."
        return [Callout("info", title, text)]
    text = (
        f"They refute every Γ below **{show(low, '.2f')}** (95 % confidence): at least that much of who saw what was "
        "hidden, or missed by the propensity."
    )
    if certificate.get("finding") == "misfit":
        text += " Around a richer propensity of boosted trees nothing is left of it: it is misfit, not proof."
    points = [
        f"{row['side']}s, {row['name']}: Γ ≥ {show(row['low'], '.2f')} from {show(row['n_uniform'])} rows"
        for row in certificate.get("segments") or []
        if (finite(row.get("low")) or 1.0) > 1.0
    ]
    return [Callout("info", title, text, points=points[:8])]


def _benchmarks(audit: Mapping[str, Any]) -> list[Block]:
    everything = [*(audit.get("benchmarks") or []), *(audit.get("groups") or [])]
    rows = sorted(everything, key=lambda row: -(finite(row.get("gamma")) or 0.0))
    if not rows:
        return []
    text = (
        "To judge a Γ, hide a feature that was recorded and see how far the odds of being seen move: that is the Γ of "
        "a hidden trait as strong as this feature."
    )
    columns = [
        Column("feature"), Column("of"), Column("Γ", ".2f", "typical factor by which the odds move"),
        Column("Γ, 90 %", ".2f", "one pair in ten moves by more"),
        Column("Γ* in features", ".1f", "how many hidden traits of this strength reach the tipping point"),
    ]  # fmt: skip
    keys = ("gamma", "gamma_90", "times_hidden")
    cells: list[list[Any]] = [
        [str(row.get("feature")), f"{row.get('side', '')}s", *(row.get(key) for key in keys)] for row in rows
    ]
    keep = [k for k, column in enumerate(columns) if k < 3 or any(finite(row[k]) is not None for row in cells)]
    table = [[row[k] for k in keep] for row in cells]
    return [Paragraph(text), Table([columns[k] for k in keep], table, "Features as a yardstick for Γ.")]


def _scenarios(audit: Mapping[str, Any]) -> list[Block]:
    """Hidden traits that are easy to imagine, as Γ."""
    rows: list[list[Any]] = [
        [str(row.get("scenario")), row.get("gamma"), {True: "yes", False: "no"}.get(row.get("survived"), MISSING)]
        for row in audit.get("scenarios") or []
    ]
    columns = [
        Column("scenario"), Column("Γ", ".2f", "for a pair of average exposure"),
        Column("below Γ*", "", "whether it is too weak to overturn the lead"),
    ]  # fmt: skip
    return [Table(columns, rows, "Scenarios as a yardstick for Γ.", sortable=False)] if rows else []


def gamma_map(audit: Mapping[str, Any]) -> Section | None:
    """Where may hidden confounding be strong? Γ by group of users and items."""
    table = audit.get("gamma_map") or {}
    if not table.get("values"):
        return None
    users, by_user = _axis(table["user_bins"], "users")
    items, by_item = _axis(table["item_bins"], "items")
    chart = HeatMap(
        table["values"], users, items, "Γ by group of users and group of items (geometric mean over pairs).",
        by_user, by_item, "Γ from", log=True,
    )  # fmt: skip
    return Section("map", "Where may hidden confounding be strong?", [chart], short="Γ by group")


def _axis(labels: Sequence[object], side: str) -> tuple[list[str], str]:
    """Labels `age=20 to 30, gender=f` as `20 to 30 · f`, with the names of the columns in the title of the axis."""
    texts = [str(label) for label in labels]
    columns = re.findall(r"(?:^|, )([^=,]+)=", texts[0]) if texts else []
    if not all(len(bin_values(text, columns)) == len(columns) and columns for text in texts):
        columns = []
    short, shown = short_labels(texts, columns, LABEL)
    return short, f"{side}, by {', '.join(shown)}" if shown else side


def segments(audit: Mapping[str, Any], names: ModelNames) -> Section | None:
    """Which users and items are most affected? Groups by their columns, and single ones with the largest Γ."""
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
        Section("segments", "Which users and items are most affected?", found, short="Users and items")
        if found
        else None
    )


def _group_table(
    name: str, labels: Sequence[str], rows: Sequence[Mapping[str, Any]], caption: str, what: str, explained: set[str]
) -> Table:  # fmt: skip
    """Known columns in their order, then whatever else the rows hold; each column is explained once on the page.

    what: the word for the quantity whose range the group has, lead or error.
    """
    present = dict.fromkeys(key for row in rows for key, value in row.items() if scalar(value))
    others = [key for key in present if key not in (*SEGMENT, "column", "segment", "id")]
    keys = [*(key for key in SEGMENT if key in present), *others]
    columns = [SEGMENT.get(key, Column(key.replace("_", " "))) for key in keys]
    columns = [replace(c, name=c.name.replace("$", what), help="" if c.name in explained else c.help) for c in columns]
    explained |= {SEGMENT[key].name for key in keys if key in SEGMENT}
    cells = [[label, *(row.get(key) for key in keys)] for label, row in zip(labels, rows, strict=True)]
    return Table([Column(name), *columns], cells, caption)


def diagnostics(audit: Mapping[str, Any]) -> Section | None:
    """Is the log good enough for this answer? Sizes, weights, calibration; new figures are shown as they are."""
    values = dict(audit.get("diagnostics") or {})
    items: list[tuple[str, Value]] = [
        (words, show(values.pop(key), spec)) for key, (words, spec) in HEADLINES.items() if scalar(values.get(key, {}))
    ]
    items += [(key.replace("_", " "), values.pop(key)) for key in list(values) if scalar(values[key])]
    found: list[Block] = [Facts(items)] if items else []
    found += _calibration(values.get("calibration") or [])
    found += _spread(values)
    found += _deciles(values.get("ess_by_item_decile") or [])
    return (
        Section("diagnostics", "Is the log good enough for this answer?", found, short="Diagnostics") if found else None
    )


def _calibration(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Observed rates as bars, the predicted ones as ticks on them."""
    ends = [v for row in rows for v in map(finite, (row.get("predicted"), row.get("observed"))) if v is not None]
    if not rows or not ends or max(ends) <= 0.0:
        return []
    top = max(ends)
    cells: list[list[Any]] = []
    for row in rows:
        predicted, observed = finite(row.get("predicted")), finite(row.get("observed"))
        bar = None if observed is None else observed / top
        tick = None if predicted is None else predicted / top
        cells.append(
            [row.get("decile"), row.get("pairs"), row.get("seen"), predicted, Cell(observed, bar=bar, tick=tick)]
        )
    columns = [
        Column("tenth"), Column("pairs", ",d"), Column("seen", ",d"), Column("predicted", ".1%"),
        Column("observed", ".1%", "the bar; the tick on it is what was predicted"),
    ]  # fmt: skip
    return [Table(columns, cells, "Are propensities right? Pairs by tenths of their propensity: how many were seen.")]


def _spread(values: Mapping[str, Any]) -> list[Block]:
    """Quantiles of weights and propensities in one table, and the few single figures beside them."""
    names = {
        "propensity": ("propensities of logged pairs", ".3f"),
        "propensity_all_pairs": ("propensities of all pairs", ".3f"),
        "weights": ("weights of audited pairs", ",.1f"),
    }
    parts = {key: values.get(key) or {} for key in names}
    rows: list[list[Any]] = [
        [words, *(Cell(parts[key].get(name), show(parts[key].get(name), spec)) for name in QUANTILES)]
        for key, (words, spec) in names.items() if any(name in parts[key] for name in QUANTILES)
    ]  # fmt: skip
    propensity, weights = parts["propensity"], parts["weights"]
    facts: list[tuple[str, Value]] = [
        ("propensity model", propensity.get("name")),
        ("smallest propensity allowed", show(propensity.get("smallest_allowed"), ".3f")),
        ("weight on the heaviest 1 %", show(weights.get("top1_weight_share"), ".3f")),
    ]
    table = Table(["", *QUANTILES.values()], rows, "How propensities and weights spread.", sortable=False)
    return [table, Facts(facts)] if rows else []


def _deciles(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not rows:
        return []
    columns = [
        Column("tenth of items"), Column("items", ",d"), Column("share of the log", ".1%"), Column("rows", ",d"),
        Column("effective size", ",.0f", "as many rows of equal weight say as much; the bar: as a share of the rows"),
        Column("mean weight", ".1f"),
    ]  # fmt: skip
    cells: list[list[Any]] = []
    for row in rows:
        ess, n = finite(row.get("ess")), finite(row.get("rows"))
        bar = ess / n if ess is not None and n else None
        start = [row.get(key) for key in ("decile", "items", "share_of_log", "rows")]
        cells.append([*start, Cell(ess, bar=bar), row.get("mean_weight")])
    return [Table(columns, cells, "Where is the log thin? Items by popularity, the most seen tenth first.")]


def methods(audit: Mapping[str, Any], names: ModelNames) -> Section:
    """How all was set: models side by side, data, rows, the closed form, and where to read on."""
    found: list[Block] = _models(audit, names)
    for title, key in (("Data", "data"), ("Rows and intervals", "rows")):
        values = audit.get(key) or {}
        items = [(WORDS.get(k, k.replace("_", " ")), _fact(k, v)) for k, v in values.items() if scalar(v)]
        found += [Paragraph(f"**{title}**"), Facts(items)] if items else []
    form = (audit.get("tipping") or {}).get("closed_form")
    if form:
        words = {"S_plus": "S₊", "S_minus": "S₋"}
        found.append(Paragraph("**Tipping point in closed form**: Γ* = (T + √(T² + 4 S₋S₊)) / (2 S₋), with"))
        found.append(Facts([(words.get(key, key), show(value, ",.4g")) for key, value in form.items()]))
    found.append(Table(["page", "what it holds"], DOCS, "To read on, in the documentation.", sortable=False))
    return Section("methods", "Methods and settings", found, short="Methods")


def _fact(key: str, value: Value) -> Value:
    if key == "sha256" and isinstance(value, str):
        return value[:16]
    return show(value, ".1%" if key == "positive_rate" else ".0%") if key in ("positive_rate", "level") else value


def _models(audit: Mapping[str, Any], names: ModelNames) -> list[Block]:
    """The models side by side; settings that differ are stressed."""
    sides = [audit.get("model") or {}, *([audit["against"]] if audit.get("against") else [])]
    heads = ["", *[name for name in (names.model, names.other) if name is not None]]
    flat = [{k: v for k, v in {**side, **(side.get("training") or {})}.items() if scalar(v)} for side in sides]
    found: list[Block] = [_beside(heads, flat, "The models, and how they were trained.", stress=False)]
    settings = [dict(side.get("settings") or {}) for side in sides]
    if any(settings):
        text = "Settings; those that differ are stressed." if len(sides) > 1 else "Settings."
        found.append(Details("All settings", [_beside(heads, settings, text)]))
    return found if any(flat) or any(settings) else []


def _beside(heads: Sequence[str], sides: Sequence[Mapping[str, Any]], caption: str, *, stress: bool = True) -> Table:
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [[key.replace("_", " "), *(_setting(side.get(key)) for side in sides)] for key in keys]
    differ = [k for k, row in enumerate(rows) if stress and len(set(row[1:])) > 1]
    return Table(heads, rows, caption, sortable=False, emphasised=differ)


def _setting(value: object) -> str:
    return MISSING if value is None else show(value) if scalar(value) else str(value)


def scalar(value: object) -> bool:
    """Whether a value fits in one cell."""
    return value is None or isinstance(value, str | bool | Real)
