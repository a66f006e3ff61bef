"""The best candidates of users: one product, then a partial sort. Codes in, codes out.

One thread computes (`ranked`). A request of many users is cut into slices that take about as long
as one user does; the next slice lines up when the one before it is done. So requests take turns,
and a single user waits for at most one slice of each large request, however large that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import torch

from puidrec.entities import PairsByUser
from puidrec.evaluation.ranking import mask_seen, top_k
from puidrec.methods.spectrum.members import gamma_max
from puidrec.model import Recommender

SLICE_SCORES = 2**18
"""Scores of one slice of a large request: the scores, and the results below, are what a single user
may wait for."""
SLICE_RESULTS = 500
"""Results of one slice: they are turned into text at once, during which no other thread runs."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """What is ranked: rows of factors, and the code of each; codes of cold-start items follow the
    catalogue."""

    factors: torch.Tensor
    codes: np.ndarray
    rows: np.ndarray
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
    excluded: np.ndarray
    """Codes that nobody gets: leaving them out of the candidates would copy the factors of all
    others."""
    path_users: np.ndarray | None = None
    """Where `gamma_max` is asked for: the code of each user, −1 for one who was not in training."""
    history: PairsByUser | None = None
    """Codes of items that single users do not get: what they said that they did."""

    def part(self, start: int, stop: int) -> Query:
        """Some of the users."""
        return replace(
            self,
            users=self.users[start:stop],
            seen_by=self.seen_by[start:stop],
            path_users=None if self.path_users is None else self.path_users[start:stop],
            history=self.history and (self.history[0][start : stop + 1], self.history[1]),
        )


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
        everything = np.arange(len(self.item_factors))
        factors = torch.from_numpy(self.item_factors).to(self.device)
        self.catalogue = Candidates(factors, everything, everything)

    def slice_users(self, query: Query) -> int:
        """Users of a query whose scores and results fit into one slice."""
        by_scores = SLICE_SCORES // max(len(query.candidates.factors), 1)
        return max(1, min(by_scores, SLICE_RESULTS // query.k))

    def choose(self, codes: np.ndarray | None, cold_items: np.ndarray) -> Candidates:
        """Some items of the catalogue (None: all of them), and cold-start items given as
        factors."""
        if codes is None and not len(cold_items):
            return self.catalogue
        n_items = len(self.item_factors)
        codes = self.catalogue.codes if codes is None else np.unique(codes)
        factors = np.concatenate([self.item_factors[codes], cold_items])
        rows = np.full(n_items, -1)
        rows[codes] = np.arange(codes.size)
        codes = np.append(codes, n_items + np.arange(len(cold_items)))
        return Candidates(torch.from_numpy(factors).to(self.device), codes, rows)

    def pair_scores(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of pairs given as rows of factors, on the scale of the target."""
        return self.scale.of_scores(np.einsum("nd,nd->n", users, items))

    def best(self, query: Query) -> Ranking:
        """The k best candidates of every user."""
        candidates, n_users = query.candidates, len(query.users)
        left = torch.from_numpy(query.users).to(self.device)
        scores: np.ndarray = (left @ candidates.factors.T).cpu().numpy()
        mask_seen(scores, query.seen_by, *self.seen, candidates.rows)
        if query.history is not None:
            mask_seen(scores, np.arange(n_users), *query.history, candidates.rows)
        left_out = candidates.rows[query.excluded]
        scores[:, left_out[left_out >= 0]] = -np.inf
        row, value = top_k(scores, query.k)
        last = None
        if query.path_users is not None:
            known, last = query.path_users >= 0, np.full(row.shape, np.nan)
            users = query.path_users[known]
            last[known] = gamma_max(scores[known], users, row[known], self.path, candidates.codes)
        value = np.where(np.isfinite(value), self.scale.of_scores(value), -np.inf)
        return Ranking(candidates.codes[row], value, last)


Render = Callable[[Ranking, int], bytes]
"""What is made of the ranking of a part of the users, on the thread that ranks; the number is that
of its first user."""


async def ranked(thread: Executor, engine: Engine, query: Query, render: Render) -> list[bytes]:
    """The answer in parts, in the order of the users, each as `render` makes it of a ranking.

    Where the caller gives up (cancellation), what has not begun is not computed.
    """
    size, loop = engine.slice_users(query), asyncio.get_running_loop()

    def compute(at: int) -> bytes:
        return render(engine.best(query.part(at, at + size)), at)

    starts = range(0, len(query.users), size)
    return [await loop.run_in_executor(thread, compute, at) for at in starts]
