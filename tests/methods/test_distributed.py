"""Two real processes: the model of one, said once; and one killed on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from puidrec import world as world_module
from puidrec.cli.main import run
from puidrec.data.sources import load_dataset
from puidrec.data.synthetic import simulate
from puidrec.errors import InputError
from puidrec.methods.stages import _require_same_checkpoint
from puidrec.model import Recommender
from puidrec.optimise.checkpoint import Checkpoint
from puidrec.run_folder import train_run
from puidrec.settings import Settings
from puidrec.world import ALONE, World, WorldError, join_world

LIMIT = 120
FITS = {
    "dr": {"method": "dr"},
    "begun": {"method": "puid-dr"},
    "benchmarked": {"method": "bpuid-dr", "backbone": "mf", "benchmark": "mf"},
    "cross-fitted": {"method": "dr", "cross_fit": 3},
    "signed": {"method": "signed-puid"},
    "all-rank": {"method": "all-rank"},
    "path": {"method": "mf", "dim": "auto", "l2": "auto"},
    "disk": {"method": "signed-rd"},
}
"""`begun` goes on from a checkpoint of one process; `disk` trains on a log that stays on disk,
without uniform rows."""
COMMON = {"dim": 3, "l2": 0.05, "epochs": 60, "propensity": "cells"}
SCRIPT = """
import json, sys
import numpy as np
from puidrec.data import on_disk
from puidrec.data.sources import load_dataset
from puidrec.data.synthetic import simulate
from puidrec import fitting
from puidrec.model import Recommender
from puidrec.scores import log
from puidrec.world import join_world

on_disk.CHUNK = log.PAIRS_FROM_DISK = 50
fitting.CHECKPOINT_SECONDS, fitting.CHECKPOINT_SHARE = 0.0, float("inf")

fits, common, out = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
data = simulate("mixed", 60, 25, density=0.2, rng=0).data
with join_world() as world:
    assert world.size == 2
    with world.first_ahead():
        disk = load_dataset("files", logged=f"{out}/log.parquet", shards=f"{out}/shards")
    for name, options in fits.items():
        begun = f"{out}/{name}.begun" if name == "begun" else None
        rows = disk if name == "disk" else data
        model = Recommender(**{**common, **options}).fit(rows, world=world, checkpoint=begun)
        if world.first:
            np.save(f"{out}/{name}.npy", model.user_factors_ @ model.item_factors_.T)
"""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in world_module.LAUNCHED}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Stopped(Exception):
    pass


def stop(stage: str, done: int, *_) -> None:
    if done == 15:  # a checkpoint is due every tenth sweep
        raise Stopped


def test_two_processes_train_the_model_of_one(tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(SCRIPT)
    data = simulate("mixed", 60, 25, density=0.2, rng=0).data
    data.logged.to_frame().sample(fraction=1.0, shuffle=True, seed=0).write_parquet(
        tmp_path / "log.parquet"
    )
    memory = load_dataset("files", logged=tmp_path / "log.parquet")
    begun = tmp_path / "begun.begun"
    with pytest.raises(Stopped):  # begun by one process, finished by two
        Recommender(**{**COMMON, **FITS["begun"]}).fit(data, checkpoint=begun, progress=stop)
    assert begun.exists()
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        f"--master-port={free_port()}",
    ]
    arguments = [json.dumps(FITS), json.dumps(COMMON), str(tmp_path)]
    done = subprocess.run(
        [*launch, str(script), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, options in FITS.items():
        alone = Recommender(**{**COMMON, **options}).fit(memory if name == "disk" else data)
        together = np.load(tmp_path / f"{name}.npy", allow_pickle=False)
        expected = alone.user_factors_ @ alone.item_factors_.T
        np.testing.assert_allclose(together, expected, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "options", [{"method": "multi-dr"}, {"method": "dr", "solver": "adam"}, {"method": "cvib"}]
)
def test_methods_trained_by_adam_refuse_several_processes(
    options, tiny_data, run_together, refusal
) -> None:
    def refused(world: World) -> str:
        model = Recommender(**{"dim": 3, "l2": 0.1, "epochs": 2, **options})
        return refusal(
            lambda: model.fit(tiny_data, world=world), "adam", "one process", "several processes"
        )

    assert len(set(run_together(2, refused))) == 1


SETTINGS = {"dim": 3, "l2": 0.01, "epochs": 150, "method": "dr"}
PUID = """
import time
from puidrec import fitting
from puidrec.cli.main import run
from puidrec.world import World

fitting.CHECKPOINT_SECONDS, fitting.CHECKPOINT_SHARE, summed = 0.0, float("inf"), World.sum

def slow(self, values):  # so that there is time to kill one of two after the first checkpoint
    time.sleep(0.01)
    return summed(self, values)

World.sum = slow
run()
"""
TRAIN = ["train", "--data", "simulated", "--protocol", "rd"]
for key, value in {"data.n_users": 60, "data.n_items": 40, **SETTINGS}.items():
    TRAIN += ["--set", f"{key}={value}"]


def puid(*arguments: object, rank: int, port: str) -> subprocess.Popen[str]:
    several = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    command = [sys.executable, "-c", PUID, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment(**several),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_ends_the_run_and_one_process_goes_on(tmp_path: Path) -> None:
    out, port = tmp_path / "run", free_port()
    ranks = [puid(*TRAIN, "--out", out, rank=rank, port=port) for rank in (0, 1)]
    try:
        while not (out / "checkpoint.safetensors").exists():
            assert ranks[0].poll() is None, ranks[0].communicate()
            time.sleep(0.01)
        ranks[1].send_signal(signal.SIGKILL)
        printed, said = ranks[0].communicate(timeout=LIMIT)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert ranks[0].returncode == 1
    assert printed == ""
    assert said.splitlines()[-1].startswith("puid: lost the other processes")
    assert "checkpoint" in said.splitlines()[-1]
    data, settings = load_dataset("simulated", n_users=60, n_items=40), Settings.of(**SETTINGS)
    told: list[int] = []
    resumed = train_run(data, settings, out=out, progress=lambda *_: told.append(1)).metrics
    fresh = train_run(data, settings).metrics
    assert 0 < len(told) < resumed["epochs"], "it went on from the checkpoint"
    for name in ("mse", "uauc", "auc"):
        assert resumed[name] == pytest.approx(fresh[name], abs=1e-4)


LONE = """
import sys
from datetime import timedelta
from puidrec import world as distributed
from puidrec.errors import PuidError
distributed.JOINING, distributed.REMINDER = timedelta(seconds=3), 0.5
try:
    with distributed.join_world(waiting=lambda words: print("waiting:", words)):
        print("met")
except PuidError as error:
    print("error:", error)
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_lone_process_says_that_it_waits_and_does_not_wait_for_ever(rank: str) -> None:
    with socket.socket() as free:
        free.bind(("", 0))  # free at every address: the store listens on all
        port = str(free.getsockname()[1])
    variables = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    told = subprocess.run(
        [sys.executable, "-c", LONE],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    ).stdout.splitlines()
    *waiting, error = told
    assert waiting
    assert all(line.startswith(f"waiting: rank {rank} of 2 processes waits") for line in waiting)
    assert error.startswith(f"error: rank {rank} of 2")
    assert f"127.0.0.1:{port}, and they did not come" in error
    assert "start all 2" in error


def test_another_process_speaks_for_this_one(monkeypatch, capfd) -> None:
    for name, value in zip(world_module.LAUNCHED, ("1", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    for arguments, code in (
        (("data", "describe", "--data", "simulated"), 0),
        (("train", "--method", "nope"), 2),
    ):
        monkeypatch.setattr(sys, "argv", ["puid", *arguments])
        with pytest.raises(SystemExit) as left:
            run()
        assert (left.value.code or 0) == code
        assert capfd.readouterr() == ("", "")
        sys.stdout.close()


def test_alone_nothing_is_started() -> None:
    with join_world() as world:
        assert world is ALONE
        assert world.first
        assert not torch.distributed.is_initialized()
    values = torch.arange(3.0)
    assert ALONE.sum(values) is values


def test_a_lost_connection_is_one_line(monkeypatch) -> None:
    def fail(_) -> None:
        raise RuntimeError("[/built/somewhere/pair.cc:537] connection closed\nwith a long trace")

    monkeypatch.setattr(world_module.dist, "all_reduce", fail)
    with pytest.raises(WorldError, match="connection closed") as caught:
        World(0, 2).sum(torch.zeros(1))
    assert len(str(caught.value).splitlines()) == 1
    assert "pair.cc" not in str(caught.value)


@pytest.mark.parametrize(
    ("epochs", "fine"), [((3, 3, 3), True), ((-1, -1), True), ((4, -1), False), ((1, 2, 3), False)]
)
def test_processes_go_on_from_one_epoch_or_not_at_all(epochs, fine, refusal) -> None:
    class Together(World):
        def sum_number(self, value):
            mine = epochs[self.rank]
            if value == mine:
                return float(sum(epochs))
            return sum(abs(sum(epochs) - len(epochs) * other) for other in epochs)

    for rank, mine in enumerate(epochs):
        resume = None if mine < 0 else Checkpoint({}, {"history": [{}] * mine})
        if fine:
            _require_same_checkpoint(resume, SimpleNamespace(world=Together(rank, len(epochs))))
        else:
            log = SimpleNamespace(world=Together(rank, len(epochs)))
            refusal(lambda: _require_same_checkpoint(resume, log), "same checkpoint", "share")  # noqa: B023


def test_a_device_without_processes_is_refused(monkeypatch) -> None:
    for name, value in zip(world_module.LAUNCHED, ("0", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="cpu or cuda"), join_world("meta"):
        pass
