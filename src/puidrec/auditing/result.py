"""What `puidrec.audit(...)` returns: typed leads by error and by ranking, and what they rest on.

JSON (`to_dict`), text (`summary`) and page (`to_html`) are made from it, each by one builder.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json, write_text
from puidrec.auditing.estimates import Limits
from puidrec.auditing.tipping import Tipping
from puidrec.auditing.verdict import Lead, gamma_text, number, sentence, why

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CARD = "MODEL_CARD.md"
FILES = ("audit.json", "summary.txt", "report.html", CARD)
METRICS = ("error", "ranking", "precision", "ndcg")
"""Squared error; DCG@K and precision@K by slots; NDCG@K on uniform rows."""
COLUMNS = ("gamma", "low", "high", "band_low", "band_high")
SMALL_ESS = 100.0
"""An effective sample size below which intervals are called rough."""
POOR_CALIBRATION = 0.25
THIN_SUPPORT = 0.01
SOURCES = {
    "held-out": "held-out",
    "cross-fitted": "cross-fitted",
    "hold-out": "held-out",
    "given": "unseen",
    "claimed": "logged",
}
"""What to call the rows of each source."""


@dataclass(frozen=True)
class AuditResult:
    """The result of `puidrec.audit(...)`; `to_dict()` is the content of `audit.json`."""

    names: tuple[str, str]
    metric: str
    """The metric asked for: what `verdict` and `tipping_point` are about."""
    leads: Mapping[str, Lead]
    """By metric; empty where one model is audited alone."""
    parts: Mapping[str, Any] = field(repr=False)
    """What the leads rest on, in plain values."""
    alone: str = ""
    """The sentence where one model is audited alone."""

    @property
    def error(self) -> Lead | None:
        """The lead in squared error; None where one model is audited alone."""
        return self.leads.get("error")

    @property
    def ranking(self) -> Lead | None:
        """The lead in DCG@K by slots; None where one model is audited alone."""
        return self.leads.get("ranking")

    @property
    def precision(self) -> Lead | None:
        """The lead in precision@K by slots; None where one model is audited alone."""
        return self.leads.get("precision")

    @property
    def ndcg(self) -> Lead | None:
        """The lead in NDCG@K on uniform rows; None without these."""
        return self.leads.get("ndcg")

    @property
    def asked(self) -> Lead | None:
        """The lead by the metric asked for."""
        return self.leads.get(self.metric)

    @property
    def verdict(self) -> str:
        """By the metric asked for (`auditing.verdict`); `single` for one model alone."""
        return "single" if self.asked is None else self.asked.verdict

    @property
    def tipping_point(self) -> float | None:
        """Γ* of the metric asked for: from 1 (no lead) to infinite; None where one model is audited
        alone."""
        return None if self.asked is None else self.asked.tipping_point

    @property
    def ratings_needed(self) -> int | None:
        """About how many more random ratings settle who is ahead in squared error; 0: settled.

        None: no random ratings yet, or no end in sight.
        """
        found = self.parts.get("sequential")
        needed: int | None = None if found is None else found["more_needed"]
        return needed

    @property
    def sentence(self) -> str:
        """The conclusion in one clause."""
        return self.alone if self.asked is None else sentence(self.names, self.asked)

    def __repr__(self) -> str:
        tipping = self.tipping_point
        gamma = "" if tipping is None else f", Γ* = {gamma_text(tipping)}"
        return f"<AuditResult on {self.parts['data']['name']}: {self.verdict}{gamma}\n {self.sentence}>"

    def _repr_html_(self) -> str:
        """The verdict, the leads and the chart, as a notebook shows them."""
        from puidrec.report.notebook import audit_view

        return audit_view(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; a copy."""
        leads = {
            name: lead_values(self.leads[name]) if name in self.leads else None for name in METRICS
        }
        asked = leads.get(self.metric)
        return {
            "version": 3,
            "sentence": self.sentence,
            "verdict": self.verdict,
            "metric": self.metric,
            **leads,
            "tipping": asked["tipping"] if asked is not None else None,
            **copy.deepcopy(dict(self.parts)),
            "limits": limits_of(self.parts),
            "not_claimed": not_claimed(self.parts),
        }

    def to_frame(self) -> pl.DataFrame:
        """The envelopes as a table: quantity, kind of range, Γ, low, high, and the band around
        both."""
        schema = {"quantity": pl.String, "kind": pl.String, **dict.fromkeys(COLUMNS, pl.Float64)}
        return pl.DataFrame(list(self._curve_rows()), schema=schema, orient="row")

    def _curve_rows(self) -> Iterator[tuple[Any, ...]]:
        grid = self.parts["gamma_grid"]
        for quantity, curves in self.parts["envelopes"].items():
            for kind in ("box", "normalised", "sharp"):
                curve = curves.get(kind)
                if curve is None:
                    continue
                nothing = [None] * len(curve["low"])
                band = curve.get("band") or {"low": nothing, "high": nothing}
                ends = zip(
                    grid, curve["low"], curve["high"], band["low"], band["high"], strict=True
                )
                yield from ((quantity, kind, *row) for row in ends)

    def plot(self) -> Figure:
        """The chart of the metric asked for: the range of the lead (or of the error) as Γ grows."""
        from puidrec.report.notebook import audit_chart

        return audit_chart(self.to_dict())

    def summary(self) -> str:
        """Text that starts with the conclusion in one clause, then what it rests on and what it
        leaves open."""
        parts = self.parts
        lines = [self.sentence, "", _rows_line(parts)]
        lines += [_lead_line(self.names, lead) for lead in self.leads.values()]
        lines += [parts["control"]["words"], *_yardstick_lines(parts)]
        lines += ["", "Not claimed:", *(f"- {text}" for text in not_claimed(parts))]
        lines += [
            "",
            "What to know about these figures:",
            *(f"- {text}" for text in limits_of(parts)),
        ]
        return "\n".join(lines) + "\n"

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as one self-contained page."""
        from puidrec.report.audit import audit_html

        write_text(Path(path), audit_html(self.to_dict()))

    def save(
        self, folder: str | PathLike[str], *, html: bool = True, card: str | None = None
    ) -> None:
        """Write `audit.json`, `summary.txt` and `report.html`; the folder appears whole or not at
        all.

        card: the text of a model card (`model.to_card(data, audit=…)`), written beside them as
        `MODEL_CARD.md`.
        """
        target = Path(folder)
        with locked(target):
            check_target(target)
            with atomic_folder(target) as temporary:
                write_json(temporary / "audit.json", self.to_dict())
                write_text(temporary / "summary.txt", self.summary())
                if html:
                    self.to_html(temporary / "report.html")
                if card is not None:
                    write_text(temporary / CARD, card)


Audit = AuditResult
"""The name by which other parts of the package know it."""


def check_target(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit, before any work is spent."""
    refuse_other_files(folder, FILES, "one that holds an audit", always=FILES[:2])


def finite(marks: Mapping[str, float]) -> dict[str, Any]:
    """Numbers as plain values; what is infinite is null and flagged."""
    plain = {name: float(value) if np.isfinite(value) else None for name, value in marks.items()}
    return {**plain, **{f"{name}_infinite": bool(np.isinf(value)) for name, value in marks.items()}}


def limit_values(found: Limits) -> dict[str, float | None]:
    """An estimate as plain values; an end that is not known is null."""
    return {name: float(end) if np.isfinite(end) else None for name, end in found._asdict().items()}


def lead_values(lead: Lead) -> dict[str, Any]:
    """A lead in plain values."""
    measured = lead.measured
    return {
        "metric": lead.metric,
        "verdict": lead.verdict,
        "tipping": None if lead.tipping is None else tipping_values(lead.tipping),
        "lead": None if lead.lead is None else limit_values(lead.lead),
        "uniform": None
        if measured is None
        else {**limit_values(measured.uniform), "n": measured.n},
        "adjusted": None
        if measured is None or measured.adjusted is None
        else limit_values(measured.adjusted),
        "combined": None
        if measured is None or measured.combined is None
        else limit_values(measured.combined),
        "replaced": lead.replaced,
        "unsupported_slots": lead.unsupported,
    }


def tipping_values(tipping: Tipping) -> dict[str, Any]:
    """Γ* with its interval."""
    marks = {"gamma": tipping.gamma, "low": tipping.low, "high": tipping.high}
    if tipping.sharp is not None:
        marks["sharp"] = tipping.sharp
    found = {**finite(marks), "no_lead": bool(tipping.gamma <= 1.0)}
    if tipping.sums is not None:
        found["closed_form"] = dict(zip(("T", "S_plus", "S_minus"), tipping.sums, strict=True))
    return found


def _rows_line(parts: Mapping[str, Any]) -> str:
    data, rows, found = parts["data"], parts["rows"], parts["diagnostics"]
    return (
        f"Rows: {rows['n']:,} {SOURCES[rows['source']]} rows of {data['n_logged']:,} logged ones on {data['name']} "
        f"({data['n_users']:,} users, {data['n_items']:,} items, protocol {data['protocol']}): {rows['part']}; "
        f"effective size {found['ess']:,.0f}, {found['share_clipped']:.1%} of propensities clipped."
    )


def _lead_line(names: tuple[str, str], lead: Lead) -> str:
    """Verdict, estimate, Γ* of the estimate and of its confidence limit, and what uniform ratings
    measure."""
    texts = []
    if lead.tipping is not None:
        tipping = lead.tipping
        sharp = "" if tipping.sharp is None else f", {gamma_text(tipping.sharp)} of the sharp range"
        texts.append(f"lead in the log {_limits(tipping.lead)} if nothing is hidden")
        texts.append(
            f"Γ* = {gamma_text(tipping.gamma)}, of its confidence limit {gamma_text(tipping.low)}{sharp}"
        )
    if lead.measured is not None:
        texts.append(f"{_limits(lead.measured.uniform)} on {lead.measured.n:,} uniform rows")
        if lead.measured.adjusted is not None:
            texts.append(
                f"{_limits(lead.measured.adjusted)} in the log adjusted by the tilt that these measure"
            )
        if lead.measured.combined is not None:
            texts.append(f"both together {_limits(lead.measured.combined)}")
    if lead.unsupported:
        texts.append(f"{lead.unsupported} slots without a logged row, liked by 0 to 100 %")
    if lead.replaced is not None:
        texts.append(f"{lead.replaced:,} ratings replaced would end it")
    if lead.verdict == "undecided" and not lead.shown:
        texts.append(why(names, lead))
    return f"{lead.metric[0].upper()}{lead.metric[1:]}: {lead.verdict}; {'; '.join(texts)}."


def _limits(found: Limits) -> str:
    span = (
        "" if not np.isfinite(found.low) else f" (95 % {number(found.low)} to {number(found.high)})"
    )
    return f"{number(found.value)}{span}"


def _yardstick_lines(parts: Mapping[str, Any]) -> list[str]:
    """What is known of Γ, and what would overturn the lead."""
    lines, known = [], parts["reference"]
    if known is not None:
        lines.append(f"Γ* is compared with {known['words']}: Γ = {known['gamma']:.2f}.")
    elif parts["against"] is not None:
        lines.append(
            "Nothing is known of Γ here: say what you believe (believe=1.5), or rate some random items."
        )
    for row in [*parts["benchmarks"][:3], *parts["groups"]]:
        times = (
            f"; Γ* is {row['times_hidden']:.1f} × as strong"
            if row["times_hidden"] is not None
            else ""
        )
        side = "" if row["feature"].startswith("all ") else f" ({row['side']}s)"
        lines.append(f"Hiding {row['feature']}{side}: Γ = {row['gamma']:.2f}{times}.")
    for row in parts["scenarios"]:
        end = {True: "; too weak to overturn it", False: "; could overturn it", None: ""}[
            row["survived"]
        ]
        lines.append(
            f"{row['scenario'][0].upper()}{row['scenario'][1:]}: Γ = {row['gamma']:.2f}{end}."
        )
    return lines + [
        parts[name]["sentence"] for name in ("certificate", "tilt") if parts[name] is not None
    ]


def not_claimed(parts: Mapping[str, Any]) -> list[str]:
    """What no audit says."""
    found = [
        "That anything is hidden, or how strong it is: Γ* says how strong it would have to be.",
        "That a lead in squared error, or in slots of a list, is a lead in what users would do with recommendations.",
        "Anything about users and items that are not in the data, or once the new model changes what people see.",
    ]
    if parts["uniform"] is not None:
        found[0] = (
            "More of what is hidden than uniform ratings prove; the adjusted lead assumes that log odds of being seen "
            "are linear in the rating."
        )
    return found


def limits_of(parts: Mapping[str, Any]) -> list[str]:
    """What to know about the figures; first what holds for this audit in particular, then what
    holds for all."""
    return [
        *_about_rows(parts["rows"], parts["leakage"]),
        *_about_log(parts),
        "One Γ bounds hidden confounding for all pairs. A few pairs may be far more confounded than the rest.",
        "Γ is measured from the estimated propensities: errors in these count as hidden confounding.",
        "The sharp range assumes that propensities are right on average among pairs with similar predictions.",
        "Intervals and bands cover the chance of which users are in the log. They do not cover how the models were "
        "trained, or the estimation of propensities and Γ.",
    ]


def _about_rows(rows: Mapping[str, Any], leakage: Mapping[str, Any]) -> list[str]:
    """Which rows the models were judged by, and by whose word these are unseen."""
    texts = []
    if leakage["words"]:
        texts.append(f"{leakage['words'][0].upper()}{leakage['words'][1:]}.")
    if rows["source"] == "held-out":
        texts.append("The models were judged as they are: nothing was trained again.")
    if rows["source"] == "claimed":
        texts.append(
            "That the models were not trained on these rows is the caller's word (unseen=True). If it is not so, the "
            "one that fits them more closely is favoured."
        )
    if rows["source"] == "given":
        texts.append(
            "That the models were not trained on these rows is the caller's word, who named them."
        )
    if rows["source"] in ("cross-fitted", "hold-out"):
        texts.append(
            "The models were trained again with their own settings, each time without the rows they are judged by. So "
            "it is the methods that are compared, with a little less to learn from, rather than these very fits."
        )
    if rows["part"].startswith("validation"):
        texts.append(
            "The held-out rows also chose settings or the epoch, which flatters both models a little."
        )
    if rows["mapped"]:
        texts.append(
            "Scores of at least one model are not on the scale of ratings. Rankings take them as they are; for squared "
            "error, both models' scores were mapped to ratings by isotonic regressions, each fitted on other rows."
        )
    return texts


def _about_log(parts: Mapping[str, Any]) -> list[str]:
    found, rows, texts = parts["diagnostics"], parts["rows"], []
    if found["ess"] < SMALL_ESS:
        texts.append(
            f"The effective sample size is only {found['ess']:.0f} rows: intervals are rough."
        )
    if found["calibration_error"] is not None and found["calibration_error"] > POOR_CALIBRATION:
        texts.append(
            "The propensities fit the log poorly (see calibration): part of Γ may only make up for that."
        )
    if found["share_without_support"] > THIN_SUPPORT:
        texts.append(
            f"{found['share_without_support']:.1%} of all pairs are in groups of users and items without a single "
            "logged row: of these no finite Γ says anything."
        )
    if rows["uses_uniform"]:
        texts.append(
            "The propensities were fitted with uniform rows, so the audit is not of the log alone."
        )
    if rows["lists"] == "rated":
        texts.append(
            "Rankings are of each user's rated items, since scores of all pairs are not known. How the rated items "
            "would rank among all others is not measured."
        )
    if rows["lists"] == "catalogue" and rows["listed_users"] < rows["log_users"]:
        texts.append(
            f"Lists are of {rows['listed_users']:,} users drawn from {rows['log_users']:,}."
        )
    return texts
