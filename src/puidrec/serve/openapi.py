"""How the server describes itself: an OpenAPI document of this very model, and the page at /docs
made from it.

The document has the model's limits, the type of its ids, the names and kinds of its features: a
request that it allows is one that the server answers, and clients can be made from it. The page
loads nothing, so it works without a network.
"""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template

from puidrec.data.schema import MAX_FEATURE
from puidrec.fold_in import is_foldable
from puidrec.serve import Seen
from puidrec.serve.access import PROBES
from puidrec.serve.answers import Answers, EntityLookup

Form = dict[str, Any]
KINDS: dict[str, list[Form]] = {
    "number": [{"type": "number", "minimum": -MAX_FEATURE, "maximum": MAX_FEATURE}],
    "category": [{"type": "string"}, {"type": "boolean"}, {"type": "integer"}],
    "list": [{"type": "array", "items": {"type": "string"}}],
}


def make_exact(document: Form, answers: Answers, *, keyed: bool = False) -> None:
    """Narrow the general document, in place, to what this server accepts. keyed: it asks for an API
    key."""
    if keyed:
        bearer, header = (
            {"type": "http", "scheme": "bearer"},
            {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        )
        document["components"]["securitySchemes"] = {"bearer": bearer, "header": header}
        document["security"] = [{"bearer": []}, {"header": []}]
        for path in PROBES:
            for operation in document["paths"][path].values():
                operation["security"] = []
    forms = document["components"]["schemas"]
    recommend, score = forms["RecommendRequest"]["properties"], forms["ScoreRequest"]["properties"]
    users, items, limits = answers.users, answers.items, answers.limits
    some = next(form for form in recommend["items"]["anyOf"] if form["type"] == "array")
    recommend["k"]["maximum"], recommend["users"]["maxItems"] = limits.k, limits.users
    some["maxItems"] = recommend["new_items"]["maxItems"] = recommend["exclude"]["maxItems"] = (
        limits.items
    )
    recommend["offset"]["maximum"] = limits.k
    if not answers.engine.path:  # only `spectrum` knows how rankings change along Γ
        recommend["stable"]["const"] = False
    if answers.seen is not Seen.ALWAYS:
        told: Form = {"properties": {"exclude_seen": {"const": True}}, "required": ["exclude_seen"]}
        if answers.seen is Seen.CATALOGUE:
            told["properties"]["items"] = {"type": "array"}
            told["required"].append("items")
        forms["RecommendRequest"]["not"] = told
    score["pairs"]["maxItems"] = limits.pairs
    pair, answer = forms["Pair"]["properties"], forms["UserItems"]["properties"]
    for entities, places in (
        (
            users,
            (
                recommend["users"]["items"],
                pair["user"],
                forms["User"]["properties"]["id"],
                answer["user_id"],
            ),
        ),
        (
            items,
            (
                some["items"],
                pair["item"],
                forms["Item"]["properties"]["id"],
                answer["items"]["items"],
            ),
        ),
        (
            items,
            (
                forms["RecommendResponse"]["properties"]["unknown_items"]["items"],
                recommend["exclude"]["items"],
                forms["Rated"]["properties"]["item"],
            ),
        ),
    ):
        other = (
            "string" if entities.integers else "integer"
        )  # not the type that the model's ids have
        for place in places:
            place["anyOf"] = [part for part in place["anyOf"] if part.get("type") != other]
    scale, history = answers.model.rating_scale_, forms["User"]["properties"]["history"]
    history["maxItems"] = limits.items if is_foldable(answers.model) else 0
    for form in forms["Rated"]["properties"]["rating"]["anyOf"]:
        if form["type"] == "number":
            form |= {"minimum": scale.low, "maximum": scale.high}
    for name, entities in (("User", users), ("Item", items)):
        _name_features(forms[name]["properties"]["features"], entities)


def _name_features(form: Form, entities: EntityLookup) -> None:
    """Say which features there are; a model that reads none ignores whatever it is given."""
    encoder = entities.cold_start.encoders.get(entities.side)
    if encoder is not None:
        form["properties"] = {
            column.name: {"anyOf": [*KINDS[column.kind], {"type": "null"}]}
            for column in encoder.columns
        }
        form["additionalProperties"] = False


def render_page(schema: Form, card: Form, examples: Form, base: str) -> str:
    """The whole page; every value is escaped. examples: a request body by path. base: where the
    server answers."""
    bodies = {
        path: shlex.quote(json.dumps(body, ensure_ascii=False)) for path, body in examples.items()
    }
    key = " -H 'Authorization: Bearer KEY'" if "security" in schema else ""
    about = {
        "info": schema["info"],
        "paths": schema["paths"],
        "forms": schema["components"]["schemas"],
    }
    return _template().render(
        **about, card=card, examples=bodies, base=base, key=key, probes=PROBES
    )


@functools.cache
def _template() -> Template:
    """Compiled once: that takes longer than everything else on the page."""
    text = (Path(__file__).parent / "templates" / "docs.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(text)
