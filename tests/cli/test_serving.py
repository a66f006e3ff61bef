"""`puid serve`, called as a user calls it; servers listen on loopback addresses only."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KEY = "k" * 32


class Served:
    """A server process and its address."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Status, content and headers of an answer."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def wait(self, until: Any) -> None:
        for _ in range(400):
            if until():
                return
            time.sleep(0.05)
        pytest.fail("it did not happen")

    def stop(self) -> list[dict[str, Any]]:
        """End it in order; returns the lines of its log."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        assert self.process.stderr is not None
        return [json.loads(line) for line in self.process.stderr.read().splitlines()]


@contextlib.contextmanager
def served(run: Path, *options: object) -> Iterator[Served]:
    code = "from puidrec.cli.main import run; run()"
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        str(run),
        "--port",
        "0",
        "--json",
        *map(str, options),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = "".join(process.stdout.readline() for _ in range(4))
            yield Served(process, json.loads(told)["url"])
        finally:
            process.kill()


def test_serves_until_told_to_stop(run_folder: Path) -> None:
    with served(run_folder, "--max-k", 7) as server:
        status, answer, headers = server.ask(
            "/recommend", {"users": [3], "k": 7}, **{"X-Request-ID": "mine-1"}
        )
        assert status == 200
        assert len(json.loads(answer)["recommendations"][0]["items"]) == 7
        assert headers["x-request-id"] == "mine-1"
        card = json.loads(server.ask("/model")[1])
        assert card["limits"]["k"] == 7
        assert (
            card["data_sha256"]
            == json.loads((run_folder / "environment.json").read_text())["data_sha256"]
        )
        lines = server.stop()
    first = next(line for line in lines if line.get("request_id") == "mine-1")
    assert (first["event"], first["method"], first["path"], first["status"]) == (
        "request",
        "POST",
        "/recommend",
        200,
    )
    assert first["client"] == "127.0.0.1"
    assert first["bytes"] == len(answer.encode())
    assert [line["path"] for line in lines] == ["/recommend", "/model"]


def test_a_key_is_needed_where_one_is_set(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# two of them\n{KEY}\n{KEY[::-1]}x\n")
    with served(run_folder, "--api-key-file", tmp_path / "keys", "--quiet") as server:
        for headers in (
            {},
            {"Authorization": "Bearer no"},
            {"X-API-Key": KEY + "k"},
            {"Authorization": f"Basic {KEY}"},
        ):
            for path in ("/model", "/metrics", "/docs", "/openapi.json", "/nothing"):
                status, answer, sent = server.ask(path, **headers)
                assert (status, json.loads(answer)["error"]["code"]) == (401, "unauthorised")
                assert sent["www-authenticate"] == "Bearer"
            assert server.ask("/recommend", {"users": [3]}, **headers)[0] == 401
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"X-API-Key": f"{KEY[::-1]}x"}):
            assert server.ask("/recommend", {"users": [3]}, **headers)[0] == 200
        assert server.ask("/livez")[0] == server.ask("/readyz")[0] == 200
        assert server.stop() == []


def test_a_server_that_others_can_reach_needs_a_key(
    puid: Any, run_folder: Path, tmp_path: Path
) -> None:
    """Refused before anything listens; with a key it is not the key that is missing."""
    for host in ("0.0.0.0", "::", "192.0.2.7", "no-such-name.invalid"):
        puid("serve", run_folder, "--host", host, "--port", 0).refused(
            "needs an API key", host, "--api-key-file"
        )
    for content, words in (
        ("", "no API keys"),
        ("short\n", "key 1"),
        ("a b" * 10, "key 1"),
        ("é" * 20, "ASCII"),
    ):
        (tmp_path / "keys").write_text(content)
        said = puid("serve", run_folder, "--api-key-file", tmp_path / "keys").refused(words)
        assert "short" not in str(said).replace("too short", "")
    puid("serve", run_folder, "--api-key-file", tmp_path).refused("not a file")
    puid("serve", run_folder, "--api-key-file", tmp_path / "none").refused("cannot read")


def test_only_names_of_this_machine_are_answered_to(run_folder: Path) -> None:
    with served(run_folder, "--allowed-host", "api.example.com") as server:
        for name, status in (
            ("evil.example", 400),
            ("127.0.0.1.evil.example", 400),
            ("", 400),
            ("api.example.com", 200),
        ):
            assert server.ask("/model", Host=name)[0] == status, name
        assert server.ask("/livez", Host="10.0.0.7")[0] == 200
        assert (
            "access-control-allow-origin"
            not in server.ask("/model", Origin="https://example.com")[2]
        )
        server.stop()


def test_what_cannot_be_served_is_one_line(puid: Any, run_folder: Path, tmp_path: Path) -> None:
    puid("serve", tmp_path, "--port", 0).refused("not a run folder")
    puid(
        "serve", tmp_path, "--host", "127.0.0.1", "--port", 1, "--cors-origin", "example.com"
    ).refused("not an origin")
    puid("serve", run_folder, "--allowed-host", "a*b").refused("not a host name")


def test_a_missing_library_is_one_line(
    puid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.startswith("puidrec.serve"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    puid("serve", tmp_path).refused("uvicorn", "puidrec[serve]")


def test_sighup_takes_a_new_model_and_not_a_damaged_one(run_folder: Path) -> None:
    run = run_folder
    with served(run) as server:
        before = json.loads(server.ask("/model")[1])
        metrics = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text("{")
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: 'puid_reloads_total{outcome="failed"} 1.0' in server.ask("/metrics")[1])
        assert json.loads(server.ask("/model")[1]) == before
        (run / "metrics.json").write_text(json.dumps({**metrics, "uauc": 0.123}))
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: json.loads(server.ask("/model")[1])["metrics"]["uauc"] == 0.123)
        lines = server.stop()
    errors = [line for line in lines if line["level"] == "error"]
    assert len(errors) == 1
    assert "metrics.json" in errors[0]["error"]


class Hostile:
    """Clients that hold on to a server: one-byte chunks, heads, bodies and answers that never
    end."""

    HEAD = b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    WHOLE = json.dumps({"users": [3] * 1000, "k": 30}).encode()
    SIZED = HEAD + b"content-length: %d\r\n\r\n" % len(WHOLE)

    def __init__(self, port: int) -> None:
        self.port, self.stopped, self.sockets = port, threading.Event(), []
        self.threads = [
            threading.Thread(target=self._chunks, args=(n,), daemon=True) for n in range(64)
        ]
        for thread in self.threads:
            thread.start()
        for first in (
            b"",
            b"GET /",
            self.HEAD,
            self.SIZED + self.WHOLE[:9],
            self.SIZED + self.WHOLE,
        ) * 4:
            self.sockets.append(self._connect(first))
        for half_open in self.sockets[::2]:
            half_open.shutdown(socket.SHUT_WR)

    def _connect(self, first: bytes) -> socket.socket:
        one = socket.socket()
        one.settimeout(5)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            one.connect(("127.0.0.1", self.port))
            one.sendall(first)
        except OSError:
            one.close()
            raise
        return one

    def _chunks(self, number: int) -> None:
        """Every other one as fast as it goes, the others slowly; whoever is thrown out comes
        again."""
        many = b"1\r\n \r\n" * (10_000 if number % 2 else 1)
        while not self.stopped.is_set():
            with contextlib.suppress(OSError), self._connect(self.CHUNKED) as one:
                while not self.stopped.is_set():
                    one.sendall(many)
                    self.stopped.wait(0.05)
            self.stopped.wait(0.05)

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(10)
        for one in self.sockets:
            one.close()


@pytest.mark.slow
def test_hostile_clients_neither_stall_the_server_nor_keep_it_alive(run_folder: Path) -> None:
    """64 connections of one-byte chunks silenced /livez for two minutes, and SIGTERM with it."""
    with served(run_folder, "--quiet") as server:
        hostile = Hostile(int(server.url.rsplit(":", 1)[1]))
        seconds = []
        for _ in range(40):
            began = time.monotonic()
            assert server.ask("/livez")[0] == 200
            seconds.append(time.monotonic() - began)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(25)
        took = time.monotonic() - began
        hostile.stop()
    assert code == 0
    assert took < 15  # the grace period is 10 s
    assert sorted(seconds)[-2] < 1, seconds  # one may have met a busy machine
