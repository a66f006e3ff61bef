"""A run that was killed and resumed ends where an uninterrupted one does, to the last bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from puidrec.train import least_squares

from puidrec.methods import METHODS
from puidrec.model import Recommender
from puidrec.optimise.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from puidrec.optimise.stopping import JUDGE_EVERY

TRAINED = [name for name, spec in METHODS.items() if spec.trains]
TWO_STAGES = [name for name in TRAINED if METHODS[name].benchmark or METHODS[name].calibrates_gamma]
OPTIONS = {"dim": 3, "epochs": 11, "checkpoint_every": 3, "propensity": "cells", "patience": 4, "solver": "adam"}


class Killed(Exception):
    """Stands for a power cut."""


def killer(call):
    """A progress callback that ends the run at its n-th epoch, counted over all stages."""
    calls = iter(range(call))

    def progress(*_):
        if next(calls, None) is None:
            raise Killed

    return progress


def assert_same(one, other) -> None:
    assert np.array_equal(one.user_factors_, other.user_factors_)
    assert np.array_equal(one.item_factors_, other.item_factors_)
    assert one.history_ == other.history_
    assert one.parameters_.keys() == other.parameters_.keys()
    assert all(np.array_equal(value, other.parameters_[name]) for name, value in one.parameters_.items())
    drop = {"seconds"}
    assert {k: v for k, v in one.report_.items() if k not in drop} == {
        k: v for k, v in other.report_.items() if k not in drop
    }


@pytest.mark.parametrize("method", TRAINED)
def test_killed_at_any_epoch_and_resumed_every_method_ends_the_same(method, world, suited, tmp_path) -> None:
    data, options = suited(method, world(3), OPTIONS)
    rng, whole = random.Random(method), Recommender(method, **options).fit(data)
    epochs = len(whole.history_)
    per_stage = [rng.randrange(epochs // 2), rng.randrange(epochs // 2, epochs)]
    for number, moment in enumerate(per_stage):
        path = tmp_path / f"{number}.safetensors"
        with pytest.raises(Killed):
            Recommender(method, **options).fit(data, checkpoint=path, progress=killer(moment))
        assert path.exists() == (moment >= 3)
        assert_same(Recommender(method, **options).fit(data, checkpoint=path), whole)


@pytest.mark.parametrize(("method", "options"), [("mf", {}), ("brd-ips", {}), ("brd-ips", {"solver": "adam"})])
def test_a_kill_loses_no_more_than_a_second_and_the_sweep_under_way(method, options, world, tmp_path, monkeypatch):
    clock, saved, done = SimpleNamespace(now=0.0), [], []
    monkeypatch.setattr("puidrec.model.CHECKPOINT_SECONDS", 1.0)
    monkeypatch.setattr("puidrec.model.time", SimpleNamespace(perf_counter=lambda: clock.now))

    def save(path, checkpoint) -> None:
        saved.append(len(done))
        save_checkpoint(path, checkpoint)

    def progress(*_) -> None:
        done.append(1)
        clock.now += 0.375

    monkeypatch.setattr("puidrec.model.save_checkpoint", save)
    given = {"dim": 3, "epochs": 11, "checkpoint_every": 1, "patience": 0, "l2_vectors": 0.5, **options}
    model = Recommender(method, **given).fit(world(3), checkpoint=tmp_path / "c", progress=progress)
    assert len(done) == len(model.history_) >= 10
    assert saved == list(range(3, len(done) + 1, 3)), "across stages as well"


@pytest.mark.parametrize("killed_after", [6, 7, 8, 9])
@pytest.mark.parametrize("method", ["multi-dr", "bpuid-dr"])
def test_a_checkpoint_between_two_judgements_goes_on_to_the_same_bits(method, killed_after, world, tmp_path) -> None:
    data, path, options = world(3), tmp_path / "run", {**OPTIONS, "checkpoint_every": 1}
    whole = Recommender(method, **options).fit(data)
    with pytest.raises(Killed):
        Recommender(method, **options).fit(data, checkpoint=path, progress=killer(killed_after))
    state = load_checkpoint(path).state
    assert (len(state["history"]), state["stopping"]["epoch"] + 1) == (killed_after, JUDGE_EVERY)
    assert_same(Recommender(method, **options).fit(data, checkpoint=path), whole)


@pytest.mark.parametrize("method", ["bpuid-dr", "signed-rd"])
def test_a_run_that_is_killed_again_and_again_gets_there(method, world, tmp_path) -> None:
    data, path, options = world(3), tmp_path / "run.safetensors", {**OPTIONS, "checkpoint_every": 1}
    whole = Recommender(method, **options).fit(data)
    deaths = 0
    while True:
        try:
            final = Recommender(method, **options).fit(data, checkpoint=path, progress=killer(2))
            break
        except Killed:
            deaths += 1
    assert deaths > 5
    assert_same(final, whole)


@pytest.mark.parametrize("method", ["mf", "puid-dr", "brd-dr", "multi-dr", "sharp-rd"])
def test_blocks_resume_too(method, world, tmp_path) -> None:
    data, options = world(4, 120, 20), {**OPTIONS, "block_users": 50, "gamma": 2.0}
    whole = Recommender(method, **options).fit(data)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        Recommender(method, **options).fit(data, checkpoint=path, progress=killer(8))
    assert_same(Recommender(method, **options).fit(data, checkpoint=path), whole)


@pytest.mark.parametrize("method", TRAINED)
def test_two_runs_with_one_seed_are_one(method, world, suited) -> None:
    data, options = suited(method, world(1), {**OPTIONS, "epochs": 5, "block_users": 15})
    first, second = (Recommender(method, rng=5, **options).fit(data) for _ in range(2))
    assert_same(first, second)
    other = Recommender(method, rng=6, **options).fit(data, data.split("rd", 5))
    assert not np.array_equal(first.user_factors_, other.user_factors_)


def test_a_finished_run_is_not_trained_again(world, tmp_path) -> None:
    data, path, options = world(3), tmp_path / "run", {**OPTIONS, "checkpoint_every": 1}
    first = Recommender("brd-ips", **options).fit(data, checkpoint=path)
    again = Recommender("brd-ips", **options).fit(data, checkpoint=path, progress=killer(0))
    assert_same(first, again)


@pytest.fixture
def interrupted(world, tmp_path):
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        Recommender("brd-dr", **OPTIONS).fit(world(3), checkpoint=path, progress=killer(18))
    return path


def test_a_checkpoint_of_another_run_is_refused(interrupted, world, refusal) -> None:
    def resume(data, split=None, **changes):
        model = Recommender(changes.pop("method", "brd-dr"), **{**OPTIONS, **changes})
        return lambda: model.fit(data, split, checkpoint=interrupted)

    before = interrupted.read_bytes()
    data = world(3)
    for call in (
        resume(data, method="brd-ips"), resume(data, lr=0.1), resume(world(2)), resume(data, data.split("rd", 1)),
        resume(data, data.split("ge3", 0)), resume(data, data.split("rd", 0, add_uniform=True)),
    ):  # fmt: skip
        refusal(call, "other settings or data", str(interrupted))
    assert interrupted.read_bytes() == before


def test_a_checkpoint_whose_parts_are_missing_or_odd_is_refused(interrupted, world, refusal) -> None:
    good = load_checkpoint(interrupted)
    assert good.state["stage"] == "main"
    model = Recommender("brd-dr", **OPTIONS)

    def resume(tensors, state) -> str:
        save_checkpoint(interrupted, Checkpoint(tensors, state))
        return refusal(lambda: model.fit(world(3), checkpoint=interrupted))

    for name in good.tensors:
        if good.tensors[name].ndim == 0:
            continue
        without = {key: value for key, value in good.tensors.items() if key != name}
        if name == "done.benchmark.phi.left" or not name.startswith("done."):
            resume({**without, name: good.tensors[name].reshape(-1)[:1]}, good.state)
        if name.startswith(("now.", "best.", "adam.")):
            resume(without, good.state)
    for changes in ({"stopping": {}}, {"stopping": {"colour": 1}}, {"history": None}, {"done": {}}, {"done": []}):
        resume(good.tensors, {**good.state, **changes})
    odd = {f"{name}.x" if name.startswith("adam.") else name: tensor for name, tensor in good.tensors.items()}
    resume(odd, good.state)


SCRIPT = """
import os, random, signal, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from puidrec import model
from puidrec.data.synthetic import simulate

model.CHECKPOINT_SECONDS = 0.0
path, rng = Path(sys.argv[1]), random.Random(0)

def killed_after(epochs):  # told when so many are done, we kill while the next ones run; more than five it does not do
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        done = []
        def progress(*_):
            done.append(1)
            if len(done) == epochs:
                os.write(writer, b"x")
            if len(done) == epochs + 5:
                signal.pause()
        data = simulate("mixed", 40, 25, density=0.2, rng=3).data  # here: threads do not survive a fork
        options = {"epochs": 60, "dim": 3, "propensity": "cells", "checkpoint_every": 1, "l2_vectors": 0.5}
        model.Recommender("bpuid-dr", patience=0, **options).fit(data, checkpoint=path, progress=progress)
        os._exit(0)
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

for _ in range(3):
    killed_after(rng.randint(5, 25))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_real_kill_at_random_moments(world, tmp_path) -> None:
    path = tmp_path / "run.safetensors"
    subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True, timeout=120)
    killed = load_checkpoint(path).state
    options = {"epochs": 60, "dim": 3, "propensity": "cells", "checkpoint_every": 1, "patience": 0, "l2_vectors": 0.5}
    whole = Recommender("bpuid-dr", **options).fit(world(3))
    assert (killed["stage"], len(killed["history"])) != ("main", 60)
    assert_same(Recommender("bpuid-dr", **options).fit(world(3), checkpoint=path), whole)


@pytest.mark.parametrize("method", ["mf", "dr", "signed-rd"])
def test_killed_on_the_path_or_after_it_ends_in_the_same_bits(method, world, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(least_squares, "PATH_ROWS", 1)
    data, told = world(3), []
    options = {"dim": 3, "propensity": "cells"}
    whole = Recommender(method, **options).fit(data, progress=lambda *_: told.append(1))
    assert whole.report_["l2_factor"] <= 1.0
    assert len(told) > len(whole.history_), "sweeps of fits that are compared are told, too"
    rng = random.Random(method)
    for number, moment in enumerate([3, rng.randrange(len(told) // 2), rng.randrange(len(told) // 2, len(told))]):
        path = tmp_path / f"{number}.safetensors"
        with pytest.raises(Killed):
            Recommender(method, **options).fit(data, checkpoint=path, progress=killer(moment))
        assert_same(Recommender(method, **options).fit(data, checkpoint=path), whole)
