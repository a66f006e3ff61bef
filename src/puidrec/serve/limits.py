"""What one request may ask for and how long it may take (`Limits`), who is let in with how much
(`ApiKeys`, `Guard`), and the one form of every answer that is not 2xx (`Refused`).

How many connections there are is the business of uvicorn and of a reverse proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Self

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from puidrec.errors import InputError, one_line
from puidrec.serve import Seen, Unknown

LOG = logging.getLogger("puidrec.serve")
PROBES = ("/livez", "/readyz")
"""Answered without a key, under any name and under any load: a load balancer has no key and calls
us by our address, and they tell nothing but that the process is there."""
NO_CHUNKS = "chunked bodies are not read; send the whole body with a Content-Length"
MAX_MESSAGE = 400
"""Characters of a message to a client."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a request; a request beyond one is refused before any work."""

    users: ClassVar[int] = 1000
    items: ClassVar[int] = 20_000
    """Items of a filter, of items to leave out, of new items, and of a history."""
    pairs: ClassVar[int] = 10_000
    features: ClassVar[int] = 256
    """Features of one user or item."""
    list_entries: ClassVar[int] = 1000
    """Entries of one feature that is a list."""
    k: int = 1000
    """Items per user."""
    results: int = 100_000
    """Users × items per user of one answer."""
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

    def __init__(self, code: Code, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field

    def response(self) -> JSONResponse:
        """The JSON form; those who were refused for load are told when to come back."""
        message = one_line(self.message)[:MAX_MESSAGE]
        problem = {"code": self.code, "message": message, "field": self.field}
        headers = {
            408: {"Connection": "close"},
            411: {"Connection": "close"},
            413: {"Connection": "close"},
            503: {"Retry-After": "1"},
            401: {"WWW-Authenticate": "Bearer"},
        }.get(self.code.status)
        return JSONResponse({"error": problem}, self.code.status, headers)


def require_at_most(field: str, found: int, limit: int, what: str | None = None) -> None:
    """Refuse a number of things beyond its limit."""
    if found > limit:
        message = f"{what or field}: found {found:,}; expected at most {limit:,}"
        raise Refused(Code.TOO_MANY, message, field or None)


# Who is let in, and with how much

SHORTEST_KEY = 16
MAX_KEY_FILE = 2**16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class ApiKeys:
    """The keys of a file: one per line; several, so that a new one can be handed out before the old
    one is withdrawn.

    Only digests are kept, and all are compared in constant time, so that neither memory nor the
    clock tells a key.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._digests = self._read()

    def reload(self) -> None:
        """Read the file again; where it is wrong, the keys stay as they were."""
        self._digests = self._read()

    def _read(self) -> list[bytes]:
        def wrong(problem: str) -> InputError:
            characters = f"at least {SHORTEST_KEY} characters without spaces"
            hint = f"For example: openssl rand -hex 32 > {self.file}"
            expected = f"one key per line, each of {characters}"
            return InputError(problem, file=self.file, expected=expected, hint=hint)

        if self.file.exists() and not self.file.is_file():
            raise wrong("not a file")
        try:
            with self.file.open(encoding="ascii") as stream:
                content = stream.read(MAX_KEY_FILE + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise wrong("cannot read API keys in plain text (ASCII)") from error
        lines = [line.strip() for line in content.split("\n") if not line.startswith("#")]
        keys = [line for line in lines if line]
        if not keys or len(content) > MAX_KEY_FILE:
            raise wrong("no API keys")
        for number, key in enumerate(keys, 1):  # a key is never quoted
            if not re.fullmatch(rf"\S{{{SHORTEST_KEY},}}", key):
                raise wrong(f"key {number} is too short or holds spaces")
        return [hashlib.sha256(key.encode()).digest() for key in keys]

    def knows(self, key: str) -> bool:
        """Whether a key is one of them; takes the same time whichever it is and however much of it
        is right."""
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        return sum([hmac.compare_digest(given, own) for own in self._digests]) > 0


@dataclass(frozen=True)
class Policy:
    """How a server behaves, whatever model it serves."""

    unknown: Unknown = Unknown.PRIOR
    seen: Seen = Seen.CATALOGUE
    limits: Limits = Limits()
    device: str = "cpu"
    keys: ApiKeys | None = None
    hosts: Sequence[str] = ("*",)
    origins: Sequence[str] = ()
    """Of pages whose scripts may ask (CORS)."""


class Guard:
    """ASGI middleware: lets in who calls us by our name and has a key, reads bodies within a size
    and a time, and counts what is under way.

    Bodies of unknown length are refused before anything of them is read: a body in chunks of one
    byte costs a server a thousand times what it costs its client.

    A page that a user of this machine visits can make a name of its own point here (DNS rebinding)
    and read answers; the name then stands in the Host header, and is none of ours.
    """

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self.app, self.policy, self.limits = app, policy, policy.limits
        self.held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, read, pass on: the body lies in the state, and so does the way to count more."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with contextlib.ExitStack() as held:

            def hold(what: str, number: int) -> None:
                held.enter_context(self.holding(what, number))

            try:
                headers = Headers(scope=scope)
                if "transfer-encoding" in headers:
                    raise Refused(Code.LENGTH_REQUIRED, NO_CHUNKS)
                if scope["path"] not in PROBES:
                    size = self._admit(headers)
                    hold("requests", 1)
                    hold("bytes", size)
                    body = await self._body(Request(scope, receive))
                    scope["state"] |= {"hold": hold, "body": body}
            except Refused as refused:
                await refused.response()(scope, receive, send)
                return
            except ClientDisconnect:
                return
            try:
                async with asyncio.timeout(2 * self.limits.seconds):
                    await self.app(scope, receive, send)
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

    def _admit(self, headers: Headers) -> int:
        """The size of the body as declared: bodies of unknown length were refused before."""
        host = re.sub(r":\d*$", "", headers.get("host", "").lower())
        if not any(
            host == name or (name[0] == "*" and host.endswith(name[1:]))
            for name in self.policy.hosts
        ):
            raise Refused(
                Code.WRONG_HOST, "this server is not called by that name (--allowed-host)"
            )
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if self.policy.keys is not None and not self.policy.keys.knows(key):
            raise Refused(
                Code.UNAUTHORISED,
                "this server needs an API key: Authorization: Bearer KEY, or X-API-Key: KEY",
            )
        size = headers.get("content-length", "0")
        # int() takes seconds for a number of a million digits
        if not re.fullmatch(r"[0-9]{1,20}", size) or int(size) > self.limits.body:
            raise self._too_large()
        return int(size)

    async def _body(self, request: Request) -> bytes:
        body, seconds = bytearray(), self.limits.read_seconds
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.body:  # a length that was declared is no promise
                        raise self._too_large()
        except TimeoutError:
            raise Refused(Code.TOO_SLOW, f"the body did not arrive within {seconds:g} s") from None
        return bytes(body)

    def _too_large(self) -> Refused:
        most = f"expected at most {self.limits.body:,} bytes"
        return Refused(Code.BODY_TOO_LARGE, f"the body is too large; {most}")


def allowed_hosts(host: str, named: Sequence[str]) -> list[str]:
    """Names by which a server may be called: on loopback those of this machine, beyond it any,
    unless some are named.

    Beyond loopback a key is needed, which a page of somebody else does not have.
    """
    for name in named:
        if not re.fullmatch(r"\*|(\*\.)?[^*]+", name):
            expected = "a name such as api.example.com or *.example.com"
            raise InputError("not a host name", found=name, expected=expected)
    own = [*LOOPBACK_NAMES, host, f"[{host}]"] if is_loopback(host) else []
    return [name.lower() for name in (*named, *own)] or ["*"]


def is_loopback(host: str) -> bool:
    """Whether an address, or every address of a name, reaches this machine only."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError):
        return False
    addresses = [str(info[4][0]).partition("%")[0] for info in found]
    return bool(addresses) and all(ip_address(one).is_loopback for one in addresses)


def require_key_beyond_loopback(host: str, keys: ApiKeys | None) -> None:
    """Refuse to listen where others can reach the server and nothing asks who they are."""
    if keys is None and not is_loopback(host):
        raise InputError(
            "a server that others can reach needs an API key",
            found=f"--host {host}",
            expected="--api-key-file FILE, or an address of this machine (127.0.0.1)",
            hint="Make a key with: openssl rand -hex 32 > api.key",
        )
