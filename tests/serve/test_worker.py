"""The queue: who shares a product, who waits for whom, and what happens when someone leaves or something breaks."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from puidrec.model import Recommender
from puidrec.serve import engine as module
from puidrec.serve.engine import Engine, Query, Ranking, Worker

NOTHING = np.zeros((0, 6), np.float32)


class Slow(Engine):
    """An engine that waits for the gate before each product, and notes who was in it."""

    def __init__(self, model: Recommender) -> None:
        super().__init__(model)
        self.gate, self.products = threading.Event(), []

    def best_of_each(self, queries: list[Query]) -> list[Ranking]:
        self.gate.wait(10)
        self.products.append([len(query.users) for query in queries])
        if any(query.k == 13 for query in queries):
            raise RuntimeError("broken")
        return super().best_of_each(queries)


@pytest.fixture
def engine(model: Recommender, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(module, "BLOCK_SCORES", 40 * 10)  # ten users per block
    return Slow(model)


def query(engine: Engine, users: list[int], k: int = 3, candidates=None) -> Query:
    return Query(engine.user_factors[users], np.array(users), k, candidates or engine.catalogue)


async def gathered(engine: Slow, queries: list[Query]) -> list[Ranking | BaseException]:
    """All queries are waiting before the first product begins, save the first, which is in it."""
    worker = Worker(engine)
    tasks = [asyncio.create_task(worker.best(one)) for one in queries]
    await asyncio.sleep(0.05)
    engine.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    worker.close()
    return found


def test_answers_are_those_of_the_engine(engine: Slow, model: Recommender) -> None:
    queries = [query(engine, [user, 59 - user], k=3 + user % 2) for user in range(20)]
    queries.append(query(engine, list(range(60))))
    plain = Engine(model)
    for found, one in zip(asyncio.run(gathered(engine, queries)), queries, strict=True):
        expected = plain.best(one)
        assert np.array_equal(found.codes, expected.codes)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)


def test_those_who_wait_share_a_product(engine: Slow) -> None:
    asyncio.run(gathered(engine, [query(engine, [user]) for user in range(25)]))
    assert sorted(map(len, engine.products)) in ([5, 10, 10], [1, 4, 10, 10])


def test_other_k_and_other_candidates_do_not_mix(engine: Slow) -> None:
    some = engine.choose(np.arange(5), NOTHING)
    queries = [query(engine, [0]), query(engine, [1], k=4), query(engine, [2], candidates=some), query(engine, [3])]
    asyncio.run(gathered(engine, queries))
    assert sorted(np.concatenate(engine.products)) == [1] * 4
    assert len(engine.products) >= 3


def test_a_single_user_does_not_wait_for_a_giant(engine: Slow) -> None:
    done: list[str] = []

    async def ask(worker: Worker, name: str, users: list[int], k: int) -> None:
        await worker.best(query(engine, users, k))
        done.append(name)

    async def story() -> None:
        worker = Worker(engine)
        giant = asyncio.create_task(ask(worker, "giant", list(range(60)) * 5, 5))
        await asyncio.sleep(0.05)
        single = asyncio.create_task(ask(worker, "single", [1], 6))
        await asyncio.sleep(0.05)
        engine.gate.set()
        await asyncio.gather(giant, single)
        worker.close()

    asyncio.run(story())
    assert done == ["single", "giant"]
    assert engine.products.index([1]) <= 2


def test_what_nobody_waits_for_is_not_computed(engine: Slow) -> None:
    async def story() -> None:
        worker = Worker(engine)
        first = asyncio.create_task(worker.best(query(engine, [0])))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(worker.best(query(engine, list(range(60)), k=7)))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0)
        engine.gate.set()
        await first
        await asyncio.sleep(0.1)
        worker.close()

    asyncio.run(story())
    assert engine.products == [[1]]


def test_a_failure_reaches_its_own_request_only(engine: Slow) -> None:
    found = asyncio.run(gathered(engine, [query(engine, [0]), query(engine, [1], k=13), query(engine, [2], k=5)]))
    assert isinstance(found[1], RuntimeError)
    assert isinstance(found[0], Ranking)
    assert isinstance(found[2], Ranking)
