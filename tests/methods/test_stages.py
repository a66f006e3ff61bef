"""A run that was killed and resumed ends where an uninterrupted one does, to the last bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from puidrec.methods import METHODS
from puidrec.methods.table import ROBUST
from puidrec.model import Recommender
from puidrec.optimise.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from puidrec.optimise.stopping import JUDGE_EVERY

BY_BUILDER = {spec.build: name for name, spec in METHODS.items() if spec.trains}
TRAINED = [
    "mf",
    "dr",
    "bpuid-ips",
    "brd-dr",
    *(name for name in BY_BUILDER.values() if METHODS[name].build != ROBUST),
]
"""One row per builder, and those of the paper's grid that have other stages or models."""
OPTIONS = {
    "dim": 3,
    "l2": 0.1,
    "epochs": 11,
    "propensity": "cells",
    "patience": 4,
    "solver": "adam",
}
SOLVED = {"dim": 3, "l2": 0.02, "epochs": 25, "propensity": "cells"}
"""The default solver; a checkpoint is due every tenth sweep."""


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
    assert all(
        np.array_equal(value, other.parameters_[name]) for name, value in one.parameters_.items()
    )
    drop = {"seconds"}
    assert {k: v for k, v in one.report_.items() if k not in drop} == {
        k: v for k, v in other.report_.items() if k not in drop
    }


@pytest.mark.parametrize(
    "method", [name for name in TRAINED if name != "dcf"]
)  # one stage without a checkpoint
@pytest.mark.parametrize("options", [OPTIONS, SOLVED], ids=["adam", "default"])
def test_killed_at_any_moment_and_resumed_it_ends_in_the_same_bits(
    method, options, world, suited, tmp_path
) -> None:
    data, given = suited(method, world(3), options)
    told: list[int] = []
    whole = Recommender(method, **given).fit(data, progress=lambda *_: told.append(1))
    rng = random.Random(method)
    for number, moment in enumerate(
        [rng.randrange(len(told) // 2), rng.randrange(len(told) // 2, len(told))]
    ):
        path = tmp_path / f"{number}.safetensors"
        with pytest.raises(Killed):
            Recommender(method, **given).fit(data, checkpoint=path, progress=killer(moment))
        assert_same(Recommender(method, **given).fit(data, checkpoint=path), whole)


def test_the_default_solver_does_go_on_from_its_checkpoint(world, tmp_path) -> None:
    """Not from the start: it tells of no more sweeps than are left."""
    path, told = tmp_path / "run", []
    with pytest.raises(Killed):
        Recommender("mf", **SOLVED).fit(world(3), checkpoint=path, progress=killer(12))
    assert load_checkpoint(path).state["sweep"]["number"] == 10
    model = Recommender("mf", **SOLVED).fit(
        world(3), checkpoint=path, progress=lambda *_: told.append(1)
    )
    assert len(told) == len(model.history_) - 10


@pytest.mark.parametrize("method", ["mf", "signed-rd"])
def test_killed_while_or_after_dim_and_l2_are_chosen(method, world, tmp_path) -> None:
    options, told = {"propensity": "cells", "epochs": 40}, []
    whole = Recommender(method, **options).fit(world(3), progress=lambda *_: told.append(1))
    assert len(told) > len(whole.history_), "fits that are compared are told, too"
    for number, moment in enumerate([2, len(told) - 1]):
        path = tmp_path / f"{number}.safetensors"
        with pytest.raises(Killed):
            Recommender(method, **options).fit(world(3), checkpoint=path, progress=killer(moment))
        again = Recommender(method, **options).fit(world(3), checkpoint=path)
        assert np.array_equal(again.user_factors_, whole.user_factors_)
        assert again.history_ == whole.history_


@pytest.mark.parametrize("killed_after", [6, 7, 8, 9])
@pytest.mark.parametrize("method", ["multi-dr", "bpuid-dr"])
def test_a_checkpoint_between_two_judgements_goes_on_to_the_same_bits(
    method, killed_after, world, tmp_path
) -> None:
    data, path, options = world(3), tmp_path / "run", OPTIONS
    whole = Recommender(method, **options).fit(data)
    with pytest.raises(Killed):
        Recommender(method, **options).fit(data, checkpoint=path, progress=killer(killed_after))
    state = load_checkpoint(path).state
    assert (len(state["history"]), state["stopping"]["epoch"] + 1) == (killed_after, JUDGE_EVERY)
    assert_same(Recommender(method, **options).fit(data, checkpoint=path), whole)


@pytest.mark.parametrize("method", ["bpuid-dr", "signed-rd"])
def test_a_run_that_is_killed_again_and_again_gets_there(method, world, tmp_path) -> None:
    data, path, options = world(3), tmp_path / "run.safetensors", OPTIONS
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


@pytest.mark.parametrize("method", TRAINED)
def test_two_runs_with_one_seed_are_one(method, world, suited) -> None:
    data, options = suited(method, world(1), {**OPTIONS, "epochs": 5})
    first, second = (Recommender(method, rng=5, **options).fit(data) for _ in range(2))
    assert_same(first, second)
    other = Recommender(method, rng=6, **options).fit(data, data.split("rd", 5))
    solved = method == "dcf"  # at its optimum, which knows no seed
    assert np.array_equal(first.user_factors_, other.user_factors_) is solved


def test_a_finished_run_is_not_trained_again(world, tmp_path) -> None:
    data, path, options = world(3), tmp_path / "run", OPTIONS
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
        resume(data, method="brd-ips"),
        resume(data, lr=0.1),
        resume(world(2)),
        resume(data, data.split("rd", 1)),
        resume(data, data.split("ge3", 0)),
        resume(data, data.split("rd", 0, add_uniform=True)),
    ):
        refusal(call, "other settings or data", str(interrupted))
    assert interrupted.read_bytes() == before


def test_a_checkpoint_whose_parts_are_missing_or_odd_is_refused(
    interrupted, world, refusal
) -> None:
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
    for changes in (
        {"stopping": {}},
        {"stopping": {"colour": 1}},
        {"history": None},
        {"done": {}},
        {"done": []},
    ):
        resume(good.tensors, {**good.state, **changes})
    odd = {
        f"{name}.x" if name.startswith("adam.") else name: tensor
        for name, tensor in good.tensors.items()
    }
    resume(odd, good.state)


SCRIPT = """
import os, random, signal, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from puidrec import fitting
from puidrec.data.synthetic import simulate
from puidrec.model import Recommender

fitting.CHECKPOINT_SECONDS, fitting.CHECKPOINT_SHARE = 0.0, float("inf")
path, rng = Path(sys.argv[1]), random.Random(0)

def killed_after(epochs):
    # told when so many are done, we kill while the next ones run; more than five it does not do
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
        # here: threads do not survive a fork
        data = simulate("mixed", 40, 25, density=0.2, rng=3).data
        options = {"epochs": 60, "dim": 3, "propensity": "cells", "l2": 0.02}
        Recommender("bpuid-dr", patience=0, **options).fit(data, checkpoint=path, progress=progress)
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
    options = {"epochs": 60, "dim": 3, "propensity": "cells", "patience": 0, "l2": 0.02}
    whole = Recommender("bpuid-dr", **options).fit(world(3))
    assert (killed["stage"], len(killed["history"])) != ("main", 60)
    assert_same(Recommender("bpuid-dr", **options).fit(world(3), checkpoint=path), whole)
