"""Bodies that would take gigabytes: refused by what they count, before anything is made of them."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from puidrec.serve.limits import Limits, Refused
from puidrec.serve.schema import RecommendRequest, ScoreRequest, read_body

JSON = "application/json"


def refused(body: bytes, form: Any = RecommendRequest) -> Refused:
    with pytest.raises(Refused) as caught:
        read_body(body, JSON, form, Limits())
    return caught.value


def users(features: Any) -> bytes:
    return json.dumps({"users": [{"id": 1, "features": features}]}, separators=(",", ":")).encode()


def test_millions_of_values_are_counted_not_made() -> None:
    """4 MB that took 36 s and 6.1 GB."""
    body = users({"age": [{}] * 1_390_000})
    tracemalloc.start()
    problem = refused(body)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "values" in problem.message
    assert most < 2**20


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (users({"age": [{}] * 40_000}), "features: found 40,000"),
        (users({"age": ["x"] * 1001}), "features: found 1,001"),
        (users({f"f{n}": 1 for n in range(257)}), "at most 256 items"),
        (users({"age": [{}] * 1000}), "expected text"),
        (users({f"f{n}": {} for n in range(256)}), "expected text"),
        (json.dumps({"users": [{}] * 1000}).encode(), "Field required"),
        (json.dumps({"users": [1], "exclude": [{}] * 20_000}).encode(), "expected an id"),
        (json.dumps({"users": [1], "exclude": [1] * 20_001}).encode(), "at most 20000 items"),
        (
            json.dumps({"users": [1], "new_items": [{"features": {}}] * 20_000}).encode(),
            "Field required",
        ),
    ],
)
def test_lists_end_at_their_first_error(body: bytes, word: str) -> None:
    """Messages about all of them took 4 kB each."""
    tracemalloc.start()
    problem = refused(body)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert word in problem.message
    assert most < 16 * 2**20


def test_what_is_allowed_is_read() -> None:
    items = read_body(
        json.dumps({"users": [1], "items": list(range(20_000))}).encode(),
        JSON,
        RecommendRequest,
        Limits(),
    )
    assert len(items.items or ()) == 20_000
    pairs = {"pairs": [{"user": n, "item": n} for n in range(10_000)]}
    assert (
        len(
            read_body(
                json.dumps(pairs).encode(), f"{JSON}; charset=utf-8", ScoreRequest, Limits()
            ).pairs
        )
        == 10_000
    )
    told = users({"genres": ["a", "b"], "age": 3, "new": None})
    assert read_body(told, "application/vnd.api+json", RecommendRequest, Limits()).users
