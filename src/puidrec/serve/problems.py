"""Refusals: one exception, one JSON form, no traces to clients."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from puidrec.errors import one_line
from puidrec.serve.schema import Code

STATUS = {
    Code.MALFORMED: 400,
    Code.INVALID: 422,
    Code.WRONG_ID_TYPE: 422,
    Code.TOO_MANY: 422,
    Code.UNKNOWN_USER: 404,
    Code.UNKNOWN_ITEM: 404,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.BODY_TOO_LARGE: 413,
    Code.TOO_SLOW: 408,
    Code.OVERLOADED: 503,
    Code.INTERNAL: 500,
}
MAX_MESSAGE = 400


class Refused(Exception):  # noqa: N818 (it reads as what happens: raise Refused)
    """A request that gets no answer, with the reason for the client."""

    def __init__(self, code: Code, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.field = code, message, field

    def response(self) -> JSONResponse:
        """The JSON form."""
        problem = {"code": self.code.value, "message": one_line(self.message)[:MAX_MESSAGE], "field": self.field}
        headers = {"Connection": "close"} if self.code in (Code.BODY_TOO_LARGE, Code.TOO_SLOW) else None
        return JSONResponse({"error": problem}, STATUS[self.code], headers)


def from_validation(error: RequestValidationError) -> Refused:
    """The complaint that got furthest; input is never echoed, so nothing a client sent can come back as ours."""
    deepest: dict[str, Any] = max(error.errors(), key=lambda one: len(one["loc"]))
    if deepest["type"] == "json_invalid":
        return Refused(Code.MALFORMED, f"the body is not JSON: {deepest.get('ctx', {}).get('error', '')}")
    place = [part for part in deepest["loc"][1:] if isinstance(part, int) or not _is_alternative(part)]
    field = ".".join(one_line(str(part))[:40] for part in place[:5]) or None
    if field is None:
        return Refused(Code.INVALID, "expected a JSON object, sent with content-type: application/json")
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


def from_http(error: HTTPException) -> Refused:
    """Unknown paths and methods, in our form."""
    known = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED, 400: Code.MALFORMED}
    return Refused(known.get(error.status_code, Code.INVALID), str(error.detail))
