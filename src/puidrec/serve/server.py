"""The process: a socket, an event loop and signals. SIGHUP takes the model anew, SIGINT and SIGTERM
end it.

How many connections there are, and how slowly they send and read, is left to a reverse proxy.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import queue
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

import torch
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from puidrec.errors import InputError, one_line
from puidrec.serve.limits import LOG

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 10
SWITCH_SECONDS = 0.0005  # Python lets a thread compute for 5 ms, which is as long as a whole answer
MAX_HEAD = 2**16  # bytes of a request line and its headers
STEP = 2**13  # bytes that are parsed before a refusal is looked for


class Protocol(HttpToolsProtocol):
    """uvicorn's, with a bound on the head of a request, no ear for chunks, and answers for clients
    that half-close.

    Chunks of one byte cost a thousand times what they cost their client; the application refuses
    the request as soon as it has the head (`Guard`), and what follows is not parsed.
    """

    in_head, head_bytes, chunked = False, 0, False

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self.in_head, self.head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """A head ends."""
        self.in_head = False
        self.chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Refuse a head that does not end, and read no body of unknown length."""
        for at in range(0, len(data), STEP):
            if self.chunked or self.transport.is_closing():
                return
            part = data[at : at + STEP]
            super().data_received(part)
            self.head_bytes += len(part)
            if self.in_head and self.head_bytes > MAX_HEAD and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to go on: a client that has sent its request whole may still wait for the
        answer."""
        waits = self.cycle is not None and not (
            self.cycle.response_complete or self.cycle.more_body
        )
        if waits:
            self.cycle.keep_alive = False
        return waits


class Server(uvicorn.Server):
    """uvicorn that ends with exit code 0 when told to."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals while serving and give them back after, without raising them again."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def open_socket(host: str, port: int) -> socket.socket:
    """Bind before the model is loaded, so that a port in use is one line. Port 0 takes a free
    one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named: 40 ms per answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError, TypeError, ValueError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        hint = "Choose another --port (0: any free one) or --host."
        raise InputError(f"cannot listen on {host}:{port} ({reason})", hint=hint) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL under which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: FastAPI, proxies: Sequence[str] = ()) -> Server:
    """A server for an application; `X-Forwarded-For` of the proxies says who asks."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
    )
    return Server(config)


def serve_forever(
    app: FastAPI, listener: socket.socket, *, proxies: Sequence[str] = (), log: TextIO | None = None
) -> None:
    """Serve until told to stop, computing on one thread. log: where lines of requests go; None:
    nowhere.

    A product for one user is over before a second thread has woken, requests that wait share a
    product anyway, and the event loop needs a core of its own.
    """
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    settle()
    with logging_to(log, app.state.metrics):
        make_server(app, proxies).run([listener])


def survive_hangup() -> None:
    """Take no harm from a SIGHUP that comes before the server can act on it."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def settle() -> None:
    """Take what was loaded out of the garbage collector's sight: looking through it takes 180
    ms."""
    gc.collect()
    gc.freeze()


# What operators see: an id and a line of JSON per request, figures for Prometheus

MAX_WAITING = 10_000
"""Lines that wait to be written; when whoever reads the log is slower than that, lines are dropped
and counted."""
MAX_PATH = 200
CLIENT_LEFT = 499
"""The status, of nginx's making, of a request whose client did not wait for the answer."""
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Figures of one application, in a registry of its own."""

    def __init__(self, paths: Collection[str]) -> None:
        self.registry, self._paths = CollectorRegistry(), paths
        ProcessCollector(registry=self.registry)

        def make(kind: Any, name: str, words: str, *labels: str, **more: Any) -> Any:
            return kind(f"puid_{name}", words, labels, registry=self.registry, **more)

        self.requests = make(Counter, "requests", "Requests answered.", "path", "status")
        self.seconds = make(
            Histogram, "request_seconds", "Time to answer.", "path", buckets=BUCKETS
        )
        self.under_way = make(Gauge, "requests_under_way", "Requests under way.")
        self.reloads = make(Counter, "reloads", "Times that a model was taken anew.", "outcome")
        self.dropped = make(Counter, "log_lines_dropped", "Log lines that nobody took in time.")
        self.model = make(
            Gauge, "model_loaded_timestamp_seconds", "When the model was loaded.", "method"
        )
        for outcome in ("done", "failed"):
            self.reloads.labels(outcome)

    def path(self, asked: str) -> str:
        """The path of a request as a label; what clients make up is one label, or they could fill
        the memory."""
        return asked if asked in self._paths else "other"


class Observe:
    """ASGI middleware around all others: gives a request its id, times it, counts it, writes its
    line."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then tell."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # the caller's own id where it is a short plain word, so that a request can be followed
        given = Headers(scope=scope).get("x-request-id", "")
        known = re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given)
        request_id = given if known else uuid.uuid4().hex
        scope.setdefault("state", {})
        sent = {"status": CLIENT_LEFT, "bytes": 0}

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            sent["bytes"] += len(message.get("body", b""))
            await send(message)

        began = time.perf_counter()
        try:
            with self.metrics.under_way.track_inprogress():
                await self.app(scope, receive, note)
        except Exception:
            sent["status"] = 500
            raise
        finally:
            seconds, path = time.perf_counter() - began, self.metrics.path(scope["path"])
            self.metrics.requests.labels(path, str(sent["status"])).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            fields = {
                "request_id": request_id,
                "client": (scope.get("client") or ("unknown",))[0],
                "method": scope["method"],
                "path": scope["path"][:MAX_PATH],
                **sent,
                "seconds": round(seconds, 6),
            }
            LOG.info("request", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, event, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """A line; a failure's trace is in it, its line breaks escaped."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": one_line(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class _Handler(QueueHandler):
    """Puts records into a queue that never blocks: a reader that sleeps must not hold up the
    server."""

    def __init__(self, waiting: queue.Queue[Any], dropped: Callable[[], None]) -> None:
        super().__init__(waiting)
        self._dropped = dropped

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """As it is: it goes to a thread, not to another process."""
        return record

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """The queue is full."""
        self._dropped()


@contextlib.contextmanager
def logging_to(stream: TextIO | None, metrics: Metrics) -> Iterator[None]:
    """Write a line per request, and all warnings, on a thread of its own; None: only the latter."""
    waiting: queue.Queue[Any] = queue.Queue(MAX_WAITING)
    writer, root = logging.StreamHandler(stream or sys.stderr), logging.getLogger()
    writer.setFormatter(JsonLines())
    handler, listener = _Handler(waiting, metrics.dropped.inc), QueueListener(waiting, writer)
    LOG.setLevel(logging.NOTSET if stream is None else logging.INFO)
    root.addHandler(handler)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        root.removeHandler(handler)
        LOG.setLevel(logging.NOTSET)
