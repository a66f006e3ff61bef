"""The engine against the library's own recommend; and who waits for whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from puidrec.data.dataset import Dataset
from puidrec.model import Recommender
from puidrec.serve import answers as module
from puidrec.serve.answers import Engine, Query, Ranking, ranked

NOTHING = np.zeros((0, 6), np.float32)


def query(
    engine: Engine,
    users: Sequence[int] | np.ndarray,
    k: int = 3,
    *,
    exclude: bool = True,
    candidates: Any = None,
) -> Query:
    seen_by = np.asarray(users) if exclude else np.full(len(users), len(engine.user_factors))
    nothing = np.zeros(0, np.int64)
    return Query(engine.user_factors[users], seen_by, k, candidates or engine.catalogue, nothing)


@pytest.mark.parametrize("exclude", [True, False])
def test_agrees_with_recommend(model: Recommender, exclude: bool) -> None:
    engine, everyone = Engine(model), np.arange(60)
    ranking = engine.best(query(engine, everyone, 5, exclude=exclude))
    frame = model.recommend(model.user_ids_.ids, k=5, exclude_seen=exclude, scale="unit")
    assert frame["item_id"].to_list() == model.item_ids_.decode(ranking.codes.ravel()).to_list()
    np.testing.assert_allclose(ranking.scores.ravel(), frame["score"], atol=1e-6)


def test_log_odds_become_chances(text_model: Recommender) -> None:
    engine = Engine(text_model)
    ranking = engine.best(query(engine, np.arange(10), 5))
    frame = text_model.recommend(text_model.user_ids_.ids[:10], k=5)
    np.testing.assert_allclose(ranking.scores.ravel(), frame["score"], atol=1e-6)


def test_seen_items_come_last_and_are_marked(model: Recommender, tiny_data: Dataset) -> None:
    engine = Engine(model)
    ranking = engine.best(query(engine, np.arange(60), 40))
    for user in range(60):
        left_out = ranking.codes[user][np.isneginf(ranking.scores[user])]
        assert set(left_out) == set(tiny_data.train.item[tiny_data.train.user == user])


def test_a_filter_is_a_ranking_of_fewer(model: Recommender) -> None:
    engine, users = Engine(model), np.arange(60)
    codes = np.array([31, 4, 4, 17, 0])  # seen items lie between them and beyond
    some = engine.best(query(engine, users, 40, candidates=engine.choose(codes, NOTHING)))
    everything = engine.best(query(engine, users, 40))
    for row in range(60):
        kept = np.isin(everything.codes[row], codes) & np.isfinite(everything.scores[row])
        finite = np.isfinite(some.scores[row])
        assert some.codes[row][finite].tolist() == everything.codes[row][kept].tolist()


def test_cold_start_items_rank_beside_the_others(model: Recommender) -> None:
    engine = Engine(model)
    twin, better = engine.item_factors[3], engine.item_factors[3] + [0, 0, 0, 0, 0, 10.0]
    candidates = engine.choose(None, np.array([twin, better], np.float32))
    ranking = engine.best(query(engine, np.arange(5), 42, exclude=False, candidates=candidates))
    assert (ranking.codes[:, 0] == 41).all()
    for row in range(5):
        order = ranking.codes[row].tolist()
        assert order.index(40) == order.index(3) + 1  # equal scores: the catalogue first


def test_pairs_score_as_predict_does(model: Recommender) -> None:
    engine, rng = Engine(model), np.random.default_rng(0)
    users, items = rng.integers(0, 60, 100), rng.integers(0, 40, 100)
    found = engine.pair_scores(engine.user_factors[users], engine.item_factors[items])
    np.testing.assert_allclose(found, model.predict(users, items, scale="unit"), atol=1e-6)


class Slow(Engine):
    """An engine that waits for the gate before each product, and notes who was in it."""

    def __init__(self, model: Recommender) -> None:
        super().__init__(model)
        self.gate, self.products = threading.Event(), []

    def best(self, query: Query) -> Ranking:
        self.gate.wait(10)
        self.products.append(len(query.users))
        if query.k == 13:
            raise RuntimeError("broken")
        return super().best(query)


@pytest.fixture
def engine(model: Recommender, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(module, "SLICE_SCORES", 40 * 10)  # ten users per slice
    return Slow(model)


async def best(worker: ThreadPoolExecutor, engine: Engine, asked: Query) -> Ranking:
    """The answer to a query, its parts together."""
    parts = await ranked(worker, engine, asked, lambda ranking, start: ranking)
    codes, scores = ([getattr(part, name) for part in parts] for name in ("codes", "scores"))
    return Ranking(np.concatenate(codes), np.concatenate(scores))


async def gathered(engine: Slow, queries: list[Query]) -> list[Ranking | BaseException]:
    """All queries are waiting before the first product begins, save the first, which is in it."""
    worker = ThreadPoolExecutor(1)
    tasks = [asyncio.create_task(best(worker, engine, one)) for one in queries]
    await asyncio.sleep(0.05)
    engine.gate.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    worker.shutdown()
    return found


def test_answers_are_those_of_the_engine(engine: Slow, model: Recommender) -> None:
    queries = [query(engine, [user, 59 - user], k=3 + user % 2) for user in range(20)]
    queries.append(query(engine, list(range(60))))
    plain = Engine(model)
    for found, one in zip(asyncio.run(gathered(engine, queries)), queries, strict=True):
        expected = plain.best(one)
        assert np.array_equal(found.codes, expected.codes)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)


def test_a_single_user_does_not_wait_for_a_giant(engine: Slow) -> None:
    done: list[str] = []

    async def ask(worker: ThreadPoolExecutor, name: str, users: list[int], k: int) -> None:
        await best(worker, engine, query(engine, users, k))
        done.append(name)

    async def story() -> None:
        worker = ThreadPoolExecutor(1)
        giant = asyncio.create_task(ask(worker, "giant", list(range(60)) * 5, 5))
        await asyncio.sleep(0.05)
        single = asyncio.create_task(ask(worker, "single", [1], 6))
        await asyncio.sleep(0.05)
        engine.gate.set()
        await asyncio.gather(giant, single)
        worker.shutdown()

    asyncio.run(story())
    assert done == ["single", "giant"]
    assert engine.products.index(1) <= 2


def test_what_nobody_waits_for_is_not_computed(engine: Slow) -> None:
    async def story() -> None:
        worker = ThreadPoolExecutor(1)
        first = asyncio.create_task(best(worker, engine, query(engine, [0])))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(best(worker, engine, query(engine, list(range(60)), k=7)))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0)
        engine.gate.set()
        await first
        await asyncio.sleep(0.1)
        worker.shutdown()

    asyncio.run(story())
    assert engine.products == [1]


def test_a_failure_reaches_its_own_request_only(engine: Slow) -> None:
    found = asyncio.run(
        gathered(engine, [query(engine, [0]), query(engine, [1], k=13), query(engine, [2], k=5)])
    )
    assert isinstance(found[1], RuntimeError)
    assert isinstance(found[0], Ranking)
    assert isinstance(found[2], Ranking)


def test_a_single_user_waits_for_at_most_one_slice_of_each_large_request(
    engine: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_SCORES", 40 * 2)
    order: list[str] = []

    async def ask(worker: ThreadPoolExecutor, name: str, users: list[int]) -> None:
        await ranked(
            worker, engine, query(engine, users), lambda ranking, start: order.append(name)
        )

    async def story() -> None:
        worker = ThreadPoolExecutor(1)
        giants = [asyncio.create_task(ask(worker, name, list(range(8)))) for name in ("a", "b")]
        await asyncio.sleep(0.05)
        singles = [asyncio.create_task(ask(worker, "single", [1])) for _ in range(3)]
        await asyncio.sleep(0.05)
        engine.gate.set()
        await asyncio.gather(*giants, *singles)
        worker.shutdown()

    asyncio.run(story())
    assert order == ["a", "b", *["single"] * 3, *["a", "b"] * 3]


def test_a_slice_is_bounded_by_scores_and_by_results(model: Recommender) -> None:
    engine = Engine(model)
    assert engine.slice_users(query(engine, [0], 1000)) == 1
    assert engine.slice_users(query(engine, [0], 5)) == module.SLICE_RESULTS // 5
    many = replace(engine.catalogue, factors=torch.zeros(module.SLICE_SCORES // 3, 6))
    assert engine.slice_users(query(engine, [0], 1, candidates=many)) == 3
