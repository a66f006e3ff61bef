"""What an audit found, in plain values: ask it, print it, save it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from puidrec.atomic import atomic_folder, refuse_other_files, write_json, write_text

FILES = ("audit.json", "summary.txt", "report.html")


@dataclass(frozen=True)
class Audit:
    """The result of `puidrec.audit(...)`; `to_dict()` is the content of `audit.json`."""

    values: dict[str, Any]

    @property
    def tipping_point(self) -> float | None:
        """Γ*: infinite where nothing could overturn the comparison, None where one model is audited alone."""
        tipping = self.values["tipping"]
        if tipping is None:
            return None
        return float("inf") if tipping["gamma_infinite"] else float(tipping["gamma"])

    @property
    def verdict(self) -> str:
        """`robust`, `fragile`, `overturned`, or `single` for one model alone."""
        return str(self.values["verdict"])

    def __repr__(self) -> str:
        return f"<Audit: {self.values['sentence']}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; a copy."""
        return copy.deepcopy(self.values)

    def summary(self) -> str:
        """Text that starts with the conclusion in one sentence, then what it rests on and what it leaves open."""
        values = self.values
        lines = [values["sentence"], "", *_rows(values), *_envelopes(values), *_yardsticks(values)]
        lines += ["", "What this does not tell you:", *(f"- {text}" for text in values["limits"])]
        return "\n".join(lines) + "\n"

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as one self-contained page."""
        from puidrec.report.audit import audit_page
        from puidrec.report.html import write_page

        write_page(Path(path), audit_page(self.values))

    def save(self, folder: str | PathLike[str], *, html: bool = True) -> None:
        """Write `audit.json`, `summary.txt` and `report.html`; the folder appears whole or not at all."""
        target = Path(folder)
        check_target(target)
        with atomic_folder(target) as temporary:
            write_json(temporary / "audit.json", self.values)
            write_text(temporary / "summary.txt", self.summary())
            if html:
                self.to_html(temporary / "report.html")


def check_target(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit, before any work is spent."""
    refuse_other_files(folder, FILES, "one that holds an audit")


def _rows(values: dict[str, Any]) -> list[str]:
    data, rows, found = values["data"], values["rows"], values["diagnostics"]
    return [
        f"Rows: {rows['n']:,} {rows['source']} rows of {data['n_logged']:,} logged ones on {data['name']} "
        f"({data['n_users']:,} users, {data['n_items']:,} items, protocol {data['protocol']}); "
        f"effective size {found['ess']:,.0f}, {found['share_clipped']:.1%} of propensities clipped."
    ]


def _envelopes(values: dict[str, Any]) -> list[str]:
    grid = values["gamma_grid"]
    shown = [k for k in (0, len(grid) // 4, len(grid) // 2, len(grid) - 1) if k < len(grid)]
    words = {
        "loss_gap": "lead in squared error", "dcg_gap": "lead in DCG", "model_loss": "squared error of the model",
        "against_loss": "squared error of the other", "model_dcg": "DCG of the model",
    }  # fmt: skip
    lines = ["Range of the mean over all pairs (sharp) by Γ:"]
    for name, curves in values["envelopes"].items():
        low, high = curves["sharp"]["low"], curves["sharp"]["high"]
        spans = ", ".join(f"{grid[k]:.2f}: {low[k]:.4f} to {high[k]:.4f}" for k in shown)
        lines.append(f"  {words.get(name, name)}: {spans}")
    return lines


def _yardsticks(values: dict[str, Any]) -> list[str]:
    lines = []
    tipping, certificate, uniform = values["tipping"], values["certificate"], values["uniform"]
    if tipping is not None:
        ends = {key: "∞" if tipping[f"{key}_infinite"] else f"{tipping[key]:.2f}" for key in ("gamma", "sharp")}
        lines.append(f"Tipping point: Γ* = {ends['gamma']} with any weights, {ends['sharp']} with balanced ones.")
    for row in values["benchmarks"][:3]:
        times = f", hidden {row['times_hidden']:.1f} times over to tip" if row["times_hidden"] is not None else ""
        lines.append(f"Hiding {row['feature']} ({row['side']}s): Γ = {row['gamma']:.2f}{times}.")
    if certificate is not None:
        lines.append(
            f"{certificate['n_uniform']:,} uniform ratings: Γ of at least {certificate['low']:.2f} (95 % confidence; "
            f"best estimate {certificate['gamma_min']:.2f}, by {certificate['kind']})."
        )
    if uniform is not None and "loss_gap" in uniform:
        gap = uniform["loss_gap"]
        span = f" (95 % {gap['low']:.4f} to {gap['high']:.4f})" if gap["low"] is not None else ""
        lines.append(f"On {uniform['n']:,} uniform test rows the lead in squared error is {gap['value']:.4f}{span}.")
    return lines
