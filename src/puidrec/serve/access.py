"""Who is let in: API keys, names under which the server may be called, and where it may listen
without a key."""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
    SimpleUser,
)
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from puidrec.errors import InputError
from puidrec.serve.limits import Code, Refused

SHORTEST_KEY = 16
MAX_KEY_FILE = 2**16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
PROBES = ("/livez", "/readyz")
"""Answered without a key, under any name and under any load: they tell nothing but that the process
is there."""


class ApiKeys(AuthenticationBackend):
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
        try:
            if self.file.exists() and not self.file.is_file():
                raise InputError("not a file", file=self.file, expected="a file of API keys")
            with self.file.open("rb") as stream:
                content = stream.read(MAX_KEY_FILE + 1)
            lines = content.decode("ascii").split("\n")
        except OSError as error:
            raise InputError(
                "cannot read", file=self.file, found=error.strerror or "an error"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError("API keys are plain text (ASCII)", file=self.file) from error
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        hint = f"For example: openssl rand -hex 32 > {self.file}"
        if not keys or len(content) > MAX_KEY_FILE:
            raise InputError("no API keys", file=self.file, expected="one key per line", hint=hint)
        for number, key in enumerate(keys, 1):  # a key is never quoted
            if len(key) < SHORTEST_KEY or any(c.isspace() for c in key):
                expected = f"at least {SHORTEST_KEY} characters without spaces"
                raise InputError(
                    f"key {number} is too short or holds spaces",
                    file=self.file,
                    expected=expected,
                    hint=hint,
                )
        return [hashlib.sha256(key.encode()).digest() for key in keys]

    def knows(self, key: str) -> bool:
        """Whether a key is one of them; takes the same time whichever it is and however much of it
        is right."""
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        return sum([hmac.compare_digest(given, own) for own in self._digests]) > 0

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        """Take `Authorization: Bearer KEY` or `X-API-Key: KEY`; anything else is refused."""
        scheme, _, bearer = conn.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else conn.headers.get("x-api-key", "")
        if not self.knows(key):
            raise AuthenticationError
        return AuthCredentials(["client"]), SimpleUser("client")


def unauthorised(conn: HTTPConnection, error: Exception) -> Response:
    """The answer to a request without a key; it does not say whether one was given."""
    return Refused(
        Code.UNAUTHORISED,
        "this server needs an API key: Authorization: Bearer KEY, or X-API-Key: KEY",
    ).response()


class AllowedHosts:
    """ASGI middleware: Starlette's check of the Host header, its refusal in our form.

    A page that a user of this machine visits can make a name of its own point here (DNS rebinding)
    and read answers; the name then stands in the Host header, and is none of ours.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self._check = TrustedHostMiddleware(_passed, list(hosts), www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what was addressed to us."""
        if scope["type"] == "http":
            await self._check(scope, receive, _nowhere)
            if not scope["state"].pop("host_passed", False):
                refused = Refused(
                    Code.WRONG_HOST, "this server is not called by that name (--allowed-host)"
                )
                await refused.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _passed(scope: Scope, receive: Receive, send: Send) -> None:
    scope["state"]["host_passed"] = True


async def _nowhere(message: object) -> None:
    """Takes an answer that nobody gets."""


def allowed_hosts(host: str, named: Sequence[str]) -> list[str]:
    """Names by which a server may be called: on loopback those of this machine, beyond it any,
    unless some are named.

    Beyond loopback a key is needed, which a page of somebody else does not have.
    """
    bad = next(
        (
            name
            for name in named
            if not name or "*" in name[1:] or (name[0] == "*" and name[1:2] not in ("", "."))
        ),
        None,
    )
    if bad is not None:
        raise InputError(
            "not a host name", found=bad, expected="a name such as api.example.com or *.example.com"
        )
    if named:
        return [*named, *(LOOPBACK_NAMES if is_loopback(host) else ())]
    return [*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host] if is_loopback(host) else ["*"]


def is_loopback(host: str) -> bool:
    """Whether an address, or every address of a name, reaches this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {
            str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        }
    except (OSError, UnicodeError, ValueError):
        return False
    return bool(found) and all(
        ip_address(address.partition("%")[0]).is_loopback for address in found
    )


def require_key_beyond_loopback(host: str, keys: ApiKeys | None) -> None:
    """Refuse to listen where others can reach the server and nothing asks who they are."""
    if keys is None and not is_loopback(host):
        raise InputError(
            "a server that others can reach needs an API key",
            found=f"--host {host}",
            expected="--api-key-file FILE, or an address of this machine (127.0.0.1)",
            hint="Make a key with: openssl rand -hex 32 > api.key",
        )
