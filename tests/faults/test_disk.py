"""Full disks and read-only folders, real ones: one line, a failing exit code, earlier files intact,
nothing left."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from puidrec.cli.main import run

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(0)]

PAGE = os.sysconf("SC_PAGE_SIZE")
SMALL = ("--set", "data.n_users=24", "--set", "data.n_items=16")
QUICK = (
    "--set",
    "epochs=2",
    "--set",
    "dim=2",
    "--set",
    "l2=0.1",
    "--set",
    "propensity=cells",
    "--set",
    "patience=0",
)


def commands(folder: Path, out: Path, version: int) -> dict[str, tuple[object, ...]]:
    """Every command that writes, to `out`; a second version writes other content where the first
    one stands."""
    run, seed = folder / "run", ("--seed", version)
    return {
        "train": ("train", "--method", "mf", *SMALL, *QUICK, *seed, "--out", out / f"run{version}"),
        "compare": (
            "compare",
            "--methods",
            "bias",
            *SMALL,
            *QUICK,
            "--seeds",
            1,
            *seed,
            "--engine",
            "inline",
            "--out",
            out / "compare",
        ),
        "gamma": ("gamma", "--data", "simulated", *SMALL, *seed, "--out", out / "gamma"),
        "convert": ("data", "convert", "kuairec", folder / f"kuairec{version}", out / "compact"),
        "simulate": (
            "data",
            "simulate",
            "--users",
            30,
            "--items",
            20,
            *seed,
            "--out",
            out / "simulated",
        ),
        "audit": ("audit", run, *SMALL, "--replicates", 2, *seed, "--out", out / "audit"),
        "export": ("export", run, "--format", ("npy", "parquet")[version], "--out", out / "export"),
    }


NAMES = tuple(commands(Path(), Path(), 0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to audit and to export, and two small originals to convert."""
    folder = tmp_path_factory.mktemp("faults")
    assert call(*commands(folder, folder, 0)["train"])[0] == 0
    (folder / "run0").rename(folder / "run")
    for version in range(2):
        source = folder / f"kuairec{version}"
        source.mkdir()
        user, video = (
            axis.ravel() for axis in np.meshgrid(np.arange(9), np.arange(7), indexing="ij")
        )
        ratio = np.random.default_rng(version).choice([0.5, 3.0], user.size)
        table = pl.DataFrame(
            {"user_id": user, "video_id": video, "timestamp": 1.0, "watch_ratio": ratio}
        )
        table.write_csv(source / "small_matrix.csv")
    return folder


def call(*arguments: object) -> tuple[int, str, str]:
    """`puid ARGS` in this process: exit code and two streams, which are kept in memory, for disks
    are full here."""
    import io

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["puid", *map(str, arguments), "--quiet"]  # a slow machine would tell its progress
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as left,
        ):
            run()
    finally:
        sys.argv = before
    code = left.value.code
    return code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()


def mount(*arguments: object) -> bool:
    return (
        subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode
        == 0
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, 16 MiB, where we may mount one; else a folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and mount("-t", "tmpfs", "-o", "size=16m", "puidrec-test", folder)
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def no_growth() -> Iterator[None]:
    """A quota, for those who may not mount: every write beyond a few bytes is refused."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fill(disk: Path, spare: int) -> None:
    """Leave `spare` free pages."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(PAGE))
    os.truncate(filler, filler.stat().st_size - spare * PAGE)


Take = Callable[[Path], dict[str, Any]]


def failed(name: str, folder: Path, disk: Path, take: Take, *, may_fit: bool = False) -> str:
    """Run the second version and see it fail without a trace on the disk; returns the line (or
    nothing, if it fits)."""
    before = take(disk)
    outcome = code, out, err = call(*commands(folder, disk, 1)[name])
    after = take(disk)
    litter = [path for path in after if any(part.startswith(".") for part in Path(path).parts)]
    assert not litter, litter
    if may_fit and code == 0:
        return ""
    assert code in (1, 2), outcome
    assert out == "", outcome
    assert err.startswith("puid: "), outcome
    assert err.count("\n") == 1, outcome
    assert "internal error" not in err, outcome
    changed = [path for path, content in before.items() if after.get(path) != content]
    assert not changed, changed
    return err


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_written(
    name: str, folder: Path, disk: Path, snapshot: Take, repeats: Any
) -> None:
    first = call(*commands(folder, disk, 0)[name])
    assert first[0] == 0, first
    with no_growth():
        assert "File too large" in failed(name, folder, disk, snapshot)
    if not os.path.ismount(disk):
        pytest.skip(
            "mounting a small disk needs root; refused writes were tried, full and read-only disks "
            "were not"
        )
    assert mount("-o", "remount,ro", disk)
    assert "Read-only file system" in failed(name, folder, disk, snapshot)
    assert mount("-o", "remount,rw", disk)
    fill(disk, 0)
    assert "No space left on device" in failed(name, folder, disk, snapshot)
    for spare in range(6, 7 * repeats(1), 6):  # some files fit, the next one does not
        fill(disk, spare)
        if not failed(name, folder, disk, snapshot, may_fit=True):
            break


@pytest.mark.parametrize("name", NAMES)
def test_a_file_where_the_folder_should_be(name: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, out, err = call(*commands(folder, tmp_path / "file", 1)[name])
    assert (code in (1, 2), out, err.count("\n")) == (True, "", 1), err
    assert "internal error" not in err
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
