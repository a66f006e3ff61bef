"""The page of an audit, from the plain values of `audit.json`: verdict first, then why, where, what
it leaves open. The words are in `templates/audit.html.j2`.

Its interactive chart shows how a range widens as Γ grows, in a drawing and in words. A gap is
oriented so that above 0 the audited model is the better one. Drawing and sentences are made here,
once; the page's script only shows the chosen ones and moves the cursor. So what is printed, what is
seen without a script, and what is seen with one, are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from puidrec.report.charts import BLUE, DARK, GREY, canvas, canvas_of_rows, factor_ticks, ticks
from puidrec.report.page import Column, Table, Tone, clip_text, finite, fragment, render, show

METRICS = ("error", "ranking", "precision", "ndcg")
VERDICTS: dict[str, tuple[Tone, str]] = {
    "confirmed": ("good", "Confirmed"),
    "robust": ("good", "Robust"),
    "fragile": ("warn", "Fragile"),
    "undecided": ("info", "Undecided"),
    "refuted": ("bad", "Refuted"),
    "single": ("info", "One model alone"),
}
SHOWN_GROUPS = 16
"""Pairs of groups on the page, those with the largest Γ."""


class ModelNames(NamedTuple):
    """The two models in words; `other` is None where one is audited alone."""

    model: str
    other: str | None


def audit_html(audit: Mapping[str, Any], **more: Any) -> str:
    """The page of one audit; a part that the file lacks is left out. `more` goes to the
    template."""
    names = names_of(audit)
    tone, label = _verdict(audit)
    return render(
        more.pop("template", "audit"),
        lenient=True,
        audit=audit,
        names=names,
        tone=tone,
        label=label,
        leads=judged_leads(audit),
        panels=envelopes_of(audit, names),
        draw=draw,
        groups=_groups(audit.get("gamma_map") or {}),
        **more,
    )


def demo_html(facts: Mapping[str, Any], audit: Mapping[str, Any]) -> str:
    """The demo's tables and chart in front of the audit's own page."""
    return audit_html(audit, template="demo", facts=facts, chart=slope_chart(facts["methods"]))


def slope_chart(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line per method from its error on the log to its error on all pairs, drawn as two dots."""
    order = sorted(rows, key=lambda row: -row["true_mse"])
    drawing, axes = canvas_of_rows(
        [row["method"] for row in order],
        "Error on the log and on all pairs",
        "Open: held-out rows of the log. Filled: all pairs. Further left is better.",
        "mean squared error, ratings in 0 to 1",
    )
    for height, row in enumerate(order):
        ends = (row["naive_mse"], row["true_mse"])
        axes.plot(ends, (height, height), color=GREY, linewidth=1.4, zorder=1)
        axes.plot(*ends[:1], height, "o", markersize=7, mfc="white", mec=DARK, zorder=2)
        axes.plot(*ends[1:], height, "o", markersize=7, color=BLUE, zorder=3)
    return drawing


def _verdict(found: Mapping[str, Any]) -> tuple[Tone, str]:
    """Tone and label; those of a later version as they are."""
    word = str(found.get("verdict") or "Audit")
    return VERDICTS.get(word, ("info", word))


def names_of(audit: Mapping[str, Any]) -> ModelNames:
    """What to call the two models; their method where they have no name, and told apart where they
    are called alike."""
    model, against = audit.get("model") or {}, audit.get("against")
    first = str(model.get("name") or model.get("method") or "the model")
    if not against:
        return ModelNames(first, None)
    second = str(against.get("name") or against.get("method") or "the other model")
    if first == second:
        return ModelNames(f"{first} (audited)", f"{second} (compared with)")
    return ModelNames(first, second)


def judged_leads(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The leads by each metric, the one asked for first, with what a table shows of them."""
    asked = str(audit.get("metric") or "error")
    order = dict.fromkeys((asked, *METRICS))
    found = []
    for lead in (audit[name] for name in order if isinstance(audit.get(name), Mapping)):
        tipping = lead.get("tipping") or {}
        texts = {key: span(lead.get(key)) for key in ("lead", "uniform", "adjusted", "combined")}
        stars = {
            f"star_{key}": "∞" if tipping.get(f"{key}_infinite") else show(tipping.get(key), ".2f")
            for key in ("gamma", "low", "high")
        }
        open_slots = lead.get("unsupported_slots") or None
        more = {"found": lead, "tone": _verdict(lead)[0], "open": open_slots}
        found.append({**lead, **texts, **stars, **more})
    return found


def span(found: Mapping[str, Any] | None) -> str:
    """A difference with its interval."""
    values = [show((found or {}).get(key), ".4f") for key in ("value", "low", "high")]
    return values[0] if "–" in values else "{} ({} to {})".format(*values)


def _groups(found: Mapping[str, Any]) -> Table | None:
    """Γ by group of users and group of items, the largest first; None for the file of an earlier
    version without it."""
    values = found.get("values")
    if not values:
        return None
    rows = [
        [gamma, str(user), str(item)]
        for user, own in zip(found["user_bins"], values, strict=True)
        for item, gamma in zip(found["item_bins"], own, strict=True)
    ]
    rows.sort(key=lambda row: -(finite(row[0]) or 0.0))
    words = f"the largest of {len(rows)}" if len(rows) > SHOWN_GROUPS else "all"
    caption = f"Γ by group of users and group of items (geometric mean over pairs), {words}."
    return Table([Column("Γ", ".2f"), "users", "items"], rows[:SHOWN_GROUPS], caption)


# The chart

WAYS = {
    "normalised": ("Normalised", "weights within the bounds, divided by their own sum"),
    "sharp": (
        "Sharp",
        "weights that also average to 1/p among pairs with similar predictions: the tightest range",
    ),
}
METRIC_WORDS = {"loss": "error", "dcg": "DCG", "precision": "precision"}
LEADS = {"loss": "error", "dcg": "ranking", "precision": "precision"}
"""The part of an audit that judges by a metric."""
SHOWN_BENCHMARKS = 4
"""Features drawn on the chart, strongest first; the table has all."""
NAME, MARK = 26, 18
"""Characters of a model's name, and of a feature's."""
ENDS = ("low", "high")
WIDTH, HEIGHT, LEFT, RIGHT, LANE = 640.0, 290.0, 76.0, 14.0, 22.0
"""Of the drawing, in its own units; a phone has larger letters in it. Each mark has a lane."""


class Mark(NamedTuple):
    """A value of Γ that matters, with its words; kind: tipping, benchmark or certificate."""

    at: float
    label: str
    kind: str


@dataclass(frozen=True)
class Band:
    """The range by one way of finding it, per point of the panel's grid (NaN: not known); `outer`
    with sampling error (bootstrap), where known. `says`: the sentence that holds there."""

    label: str
    note: str
    low: np.ndarray
    high: np.ndarray
    outer_low: np.ndarray
    outer_high: np.ndarray
    says: Sequence[str]
    tip: Mark | None = None


@dataclass(frozen=True)
class Panel:
    """One quantity as Γ grows. A gap has a border at 0, an error is just a number. `start`: where
    the slider stands at first."""

    label: str
    y_label: str
    grid: Sequence[float]
    bands: Sequence[Band]
    gap: bool = True
    point: float | None = None
    """The estimate if nothing is hidden, drawn as a line."""
    marks: Sequence[Mark] = ()
    start: int = 0
    format: str = ".4f"

    def data(self) -> dict[str, Any]:
        """What the script needs: what is said at each point of the grid."""
        bands = [{"label": band.label, "says": band.says} for band in self.bands]
        x = [show(v, ".2f") for v in self.grid]
        return {"label": self.label, "start": self.start, "x": x, "bands": bands}


def envelopes_of(audit: Mapping[str, Any], names: ModelNames) -> list[Panel]:
    """All envelopes of an audit, that of the metric asked for first: of differences, or of one
    model's own figures."""
    grid, envelopes = audit.get("gamma_grid") or [], audit.get("envelopes") or {}
    order = sorted(METRIC_WORDS, key=lambda key: LEADS[key] != audit.get("metric"))
    form = "model_{}" if names.other is None else "{}_gap"
    found = [(key, envelopes.get(form.format(key))) for key in order]
    return [
        _panel(key, grid, curves, names, audit) for key, curves in found if curves and len(grid) > 1
    ]


def _panel(
    key: str,
    grid: Sequence[float],
    curves: Mapping[str, Any],
    names: ModelNames,
    audit: Mapping[str, Any],
) -> Panel:
    word, gap = METRIC_WORDS[key], names.other is not None
    model, other = clip_text(names.model, NAME), clip_text(names.other or "", NAME)
    if model == other:
        model, other = "the audited model", "the other model"
    noun, y_label, label = f"the {word} of {names.model}", f"{word} of {model}", word
    if gap:
        first, second = (other, model) if key == "loss" else (model, other)
        noun, label = f"the difference in {word}", f"difference in {word}"
        y_label = f"{word} of {first} minus {second}; above 0, {model} is better"
    # three significant digits of the estimate (of the widest range where it is 0)
    point = finite(curves.get("point"))
    ends = [v for way in WAYS for end in ENDS for v in _numbers(curves.get(way, {}).get(end, ()))]
    size = abs(point or 0.0) or np.nanmax(np.abs(ends), initial=0.0) or 1.0
    form = f".{min(max(2 - math.floor(math.log10(size)), 1), 7)}f"
    lead = audit.get(LEADS[key]) or {}
    tipping = lead.get("tipping") or (audit.get("tipping") if key == "loss" else None) or {}

    def say(*at: float) -> str:
        return _sentence(noun, names, form, *at)

    bands = [_band(way, grid, curves, tipping, gap, say) for way in WAYS if way in curves]
    sides = [_side(gap, *at) for at in zip(bands[0].low, bands[0].high, strict=True)]
    held = max(k for k, side in enumerate(sides) if side == sides[0])
    start = held if held < len(grid) - 1 else len(grid) // 2
    label = label[0].upper() + label[1:]
    return Panel(label, y_label, grid, bands, gap, point, _marks(audit), start, form)


def _band(
    way: str,
    grid: Sequence[float],
    curves: Mapping[str, Any],
    tipping: Mapping[str, Any],
    gap: bool,
    say: Callable[..., str],
) -> Band:
    shared = curves.get("band") if curves.get("band_of", "normalised") == way else None
    outer = curves[way].get("band") or shared or {}
    unknown = [None] * len(grid)
    low, high, outer_low, outer_high = (
        _numbers(part.get(end) or unknown) for part in (curves[way], outer) for end in ENDS
    )
    low, high = np.where(np.isnan(low + high), np.nan, (low, high))
    says = [say(*at) for at in zip(grid, low, high, outer_low, outer_high, strict=True)]
    side, tip = _side(gap, low[0], high[0]), None
    if side in ("ahead", "behind"):
        # the audit's tipping point is that of the audited model's lead
        ahead = side == "ahead"
        at = finite(tipping.get("sharp" if way == "sharp" else "gamma")) if ahead else None
        at = crossing(grid, low if ahead else high) if at is None else at
        tip = None if at is None else Mark(at, f"tipping point Γ* = {show(at, '.2f')}", "tipping")
    return Band(*WAYS[way], low, high, outer_low, outer_high, says, tip)


def _numbers(values: Sequence[object]) -> np.ndarray:
    """What is known of a curve: NaN where it is not, or cannot be drawn."""
    return np.array([finite(value) for value in values], float)


def _side(gap: bool, low: float, high: float) -> str:
    """Who is ahead in a range, or that either may be."""
    if np.isnan(low + high):
        return "unknown"
    return "range" if not gap else "ahead" if low > 0.0 else "behind" if high < 0.0 else "open"


def _sentence(
    noun: str, names: ModelNames, form: str, gamma: float, low: float, high: float, *outer: float
) -> str:
    """The range at a point of the grid in words; in words of its own where nothing is hidden."""
    model, other = names
    side = _side(other is not None, low, high)
    # slots without a logged row leave a range even at Γ = 1
    point = gamma == 1.0 and abs(high - low) <= 1e-9 * max(1.0, abs(low))
    start = f"If hidden factors changed the odds of being seen by up to Γ = {show(gamma, '.2f')}, "
    start = "If nothing is hidden (Γ = 1), " if point else start
    if side == "unknown":
        return f"{start}the range is not known."
    who = {
        "ahead": f"{model} {'is' if point else 'would still be'} ahead of {other}: ",
        "behind": f"{other} {'is' if point else 'would be'} ahead of {model}: ",
        "open": f"{model} and {other} are level: "
        if point
        else f"either {model} or {other} could be ahead: ",
        "range": "",
    }[side]
    lie = "lies" if who else "would lie"
    found = [show(value, form) for value in (low, high, *outer)]
    lies = f"{noun} is {found[0]}" if point else f"{noun} {lie} between {found[0]} and {found[1]}"
    sampled = (
        "" if np.isnan(sum(outer)) else f"; with sampling error, between {found[2]} and {found[3]}"
    )
    return f"{start}{who}{lies}{sampled}."


def crossing(grid: Sequence[float], values: Sequence[float]) -> float | None:
    """Where a curve first changes sign, between two points of its grid by a straight line over
    log Γ; None where it does not."""
    for (left, before), (right, after) in pairwise(zip(grid, values, strict=True)):
        if before != 0.0 and min(before, after) <= 0.0 <= max(before, after):
            return float(left * (right / left) ** (before / (before - after)))
    return None


def _marks(audit: Mapping[str, Any]) -> list[Mark]:
    """The strongest features, and what uniform data prove."""
    rows = [row for row in audit.get("benchmarks") or [] if (finite(row.get("gamma")) or 0.0) > 1.0]
    rows = sorted(rows, key=lambda row: -float(row["gamma"]))[:SHOWN_BENCHMARKS]
    marks = [
        Mark(
            row["gamma"],
            f"as {clip_text(str(row.get('feature')), MARK)} ({row.get('side')}s)",
            "benchmark",
        )
        for row in rows
    ]
    proved = finite((audit.get("certificate") or {}).get("low"))
    if proved is not None and proved > 1.0:
        words = f"uniform ratings prove Γ ≥ {show(proved, '.2f')}"
        marks.append(Mark(proved, words, "certificate"))
    return marks


class Drawing(NamedTuple):
    """One panel by one way of finding the range, in units of the drawing; NaN: not known."""

    top: float
    foot: float
    x: list[float]
    low: list[float]
    high: list[float]
    across: list[tuple[float, str]]  # ticks
    up: list[tuple[float, str]]
    area: list[tuple[float, float]]  # the range as a polygon
    lines: list[tuple[str, list[tuple[float, float]]]]  # curves, by class of the style sheet
    marks: list[tuple[Mark, float]]  # with the place of its line
    tip: float | None


def draw(panel: Panel, band: Band) -> Drawing:
    """The drawing: Γ on a logarithmic axis, and room above for the words of each mark."""
    ends = panel.grid[0], panel.grid[-1]
    marks = [m for m in (*panel.marks, band.tip) if m is not None and ends[0] <= m.at <= ends[1]]
    top, heights = 8.0 + LANE * len(marks), _heights(panel)
    foot = top + HEIGHT

    def across(value: float) -> float:
        return round(float(np.interp(math.log(value), np.log(ends), (LEFT, WIDTH - RIGHT))), 1)

    def up(values: Sequence[float] | np.ndarray) -> list[float]:
        return [round(float(v), 1) for v in np.asarray(np.interp(values, heights, (foot, top)))]

    def curve(values: np.ndarray) -> list[tuple[float, float]]:
        return [(a, b) for a, b in zip(x, up(values), strict=True) if not math.isnan(b)]

    x, levels = [across(value) for value in panel.grid], ticks(*heights, 7)
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    level = np.full(len(x), np.nan if panel.point is None else panel.point)
    lines = [("other", end) for b in panel.bands if b is not band for end in (b.low, b.high)]
    lines += [("outer", band.outer_low), ("outer", band.outer_high), ("point", level)]
    lines += [("edge", band.low), ("edge", band.high)]
    if panel.gap:
        lines.append(("zero", np.zeros(len(x))))
    return Drawing(
        top,
        foot,
        x,
        up(band.low),
        up(band.high),
        [(across(v), show(v, "g")) for v in factor_ticks(*ends, 7)],
        [(y, show(v, f".{digits}f")) for y, v in zip(up(levels), levels, strict=True)],
        curve(band.high) + curve(band.low)[::-1],
        [(name, curve(values)) for name, values in lines],
        [(mark, across(mark.at)) for mark in sorted(marks, key=lambda mark: mark.at)],
        across(band.tip.at) if band.tip is not None and band.tip in marks else None,
    )


def _heights(panel: Panel) -> tuple[float, float]:
    """The vertical extent: everything of all bands, the estimate, and 0 where 0 is a border."""
    curves = [(b.low, b.high, b.outer_low, b.outer_high) for b in panel.bands]
    point = np.nan if panel.point is None else panel.point
    every = np.append(np.ravel(curves), [point, 0.0 if panel.gap else np.nan])
    known = every[np.isfinite(every)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    room = 0.06 * (high - low) if high - low > 1e-200 else max(abs(high), 1.0) * 0.1
    return low - room, high + room


# In a notebook

MARKS = {"good": "✓", "warn": "!", "bad": "✗", "info": "–"}


def audit_view(audit: Mapping[str, Any]) -> str:
    """The sentence, and a row per metric."""
    tone, label = _verdict(audit)
    return fragment(
        "audit_view",
        MARKS=MARKS,
        tone=tone,
        label=label,
        leads=judged_leads(audit),
        data=(audit.get("data") or {}).get("name", ""),
        sentence=audit.get("sentence", ""),
    )


def audit_chart(audit: Mapping[str, Any]) -> Figure:
    """The range of the lead by the metric asked for (or of the error) over Γ: sharp, normalised,
    and with its band."""
    panels = envelopes_of(audit, names_of(audit))
    if not panels:
        return canvas(7.2, 4.0, "Nothing to draw", "the audit has no envelope")[0]
    panel, first = panels[0], panels[0].bands[0]
    lead = "lead" if panel.gap else "error"
    caption = f"Shaded: what the {lead} may be if something hidden has strength Γ."
    figure, axes = canvas(7.2, 4.4, panel.y_label, f"{caption} Lines: with sampling error.")
    for band, shade in zip(panel.bands, (0.18, 0.40), strict=False):
        axes.fill_between(
            panel.grid, band.low, band.high, color=BLUE, alpha=shade, lw=0, label=band.label
        )
    for outer in (first.outer_low, first.outer_high):
        axes.plot(panel.grid, outer, color=BLUE, linewidth=1.0, linestyle="--")
    if panel.gap:
        axes.axhline(0.0, color=GREY, linewidth=1.0)
    if first.tip is not None:
        axes.axvline(first.tip.at, color=GREY, linewidth=1.0, linestyle=":")
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        words = first.tip.label.removeprefix("tipping point ")
        axes.annotate(words, (first.tip.at, 1.0), xytext=(4, -4), va="top", fontsize=9, **place)
    axes.set_xscale("log")
    ticks = factor_ticks(panel.grid[0], panel.grid[-1], 9)
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlim(panel.grid[0], panel.grid[-1])
    axes.set_xlabel("Γ, on a logarithmic scale")
    axes.legend(frameon=False, fontsize=9)
    return figure
