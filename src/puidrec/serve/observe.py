"""What operators see: an id and one line of JSON per request, and figures for Prometheus."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puidrec.errors import one_line
from puidrec.serve.limits import LOG, Code, Refused

MAX_WAITING = 10_000
"""Lines that wait to be written; when whoever reads the log is slower than that, lines are dropped
and counted."""
MAX_PATH = 200
NO_CHUNKS = "chunked bodies are not read; send the whole body with a Content-Length"
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
        self.waiting = make(
            Gauge, "waiting_seconds", "Estimated time until work that waits now is done."
        )
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
    line.

    Probes are answered here: a load balancer has no key, calls us by our address, and must be
    answered however much is under way. Bodies of unknown length are refused here, before anything
    of them is read: a body in chunks of one byte costs a server a thousand times what it costs its
    client.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        probes: Mapping[str, Callable[[Request], Awaitable[Response]]],
    ) -> None:
        self.app, self.metrics, self.probes = app, metrics, probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then tell."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # the caller's own id where it is a short plain word, so that a request can be followed
        given = headers.get("x-request-id", "")
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

        probe = self.probes.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        began = time.perf_counter()
        try:
            with self.metrics.under_way.track_inprogress():
                answer = self.app if probe is None else await probe(Request(scope))
                if "transfer-encoding" in headers:
                    answer = Refused(Code.LENGTH_REQUIRED, NO_CHUNKS).response()
                await answer(scope, receive, note)
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
