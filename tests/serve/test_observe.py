"""Ids, log lines and figures of requests."""

from __future__ import annotations

import io
import json
import logging
import queue
from typing import Any

import pytest

from puidrec.model import Recommender
from puidrec.serve import server as module
from puidrec.serve.server import LOG, Metrics, logging_to


def test_one_line_of_json_per_request(client_of: Any, model: Recommender) -> None:
    client, stream = client_of(model), io.StringIO()
    with logging_to(stream, client.app.state.metrics):
        client.ask("GET", "/health", headers={"x-request-id": "abc.1"})
        client.ask(
            "GET",
            "/no%E2%80%A8thing%0A" + "x" * 500 + "?token=secret",
            headers={"x-request-id": "a\tb"},
        )
        client.post("/recommend", {"users": []})
    lines = [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]
    assert [(line["path"][:8], line["status"]) for line in lines] == [
        ("/health", 200),
        ("/no\u2028thin", 404),
        ("/recomme", 422),
    ]
    assert lines[0]["request_id"] == "abc.1"
    assert len(lines[1]["request_id"]) == 32  # what the client sent is no plain word
    assert len(lines[1]["path"]) == 200
    assert "secret" not in stream.getvalue()
    assert {"time", "level", "event", "client", "method", "bytes", "seconds"} <= set(lines[0])


def test_failures_are_in_the_log_with_their_trace(
    client_of: Any, model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, stream = client_of(model), io.StringIO()
    monkeypatch.setattr(client.app.state.serving.answers, "plan", lambda body: 1 / 0)
    with logging_to(stream, client.app.state.metrics):
        client.post("/recommend", {"users": [1]})
        logging.getLogger("uvicorn.error").error("told", exc_info=ZeroDivisionError("x"))
    request, told = (json.loads(line) for line in stream.getvalue().splitlines())
    assert request["status"] == 500
    assert "ZeroDivisionError" in told["trace"]


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(set)
    handler = module._Handler(queue.Queue(2), metrics.dropped.inc)
    record = LOG.makeRecord("x", logging.INFO, "x", 1, "request", (), None)
    for _ in range(5):
        handler.handle(record)
    assert metrics.dropped._value.get() == 3


def test_figures(client_of: Any, model: Recommender) -> None:
    client = client_of(model)
    for path in ("/health", "/health", "/made-up-1", "/made-up-2"):
        client.get(path)
    client.post("/recommend", {"users": [1]})
    text = client.get("/metrics").text
    assert 'puid_requests_total{path="/health",status="200"} 2.0' in text
    assert 'puid_requests_total{path="other",status="404"} 2.0' in text
    assert 'puid_request_seconds_count{path="/recommend"} 1.0' in text
    assert "made-up" not in text
    assert f'puid_model_loaded_timestamp_seconds{{method="{model.settings.method}"}}' in text
    assert "process_resident_memory_bytes" in text
