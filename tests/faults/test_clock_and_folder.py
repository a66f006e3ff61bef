"""A clock that is set back, and an output folder that somebody deletes, while commands run."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from puidrec import fitting
from puidrec.cli.main import run

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--set", "data.n_users=40", "--set", "data.n_items=25")
QUICK = (*SMALL, "--set", "epochs=40", "--set", "dim=2", "--set", "l2=0.1")


def puid(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """`puid ARGS` in this process; the exit code."""
    monkeypatch.setattr(sys, "argv", ["puid", *map(str, arguments), "--quiet"])
    with pytest.raises(SystemExit) as left:
        run()
    code = left.value.code
    return code if isinstance(code, int) else 0


def commands(out: Path) -> dict[str, tuple[object, ...]]:
    """Commands that write checkpoints, jobs or folders."""
    compare = ("--methods", "mf,bias", "--seeds", 2, "--engine", "inline")
    return {
        "train": ("train", "--method", "bpuid-dr", *QUICK, "--out", out / "train"),
        "compare": ("compare", *compare, *QUICK, "--out", out / "compare"),
    }


def results(folder: Path) -> dict[str, bytes]:
    """The files that hold no time."""
    kept = ("model.safetensors", "history.jsonl", "summary.json", "results.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.name in kept}


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_clock_that_is_set_back_changes_no_result(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)
    assert puid(monkeypatch, *commands(tmp_path / "before")[command]) == 0
    real, looks = time.time, itertools.count(1)
    back = lambda: real() - 3600.0 * next(looks)  # noqa: E731 (an hour earlier at each look)
    monkeypatch.setattr(time, "time", back)
    monkeypatch.setattr(time, "time_ns", lambda: int(back() * 1e9))
    assert puid(monkeypatch, *commands(tmp_path / "after")[command]) == 0
    found = results(tmp_path / "before")
    assert found
    assert results(tmp_path / "after") == found


def test_a_deleted_folder_ends_a_run_rightly_or_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, saved = tmp_path / "train", []
    save: Any = fitting.save_checkpoint

    def delete_after(path: Path, checkpoint: Any) -> None:
        save(path, checkpoint)
        saved.append(path)
        if len(saved) == 2:
            shutil.rmtree(out)

    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "CHECKPOINT_SHARE", 1e9)
    monkeypatch.setattr(fitting, "save_checkpoint", delete_after)
    code = puid(monkeypatch, *commands(tmp_path)["train"])
    error = capsys.readouterr().err
    assert len(saved) >= 2, "no checkpoint was written before the folder went"
    if code:
        assert error.startswith("puid: ")
        assert error.count("\n") == 1
        assert "internal error" not in error
    else:
        assert (out / "model" / "model.safetensors").is_file()
        assert (out / "config.toml").is_file(), "a run folder without its settings"
