"""The process: a socket, an event loop, time limits for slow clients, and an orderly end on SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import torch
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from puidrec.errors import InputError

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 10
MAX_CONNECTIONS = 1024


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with time limits for the request line and headers (the head) and for taking the answer.

    uvicorn waits for slow clients without end. The time limit of the body is in `limits.Guard`.
    """

    head_seconds = 10.0
    """For the head of a request to arrive, from the connection or from its first byte on."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when a head is complete; start it again at the first bytes of the next one."""
        super().data_received(data)
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way or self.timeout_keep_alive_task is not None:
            self._disarm()
        elif self._head_timer is None:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer: no head will come."""
        self._disarm()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes: watch from here on that it reads at all."""
        super().pause_writing()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, but not while its client is still reading an answer."""
        if self.transport.get_write_buffer_size():
            self._watch()
        else:
            super().timeout_keep_alive_handler()

    def _watch(self, before: int = -1) -> None:
        """Abort when the client has read nothing since the last look; stop looking when it has read everything."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent == before:
            self.transport.abort()
        elif unsent and not self.transport.is_closing():
            self.loop.call_later(self.timeout_keep_alive, self._watch, unsent)
        elif self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is not None:
            super().timeout_keep_alive_handler()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn that ends with exit code 0 when it is told to: a stop is what was asked for, not a failure."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals while serving and give them back after, without raising them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_socket(host: str, port: int) -> socket.socket:
    """Bind before the model is served, so that a port in use is one line and not a trace. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off only where it is: 40 ms per answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError, TypeError, ValueError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {host}:{port} ({reason})", hint="Choose another --port (0: any free one) or --host."
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL under which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Any) -> Server:
    """A server for an application, with bounds on connections and on time."""
    config = uvicorn.Config(
        app, http=TimedProtocol, ws="none", lifespan="on", log_level="warning", access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MAX_CONNECTIONS, server_header=False, proxy_headers=False,
    )  # fmt: skip
    return Server(config)


def serve_forever(app: Any, listener: socket.socket) -> None:
    """Serve until told to stop, computing on one thread.

    A product for one user is over before a second thread has woken, requests that wait share a product anyway, and
    the event loop needs a core of its own: with two threads on a busy machine, requests took ten times as long.
    """
    torch.set_num_threads(1)
    settle()
    make_server(app).run([listener])


def settle() -> None:
    """Take what was loaded out of the garbage collector's sight.

    It stays for as long as the server runs, and looking through it held up every request under way for 180 ms.
    """
    gc.collect()
    gc.freeze()
