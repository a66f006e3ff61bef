"""Faults on purpose. The suite runs a short form of each; `python bench/faults.py NAME` asks for
the long one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def repeats() -> Callable[[int], int]:
    """How often to repeat: the suite's number, unless the long form asks for more."""
    return lambda short: int(os.environ.get("PUIDREC_FAULTS", short))


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
