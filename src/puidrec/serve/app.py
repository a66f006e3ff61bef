"""The web application: five paths, typed both ways, and a page that explains them without a network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from puidrec import __version__
from puidrec.errors import one_line
from puidrec.experiments.run import load_run, read_environment
from puidrec.serve import Unknown
from puidrec.serve.answers import Answers
from puidrec.serve.engine import Worker
from puidrec.serve.limits import Code, Guard, Limits, Refused
from puidrec.serve.openapi import make_exact, render_page
from puidrec.serve.schema import (
    Health,
    ModelCard,
    ProblemResponse,
    RecommendRequest,
    RecommendResponse,
    ScoreRequest,
    ScoreResponse,
)

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemResponse, "description": words}
    for status, words in (
        (400, "The body is not JSON."),
        (404, "A user or item is unknown, and the server was told to refuse those."),
        (408, "The body did not arrive in time."),
        (413, "The body is too large."),
        (422, "The body is JSON but not a valid request."),
        (503, "The answer took too long; try again."),
    )
}


def serve_run(
    folder: Path, unknown: Unknown = Unknown.PRIOR, limits: Limits | None = None, device: str = "cpu"
) -> FastAPI:
    """The application that answers for a run folder, its scores made on a device."""
    model, metrics = load_run(folder, device)
    return create_app(Answers(model, unknown, limits), metrics, read_environment(folder))


def create_app(answers: Answers, metrics: dict[str, Any], environment: dict[str, Any]) -> FastAPI:
    """The application for a fitted model; metrics and environment are what `/model` tells of its making."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        answers.engine.warm_up()
        yield
        app.state.worker.close()

    app = FastAPI(
        title="puidrec", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan,
        description=f"Recommendations of a {answers.model.settings.method} model.",
    )  # fmt: skip
    app.state.answers, app.state.worker = answers, Worker(answers.engine)
    app.state.card = model_card(answers, metrics, environment)
    app.add_middleware(Guard, limits=answers.limits)
    _add_errors(app)
    app.get("/health", response_model=Health, summary="Whether the server is up")(health)
    app.head("/health", include_in_schema=False)(health)
    app.get("/model", response_model=ModelCard, summary="What is being served")(model)
    post = partial(app.post, responses=REFUSALS)
    post("/recommend", response_model=RecommendResponse, summary="Best items of users")(recommend)
    post("/score", response_model=ScoreResponse, summary="Scores of pairs")(score)
    app.get("/docs", include_in_schema=False)(docs)
    app.get("/", include_in_schema=False)(lambda: RedirectResponse("/docs"))
    make_exact(app.openapi(), answers)  # FastAPI makes the document once and keeps it
    return app


async def health(request: Request) -> Response:
    """Says that the server is up, and what it serves."""
    card = request.app.state.card
    return _json({"status": "ok", **{key: card[key] for key in ("method", "users", "items")}})


async def model(request: Request) -> Response:
    """Method, data, metrics, Γ, settings, and the features that unknown users and items may bring."""
    return _json(request.app.state.card)


async def recommend(request: Request, body: RecommendRequest) -> Response:
    """The k best items of each user. Unknown users get the average user's, unless the server refuses them; with
    features, and a model that reads them, their own."""
    answers: Answers = request.app.state.answers
    plan = answers.plan(body)
    try:
        ranking = await asyncio.wait_for(request.app.state.worker.best(plan.query), answers.limits.seconds)
    except TimeoutError:
        raise Refused(Code.OVERLOADED, f"no answer within {answers.limits.seconds:g} s; try again") from None
    return _json(answers.recommendations(plan, ranking))


async def score(request: Request, body: ScoreRequest) -> Response:
    """Scores of user-item pairs, on the scale of the model's target."""
    answers: Answers = request.app.state.answers
    return _json(answers.scores(body))


async def docs(request: Request) -> HTMLResponse:
    """This service in one page, without anything loaded from elsewhere."""
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    answers: Answers = request.app.state.answers
    user, item = answers.users.ids[0], answers.items.ids[0]
    examples = {"/recommend": {"users": [user], "k": 5}, "/score": {"pairs": [{"user": user, "item": item}]}}
    base = str(request.base_url).rstrip("/")
    page = render_page(request.app.openapi(), request.app.state.card, examples, base)
    return HTMLResponse(page, headers=headers)


def model_card(answers: Answers, metrics: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """What `/model` answers."""
    model, users, items = answers.model, answers.users, answers.items
    apart = ("method", "gamma", "protocol")
    return {
        "method": model.settings.method,
        "description": model.settings.spec.description,
        "data": environment.get("data"),
        "data_sha256": environment.get("data_sha256"),
        "protocol": metrics.get("protocol"),
        "metrics": {key: value for key, value in metrics.items() if key not in apart},
        "gamma": model.report_.get("gamma"),
        "settings": model.settings.model_dump(),
        "users": len(users.ids),
        "items": len(items.ids),
        "user_id_type": users.id_type,
        "item_id_type": items.id_type,
        "user_features": users.cold_start.names("user"),
        "item_features": items.cold_start.names("item"),
        "unknown": answers.unknown.value,
        "limits": asdict(answers.limits),
        "version": __version__,
    }


def _json(content: dict[str, Any]) -> Response:
    """Checked by tests against the schema, not on every request: an answer of 10,000 scores has no time for that."""
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")


def _add_errors(app: FastAPI) -> None:
    """Every refusal has one form; what was not foreseen is in the log, not in the answer."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, Refused):
            return error.response()
        if isinstance(error, RequestValidationError):
            return _from_validation(error).response()
        if isinstance(error, HTTPException):
            code = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED, 400: Code.MALFORMED}.get(error.status_code)
            response = Refused(code or Code.INVALID, str(error.detail)).response()
            response.headers.update(error.headers or {})  # which verbs a path takes
            return response
        return Refused(Code.INTERNAL, "something went wrong on the server; its log says what").response()

    for kind in (Refused, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _from_validation(error: RequestValidationError) -> Refused:
    """The validation error deepest in the body. Input is never echoed: no client can put words into an answer."""
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
