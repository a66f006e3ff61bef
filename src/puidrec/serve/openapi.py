"""How the server describes itself: an OpenAPI document of this very model, and the page at /docs made from it.

The document has the model's limits, the type of its ids, the names and kinds of its features: a request that it allows
is one that the server answers, and clients can be made from it. The page loads nothing, so it works without a network.
"""

from __future__ import annotations

import functools
import json
import shlex
from typing import Any

from jinja2 import Environment, Template

from puidrec.data.schema import MAX_FEATURE
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
    """Narrow the general document, in place, to what this server accepts. keyed: it asks for an API key."""
    if keyed:
        bearer, header = {"type": "http", "scheme": "bearer"}, {"type": "apiKey", "in": "header", "name": "X-API-Key"}
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
    some["maxItems"] = recommend["new_items"]["maxItems"] = recommend["exclude"]["maxItems"] = limits.items
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
        (users, (recommend["users"]["items"], pair["user"], forms["User"]["properties"]["id"], answer["user_id"])),
        (items, (some["items"], pair["item"], forms["Item"]["properties"]["id"], answer["items"]["items"])),
        (items, (forms["RecommendResponse"]["properties"]["unknown_items"]["items"], recommend["exclude"]["items"])),
    ):
        other = "string" if entities.integers else "integer"  # not the type that the model's ids have
        for place in places:
            place["anyOf"] = [part for part in place["anyOf"] if part.get("type") != other]
    for name, entities in (("User", users), ("Item", items)):
        _name_features(forms[name]["properties"]["features"], entities)


def _name_features(form: Form, entities: EntityLookup) -> None:
    """Say which features there are; a model that reads none ignores whatever it is given."""
    encoder = entities.cold_start.encoders.get(entities.side)
    if encoder is not None:
        form["properties"] = {
            column.name: {"anyOf": [*KINDS[column.kind], {"type": "null"}]} for column in encoder.columns
        }
        form["additionalProperties"] = False


PARTS = ("User", "Item", "Pair", "UserItems")


def render_page(schema: dict[str, Any], card: dict[str, Any], examples: dict[str, Any], base: str) -> str:
    """The whole page; every value is escaped. examples: a request body by path. base: where the server answers."""
    paths = {
        path: {verb: _operation(schema, operation) for verb, operation in verbs.items()}
        for path, verbs in schema["paths"].items()
    }
    forms = schema["components"]["schemas"]
    parts = {name.lower(): _fields(forms[name]) for name in PARTS}
    bodies = {path: shlex.quote(json.dumps(body, ensure_ascii=False)) for path, body in examples.items()}
    shown = {"info": schema["info"], "card": card, "paths": paths, "codes": forms["Code"]["enum"]}
    key = " -H 'Authorization: Bearer KEY'" if "security" in schema else ""
    return _template().render(**shown, parts=parts, examples=bodies, base=base, key=key, probes=PROBES)


@functools.cache
def _template() -> Template:
    """Compiled once: that takes longer than everything else on the page."""
    return Environment(autoescape=True).from_string(TEMPLATE)


def _operation(schema: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Summary, fields of the request and of the answer, and the statuses of one operation."""
    answers = operation["responses"]
    statuses = [
        (status, "As asked." if status == "200" else answer["description"]) for status, answer in answers.items()
    ]
    shown = {"summary": operation["summary"], "description": operation.get("description", ""), "statuses": statuses}
    shown["answer"] = _fields(_body(schema, answers["200"]))
    shown["fields"] = _fields(_body(schema, operation["requestBody"])) if "requestBody" in operation else []
    return shown


def _body(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    form: dict[str, Any] = schema["components"]["schemas"][name]
    return form


def _fields(form: dict[str, Any]) -> list[dict[str, str]]:
    required = form.get("required", ())
    return [
        {"name": name, "kind": _kind(field), "text": _text(field, name in required)}
        for name, field in form["properties"].items()
    ]


def _kind(form: dict[str, Any]) -> str:
    if "$ref" in form:
        return str(form["$ref"]).rsplit("/", 1)[1].lower()
    if "anyOf" in form:
        return " or ".join(dict.fromkeys(_kind(part) for part in form["anyOf"]))
    if form.get("type") == "array":
        return f"list of {_kind(form['items'])}"
    return {"string": "text", "null": "nothing"}.get(str(form.get("type")), str(form.get("type", "any")))


def _text(form: dict[str, Any], required: bool) -> str:
    array: dict[str, Any] = next((part for part in form.get("anyOf", ()) if part.get("type") == "array"), form)
    most = form.get("maximum", array.get("maxItems"))
    parts = [form.get("description", ""), "" if required else "Optional."]
    parts += [f"At most {most:,}." if most is not None else ""]
    parts += [f"Default: {json.dumps(form['default'])}." if form.get("default") is not None else ""]
    return " ".join(part for part in parts if part)


TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} {{ card.method }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }
h2 { margin-top: 2.5rem; border-top: 1px solid #d8dee4; padding-top: 1rem }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f3f5f7; border-radius: 4px }
code { padding: .1em .3em } pre { padding: .8rem; overflow-x: auto }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem .3rem 0;
vertical-align: top; border-bottom: 1px solid #e6eaee } .verb { color: #0b6b53; font-weight: 600 }
</style></head><body>
<h1>{{ info.title }}: {{ card.method }}</h1>
<p>{{ card.description[:1] | upper }}{{ card.description[1:] }}, trained on {{ card.data or "unnamed data" }}:
{{ "{:,}".format(card["users"]) }} users ({{ card.user_id_type }} ids), {{ "{:,}".format(card["items"]) }} items
({{ card.item_id_type }} ids).
Unknown users get {{ "the average user's answer" if card.unknown == "prior" else "404" }}.
The machine-readable form of this page is <a href="/openapi.json">/openapi.json</a>.</p>
{% macro table(rows) %}<table><tr><th>field</th><th>type</th><th>meaning</th></tr>
{% for row in rows %}<tr><td><code>{{ row.name }}</code></td><td>{{ row.kind }}</td><td>{{ row.text }}</td></tr>
{% endfor %}</table>{% endmacro %}
{% for path, verbs in paths.items() %}{% for verb, operation in verbs.items() %}
<h2><span class="verb">{{ verb | upper }}</span> {{ path }}</h2>
<p>{{ operation.summary }}. {{ operation.description }}</p>
{% if operation.fields %}{{ table(operation.fields) }}
<pre>curl -s {{ base }}{{ path }}{{ key }} -H 'content-type: application/json' -d {{ examples[path] }}</pre>
{% else %}<pre>curl -s {{ base }}{{ path }}{{ key if path not in probes else "" }}</pre>{% endif %}
<p>Answer:</p>{{ table(operation.answer) }}
<table><tr><th>status</th><th>meaning</th></tr>{% for status, text in operation.statuses %}
<tr><td>{{ status }}</td><td>{{ text }}</td></tr>{% endfor %}</table>
{% endfor %}{% endfor %}
<h2>Parts of requests and answers</h2>
{% for name, rows in parts.items() %}<h3>{{ name }}</h3>{{ table(rows) }}{% endfor %}
<p>Every refusal is <code>{"error": {"code", "message", "field"}}</code>; the codes are {{ codes | join(", ") }}.</p>
</body></html>
"""
