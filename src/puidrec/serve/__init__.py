"""Recommendations over HTTP: a run folder, answered for. Needs the extra `serve` (FastAPI, uvicorn)."""

from __future__ import annotations

from enum import StrEnum


class Unknown(StrEnum):
    """What users and items get that the model does not know and that bring no features."""

    PRIOR = "prior"
    REFUSE = "404"
