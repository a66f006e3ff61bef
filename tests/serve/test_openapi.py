"""Requests drawn from the OpenAPI document: every answer is one that the document describes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from puidrec.model import Recommender
from puidrec.serve.answers import Answers
from puidrec.serve.app import create_app

pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with")


@pytest.fixture(scope="module")
def api(tiny_model: Recommender) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(lambda: Answers(tiny_model)))


BOUNDED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


VALID, INVALID = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("verb", "path", "mode"),
    [
        ("GET", "/health", VALID),
        ("GET", "/model", VALID),
        ("POST", "/recommend", VALID),
        ("POST", "/recommend", INVALID),
        ("POST", "/score", VALID),
        ("POST", "/score", INVALID),
    ],
)
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


WORDS = st.one_of(
    st.text(
        st.characters(codec=None, categories=None), max_size=12
    ),  # surrogates and control characters too
    st.sampled_from(
        [
            "\ud800",
            "a\udfff",
            "\x00",
            "\x1b[2J",
            "\u2028",
            "\ufeff",
            "\u202e",
            "\ufffe",
            "é" * 99,
            "'--",
            "{{7*7}}",
        ]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["segment", "region", "age", "genre", "quality"]
)  # of the model with features
FEATURES = st.dictionaries(NAMES, WORDS, max_size=2) | st.dictionaries(
    NAMES | WORDS, VALUES, max_size=2
)
WILD = st.dictionaries(
    st.sampled_from(["users", "items", "pairs", "k", "offset"]) | WORDS, VALUES, max_size=4
)


def bodies(path: str) -> Any:
    """Requests that are nearly right, with ids of one type, and some that are not."""
    return st.one_of(*(_bodies(path, ids) for ids in (st.integers(-1, 60), WORDS)), WILD)


def _bodies(path: str, ids: Any) -> Any:
    featured = st.builds(dict, id=ids, features=FEATURES)
    entity = ids | featured
    if path == "/score":
        return st.builds(
            dict, pairs=st.lists(st.builds(dict, user=entity, item=entity), min_size=1, max_size=2)
        )
    some = {"new_items": st.lists(featured, max_size=2), "exclude": st.lists(ids, max_size=2)}
    optional = {**some, "items": st.lists(entity, max_size=2), "k": st.integers(1, 9)}
    return st.fixed_dictionaries(
        {"users": st.lists(entity, min_size=1, max_size=2)}, optional=optional
    )


@pytest.mark.parametrize("path", ["/recommend", "/score"])
def test_hostile_text_causes_no_server_error(
    client: Any, client_of: Any, text_model: Recommender, path: str
) -> None:
    """As escapes, as bytes that are no UTF-8, and with bytes put anywhere; ids that are integers,
    and text."""
    statuses: Counter[int] = Counter()
    clients = (client, client_of(text_model))

    @settings(BOUNDED, max_examples=250)
    @given(
        body=bodies(path),
        raw=st.booleans(),
        place=st.integers(0, 200),
        junk=st.just(b"") | st.just(b"") | st.binary(max_size=4),
    )
    def check(body: Any, raw: bool, place: int, junk: bytes) -> None:
        content = json.dumps(body, ensure_ascii=not raw).encode("utf-8", "surrogatepass")
        content = content[:place] + junk + content[place:]
        for one in clients:
            answer = one.ask(
                "POST", path, content=content, headers={"content-type": "application/json"}
            )
            statuses[answer.status_code] += 1
            assert answer.status_code in (200, 400, 404, 422), answer.text
            assert answer.status_code == 200 or answer.json()["error"]["message"]
            assert len(answer.content) < 100_000

    check()
    assert min(statuses[200], statuses[400], statuses[422]) >= 5, statuses


def test_a_model_without_a_path_along_gamma_promises_none(api: Any) -> None:
    assert (
        api.raw_schema["components"]["schemas"]["RecommendRequest"]["properties"]["stable"]["const"]
        is False
    )


def test_every_path_is_drawn_from(api: Any) -> None:
    assert set(api.raw_schema["paths"]) == {
        "/health",
        "/livez",
        "/model",
        "/readyz",
        "/recommend",
        "/score",
    }
