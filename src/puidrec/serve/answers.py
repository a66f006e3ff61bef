"""From a request to an answer: factors of known ids, of features for cold start, else the average;
then the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from puidrec.cold_start import ColdStart
from puidrec.entities import Entities, PairsByUser, Side, merged_pairs
from puidrec.errors import InputError
from puidrec.fold_in import folded_factors
from puidrec.model import Recommender
from puidrec.serve import Seen, Unknown
from puidrec.serve.engine import Engine, Query, Ranking
from puidrec.serve.limits import Code, Limits, Refused, require_at_most
from puidrec.serve.schema import Basis, Item, RecommendRequest, ScoreRequest, User

UNKNOWN: dict[Side, Code] = {"user": Code.UNKNOWN_USER, "item": Code.UNKNOWN_ITEM}
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
        self.side, self.entities, self.cold_start = side, entities, cold_start
        self.ids: list[int | str] = entities.ids.ids.to_list()
        self.integers = entities.ids.ids.dtype.is_integer()
        self.code = {own: code for code, own in enumerate(self.ids)}

    @property
    def id_type(self) -> str:
        """How ids are written in JSON."""
        return "integer" if self.integers else "text"

    def require_type(self, ids: Sequence[int | str], field: str) -> None:
        """Refuse ids that cannot be of this model."""
        wrong = next(
            (at for at, own in enumerate(ids) if isinstance(own, int) is not self.integers), None
        )
        if wrong is not None:
            kind = "integers" if self.integers else "text"
            raise Refused(
                Code.WRONG_ID_TYPE, f"{self.side} ids of this model are {kind}", f"{field}.{wrong}"
            )

    def resolve(
        self,
        named: Sequence[Named],
        field: str,
        unknown: Unknown,
        folded: Mapping[int, np.ndarray] = MappingProxyType({}),
    ) -> Resolved:
        """Factors of everyone named; of unknown ids without features the average, or a refusal.

        folded: factors by position in `named` that are known already, of users with a history.
        """
        ids = [one.id if isinstance(one, User | Item) else one for one in named]
        self.require_type(ids, field)
        codes = np.array([self.code.get(own, -1) for own in ids], dtype=np.int64)
        codes[list(folded)] = -1
        factors = self.entities.with_average[codes]  # the average is the last row, -1
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
                raise Refused(
                    UNKNOWN[self.side],
                    f"the model does not know this {self.side}{why}",
                    f"{field}.{at}",
                )
        try:
            self.cold_start.check(self.side, [given for given in features if given])
            if featured:
                factors[featured] = self.cold_start.represent(
                    self.side, [features[at] for at in featured]
                )
        except InputError as error:
            raise Refused(Code.INVALID, str(error), field) from error
        return Resolved(ids, codes, factors, basis)


def nothing_seen(model: Recommender) -> tuple[np.ndarray, np.ndarray]:
    """The list of rated items of a model whose users rated nothing."""
    return np.zeros(len(model.user_ids_) + 1, np.int64), np.zeros(0, np.int32)


class Answers:
    """Everything between HTTP and the engine; knows the limits and what unknown ids get."""

    def __init__(
        self,
        model: Recommender,
        unknown: Unknown = Unknown.PRIOR,
        limits: Limits | None = None,
        seen: Seen = Seen.CATALOGUE,
    ) -> None:
        self.model, self.unknown, self.limits, self.seen = model, unknown, limits or Limits(), seen
        self.engine, cold_start = (
            Engine(model, nothing_seen(model) if seen is Seen.NEVER else None),
            ColdStart(model),
        )
        self.users = EntityLookup(
            "user", Entities(model.user_ids_, self.engine.user_factors), cold_start
        )
        self.items = EntityLookup(
            "item", Entities(model.item_ids_, self.engine.item_factors), cold_start
        )

    def plan(self, request: RecommendRequest) -> Plan:
        """What to compute for a request, whose lists were counted when it was read; all other
        refusals are here.

        Candidates are the items asked for (or all), and unknown ones with features. A new item that
        is known after all is ranked as such.
        """
        depth = request.k + request.offset
        require_at_most("k", request.k, self.limits.k)
        require_at_most("offset", request.offset, self.limits.k)
        require_at_most(
            "users", len(request.users) * depth, self.limits.results, "users × (offset + k)"
        )
        excluding = self._excludes_seen(request)
        folded, history = self._histories(request.users, "users")
        users = self.users.resolve(request.users, "users", self.unknown, folded)
        listed = (
            None
            if request.items is None
            else self.items.resolve(request.items, "items", self.unknown)
        )
        new = self.items.resolve(request.new_items, "new_items", Unknown.REFUSE)
        asked = (new,) if listed is None else (listed, new)
        cold: dict[int | str, np.ndarray] = {}
        left_out: dict[int | str, None] = {}
        unwanted_ids = set(request.exclude)
        for part in asked:
            for at in np.flatnonzero(part.codes < 0).tolist():
                if part.ids[at] in unwanted_ids:
                    continue
                if part.basis[at] is Basis.FEATURES:
                    cold[part.ids[at]] = part.factors[at]
                else:
                    left_out[part.ids[at]] = None
        codes = (
            None
            if listed is None
            else np.concatenate([part.codes[part.codes >= 0] for part in asked])
        )
        rows = np.array(list(cold.values()), np.float32).reshape(
            -1, self.engine.item_factors.shape[1]
        )
        seen_by = np.where((users.codes >= 0) & excluding, users.codes, len(self.users.ids))
        unwanted = self._unwanted(request)
        path_users = self._path_users(request, users, cold) if request.stable else None
        query = Query(
            users.factors,
            seen_by,
            depth,
            self.engine.choose(codes, rows, unwanted),
            path_users,
            None if request.exclude_seen is False else history,
        )
        return Plan(query, users, list(cold), list(left_out), request.offset)

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
        self.items.require_type([item for _, item, _ in rows], f"{field}.history")
        scale = self.model.rating_scale_
        user, code, rating = (
            np.array(column)
            for column in (
                [at for at, _, _ in rows],
                [self.items.code.get(item, -1) for _, item, _ in rows],
                [scale.high if rating is None else rating for _, _, rating in rows],
            )
        )
        off = (rating < scale.low) | (rating > scale.high)
        if off.any():
            message = f"found rating {rating[off][0]:g}; expected one on the scale {scale}"
            raise Refused(Code.INVALID, message, f"{field}.{user[off][0]}.history")
        if not (code >= 0).any():
            return {}, None
        user, code, rating = user[code >= 0], code[code >= 0], rating[code >= 0]
        told, place = np.unique(user, return_inverse=True)
        ids = [named[at].id for at in told]
        codes = np.array([self.users.code.get(own, -1) for own in ids])
        try:
            factors = folded_factors(self.model, codes, place, code, rating)
        except InputError as error:
            raise Refused(Code.INVALID, str(error), field) from error
        none = np.zeros(1, np.int64), np.zeros(0, np.int32)
        return dict(zip(told.tolist(), factors, strict=True)), merged_pairs(
            none, user, code, len(named)
        )

    def _excludes_seen(self, request: RecommendRequest) -> bool:
        """Whether what a user rated is left out; refused where the answer would tell a client what
        the user rated."""
        filtered = request.items is not None
        allowed = self.seen is Seen.ALWAYS or (self.seen is Seen.CATALOGUE and not filtered)
        if request.exclude_seen and not allowed:
            why = (
                "with a list of items it would tell which of them the user rated"
                if filtered
                else "it forgot them"
            )
            raise Refused(
                Code.INVALID,
                f"this server does not leave out rated items here ({why}): use exclude",
                "exclude_seen",
            )
        return allowed if request.exclude_seen is None else request.exclude_seen

    def _path_users(
        self, request: RecommendRequest, users: Resolved, cold: dict[int | str, np.ndarray]
    ) -> np.ndarray:
        """Codes of the users, where the model knows how rankings change along Γ."""
        if not self.engine.path:
            method = self.model.settings.method
            raise Refused(
                Code.INVALID,
                f"this model ({method}) has no path along Γ: leave stable out",
                "stable",
            )
        if cold:
            raise Refused(Code.INVALID, "stable is for items of the training data", "new_items")
        return users.codes

    def _unwanted(self, request: RecommendRequest) -> np.ndarray | None:
        """Codes of the items of the catalogue to leave out; ids that are not in it change nothing."""
        if not request.exclude:
            return None
        self.items.require_type(request.exclude, "exclude")
        codes = [self.items.code.get(own, -1) for own in request.exclude]
        return np.unique(np.array([code for code in codes if code >= 0], dtype=np.int64))

    def entries(self, plan: Plan, ranking: Ranking, start: int = 0) -> list[dict[str, Any]]:
        """The answer for some of the users, in the caller's ids. start: the number of the first of
        them."""
        names, first, codes = self.items.ids, plan.offset, ranking.codes.tolist()
        kept = np.isfinite(ranking.scores).sum(1).tolist()
        cold, known = plan.cold_items, len(names)
        found = []
        for at, (row, scores, n) in enumerate(
            zip(codes, ranking.scores.tolist(), kept, strict=True), start
        ):
            items = [names[c] if c < known else cold[c - known] for c in row[first:n]]
            entry = {"user_id": plan.users.ids[at], "basis": plan.users.basis[at], "items": items}
            found.append({**entry, "scores": scores[first:n]})
            if ranking.gamma_max is not None:
                trained = plan.users.codes[at] >= 0
                found[-1]["gamma_max"] = (
                    ranking.gamma_max[at - start, first:n].tolist() if trained else None
                )
        return found

    def scores(self, request: ScoreRequest) -> dict[str, Any]:
        """Scores of pairs, on the scale of the target."""
        named = [pair.user for pair in request.pairs]
        folded, _ = self._histories(named, "pairs")
        users = self.users.resolve(named, "pairs", self.unknown, folded)
        items = self.items.resolve([pair.item for pair in request.pairs], "pairs", self.unknown)
        values = self.engine.pair_scores(users.factors, items.factors)
        return {"scores": values.tolist(), "user_basis": users.basis, "item_basis": items.basis}


@dataclass(frozen=True)
class Plan:
    """A query, and what is needed to phrase its answer."""

    query: Query
    users: Resolved
    cold_items: list[int | str]
    unknown_items: list[int | str]
    offset: int = 0
