"""What `puidrec.audit(...)` returns: verdicts by error and by ranking, text, tables, a chart, a page, files."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json, write_text
from puidrec.auditing.words import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CARD = "MODEL_CARD.md"
FILES = ("audit.json", "summary.txt", "report.html", CARD)


@dataclass(frozen=True)
class AuditedLead:
    """What an audit says of a lead by one metric."""

    metric: str
    """`squared error`, `DCG@10`, `NDCG@10`."""
    verdict: str
    """`robust`, `fragile`, `undecided` or `refuted`."""
    tipping_point: float
    """Γ*: 1 where the log shows no lead, infinite where no Γ ends it."""
    interval: tuple[float, float]
    """The confidence interval of Γ*."""
    lead: tuple[float, float, float]
    """The lead over all pairs if nothing is hidden, and its confidence interval; above 0, the model is ahead."""
    uniform: tuple[float, float, float] | None
    """The same on uniform test rows, which needs no Γ."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> AuditedLead:
        """From the plain values of `audit.json`."""
        ends = [
            float("inf") if values["tipping"][f"{key}_infinite"] else float(values["tipping"][key])
            for key in ("gamma", "low", "high")
        ]
        uniform = None if values["uniform"] is None else _three(values["uniform"])
        return cls(values["metric"], values["verdict"], ends[0], (ends[1], ends[2]), _three(values["lead"]), uniform)


def _three(values: dict[str, Any]) -> tuple[float, float, float]:
    low, high = (values[key] for key in ("low", "high"))
    return (
        values["value"], float("-inf") if low is None else float(low), float("inf") if high is None else float(high)
    )  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """The result of `puidrec.audit(...)`; `to_dict()` is the content of `audit.json`."""

    values: dict[str, Any]

    @property
    def error(self) -> AuditedLead | None:
        """The lead in squared error; None where one model is audited alone."""
        return self._lead("error")

    @property
    def ranking(self) -> AuditedLead | None:
        """The lead in DCG@K; None where one model is audited alone."""
        return self._lead("ranking")

    @property
    def ndcg(self) -> AuditedLead | None:
        """The lead in NDCG@K; None where one model is audited alone, or no audited row was liked."""
        return self._lead("ndcg")

    def _lead(self, name: str) -> AuditedLead | None:
        return None if self.values[name] is None else AuditedLead.of(self.values[name])

    @property
    def tipping_point(self) -> float | None:
        """Γ* of the metric asked for: from 1 (no lead) to infinite; None where one model is audited alone."""
        lead = self._lead(self.values["metric"])
        return None if lead is None else lead.tipping_point

    @property
    def ratings_needed(self) -> int | None:
        """About how many more random ratings settle who is ahead in squared error; 0: settled.

        None: no random ratings yet, or no end in sight.
        """
        found = self.values.get("sequential")
        needed: int | None = None if found is None else found["more_needed"]
        return needed

    @property
    def verdict(self) -> str:
        """`robust`, `fragile`, `undecided` or `refuted` by the metric asked for; `single` for one model alone."""
        return str(self.values["verdict"])

    def __repr__(self) -> str:
        tipping = self.tipping_point
        gamma = "" if tipping is None else f", Γ* = {tipping:.2f}"
        return f"<Audit on {self.values['data']['name']}: {self.verdict}{gamma}\n {self.values['sentence']}>"

    def _repr_html_(self) -> str:
        """The verdict, the leads and the chart, as a notebook shows them."""
        from puidrec.report.notebook import audit_view

        return audit_view(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; a copy."""
        return copy.deepcopy(self.values)

    def to_frame(self) -> pl.DataFrame:
        """The envelopes as a table: quantity, kind of range, Γ, low, high, and the band around both."""
        schema = {"quantity": pl.String, "kind": pl.String, **dict.fromkeys(COLUMNS, pl.Float64)}
        return pl.DataFrame(list(_curve_rows(self.values)), schema=schema, orient="row")

    def plot(self) -> Figure:
        """The chart of the metric asked for: the range of the lead (or of the error) as Γ grows."""
        from puidrec.report.notebook import audit_chart

        return audit_chart(self.values)

    def summary(self) -> str:
        """Text that starts with the conclusion in one sentence, then what it rests on and what it leaves open."""
        return summary(self.values)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as one self-contained page."""
        from puidrec.report.audit import audit_page
        from puidrec.report.html import write_page

        write_page(Path(path), audit_page(self.values))

    def save(self, folder: str | PathLike[str], *, html: bool = True, card: str | None = None) -> None:
        """Write `audit.json`, `summary.txt` and `report.html`; the folder appears whole or not at all.

        card: the text of a model card (`model.to_card(data, audit=…)`), written beside them as `MODEL_CARD.md`.
        """
        target = Path(folder)
        with locked(target):
            check_target(target)
            with atomic_folder(target) as temporary:
                write_json(temporary / "audit.json", self.values)
                write_text(temporary / "summary.txt", self.summary())
                if html:
                    self.to_html(temporary / "report.html")
                if card is not None:
                    write_text(temporary / CARD, card)


COLUMNS = ("gamma", "low", "high", "band_low", "band_high")


def _curve_rows(values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for quantity, curves in values["envelopes"].items():
        for kind in ("box", "normalised", "sharp"):
            curve = curves.get(kind)
            if curve is None:
                continue
            nothing = [None] * len(curve["low"])
            band = curve.get("band") or {"low": nothing, "high": nothing}
            ends = zip(values["gamma_grid"], curve["low"], curve["high"], band["low"], band["high"], strict=True)
            yield from ((quantity, kind, *row) for row in ends)


def check_target(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit, before any work is spent."""
    refuse_other_files(folder, FILES, "one that holds an audit", always=FILES[:2])
