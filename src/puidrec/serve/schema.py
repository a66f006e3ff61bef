"""What goes over the wire: requests, answers, problems; names are enums, and every field says what it means."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationInfo

from puidrec.methods import METHODS
from puidrec.serve import Seen, Unknown
from puidrec.serve.limits import Code, require_at_most


def _whole(value: Any) -> Any:
    """5.0 is an integer in JSON, which has one kind of number; true is none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _at_most(limit: str) -> BeforeValidator:
    """Count a list before its entries are checked: a body of 300,000 users would hold up every client for seconds.

    The limits are the context of the validation; a request that is made in Python has none.
    """

    def count(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, list | dict) and info.context is not None:
            field = str(info.field_name) if info.field_name else limit
            require_at_most(field, len(value), getattr(info.context, limit))
        return value

    return BeforeValidator(count)


_FIRST_ERROR: Any = Field(fail_fast=True)
"""A list is refused at its first wrong entry; messages about a million of them would take minutes."""
Integer = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Id = Integer | Text
"""Ids of the caller's own type, as in the training data."""
Feature = (
    Annotated[bool, Field(strict=True)] | Integer | FiniteFloat | str
    | Annotated[list[Integer | str], _FIRST_ERROR, _at_most("list_entries")] | None
)  # fmt: skip
Method = StrEnum("Method", {name.replace("-", "_"): name for name in METHODS})  # type: ignore[misc]


class Basis(StrEnum):
    """What a score rests on: training rows, features alone, or the average over the population."""

    TRAINED = "trained"
    FEATURES = "features"
    PRIOR = "prior"


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Entity(_Message):
    """A user or an item that the model may not know, with its features."""

    id: Id = Field(description="Any id, known or not; a known one is answered from training.")
    features: Annotated[dict[str, Feature], _at_most("features")] = Field(
        default_factory=dict, description="By name, as in the side table; names left out count as unknown values."
    )


class User(Entity):
    """A user that the model may not know."""


class Item(Entity):
    """An item that the model may not know."""


class RecommendRequest(_Message):
    """Whose best items, how many, and of which items."""

    users: Annotated[list[Id | User], _FIRST_ERROR, _at_most("users")] = Field(
        min_length=1, description="Ids, or objects with id and features."
    )
    k: Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole)] = Field(10, description="Items per user.")
    offset: Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole)] = Field(
        0, description="Leave out that many of the best: with k = 10, offset 10 gives ranks 11 to 20."
    )
    exclude_seen: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Leave out what the user has in the log; when left out, as the server does by default."
    )
    exclude: Annotated[list[Id], _FIRST_ERROR, _at_most("items")] = Field(
        default_factory=list, description="Leave out these items, for every user of the request."
    )
    items: Annotated[Annotated[list[Id | Item], _FIRST_ERROR] | None, _at_most("items")] = Field(
        None, min_length=1, description="Rank these items only; all items of the training data when left out."
    )
    new_items: Annotated[list[Item], _FIRST_ERROR, _at_most("items")] = Field(
        default_factory=list, description="Items with features to rank beside the others; needs a feature model."
    )
    stable: Annotated[bool, Field(strict=True)] = Field(
        False, description="Add gamma_max: up to which Γ each item stays. For spectrum models of rating levels."
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
    unknown_items: list[Id] = Field(description="Items of the filter that the model does not know; they were left out.")


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
    metrics: dict[str, Any] = Field(description="As measured on the test rows when the model was trained.")
    gamma: dict[str, float] | None = Field(description="Γ over pairs: median, 95 % quantile, largest; null: no Γ.")
    settings: dict[str, Any]
    users: int
    items: int
    user_id_type: str
    item_id_type: str
    user_features: list[str] = Field(description="Features that unknown users may bring.")
    item_features: list[str]
    unknown: Unknown
    seen: Seen = Field(description="Which rankings leave out what a user rated: of the catalogue, always, never.")
    signed: bool = Field(description="Whether a signature of the model was required and found right.")
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
