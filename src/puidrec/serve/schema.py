"""What goes over the wire: requests, answers, problems; names are enums, and every field says what
it means.

A body becomes a request here: its values are counted first, then read, then checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import from_json

from puidrec.errors import one_line
from puidrec.methods import METHODS
from puidrec.serve import Seen, Unknown
from puidrec.serve.limits import Code, Limits, Refused, require_at_most

Form = TypeVar("Form", bound=BaseModel)
_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
"""Two halves (surrogates) that are one character, as JSON may write it."""


def _whole(value: Any) -> Any:
    """5.0 is an integer in JSON, which has one kind of number; true is none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _at_most(limit: str) -> BeforeValidator:
    """Count a list before its entries are checked: a body of 300,000 users would hold up every
    client for seconds.

    The limits are the context of the validation; a request that is made in Python has none.
    """

    def count(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, list | dict) and info.context is not None:
            field = str(info.field_name) if info.field_name else limit
            require_at_most(field, len(value), getattr(info.context, limit))
        return value

    return BeforeValidator(count)


_FIRST_ERROR: Any = Field(fail_fast=True)
"""A list is refused at its first wrong entry; messages about a million of them would take minutes.
"""
Integer = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Id = Integer | Text
"""Ids of the caller's own type, as in the training data."""
Feature = (
    Annotated[bool, Field(strict=True)]
    | Integer
    | FiniteFloat
    | str
    | Annotated[list[Integer | str], _FIRST_ERROR, _at_most("list_entries")]
    | None
)
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


class Entity(_Message):
    """A user or an item that the model may not know, with its features."""

    id: Id = Field(description="Any id, known or not; a known one is answered from training.")
    features: Annotated[dict[str, Feature], _at_most("features")] = Field(
        default_factory=dict,
        description="By name, as in the side table; names left out count as unknown values.",
    )


class Rated(_Message):
    """An item and what the user thought of it."""

    item: Id
    rating: FiniteFloat | None = Field(
        None, description="On the scale of the log's ratings; left out: a like."
    )


class User(Entity):
    """A user that the model may not know, or who has done more since."""

    history: Annotated[list[Rated], _FIRST_ERROR, _at_most("items")] = Field(
        default_factory=list,
        description="What the user did: scores then rest on these rows, and on no others.",
    )


class Item(Entity):
    """An item that the model may not know."""


class RecommendRequest(_Message):
    """Whose best items, how many, and of which items."""

    users: Annotated[list[Id | User], _FIRST_ERROR, _at_most("users")] = Field(
        min_length=1, description="Ids, or objects with id, and history or features."
    )
    k: Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole)] = Field(
        10, description="Items per user."
    )
    offset: Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole)] = Field(
        0,
        description="Leave out that many of the best: with k = 10, offset 10 gives ranks 11 to 20.",
    )
    exclude_seen: Annotated[bool, Field(strict=True)] | None = Field(
        None,
        description="Leave out what the user has in the log; when left out, as the server does by default.",
    )
    exclude: Annotated[list[Id], _FIRST_ERROR, _at_most("items")] = Field(
        default_factory=list, description="Leave out these items, for every user of the request."
    )
    items: Annotated[Annotated[list[Id | Item], _FIRST_ERROR] | None, _at_most("items")] = Field(
        None,
        min_length=1,
        description="Rank these items only; all items of the training data when left out.",
    )
    new_items: Annotated[list[Item], _FIRST_ERROR, _at_most("items")] = Field(
        default_factory=list,
        description="Items with features to rank beside the others; needs a feature model.",
    )
    stable: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="Add gamma_max: up to which Γ each item stays. For spectrum models of rating levels.",
    )


class ScoreRequest(_Message):
    """Pairs to score."""

    pairs: Annotated[list[Pair], _FIRST_ERROR, _at_most("pairs")] = Field(
        min_length=1, description="One score per pair, in order."
    )


class Pair(_Message):
    """A user and an item."""

    user: Id | User
    item: Id | Item


class UserItems(_Message):
    """One user's best items, best first."""

    user_id: Id
    basis: Basis
    items: list[Id]
    scores: list[float] = Field(description="On the scale of the model's target; larger is better.")
    gamma_max: list[float | None] | None = Field(
        None,
        description="With stable: the largest Γ up to which each item stays among the offset + k best; null: at any Γ. "
        "For a user who was not in training, null.",
    )


class RecommendResponse(_Message):
    """One entry per user, in the order asked."""

    recommendations: list[UserItems]
    unknown_items: list[Id] = Field(
        description="Items of the filter that the model does not know; they were left out."
    )


class ScoreResponse(_Message):
    """One entry per pair, in the order asked."""

    scores: list[float]
    user_basis: list[Basis]
    item_basis: list[Basis]


class Probe(_Message):
    """The process answers."""

    status: Annotated[str, Field(pattern="^ok$")]


class Health(_Message):
    """The server answers."""

    status: Annotated[str, Field(pattern="^ok$")]
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
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise _no_object()
    found = body.count(b",") + body.count(b"[") + body.count(b"{")
    if found > limits.values:
        raise Refused(
            Code.TOO_MANY, f"the body holds {found:,} values; expected at most {limits.values:,}"
        )
    try:
        # Unlike `json`, it refuses half characters (lone surrogates), which no text can hold, and
        # deep nesting.
        content = from_json(body) if body else None
    except ValueError as error:
        if rb"\ud" in _PAIR.sub(b"", body).lower():  # a half alone is JSON, but no text
            raise Refused(
                Code.INVALID, f"text holds half a character (a lone surrogate): {error}"
            ) from None
        raise Refused(Code.MALFORMED, f"the body is not JSON in UTF-8: {error}") from None
    if not isinstance(content, dict):
        raise _no_object()
    try:
        return form.model_validate(content, context=limits)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise refuse_validation(
            [{**one, "loc": ("body", *one["loc"])} for one in problems]
        ) from None


def _no_object() -> Refused:
    return Refused(Code.INVALID, "expected a JSON object, sent with content-type: application/json")


def refuse_validation(errors: Sequence[Any]) -> Refused:
    """The validation error deepest in the body. Input is never echoed: no client can put words into
    an answer."""
    deepest: dict[str, Any] = max(errors, key=lambda one: len(one["loc"]))
    place = [
        part for part in deepest["loc"][1:] if isinstance(part, int) or not _is_alternative(part)
    ]
    field = ".".join(one_line(str(part))[:40] for part in place[:5]) or None
    if field is None:
        return _no_object()
    if _is_alternative(deepest["loc"][-1]):
        return Refused(Code.INVALID, _alternatives(place), field)
    return Refused(
        Code.INVALID,
        {"extra_forbidden": "unknown field"}.get(deepest["type"], deepest["msg"]),
        field,
    )


def _is_alternative(part: object) -> bool:
    """Whether a part of a place names one of several types that a field may have, which pydantic
    adds to its path."""
    return (
        str(part) in ("int", "str", "bool", "float", "User", "Item")
        or "[" in str(part)
        or "constrained" in str(part)
    )


def _alternatives(place: list[int | str]) -> str:
    if "features" in place:
        return "expected text, a finite number, true, false, null, or a list of text"
    return "expected an id (an integer or text), or an object with id and features"
