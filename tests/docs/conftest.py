"""The tools of the documentation, and where its pages are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
WARM = Path(__file__).with_name("warm_puid.py")
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps([sys.argv[1:], os.getcwd()]).encode()], [0, 1, 2])
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def pages() -> ModuleType:
    """docs/pages.py: runs what pages show."""
    return _load("pages")


@pytest.fixture(scope="session")
def hooks() -> ModuleType:
    """docs/hooks.py: what the site adds."""
    return _load("hooks")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a `puid` whose imports are paid for once, however many commands a page has."""
    if not hasattr(os, "fork"):
        yield Path(sys.executable).parent
        return
    folder = tmp_path_factory.mktemp("programs")
    address, command = folder / "socket", folder / "puid"
    command.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    command.chmod(0o755)
    setting = {**os.environ, "COLUMNS": "90", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, str(WARM), str(address)],
        env=setting,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield folder
        server.kill()
