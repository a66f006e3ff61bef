"""The best candidates of users, in blocks: one product per block, then a partial sort. Codes in,
codes out.

Scores of a block are written into one buffer that is kept, so that memory does not grow with
requests. One thread computes (`Worker`): small requests that fit together share a product, and a
request of many users is cut into slices that take about as long as one user does. Small requests go
first; slices of large ones take turns, and one of them runs after every few products of small ones.
So a single user waits for about one slice, whatever else is under way, and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch

from puidrec.entities import PairsByUser
from puidrec.evaluation.ranking import mask_seen, top_k
from puidrec.methods.spectrum.members import gamma_max
from puidrec.model import Recommender
from puidrec.optimise.devices import threads_for

BLOCK_SCORES = 2**23
"""Scores held at once: 32 MB, 83 users against 100,000 items."""
SLICE_SCORES = 2**18
"""Scores of one slice of a large request: the scores, and the results below, are what a single user
may wait for."""
SLICE_RESULTS = 500
"""Results of one slice: they are turned into text at once, during which no other thread runs."""
SMALL_IN_A_ROW = 4
"""Products of small requests after which a slice of a large one runs, where one waits."""
FEW_PRODUCTS = 50_000_000
"""Multiplications up to which one thread answers: it need not wait for others, and leaves them
their cores."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is ranked: rows of factors, and the code of each; codes of cold-start items follow the
    catalogue."""

    factors: torch.Tensor
    codes: np.ndarray | None = None
    """None for the whole catalogue, where row is code."""
    rows: np.ndarray | None = None
    """The row of each item of the catalogue among the candidates, −1 where it is none of them."""


@dataclass(frozen=True, eq=False)
class Query:
    """Users as rows of factors, how many candidates each wants, and of which."""

    users: np.ndarray
    seen_by: np.ndarray
    """For each of them, the user code whose rated items are left out; the number of users: nothing
    is left out."""
    k: int
    candidates: Candidates
    left_out: np.ndarray | None = None
    """Codes of items that none of them gets."""
    path_users: np.ndarray | None = None
    """Where `gamma_max` is asked for: the code of each user, −1 for one who was not in training."""
    history: PairsByUser | None = None
    """Codes of items that single users do not get: what they said that they did."""

    @property
    def cost(self) -> int:
        """Scores to be computed."""
        return len(self.users) * len(self.candidates.factors)

    def part(self, start: int, stop: int) -> Query:
        """Some of the users."""
        path = None if self.path_users is None else self.path_users[start:stop]
        own = self.history and (self.history[0][start : stop + 1], self.history[1])
        return replace(
            self,
            users=self.users[start:stop],
            seen_by=self.seen_by[start:stop],
            path_users=path,
            history=own,
        )

    def joins(self, other: Query) -> bool:
        """Whether one product can answer both."""
        same = self.candidates is other.candidates and self.left_out is other.left_out
        alone = (self.path_users, other.path_users, self.history, other.history)
        return same and self.k == other.k and all(part is None for part in alone)


@dataclass(frozen=True)
class Ranking:
    """Codes and scores of the best candidates, best first; −inf where there are fewer than k."""

    codes: np.ndarray
    scores: np.ndarray
    gamma_max: np.ndarray | None = None
    """Up to which Γ each of them stays, where that was asked for; NaN for users who were not in
    training."""


class Engine:
    """A fitted model's factors, ready for top-K. `best` is for one thread at a time."""

    def __init__(
        self, model: Recommender, seen: tuple[np.ndarray, np.ndarray] | None = None
    ) -> None:
        self.scale, self.device, self.seen = (
            model.settings.target_scale,
            model.device_,
            seen or model.logged_pairs(),
        )
        self.path = {
            name: value for name, value in model.parameters_.items() if name.startswith("path.")
        }
        self.user_factors = np.ascontiguousarray(model.user_factors_)
        self.item_factors = np.ascontiguousarray(model.item_factors_)
        self.catalogue = Candidates(torch.from_numpy(self.item_factors).to(self.device))
        self._buffer = torch.empty(0, device=self.device)

    @cached_property
    def users_per_block(self) -> int:
        """Users whose scores fit into the buffer."""
        return max(1, BLOCK_SCORES // max(len(self.item_factors), 1))

    def slice_users(self, query: Query) -> int:
        """Users of a query whose scores and results fit into one slice."""
        return max(
            1, min(SLICE_SCORES // max(len(query.candidates.factors), 1), SLICE_RESULTS // query.k)
        )

    def warm_up(self) -> None:
        """Answer once for as many users as fit into the buffer, so that no client waits for memory
        to be found."""
        users = self.user_factors[: self.users_per_block]
        self.best(Query(users, np.arange(len(users)), 1, self.catalogue))

    def choose(self, codes: np.ndarray | None, cold_items: np.ndarray) -> Candidates:
        """Some items of the catalogue (None: all of them), and cold-start items given as factors."""
        if codes is None and not len(cold_items):
            return self.catalogue
        n_items = len(self.item_factors)
        chosen = np.arange(n_items) if codes is None else np.unique(codes)
        factors = np.concatenate(
            [self.item_factors if codes is None else self.item_factors[chosen], cold_items]
        )
        rows = np.full(n_items, -1)
        rows[chosen] = np.arange(chosen.size)
        codes = np.append(chosen, n_items + np.arange(len(cold_items)))
        return Candidates(torch.from_numpy(factors).to(self.device), codes, rows)

    def best(self, query: Query) -> Ranking:
        """The k best candidates of every user, block by block."""
        size = self.users_per_block
        return _joined(
            [self._block(query.part(at, at + size)) for at in range(0, len(query.users), size)]
        )

    def best_of_each(self, queries: list[Query]) -> list[Ranking]:
        """Answers to queries that join each other, from one product."""
        if len(queries) == 1:
            return [self.best(queries[0])]
        users, seen_by = (
            np.concatenate(parts)
            for parts in zip(*((q.users, q.seen_by) for q in queries), strict=True)
        )
        ranking = self.best(
            Query(users, seen_by, queries[0].k, queries[0].candidates, queries[0].left_out)
        )
        ends = np.cumsum([len(q.users) for q in queries])[:-1]
        pairs = zip(np.split(ranking.codes, ends), np.split(ranking.scores, ends), strict=True)
        return [Ranking(*pair) for pair in pairs]

    def pair_scores(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of pairs given as rows of factors, on the scale of the target."""
        return self.scale.of_scores(np.einsum("nd,nd->n", users, items))

    def _block(self, query: Query) -> Ranking:
        candidates, n_users = query.candidates, len(query.users)
        n_scores = n_users * len(candidates.factors)
        if self._buffer.numel() < n_scores:
            self._buffer = torch.empty(n_scores, device=self.device)
        scores = self._buffer[:n_scores].view(n_users, -1)
        with threads_for(n_scores, candidates.factors.shape[1], FEW_PRODUCTS):
            torch.mm(
                torch.from_numpy(query.users).to(self.device), candidates.factors.T, out=scores
            )
            array: np.ndarray = scores.cpu().numpy()
            mask_seen(array, query.seen_by, *self.seen, candidates.rows)
            if query.history is not None:
                mask_seen(array, np.arange(n_users), *query.history, candidates.rows)
            if query.left_out is not None:
                rows = (
                    query.left_out if candidates.rows is None else candidates.rows[query.left_out]
                )
                array[:, rows[rows >= 0]] = -np.inf
            row, value = top_k(array, query.k)
            last = (
                None
                if query.path_users is None
                else self._gamma_max(query.path_users, candidates, array, row)
            )
        codes = row if candidates.codes is None else candidates.codes[row]
        return Ranking(
            codes, np.where(np.isfinite(value), self.scale.of_scores(value), -np.inf), last
        )

    def _gamma_max(
        self, users: np.ndarray, candidates: Candidates, scores: np.ndarray, best: np.ndarray
    ) -> np.ndarray:
        """Up to which Γ the best candidates of a block stay among the k best."""
        known, last = users >= 0, np.full(best.shape, np.nan)
        last[known] = gamma_max(
            scores[known], users[known], best[known], self.path, candidates.codes
        )
        return last


def _joined(rankings: Sequence[Ranking]) -> Ranking:
    """Rankings of several groups of users as one."""
    last = [r.gamma_max for r in rankings if r.gamma_max is not None]
    both = (
        np.concatenate([r.codes for r in rankings]),
        np.concatenate([r.scores for r in rankings]),
    )
    return Ranking(*both, np.concatenate(last) if last else None)


Render = Callable[[Ranking, int], Any]
"""What is made of the ranking of a part of the users, on the worker's thread; the number is that of
its first user."""


@dataclass(frozen=True)
class _QueryPart:
    turn: int
    number: int
    start: int
    engine: Engine
    query: Query
    render: Render
    answer: asyncio.Future[Any]

    def __lt__(self, other: _QueryPart) -> bool:
        return (self.turn, self.number) < (other.turn, other.number)


class Worker:
    """Answers queries on one thread; belongs to one event loop. Engines may change while it works."""

    def __init__(self) -> None:
        self._small: list[_QueryPart] = []
        self._large: list[_QueryPart] = []
        self._in_a_row = 0
        self._numbers = count()
        self._waiting_scores = 0
        self._seconds_per_score, self._pace = 0.0, (0.0, 0.0)
        self._busy: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    @property
    def waiting_seconds(self) -> float:
        """How long all that waits now will take, by the pace of the last products."""
        return self._waiting_scores * self._seconds_per_score

    def waiting_for(self, engine: Engine, query: Query) -> float:
        """How long what goes before a query will take: a small one does not wait for large ones."""
        if len(query.users) > engine.slice_users(query):
            return self.waiting_seconds
        return sum(part.query.cost for part in self._small) * self._seconds_per_score

    def _note_pace(self, seconds: float, scores: int) -> None:
        """Sums that forget: one small product that was held up says little about the time of large
        ones."""
        self._pace = (0.95 * self._pace[0] + seconds, 0.95 * self._pace[1] + max(scores, 1))
        self._seconds_per_score = self._pace[0] / self._pace[1]

    async def best(self, engine: Engine, query: Query) -> Ranking:
        """The answer to a query."""
        return _joined(await self.parts(engine, query, lambda ranking, start: ranking))

    async def parts(self, engine: Engine, query: Query, render: Render) -> list[Any]:
        """The answer in parts, in the order of the users, each as `render` makes it of a ranking.

        Where the caller gives up (cancellation), what has not begun is not computed.
        """
        loop, size, n_users = (
            asyncio.get_running_loop(),
            engine.slice_users(query),
            len(query.users),
        )
        lane = self._small if n_users <= size else self._large
        parts = [
            _QueryPart(
                turn,
                next(self._numbers),
                at,
                engine,
                query.part(at, at + size),
                render,
                loop.create_future(),
            )
            for turn, at in enumerate(range(0, n_users, size))
        ]
        for part in parts:
            heapq.heappush(lane, part)
            self._waiting_scores += part.query.cost
        if self._busy is None or self._busy.done():
            self._busy = asyncio.create_task(self._work())
        return await asyncio.gather(*(part.answer for part in parts))

    def close(self) -> None:
        """Let the thread end; a query after that starts another."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        self._thread = self._thread or ThreadPoolExecutor(1, "puid-serve")
        while batch := self._batch():
            began, scores = time.perf_counter(), sum(part.query.cost for part in batch)
            try:
                answers = await loop.run_in_executor(self._thread, _compute, batch)
            except Exception as error:  # the requests fail, the worker goes on
                for part in batch:
                    if not part.answer.done():
                        part.answer.set_exception(error)
                continue
            self._note_pace(time.perf_counter() - began, scores)
            for part, answer in zip(batch, answers, strict=True):
                if not part.answer.done():
                    part.answer.set_result(answer)

    def _batch(self) -> list[_QueryPart]:
        """A slice of a large request, or small requests that share a product, up to one block of
        users.

        Parts of clients that left are dropped. A large request gives way to small ones, but not for
        ever.
        """
        self._drop(self._small)
        self._drop(self._large)
        if self._large and (not self._small or self._in_a_row >= SMALL_IN_A_ROW):
            self._in_a_row = 0
            return [self._take(self._large)]
        self._in_a_row += 1
        batch: list[_QueryPart] = []
        others: list[_QueryPart] = []
        room = self._small[0].engine.users_per_block if self._small else 0
        while self._small and room > 0:
            part = self._take(self._small)
            if part.answer.done():
                continue
            if batch and (not batch[0].query.joins(part.query) or len(part.query.users) > room):
                others.append(part)
                continue
            batch.append(part)
            room -= len(part.query.users)
        for part in others:
            heapq.heappush(self._small, part)
            self._waiting_scores += part.query.cost
        return batch

    def _take(self, lane: list[_QueryPart]) -> _QueryPart:
        part = heapq.heappop(lane)
        self._waiting_scores -= part.query.cost
        return part

    def _drop(self, lane: list[_QueryPart]) -> None:
        """Take away the next parts for as long as nobody waits for them."""
        while lane and lane[0].answer.done():
            self._take(lane)


def _compute(batch: list[_QueryPart]) -> list[Any]:
    """The answers of parts that join each other, from one product."""
    rankings = batch[0].engine.best_of_each([part.query for part in batch])
    return [part.render(ranking, part.start) for part, ranking in zip(batch, rankings, strict=True)]
