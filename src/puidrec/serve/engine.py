"""The best candidates of users, in blocks: one product per block, then a partial sort. Codes in, codes out.

Scores of a block are written into one buffer that is kept, so that memory does not grow with requests.
"""

from __future__ import annotations

import asyncio
import heapq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
import torch

from puidrec.evaluation.ranking import top_k
from puidrec.model import Recommender
from puidrec.train.threads import threads_for
from puidrec.train.validate import Scale

BLOCK_SCORES = 2**23
"""Scores held at once: 32 MB, 83 users against 100,000 items."""
FEW_PRODUCTS = 50_000_000
"""Multiplications up to which one thread answers: it waits for nobody, and leaves the other cores to the other work."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is ranked: rows of factors, and the code of each (strangers have codes from the number of items on)."""

    factors: torch.Tensor
    codes: np.ndarray | None = None
    """Sorted; None for the whole catalogue, where position is code."""

    def positions(self, codes: np.ndarray) -> np.ndarray:
        """Where items stand among the candidates; those that are none of them are left out."""
        if self.codes is None:
            return codes
        at = np.searchsorted(self.codes, codes)
        at = at[at < self.codes.size] if at.size else at
        return at[np.isin(self.codes[at], codes)]


@dataclass(frozen=True, eq=False)
class Query:
    """Users as rows of factors, what each of them has seen (codes), how many candidates each wants, of which."""

    users: np.ndarray
    seen: list[np.ndarray]
    k: int
    candidates: Candidates

    def part(self, start: int, stop: int) -> Query:
        """Some of the users."""
        return Query(self.users[start:stop], self.seen[start:stop], self.k, self.candidates)

    def joins(self, other: Query) -> bool:
        """Whether one product can answer both."""
        return self.candidates is other.candidates and self.k == other.k


@dataclass(frozen=True)
class Ranking:
    """Codes and scores of the best candidates, best first; −inf where there are fewer than k."""

    codes: np.ndarray
    scores: np.ndarray


class Engine:
    """A fitted model's factors, ready for top-K. `best` is for one thread at a time."""

    def __init__(self, model: Recommender) -> None:
        self.model, self.scale = model, Scale.of(model.settings)
        self.user_factors = np.ascontiguousarray(model.user_factors_)
        self.item_factors = np.ascontiguousarray(model.item_factors_)
        self.average_user = self.user_factors.mean(0) if len(self.user_factors) else self.item_factors[0] * 0
        self.average_item = self.item_factors.mean(0) if len(self.item_factors) else self.user_factors[0] * 0
        self.device = model.device_
        self.catalogue = Candidates(torch.from_numpy(self.item_factors).to(self.device))
        self._buffer = torch.empty(0, device=self.device)

    @cached_property
    def users_per_block(self) -> int:
        """Users whose scores fit into the buffer."""
        return max(1, BLOCK_SCORES // max(len(self.item_factors), 1))

    def warm_up(self) -> None:
        """Answer once for as many users as fit into the buffer, so that no client waits for memory to be found."""
        users = self.user_factors[: self.users_per_block]
        self.best(Query(users, [self.seen(user) for user in range(len(users))], 1, self.catalogue))

    def seen(self, user: int) -> np.ndarray:
        """Codes of the items that a user has rated in training."""
        start, item = self.model.seen_
        return item[start[user] : start[user + 1]]

    def choose(self, codes: np.ndarray | None, strangers: np.ndarray) -> Candidates:
        """Some items of the catalogue (None: all of them), and strangers given as factors."""
        if codes is None and not len(strangers):
            return self.catalogue
        n_items = len(self.item_factors)
        chosen = np.arange(n_items) if codes is None else np.unique(codes)
        factors = np.concatenate([self.item_factors if codes is None else self.item_factors[chosen], strangers])
        return Candidates(
            torch.from_numpy(factors).to(self.device), np.append(chosen, n_items + np.arange(len(strangers)))
        )

    def best(self, query: Query) -> Ranking:
        """The k best candidates of every user, block by block."""
        size = self.users_per_block
        parts = [self._block(query.part(start, start + size)) for start in range(0, len(query.users), size)]
        codes, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Ranking(codes, scores)

    def best_of_each(self, queries: list[Query]) -> list[Ranking]:
        """Answers to queries that join each other, from one product."""
        first = queries[0]
        joined = first if len(queries) == 1 else Query(
            np.concatenate([q.users for q in queries]), [s for q in queries for s in q.seen], first.k, first.candidates
        )  # fmt: skip
        ranking = self.best(joined)
        ends = np.cumsum([len(q.users) for q in queries])[:-1]
        pairs = zip(np.split(ranking.codes, ends), np.split(ranking.scores, ends), strict=True)
        return [Ranking(*pair) for pair in pairs]

    def pair_scores(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of pairs given as rows of factors, on the scale of the target."""
        return self.scale.of_scores(np.einsum("nd,nd->n", users, items))

    def _block(self, query: Query) -> tuple[np.ndarray, np.ndarray]:
        candidates, n_users = query.candidates, len(query.users)
        n_scores = n_users * len(candidates.factors)
        if self._buffer.numel() < n_scores:
            self._buffer = torch.empty(n_scores, device=self.device)
        scores = self._buffer[:n_scores].view(n_users, -1)
        with threads_for(n_scores, candidates.factors.shape[1], FEW_PRODUCTS):
            torch.mm(torch.from_numpy(query.users).to(self.device), candidates.factors.T, out=scores)
            array: np.ndarray = scores.cpu().numpy()
            for row, codes in enumerate(query.seen):
                array[row, candidates.positions(codes)] = -np.inf
            position, value = top_k(array, query.k)
        codes = position if candidates.codes is None else candidates.codes[position]
        return codes, np.where(np.isfinite(value), self.scale.of_scores(value), -np.inf)


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
