"""SIGKILL in commands that write: what they leave does not keep the same command from ending, with
the same files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

ENTRY = "import sys; from puidrec.cli.main import run; sys.argv[0] = 'puid'; run()"
SMALL = ("--set", "data.n_users=40", "--set", "data.n_items=25")


def puid(*arguments: object, delay: float | None = None) -> tuple[int, float]:
    """Run `puid ARGS` in a process that is killed after some seconds (None: never); its status, and
    its seconds."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.returncode, time.monotonic() - began


def files(folder: Path) -> list[str]:
    """All files, and what is beside the folder."""
    inside = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return inside + sorted(
        path.name for path in folder.parent.iterdir() if path.name != folder.name
    )


COMMANDS: list[tuple[object, ...]] = [
    ("gamma", *SMALL),
    ("export", "RUN", "--format", "parquet"),
    ("train", *SMALL),  # the default method
    ("tune", *SMALL, "--method", "mf", "--budget", 2, "--engine", "inline"),
    ("audit", "RUN", "--replicates", 2),
]
"""The long form takes all, the suite the first two: they hold everything in one folder until it is
whole."""


@pytest.mark.parametrize(
    "command",
    COMMANDS if "PUIDREC_FAULTS" in os.environ else COMMANDS[:2],
    ids=lambda command: command[0],
)
def test_a_killed_command_can_be_repeated(
    command: tuple[object, ...], run_folder: Path, repeats: Callable[[int], int], tmp_path: Path
) -> None:
    words = [run_folder if word == "RUN" else word for word in command]
    places = [tmp_path / name for name in ("whole", "killed")]
    for place in places:
        place.mkdir()
    status, length = puid(*words, "--out", places[0] / "out")
    assert status == 0
    rng, kills = random.Random(0), 0
    for _ in range(repeats(1)):
        status, seconds = puid(
            *words, "--out", places[1] / "out", delay=rng.uniform(0.5, 0.95) * length
        )
        assert status in (0, -signal.SIGKILL)
        if status:
            kills += 1
            assert puid(*words, "--out", places[1] / "out")[0] == 0
        else:
            length = min(length, seconds)
        assert files(places[1] / "out") == files(places[0] / "out"), "nothing of the killed is left"
        subprocess.run(["rm", "-r", str(places[1] / "out")], check=True)
    assert kills or repeats(1) == 1, "too fast to be killed"
