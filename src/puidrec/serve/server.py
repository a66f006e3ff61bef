"""The process: a socket, an event loop and signals. SIGHUP takes the model anew, SIGINT and SIGTERM
end it.

How many connections there are, and how slowly they send and read, is left to a reverse proxy.
"""

from __future__ import annotations

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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from puidrec.errors import InputError
from puidrec.serve.observe import logging_to

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 10
SWITCH_SECONDS = 0.0005  # Python lets a thread compute for 5 ms, which is as long as a whole answer
MAX_HEAD = 2**16  # bytes of a request line and its headers
STEP = 2**13  # bytes that are parsed before a refusal is looked for


class Protocol(HttpToolsProtocol):
    """uvicorn's, with a bound on the head of a request, no ear for chunks, and answers for clients
    that half-close.

    Chunks of one byte cost a thousand times what they cost their client; the application refuses
    the request as soon as it has the head (`Observe`), and what follows is not parsed.
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
        """Whether to go on: a client that has sent its request whole may still wait for the answer."""
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
    """Bind before the model is loaded, so that a port in use is one line. Port 0 takes a free one."""
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
    """Take what was loaded out of the garbage collector's sight: looking through it takes 180 ms."""
    gc.collect()
    gc.freeze()
