"""Files appear whole or not at all: write beside the target, flush, rename."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from puidrec.errors import InputError, OutputError, PuidError


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into one line that names the path, the outermost of several."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, OutputError) else error
        reason = _refusal(cause)
        if reason is None:
            raise
        raise OutputError(f"{path}: cannot write ({reason}); nothing was changed there") from cause


def _refusal(error: BaseException | None) -> str | None:
    """Why the system refused; libraries (Polars) wrap its refusals in errors of their own that end in a number."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if error is None or isinstance(error, PuidError):
        return None
    found = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(found[1])) if found else None


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is moved into place, on failure removed."""
    target = Path(path)
    with output_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            _sync(temporary)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, content.encode())


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON atomically: sorted keys, so that equal content is equal bytes; NaN is refused."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside `path`; on success it takes the place of `path`, old content and all."""
    target = Path(path)
    with output_errors(target):
        if target.is_dir() and Path.cwd().is_relative_to(target.resolve()):  # its processes would be left in no folder
            raise InputError("the folder you are in cannot be replaced", file=target, hint="Name a folder in it.")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
        temporary.chmod(0o777 & ~_umask())
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync(file)
            _swap(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def atomic_files(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder inside `folder`; on success its files move up, over older ones. Other files stay.

    Moves need no space: where one of several files does not fit on a disk, none of the older ones is replaced.
    """
    target = Path(folder)
    with output_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(dir=target, prefix=".", suffix=".tmp"))
        try:
            yield stage
            for file in sorted(stage.iterdir()):
                file.replace(target / file.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def refuse_other_files(folder: Path, names: Iterable[str], what: str, *, link: bool = False) -> None:
    """Refuse a folder that holds anything that `what` did not write, before any work is spent: it would be lost.

    names: the files of `what`; temporary files that a killed writer of them left behind do not count as other files.
    link: a link to a folder will do; not where the folder is replaced as a whole.
    """
    own = tuple(names)
    with output_errors(folder):
        if (folder.exists() and not folder.is_dir()) or (folder.is_symlink() and not link):
            raise InputError("not a folder", file=folder, expected=f"a new folder, or {what}")
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    temporary = tuple(f".{name}." for name in own)
    others = [name for name in found if name not in own and not name.startswith(temporary)]
    if others:
        raise InputError(
            "the folder holds other files", file=folder, found=", ".join(others[:3]),
            expected=f"a new folder, or {what}", hint="Name a new folder (--out).",
        )  # fmt: skip


def refuse_overwriting(folder: Path, names: Iterable[str], marker: str) -> None:
    """Refuse a folder where writing `names` would replace a file that puid did not write.

    It did where `marker`, which it always writes, lies beside the file. Other files may be there, and stay.
    """
    taken = [name for name in names if (folder / name).exists()]
    if taken and not (folder / marker).exists():
        raise InputError(
            "the folder holds a file that would be replaced", file=folder, found=taken[0],
            expected=f"a new folder, or one that holds {marker} as well", hint="Name a new folder (--out).",
        )  # fmt: skip


def sweep(folder: Path, names: Iterable[str]) -> None:
    """Remove what writers of these names left in a folder when they were killed; the caller is the only writer."""
    for left in [path for name in names for path in folder.glob(f".{glob.escape(name)}.*.tmp")]:
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    if _exchange(new, target):
        return
    retired = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old"))
    try:
        target.rename(retired / "old")
        new.rename(target)
    except OSError:
        if (retired / "old").exists():
            (retired / "old").rename(target)
        retired.rmdir()
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _exchange(new: Path, target: Path) -> bool:
    """Swap two names in one step, where the system can (Linux): a kill at any moment finds the old or the new."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(new), here, os.fsencode(target), exchange) == 0)


def _sync(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
