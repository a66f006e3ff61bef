"""From a request to an answer: factors of known ids, of a history or of features, else the average;
then the best candidates of users: one product and a partial sort, codes in, codes out.

One thread computes (`ranked`). A request of many users is cut into slices that take about as long
as one user does; the next slice lines up when the one before it is done. So requests take turns,
and a single user waits for at most one slice of each large request, however large that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from puidrec import __version__
from puidrec.cold_start import ColdStart
from puidrec.entities import Entities, PairsByUser, Side
from puidrec.errors import InputError
from puidrec.evaluation.ranking import mask_seen, top_k
from puidrec.fold_in import folded_factors
from puidrec.methods.spectrum.members import gamma_max
from puidrec.model import Recommender
from puidrec.serve import Seen, Unknown
from puidrec.serve.limits import Code, Limits, Policy, Refused, require_at_most
from puidrec.serve.schema import Basis, Item, RecommendRequest, ScoreRequest, User

Named = int | str | User | Item


@dataclass(frozen=True)
class Resolved:
    """Entities of a request: their ids, codes (-1: not in the training data), factors, and what
    these rest on."""

    ids: list[int | str]
    codes: np.ndarray
    factors: np.ndarray
    basis: list[Basis]


class EntityLookup:
    """One side of the model, looked up by the ids of requests. A dictionary finds single ids faster
    than a join."""

    def __init__(self, side: Side, entities: Entities, cold_start: ColdStart) -> None:
        self.side, self.cold_start = side, cold_start
        self.factors = entities.with_average  # the average is the last row, -1
        self.ids: list[int | str] = entities.ids.ids.to_list()
        self.id_type = "integer" if entities.ids.ids.dtype.is_integer() else "text"
        self._code = {own: code for code, own in enumerate(self.ids)}

    def card(self) -> dict[str, Any]:
        """What `/model` tells of this side."""
        return {
            f"{self.side}s": len(self.ids),
            f"{self.side}_id_type": self.id_type,
            f"{self.side}_features": self.cold_start.names(self.side),
        }

    def codes(self, ids: Sequence[int | str], field: str) -> np.ndarray:
        """Codes of ids; those that cannot be of this model are refused."""
        for at, own in enumerate(ids):
            if isinstance(own, int) is not (self.id_type == "integer"):
                kind = "integers" if self.id_type == "integer" else "text"
                message = f"{self.side} ids of this model are {kind}"
                raise Refused(Code.WRONG_ID_TYPE, message, f"{field}.{at}")
        return np.array([self._code.get(own, -1) for own in ids], dtype=np.int64)

    def resolve(
        self,
        named: Sequence[Named],
        field: str,
        unknown: Unknown,
        folded: Mapping[int, np.ndarray] | None = None,
    ) -> Resolved:
        """Factors of everyone named; of unknown ids without features the average, or a refusal.

        folded: factors by position in `named` that are known already, of users with a history.
        """
        folded = folded or {}
        ids = [one.id if isinstance(one, User | Item) else one for one in named]
        codes = self.codes(ids, field)
        codes[list(folded)] = -1
        factors = self.factors[codes]
        basis = [Basis.PRIOR if code < 0 else Basis.TRAINED for code in codes.tolist()]
        features = [one.features if isinstance(one, User | Item) else {} for one in named]
        featured = []
        for at in np.flatnonzero(codes < 0).tolist():
            if at in folded:
                basis[at], factors[at] = Basis.HISTORY, folded[at]
            elif features[at] and self.cold_start.names(self.side):
                featured.append(at)
                basis[at] = Basis.FEATURES
            elif unknown is Unknown.REFUSE:
                why = f" and reads no {self.side} features" if features[at] else ""
                message = f"the model does not know this {self.side}{why}"
                code = Code.UNKNOWN_USER if self.side == "user" else Code.UNKNOWN_ITEM
                raise Refused(code, message, f"{field}.{at}")
        try:
            self.cold_start.check(self.side, [given for given in features if given])
            if featured:
                given = [features[at] for at in featured]
                factors[featured] = self.cold_start.represent(self.side, given)
        except InputError as error:
            raise Refused(Code.INVALID, str(error), field) from error
        return Resolved(ids, codes, factors, basis)


def nothing_seen(model: Recommender) -> PairsByUser:
    """The list of rated items of a model whose users rated nothing."""
    return np.zeros(len(model.user_ids_) + 1, np.int64), np.zeros(0, np.int32)


@dataclass(frozen=True)
class Plan:
    """A query, and what is needed to phrase its answer."""

    query: Query
    users: Resolved
    items: list[int | str]
    """Ids by code; cold-start items follow the catalogue."""
    unknown_items: list[int | str]
    offset: int

    def entries(self, ranking: Ranking, start: int = 0) -> list[dict[str, Any]]:
        """The answer for some of the users, in the caller's ids. start: the number of the first of
        them."""
        found = []
        for at, scores in enumerate(ranking.scores):
            kept = slice(self.offset, int(np.isfinite(scores).sum()))
            entry = {
                "user_id": self.users.ids[start + at],
                "basis": self.users.basis[start + at],
                "items": [self.items[code] for code in ranking.codes[at, kept].tolist()],
                "scores": scores[kept].tolist(),
            }
            if ranking.gamma_max is not None:
                trained = self.users.codes[start + at] >= 0
                entry["gamma_max"] = ranking.gamma_max[at, kept].tolist() if trained else None
            found.append(entry)
        return found


class Answers:
    """Everything between HTTP and the engine, for one fitted model; metrics and environment are
    what `/model` tells of its making."""

    def __init__(
        self,
        model: Recommender,
        policy: Policy | None = None,
        metrics: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.policy = model, policy or Policy()
        policy, metrics, environment = self.policy, metrics or {}, environment or {}
        never = policy.seen is Seen.NEVER
        self.engine = Engine(model, nothing_seen(model) if never else None)
        # the first product loads libraries: no client waits for that
        nobody, first = np.zeros(1, int), self.engine.user_factors[:1]
        self.engine.best(Query(first, nobody, 1, self.engine.catalogue, nobody[:0]))
        cold_start = ColdStart(model)
        users = Entities(model.user_ids_, self.engine.user_factors)
        items = Entities(model.item_ids_, self.engine.item_factors)
        self.users = EntityLookup("user", users, cold_start)
        self.items = EntityLookup("item", items, cold_start)
        apart = ("method", "gamma", "protocol")
        self.card = {
            "method": model.settings.method,
            "description": model.settings.spec.description,
            "data": environment.get("data"),
            "data_sha256": environment.get("data_sha256"),
            "protocol": metrics.get("protocol"),
            "metrics": {key: value for key, value in metrics.items() if key not in apart},
            "gamma": model.report_.get("gamma"),
            "settings": model.settings.model_dump(),
            **self.users.card(),
            **self.items.card(),
            "unknown": policy.unknown.value,
            "seen": policy.seen.value,
            "loaded": datetime.now(UTC).isoformat(timespec="seconds"),
            "limits": {n: getattr(policy.limits, n) for n in Limits.__annotations__},
            "version": __version__,
        }

    def plan(self, request: RecommendRequest) -> Plan:
        """What to compute for a request, whose lists were counted when it was read; all other
        refusals are here.

        Candidates are the items asked for (or all), and unknown ones with features. A new item that
        is known after all is ranked as such.
        """
        limits, depth = self.policy.limits, request.k + request.offset
        require_at_most("k", request.k, limits.k)
        require_at_most("offset", request.offset, limits.k)
        n_results = len(request.users) * depth
        require_at_most("users", n_results, limits.results, "users × (offset + k)")
        excludes_seen = self._excludes_seen(request)
        folded, history = self._histories(request.users, "users")
        users = self.users.resolve(request.users, "users", self.policy.unknown, folded)
        parts = [self.items.resolve(request.new_items, "new_items", Unknown.REFUSE)]
        if request.items is not None:
            parts.insert(0, self.items.resolve(request.items, "items", self.policy.unknown))
        excluded = self.items.codes(request.exclude, "exclude")
        strangers = {
            part.ids[at]: part.factors[at] if part.basis[at] is Basis.FEATURES else None
            for part in parts
            for at in np.flatnonzero(part.codes < 0).tolist()
        }
        for own in request.exclude:
            strangers.pop(own, None)
        cold = {own: factors for own, factors in strangers.items() if factors is not None}
        left_out = [own for own in strangers if own not in cold]
        if request.stable and not self.engine.path:
            method = self.model.settings.method
            message = f"this model ({method}) has no path along Γ: leave stable out"
            raise Refused(Code.INVALID, message, "stable")
        if request.stable and cold:
            raise Refused(Code.INVALID, "stable is for items of the training data", "new_items")
        codes = np.concatenate([part.codes[part.codes >= 0] for part in parts])
        shape = len(cold), self.engine.item_factors.shape[1]
        rows = np.array(list(cold.values()), np.float32).reshape(shape)
        candidates = self.engine.choose(None if request.items is None else codes, rows)
        query = Query(
            users.factors,
            np.where((users.codes >= 0) & excludes_seen, users.codes, len(self.users.ids)),
            depth,
            candidates,
            excluded[excluded >= 0],
            users.codes if request.stable else None,
            None if request.exclude_seen is False else history,
        )
        names = [*self.items.ids, *cold] if cold else self.items.ids
        return Plan(query, users, names, left_out, request.offset)

    def scores(self, request: ScoreRequest) -> dict[str, Any]:
        """Scores of pairs, on the scale of the target."""
        named = [pair.user for pair in request.pairs]
        folded, _ = self._histories(named, "pairs")
        users = self.users.resolve(named, "pairs", self.policy.unknown, folded)
        items = self.items.resolve(
            [pair.item for pair in request.pairs], "pairs", self.policy.unknown
        )
        values = self.engine.pair_scores(users.factors, items.factors)
        return {"scores": values.tolist(), "user_basis": users.basis, "item_basis": items.basis}

    def _histories(
        self, named: Sequence[Named], field: str
    ) -> tuple[dict[int, np.ndarray], PairsByUser | None]:
        """Factors of users by the history they bring, by position; and its items, by user."""
        rows = [
            (at, row.item, row.rating)
            for at, one in enumerate(named)
            if isinstance(one, User)
            for row in one.history
        ]
        if not rows:
            return {}, None
        at, items, ratings = zip(*rows, strict=True)
        user, rating = np.array(at), np.array(ratings, dtype=np.float64)  # None becomes NaN
        code, scale = self.items.codes(items, f"{field}.history"), self.model.rating_scale_
        rating[np.isnan(rating)] = scale.high
        off = (rating < scale.low) | (rating > scale.high)
        if off.any():
            message = f"found rating {rating[off][0]:g}; expected one on the scale {scale}"
            raise Refused(Code.INVALID, message, f"{field}.{user[off][0]}.history")
        user, code, rating = (part[code >= 0] for part in (user, code, rating))
        if not code.size:
            return {}, None
        told, place = np.unique(user, return_inverse=True)
        codes = self.users.codes([named[at].id for at in told], field)
        try:
            factors = folded_factors(self.model, codes, place, code, rating)
        except InputError as error:
            raise Refused(Code.INVALID, str(error), field) from error
        start = np.cumsum([0, *np.bincount(user, minlength=len(named))])
        return dict(zip(told.tolist(), factors, strict=True)), (start, code)

    def _excludes_seen(self, request: RecommendRequest) -> bool:
        """Whether what a user rated is left out; refused where the answer would tell a client what
        the user rated."""
        allowed = self.policy.seen is Seen.ALWAYS or (
            self.policy.seen is Seen.CATALOGUE and request.items is None
        )
        if request.exclude_seen and not allowed:
            why = "with a list of items it would tell which of them the user rated"
            why = "it forgot them" if request.items is None else why
            message = f"this server does not leave out rated items here ({why}): use exclude"
            raise Refused(Code.INVALID, message, "exclude_seen")
        return allowed if request.exclude_seen is None else request.exclude_seen


# The engine

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
