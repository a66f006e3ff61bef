"""The web application: its paths, typed both ways, what stands before them, and a page that
explains them.

From the outside in: `Observe` (id, log line, figures), CORS where it was asked for, `Guard` (names,
API keys, bodies, and how much is under way), then the paths. The page loads nothing, so it works
without a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from puidrec import __version__
from puidrec.errors import PuidError
from puidrec.run_folder import load_run, read_environment
from puidrec.serve import Seen
from puidrec.serve.answers import Answers, Ranking, nothing_seen, ranked
from puidrec.serve.limits import LOG, PROBES, Code, Guard, Policy, Refused
from puidrec.serve.schema import (
    Health,
    ModelCard,
    Probe,
    ProblemResponse,
    RecommendRequest,
    RecommendResponse,
    ScoreRequest,
    ScoreResponse,
    make_exact,
    read_body,
)
from puidrec.serve.server import Metrics, Observe

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
            "Too much is asked for at once, or it took too long; Retry-After says when to "
            "try again.",
        ),
    )
}
BUSY: dict[int | str, dict[str, Any]] = {status: REFUSALS[status] for status in (400, 401, 503)}
SMALL_BODY = 4096
"""Bytes of a body that is read on the event loop; larger ones are read on a thread, so that others
go on meanwhile."""
PAGES = Environment(loader=PackageLoader("puidrec.serve"), autoescape=True)
PART = 2**16
"""Bytes of an answer that are given to the connection at once."""


async def on_thread(request: Request, call: Callable[[], Any], needed: bool) -> Any:
    """Call on the thread for large requests, where that is needed; small ones are quicker than the
    way there."""
    if not needed:
        return call()
    return await asyncio.get_running_loop().run_in_executor(request.app.state.reader, call)


async def in_time(request: Request, work: Awaitable[Any]) -> Any:
    """What comes of some work, refused where that takes too long."""
    most = answers_of(request).policy.limits.seconds
    try:
        return await asyncio.wait_for(work, most)
    except TimeoutError:
        raise Refused(Code.OVERLOADED, f"no answer within {most:g} s; try again") from None


class ReadingRoute(APIRoute):
    """A path whose body is read by `read_body`: FastAPI would read it on the event loop, whatever
    its size."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Read, then answer."""
        form = get_type_hints(self.endpoint)["body"]

        async def handle(request: Request) -> Response:
            body, kind = request.state.body, request.headers.get("content-type", "")
            read = partial(read_body, body, kind, form, answers_of(request).policy.limits)
            asked = await on_thread(request, read, len(body) > SMALL_BODY)
            answer: Response = await self.endpoint(request, asked)
            return answer

        return handle


READ, ASK = APIRouter(), APIRouter(route_class=ReadingRoute, responses=REFUSALS)


def serve_run(folder: Path, policy: Policy | None = None) -> FastAPI:
    """The application that answers for a run folder, and takes it anew when it is told to."""
    return create_app(partial(load_answers, folder, policy or Policy()))


def load_answers(folder: Path, policy: Policy) -> Answers:
    """What answers for the model of a run folder."""
    model, metrics = load_run(folder, policy.device)
    if policy.seen is Seen.NEVER:
        model.seen_, model.held_out_ = nothing_seen(model), None
    return Answers(model, policy, metrics, read_environment(folder))


def create_app(load: Callable[[], Answers]) -> FastAPI:
    """The application for what `load` gives, now and whenever it is told to take it anew."""
    app = FastAPI(
        title="puidrec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        exception_handlers=dict.fromkeys((Refused, HTTPException, Exception), refused),
    )
    app.include_router(READ)
    app.include_router(ASK)
    paths = {getattr(route, "path", "") for route in (*READ.routes, *ASK.routes, *app.routes)}
    app.state.metrics = metrics = Metrics(paths)
    app.state.serving = serving = Serving(app, load, metrics)
    app.state.worker = ThreadPoolExecutor(1, "puid-rank")
    app.state.reader = ThreadPoolExecutor(1, "puid-read")
    policy = serving.answers.policy
    app.add_middleware(Guard, policy=policy)
    if policy.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(policy.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-ID"],
        )
    app.add_middleware(Observe, metrics=metrics)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    serving: Serving = app.state.serving
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, serving.reload)
    yield
    await serving.wait()


class Serving:
    """What answers for an application now, and how another takes its place; a request keeps the
    one that it began with."""

    def __init__(self, app: FastAPI, load: Callable[[], Answers], metrics: Metrics) -> None:
        self.app, self.load, self.metrics = app, load, metrics
        self._under_way: asyncio.Task[None] | None = None
        self._install(*self._load())

    def _load(self) -> tuple[Answers, dict[str, Any]]:
        """The answers, and their OpenAPI document. Keys last: a model that is refused leaves
        everything as it was."""
        answers = self.load()
        document = get_openapi(title="puidrec", version=__version__, routes=self.app.routes)
        make_exact(document, answers)
        if answers.policy.keys is not None:
            answers.policy.keys.reload()
        return answers, document

    def _install(self, answers: Answers, document: dict[str, Any]) -> None:
        self.answers = answers
        self.app.openapi = lambda: document  # type: ignore[method-assign]  # as FastAPI's own documents are extended
        self.metrics.model.clear()
        self.metrics.model.labels(answers.card["method"]).set(time.time())

    def reload(self) -> None:
        """Take the model and the keys anew, beside the requests under way; called on the event
        loop."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.get_running_loop().create_task(self._reload())

    async def wait(self) -> None:
        """Until the reload under way has ended."""
        if self._under_way is not None:
            await self._under_way

    async def _reload(self) -> None:
        try:
            self._install(*await asyncio.to_thread(self._load))
        except Exception as error:  # whatever is wrong with the new one, the old one goes on
            self.metrics.reloads.labels("failed").inc()
            words = str(error) if isinstance(error, PuidError) else repr(error)
            fields = {"error": words[:400]}
            LOG.error("reload failed; the model before it stays", extra={"fields": fields})
            return
        self.metrics.reloads.labels("done").inc()
        await asyncio.to_thread(return_memory)
        fields = {key: self.answers.card[key] for key in ("method", "loaded")}
        LOG.info("reloaded", extra={"fields": fields})


def return_memory() -> None:
    """Give the freed memory of an earlier model back to the system: glibc keeps it, in pieces, for
    each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


async def refused(request: Request, error: Exception) -> Response:
    """Every refusal has one form; what was not foreseen is in the log, not in the answer."""
    if isinstance(error, Refused):
        return error.response()
    if isinstance(error, HTTPException):
        code = Code.NOT_FOUND if error.status_code == 404 else Code.METHOD_NOT_ALLOWED
        response = Refused(code, str(error.detail)).response()
        response.headers.update(error.headers or {})  # which verbs a path takes
        return response
    message = "something went wrong on the server; its log says what"
    return Refused(Code.INTERNAL, message).response()


def answers_of(request: Request) -> Answers:
    """What answers for the model that is served now."""
    answers: Answers = request.app.state.serving.answers
    return answers


def _json(content: dict[str, Any]) -> Response:
    """Checked by tests against the schema, not on every request: an answer of 10,000 scores has no
    time for that."""
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")


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
    """Says that a request would be answered in time: takes its turn as a single user does, and is
    503 where that does not come. Needs no key."""
    loop, state = asyncio.get_running_loop(), request.app.state
    try:
        await in_time(request, loop.run_in_executor(state.worker, int))
    except Refused as problem:
        return problem.response()
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
    card = answers_of(request).card
    return _json({"status": "ok", **{key: card[key] for key in ("method", "users", "items")}})


@READ.get("/model", response_model=ModelCard, responses=BUSY, summary="What is being served")
async def model(request: Request) -> Response:
    """Method, data, metrics, Γ, settings, and the features that unknown users and items may
    bring."""
    return _json(answers_of(request).card)


@READ.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """Figures in the text form of Prometheus."""
    headers = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
    return Response(generate_latest(request.app.state.metrics.registry), headers=headers)


@ASK.post("/recommend", response_model=RecommendResponse, summary="Best items of users")
async def recommend(request: Request, body: RecommendRequest) -> Response:
    """The k best items of each user. Unknown users get the average user's, unless the server
    refuses them; with features, and a model that reads them, their own."""
    answers = answers_of(request)
    large = len(body.users) > 1 or bool(body.new_items or body.items or body.exclude)
    plan = await on_thread(request, partial(answers.plan, body), large)
    request.state.hold("results", len(body.users) * (body.k + body.offset))

    def render(ranking: Ranking, start: int) -> bytes:
        return to_json(plan.entries(ranking, start), inf_nan_mode="null")[1:-1]

    work = ranked(request.app.state.worker, answers.engine, plan.query, render)
    parts = await in_time(request, work)
    found, unknown = b",".join(parts), to_json(plan.unknown_items)
    content = b'{"recommendations":[%b],"unknown_items":%b}' % (found, unknown)
    size = {"Content-Length": str(len(content))}
    return StreamingResponse(_parts(content), headers=size, media_type="application/json")


async def _parts(content: bytes) -> AsyncIterator[bytes]:
    """One by one: the server waits before each until the client has room for it."""
    for at in range(0, len(content), PART):
        yield content[at : at + PART]
        await asyncio.sleep(0)  # lets the server notice that the client has left


@ASK.post("/score", response_model=ScoreResponse, summary="Scores of pairs")
async def score(request: Request, body: ScoreRequest) -> Response:
    """Scores of user-item pairs, on the scale of the model's target."""
    answers = answers_of(request)
    return _json(await on_thread(request, lambda: answers.scores(body), len(body.pairs) > 1))


@READ.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """This service in one page, without anything loaded from elsewhere."""
    answers, schema = answers_of(request), request.app.openapi()
    user, item = answers.users.ids[0], answers.items.ids[0]
    page = PAGES.get_template("docs.html.j2").render(
        **schema,
        card=answers.card,
        examples={
            "/recommend": {"users": [user], "k": 5},
            "/score": {"pairs": [{"user": user, "item": item}]},
        },
        base=str(request.base_url).rstrip("/"),
        probes=PROBES,
    )
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(page, headers=headers)


@READ.get("/", include_in_schema=False)
def start() -> RedirectResponse:
    """To the page that explains the service."""
    return RedirectResponse("/docs")
