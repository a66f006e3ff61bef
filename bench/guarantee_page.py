"""The page of guarantees: parts of bench/guarantees.py, each a file of rows."""

from __future__ import annotations

from typing import Any

import guarantees
from pages import Ask
from parts import run_parts

LOGS = 30
"""Per claim."""
LONG = ("audits", "real", "seeds", "signs", "impostors", "segments", "fitted")
"""They begin first, so that no process waits for them at the end."""


def measure_guarantees(ask: Ask) -> dict[str, Any]:
    """All parts; a quick run has two that are fast."""
    known = [name for name in LONG if name in guarantees.PARTS]
    names = (
        ("certificate", "sequential") if ask.quick else dict.fromkeys([*known, *guarantees.PARTS])
    )
    logs = 10 if ask.quick else LOGS
    parts = {f"{name} {logs}": (guarantees.rows_of, (name, logs)) for name in names}
    found, unfinished = run_parts(parts, ask.folder, ask.workers, ask.end)
    rows = [row for name in guarantees.PARTS for row in found.get(f"{name} {logs}", ())]
    missing = [name for name in guarantees.PARTS if f"{name} {logs}" not in found]
    return {"unfinished": unfinished, "rows": rows, "missing": missing}


def guarantees_text(figures: dict[str, Any], made: str) -> str:
    """The page."""
    rows = [guarantees.Row(**row) for row in figures["rows"]]
    text: str = guarantees.page(rows, figures["missing"])
    head, _, rest = text.partition("\n\n")
    return f"{head}\n\n{made}\n\n{rest}"
