"""Requests drawn from the OpenAPI document: every answer is one that the document describes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from puidrec.model import Recommender
from puidrec.serve.answers import Answers
from puidrec.serve.app import create_app

pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with")


@pytest.fixture(scope="module")
def api(tiny_model: Recommender) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(Answers(tiny_model), {}, {}))


BOUNDED = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


VALID, INVALID = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("verb", "path", "mode"),
    [
        ("GET", "/health", VALID), ("GET", "/model", VALID), ("POST", "/recommend", VALID),
        ("POST", "/recommend", INVALID), ("POST", "/score", VALID), ("POST", "/score", INVALID),
    ],
)  # fmt: skip
def test_answers_conform(api: Any, verb: str, path: str, mode: GenerationMode) -> None:
    statuses: Counter[int] = Counter()

    @BOUNDED
    @given(case=api[path][verb].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call_and_validate()
        statuses[answer.status_code] += 1

    check()
    assert set(statuses) <= ({200, 404} if mode is VALID else {400, 422})
    assert mode is INVALID or statuses[200]
    assert verb == "GET" or sum(statuses.values()) >= 10


def test_a_model_without_a_path_along_gamma_promises_none(api: Any) -> None:
    assert api.raw_schema["components"]["schemas"]["RecommendRequest"]["properties"]["stable"]["const"] is False


def test_every_path_is_drawn_from(api: Any) -> None:
    assert set(api.raw_schema["paths"]) == {"/health", "/livez", "/model", "/readyz", "/recommend", "/score"}
