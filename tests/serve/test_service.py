"""A new model takes the place of the old one: requests under way end with the old one, which is
then gone."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from puidrec.model import Recommender
from puidrec.serve import Seen
from puidrec.serve import app as module
from puidrec.serve.app import load_answers, serve_run
from puidrec.serve.limits import Policy


@pytest.fixture
def run(model: Recommender, tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    model.save(folder / "model")
    (folder / "metrics.json").write_text(json.dumps({"protocol": "rd", "uauc": 0.5}))
    (folder / "environment.json").write_text("{}")
    return folder


async def ask(app: Any, users: list[int]) -> httpx.Response:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://here"
    ) as session:
        return await session.post("/recommend", json={"users": users, "k": 5})


def test_no_request_is_dropped_when_a_model_is_exchanged(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = serve_run(run)
    serving, old = app.state.serving, app.state.serving.answers
    expected = asyncio.run(ask(app, [3])).json()
    model = Recommender.load(run / "model")
    model.item_factors_ = -model.item_factors_
    model.save(run / "model")

    async def story() -> list[httpx.Response]:
        gate, best = asyncio.Event(), module.ranked

        async def held(*args: Any) -> Any:
            await gate.wait()
            return await best(*args)

        monkeypatch.setattr(module, "ranked", held)
        first = asyncio.create_task(ask(app, [3]))
        await asyncio.sleep(0.1)
        serving.reload()
        serving.reload()  # while one is under way, another is not begun
        await serving.wait()
        second = asyncio.create_task(ask(app, [3]))
        await asyncio.sleep(0.1)
        gate.set()
        return [await first, await second]

    before, after = asyncio.run(story())
    assert before.json() == expected
    assert after.json() != expected
    assert serving.answers is not old


def test_the_old_model_is_forgotten(run: Path) -> None:
    app = serve_run(run)
    old = weakref.ref(app.state.serving.answers.engine)

    async def story() -> None:
        await ask(app, list(range(40)))
        app.state.serving.reload()
        await app.state.serving.wait()
        await ask(app, [1])

    asyncio.run(story())
    gc.collect()
    assert old() is None


@pytest.mark.parametrize(
    "damage", ["model/model.json", "environment.json", "model/model.safetensors"]
)
def test_a_damaged_model_does_not_replace_a_good_one(run: Path, damage: str) -> None:
    app = serve_run(run)
    service = app.state.serving.answers
    (run / damage).write_text("{")

    async def story() -> None:
        app.state.serving.reload()
        await app.state.serving.wait()

    asyncio.run(story())
    assert app.state.serving.answers is service
    assert asyncio.run(ask(app, [3])).status_code == 200
    assert app.state.metrics.reloads.labels("failed")._value.get() == 1


def test_a_server_that_forgets_holds_nothing_that_was_rated(run: Path) -> None:
    answers = load_answers(run, Policy(seen=Seen.NEVER))
    assert answers.model.held_out_ is None
    assert answers.model.seen_[1].size == answers.engine.seen[1].size == 0
    assert np.array_equal(np.unique(answers.engine.seen[0]), [0])
