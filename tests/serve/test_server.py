"""A server on a real socket: hostile clients, many clients, a port in use, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.data.dataset import IdMap
from puidrec.data.schema import RatingScale
from puidrec.model import Recommender
from puidrec.serve import server as module
from puidrec.serve.answers import Answers
from puidrec.serve.app import create_app
from puidrec.serve.limits import Limits, Policy
from puidrec.serve.server import make_server, open_socket

ANSWERED = b"HTTP/1.1 200 OK\r\n"


def random_model(n_users: int, n_items: int, dim: int) -> Recommender:
    rng = np.random.default_rng(0)
    model = Recommender("mf", dim=dim, backbone="mf")
    model.user_factors_ = rng.normal(size=(n_users, dim + 2)).astype(np.float32)
    model.item_factors_ = rng.normal(size=(n_items, dim + 2)).astype(np.float32)
    model.user_ids_, model.item_ids_ = (
        IdMap(pl.Series("id", np.arange(n))) for n in (n_users, n_items)
    )
    model.seen_ = (
        np.arange(n_users + 1) * 5,
        rng.integers(0, n_items, n_users * 5).astype(np.int32),
    )
    model.parameters_, model.encoders_, model.history_, model.report_ = {}, {}, [], {}
    model.rating_scale_ = RatingScale(1.0, 5.0)
    return model


class Running:
    """A server on a thread of this process."""

    def __init__(self, model: Recommender, **limits: Any) -> None:
        self.listener = open_socket("127.0.0.1", 0)
        self.listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 65536
        )  # inherited: answers must not fit into it
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        own = Policy(limits=Limits(**limits))
        self.app = create_app(lambda: Answers(model, own))
        self.server = make_server(self.app)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    @property
    def connections(self) -> list[Any]:
        return list(self.server.server_state.connections)

    def wait(self, until: Any, tries: int = 1000) -> bool:
        for _ in range(tries):
            if until():
                return True
            time.sleep(0.02)
        return False

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.5)
    server = Running(random_model(100, 20_000, 8), read_seconds=0.5, seconds=5)
    yield server
    server.stop()


def post(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /recommend HTTP/1.1\r\nhost: x\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(content)}\r\n"
    )
    return head.encode() + b"\r\n" + content


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_answer(connection: socket.socket) -> bytes:
    """One answer of a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line[15:])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def test_a_body_that_does_not_come_gets_408(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(post({"users": [1]})[:-5])
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"too_slow" in answer


def test_a_body_too_large_is_refused_before_it_is_sent(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(
            b"POST /score HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n"
        )
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")


CHUNKED = b"POST /recommend HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
ONE_BYTE = b"1\r\n \r\n"


@pytest.mark.parametrize("path", [b"/recommend", b"/livez", b"/nothing"])
def test_a_body_of_unknown_length_is_refused_before_it_is_read(
    running: Running, path: bytes
) -> None:
    with running.connect() as connection:
        connection.sendall(CHUNKED.replace(b"/recommend", path) + b"\r\n" + ONE_BYTE)
        answer = read_all(connection)  # it ends: the server has hung up
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "length_required"


@pytest.mark.parametrize(
    "head",
    [
        CHUNKED + b"content-length: 4\r\n",
        CHUNKED.replace(b"transfer", b"content-length: 4\r\ntransfer"),
        CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: 4\r\ncontent-length: 5"),
    ],
)
def test_two_lengths_are_refused(running: Running, head: bytes) -> None:
    """A proxy that reads the one and a server that reads the other see different requests."""
    with running.connect() as connection:
        connection.sendall(head + b"\r\n0\r\n\r\n" + post({"users": [1]}))
        answer = read_all(connection)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 411 "))
    assert answer.count(b"HTTP/1.1 ") == 1  # what follows is no second request


@pytest.mark.parametrize("head", [b"GET /livez?", b"GET /livez HTTP/1.1\r\nx: "])
def test_a_head_without_end_is_refused(running: Running, head: bytes) -> None:
    with running.connect() as connection:
        connection.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"x" * 65536)
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
    assert running.wait(lambda: not running.connections)


@pytest.mark.parametrize("users", [1, 100])
def test_a_client_that_sends_no_more_gets_its_answer(running: Running, users: int) -> None:
    body = {"users": list(range(users)), "k": 1000}
    with running.connect() as connection:
        connection.sendall(post(body))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer.startswith(ANSWERED)
    found = json.loads(answer.partition(b"\r\n\r\n")[2])["recommendations"]
    assert [len(one["items"]) for one in found] == [1000] * users
    with running.connect() as connection:  # half a request is not waited for
        connection.sendall(post(body)[:-3])
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    assert running.wait(lambda: not running.connections)


def test_chunks_are_not_parsed(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where they come with the head: 40,000 chunks of one byte were 40,000 events on the
    loop."""
    events: list[int] = []
    on_body = module.Protocol.on_body
    monkeypatch.setattr(
        module.Protocol, "on_body", lambda self, body: (events.append(1), on_body(self, body))
    )
    head = b"POST /recommend HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with running.connect() as connection:
        connection.sendall(head + b"1\r\n \r\n" * 40_000)
        assert read_all(connection).startswith(b"HTTP/1.1 411 ")
    assert len(events) < 2000
    with running.connect() as connection:  # whole bodies are parsed whole
        connection.sendall(post({"users": [1], "exclude": list(range(15_000))}))
        assert read_answer(connection).startswith(ANSWERED)


def test_answers_to_clients_that_left_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    """A client that closes looks like one that half-closes, until the first write to it fails."""
    running = Running(random_model(1000, 2000, 8))
    with caplog.at_level("WARNING", "asyncio"):
        for _ in range(5):
            with running.connect() as connection:
                connection.sendall(post({"users": list(range(1000)), "k": 100}))
        seconds = running.app.state.metrics.seconds.labels("/recommend")
        assert running.wait(lambda: sum(bucket.get() for bucket in seconds._buckets) == 5)
    running.stop()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


def test_an_answer_that_is_not_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results would be counted for ever, and keep others out."""
    running = Running(random_model(100, 20_000, 8), seconds=1.5, all_results=100_000)
    body = {"users": list(range(100)), "k": 1000}
    with socket.socket() as silent, running.connect() as other:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", running.port))
        silent.sendall(post(body))  # and does not read
        assert running.wait(
            lambda: any(c.transport.get_write_buffer_size() for c in running.connections)
        )
        other.sendall(post(body))
        refused = read_answer(other)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in refused

        def taken() -> bool:
            other.sendall(post(body))
            return read_answer(other).startswith(ANSWERED)

        assert running.wait(taken)
    running.stop()


def test_requests_under_way_are_limited() -> None:
    running = Running(random_model(20, 50, 4), read_seconds=30, all_requests=3)
    busy = [running.connect() for _ in range(3)]
    for one in busy:
        one.sendall(post({"users": [1]})[:-5])
    assert running.wait(lambda: sum(c.cycle is not None for c in running.connections) == 3)
    with running.connect() as connection:
        connection.sendall(post({"users": [1]}))
        answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_answer(connection).startswith(ANSWERED)
    for one in busy:  # those who came before lose nothing
        one.sendall(post({"users": [1]})[-5:])
        assert read_answer(one).startswith(ANSWERED)
        one.close()
    running.stop()


def test_a_slow_reader_who_reads_gets_everything(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(post({"users": list(range(100)), "k": 1000}))
        time.sleep(0.8)  # beyond the keep-alive time
        body = read_answer(connection).partition(b"\r\n\r\n")[2]
    assert len(json.loads(body)["recommendations"]) == 100


def test_garbage_is_refused(running: Running) -> None:
    with running.connect() as connection:
        connection.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_answers_leave_at_once(running: Running) -> None:
    """With Nagle's algorithm, answers on a kept connection wait 40 ms for an acknowledgement."""
    with running.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        read_answer(connection)
        ours = running.connections[0].transport.get_extra_info("socket")
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_was_loaded_is_out_of_the_collectors_sight() -> None:
    """Looking through modules and a model takes 180 ms, during which nobody is answered."""
    try:
        module.settle()
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()


def test_a_stop_lets_the_answer_under_way_finish() -> None:
    running = Running(random_model(1000, 20_000, 16))
    with running.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        read_answer(connection)
        connection.sendall(post({"users": list(range(1000)), "k": 100}))
        time.sleep(0.05)
        running.server.should_exit = True
        answer = read_answer(connection)
    running.stop()
    assert answer.startswith(ANSWERED)
    with pytest.raises(OSError):
        running.connect()


def test_a_stop_does_not_wait_for_clients_that_hold_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads and bodies that do not end, answers that nobody takes, a client that sends chunks for
    ever."""
    monkeypatch.setattr(module, "SHUTDOWN_SECONDS", 1)
    running = Running(random_model(1000, 20_000, 16))
    large, stop = post({"users": list(range(1000)), "k": 100}), threading.Event()
    chunks = (
        b"POST /score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"1\r\n \r\n" * 4000
    )

    def flood() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), running.connect() as connection:
                connection.sendall(chunks)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        with contextlib.ExitStack() as held:
            for first in (b"", b"GET /", large[:60], large[:-5], large, large, large):
                for _ in range(8):
                    held.enter_context(running.connect()).sendall(first)
            time.sleep(0.3)
            began = time.monotonic()
            running.server.should_exit = True
            running.thread.join(20)
            assert not running.thread.is_alive()
            assert (
                time.monotonic() - began < 1 + 5
            )  # the grace period, and a machine that does other work
    finally:
        stop.set()
        flooding.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_for_an_end_and_is_not_raised_again(number: signal.Signals) -> None:
    server, before = (
        make_server(create_app(lambda: Answers(random_model(3, 3, 2)))),
        signal.getsignal(number),
    )
    with server.capture_signals():
        signal.raise_signal(number)
        assert server.should_exit
    assert signal.getsignal(number) is before


def test_a_port_in_use_is_one_line(refusal: Any) -> None:
    with open_socket("127.0.0.1", 0) as first:
        first.listen()
        refusal(lambda: open_socket("127.0.0.1", first.getsockname()[1]), "cannot listen", "--port")
    refusal(lambda: open_socket("256.1.1.1", 0), "cannot listen")
    refusal(lambda: open_socket("\u0000", 0), "cannot listen")


def test_a_clock_that_is_set_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits and durations come from clocks that only go forward; no answer is given up too
    early."""
    real, looks = time.time, itertools.count(1)
    back = lambda: real() - 3600.0 * next(looks)  # noqa: E731 (an hour earlier at each look)
    monkeypatch.setattr(time, "time", back)
    monkeypatch.setattr(time, "time_ns", lambda: int(back() * 1e9))
    running = Running(random_model(50, 200, 4), read_seconds=0.5, seconds=5)
    with running.connect() as connection:
        for _ in range(5):
            connection.sendall(post({"users": [1, 2]}))
            assert read_answer(connection).startswith(ANSWERED)
    with running.connect() as connection:
        connection.sendall(post({"users": [1]})[:-5])
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")
    assert 0.5 <= running.app.state.metrics.seconds.labels("/recommend")._sum.get() < 5
    running.stop()
    serving = running.app.state.serving

    async def story() -> None:
        serving.reload()
        await serving.wait()

    asyncio.run(story())
    assert serving.metrics.reloads.labels("done")._value.get() == 1


def test_sixty_four_clients_are_all_answered() -> None:
    """The short form of `bench/serve.py`: no server error, no client forgotten, answers that are
    right."""
    model = random_model(500, 20_000, 16)
    running, requests = Running(model), 20
    statuses: list[int] = []
    expected = {
        user: model.recommend([user], k=3)["item_id"].to_list() for user in range(0, 500, 25)
    }

    async def client(seed: int) -> int:
        rng, answered = np.random.default_rng(seed), 0
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for _ in range(requests):
            user = int(rng.choice(list(expected)))
            writer.write(post({"users": [user], "k": 3}))
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")
            )
            body = json.loads(await reader.readexactly(length))
            statuses.append(int(head[9:12]))
            assert body["recommendations"][0]["items"] == expected[user]
            answered += 1
        writer.close()
        return answered

    async def everyone() -> list[int]:
        return await asyncio.gather(*(client(seed) for seed in range(64)))

    answered = asyncio.run(everyone())
    running.stop()
    assert set(statuses) == {200}
    assert answered == [requests] * 64
