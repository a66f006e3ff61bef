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
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from puidrec.entities import PairsByUser
from puidrec.evaluation.ranking import mask_seen, top_k
from puidrec.methods.spectrum.members import gamma_max
from puidrec.model import Recommender

BLOCK_SCORES = 2**23
"""Scores held at once: 32 MB, 83 users against 100,000 items."""
SLICE_SCORES = 2**18
"""Scores of one slice of a large request: the scores, and the results below, are what a single user
may wait for."""
SLICE_RESULTS = 500
"""Results of one slice: they are turned into text at once, during which no other thread runs."""
SMALL_IN_A_ROW = 4
"""Products of small requests after which a slice of a large one runs, where one waits."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is ranked: rows of factors, and the code of each; codes of cold-start items follow the
    catalogue."""

    factors: torch.Tensor
    codes: np.ndarray
    rows: np.ndarray
    """The row of each item of the catalogue among the candidates, −1 where it is none of them."""
    excluded: np.ndarray
    """Rows that nobody gets: leaving them out of the factors would copy those of all others."""


@dataclass(frozen=True, eq=False)
class Query:
    """Users as rows of factors, how many candidates each wants, and of which."""

    users: np.ndarray
    seen_by: np.ndarray
    """For each of them, the user code whose rated items are left out; the number of users: nothing
    is left out."""
    k: int
    candidates: Candidates
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
        return replace(
            self,
            users=self.users[start:stop],
            seen_by=self.seen_by[start:stop],
            path_users=None if self.path_users is None else self.path_users[start:stop],
            history=self.history and (self.history[0][start : stop + 1], self.history[1]),
        )

    def joins(self, other: Query) -> bool:
        """Whether one product can answer both."""
        alone = (self.path_users, other.path_users, self.history, other.history)
        same = self.candidates is other.candidates and self.k == other.k
        return same and all(part is None for part in alone)


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

    def __init__(self, model: Recommender, seen: PairsByUser | None = None) -> None:
        self.scale, self.device = model.settings.target_scale, model.device_
        self.seen = seen or model.logged_pairs()
        self.path = {
            name: value for name, value in model.parameters_.items() if name.startswith("path.")
        }
        self.user_factors = np.ascontiguousarray(model.user_factors_)
        self.item_factors = np.ascontiguousarray(model.item_factors_)
        everything, nothing = np.arange(len(self.item_factors)), np.zeros(0, np.int64)
        factors = torch.from_numpy(self.item_factors).to(self.device)
        self.catalogue = Candidates(factors, everything, everything, nothing)
        self._buffer = torch.empty(0, device=self.device)

    @property
    def users_per_block(self) -> int:
        """Users whose scores fit into the buffer."""
        return max(1, BLOCK_SCORES // max(len(self.item_factors), 1))

    def slice_users(self, query: Query) -> int:
        """Users of a query whose scores and results fit into one slice."""
        by_scores = SLICE_SCORES // max(len(query.candidates.factors), 1)
        return max(1, min(by_scores, SLICE_RESULTS // query.k))

    def warm_up(self) -> None:
        """Answer once for as many users as fit into the buffer, so that no client waits for memory
        to be found."""
        users = self.user_factors[: self.users_per_block]
        self.best(Query(users, np.arange(len(users)), 1, self.catalogue))

    def choose(
        self,
        codes: np.ndarray | None,
        cold_items: np.ndarray,
        excluded: np.ndarray | None = None,
    ) -> Candidates:
        """Some items of the catalogue (None: all of them), and cold-start items given as factors;
        without the excluded ones of the catalogue."""
        chosen = self.catalogue
        if codes is not None or len(cold_items):
            n_items = len(self.item_factors)
            codes = chosen.codes if codes is None else np.unique(codes)
            factors = np.concatenate([self.item_factors[codes], cold_items])
            rows = np.full(n_items, -1)
            rows[codes] = np.arange(codes.size)
            codes = np.append(codes, n_items + np.arange(len(cold_items)))
            tensor = torch.from_numpy(factors).to(self.device)
            chosen = Candidates(tensor, codes, rows, chosen.excluded)
        if excluded is None or not excluded.size:
            return chosen
        left_out = chosen.rows[excluded]
        return replace(chosen, excluded=left_out[left_out >= 0])

    def best(self, query: Query) -> Ranking:
        """The k best candidates of every user, block by block."""
        starts = range(0, len(query.users), self.users_per_block)
        blocks = [self._block(query.part(at, at + self.users_per_block)) for at in starts]
        codes, scores = ([getattr(one, name) for one in blocks] for name in ("codes", "scores"))
        last = [one.gamma_max for one in blocks if one.gamma_max is not None]
        gammas = np.concatenate(last) if last else None
        return Ranking(np.concatenate(codes), np.concatenate(scores), gammas)

    def best_of_each(self, queries: list[Query]) -> list[Ranking]:
        """Answers to queries that join each other, from one product."""
        if len(queries) == 1:
            return [self.best(queries[0])]
        users = np.concatenate([query.users for query in queries])
        seen_by = np.concatenate([query.seen_by for query in queries])
        ranking = self.best(replace(queries[0], users=users, seen_by=seen_by))
        ends = np.cumsum([len(query.users) for query in queries])[:-1]
        pairs = zip(np.split(ranking.codes, ends), np.split(ranking.scores, ends), strict=True)
        return [Ranking(*pair) for pair in pairs]

    def pair_scores(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of pairs given as rows of factors, on the scale of the target."""
        return self.scale.of_scores(np.einsum("nd,nd->n", users, items))

    def _block(self, query: Query) -> Ranking:
        candidates, n_users = query.candidates, len(query.users)
        if self._buffer.numel() < query.cost:
            self._buffer = torch.empty(query.cost, device=self.device)
        product = self._buffer[: query.cost].view(n_users, -1)
        torch.mm(torch.from_numpy(query.users).to(self.device), candidates.factors.T, out=product)
        scores: np.ndarray = product.cpu().numpy()
        mask_seen(scores, query.seen_by, *self.seen, candidates.rows)
        if query.history is not None:
            mask_seen(scores, np.arange(n_users), *query.history, candidates.rows)
        scores[:, candidates.excluded] = -np.inf
        row, value = top_k(scores, query.k)
        last = None
        if query.path_users is not None:
            known, last = query.path_users >= 0, np.full(row.shape, np.nan)
            users = query.path_users[known]
            last[known] = gamma_max(scores[known], users, row[known], self.path, candidates.codes)
        value = np.where(np.isfinite(value), self.scale.of_scores(value), -np.inf)
        return Ranking(candidates.codes[row], value, last)


Render = Callable[[Ranking, int], Any]
"""What is made of the ranking of a part of the users, on the worker's thread; the number is that of
its first user."""


@dataclass(frozen=True, eq=False)
class _QueryPart:
    engine: Engine
    query: Query
    render: Render
    start: int
    answer: asyncio.Future[Any]


class Worker:
    """Answers queries on one thread; belongs to one event loop. Engines may change while it works."""

    def __init__(self) -> None:
        self._small: list[_QueryPart] = []
        self._large: list[_QueryPart] = []
        self._in_a_row, self._waiting_scores = 0, 0
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

    async def parts(self, engine: Engine, query: Query, render: Render) -> list[Any]:
        """The answer in parts, in the order of the users, each as `render` makes it of a ranking.

        A slice lines up when the one before it is done: so large requests take turns. Where the
        caller gives up (cancellation), what has not begun is not computed.
        """
        size, found, left = engine.slice_users(query), [], query.cost
        lane = self._small if len(query.users) <= size else self._large
        self._waiting_scores += left
        try:
            for at in range(0, len(query.users), size):
                answer = asyncio.get_running_loop().create_future()
                part = _QueryPart(engine, query.part(at, at + size), render, at, answer)
                lane.append(part)
                if self._busy is None or self._busy.done():
                    self._busy = asyncio.create_task(self._work())
                found.append(await answer)
                left -= part.query.cost
                self._waiting_scores -= part.query.cost
        finally:
            self._waiting_scores -= left
        return found

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
        for lane in (self._small, self._large):
            lane[:] = [part for part in lane if not part.answer.done()]
        if self._large and (not self._small or self._in_a_row >= SMALL_IN_A_ROW):
            self._in_a_row = 0
            return [self._large.pop(0)]
        self._in_a_row += 1
        batch: list[_QueryPart] = []
        room = self._small[0].engine.users_per_block if self._small else 0
        for part in self._small:
            n_users = len(part.query.users)
            if not batch or (n_users <= room and batch[0].query.joins(part.query)):
                batch.append(part)
                room -= n_users
        self._small = [part for part in self._small if part not in batch]
        return batch


def _compute(batch: list[_QueryPart]) -> list[Any]:
    """The answers of parts that join each other, from one product."""
    rankings = batch[0].engine.best_of_each([part.query for part in batch])
    return [part.render(ranking, part.start) for part, ranking in zip(batch, rankings, strict=True)]
