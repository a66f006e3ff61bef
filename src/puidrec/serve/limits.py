"""What one request may ask for and how long it may take (`Limits`), and the one form of every
answer that is not 2xx (`Refused`).

How many connections there are is the business of uvicorn and of a reverse proxy.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from fastapi.responses import JSONResponse

from puidrec.errors import one_line

LOG = logging.getLogger("puidrec.serve")
PROBES = ("/livez", "/readyz")
"""Answered without a key, under any name and under any load: they tell nothing but that the process
is there."""
MAX_MESSAGE = 400
"""Characters of a message to a client."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a request; a request beyond one is refused before any work."""

    k: int = 1000
    """Items per user."""
    users: int = 1000
    results: int = 100_000
    """Users × items per user of one answer."""
    items: int = 20_000
    """Items of a filter, of items to leave out, and of new items."""
    pairs: int = 10_000
    features: int = 256
    """Features of one user or item."""
    list_entries: int = 1000
    """Entries of one feature that is a list."""
    body: int = 4 * 2**20
    """Bytes."""
    values: int = 100_000
    """Values in the JSON of a body."""
    read_seconds: float = 10.0
    """For the body of a request to arrive."""
    seconds: float = 30.0
    """For an answer, waiting included; and again for its client to take it."""
    all_requests: int = 512
    """Requests under way at the same time; beyond it, and beyond the next two, 503."""
    all_results: int = 2_000_000
    """Users × items per user of all requests under way."""
    all_bytes: int = 64 * 2**20
    """Bytes of all bodies that are being read or worked on."""


class Code(StrEnum):
    """Kinds of problems, each with its HTTP status."""

    status: int

    def __new__(cls, value: str, status: int) -> Self:
        """A member is its name on the wire; the status goes along."""
        member = str.__new__(cls, value)
        member._value_, member.status = value, status
        return member

    MALFORMED = "malformed", 400
    WRONG_HOST = "wrong_host", 400
    UNAUTHORISED = "unauthorised", 401
    INVALID = "invalid", 422
    WRONG_ID_TYPE = "wrong_id_type", 422
    TOO_MANY = "too_many", 422
    UNKNOWN_USER = "unknown_user", 404
    UNKNOWN_ITEM = "unknown_item", 404
    NOT_FOUND = "not_found", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    LENGTH_REQUIRED = "length_required", 411
    BODY_TOO_LARGE = "body_too_large", 413
    TOO_SLOW = "too_slow", 408
    OVERLOADED = "overloaded", 503
    INTERNAL = "internal", 500


class Refused(Exception):  # noqa: N818 (it reads as what happens: raise Refused)
    """A request that gets no answer, with the reason for the client."""

    def __init__(
        self, code: Code, message: str, field: str | None = None, retry_after: float = 1.0
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.retry_after = code, message, field, retry_after

    def response(self) -> JSONResponse:
        """The JSON form; those who were refused for load are told when to come back."""
        message = one_line(self.message)[:MAX_MESSAGE]
        problem = {"code": self.code, "message": message, "field": self.field}
        headers = {
            408: {"Connection": "close"},
            411: {"Connection": "close"},
            413: {"Connection": "close"},
            503: {"Retry-After": str(max(1, math.ceil(self.retry_after)))},
            401: {"WWW-Authenticate": "Bearer"},
        }.get(self.code.status)
        return JSONResponse({"error": problem}, self.code.status, headers)


def require_at_most(field: str, found: int, limit: int, what: str | None = None) -> None:
    """Refuse a number of things beyond its limit."""
    if found > limit:
        raise Refused(
            Code.TOO_MANY, f"{what or field}: found {found:,}; expected at most {limit:,}", field
        )
