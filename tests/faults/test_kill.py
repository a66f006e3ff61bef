"""SIGKILL at random moments of a real training process, and before every step that it takes on the
disk.

The last checkpoint loads, and the end is the same to a bit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from puidrec.optimise.checkpoint import load_checkpoint

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.timeout(0),
]

SERVER = """
import os, signal, sys, time
from pathlib import Path
import torch
import puidrec.fitting, puidrec.store
from puidrec.data.synthetic import simulate
from puidrec.run_folder import train_run
from puidrec.settings import Settings

weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.zeros(1)
torch.optim.Adam([weight], foreach=True).step()  # imports that each child would pay for again
puidrec.fitting.CHECKPOINT_SECONDS = 0.0  # these runs are short
STEPS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir",
         "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree")

def kill_at(step, out):
    # Before the given step on the disk under a folder, counted from 1.
    taken = 0

    def hook(event, arguments):
        nonlocal taken
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_WRONLY
        if (event in STEPS or opened) and str(arguments[0]).startswith(out):
            taken += 1
            if taken == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)

# A number for L2: the short fits that would choose it are not checkpointed, and most kills would
# come before the first.
options = {"dim": 3, "propensity": "cells", "patience": 0, "l2": 0.5}
for line in sys.stdin:
    delay, step, epochs, out = line.strip().split(" ", 3)
    settings = Settings.of("bpuid-dr", epochs=int(epochs), **options)
    began, child = time.monotonic(), os.fork()
    if not child:
        code = 1
        try:
            torch.set_num_threads(1)
            if int(step):
                kill_at(int(step), out)
            train_run(simulate("mixed", 40, 25, density=0.2, rng=3).data, settings, out=Path(out))
            code = 0
        finally:
            os._exit(code)
    ended = (0, 0)
    while not ended[0]:
        time.sleep(0.002)
        ended = os.waitpid(child, os.WNOHANG)
        if not ended[0] and 0 < float(delay) < time.monotonic() - began:
            os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is still its own
            ended = os.waitpid(child, 0)
    print(ended[1], time.monotonic() - began, flush=True)
"""
"""Per line `DELAY STEP EPOCHS FOLDER`: fork a training process, kill it after the delay or before a
step on the disk (0: never), say its status and seconds."""


class Train(Protocol):
    """Train into a folder until killed; returns the status and the seconds."""

    def __call__(
        self, out: Path, delay: float = 0.0, step: int = 0, epochs: int = 40
    ) -> tuple[int, float]: ...


@pytest.fixture(scope="module")
def train() -> Iterator[Train]:
    """Train in a process that is killed after some seconds; the imports are paid for once."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    into, back = server.stdin, server.stdout

    def call(out: Path, delay: float = 0.0, step: int = 0, epochs: int = 40) -> tuple[int, float]:
        print(delay, step, epochs, out, file=into, flush=True)
        status, seconds = back.readline().split()
        return int(status), float(seconds)

    yield call
    into.close()
    server.wait(timeout=60)
    back.close()


def content(run: Path) -> dict[str, bytes]:
    """What a run is: its model, byte by byte, apart from the clock."""
    return {
        "tensors": (run / "model" / "model.safetensors").read_bytes(),
        "history": (run / "history.jsonl").read_bytes(),
    }


def test_killed_at_random_moments_a_run_ends_as_if_nothing_had_happened(
    train: Train, repeats: Callable[[int], int], tmp_path: Path
) -> None:
    assert train(tmp_path / "first")[0] == 0  # the first run is slower than those that follow
    status, length = train(tmp_path / "whole")
    assert status == 0
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    whole, rng, kills, runs, loaded = content(tmp_path / "whole"), random.Random(0), 0, 0, 0
    while kills < repeats(6):
        run, runs = tmp_path / f"run{runs}", runs + 1
        assert runs <= 3 * repeats(6), "the runs are too short to be killed"
        for _ in range(3):
            status, seconds = train(run, delay=rng.uniform(0.3, 0.95) * length)
            assert status in (0, signal.SIGKILL), status
            length = (
                length if status else min(length, seconds)
            )  # the machine may have less to do than before
            kills += status != 0
            if (run / "checkpoint.safetensors").exists():
                load_checkpoint(run / "checkpoint.safetensors")
                loaded += 1
            if (run / "model").exists() or kills == repeats(6):
                break
        if not (run / "model").exists():
            assert train(run)[0] == 0
            assert sorted(path.name for path in run.iterdir()) == files, (
                "nothing of the killed is left"
            )
        assert content(run) == whole
    assert loaded > 0.3 * kills, "killed too early to prove anything"
    print(f"{kills} kills in {runs} runs of {length:.1f} s; {loaded} checkpoints, each loads")  # noqa: T201 (for the long form)


def test_killed_before_any_step_on_the_disk_a_run_ends_as_if_nothing_had_happened(
    train: Train, repeats: Callable[[int], int], tmp_path: Path
) -> None:
    assert train(tmp_path / "whole", epochs=2)[0] == 0
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    whole, every = content(tmp_path / "whole"), 11 if repeats(0) == 0 else 1
    for step in range(1, 1000, every):
        run = tmp_path / f"run{step}"
        if train(run, step=step, epochs=2)[0] == 0:
            break
        if (run / "checkpoint.safetensors").exists():
            load_checkpoint(run / "checkpoint.safetensors")
        if not (run / "model").exists():
            assert train(run, epochs=2)[0] == 0, step
            assert sorted(path.name for path in run.iterdir()) == files, (
                "nothing of the killed is left"
            )
        assert content(run) == whole, step
    assert step > 30, "these were not all the steps"
    print(f"killed before each of {step - 1} steps")  # noqa: T201 (for the long form)
