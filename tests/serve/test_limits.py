"""Bodies: too large (declared or not), too slow, abandoned; whole ones pass unchanged."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from puidrec.serve.limits import Guard, Limits, Policy

POLICY = Policy(limits=Limits(body=100, read_seconds=0.2))


def ask(
    parts: list[bytes], *, declared: bytes | None = None, pause: float = 0.0, leave: bool = False
) -> Any:
    """Send a body in parts through the guard; returns the status, the body it passed on, and the
    problem."""
    passed: list[bytes] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["state"]["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    queue = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        if leave and not queue:
            return {"type": "http.disconnect"}
        if not queue:
            await asyncio.Event().wait()  # a client that waits for its answer
        part = queue.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(queue) or leave}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-length", declared)] if declared is not None else []
    asyncio.run(
        Guard(app, POLICY)(
            {"type": "http", "path": "/score", "headers": headers, "state": {}}, receive, send
        )
    )
    if not sent:
        return None, passed, None
    return sent[0]["status"], passed, json.loads(sent[1]["body"]).get("error")


@pytest.mark.parametrize("parts", [[b""], [b"x" * 100], [b"x" * 50, b"y" * 50], [b"", b"a", b""]])
def test_a_body_within_the_bounds_passes_whole(parts: list[bytes]) -> None:
    assert ask(parts) == (200, [b"".join(parts)], None)


@pytest.mark.parametrize(
    ("parts", "declared"),
    [
        ([b"x"], b"101"),
        ([b"x"], b"9" * 5000),
        ([b"x"], b"-1"),
        ([b"x"], b"1e9"),
        ([b"x" * 101], None),
        ([b"x" * 60, b"x" * 60], None),
        ([b"x" * 200], b"10"),
    ],
)
def test_a_body_beyond_the_bound_is_refused(parts: list[bytes], declared: bytes | None) -> None:
    status, passed, problem = ask(parts, declared=declared)
    assert (status, passed) == (413, [])
    assert problem["code"] == "body_too_large"
    assert "100 bytes" in problem["message"]


def test_a_body_that_drips_is_refused() -> None:
    status, passed, problem = ask([b"x"] * 50, pause=0.02)  # every part in time, the whole not
    assert (status, passed) == (408, [])
    assert problem["code"] == "too_slow"


def test_nobody_is_answered_who_has_left() -> None:
    assert ask([b"half"], leave=True) == (None, [], None)


def test_a_server_that_stops_is_not_held_up() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(30)

    messages = iter([{"type": "http.request", "body": b"x"}])

    async def receive() -> Any:
        return next(messages, None) or await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(
            asyncio.wait_for(
                Guard(app, POLICY)(
                    {"type": "http", "path": "/score", "headers": [], "state": {}}, receive, print
                ),
                0.3,
            )
        )


def test_a_failure_is_not_swallowed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def once() -> None:
        given = iter([receive()])
        await Guard(app, POLICY)(
            {"type": "http", "path": "/score", "headers": [], "state": {}},
            lambda: next(given, None) or asyncio.Event().wait(),
            print,
        )

    with pytest.raises(ZeroDivisionError):
        asyncio.run(once())
