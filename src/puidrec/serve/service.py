"""What is being served: a model with all that is derived from it, taken from a run folder, and anew
when asked."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from puidrec import __version__
from puidrec.errors import PuidError
from puidrec.run_folder import load_run, read_environment
from puidrec.serve import Seen, Unknown
from puidrec.serve.access import ApiKeys
from puidrec.serve.answers import Answers, nothing_seen
from puidrec.serve.limits import LOG, Limits
from puidrec.serve.observe import Metrics
from puidrec.serve.schema import make_exact


@dataclass(frozen=True)
class Policy:
    """How a server behaves, whatever model it serves."""

    unknown: Unknown = Unknown.PRIOR
    seen: Seen = Seen.CATALOGUE
    limits: Limits = Limits()  # noqa: RUF009 (it cannot be changed)
    device: str = "cpu"
    keys: ApiKeys | None = None
    hosts: Sequence[str] = ("*",)
    origins: Sequence[str] = ()
    """Of pages whose scripts may ask (CORS)."""


@dataclass(frozen=True)
class Service:
    """A model that is being served; a request keeps the one that it began with."""

    answers: Answers
    card: dict[str, Any]


def load_service(folder: Path, policy: Policy) -> Service:
    """Load a run folder and warm up."""
    model, metrics = load_run(folder, policy.device)
    environment = read_environment(folder)
    if policy.seen is Seen.NEVER:
        model.seen_, model.held_out_ = nothing_seen(model), None
    answers = Answers(model, policy.unknown, policy.limits, policy.seen)
    answers.engine.warm_up()
    return make_service(answers, metrics, environment)


def make_service(answers: Answers, metrics: dict[str, Any], environment: dict[str, Any]) -> Service:
    """A fitted model; metrics and environment are what `/model` tells of its making."""
    model, apart = answers.model, ("method", "gamma", "protocol")
    card = {
        "method": model.settings.method,
        "description": model.settings.spec.description,
        "data": environment.get("data"),
        "data_sha256": environment.get("data_sha256"),
        "protocol": metrics.get("protocol"),
        "metrics": {key: value for key, value in metrics.items() if key not in apart},
        "gamma": model.report_.get("gamma"),
        "settings": model.settings.model_dump(),
        **answers.users.card(),
        **answers.items.card(),
        "unknown": answers.unknown.value,
        "seen": answers.seen.value,
        "loaded": datetime.now(UTC).isoformat(timespec="seconds"),
        "limits": asdict(answers.limits),
        "version": __version__,
    }
    return Service(answers, card)


class Serving:
    """The service of an application now, and how another one takes its place."""

    def __init__(
        self, app: FastAPI, load: Callable[[], Service], metrics: Metrics, policy: Policy
    ) -> None:
        self.app, self.load, self.metrics, self.policy = app, load, metrics, policy
        self._under_way: asyncio.Task[None] | None = None
        self._install(*self._load())

    def _load(self) -> tuple[Service, dict[str, Any]]:
        """The service, and its OpenAPI document. Keys last: a model that is refused leaves
        everything as it was."""
        service, keys = self.load(), self.policy.keys
        words = f"Recommendations of a {service.card['method']} model."
        document = get_openapi(
            title=self.app.title,
            version=self.app.version,
            description=words,
            routes=self.app.routes,
        )
        make_exact(document, service.answers, keyed=keys is not None)
        if keys is not None:
            keys.reload()
        return service, document

    def _install(self, service: Service, document: dict[str, Any]) -> None:
        self.service = service
        self.app.openapi = lambda: document  # type: ignore[method-assign]  # as FastAPI's own documents are extended
        self.metrics.model.clear()
        self.metrics.model.labels(service.card["method"]).set(time.time())

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
        fields = {key: self.service.card[key] for key in ("method", "loaded")}
        LOG.info("reloaded", extra={"fields": fields})


def return_memory() -> None:
    """Give the freed memory of an earlier model back to the system: glibc keeps it, in pieces, for
    each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
