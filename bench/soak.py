"""A server under mixed traffic for a long time: what its operators would see of memory, refusals
and latency.

    python bench/soak.py [--minutes M] [--items N] [--json FILE]

`puid serve` runs as a process of its own, with an API key, and another process asks for /livez
twenty times a second. First each attack alone, in the first third of the time; then all at once,
with single users at a fixed rate and, in every second window of 20 s, a client that asks for 1,000
users × 100 items again and again. The attacks: a new model and SIGHUP every 25 s; and from other
addresses idle connections by the hundred, heads and bodies that never end, chunks of one byte on 16
connections, answers that are hardly read, clients that half-close, bodies of megabytes of small
values, half characters, garbage, requests without a key and under another name. The end comes by
SIGTERM while clients hold on. Exit code 1 where something was not as promised (`failures`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.atomic import atomic_folder, write_json
from serve import USERS, Client, bulk, open_loop, random_model

RATE, WINDOW, HOSTILE, REFUSED = 20.0, 20.0, "127.0.0.2", "127.0.0.3"
"""Hostile clients have addresses of their own, so that the log tells them apart."""
GROWTH = 0.15
"""Of memory from the first third to the last, above which it is not flat."""
VALUES = json.dumps({"users": [{"id": 1, "features": {"age": [{}] * 1_000_000}}]}).encode()
"""The request that once took half a minute and 6 GB."""
HALF = b'{"users": [{"id": 1, "features": {"age": "\\ud800"}}]}'
CHUNKS = b"1\r\n \r\n" * 40_000
LIVEZ_SECONDS = 0.2
"""The 99th percentile of /livez above which an attack stalled the server; what it is without an
attack comes on top, for the machine may do other work."""
NO_ATTACK = "no attack"
PROBE = """
import socket, sys, time
port, file = int(sys.argv[1]), open(sys.argv[2], "w", buffering=1)
while True:
    began, status = time.monotonic(), "none"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
            one.sendall(b"GET /livez HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n")
            status = one.recv(4096)[9:12].decode() or "none"
    except OSError as error:
        status = repr(error)
    print(began, time.monotonic() - began, status, sep="\\t", file=file)
    time.sleep(max(0.0, 0.05 - (time.monotonic() - began)))
"""
"""A process of its own, which no attacker holds up: when it asked, how long the answer took, and
its status."""
GRACE = 10.0
"""Seconds that SIGTERM leaves to requests under way (`server.SHUTDOWN_SECONDS`)."""


class Soak:
    """The server, the clients, and what they saw."""

    def __init__(self, folder: Path, items: int, minutes: float) -> None:
        self.run, self.items, self.folder = folder / "run", items, folder
        self.ends = time.monotonic() + 60 * minutes
        self.key = secrets.token_hex(32)
        (folder / "api.key").write_text(self.key + "\n")
        self.statuses: dict[str, Counter[int]] = {}
        self.failures: Counter[str] = Counter()
        self.single: list[dict[str, Any]] = []
        self.beside: list[dict[str, Any]] = []
        self.windows: list[tuple[str, float, float]] = []
        """What was done from when to when."""
        self.memory: list[tuple[float, float]] = []
        self.reloads, self.bulk_answers = 0, 0
        self.port, self.process = 0, 0

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends

    @property
    def attacks(self) -> dict[str, tuple[float, Callable[[], Awaitable[None]]]]:
        """By name: seconds from one to the next, and what is done."""
        return {
            "reload": (25, self.reload),
            "refused": (3, self.refused),
            "idle": (1, self.idle),
            "slow": (1, self.slow),
            "chunks": (0.5, self.chunks),
            "half-closed": (1, self.half_closed),
        }

    def write_model(self, version: int) -> None:
        """A run folder, in the place of the one before it."""
        model = random_model(self.items, 16)
        model.item_factors_ = model.item_factors_ * np.float32(1 + version % 2)
        with atomic_folder(self.run) as folder:
            model.save(folder / "model")
            write_json(folder / "metrics.json", {"protocol": "rd", "version": version})
            write_json(
                folder / "environment.json", {"data": "random", "data_sha256": f"{version:064x}"}
            )

    def note(self, kind: str, status: int, allowed: set[int]) -> None:
        self.statuses.setdefault(kind, Counter())[status] += 1
        if status not in allowed:
            self.failures[f"{kind}: status {status}"] += 1

    async def every(self, seconds: float, act: Callable[[], Awaitable[None]], kind: str) -> None:
        """Act again and again; what fails without being refused is a failure."""
        while not self.over:
            began = time.monotonic()
            try:
                await asyncio.wait_for(act(), 120)
            except (OSError, EOFError, TimeoutError, StopIteration, RuntimeError) as error:
                self.failures[f"{kind}: {error!r}"[:200]] += 1
            await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))

    async def honest(self) -> None:
        """Windows of single users: one alone, the next one beside a bulk client."""
        for windows, loaded in ((self.single, False), (self.beside, True)):
            if self.over:
                return
            stop = asyncio.Event()
            load = asyncio.create_task(bulk(self.port, stop, self.key)) if loaded else None
            left = max(2.0, min(WINDOW, self.ends - time.monotonic()))
            windows.append(await open_loop(self.port, RATE, left, self.key))
            stop.set()
            self.bulk_answers += len(await load) if load else 0

    async def watch(self) -> None:
        client = Client(self.port)
        self.note("readyz", await client.get("/readyz"), {200, 503})
        client.close()
        pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        self.memory.append((time.monotonic(), pages * os.sysconf("SC_PAGE_SIZE") / 2**20))

    async def reload(self) -> None:
        self.reloads += 1
        await asyncio.to_thread(self.write_model, self.reloads)
        os.kill(self.process, signal.SIGHUP)

    async def refused(self) -> None:
        """Requests that must be refused, each in its way."""
        for kind, client, body, expected in (
            ("values", Client(self.port, self.key, REFUSED), VALUES, {422}),
            ("no key", Client(self.port, None, REFUSED), b"{}", {401}),
            ("wrong key", Client(self.port, "x" * 64, REFUSED), VALUES, {401}),
            ("malformed", Client(self.port, self.key, REFUSED), b"[" * 90_000, {400}),
            ("half a character", Client(self.port, self.key, REFUSED), HALF, {400}),
        ):
            self.note(kind, await client.post(body), expected)
            client.close()
        stranger = Client(self.port, self.key, REFUSED)
        stranger.head = stranger.head.replace("localhost", "evil.example")
        self.note("other name", await stranger.get("/model"), {400})
        stranger.close()

    async def chunks(self) -> None:
        """Chunks of one byte, as fast as they go, on several connections at once; without a key."""
        head = b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"

        async def one() -> None:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(HOSTILE, 0)
            )
            answer = b""
            with contextlib.suppress(OSError):  # the server hangs up on what it has refused
                writer.write(head + CHUNKS)
                answer = await reader.read(1024)
            if answer:
                self.note("one-byte chunks", int(answer[9:12]), {411})
            writer.transport.abort()

        await asyncio.gather(*(one() for _ in range(16)))

    async def half_closed(self) -> None:
        """A request after which its client sends no more, and waits."""
        body = json.dumps({"users": [1, 2], "k": 10}).encode()
        head = (
            f"POST /recommend HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.key}\r\n"
        )
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(REFUSED, 0)
        )
        writer.write(head.encode() + body)
        writer.write_eof()
        answer = await reader.read()
        self.note("half-closed", int(answer[9:12] or 0), {200})
        writer.close()

    async def idle(self) -> None:
        """Hundreds of connections that ask for nothing; the server may hang up on them."""
        with contextlib.ExitStack() as opened:
            for _ in range(400):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", self.port, local_addr=(HOSTILE, 0)
                    )
                    opened.callback(writer.transport.abort)
            await asyncio.sleep(8)

    async def slow(self) -> None:
        """A head, a body and an answer that take for ever; and bytes that are no HTTP."""
        request = json.dumps({"users": list(range(1000)), "k": 100}).encode()
        begin = f"POST /recommend HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.key}\r\n".encode()
        length = (
            f"content-type: application/json\r\ncontent-length: {len(request)}\r\n\r\n".encode()
        )
        with contextlib.ExitStack() as opened:
            for first in (
                begin,
                begin + length + request[:50],
                begin + length + request,
                b"\x16\x03\x01 \xff\r\n\r\n",
            ):
                with contextlib.suppress(OSError):
                    streams = await asyncio.open_connection(
                        "127.0.0.1", self.port, local_addr=(HOSTILE, 0), limit=1024
                    )
                    opened.callback(streams[1].transport.abort)
                    streams[1].write(first)
            await asyncio.sleep(12)

    async def alone(self, name: str, seconds: float) -> None:
        """One attack, or none, for some time; the first two seconds of it are left out."""
        act = self.attacks.get(name)
        task = asyncio.create_task(self.every(*act, name)) if act else None  # type: ignore[call-arg]
        began = time.monotonic()
        await asyncio.sleep(seconds)
        self.windows.append((name, began + min(2.0, seconds / 4), time.monotonic()))
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def all(self) -> None:
        """Each attack alone, then all at once."""
        names = [NO_ATTACK, *self.attacks]
        share = (self.ends - time.monotonic()) / 3 / len(names)
        watching = asyncio.create_task(self.every(0.5, self.watch, "readyz"))
        for name in names:
            await self.alone(name, share)
        began = time.monotonic()
        attacks = (self.every(*act, name) for name, act in self.attacks.items())
        await asyncio.gather(self.every(0, self.honest, "honest"), *attacks)
        self.windows.append(("all", began, time.monotonic()))
        await watching

    def livez(self) -> dict[str, dict[str, float]]:
        """How long /livez took in each window, in ms."""
        lines = [line.split("\t") for line in (self.folder / "livez").read_text().splitlines()[:-1]]
        for _, _, status in lines:
            self.note("livez", int(status) if status.isdigit() else 0, {200})
        at, took = (np.array([float(line[k]) for line in lines]) for k in (0, 1))
        found = {NO_ATTACK: {"p99": 0.0}}  # where nothing was answered there either
        for name, start, end in self.windows:
            own = took[(at >= start) & (at < end)]
            if not own.size:
                self.failures[f"livez: never answered during {name}"] += 1
                continue
            found[name] = dict(
                zip(("p50", "p99", "max"), 1e3 * np.quantile(own, (0.5, 0.99, 1)), strict=True)
            )
        for name, one in found.items():
            if one["p99"] > 1e3 * LIVEZ_SECONDS + found[NO_ATTACK]["p99"]:
                self.failures[f"livez: slow during {name}"] += 1
        return found

    def figures(self, reloads: dict[str, float]) -> dict[str, Any]:
        """What was seen. Memory counts from a sixth of the time on, when every path has been taken."""
        assert self.memory, self.failures
        start, end = self.memory[0][0], self.memory[-1][0]
        settled = np.array([one for one in self.memory if one[0] > start + (end - start) / 6])
        thirds = [float(np.median(part[:, 1])) for part in np.array_split(settled, 3)]
        for window in (*self.single, *self.beside):
            if window["not_ok"]:
                self.failures["honest: not 200"] += window["not_ok"]
        if reloads["failed"] or reloads["done"] < self.reloads - 1:
            self.failures["reload: not all done"] += 1
        if thirds[2] > (1 + GROWTH) * thirds[0]:
            self.failures["memory: grows"] += 1
        livez = self.livez()
        p99 = [
            float(np.median([one["p99_ms"] for one in part])) for part in (self.single, self.beside)
        ]
        return {
            "minutes": (end - start) / 60,
            "single_requests": sum(one["requests"] for one in (*self.single, *self.beside)),
            "bulk_answers": self.bulk_answers,
            "reloads": reloads,
            "statuses": {kind: dict(found) for kind, found in self.statuses.items()},
            "p50_ms": [
                float(np.median([one["p50_ms"] for one in part]))
                for part in (self.single, self.beside)
            ],
            "p99_ms": {"alone": p99[0], "beside_bulk": p99[1], "ratio": p99[1] / p99[0]},
            "livez_ms": livez,
            "rss_mb": {
                "thirds": thirds,
                "peak": float(settled[:, 1].max()),
                "growth": thirds[2] / thirds[0] - 1,
            },
            "load_average": os.getloadavg(),
            "failures": dict(self.failures),
        }


def soak(minutes: float, items: int) -> dict[str, Any]:
    """Start a server, press on it, end it in order."""
    with tempfile.TemporaryDirectory() as name:
        own = Soak(Path(name), items, minutes)
        own.write_model(0)
        code = "from puidrec.cli.main import run; run()"
        command = [
            sys.executable,
            "-c",
            code,
            "serve",
            str(own.run),
            "--port",
            "0",
            "--json",
            "--api-key-file",
            str(own.folder / "api.key"),
        ]
        log = own.folder / "log"
        with (
            log.open("w") as stream,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True) as server,
        ):
            try:
                assert server.stdout is not None
                told = json.loads("".join(server.stdout.readline() for _ in range(4)))
                own.port, own.process = int(told["url"].rsplit(":", 1)[1]), server.pid
                own.ends = time.monotonic() + 60 * minutes
                probe = subprocess.Popen(
                    [sys.executable, "-c", PROBE, str(own.port), str(own.folder / "livez")]
                )
                try:
                    asyncio.run(own.all())
                finally:
                    probe.kill()
                    probe.wait()
                figures = own.figures(asyncio.run(reload_figures(own)))
                with hold_on(own.port, own.key):
                    began = time.monotonic()
                    server.terminate()
                    figures["exit_code"] = server.wait(3 * GRACE)
                figures["end_seconds"] = time.monotonic() - began
            finally:
                server.kill()
        text = log.read_text().splitlines()
        lines = [json.loads(line) for line in text if line.startswith("{")]
        levels = Counter(line["level"] for line in lines)
        traces = [line["trace"] for line in lines if "trace" in line]
        traces += (
            ["\n".join(line for line in text if not line.startswith("{"))]
            if len(lines) < len(text)
            else []
        )
        server_errors = Counter(line["status"] for line in lines if line.get("status", 0) >= 500)
        return {
            **figures,
            "log_levels": dict(levels),
            "server_errors": dict(server_errors),
            "traces": traces[:3],
        }


@contextlib.contextmanager
def hold_on(port: int, key: str) -> Iterator[None]:
    """Clients that do not let go: a request that is half sent each."""
    head = f"POST /recommend HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: 9\r\n\r\n{{"
    with contextlib.ExitStack() as held:
        for _ in range(32):
            one = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            one.sendall(head.encode())
        yield


async def reload_figures(own: Soak) -> dict[str, float]:
    """How many reloads the server counted; the last one is given time to end."""
    await asyncio.sleep(3)
    client = Client(own.port, own.key)
    assert await client.get("/metrics") == 200
    client.close()
    lines = [
        line
        for line in client.answer.decode().splitlines()
        if line.startswith("puid_reloads_total")
    ]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    assert USERS > 1000
    figures = soak(options.minutes, options.items)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    late = figures["end_seconds"] > GRACE + 5
    return 1 if figures["failures"] or figures["traces"] or figures["exit_code"] or late else 0


if __name__ == "__main__":
    sys.exit(main())
