"""What one client may ask for and how long it may take: every bound in one place, and how a request is refused.

`Limits` counts what is in a request, `Guard` reads its body whole within a size and a time before anything looks at it,
`Refused` is the one form of every answer that is not 2xx. Time limits of the connection itself are in `server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puidrec.errors import InputError, one_line

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
    """Items of a filter, and of new items."""
    pairs: int = 10_000
    body: int = 4 * 2**20
    """Bytes."""
    read_seconds: float = 10.0
    """For the body of a request to arrive."""
    seconds: float = 30.0
    """For an answer, waiting included."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise InputError(f"limit {name} must be positive", found=value)


CURRENT: ContextVar[Limits] = ContextVar("limits")
"""The limits of the server that is answering: lists are counted before anything looks at what is in them."""


class Code(StrEnum):
    """Kinds of problems, each with its HTTP status."""

    status: int

    def __new__(cls, value: str, status: int) -> Self:
        """A member is its name on the wire; the status goes along."""
        member = str.__new__(cls, value)
        member._value_, member.status = value, status
        return member

    MALFORMED = "malformed", 400
    INVALID = "invalid", 422
    WRONG_ID_TYPE = "wrong_id_type", 422
    TOO_MANY = "too_many", 422
    UNKNOWN_USER = "unknown_user", 404
    UNKNOWN_ITEM = "unknown_item", 404
    NOT_FOUND = "not_found", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    BODY_TOO_LARGE = "body_too_large", 413
    TOO_SLOW = "too_slow", 408
    OVERLOADED = "overloaded", 503
    INTERNAL = "internal", 500


class Refused(Exception):  # noqa: N818 (it reads as what happens: raise Refused)
    """A request that gets no answer, with the reason for the client."""

    def __init__(self, code: Code, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field

    def response(self) -> JSONResponse:
        """The JSON form."""
        problem = {"code": self.code.value, "message": one_line(self.message)[:MAX_MESSAGE], "field": self.field}
        headers = {"Connection": "close"} if self.code in (Code.BODY_TOO_LARGE, Code.TOO_SLOW) else None
        return JSONResponse({"error": problem}, self.code.status, headers)


def require_at_most(field: str, found: int, limit: int, what: str | None = None) -> None:
    """Refuse a number of things beyond its limit."""
    if found > limit:
        raise Refused(Code.TOO_MANY, f"{what or field}: found {found:,}; expected at most {limit:,}", field)


class Guard:
    """ASGI middleware: 413 for bodies that are too large, 408 for those that do not arrive in time."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, check, pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._body(scope, receive), self.limits.read_seconds)
        except TimeoutError:
            slow = Refused(Code.TOO_SLOW, f"the body did not arrive within {self.limits.read_seconds:g} s")
            await slow.response()(scope, receive, send)
            return
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        if body is not None:
            CURRENT.set(self.limits)
            await self._answer(self.app(scope, _replay(body, receive), send), receive)

    async def _answer(self, app: Awaitable[None], receive: Receive) -> None:
        """Answer for as long as the client is there; the work for one that left is cancelled."""
        answer, left = asyncio.ensure_future(app), asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            alone = not answer.done()
            if alone:
                answer.cancel()
        await asyncio.wait({answer})
        if not alone:
            answer.result()  # a failure is the server's to tell

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client left before it was complete."""
        limit = self.limits.body
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared[:20]) > limit:
            raise self._too_large()
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise self._too_large()
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    def _too_large(self) -> Refused:
        return Refused(Code.BODY_TOO_LARGE, f"the body is too large; expected at most {self.limits.body:,} bytes")


async def _left(receive: Receive) -> None:
    """Until the client has gone; its request was read whole, so nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass


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
