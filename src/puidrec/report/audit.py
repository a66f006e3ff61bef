"""The page of an audit, from the plain values of `audit.json`: verdict first, then why, where, what
it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from puidrec.report.audit_details import diagnostics, gamma_map, methods, segments
from puidrec.report.audit_envelope import ModelNames, envelope_of
from puidrec.report.blocks import (
    Block,
    Callout,
    Cell,
    Column,
    Details,
    Facts,
    Page,
    Paragraph,
    Section,
    Table,
    Tone,
    VerdictBox,
)
from puidrec.report.formatting import MISSING, Value, finite, show

METRICS = ("error", "ranking", "precision", "ndcg")
SOURCES = {
    "held-out": "held-out logged",
    "hold-out": "held-out logged",
    "cross-fitted": "cross-fitted logged",
    "given": "unseen logged",
    "claimed": "logged",
}
VERDICTS: dict[str, tuple[Tone, str]] = {
    "confirmed": ("good", "Confirmed"),
    "robust": ("good", "Robust"),
    "fragile": ("warn", "Fragile"),
    "undecided": ("info", "Undecided"),
    "refuted": ("bad", "Refuted"),
    "single": ("info", "One model alone"),
}


def audit_page(audit: Mapping[str, Any]) -> Page:
    """The page of one audit; a part that the file lacks is left out."""
    names = names_of(audit)
    data = audit.get("data") or {}
    where = f" on {data['name']}" if data.get("name") else ""
    title = (
        f"{names.model}{where}"
        if names.other is None
        else f"{names.model} against {names.other}{where}"
    )
    parts = (
        leads(audit),
        _envelopes(audit, names),
        yardsticks(audit),
        gamma_map(audit),
        segments(audit, names),
        diagnostics(audit),
        _texts(audit, "not_claimed"),
        _texts(audit, "limits"),
        methods(audit, names),
    )
    return Page(
        title=title,
        lead=_lead(audit, names),
        sections=[part for part in parts if part],
        verdict=_verdict(audit),
        kind="Audit",
    )


def names_of(audit: Mapping[str, Any]) -> ModelNames:
    """What to call the two models; their method where they have no name, and told apart where they
    are called alike."""
    model, against = audit.get("model") or {}, audit.get("against")
    first = str(model.get("name") or model.get("method") or "the model")
    if not against:
        return ModelNames(first, None)
    second = str(against.get("name") or against.get("method") or "the other model")
    return (
        ModelNames(first, second)
        if first != second
        else ModelNames(f"{first} (audited)", f"{second} (compared with)")
    )


def _lead(audit: Mapping[str, Any], names: ModelNames) -> str:
    rows = audit.get("rows") or {}
    held = SOURCES.get(str(rows.get("source")), "logged")
    count = f"{show(rows['n'])} {held} pairs" if rows.get("n") is not None else f"{held} pairs"
    if names.other is None:
        return f"The error of one recommender, from {count}, and its range if something hidden drove the log."
    return f"Two recommenders, compared on {count}: would the better one stay ahead if something hidden drove the log?"


def _verdict(audit: Mapping[str, Any]) -> VerdictBox:
    tone, label = VERDICTS.get(
        str(audit.get("verdict")), ("info", str(audit.get("verdict") or "Audit"))
    )
    certificate, reference = audit.get("certificate") or {}, audit.get("reference") or {}
    shown: list[tuple[str, Value]] = []
    for lead in judged_leads(audit)[:2]:
        tipping = lead.get("tipping") or {}
        shown.append(
            (
                f"Γ* by {lead.get('metric')}{interval(tipping, 'low', 'high')}",
                factor(tipping, "gamma"),
            )
        )
    if finite(reference.get("gamma")) is not None:
        shown.append((f"Γ that decides: {reference.get('words')}", show(reference["gamma"], ".2f")))
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
        Column("metric"),
        Column("verdict"),
        Column("lead in the log", "", "if nothing is hidden, with its 95 % interval"),
        Column("Γ*", ".2f", "the least Γ at which the lead could vanish; 1: none"),
        Column("Γ*, limit", "", "the same for the confidence limit of the lead"),
        Column("measured", "", "the lead on uniform rows alone: needs no Γ"),
        Column(
            "log, adjusted",
            "",
            "the lead in the log, its weights following the tilt that uniform rows measure",
        ),
        Column("together", "", "both by their precision, where they agree"),
        Column(
            "open slots", ",d", "slots of lists that no logged row has been in: liked by 0 to 100 %"
        ),
        Column(
            "ratings replaced",
            ",d",
            "the fewest whose replacement by the least favourable would end the lead",
        ),
    ]
    rows: list[list[Any]] = []
    for lead in judged_leads(audit):
        tipping = lead.get("tipping") or {}
        tone = VERDICTS.get(str(lead.get("verdict")), ("info", ""))[0]
        rows.append(
            [
                str(lead.get("metric")),
                Cell(str(lead.get("verdict")), tone=tone),
                span(lead.get("lead")),
                Cell(finite(tipping.get("gamma")), factor(tipping, "gamma")),
                factor(tipping, "low"),
                *(span(lead.get(key)) for key in ("uniform", "adjusted", "combined")),
                lead.get("unsupported_slots") or None,
                lead.get("replaced"),
            ]
        )
    if not rows:
        return None
    keep = [
        k
        for k in range(len(columns))
        if k < 5 or any(row[k] not in (None, MISSING) for row in rows)
    ]
    table = Table(
        [columns[k] for k in keep], [[row[k] for k in keep] for row in rows], "", sortable=False
    )
    table = replace(table, caption="By error and by ranking. Above 0, the audited model is ahead.")
    control = (audit.get("control") or {}).get("words")
    blocks: list[Block] = [table, *([Paragraph(str(control))] if control else [])]
    return Section("leads", "By error and by ranking", blocks, short="Verdicts")


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
    columns += [
        Column(f"{band.label}, {end}", panel.format)
        for band in panel.bands
        for end in ("from", "to")
    ]
    table = Table(columns, rows, f"{panel.label}: {panel.y_label}.", sortable=False)
    title = (
        "How strong would hidden confounding have to be?"
        if names.other
        else "How far could the error be off?"
    )
    tips: list[Block] = [_tipping(audit["tipping"])] if _tips(audit) else []
    blocks: list[Block] = [chart, *tips, Details("The figures behind the first chart", [table])]
    return Section("envelope", title, blocks, short="Envelope")


def _tipping(tipping: Mapping[str, Any]) -> Facts:
    """Where the lead ends, by each way of finding the range."""
    items: list[tuple[str, Value]] = [
        (f"Γ*{interval(tipping, 'low', 'high')}", factor(tipping, "gamma"))
    ]
    if "sharp" in tipping:
        items.append(("Γ* of the sharp range", factor(tipping, "sharp")))
    return Facts(items)


TEXTS = {
    "not_claimed": ("not-claimed", "Not claimed", "What this audit does not say"),
    "limits": ("limits", "What to know about these figures", "Read this before you rely on it"),
}


def _texts(audit: Mapping[str, Any], key: str) -> Section | None:
    points, (place, title, words) = [str(text) for text in audit.get(key) or []], TEXTS[key]
    return (
        Section(place, title, [Callout("warn", words, "", points)], short=title) if points else None
    )


def yardsticks(audit: Mapping[str, Any]) -> Section | None:
    """What is a large Γ here? Each yardstick that the data offer."""
    found: list[Block] = [
        *_uniform(audit),
        *_tilt(audit),
        *_certificate(audit),
        *_benchmarks(audit),
        *_scenarios(audit),
    ]
    gamma = audit.get("gamma") or {}
    words = {
        "median": "median pair",
        "p95": "one pair in twenty is above",
        "max": "largest",
        "rule": "rule",
    }
    items = [
        (words.get(key, key), value if key == "rule" else show(value, ".2f"))
        for key, value in gamma.items()
    ]
    if items:
        found += [Paragraph("**Γ of the pairs of this log, as the rule sets it**"), Facts(items)]
    return (
        Section("strength", "What is a large Γ here?", found, short="Yardsticks for Γ")
        if found
        else None
    )


def _uniform(audit: Mapping[str, Any]) -> list[Block]:
    """What uniform test rows measure of the comparison asked for: there nobody chose, so no Γ is
    needed."""
    lead = next((one for one in judged_leads(audit) if one.get("uniform")), None)
    if lead is None:
        return []
    found = lead.get("combined") or lead["uniform"]
    low, high = finite(found.get("low")), finite(found.get("high"))
    ahead, behind = low is not None and low > 0.0, high is not None and high < 0.0
    tone: Tone = "good" if ahead else "bad" if behind else "info"
    word = (
        "show the audited model ahead"
        if ahead
        else "show the other model ahead"
        if behind
        else "leave open which one is ahead"
    )
    also = " and the log adjusted by them" if lead.get("combined") else ""
    text = (
        f"On {show(lead['uniform'].get('n'))} ratings of items that nobody chose{also}, the difference in "
        f"{lead.get('metric')} is **{span(found)}**: they {word}."
    )
    return [Callout(tone, "What uniform ratings measure", text)]


def _tilt(audit: Mapping[str, Any]) -> list[Block]:
    tilt = audit.get("tilt") or {}
    return (
        [Callout("info", "Which way hidden confounding points", str(tilt["sentence"]))]
        if tilt.get("sentence")
        else []
    )


def _certificate(audit: Mapping[str, Any]) -> list[Block]:
    certificate = audit.get("certificate")
    if not certificate:
        return []
    low = finite(certificate.get("low"))
    title = "What uniform ratings prove of Γ"
    if low is None or low <= 1.0:
        text = (
            "The uniform ratings prove no hidden confounding. They do not prove that there is none."
        )
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
        Column("feature"),
        Column("of"),
        Column("Γ", ".2f", "typical factor by which the odds move"),
        Column("Γ, 90 %", ".2f", "one pair in ten moves by more"),
        Column(
            "Γ* in features",
            ".1f",
            "how many hidden traits of this strength reach the tipping point",
        ),
    ]
    keys = ("gamma", "gamma_90", "times_hidden")
    cells: list[list[Any]] = [
        [str(row.get("feature")), f"{row.get('side', '')}s", *(row.get(key) for key in keys)]
        for row in rows
    ]
    keep = [
        k
        for k, column in enumerate(columns)
        if k < 3 or any(finite(row[k]) is not None for row in cells)
    ]
    table = [[row[k] for k in keep] for row in cells]
    return [
        Paragraph(text),
        Table([columns[k] for k in keep], table, "Features as a yardstick for Γ."),
    ]


def _scenarios(audit: Mapping[str, Any]) -> list[Block]:
    """Hidden traits that are easy to imagine, as Γ."""
    rows: list[list[Any]] = [
        [
            str(row.get("scenario")),
            row.get("gamma"),
            {True: "yes", False: "no"}.get(row.get("survived"), MISSING),
        ]
        for row in audit.get("scenarios") or []
    ]
    columns = [
        Column("scenario"),
        Column("Γ", ".2f", "for a pair of average exposure"),
        Column("below Γ*", "", "whether it is too weak to overturn the lead"),
    ]
    return [Table(columns, rows, "Scenarios as a yardstick for Γ.", sortable=False)] if rows else []
