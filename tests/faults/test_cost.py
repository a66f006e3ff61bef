"""What telling and saving cost a run: progress that ends at its end, checkpoints that take little
time and room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import puidrec.fitting as module
from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.model import Recommender
from puidrec.optimise.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return simulate("mixed", 60, 40, density=0.2, rng=0).data


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("spectrum", {}),  # ends with a closed form, which once stood at "8 of 8" for a minute
        ("mf", {}),
        ("puid-dr", {}),
        ("mf", {"dim": 3, "l2": 0.1}),
        ("brd-ips", {"solver": "adam", "epochs": 6, "dim": 2}),
    ],
)
def test_progress_counts_work_and_ends_at_its_end(
    method: str, options: dict[str, Any], data: Dataset
) -> None:
    told: list[tuple[str, int, int]] = []
    Recommender(method, **options).fit(
        data, progress=lambda stage, done, total, _: told.append((stage, done, total))
    )
    done, total = (np.array([call[k] for call in told]) for k in (1, 2))
    assert (np.diff(done) >= 0).all()
    assert (done[:-1] < total[:-1]).all(), "full before the end"
    assert done[-1] == total[-1] > 0


class Clock:
    """Time that passes only while something is done: a sweep takes a tenth of a second, a
    checkpoint what it costs."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def saved(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, path: Path, seconds: float, size: int
) -> tuple[float, int]:
    """A run of some minutes whose checkpoints take so long and so many bytes: its seconds, and its
    checkpoints."""
    clock, count = Clock(), 0

    def save(_: Path, checkpoint: Checkpoint) -> None:
        nonlocal count
        count += 1
        clock.now += seconds

    def tick(*_: Any) -> None:
        clock.now += 0.5

    def sized(checkpoint: Checkpoint) -> Checkpoint:
        return Checkpoint({"x": torch.zeros(1).expand(size // 4)}, checkpoint.state)

    real = module.train_stages

    def train(prepared: Any, save: Any, *rest: Any) -> Any:
        return real(prepared, lambda make: save(lambda: sized(make())), *rest)

    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "save_checkpoint", save)
    monkeypatch.setattr(module, "train_stages", train)
    options: dict[str, Any] = {
        "dim": 2,
        "l2": 1e-4,
        "epochs": 2000,
        "solver": "adam",
        "patience": 0,
    }
    Recommender("mf", **options).fit(data, checkpoint=path, progress=tick)
    return clock.now, count


def test_slow_checkpoints_take_a_twentieth_of_the_time(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total, count = saved(data, monkeypatch, tmp_path / "c", seconds=3.0, size=1000)
    assert count > 5
    assert 3.0 * count <= 0.05 * total


def test_large_checkpoints_write_twice_the_model_a_minute(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A train of 5 million rows once wrote 10 GB for a model of 237 MB."""
    monkeypatch.setattr(module, "CHECKPOINT_SMALL", 0)
    model_bytes = 4 * (data.n_users + data.n_items) * (2 + 2)
    total, count = saved(data, monkeypatch, tmp_path / "c", seconds=0.0, size=3 * model_bytes)
    assert count > 5
    assert (count - 1) * 3 * model_bytes <= 2 * model_bytes * total / 60
