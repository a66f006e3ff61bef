"""What `puidrec.audit(...)` returns: typed leads by error and by ranking, and what they rest on.

JSON (`to_dict`), text (`summary`) and page (`to_html`) are made from it, each by one builder.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json, write_text
from puidrec.auditing.envelope import KINDS, Tipping
from puidrec.auditing.estimates import Limits
from puidrec.auditing.verdict import Lead, gamma_text, number, sentence, why

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CARD = "MODEL_CARD.md"
FILES = ("audit.json", "summary.txt", "report.html", CARD)
METRICS = ("error", "ranking", "precision", "ndcg")
"""Squared error; DCG@K and precision@K by slots; NDCG@K on uniform rows."""
COLUMNS = ("gamma", "low", "high", "band_low", "band_high")
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
        return (
            f"<AuditResult on {self.parts['data']['name']}: {self.verdict}{gamma}\n "
            f"{self.sentence}>"
        )

    def _repr_html_(self) -> str:
        """The verdict, the leads and the chart, as a notebook shows them."""
        from puidrec.report.audit import audit_view

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
            "limits": notes("audit_limits", self.parts),
            "not_claimed": notes("audit_not_claimed", self.parts),
        }

    def to_frame(self) -> pl.DataFrame:
        """The envelopes as a table: quantity, kind of range, Γ, low, high, and the band around
        both."""
        schema = {"quantity": pl.String, "kind": pl.String, **dict.fromkeys(COLUMNS, pl.Float64)}
        found = []
        for quantity, curves in self.parts["envelopes"].items():
            for kind in (kind for kind in KINDS if kind in curves):
                curve, band = curves[kind], curves[kind].get("band") or {}
                ends = [part.get(end) for part in (curve, band) for end in ("low", "high")]
                columns = (quantity, kind, self.parts["gamma_grid"], *ends)
                found.append(pl.DataFrame(dict(zip(schema, columns, strict=True)), schema=schema))
        return pl.concat(found)

    def plot(self) -> Figure:
        """The chart of the metric asked for: the range of the lead (or of the error) as Γ grows."""
        from puidrec.report.audit import audit_chart

        return audit_chart(self.to_dict())

    def summary(self) -> str:
        """Text that starts with the conclusion in one clause, then what it rests on and what it
        leaves open."""
        from puidrec.report.page import markdown_page

        return markdown_page(
            "audit_text",
            audit=self,
            **self.parts,
            not_claimed=notes("audit_not_claimed", self.parts),
            limits_of=notes("audit_limits", self.parts),
            sources=SOURCES,
            gamma_text=gamma_text,
            number=number,
            why=why,
            infinity=np.inf,
        )

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


def limit_values(found: Limits | None) -> dict[str, float | None] | None:
    """An estimate as plain values; an end that is not known is null."""
    if found is None:
        return None
    return {name: float(end) if np.isfinite(end) else None for name, end in found._asdict().items()}


def lead_values(lead: Lead) -> dict[str, Any]:
    """A lead in plain values."""
    kinds = ("uniform", "adjusted", "combined")
    found = {kind: limit_values(getattr(lead.measured, kind, None)) for kind in kinds}
    if lead.measured is not None:
        found["uniform"] = {**(found["uniform"] or {}), "n": lead.measured.n}
    return {
        "metric": lead.metric,
        "verdict": lead.verdict,
        "tipping": None if lead.tipping is None else tipping_values(lead.tipping),
        "lead": limit_values(lead.lead),
        **found,
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


def notes(template: str, parts: Mapping[str, Any]) -> list[str]:
    """Sentences of a template, a paragraph each: first what holds for this audit in particular,
    then what holds for all."""
    from puidrec.report.page import markdown_page

    bounds = {"small_ess": 100.0, "poor_calibration": 0.25, "thin_support": 0.01}
    text = markdown_page(template, **parts, **bounds)
    return [" ".join(note.split()) for note in text.split("\n\n")]
