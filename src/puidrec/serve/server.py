"""The process: a socket, an event loop, and an orderly end on SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from puidrec.errors import InputError
from puidrec.serve.protocol import TimedProtocol

KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 10
MAX_CONNECTIONS = 1024


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
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {host}:{port} ({reason})", hint="Choose another --port (0: any free one) or --host."
        ) from error
    return listener


def make_server(app: Any) -> Server:
    """A server for an application, with bounds on connections and on time."""
    config = uvicorn.Config(
        app, http=TimedProtocol, ws="none", lifespan="on", log_level="warning", access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MAX_CONNECTIONS, server_header=False, proxy_headers=False,
    )  # fmt: skip
    return Server(config)
