"""The web application: its paths, typed both ways, what stands before them, and a page that
explains them.

From the outside in: `Observe` (id, log line, figures), CORS where it was asked for, `AllowedHosts`,
API keys, `Guard` (bodies, and how much is under way), then the paths.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware

from puidrec import __version__
from puidrec.serve.access import PROBES, AllowedHosts, unauthorised
from puidrec.serve.answers import Answers, Plan
from puidrec.serve.engine import Ranking, Worker
from puidrec.serve.limits import Code, Guard, Refused
from puidrec.serve.observe import Metrics, Observe
from puidrec.serve.openapi import render_page
from puidrec.serve.schema import (
    Health,
    ModelCard,
    Probe,
    ProblemResponse,
    RecommendRequest,
    RecommendResponse,
    ScoreRequest,
    ScoreResponse,
    read_body,
)
from puidrec.serve.service import Policy, Service, Serving, load_service, make_service

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemResponse, "description": words}
    for status, words in (
        (400, "The body is not JSON, or the server is not called by this name."),
        (401, "No API key, where the server asks for one."),
        (404, "A user or item is unknown, and the server was told to refuse those."),
        (408, "The body did not arrive in time."),
        (411, "The body has no Content-Length."),
        (413, "The body is too large."),
        (422, "The body is JSON but not a valid request."),
        (
            503,
            "Too much is asked for at once, or it took too long; Retry-After says when to try again.",
        ),
    )
}
SMALL_BODY = 4096
"""Bytes of a body that is read on the event loop; larger ones are read on a thread, so that others
go on meanwhile."""


async def on_thread(request: Request, call: Callable[[], Any], needed: bool = True) -> Any:
    """Call on the thread for large requests, where that is needed; small ones are quicker than the
    way there."""
    if not needed:
        return call()
    return await asyncio.get_running_loop().run_in_executor(request.app.state.reader, call)


class ReadingRoute(APIRoute):
    """A path whose body is read by `read_body`: FastAPI would read it on the event loop, whatever
    its size."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Read, then answer."""
        form: type[BaseModel] = get_type_hints(self.endpoint)["body"]

        async def handle(request: Request) -> Response:
            body = await request.body()
            kind = request.headers.get("content-type", "")
            read = partial(
                read_body, body, kind, form, request.app.state.serving.service.answers.limits
            )
            large = len(body) > SMALL_BODY
            answer: Response = await self.endpoint(request, await on_thread(request, read, large))
            return answer

        return handle


READ = APIRouter()
ASK = APIRouter(route_class=ReadingRoute, responses=REFUSALS)
BUSY: dict[int | str, dict[str, Any]] = {status: REFUSALS[status] for status in (400, 401, 503)}


def serve_run(folder: Path, policy: Policy | None = None) -> FastAPI:
    """The application that answers for a run folder, and takes it anew when it is told to."""
    policy = policy or Policy()
    load = partial(load_service, folder, policy)
    app = _application(load(), policy)
    app.state.serving.reload_from = load
    return app


def create_app(
    answers: Answers,
    metrics: dict[str, Any],
    environment: dict[str, Any],
    policy: Policy | None = None,
) -> FastAPI:
    """The application for a fitted model; metrics and environment are what `/model` tells of its
    making."""
    return _application(make_service(answers, metrics, environment), policy or Policy())


def _application(service: Service, policy: Policy) -> FastAPI:
    app = FastAPI(
        title="puidrec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    paths = {route.path for route in (*READ.routes, *ASK.routes) if isinstance(route, APIRoute)}
    app.state.metrics = Metrics({*paths, str(app.openapi_url)})
    app.state.serving = Serving(app, service, app.state.metrics, policy)
    app.state.worker, app.state.reader = Worker(), ThreadPoolExecutor(1, "puid-read")
    app.include_router(READ)
    app.include_router(ASK)
    app.add_middleware(Guard, limits=service.answers.limits)
    if policy.keys is not None:
        app.add_middleware(AuthenticationMiddleware, backend=policy.keys, on_error=unauthorised)
    app.add_middleware(AllowedHosts, hosts=policy.hosts)
    if policy.origins:
        headers = ["Authorization", "Content-Type", "X-API-Key", "X-Request-ID"]
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(policy.origins),
            allow_methods=["GET", "POST"],
            allow_headers=headers,
        )
    app.add_middleware(
        Observe, metrics=app.state.metrics, probes=dict(zip(PROBES, (livez, readyz), strict=True))
    )
    _add_errors(app)
    app.state.serving.start()
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.serving.service.answers.engine.warm_up()
    yield
    await app.state.serving.wait()
    app.state.worker.close()
    app.state.reader.shutdown(wait=False, cancel_futures=True)
    app.state.reader = ThreadPoolExecutor(
        1, "puid-read"
    )  # it has a thread from the first use on only


@READ.head("/livez", include_in_schema=False)
@READ.get("/livez", response_model=Probe, summary="Whether the process answers")
async def livez(request: Request) -> Response:
    """Says that the process answers; needs no key."""
    return _json({"status": "ok"})


@READ.head("/readyz", include_in_schema=False)
@READ.get(
    "/readyz",
    response_model=Probe,
    responses={
        503: {"model": ProblemResponse, "description": "More work waits than can be done in time."}
    },
    summary="Whether requests would be answered now",
)
async def readyz(request: Request) -> Response:
    """Says that a request would be answered in time; 503 while more work waits than that. Needs no
    key."""
    limit = request.app.state.serving.service.answers.limits.seconds
    if request.app.state.worker.waiting_seconds > limit:
        return Refused(
            Code.OVERLOADED, "more work waits than can be done in time; try again"
        ).response()
    return _json({"status": "ok"})


@READ.head("/health", include_in_schema=False)
@READ.get(
    "/health",
    response_model=Health,
    responses=BUSY,
    summary="Whether the server is up, and what it serves",
)
async def health(request: Request) -> Response:
    """Says that the server is up, and what it serves."""
    card = request.app.state.serving.service.card
    return _json({"status": "ok", **{key: card[key] for key in ("method", "users", "items")}})


@READ.get("/model", response_model=ModelCard, responses=BUSY, summary="What is being served")
async def model(request: Request) -> Response:
    """Method, data, metrics, Γ, settings, and the features that unknown users and items may bring."""
    return _json(request.app.state.serving.service.card)


@READ.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """Figures in the text form of Prometheus."""
    figures: Metrics = request.app.state.metrics
    figures.waiting.set(request.app.state.worker.waiting_seconds)
    return Response(
        generate_latest(figures.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
    )


@ASK.post("/recommend", response_model=RecommendResponse, summary="Best items of users")
async def recommend(request: Request, body: RecommendRequest) -> Response:
    """The k best items of each user. Unknown users get the average user's, unless the server
    refuses them; with features, and a model that reads them, their own."""
    answers: Answers = request.app.state.serving.service.answers
    large = len(body.users) > 1 or bool(body.new_items or body.items or body.exclude)
    plan: Plan = await on_thread(request, partial(answers.plan, body), large)
    worker: Worker = request.app.state.worker
    waiting, most = worker.waiting_for(answers.engine, plan.query), answers.limits.seconds
    if waiting > most:
        raise Refused(
            Code.OVERLOADED,
            "more work waits than can be done in time; try again",
            retry_after=waiting,
        )

    def render(ranking: Ranking, start: int) -> bytes:
        return to_json(answers.entries(plan, ranking, start), inf_nan_mode="null")[1:-1]

    guard: Guard = request.state.guard
    n_results = len(body.users) * (body.k + body.offset)
    request.state.held.enter_context(guard.holding("results", n_results))
    try:
        parts = await asyncio.wait_for(worker.parts(answers.engine, plan.query, render), most)
    except TimeoutError:
        raise Refused(
            Code.OVERLOADED, f"no answer within {most:g} s; try again", retry_after=waiting
        ) from None
    rest = b"]," + to_json({"unknown_items": plan.unknown_items})[1:]
    commas = [b'{"recommendations":[', *[b","] * (len(parts) - 1), rest]
    pieces = [piece for pair in zip(commas, [*parts, b""], strict=True) for piece in pair]
    size = {"Content-Length": str(sum(map(len, pieces)))}
    return StreamingResponse(_each(pieces), headers=size, media_type="application/json")


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """One by one: the server waits before each until the client has room for it."""
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)  # lets the server notice that the client has left


@ASK.post("/score", response_model=ScoreResponse, summary="Scores of pairs")
async def score(request: Request, body: ScoreRequest) -> Response:
    """Scores of user-item pairs, on the scale of the model's target."""
    answers: Answers = request.app.state.serving.service.answers
    answer: Response = await on_thread(
        request, lambda: _json(answers.scores(body)), len(body.pairs) > 1
    )
    return answer


@READ.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """This service in one page, without anything loaded from elsewhere."""
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    service = request.app.state.serving.service
    user, item = service.answers.users.ids[0], service.answers.items.ids[0]
    examples = {
        "/recommend": {"users": [user], "k": 5},
        "/score": {"pairs": [{"user": user, "item": item}]},
    }
    base = str(request.base_url).rstrip("/")
    return HTMLResponse(
        render_page(request.app.openapi(), service.card, examples, base), headers=headers
    )


@READ.get("/", include_in_schema=False)
def start() -> RedirectResponse:
    """To the page that explains the service."""
    return RedirectResponse("/docs")


def _json(content: dict[str, Any]) -> Response:
    """Checked by tests against the schema, not on every request: an answer of 10,000 scores has no
    time for that."""
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")


def _add_errors(app: FastAPI) -> None:
    """Every refusal has one form; what was not foreseen is in the log, not in the answer."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, Refused):
            return error.response()
        if isinstance(error, HTTPException):
            code = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED, 400: Code.MALFORMED}.get(
                error.status_code
            )
            response = Refused(code or Code.INVALID, str(error.detail)).response()
            response.headers.update(error.headers or {})  # which verbs a path takes
            return response
        return Refused(
            Code.INTERNAL, "something went wrong on the server; its log says what"
        ).response()

    for kind in (Refused, HTTPException, Exception):
        app.add_exception_handler(kind, refused)
