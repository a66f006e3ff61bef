from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from puidrec import atomic
from puidrec.errors import InputError, OutputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "deep" / "a.txt", "Γ")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "Γ"
    assert names(tmp_path / "deep") == ["a.txt"]


def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic.atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_content_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may leave a name of nothing."""
    steps: list[str] = []
    sync, replace, rename = os.fsync, Path.replace, Path.rename
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), sync(handle)))
    monkeypatch.setattr(
        Path, "replace", lambda self, other: (steps.append("name"), replace(self, other))
    )
    monkeypatch.setattr(
        Path, "rename", lambda self, other: (steps.append("name"), rename(self, other))
    )
    atomic.write_text(tmp_path / "a", "x")
    with atomic.atomic_folder(tmp_path / "b") as folder:
        (folder / "c").write_text("x")
    assert steps == ["sync", "name"] * 2


def test_a_refusal_of_the_system_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write") as caught:
        atomic.write_text(tmp_path / "file" / "below", "x")
    assert len(str(caught.value).splitlines()) == 1


def test_json_is_canonical_and_refuses_nan(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "a", {"b": 1, "a": 2})
    atomic.write_json(tmp_path / "b", {"a": 2, "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads((tmp_path / "a").read_text()) == {"a": 2, "b": 1}
    with pytest.raises(ValueError):
        atomic.write_json(tmp_path / "c", float("nan"))
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "run"
    for content in ("one", "two"):
        with atomic.atomic_folder(target) as folder:
            (folder / content).write_text(content)
    assert names(target) == ["two"]
    assert names(tmp_path) == ["run"]


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with atomic.atomic_folder(target) as folder:
        (folder / "kept").write_text("x")
    with pytest.raises(RuntimeError), atomic.atomic_folder(target) as folder:
        (folder / "lost").write_text("x")
        raise RuntimeError
    assert names(target) == ["kept"]
    assert names(tmp_path) == ["run"]


def test_a_swap_that_fails_half_way_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "run"
    with atomic.atomic_folder(target) as folder:
        (folder / "kept").write_text("x")
    real = Path.rename
    monkeypatch.setattr(atomic, "_exchange", lambda new, target: False)

    def failing(self: Path, other: Path) -> Path:
        if Path(other) == target and self.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        return real(self, other)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OutputError, match="No space left"), atomic.atomic_folder(target) as folder:
        (folder / "new").write_text("x")
    assert names(target) == ["kept"]
    assert names(tmp_path) == ["run"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems swap in two steps")
def test_at_no_moment_is_there_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two steps would leave neither the old nor the new."""
    target = tmp_path / "run"
    with atomic.atomic_folder(target) as folder:
        (folder / "old").write_text("x")
    monkeypatch.delattr(Path, "rename")
    with atomic.atomic_folder(target) as folder:
        (folder / "new").write_text("x")
    assert names(target) == ["new"]
    assert names(tmp_path) == ["run"]


def test_a_swap_that_is_refused_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount point, say, can be neither exchanged nor moved away."""
    target = tmp_path / "run"
    target.mkdir()

    def busy(self: Path, other: Path) -> Path:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(atomic, "_exchange", lambda new, target: False)
    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(OutputError, match="busy"), atomic.atomic_folder(target) as folder:
        (folder / "new").write_text("x")
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("name", ["", ".", "..", "../run"])
def test_the_folder_one_is_in_is_not_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(InputError, match="you are in"), atomic.atomic_folder(name):
        pass
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == []


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic.write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_several_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OutputError, match="No space"), atomic.atomic_files(tmp_path) as stage:
        atomic.write_text(stage / "a", "new")
        raise OSError(28, "No space left on device")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "mine"]
    assert (tmp_path / "a").read_text() == "old"
    with atomic.atomic_files(tmp_path) as stage:
        atomic.write_text(stage / "a", "new")
        atomic.write_text(stage / "b", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a": "new",
        "b": "new",
        "mine": "mine",
    }


KILLED = """
import os, signal, sys
from pathlib import Path
from puidrec import atomic

def killed_at(step, count=[0]):
    def wrap(really):
        def call(*args, **more):
            count[0] += 1
            if count[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return really(*args, **more)
        return call
    return wrap

def write(out, step):
    with atomic.atomic_files(out) as stage:
        for name in ("chart.png", "summary.json", "table.md"):
            (stage / name).write_text("new")
        wrap = killed_at(step)
        for owner in (os, Path):
            for name in ("rename", "replace", "link", "mkdir", "rmdir", "unlink"):
                if hasattr(owner, name):
                    setattr(owner, name, wrap(getattr(owner, name)))
        atomic._exchange = wrap(atomic._exchange)

for step in range(1, 200):
    out = Path(sys.argv[1]) / str(step)
    (out / "cells").mkdir(parents=True)
    for name in ("chart.png", "summary.json", "table.md", "mine", "cells/1.json"):
        (out / name).write_text("old")
    if not (child := os.fork()):
        write(out, step)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(step)
        break
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no exchange of names here")
def test_a_kill_at_any_step_leaves_all_files_old_or_all_new(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], check=True, capture_output=True, text=True
    )
    steps, seen = int(told.stdout), []
    for step in range(1, steps + 1):
        out = tmp_path / str(step)
        found = {(out / name).read_text() for name in ("chart.png", "summary.json", "table.md")}
        assert len(found) == 1, step
        assert (out / "mine").read_text() == (out / "cells" / "1.json").read_text() == "old"
        seen += found
    assert seen == sorted(seen, reverse=True)  # old up to one step, new from the next one on
    assert set(seen) == {"old", "new"}
    assert steps > 10
    with atomic.atomic_files(tmp_path / "1") as stage:  # what the killed one left is cleared away
        (stage / "chart.png").write_text("newer")
    assert names(tmp_path / "1") == ["cells", "chart.png", "mine", "summary.json", "table.md"]
    assert not [name for name in names(tmp_path) if name.startswith(".1.")]


def test_files_of_others_survive_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that appears between the making of links and the exchange, and links to nowhere."""
    out = tmp_path / "out"
    (out / "deep" / "er").mkdir(parents=True)
    (out / "deep" / "er" / "x").write_text("kept")
    (out / "nowhere").symlink_to("nothing")
    really = atomic._exchange

    def exchange(new: Path, target: Path) -> bool:
        (out / "late").write_text("late")
        return really(new, target)

    monkeypatch.setattr(atomic, "_exchange", exchange)
    with atomic.atomic_files(out) as stage:
        (stage / "a").write_text("new")
    assert names(out) == ["a", "deep", "late", "nowhere"]
    assert (out / "deep" / "er" / "x").read_text() == "kept"
    assert (out / "nowhere").is_symlink()
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("where", ["inside", "no links"])
def test_files_move_one_by_one_where_folders_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    if where == "inside":
        monkeypatch.chdir(out)
    else:
        monkeypatch.setattr(os, "link", refuse)
    with atomic.atomic_files(out) as stage:
        (stage / "a").write_text("new")
    assert names(out) == ["a", "mine"]
    assert names(tmp_path) == ["out"]
    assert where == "no links" or Path.cwd() == out


def test_a_refusal_inside_a_library_is_the_systems_and_the_folder_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(
            OutputError, match=r"^\S*/new: cannot write \(No space left on device\)"
        ) as caught,
        atomic.atomic_folder(tmp_path / "new") as folder,
        atomic.atomic_path(folder / "x"),
    ):
        raise RuntimeError(
            "parquet: File out of specification: No space left on device (os error 28)"
        )
    assert ".tmp" not in str(caught.value)
    with pytest.raises(RuntimeError, match="no refusal"), atomic.atomic_folder(tmp_path / "new"):
        raise RuntimeError("no refusal")


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".model.x.tmp").mkdir()
    (tmp_path / ".model.x.tmp" / "part").write_text("x")
    (tmp_path / ".checkpoint.y.tmp").write_text("x")
    mine = [".editor.z.tmp", ".model.tmp", "keep.tmp"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    atomic.sweep(tmp_path, ("model", "checkpoint"))
    assert names(tmp_path) == mine


def test_a_folder_of_others_is_refused_before_any_work(tmp_path: Path, refusal) -> None:
    home, names = tmp_path / "home", ("a.json",)
    atomic.refuse_other_files(
        home, names, "an earlier run", always=()
    )  # what is not there cannot be lost
    home.mkdir()
    for name in ("a.json", ".a.json.xyz.tmp"):
        (home / name).touch()
    atomic.refuse_other_files(home, names, "an earlier run", always=())
    (tmp_path / "link").symlink_to(home)
    atomic.refuse_other_files(tmp_path / "link", names, "an earlier run", always=(), link=True)
    refusal(
        lambda: atomic.refuse_other_files(tmp_path / "link", names, "an earlier run", always=()),
        "not a folder",
    )
    (home / "thesis.tex").touch()
    refusal(
        lambda: atomic.refuse_other_files(home, names, "an earlier run", always=()),
        "other files",
        "thesis.tex",
        "an earlier run",
    )
    refusal(
        lambda: atomic.refuse_other_files(home / "a.json", names, "an earlier run", always=()),
        "not a folder",
    )


def test_a_file_of_our_name_in_a_folder_that_is_not_ours_is_not_replaced(
    tmp_path: Path, refusal
) -> None:
    check = partial(
        atomic.refuse_other_files,
        tmp_path,
        ("a.json", "page.html"),
        "an earlier run",
        always=("a.json",),
    )
    (tmp_path / "page.html").write_text("mine")
    refusal(check, "other files", "page.html", "an earlier run")
    (tmp_path / "a.json").touch()
    check()


def test_a_file_of_our_name_is_not_ours_without_our_mark(tmp_path: Path, refusal) -> None:
    (tmp_path / "notes.txt").touch()
    atomic.refuse_overwriting(tmp_path, ("results.json",), "cells")
    (tmp_path / "results.json").touch()
    refusal(
        lambda: atomic.refuse_overwriting(tmp_path, ("results.json",), "cells"),
        "would be replaced",
        "results.json",
    )
    (tmp_path / "chart-1.png").touch()
    refusal(
        lambda: atomic.refuse_overwriting(tmp_path, ("chart-*.png",), "cells"),
        "would be replaced",
        "chart-1.png",
    )
    (tmp_path / "cells").mkdir()
    atomic.refuse_overwriting(tmp_path, ("results.json",), "cells")


HOLDER = """
import sys, time
from puidrec.atomic import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of a folder until it is told to end."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def take(folder: Path) -> None:
    """From another thread: the one that holds a lock may take it again."""

    def once() -> None:
        with atomic.locked(folder):
            pass

    with ThreadPoolExecutor(1) as other:
        other.submit(once).result()


def test_who_holds_a_lock_may_take_it_again(tmp_path: Path, refusal) -> None:
    with atomic.locked(tmp_path / "run"):
        with atomic.locked(tmp_path / "there" / ".." / "run"):
            assert names(tmp_path) == [".run.lock"]
        refusal(lambda: take(tmp_path / "run"), f"process {os.getpid()} ")  # it is still held
    take(tmp_path / "run")
    assert names(tmp_path) == []


def test_one_process_at_a_time_writes_a_folder(tmp_path: Path, refusal) -> None:
    out = tmp_path / "deep" / "run"
    with holder(out) as other:
        refusal(
            lambda: take(out),
            str(out),
            f"process {other.pid} has been writing there since 2",
            "--out",
        )
        (tmp_path / "link").symlink_to(out)
        refusal(lambda: take(tmp_path / "link"), f"process {other.pid}")
        take(tmp_path / "deep" / "another")
        assert names(out.parent) == [".run.lock"]
        assert other.stdin is not None
        other.stdin.close()
        other.wait(timeout=60)
        take(out)
    assert names(tmp_path) == ["link"]  # neither the file nor the folder made for it


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_the_lock_of_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as other:
        other.kill()
        other.wait(timeout=60)
        assert names(tmp_path) == [".run.lock"]
        take(tmp_path / "run")
    assert names(tmp_path) == []


def test_a_lock_that_was_removed_while_it_was_waited_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    """Its last holder removes the file between our opening and locking it: a lock on that file
    would lock nothing."""
    fcntl = pytest.importorskip("fcntl")
    lock, calls = fcntl.flock, []

    def flock(handle: int, operation: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            (tmp_path / ".run.lock").unlink()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic.locked(tmp_path / "run"):
        assert len(calls) == 2
        refusal(lambda: take(tmp_path / "run"), f"process {os.getpid()} ")


def test_where_no_lock_can_lie_beside_the_folder_it_lies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    really = os.open

    def opened(path: object, flags: int, *more: int) -> int:
        if flags & os.O_CREAT and str(path).endswith(".run.lock"):
            raise PermissionError(13, "Permission denied")
        return really(path, flags, *more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", opened)
    with atomic.locked(out):
        assert names(out) == [".puid.lock"]
        atomic.refuse_other_files(out, ("x",), "a run", always=())
        refusal(lambda: take(out), f"process {os.getpid()} has been writing there")
    assert names(out) == []


def test_where_nothing_can_be_locked_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    take(tmp_path / "new")  # says itself what it cannot write
    assert names(tmp_path) == []


def test_temporary_files_of_a_living_process_are_not_swept(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as other:
        theirs = tmp_path / f".model.{other.pid}-x.tmp"
        theirs.mkdir()
        atomic.sweep(tmp_path, ("model",))
        assert theirs.exists()
        other.kill()
        other.wait(timeout=60)
        atomic.sweep(tmp_path, ("model",))
        assert not theirs.exists()
    with atomic.atomic_folder(tmp_path / "model") as mine:
        assert mine.name.startswith(f".model.{os.getpid()}-")


def test_what_safetensors_leaves_when_it_is_killed_is_no_file_of_others(
    tmp_path: Path, refusal
) -> None:
    (tmp_path / "config.toml").write_text("x")
    (tmp_path / ".tmp5f9d5Y").write_text("half")
    atomic.refuse_other_files(tmp_path, ["config.toml"], "a run", always=["config.toml"])
    atomic.sweep(tmp_path, ["config.toml"])
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
    (tmp_path / ".tmp-mine").write_text("kept")
    atomic.sweep(tmp_path, ["config.toml"])
    refusal(
        lambda: atomic.refuse_other_files(
            tmp_path, ["config.toml"], "a run", always=["config.toml"]
        ),
        ".tmp-mine",
    )
