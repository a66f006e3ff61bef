"""The OpenAPI document of this very model: its limits, the type of its ids, the names and kinds of its features.

A request that the document allows is then one that the server answers, and clients can be made from it.
"""

from __future__ import annotations

from typing import Any

from puidrec.serve.answers import Answers, Population
from puidrec.train.cold import MAX_NUMBER

Form = dict[str, Any]
KINDS: dict[str, list[Form]] = {
    "number": [{"type": "number", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}],
    "category": [
        {"type": "string"},
        {"type": "boolean"},
        {"type": "integer"},
    ],
    "list": [{"type": "array", "items": {"type": "string"}}],
}


def make_exact(document: Form, answers: Answers) -> None:
    """Narrow the general document, in place, to what this server accepts."""
    forms = document["components"]["schemas"]
    recommend, score = forms["RecommendRequest"]["properties"], forms["ScoreRequest"]["properties"]
    users, items, limits = answers.users, answers.items, answers.limits
    some = next(form for form in recommend["items"]["anyOf"] if form["type"] == "array")
    recommend["k"]["maximum"], recommend["users"]["maxItems"] = limits.k, limits.users
    some["maxItems"] = recommend["new_items"]["maxItems"] = limits.items
    score["pairs"]["maxItems"] = limits.pairs
    pair, answer = forms["Pair"]["properties"], forms["UserItems"]["properties"]
    for population, places in (
        (users, (recommend["users"]["items"], pair["user"], forms["User"]["properties"]["id"], answer["user_id"])),
        (items, (some["items"], pair["item"], forms["Item"]["properties"]["id"], answer["items"]["items"])),
        (items, (forms["RecommendResponse"]["properties"]["unknown_items"]["items"],)),
    ):
        for place in places:
            _narrow_ids(place, population)
    for name, population in (("User", users), ("Item", items)):
        _name_features(forms[name]["properties"]["features"], population)


def _narrow_ids(form: Form, population: Population) -> None:
    """Leave only the type that the model's ids have."""
    other = "string" if population.integers else "integer"
    form["anyOf"] = [part for part in form["anyOf"] if part.get("type") != other]


def _name_features(form: Form, population: Population) -> None:
    """Say which features there are; a model that reads none ignores whatever it is given."""
    encoder = population.strangers.encoders.get(population.side)
    if encoder is not None:
        form["properties"] = {
            column.name: {"anyOf": [*KINDS[column.kind], {"type": "null"}]} for column in encoder.columns
        }
        form["additionalProperties"] = False
