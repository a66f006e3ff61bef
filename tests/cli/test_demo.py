"""`puid demo` writes its two files together or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from puidrec.experiments import demo
from puidrec.report import demo as page
from puidrec.report import html


def test_a_disk_that_is_full_leaves_what_was_there(puid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo.json").write_text("old")
    (tmp_path / "own.txt").write_text("kept")
    found = SimpleNamespace(facts={}, audit=SimpleNamespace(to_dict=dict))
    monkeypatch.setattr(demo, "run_demo", lambda *_: found)
    monkeypatch.setattr(page, "demo_page", lambda *_: None)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(html, "write_page", full)
        puid("demo", "--out", tmp_path).refused("No space", str(tmp_path), code=1)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"demo.json": "old", "own.txt": "kept"}
    monkeypatch.setattr(html, "write_page", lambda path, _: path.write_text("page"))
    assert puid("demo", "--out", tmp_path, "--json").code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["demo.json", "own.txt", "report.html"]


def test_a_page_of_others_is_not_replaced(puid: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    puid("demo", "--out", tmp_path).refused("report.html", "would be replaced")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"report.html": "mine"}
