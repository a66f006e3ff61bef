"""The page of an audit, from the plain values of `audit.json`: verdict first, then why, where, what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from puidrec.report.audit_detail import diagnostics, methods, segments
from puidrec.report.audit_envelope import Names, envelope_of
from puidrec.report.audit_strength import gamma_map, strength
from puidrec.report.blocks import Block, Callout, Column, Details, Facts, Page, Section, Table, Tone, Verdict
from puidrec.report.formatting import Value, finite, show

VERDICTS: dict[str, tuple[Tone, str]] = {
    "robust": ("good", "Robust"),
    "fragile": ("warn", "Fragile"),
    "overturned": ("bad", "Already overturned"),
    "single": ("info", "One model alone"),
}


def audit_page(audit: Mapping[str, Any]) -> Page:
    """The page of one audit; a part that the file lacks is left out."""
    names = names_of(audit)
    data = audit.get("data") or {}
    where = f" on {data['name']}" if data.get("name") else ""
    title = f"{names.model}{where}" if names.other is None else f"{names.model} against {names.other}{where}"
    parts = (
        _envelopes(audit, names), strength(audit), gamma_map(audit), segments(audit, names), diagnostics(audit),
        _limits(audit), methods(audit, names),
    )  # fmt: skip
    return Page(
        title=title, lead=_lead(audit, names), sections=[part for part in parts if part], verdict=_verdict(audit),
        kind="Audit",
    )  # fmt: skip


def names_of(audit: Mapping[str, Any]) -> Names:
    """What to call the two models; their method where they have no name, and told apart where they are called alike."""
    model, against = audit.get("model") or {}, audit.get("against")
    first = str(model.get("name") or model.get("method") or "the model")
    if not against:
        return Names(first, None)
    second = str(against.get("name") or against.get("method") or "the other model")
    return Names(first, second) if first != second else Names(f"{first} (audited)", f"{second} (compared with)")


def _lead(audit: Mapping[str, Any], names: Names) -> str:
    rows = audit.get("rows") or {}
    held = {"held-out": "held-out logged", "training": "training"}.get(str(rows.get("source")), "logged")
    count = f"{show(rows['n'])} {held} pairs" if rows.get("n") is not None else f"{held} pairs"
    if names.other is None:
        return f"The error of one recommender, from {count}, and its range if something hidden drove the log."
    return f"Two recommenders, compared on {count}: would the better one stay ahead if something hidden drove the log?"


def _verdict(audit: Mapping[str, Any]) -> Verdict:
    tone, label = VERDICTS.get(str(audit.get("verdict")), ("info", str(audit.get("verdict") or "Audit")))
    tipping, certificate = audit.get("tipping") or {}, audit.get("certificate") or {}
    rows = [row for row in audit.get("benchmarks") or [] if finite(row.get("gamma")) is not None]
    shown: list[tuple[str, Value]] = []
    if _tips(audit):
        shown.append((f"tipping point Γ*{interval(tipping, 'low', 'high')}", factor(tipping, "gamma")))
    if rows:
        top = max(rows, key=lambda row: float(row["gamma"]))
        shown.append((f"Γ of the strongest feature, {top['feature']}", show(top["gamma"], ".2f")))
    if finite(certificate.get("low")) is not None:
        shown.append(("Γ proved by uniform ratings", f"≥ {show(certificate['low'], '.2f')}"))
    gamma = audit.get("gamma") or {}
    if finite(gamma.get("median")) is not None:
        shown.append(("Γ of the median pair, by rule", show(gamma["median"], ".2f")))
    return Verdict(tone, label, str(audit.get("sentence") or ""), shown[:4])


def _tips(audit: Mapping[str, Any]) -> bool:
    """Whether there is a lead in the log, and so a strength that would end it."""
    tipping = audit.get("tipping")
    return bool(audit.get("against") and tipping and not tipping.get("overturned"))


def factor(tipping: Mapping[str, Any], key: str) -> str:
    """A tipping point in words: infinite where flagged so, a dash where unknown."""
    return "∞" if tipping.get(f"{key}_infinite") else show(tipping.get(key), ".2f")


def interval(tipping: Mapping[str, Any], low: str, high: str) -> str:
    """The 95 % interval in brackets; nothing where it was not computed."""
    ends = factor(tipping, low), factor(tipping, high)
    return "" if ends == ("–", "–") else f" (95 %: {ends[0]} to {ends[1]})"


def _envelopes(audit: Mapping[str, Any], names: Names) -> Section | None:
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
    title = "How strong would it have to be?" if names.other else "How far could the error be off?"
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
