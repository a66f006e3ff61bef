"""The page of an audit, from the plain values of `audit.json`: verdict first, then why, where, what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from puidrec.report.audit_envelope import Names, envelope_of
from puidrec.report.blocks import Block, Callout, Column, Details, Page, Paragraph, Section, Table, Tone, Verdict
from puidrec.report.heat_map import HeatMap
from puidrec.report.numbers import finite, show
from puidrec.report.plain import blocks, facts, records

VERDICTS: dict[str, tuple[Tone, str]] = {
    "robust": ("good", "Robust"),
    "fragile": ("warn", "Fragile"),
    "overturned": ("bad", "Already overturned"),
    "single": ("info", "One model alone"),
}
DOCS = (
    ("docs/equations.md", "every formula, the function that computes it, and the test that checks it"),
    ("docs/gamma-truth.md", "which rules for Γ rank pairs by how confounded they are, where the truth is known"),
    ("docs/deviations.md", "what the paper leaves open, and what is done instead"),
    ("docs/truth.md", "what each method repairs in worlds where the truth is known"),
)
WORDS = {
    "n": "logged pairs", "n_users": "users", "n_items": "items", "n_logged": "logged pairs", "sha256": "SHA-256",
    "positive_rate": "positive rate", "gamma_mean": "mean Γ", "gamma_p95": "Γ, 95 %", "times_hidden": "times hidden",
    "p95": "95 % quantile", "max": "largest", "ess": "effective sample size", "share_clipped": "share clipped",
    "gini": "Gini of exposure", "p": "propensity", "lr": "learning rate", "l2": "L2 penalty",
}  # fmt: skip


def audit_page(audit: Mapping[str, Any]) -> Page:
    """The page of one audit; a part that the file lacks is left out."""
    names = names_of(audit)
    data = audit.get("data") or {}
    where = f" on {data['name']}" if data.get("name") else ""
    title = f"{names.model}{where}" if names.other is None else f"{names.model} against {names.other}{where}"
    parts = (
        _envelopes(audit, names), _strength(audit), _map(audit), _segments(audit), _diagnostics(audit), _limits(audit),
        _methods(audit),
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
        return (
            f"The error of one recommender, from {count}, and the range it may have if something hidden drove the log."
        )
    return f"Two recommenders, compared on {count}: would the better one stay ahead if something hidden drove the log?"


def _verdict(audit: Mapping[str, Any]) -> Verdict:
    tone, label = VERDICTS.get(str(audit.get("verdict")), ("info", str(audit.get("verdict") or "Audit")))
    tipping, certificate = audit.get("tipping") or {}, audit.get("certificate") or {}
    rows = [row for row in audit.get("benchmarks") or [] if finite(row.get("gamma")) is not None]
    shown: list[tuple[str, str | float | None]] = []
    if audit.get("against") and tipping and audit.get("verdict") != "overturned":
        shown.append((f"tipping point Γ*{_interval(tipping)}", _factor(tipping.get("gamma"))))
    if rows:
        top = max(rows, key=lambda row: float(row["gamma"]))
        shown.append((f"Γ of the strongest feature, {top['feature']}", show(top["gamma"], ".2f")))
    if finite(certificate.get("low")) is not None:
        shown.append(("Γ proved by uniform ratings", f"≥ {show(certificate['low'], '.2f')}"))
    gamma = audit.get("gamma") or {}
    if finite(gamma.get("median")) is not None:
        shown.append(("Γ of the median pair, by rule", show(gamma["median"], ".2f")))
    return Verdict(tone, label, str(audit.get("sentence") or ""), shown[:4])


def _interval(tipping: Mapping[str, Any]) -> str:
    if "low" not in tipping and "high" not in tipping:
        return ""
    return f" (95 %: {_factor(tipping.get('low'))} to {_factor(tipping.get('high'))})"


def _factor(value: object) -> str:
    """A Γ; no number means that no Γ is large enough."""
    return "∞" if finite(value) is None else show(value, ".2f")


def _envelopes(audit: Mapping[str, Any], names: Names) -> Section | None:
    chart = envelope_of(audit, names)
    if chart is None:
        return None
    panel = chart.panels[0]
    step = max(1, (len(panel.grid) - 1) // 10)
    rows = [
        [panel.grid[k], *(band_end for band in panel.bands for band_end in (band.low[k], band.high[k]))]
        for k in range(0, len(panel.grid), step)
    ]
    columns = [Column(panel.symbol, panel.x_format)]
    columns += [Column(f"{band.label}, {end}", panel.format) for band in panel.bands for end in ("from", "to")]
    table = Table(columns, rows, f"{panel.label}: {panel.y_label}.", sortable=False)
    title = "How strong would it have to be?" if names.other else "How far could the error be off?"
    return Section("envelope", title, [chart, Details("The figures behind the first chart", [table])], short="Envelope")


def _strength(audit: Mapping[str, Any]) -> Section | None:
    found: list[Block] = []
    certificate = audit.get("certificate")
    if certificate:
        low = finite(certificate.get("low"))
        proved = low is not None and low > 1.0
        text = (
            f"The uniform ratings refute every Γ below **{show(low, '.2f')}** (95 % confidence; best estimate "
            f"{show(certificate.get('gamma_min'), '.2f')}): something hidden did drive the log, at least so much."
            if proved else "The uniform ratings prove no hidden confounding; nor do they prove that there is none."
        )  # fmt: skip
        found.append(Callout("info", "What uniform ratings prove", text))
    rows = sorted(audit.get("benchmarks") or [], key=lambda row: -(finite(row.get("gamma")) or 0.0))
    if rows:
        found.append(Paragraph(
            "To judge a Γ, hide a feature that was recorded and see how far the odds of being seen move: that is the Γ "
            "of a hidden trait as strong as this feature. “Times hidden” says how many such traits it would take, "
            "acting together, to reach the tipping point."
        ))  # fmt: skip
        columns = [Column("feature"), Column("side"), Column("Γ", ".3f"), Column("times hidden", ".1f")]
        cells = [[row.get(key) for key in ("feature", "side", "gamma", "times_hidden")] for row in rows]
        found.append(Table(columns, [[str(c[0]), c[1], c[2], c[3]] for c in cells], "Features as a yardstick for Γ."))
    if audit.get("gamma"):
        found += [Paragraph("**What the rule for Γ says of the pairs of this log.**"), facts(audit["gamma"], WORDS)]
    return Section("strength", "What is a large Γ here?", found, short="Yardsticks for Γ") if found else None


def _map(audit: Mapping[str, Any]) -> Section | None:
    table = audit.get("gamma_map") or {}
    if not table.get("values"):
        return None
    chart = HeatMap(
        table["values"], [str(v) for v in table["user_bins"]], [str(v) for v in table["item_bins"]],
        "Γ by group of users and group of items (geometric mean over pairs).", "users", "items", "Γ from", log=True,
    )  # fmt: skip
    return Section("map", "Where may it be strong?", [chart], short="Γ by group")


def _segments(audit: Mapping[str, Any]) -> Section | None:
    segments = audit.get("segments") or {}
    captions = {"users": "Groups of users, by their columns.", "items": "Groups of items, by their columns."}
    found: list[Block] = [records(segments[k], text, WORDS) for k, text in captions.items() if segments.get(k)]
    return Section("segments", "Whom does it concern?", found, short="Users and items") if found else None


def _diagnostics(audit: Mapping[str, Any]) -> Section | None:
    values = audit.get("diagnostics") or {}
    found: list[Block] = []
    top = facts(values, WORDS)
    if top.items:
        found.append(top)
    for key, value in values.items():
        found += blocks(key, value, WORDS)
    return Section("diagnostics", "Can the log carry the answer?", found, short="Diagnostics") if found else None


def _limits(audit: Mapping[str, Any]) -> Section | None:
    points: Sequence[str] = [str(text) for text in audit.get("limits") or []]
    if not points:
        return None
    box = Callout("warn", "Read this before you rely on it", "", points)
    return Section("limits", "What this does not tell you", [box])


def _methods(audit: Mapping[str, Any]) -> Section:
    found: list[Block] = []
    for title, key in (
        ("The audited model", "model"),
        ("Compared with", "against"),
        ("Data", "data"),
        ("Rows", "rows"),
    ):
        values = audit.get(key)
        if values:
            flat = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
            found += [Paragraph(f"**{title}**"), facts(flat, WORDS)]
            inner = [facts(v, WORDS) for v in values.values() if isinstance(v, Mapping) and v]
            found += [Details(f"Settings of {title[:1].lower()}{title[1:]}", inner)] if inner else []
    form = facts((audit.get("tipping") or {}).get("closed_form") or {}, {"S_plus": "S₊", "S_minus": "S₋"})
    if form.items:
        found += [Paragraph("**Tipping point in closed form**: Γ* = (T + √(T² + 4 S₋S₊)) / (2 S₋), with"), form]
    found.append(Table(["page", "what it holds"], DOCS, "To read on, in the documentation.", sortable=False))
    return Section("methods", "Methods and settings", found)
