"""`puid serve` as a process: it says where it answers, answers, and ends when told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest


def test_serves_until_told_to_stop(run_folder: Path) -> None:
    code = "from puidrec.cli.main import run; run()"
    command = [sys.executable, "-c", code, "serve", str(run_folder), "--port", "0", "--max-k", "7", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            said = json.loads("".join(server.stdout.readline() for _ in range(4)))
            body = json.dumps({"users": [3], "k": 7}).encode()
            request = urllib.request.Request(
                said["url"] + "/recommend", body, {"content-type": "application/json"}
            )  # fmt: skip
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert len(json.load(answer)["recommendations"][0]["items"]) == 7
            with urllib.request.urlopen(said["url"] + "/model", timeout=20) as answer:
                card = json.load(answer)
            assert card["limits"]["k"] == 7
            digest = json.loads((run_folder / "environment.json").read_text())["data_sha256"]
            assert card["data_sha256"] == digest
            server.send_signal(signal.SIGTERM)
            assert server.wait(20) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()


def test_what_cannot_be_served_is_one_line(puid: Any, tmp_path: Path) -> None:
    puid("serve", tmp_path, "--port", 0).refused("not a run folder")
    puid("serve", tmp_path, "--host", "256.0.0.1", "--port", 0).refused("cannot listen", "--host")


def test_a_missing_library_is_one_line(puid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("puidrec.serve"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    puid("serve", tmp_path).refused("uvicorn", "puidrec[serve]")
