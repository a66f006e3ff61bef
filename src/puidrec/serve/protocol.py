"""Slow clients: uvicorn waits for them without end; here a connection has a time for each thing it may do."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""For the head of a request to arrive, from the connection or from its first byte on."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 in which a head must arrive in time and an answer must be taken; the body's time is the guard's."""

    head_seconds = HEAD_SECONDS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The clock of the first head starts."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """A head that is complete stops its clock; the first bytes of the next one start another."""
        super().data_received(data)
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way or self.timeout_keep_alive_task is not None:
            self._disarm()
        elif self._head_timer is None:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._disarm()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes less than it is given: from here on it must take some of it, time and again."""
        super().pause_writing()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one that still owes its client bytes stays while the client takes some."""
        if self.transport.get_write_buffer_size():
            self._watch()
        else:
            super().timeout_keep_alive_handler()

    def _watch(self, before: int = -1) -> None:
        """Abort when nothing was taken since the last look; stop looking when everything was."""
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
