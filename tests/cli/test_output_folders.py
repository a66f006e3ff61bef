"""Folders that commands write: one process at a time, and never over files that puid did not
write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SMALL = ("--set", "data.n_users=40", "--set", "data.n_items=25")


@pytest.mark.parametrize(
    "command",
    [
        ("train", *SMALL, "--method", "mf", "--set", "epochs=1"),
        ("compare", *SMALL, "--methods", "bias", "--seeds", "1", "--engine", "inline"),
        ("tune", *SMALL, "--method", "bias", "--engine", "inline"),
        ("reproduce", "rq1", "--data-root", "{folder}", "--quick"),
        ("gamma", *SMALL),
        ("audit", "{run}", *SMALL),
        ("demo",),
        ("export", "{run}", "--format", "npy"),
        ("data", "simulate", "--users", "20", "--items", "20"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_another_process_writes_is_left_alone(
    command: tuple[str, ...], puid, run_folder: Path, tmp_path: Path, lock_holder
) -> None:
    pytest.importorskip("fcntl")
    out = tmp_path / "out"
    out.mkdir()
    (out / "theirs").write_text("half written")
    words = [word.format(run=run_folder, folder=tmp_path) for word in command]
    with lock_holder(out):
        puid(*words, "--out", out).refused(
            "out", f"process {os.getpid()} has been writing there since"
        )
    assert [path.name for path in out.iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir() if path != run_folder] == ["out"]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("train", *SMALL, "--method", "mf", "--set", "epochs=1"), ("metrics.json",)),
        (
            ("compare", *SMALL, "--methods", "bias", "--seeds", "1", "--engine", "inline"),
            ("chart-uauc.png",),
        ),
        (("gamma", *SMALL), ("summary.json",)),
        (("audit", "{run}", *SMALL), ("report.html",)),
        (("demo",), ("report.html",)),
        (("export", "{run}", "--format", "npy"), ("users.npy",)),
        (("export", "{run}", "--format", "npy"), ("export.json", "thesis.tex")),
        (("data", "simulate", "--users", "20", "--items", "20"), ("users.parquet",)),
        (("data", "simulate", "--users", "20", "--items", "20"), ("truth.json", "thesis.tex")),
    ],
    ids=lambda value: "-".join(value[:1]),
)
def test_a_file_that_puid_did_not_write_stays(
    command: tuple[str, ...], names: tuple[str, ...], puid, run_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in names:
        (out / name).write_text("mine")
    puid(*(word.format(run=run_folder) for word in command), "--out", out).refused(
        "holds", names[-1]
    )
    assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys(names, "mine")
