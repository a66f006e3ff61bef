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
        forms[name] = next(p for p in forms[name]["anyOf"] if (p["type"] == "integer") is side.integers)
    some = {"maxItems": limits.items}
    narrower = {
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
        told: Form = {"properties": {"exclude_seen": {"const": True}}, "required": ["exclude_seen"]}
        if answers.seen is Seen.CATALOGUE:
            told["properties"]["items"] = {"type": "array"}
            told["required"].append("items")
        forms["RecommendRequest"]["not"] = told


def _features(entities: EntityLookup) -> Form:
    """Which features there are; a model that reads none ignores whatever it is given."""
    encoder = entities.cold_start.encoders.get(entities.side)
    if encoder is None:
        return {}
    named = {c.name: {"anyOf": [*KINDS[c.kind], {"type": "null"}]} for c in encoder.columns}
    return {"properties": named, "additionalProperties": False}


def render_page(schema: Form, card: Form, examples: Form, base: str) -> str:
    """The whole page; every value is escaped. examples: a request body by path. base: where the
    server answers."""
    bodies = {
        path: shlex.quote(json.dumps(body, ensure_ascii=False)) for path, body in examples.items()
    }
    key = " -H 'Authorization: Bearer KEY'" if "security" in schema else ""
    return _template().render(
        **schema, forms=schema["components"]["schemas"], card=card, examples=bodies, base=base, key=key, probes=PROBES
    )


@functools.cache
def _template() -> Template:
    """Compiled once: that takes longer than everything else on the page."""
    text = (Path(__file__).parent / "templates" / "docs.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(text)
