"""Serving, measured from another process: latency at a fixed rate, alone and under bulk load,
batches, many clients.

    python bench/serve.py [--items N] [--dim N] [--rate R] [--seconds S] [--clients N] [--json FILE]

The server is one process. Requests of the first part leave at fixed times whether or not earlier
ones were answered (open loop), and latency counts from the time a request was due, so that waiting
in a queue is not hidden. The second part alternates such windows without and with a client that
asks for 1,000 users × 100 items again and again, and compares their medians. The last part keeps
`--clients` connections busy (closed loop).

On a machine that does other work, latency is mostly waiting for a core; `stolen` is the share of
the processors' time that went to other guests of the host during the first part (Linux). `chrt -f 5
python bench/serve.py` (as root, on Linux) puts server and client before everything else, and shows
what is the server's own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from puidrec.data.dataset import IdMap
from puidrec.data.schema import RatingScale
from puidrec.model import Recommender

USERS, SEEN = 20_000, 50


def random_model(n_items: int, dim: int) -> Recommender:
    """A model as if trained: factors of the right shape, and a list of seen items per user."""
    rng = np.random.default_rng(0)
    model = Recommender("mf", dim=dim, backbone="mf")
    model.user_factors_, model.item_factors_ = (
        rng.normal(size=(n, dim + 2)).astype(np.float32) for n in (USERS, n_items)
    )
    model.user_ids_, model.item_ids_ = (
        IdMap(pl.Series("id", np.arange(n))) for n in (USERS, n_items)
    )
    model.seen_ = (
        np.arange(USERS + 1) * SEEN,
        rng.integers(0, n_items, USERS * SEEN).astype(np.int32),
    )
    model.parameters_, model.encoders_, model.history_, model.report_ = {}, {}, [], {}
    model.rating_scale_ = RatingScale(1.0, 5.0)
    return model


def serve(n_items: int, dim: int) -> None:
    """The server process; prints its port."""
    from puidrec.serve.answers import Answers
    from puidrec.serve.app import create_app
    from puidrec.serve.server import open_socket, serve_forever

    listener = open_socket("127.0.0.1", 0)
    app = create_app(lambda: Answers(random_model(n_items, dim)))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    serve_forever(app, listener)


class Client:
    """One connection, kept alive; as little work per request as HTTP allows, so that the server is
    what is measured."""

    def __init__(self, port: int, key: str | None = None, source: str = "127.0.0.1") -> None:
        self.port, self.source, self.streams, self.answer = port, source, None, b""
        self.head = "host: localhost\r\n" + (f"authorization: Bearer {key}\r\n" if key else "")

    async def post(self, body: bytes, path: str = "/recommend") -> int:
        more = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return await self.ask(f"POST {path} HTTP/1.1\r\n{self.head}{more}\r\n".encode() + body)

    async def get(self, path: str) -> int:
        return await self.ask(f"GET {path} HTTP/1.1\r\n{self.head}\r\n".encode())

    async def ask(self, request: bytes) -> int:
        """Send a request, take its answer; returns the status."""
        if (
            self.streams is None or self.streams[0].at_eof()
        ):  # new, or idle for so long that the server closed it
            self.close()
            self.streams = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(self.source, 0)
            )
        reader, writer = self.streams
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        self.answer = await reader.readexactly(length)
        return int(answer[9:12])

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def request(users: list[int]) -> bytes:
    return json.dumps({"users": users, "k": 10}).encode()


async def open_loop(
    port: int, rate: float, seconds: float, key: str | None = None
) -> dict[str, Any]:
    """Single users at fixed times; a free connection is taken, or a new one opened."""
    rng = np.random.default_rng(1)
    free: list[Client] = []
    latency: list[float] = []
    statuses: list[int] = []
    start = time.perf_counter() + 0.5

    async def one(due: float, user: int) -> None:
        client = free.pop() if free else Client(port, key)
        statuses.append(await client.post(request([user])))
        latency.append(time.perf_counter() - due)
        free.append(client)

    tasks = []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due, int(rng.integers(USERS)))))
    await asyncio.gather(*tasks)
    for client in free:
        client.close()
    return {"rate": rate, "requests": len(latency), **summary(latency, statuses)}


async def bulk(port: int, stop: asyncio.Event, key: str | None = None) -> list[float]:
    """1,000 users × 100 items, again and again; returns the seconds of each answer."""
    client, rng, seconds = Client(port, key), np.random.default_rng(5), []
    while not stop.is_set():
        started = time.perf_counter()
        status = await client.post(
            json.dumps({"users": rng.integers(0, USERS, 1000).tolist(), "k": 100}).encode()
        )
        assert status == 200, client.answer[:200]
        seconds.append(time.perf_counter() - started)
    client.close()
    return seconds


async def under_bulk(port: int, rate: float, seconds: float, rounds: int = 4) -> dict[str, Any]:
    """Single users alone, then beside a bulk client, in turns: medians over the rounds, and their
    ratios."""
    alone, beside, answers = [], [], []
    for _ in range(rounds):
        alone.append(await open_loop(port, rate, seconds / rounds / 2))
        stop = asyncio.Event()
        load = asyncio.create_task(bulk(port, stop))
        await asyncio.sleep(0.3)
        beside.append(await open_loop(port, rate, seconds / rounds / 2))
        stop.set()
        answers += await load
    found: dict[str, Any] = {
        "bulk_answers": len(answers),
        "bulk_seconds": float(np.median(answers)),
    }
    for name in ("p50_ms", "p99_ms", "max_ms"):
        one, other = (float(np.median([part[name] for part in parts])) for parts in (alone, beside))
        found[name] = {"alone": one, "beside_bulk": other, "ratio": other / one}
    return found


def stolen() -> np.ndarray:
    """Ticks of all processors: those given to other guests, and all."""
    stat = Path("/proc/stat")
    ticks = (
        [int(word) for word in stat.read_text().splitlines()[0].split()[1:9]]
        if stat.exists()
        else [0] * 8
    )
    return np.array([ticks[7], sum(ticks)])


async def batch_or_single(port: int, repeats: int) -> dict[str, Any]:
    """Time per user: 1,000 users in one request, and one after the other."""
    client, rng = Client(port), np.random.default_rng(2)
    batches, singles = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        await client.post(request(rng.integers(0, USERS, 1000).tolist()))
        batches.append((time.perf_counter() - started) / 1000)
        started = time.perf_counter()
        for user in rng.integers(0, USERS, 100).tolist():
            await client.post(request([user]))
        singles.append((time.perf_counter() - started) / 100)
    batch, single = float(np.median(batches)), float(np.median(singles))
    return {
        "batch_ms_per_user": 1e3 * batch,
        "single_ms_per_user": 1e3 * single,
        "ratio": single / batch,
    }


async def closed_loop(port: int, n_clients: int, seconds: float) -> dict[str, Any]:
    """Every client asks again as soon as it is answered."""
    latency: list[float] = []
    statuses: list[int] = []
    end = time.perf_counter() + seconds

    async def client(seed: int) -> None:
        own, rng = Client(port), np.random.default_rng(seed)
        while time.perf_counter() < end:
            started = time.perf_counter()
            statuses.append(await own.post(request([int(rng.integers(USERS))])))
            latency.append(time.perf_counter() - started)

    await asyncio.gather(*(client(seed) for seed in range(n_clients)))
    return {
        "clients": n_clients,
        "requests_per_second": len(latency) / seconds,
        **summary(latency, statuses),
    }


def summary(latency: list[float], statuses: list[int]) -> dict[str, Any]:
    p50, p99 = np.quantile(latency, (0.5, 0.99)) * 1e3
    return {
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "max_ms": float(max(latency) * 1e3),
        "not_ok": sum(status != 200 for status in statuses),
        "server_errors": sum(status >= 500 for status in statuses),
    }


async def measure(port: int, options: argparse.Namespace) -> dict[str, Any]:
    gc.collect()
    gc.freeze()  # else the client looks through its own modules for 180 ms now and then, and blames the server
    await Client(port).post(request([0]))
    before = stolen()
    first = await open_loop(port, options.rate, options.seconds)
    taken, ticks = stolen() - before
    return {
        "items": options.items,
        "dim": options.dim,
        "open_loop": {**first, "stolen": float(taken / max(ticks, 1))},
        "bulk": await under_bulk(port, options.rate, options.seconds),
        "batch": await batch_or_single(port, 5),
        "closed_loop": await closed_loop(port, options.clients, options.seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("items", 100_000), ("dim", 64), ("clients", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        serve(options.items, options.dim)
        return
    command = [
        sys.executable,
        __file__,
        "--server",
        "--items",
        str(options.items),
        "--dim",
        str(options.dim),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            figures = asyncio.run(measure(int(server.stdout.readline()), options))
        finally:
            server.terminate()
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
