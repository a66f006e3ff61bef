"""Small trained models, and the application that answers for one of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import polars as pl
import pytest

from puidrec.data.dataset import Dataset
from puidrec.model import Recommender
from puidrec.serve import Seen, Unknown
from puidrec.serve.answers import Answers
from puidrec.serve.app import create_app
from puidrec.serve.limits import Limits, Policy
from puidrec.serve.schema import ProblemResponse

ENVIRONMENT = {"data": "simulated", "data_sha256": "ab" * 32}


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Every test here works on tiny tensors."""


@pytest.fixture(scope="session")
def model(tiny_model: Recommender) -> Recommender:
    """The model that is served unless a test says otherwise."""
    return tiny_model


@pytest.fixture(scope="session")
def text_model(tiny_data: Dataset) -> Recommender:
    """The same log under text ids, without features, predicted as log-odds."""
    log = tiny_data.logged.to_frame().with_columns(
        pl.format("u{}", "user_id").alias("user_id"), pl.format("i{}", "item_id").alias("item_id")
    )
    settings = {"backbone": "mf", "loss": "cross-entropy", "target": "binary"}
    return Recommender("mf", dim=4, l2=0.1, epochs=5, rng=0, **settings).fit(
        Dataset.from_frame(log)
    )


class Client:
    """Requests to an application in this process, one event loop each; failures come back as
    responses."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def ask(self, verb: str, path: str, **request: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as session:
                return await session.request(verb, path, **request)

        return asyncio.run(once())

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.ask("POST", path, json=body)

    def refused(self, path: str, body: Any, status: int, code: str, *parts: str) -> dict[str, Any]:
        """The problem that a request must be refused with."""
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        problem = ProblemResponse.model_validate(answer.json()).error
        assert problem.code == code
        assert "Traceback" not in answer.text
        for part in parts:
            assert part in problem.message, f"{part!r} not in {problem.message!r}"
        return answer.json()["error"]


@pytest.fixture(scope="session")
def client_of() -> Any:
    """From a model to a client of the application that answers for it."""

    def make(
        model: Recommender,
        unknown: Unknown = Unknown.PRIOR,
        seen: Seen = Seen.CATALOGUE,
        policy: Policy | None = None,
        **limits: Any,
    ) -> Client:
        own = replace(policy or Policy(), unknown=unknown, seen=seen, limits=Limits(**limits))
        metrics = {"protocol": "rd", "uauc": 0.7, **model.report_}
        return Client(create_app(lambda: Answers(model, own, metrics, ENVIRONMENT)))

    return make


@pytest.fixture(scope="session")
def client(client_of: Any, model: Recommender) -> Client:
    return client_of(model)
