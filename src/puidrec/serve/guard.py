"""The first thing a request meets: its body is read whole, within a size and a time, before anything looks at it.

And the last: where a client leaves before it is answered, the work for it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puidrec.serve.limits import CURRENT, Limits
from puidrec.serve.problems import Refused
from puidrec.serve.schema import Code


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
        """Answer for as long as the client is there; what nobody waits for is not computed to its end."""
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
