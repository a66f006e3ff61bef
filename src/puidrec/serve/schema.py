"""What goes over the wire: requests, answers, problems; names are enums, and every field says what
it means.

A body becomes a request here (`read_body`): its values are counted first, then read, then checked.
The OpenAPI document is made exact (`make_exact`): it has the model's limits, the type of its ids,
the names and kinds of its features. A request that it allows is one that the server answers, and
clients can be made from it.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    StrictBool,
    ValidationError,
)
from pydantic_core import PydanticCustomError, from_json
from typing_extensions import TypeAliasType

from puidrec.data.schema import MAX_FEATURE
from puidrec.errors import one_line
from puidrec.fold_in import is_foldable
from puidrec.methods import METHODS
from puidrec.serve import Seen, Unknown
from puidrec.serve.limits import PROBES, Code, Limits, Refused, require_at_most

if TYPE_CHECKING:
    from puidrec.serve.answers import Answers, EntityLookup

T = TypeVar("T")
Form = TypeVar("Form", bound=BaseModel)


def _whole(value: Any) -> Any:
    """5.0 is an integer in JSON, which has one kind of number; true is none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _word(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _id(value: Any) -> Any:
    value = _whole(value)
    if not _word(value) or value == "":
        expected = "expected an id (an integer or text), or an object with id and features"
        raise PydanticCustomError("id", expected)
    return value


def _feature(value: Any) -> Any:
    value = _whole(value)
    if isinstance(value, list):
        require_at_most("features", len(value), Limits.list_entries)
        value = [_whole(part) for part in value]
        good = all(_word(part) for part in value)
    else:
        good = value is None or isinstance(value, str | int)
        good = good or (isinstance(value, float) and math.isfinite(value))
    if not good:
        expected = "expected text, a finite number, true, false, null, or a list of text"
        raise PydanticCustomError("feature", expected)
    return value


_Feature = bool | int | float | str | list[int | str] | None
_Id = int | Annotated[str, Field(min_length=1)]
UserId = TypeAliasType("UserId", Annotated[_Id, PlainValidator(_id, json_schema_input_type=_Id)])
ItemId = TypeAliasType("ItemId", Annotated[_Id, PlainValidator(_id, json_schema_input_type=_Id)])
"""Ids of the caller's own type, as in the training data; `make_exact` says which."""
Feature = Annotated[_Feature, PlainValidator(_feature, json_schema_input_type=_Feature)]
Count = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list is refused at its first wrong entry, or the first beyond its limit: messages about a
million of them would take minutes."""
Method = StrEnum("Method", {name.replace("-", "_"): name for name in METHODS})  # type: ignore[misc]


class Basis(StrEnum):
    """What a score rests on: training rows, the history sent, features alone, or the average over
    the population."""

    TRAINED = "trained"
    HISTORY = "history"
    FEATURES = "features"
    PRIOR = "prior"


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Featured(_Message):
    features: dict[str, Feature] = Field(
        default_factory=dict,
        max_length=Limits.features,
        description="By name, as in the side table; names left out count as unknown values.",
    )


class Rated(_Message):
    """An item and what the user thought of it."""

    item: ItemId
    rating: FiniteFloat | None = Field(
        None, description="On the scale of the log's ratings; left out: a like."
    )


class User(_Featured):
    """A user that the model may not know, or who has done more since."""

    id: UserId = Field(description="Any id, known or not; a known one is answered from training.")
    history: Many[Rated] = Field(
        default_factory=list,
        max_length=Limits.items,
        description="What the user did: scores then rest on these rows, and on no others.",
    )


class Item(_Featured):
    """An item that the model may not know."""

    id: ItemId = Field(description="Any id, known or not; a known one is answered from training.")


class RecommendRequest(_Message):
    """Whose best items, how many, and of which items."""

    users: Many[UserId | User] = Field(
        min_length=1,
        max_length=Limits.users,
        description="Ids, or objects with id, and history or features.",
    )
    k: Count = Field(10, ge=1, description="Items per user.")
    offset: Count = Field(
        0,
        ge=0,
        description="Leave out that many of the best: with k = 10, offset 10 gives ranks 11 to 20.",
    )
    exclude_seen: StrictBool | None = Field(
        None,
        description="Leave out what the user has in the log; when left out, as the server does by "
        "default.",
    )
    exclude: Many[ItemId] = Field(
        default_factory=list,
        max_length=Limits.items,
        description="Leave out these items, for every user of the request.",
    )
    items: Many[ItemId | Item] | None = Field(
        None,
        min_length=1,
        max_length=Limits.items,
        description="Rank these items only; all items of the training data when left out.",
    )
    new_items: Many[Item] = Field(
        default_factory=list,
        max_length=Limits.items,
        description="Items with features to rank beside the others; needs a feature model.",
    )
    stable: StrictBool = Field(
        False,
        description="Add gamma_max: up to which Γ each item stays. For spectrum models of rating "
        "levels.",
    )


class Pair(_Message):
    """A user and an item."""

    user: UserId | User
    item: ItemId | Item


class ScoreRequest(_Message):
    """Pairs to score."""

    pairs: Many[Pair] = Field(
        min_length=1, max_length=Limits.pairs, description="One score per pair, in order."
    )


class UserItems(_Message):
    """One user's best items, best first."""

    user_id: UserId
    basis: Basis
    items: list[ItemId]
    scores: list[float] = Field(description="On the scale of the model's target; larger is better.")
    gamma_max: list[float | None] | None = Field(
        None,
        description="With stable: the largest Γ up to which each item stays among the offset + k "
        "best; "
        "null: at any Γ. "
        "For a user who was not in training, null.",
    )


class RecommendResponse(_Message):
    """One entry per user, in the order asked."""

    recommendations: list[UserItems]
    unknown_items: list[ItemId] = Field(
        description="Items of the filter that the model does not know; they were left out."
    )


class ScoreResponse(_Message):
    """One entry per pair, in the order asked."""

    scores: list[float]
    user_basis: list[Basis]
    item_basis: list[Basis]


class Probe(_Message):
    """The process answers."""

    status: Literal["ok"]


class Health(Probe):
    """The server answers."""

    method: Method
    users: int
    items: int


class ModelCard(_Message):
    """What is being served and how it was made."""

    method: Method
    description: str
    data: str | None = Field(description="Name of the data set.")
    data_sha256: str | None = Field(description="Digest of the data set's content.")
    protocol: str | None
    metrics: dict[str, Any] = Field(
        description="As measured on the test rows when the model was trained."
    )
    gamma: dict[str, float] | None = Field(
        description="Γ over pairs: median, 95 % quantile, largest; null: no Γ."
    )
    settings: dict[str, Any]
    users: int
    items: int
    user_id_type: str
    item_id_type: str
    user_features: list[str] = Field(description="Features that unknown users may bring.")
    item_features: list[str]
    unknown: Unknown
    seen: Seen = Field(
        description="Which rankings leave out what a user rated: of the catalogue, always, never."
    )
    loaded: str = Field(description="When the model was loaded (UTC).")
    limits: dict[str, float]
    version: str


class Problem(_Message):
    """Why a request was refused."""

    code: Code
    message: str = Field(description="One line: what was found, what was expected.")
    field: str | None = Field(None, description="Where in the request.")


class ProblemResponse(_Message):
    """Every answer that is not 2xx."""

    error: Problem


def read_body(body: bytes, content_type: str, form: type[Form], limits: Limits) -> Form:
    """The request in a body.

    Its values are counted by commas and brackets before they are made: of 4 MB, `[{},{},…` makes
    1.4 million objects, gigabytes of messages about them, and half a minute in which nobody else is
    answered.
    """
    found = body.count(b",") + body.count(b"[") + body.count(b"{")
    require_at_most("", found, limits.values, "values in the body")
    try:
        # Unlike `json`, it refuses half characters (lone surrogates), which no text can hold, and
        # deep nesting.
        content = from_json(body or b"null")
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"the body is not JSON in UTF-8: {error}") from None
    kind = content_type.partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(json|.*\+json)", kind) or not isinstance(content, dict):
        raise Refused(
            Code.INVALID, "expected a JSON object, sent with content-type: application/json"
        )
    try:
        return form.model_validate(content)
    except ValidationError as error:
        deepest = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
    # Input is never echoed: no client can put words into an answer.
    place = ".".join(
        [
            one_line(str(part))[:40]
            for part in deepest["loc"]
            # pydantic adds which of several types a field may have
            if isinstance(part, int) or (part not in ("User", "Item") and "[" not in part)
        ][:5]
    )
    code = Code.TOO_MANY if deepest["type"] == "too_long" else Code.INVALID
    words = {"extra_forbidden": "unknown field"}.get(deepest["type"], deepest["msg"])
    raise Refused(code, words, place or None)


Json = dict[str, Any]
KINDS: dict[str, list[Json]] = {
    "number": [{"type": "number", "minimum": -MAX_FEATURE, "maximum": MAX_FEATURE}],
    "category": [{"type": "string"}, {"type": "boolean"}, {"type": "integer"}],
    "list": [{"type": "array", "items": {"type": "string"}}],
}


def make_exact(document: Json, answers: Answers) -> None:
    """Narrow the general document, in place, to what this server accepts."""
    forms, scale = document["components"]["schemas"], answers.model.rating_scale_
    if answers.policy.keys is not None:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        document["security"] = [{"bearer": []}, {"header": []}]
        for path in PROBES:
            document["paths"][path]["get"]["security"] = []
    for name, side in (("UserId", answers.users), ("ItemId", answers.items)):
        forms[name] = {"type": "integer"}
        if side.id_type == "text":
            forms[name] = {"type": "string", "minLength": 1}
    most = {"maximum": answers.policy.limits.k}
    narrower: dict[str, dict[str, Json]] = {
        "RecommendRequest": {
            "k": most,
            "offset": most,
            # only `spectrum` knows how rankings change along Γ
            "stable": {} if answers.engine.path else {"const": False},
        },
        "Rated": {"rating": {"minimum": scale.low, "maximum": scale.high}},
        "User": {
            "features": _features(answers.users),
            "history": {} if is_foldable(answers.model) else {"maxItems": 0},
        },
        "Item": {"features": _features(answers.items)},
    }
    for name, fields in narrower.items():
        for field, form in fields.items():
            forms[name]["properties"][field] |= form
    if answers.policy.seen is not Seen.ALWAYS:
        told: Json = {"properties": {"exclude_seen": {"const": True}}, "required": ["exclude_seen"]}
        if answers.policy.seen is Seen.CATALOGUE:
            told["properties"]["items"] = {"type": "array"}
            told["required"].append("items")
        forms["RecommendRequest"]["not"] = told


def _features(entities: EntityLookup) -> Json:
    """Which features there are; a model that reads none ignores whatever it is given."""
    encoder = entities.cold_start.encoders.get(entities.side)
    if encoder is None:
        return {}
    named = {c.name: {"anyOf": [*KINDS[c.kind], {"type": "null"}]} for c in encoder.columns}
    return {"properties": named, "additionalProperties": False}
