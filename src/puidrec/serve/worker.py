"""One thread that computes, fed in blocks: requests that fit together share a product, and none waits for a giant.

A request of many users is cut into blocks that take turns with other requests: its first block competes with their
first blocks, its second with their second. So a single user waits for about one block, whatever else is under way.
"""

from __future__ import annotations

import asyncio
import heapq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np

from puidrec.serve.engine import Engine, Query, Ranking


@dataclass(frozen=True)
class _Part:
    turn: int
    number: int
    query: Query
    answer: asyncio.Future[Ranking]

    def __lt__(self, other: _Part) -> bool:
        return (self.turn, self.number) < (other.turn, other.number)


class Worker:
    """Answers queries on one thread; belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: list[_Part] = []
        self._numbers = count()
        self._busy: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def best(self, query: Query) -> Ranking:
        """The answer to a query; where the caller gives up (cancellation), what has not begun is not computed."""
        loop, size = asyncio.get_running_loop(), self.engine.users_per_block
        parts = [
            _Part(turn, next(self._numbers), query.part(start, start + size), loop.create_future())
            for turn, start in enumerate(range(0, len(query.users), size))
        ]
        for part in parts:
            heapq.heappush(self._waiting, part)
        if self._busy is None or self._busy.done():
            self._busy = asyncio.create_task(self._work())
        rankings = await asyncio.gather(*(part.answer for part in parts))
        return Ranking(*(np.concatenate([getattr(r, name) for r in rankings]) for name in ("codes", "scores")))

    def close(self) -> None:
        """Let the thread end; a query after that starts another."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        self._thread = self._thread or ThreadPoolExecutor(1, "puid-serve")
        while batch := self._batch():
            try:
                rankings = await loop.run_in_executor(
                    self._thread, self.engine.best_of_each, [part.query for part in batch]
                )
            except Exception as error:  # the requests fail, the worker goes on
                for part in batch:
                    if not part.answer.done():
                        part.answer.set_exception(error)
                continue
            for part, ranking in zip(batch, rankings, strict=True):
                if not part.answer.done():
                    part.answer.set_result(ranking)

    def _batch(self) -> list[_Part]:
        """The next part and those that can share its product, up to one block; parts nobody waits for are dropped."""
        batch: list[_Part] = []
        others: list[_Part] = []
        room = self.engine.users_per_block
        while self._waiting and room > 0:
            part = heapq.heappop(self._waiting)
            if part.answer.done():
                continue
            if (batch and not batch[0].query.joins(part.query)) or (batch and len(part.query.users) > room):
                others.append(part)
                continue
            batch.append(part)
            room -= len(part.query.users)
        for part in others:
            heapq.heappush(self._waiting, part)
        return batch
