"""What one client may ask for and how long it may take: every bound in one place, and how a request is refused.

`Limits` has the bounds, `Admission` counts the requests of each client and of all, `Guard` reads a body whole within a
size and a time before anything looks at it, `Refused` is the one form of every answer that is not 2xx. Limits of the
connection itself are in `server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from ipaddress import ip_address, ip_network
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
    """For an answer, waiting included."""
    client_requests: int = 128
    """Requests of one client under way at the same time; beyond it 429."""
    requests: int = 512
    """Requests of all clients under way at the same time; beyond it 503."""
    client_results: int = 500_000
    """Users × items per user of one client's requests under way."""
    all_results: int = 2_000_000
    """Users × items per user of all requests under way."""
    all_bodies: int = 64 * 2**20
    """Bytes of all bodies that are being read or worked on."""
    client_connections: int = 256
    """Connections of one client; a new one takes the place of its longest idle one."""
    connections: int = 1024

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
    BODY_TOO_LARGE = "body_too_large", 413
    TOO_SLOW = "too_slow", 408
    TOO_MANY_REQUESTS = "too_many_requests", 429
    OVERLOADED = "overloaded", 503
    INTERNAL = "internal", 500


class Refused(Exception):  # noqa: N818 (it reads as what happens: raise Refused)
    """A request that gets no answer, with the reason for the client."""

    def __init__(self, code: Code, message: str, field: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.retry_after = code, message, field, retry_after

    def response(self) -> JSONResponse:
        """The JSON form; those who were refused for load are told when to come back."""
        problem = {"code": self.code.value, "message": one_line(self.message)[:MAX_MESSAGE], "field": self.field}
        headers = {}
        if self.code in (Code.BODY_TOO_LARGE, Code.TOO_SLOW):
            headers["Connection"] = "close"
        if self.code in (Code.TOO_MANY_REQUESTS, Code.OVERLOADED):
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.code is Code.UNAUTHORISED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": problem}, self.code.status, headers)


def require_at_most(field: str, found: int, limit: int, what: str | None = None) -> None:
    """Refuse a number of things beyond its limit."""
    if found > limit:
        raise Refused(Code.TOO_MANY, f"{what or field}: found {found:,}; expected at most {limit:,}", field)


REFUSAL = "puidrec.refusal"
"""Where in the state of a request `server` says that its connection is one too many."""


def client_of(scope: Scope) -> str:
    """Who asks: an address, of IPv6 the network that one customer gets (/64)."""
    host = str((scope.get("client") or ("unknown", 0))[0])
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ip_network((int(address) >> 64 << 64, 64)))


class Admission:
    """ASGI middleware: counts what is under way for each client and for all, and refuses what is too much.

    429: this client asks for too much at once. 503: all clients together do. Both say when to come back.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.requests: Counter[str] = Counter()
        self.results: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count, pass on, count down."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client = client_of(scope)
        scope["state"]["admission"] = self
        refused = scope["state"].get(REFUSAL) or self._too_much(client)
        if refused is not None:
            await refused.response()(scope, receive, send)
            return
        with _counted(self.requests, client, 1):
            await self.app(scope, receive, send)

    def _too_much(self, client: str) -> Refused | None:
        if self.requests.total() >= self.limits.requests:
            return Refused(Code.OVERLOADED, "too many requests are under way; try again")
        if self.requests[client] >= self.limits.client_requests:
            most = self.limits.client_requests
            return Refused(Code.TOO_MANY_REQUESTS, f"at most {most:,} requests of one client at the same time")
        return None

    @contextlib.contextmanager
    def holding(self, scope: Scope, results: int) -> Iterator[None]:
        """Count the results that an answer will hold in memory until its client has taken them."""
        client = client_of(scope)
        if self.results[client] + results > max(self.limits.client_results, results):
            raise Refused(
                Code.TOO_MANY_REQUESTS, f"at most {self.limits.client_results:,} results of one client at the same time"
            )
        if self.results.total() + results > max(self.limits.all_results, results):
            raise Refused(Code.OVERLOADED, "too many results are under way; try again")
        with _counted(self.results, client, results):
            yield


@contextlib.contextmanager
def _counted(counter: Counter[str], client: str, number: int) -> Iterator[None]:
    """Add a number for as long as the context lasts; clients that have nothing under way are forgotten."""
    counter[client] += number
    try:
        yield
    finally:
        counter[client] -= number
        if not counter[client]:
            del counter[client]


class Guard:
    """ASGI middleware: 413 for bodies that are too large, 408 for those that do not arrive in time."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits, self.held = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, check, pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sizes: list[int] = []
        try:
            body = await self._read(scope, receive, sizes)
            if isinstance(body, Refused):
                await body.response()(scope, receive, send)
            elif body is not None:
                await self._answer(self.app(scope, _replay(body, receive), send), receive)
        finally:
            self.held -= sum(sizes)

    async def _read(self, scope: Scope, receive: Receive, sizes: list[int]) -> bytes | Refused | None:
        """The body, or why it is refused; None where the client left before it was complete."""
        try:
            return await asyncio.wait_for(self._body(scope, receive, sizes), self.limits.read_seconds)
        except TimeoutError:
            return Refused(Code.TOO_SLOW, f"the body did not arrive within {self.limits.read_seconds:g} s")
        except Refused as refused:
            return refused

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

    async def _body(self, scope: Scope, receive: Receive, sizes: list[int]) -> bytes | None:
        """Parts are counted as they come: a length that was declared is no promise."""
        limit = self.limits.body
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared[:20]) > limit:
            raise self._too_large()
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            sizes.append(len(parts[-1]))
            self.held += sizes[-1]
            if sum(sizes) > limit:
                raise self._too_large()
            if self.held > max(self.limits.all_bodies, sum(sizes)):
                raise Refused(Code.OVERLOADED, "too many large bodies are under way; try again")
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
