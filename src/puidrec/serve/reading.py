"""From the bytes of a body to a request: counted first, then read, then checked; and what is said of a wrong one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from puidrec.errors import one_line
from puidrec.serve.limits import Code, Limits, Refused

Form = TypeVar("Form", bound=BaseModel)


def read_body(body: bytes, content_type: str, form: type[Form], limits: Limits) -> Form:
    """The request in a body.

    Its values are counted by commas and brackets before they are made: of 4 MB, `[{},{},…` makes 1.4 million objects,
    gigabytes of messages about them, and half a minute in which nobody else is answered.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise _no_object()
    found = body.count(b",") + body.count(b"[") + body.count(b"{")
    if found > limits.values:
        raise Refused(Code.TOO_MANY, f"the body holds {found:,} values; expected at most {limits.values:,}")
    try:
        content = json.loads(body) if body else None
    except RecursionError:
        raise Refused(Code.MALFORMED, "the body is not JSON: lists within lists beyond measure") from None
    except ValueError as error:
        raise Refused(
            Code.MALFORMED, f"the body is not JSON: {getattr(error, 'msg', 'not text, or numbers too long')}"
        ) from None
    if not isinstance(content, dict):
        raise _no_object()
    try:
        return form.model_validate(content, context=limits)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise refuse_validation([{**one, "loc": ("body", *one["loc"])} for one in problems]) from None


def _no_object() -> Refused:
    return Refused(Code.INVALID, "expected a JSON object, sent with content-type: application/json")


def refuse_validation(errors: Sequence[Any]) -> Refused:
    """The validation error deepest in the body. Input is never echoed: no client can put words into an answer."""
    deepest: dict[str, Any] = max(errors, key=lambda one: len(one["loc"]))
    place = [part for part in deepest["loc"][1:] if isinstance(part, int) or not _is_alternative(part)]
    field = ".".join(one_line(str(part))[:40] for part in place[:5]) or None
    if field is None:
        return _no_object()
    if _is_alternative(deepest["loc"][-1]):
        return Refused(Code.INVALID, _alternatives(place), field)
    return Refused(Code.INVALID, {"extra_forbidden": "unknown field"}.get(deepest["type"], deepest["msg"]), field)


def _is_alternative(part: object) -> bool:
    """Whether a part of a place names one of several types that a field may have, which pydantic adds to its path."""
    return (
        str(part) in ("int", "str", "bool", "float", "User", "Item") or "[" in str(part) or "constrained" in str(part)
    )


def _alternatives(place: list[int | str]) -> str:
    if "features" in place:
        return "expected text, a finite number, true, false, null, or a list of text"
    return "expected an id (an integer or text), or an object with id and features"
