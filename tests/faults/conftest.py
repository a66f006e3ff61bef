"""Faults on purpose. The suite runs a short form of each; `python bench/faults.py NAME` asks for
the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ENTRY = "import sys; from puidrec.cli.main import run; sys.argv[0] = 'puid'; run()"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def refused(self, *parts: str, codes: tuple[int, ...] = (1, 2)) -> str:
        """The one line that every refusal is: no trace, no error of ours that nobody thought of."""
        assert self.code in codes, self
        assert self.out == "", self
        assert self.err.count("\n") == 1, self
        assert self.err.startswith("puid: "), self
        assert "internal error" not in self.err, self
        assert len(self.err) < 1000, self
        for part in parts:
            assert part in self.err, self
        return self.err


@pytest.fixture
def repeats() -> Callable[[int], int]:
    """How often to repeat: the suite's number, unless the long form asks for more."""
    return lambda short: int(os.environ.get("PUIDREC_FAULTS", short))


@pytest.fixture(scope="session")
def puid() -> Callable[..., Outcome]:
    """Run `puid ARGS` in a process of its own, where a fault can do no harm to others."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PUID_DEBUG", "MASTER_ADDR")
    }
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}

    def call(
        *arguments: object, before: str = "", prefix: tuple[str, ...] = (), timeout: float = 120
    ) -> Outcome:
        command = [
            *prefix,
            sys.executable,
            "-c",
            before + ENTRY,
            *map(os.fsdecode, map(_word, arguments)),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            env=environment,
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Outcome(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )

    return call


def _word(argument: object) -> str | bytes:
    return argument if isinstance(argument, bytes) else str(argument)


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Path], dict[str, bytes | str]]:
    """Everything under a folder, hidden files too: to see that nothing changed and nothing was
    left."""

    def take(folder: Path) -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            found[name] = (
                path.read_bytes() if path.is_file() and not path.is_symlink() else "folder or link"
            )
        return found

    return take
