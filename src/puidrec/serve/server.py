"""The process: a socket, an event loop, limits of connections and of slow clients, signals.

SIGHUP takes the model anew, SIGINT and SIGTERM end it in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TextIO

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from puidrec.errors import InputError
from puidrec.serve.limits import REFUSAL, Code, Limits, Refused
from puidrec.serve.observe import logging_to

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 10
SWITCH_SECONDS = 0.0005
"""After how long a thread that computes lets the event loop go on; Python's own 5 ms are as long as a whole answer."""
LEAST_READ = 16_384
"""Bytes that a client must read between two looks at it; one that takes less holds memory for nothing."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with time limits for the request line and headers (the head) and for taking the answer.

    uvicorn waits for slow clients without end. The time limit of the body is in `limits.Guard`. Connections are counted
    here: one too many takes the place of the longest idle one (of its own client, where that client has too many), so
    that connections which nobody uses keep nobody out.
    """

    head_seconds = 10.0
    """For the head of a request to arrive, from the connection or from its first byte on."""
    limits = Limits()
    proxies: frozenset[str] = frozenset()
    """Addresses of which each stands for many clients."""
    idle_since = 0.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room where there is none, and start the timer of the first head."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        if self._make_room():
            self._arm()
        else:
            transport.abort()

    def _make_room(self) -> bool:
        """Whether the connection may stay; it may be told on its first request that it is one too many."""
        everyone = [
            one for one in self.connections if isinstance(one, TimedProtocol) and not one.transport.is_closing()
        ]
        own = [one for one in everyone if one._address == self._address]
        crowd, most, refused = everyone, self.limits.connections, Refused(Code.OVERLOADED, "too many connections")
        if self._address not in self.proxies and len(own) > self.limits.client_connections:
            crowd, most = own, self.limits.client_connections
            refused = Refused(Code.TOO_MANY_REQUESTS, f"at most {most:,} connections of one client")
        if len(crowd) <= most:
            return True
        idle = [one for one in crowd if one is not self and one._idle]
        if idle:
            min(idle, key=lambda one: one.idle_since).transport.abort()
            return True
        self.app_state = {**self.app_state, REFUSAL: refused}
        return len(crowd) <= most + most // 4

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else "unknown"

    @property
    def _idle(self) -> bool:
        """Whether no request is under way and no answer is being read."""
        done = self.cycle is None or self.cycle.response_complete
        return done and not self.transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when a head is complete; start it again at the first bytes of the next one."""
        super().data_received(data)
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way or self.timeout_keep_alive_task is not None:
            self._disarm()
        elif self._head_timer is None:
            self._arm()

    def on_response_complete(self) -> None:
        """From here on it is idle."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

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
        """Abort when the client has read next to nothing since the last look; stop looking when it has everything.

        More than before means that it has read, and that another answer was written.
        """
        unsent = self.transport.get_write_buffer_size()
        if unsent and 0 <= before - unsent < LEAST_READ:
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
    """uvicorn that ends with exit code 0 when it is told to: a stop is what was asked for, not a failure.

    On SIGHUP it takes the model and the API keys anew, where the system has that signal.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and listen for SIGHUP."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """Take the model and the keys anew; requests under way end with what they began with."""
        self.config.app.state.serving.reload()  # type: ignore[union-attr]

    async def on_tick(self, counter: int) -> bool:
        """Keep the figure of open connections."""
        self.config.app.state.metrics.connections.set(len(self.server_state.connections))  # type: ignore[union-attr]
        return await super().on_tick(counter)

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


def make_server(app: FastAPI, proxies: Sequence[str] = ()) -> Server:
    """A server for an application, with bounds on connections and on time.

    proxies: addresses that stand before it, whose X-Forwarded-For says who asks.
    """
    own = {"limits": app.state.serving.policy.limits, "proxies": frozenset(proxies)}
    config = uvicorn.Config(
        app, http=type("Protocol", (TimedProtocol,), own), ws="none", lifespan="on", log_config=None, access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS, server_header=False,
        proxy_headers=bool(proxies), forwarded_allow_ips=list(proxies),
    )  # fmt: skip
    return Server(config)


def serve_forever(
    app: FastAPI, listener: socket.socket, *, proxies: Sequence[str] = (), log: TextIO | None = None
) -> None:
    """Serve until told to stop, computing on one thread. log: where lines of requests go; None: nowhere.

    A product for one user is over before a second thread has woken, requests that wait share a product anyway, and
    the event loop needs a core of its own: with two threads on a busy machine, requests took ten times as long.
    """
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    allow_files(2 * app.state.serving.policy.limits.connections + 256)
    settle()
    with logging_to(log, app.state.metrics):
        make_server(app, proxies).run([listener])


def survive_hangup() -> None:
    """Take no harm from a SIGHUP that comes before the server can act on it: by default it ends a process."""
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def allow_files(number: int) -> None:
    """Let this process open as many files as it may need for its connections, where the system lets it."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle() -> None:
    """Take what was loaded out of the garbage collector's sight.

    It stays for as long as the server runs, and looking through it held up every request under way for 180 ms.
    """
    gc.collect()
    gc.freeze()
