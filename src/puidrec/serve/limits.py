"""What one request may ask for and how long it may take, and how a request is refused.

`Limits` has the bounds, `Guard` reads a body whole within a size and a time before anything looks
at it and counts what is under way, `Refused` is the one form of every answer that is not 2xx.
Connections are the business of uvicorn and of a reverse proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puidrec.errors import InputError, one_line

LOG = logging.getLogger("puidrec.serve")
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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise InputError(f"limit {name} must be positive", found=value)


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
        problem = {
            "code": self.code.value,
            "message": one_line(self.message)[:MAX_MESSAGE],
            "field": self.field,
        }
        headers = {}
        if self.code in (Code.LENGTH_REQUIRED, Code.BODY_TOO_LARGE, Code.TOO_SLOW):
            headers["Connection"] = "close"
        if self.code is Code.OVERLOADED:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.code is Code.UNAUTHORISED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": problem}, self.code.status, headers)


def require_at_most(field: str, found: int, limit: int, what: str | None = None) -> None:
    """Refuse a number of things beyond its limit."""
    if found > limit:
        raise Refused(
            Code.TOO_MANY, f"{what or field}: found {found:,}; expected at most {limit:,}", field
        )


class Guard:
    """ASGI middleware: reads bodies within a size and a time, and counts what is under way."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, check, pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["state"]["guard"] = self
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self.holding("requests", 1))
                scope["state"]["held"] = held  # what is counted until the answer is sent
                size = self._declared(scope)
                held.enter_context(self.holding("bytes", size))
                body = await self._body(receive)
            except Refused as refused:
                await refused.response()(scope, receive, send)
                return
            if body is None:
                return
            try:
                async with asyncio.timeout(2 * self.limits.seconds):
                    await self.app(scope, _replay(body, receive), send)
            except TimeoutError:  # the server hangs up on who has only a part
                LOG.warning("an answer was not taken in time")

    @contextlib.contextmanager
    def holding(self, what: str, number: int) -> Iterator[None]:
        """Count something under way; 503 where there is too much of it, unless it is alone."""
        most = getattr(self.limits, f"all_{what}")
        if self.held[what] and self.held[what] + number > most:
            raise Refused(Code.OVERLOADED, f"too many {what} are under way; try again")
        self.held[what] += number
        try:
            yield
        finally:
            self.held[what] -= number

    def _declared(self, scope: Scope) -> int:
        """The size of the body as declared: bodies of unknown length were refused before."""
        declared = Headers(scope=scope).get("content-length", "0")
        # int() takes seconds for a number of a million digits
        if (
            not declared.isascii()
            or not declared.isdigit()
            or int(declared[:20]) > self.limits.body
        ):
            raise self._too_large()
        return int(declared)

    async def _body(self, receive: Receive) -> bytes | None:
        """The body; None where the client left before it was complete."""
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self.limits.body:  # a length that was declared is no promise
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = self.limits.read_seconds
            raise Refused(Code.TOO_SLOW, f"the body did not arrive within {seconds:g} s") from None
        return bytes(body)

    def _too_large(self) -> Refused:
        most = self.limits.body
        return Refused(
            Code.BODY_TOO_LARGE, f"the body is too large; expected at most {most:,} bytes"
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that gives the body once, then what the client does next."""
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once
