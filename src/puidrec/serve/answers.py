"""From a request to an answer: who is known, who comes with features, who gets the average; then the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puidrec.data.dataset import IdMap
from puidrec.errors import InputError
from puidrec.model import Recommender
from puidrec.serve.engine import Engine, Query, Ranking
from puidrec.serve.limits import Code, Limits, Refused, require_at_most
from puidrec.serve.schema import Basis, Entity, RecommendRequest, ScoreRequest, Unknown
from puidrec.train.cold import Side, Strangers

NOTHING_SEEN = np.zeros(0, np.int32)
UNKNOWN: dict[Side, Code] = {"user": Code.UNKNOWN_USER, "item": Code.UNKNOWN_ITEM}
Named = int | str | Entity


@dataclass(frozen=True)
class Resolved:
    """Entities of a request: their ids, codes (-1: not in the training data), factors, and what these rest on."""

    ids: list[int | str]
    codes: np.ndarray
    factors: np.ndarray
    basis: list[Basis]


class Population:
    """One side of the model, looked up by the caller's ids."""

    def __init__(self, side: Side, ids: IdMap, factors: np.ndarray, average: np.ndarray, strangers: Strangers) -> None:
        self.side, self.factors, self.average, self.strangers = side, factors, average, strangers
        self.ids: list[int | str] = ids.ids.to_list()
        self.integers = ids.ids.dtype.is_integer()
        self.code = {own: code for code, own in enumerate(self.ids)}

    @property
    def id_type(self) -> str:
        """How ids are written in JSON."""
        return "integer" if self.integers else "text"

    def resolve(self, named: Sequence[Named], field: str, unknown: Unknown) -> Resolved:
        """Factors of everyone named; strangers without features as configured."""
        ids = [one.id if isinstance(one, Entity) else one for one in named]
        wrong = next((at for at, own in enumerate(ids) if isinstance(own, int) is not self.integers), None)
        if wrong is not None:
            raise Refused(
                Code.WRONG_ID_TYPE,
                f"{self.side} ids of this model are {'integers' if self.integers else 'text'}",
                f"{field}.{wrong}",
            )
        codes = np.array([self.code.get(own, -1) for own in ids], dtype=np.int64)
        factors = np.where(codes[:, None] < 0, self.average, self.factors[codes])
        basis = [Basis.PRIOR if code < 0 else Basis.TRAINED for code in codes.tolist()]
        brings = [one.features if isinstance(one, Entity) else {} for one in named]
        featured = []
        for at in np.flatnonzero(codes < 0).tolist():
            if brings[at] and self.strangers.names(self.side):
                featured.append(at)
                basis[at] = Basis.FEATURES
            elif unknown is Unknown.REFUSE:
                why = f" and reads no {self.side} features" if brings[at] else ""
                raise Refused(UNKNOWN[self.side], f"the model does not know this {self.side}{why}", f"{field}.{at}")
        try:
            self.strangers.check(self.side, [one for one in brings if one])
            if featured:
                factors[featured] = self.strangers.represent(self.side, [brings[at] for at in featured])
        except InputError as error:
            raise Refused(Code.INVALID, str(error), field) from error
        return Resolved(ids, codes, factors, basis)


class Answers:
    """Everything between HTTP and the engine; knows the limits and what strangers get."""

    def __init__(self, model: Recommender, unknown: Unknown = Unknown.PRIOR, limits: Limits | None = None) -> None:
        self.model, self.unknown, self.limits = model, unknown, limits or Limits()
        self.engine, strangers = Engine(model), Strangers(model)
        engine = self.engine
        self.users = Population("user", model.user_ids_, engine.user_factors, engine.average_user, strangers)
        self.items = Population("item", model.item_ids_, engine.item_factors, engine.average_item, strangers)

    def plan(self, request: RecommendRequest) -> Plan:
        """What to compute for a request, whose lists were counted when it was read; all other refusals are here."""
        require_at_most("k", request.k, self.limits.k)
        require_at_most("users", len(request.users) * request.k, self.limits.results, "users × k")
        users = self.users.resolve(request.users, "users", self.unknown)
        if request.items is None:
            codes, listed = None, None
        else:
            listed = self.items.resolve(request.items, "items", self.unknown)
            codes = listed.codes[listed.codes >= 0]
        new = self.items.resolve(request.new_items, "new_items", Unknown.REFUSE)
        return self._plan(request, users, codes, listed, new)

    def _plan(
        self, request: RecommendRequest, users: Resolved, codes: np.ndarray | None, listed: Resolved | None,
        new: Resolved,
    ) -> Plan:  # fmt: skip
        """Candidates: the items asked for (or all), and strangers with features; known 'new' items join the filter."""
        strangers: dict[int | str, np.ndarray] = {}
        left_out: list[int | str] = []
        for part in (new,) if listed is None else (listed, new):
            for at in np.flatnonzero(part.codes < 0).tolist():
                if part.basis[at] is Basis.FEATURES:
                    strangers[part.ids[at]] = part.factors[at]
                else:
                    left_out.append(part.ids[at])
        if codes is not None:
            codes = np.concatenate([codes, new.codes[new.codes >= 0]])
        width = self.engine.item_factors.shape[1]
        rows = np.array(list(strangers.values()), np.float32).reshape(-1, width)
        seen = [
            self.engine.seen(code) if request.exclude_seen and code >= 0 else NOTHING_SEEN
            for code in users.codes.tolist()
        ]
        query = Query(users.factors, seen, request.k, self.engine.choose(codes, rows))
        return Plan(query, users, list(strangers), list(dict.fromkeys(left_out)))

    def recommendations(self, plan: Plan, ranking: Ranking) -> dict[str, Any]:
        """The answer, in the caller's ids."""
        names = self.items.ids if not plan.strangers else [*self.items.ids, *plan.strangers]
        kept = np.isfinite(ranking.scores).sum(1).tolist()
        rows = zip(plan.users.ids, plan.users.basis, ranking.codes.tolist(), ranking.scores.tolist(), kept, strict=True)
        found = [
            {"user_id": own, "basis": basis, "items": [names[c] for c in codes[:n]], "scores": scores[:n]}
            for own, basis, codes, scores, n in rows
        ]
        return {"recommendations": found, "unknown_items": plan.unknown_items}

    def scores(self, request: ScoreRequest) -> dict[str, Any]:
        """Scores of pairs, on the scale of the target."""
        users = self.users.resolve([pair.user for pair in request.pairs], "pairs", self.unknown)
        items = self.items.resolve([pair.item for pair in request.pairs], "pairs", self.unknown)
        values = self.engine.pair_scores(users.factors, items.factors)
        return {"scores": values.tolist(), "user_basis": users.basis, "item_basis": items.basis}


@dataclass(frozen=True)
class Plan:
    """A query, and what is needed to phrase its answer."""

    query: Query
    users: Resolved
    strangers: list[int | str]
    unknown_items: list[int | str]
