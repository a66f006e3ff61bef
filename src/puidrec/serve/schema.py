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
    ValidationInfo,
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
_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
"""Two halves (surrogates) that are one character, as JSON may write it."""


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


def _feature(value: Any, info: ValidationInfo) -> Any:
    value = _whole(value)
    if isinstance(value, list):
        _count(value, "list_entries", "features", info)
        value = [_whole(part) for part in value]
        good = all(_word(part) for part in value)
    else:
        good = value is None or isinstance(value, str | int)
        good = good or (isinstance(value, float) and math.isfinite(value))
    if not good:
        expected = "expected text, a finite number, true, false, null, or a list of text"
        raise PydanticCustomError("feature", expected)
    return value


def _count(value: Any, limit: str, field: str | None, info: ValidationInfo) -> None:
    """Refuse a list above its limit, which the context of the validation holds; a request that is
    made in Python has none."""
    if isinstance(value, list | dict) and info.context is not None:
        require_at_most(field or limit, len(value), getattr(info.context, limit))


def _at_most(limit: str) -> BeforeValidator:
    """Count a list before its entries are checked: a body of 300,000 users would hold up every
    client for seconds."""

    def count(value: Any, info: ValidationInfo) -> Any:
        _count(value, limit, info.field_name, info)
        return value

    return BeforeValidator(count)


_Feature = bool | int | float | str | list[int | str] | None
_Id = int | Annotated[str, Field(min_length=1)]
UserId = TypeAliasType("UserId", Annotated[_Id, PlainValidator(_id, json_schema_input_type=_Id)])
ItemId = TypeAliasType("ItemId", Annotated[_Id, PlainValidator(_id, json_schema_input_type=_Id)])
"""Ids of the caller's own type, as in the training data; `make_exact` says which."""
Feature = Annotated[_Feature, PlainValidator(_feature, json_schema_input_type=_Feature)]
Count = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list is refused at its first wrong entry; messages about a million of them would take minutes.
"""
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
    features: Annotated[dict[str, Feature], _at_most("features")] = Field(
        default_factory=dict,
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
    history: Annotated[Many[Rated], _at_most("items")] = Field(
        default_factory=list,
        description="What the user did: scores then rest on these rows, and on no others.",
    )


class Item(_Featured):
    """An item that the model may not know."""

    id: ItemId = Field(description="Any id, known or not; a known one is answered from training.")


class RecommendRequest(_Message):
    """Whose best items, how many, and of which items."""

    users: Annotated[Many[UserId | User], _at_most("users")] = Field(
        min_length=1, description="Ids, or objects with id, and history or features."
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
    exclude: Annotated[Many[ItemId], _at_most("items")] = Field(
        default_factory=list, description="Leave out these items, for every user of the request."
    )
    items: Annotated[Many[ItemId | Item] | None, _at_most("items")] = Field(
        None,
        min_length=1,
        description="Rank these items only; all items of the training data when left out.",
    )
    new_items: Annotated[Many[Item], _at_most("items")] = Field(
        default_factory=list,
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

    pairs: Annotated[Many[Pair], _at_most("pairs")] = Field(
        min_length=1, description="One score per pair, in order."
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
    kind = content_type.partition(";")[0].strip().lower()
    found = body.count(b",") + body.count(b"[") + body.count(b"{")
    if found > limits.values:
        raise Refused(
            Code.TOO_MANY, f"the body holds {found:,} values; expected at most {limits.values:,}"
        )
    try:
        # Unlike `json`, it refuses half characters (lone surrogates), which no text can hold, and
        # deep nesting.
        content = from_json(body or b"null")
    except ValueError as error:
        if rb"\ud" in _PAIR.sub(b"", body).lower():  # a half alone is JSON, but no text
            message = f"text holds half a character (a lone surrogate): {error}"
            raise Refused(Code.INVALID, message) from None
        raise Refused(Code.MALFORMED, f"the body is not JSON in UTF-8: {error}") from None
    if not re.fullmatch(r"application/(json|.*\+json)", kind) or not isinstance(content, dict):
        raise Refused(
            Code.INVALID, "expected a JSON object, sent with content-type: application/json"
        )
    try:
        return form.model_validate(content, context=limits)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refused(max(problems, key=lambda one: len(one["loc"]))) from None


def _refused(deepest: Any) -> Refused:
    """The validation error deepest in the body. Input is never echoed: no client can put words into
    an answer."""
    place = [
        one_line(str(part))[:40]
        for part in deepest["loc"]
        # pydantic adds which of several types a field may have
        if isinstance(part, int) or (part not in ("User", "Item") and "[" not in part)
    ]
    words = {"extra_forbidden": "unknown field"}.get(deepest["type"], deepest["msg"])
    return Refused(Code.INVALID, words, ".".join(place[:5]) or None)


Json = dict[str, Any]
KINDS: dict[str, list[Json]] = {
    "number": [{"type": "number", "minimum": -MAX_FEATURE, "maximum": MAX_FEATURE}],
    "category": [{"type": "string"}, {"type": "boolean"}, {"type": "integer"}],
    "list": [{"type": "array", "items": {"type": "string"}}],
}


def make_exact(document: Json, answers: Answers, *, keyed: bool = False) -> None:
    """Narrow the general document, in place, to what this server accepts. keyed: it asks for an API
    key."""
    if keyed:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        document["security"] = [{"bearer": []}, {"header": []}]
        for path in PROBES:
            document["paths"][path]["get"]["security"] = []
    forms, limits, scale = (
        document["components"]["schemas"],
        answers.limits,
        answers.model.rating_scale_,
    )
    for name, side in (("UserId", answers.users), ("ItemId", answers.items)):
        forms[name] = next(
            p
            for p in forms[name]["anyOf"]
            if (p["type"] == "integer") is (side.id_type == "integer")
        )
    some = {"maxItems": limits.items}
    narrower: dict[str, dict[str, Json]] = {
        "RecommendRequest": {
            "users": {"maxItems": limits.users},
            "k": {"maximum": limits.k},
            "offset": {"maximum": limits.k},
            **dict.fromkeys(("items", "new_items", "exclude"), some),
            # only `spectrum` knows how rankings change along Γ
            "stable": {} if answers.engine.path else {"const": False},
        },
        "ScoreRequest": {"pairs": {"maxItems": limits.pairs}},
        "Rated": {"rating": {"minimum": scale.low, "maximum": scale.high}},
        "User": {
            "features": _features(answers.users),
            "history": some if is_foldable(answers.model) else {"maxItems": 0},
        },
        "Item": {"features": _features(answers.items)},
    }
    for name, fields in narrower.items():
        for field, form in fields.items():
            forms[name]["properties"][field] |= form
    if answers.seen is not Seen.ALWAYS:
        told: Json = {"properties": {"exclude_seen": {"const": True}}, "required": ["exclude_seen"]}
        if answers.seen is Seen.CATALOGUE:
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
