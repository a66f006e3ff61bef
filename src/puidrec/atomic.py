"""Files appear whole or not at all: write beside the target, flush, rename. One process at a time
writes a folder."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from puidrec.errors import InputError, OutputError, PuidError

STAGE = "stage"
"""How the names begin of folders in which `atomic_files` collects what it writes."""


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into one line that names the path, the outermost of
    several."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, OutputError) else error
        reason = _refusal(cause)
        if reason is None:
            raise
        raise OutputError(f"{path}: cannot write ({reason}); nothing was changed there") from cause


def _refusal(error: BaseException | None) -> str | None:
    """Why the system refused; libraries (Polars) wrap its refusals in errors of their own that end
    in a number."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if error is None or isinstance(error, PuidError):
        return None
    found = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(found[1])) if found else None


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is moved into place, on failure
    removed."""
    target = Path(path)
    with output_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_prefix(target), suffix=".tmp")
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
    write_text(
        path,
        json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n",
    )


def plain_json(content: Any) -> Any:
    """Values as JSON has them: text for keys, lists for tuples, null for what is not finite."""
    if isinstance(content, Mapping):
        return {str(key): plain_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside `path`; on success it takes the place of `path`, old content and
    all."""
    target = Path(path)
    with output_errors(target):
        if target.is_dir() and Path.cwd().is_relative_to(
            target.resolve()
        ):  # its processes would be left in no folder
            raise InputError(
                "the folder you are in cannot be replaced", file=target, hint="Name a folder in it."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with _beside(target) as temporary:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync(file)
            _swap(temporary, target)


@contextlib.contextmanager
def atomic_files(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder inside `folder`; on success its files move up, over older ones. Other
    files stay.

    All appear in one step, also where the process is killed: a folder with the new files and links
    to the others takes the place of `folder`. Where that cannot be (no such step or no links on
    this system, the caller is in the folder, it is a mount), files move one by one. Neither needs
    space: where one of several files does not fit on a disk, none of the older ones is replaced.
    """
    target = Path(folder)
    with output_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        with _beside(target / STAGE) as stage:
            yield stage
            for file in stage.iterdir():
                _sync(file)
            if not _replace_together(stage, Path(os.path.realpath(target))):
                for file in sorted(stage.iterdir()):
                    file.replace(target / file.name)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, removed at the end unless it was moved into its place; what a
    killed writer of that name left there goes first."""
    sweep(target.parent, (target.name,))
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=_prefix(target), suffix=".tmp"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_together(stage: Path, folder: Path) -> bool:
    """Exchange a folder for one with the files of `stage` and links to all others; whether that was
    possible.

    Nothing of another process is lost: what it wrote into the folder while the links were made is
    moved over.
    """
    if Path.cwd().is_relative_to(folder):  # this process would be left in no folder
        return False
    own = {file.name for file in stage.iterdir()}
    try:
        with _beside(folder) as new:
            _link(stage, new, set())
            _link(folder, new, {*own, stage.name})
            shutil.copystat(folder, new)
            was, now = folder.stat(), new.stat()
            if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid) or not _exchange(new, folder):
                return False
            for late in new.iterdir():  # `new` is the older one from here on
                if late.name != stage.name and not os.path.lexists(folder / late.name):
                    late.rename(folder / late.name)
    except OSError:
        return False
    return True


def _link(source: Path, into: Path, without: set[str]) -> None:
    """Hard links to all files of a folder; its folders are made anew, symbolic links stay what they
    are."""
    for path in [path for path in source.iterdir() if path.name not in without]:
        copy = into / path.name
        if path.is_dir() and not path.is_symlink():
            copy.mkdir()
            _link(path, copy, set())
            shutil.copystat(path, copy)
        else:
            os.link(path, copy, follow_symlinks=False)


def refuse_other_files(
    folder: Path, names: Iterable[str], what: str, *, always: Iterable[str], link: bool = False
) -> None:
    """Refuse a folder that holds anything that `what` did not write, before any work is spent: it
    would be lost.

    names: the files of `what`; temporary files that a killed writer of them left behind do not
    count as other files.
    always: those that are there whenever one of the others is; a `summary.json` without them is
    somebody else's.
    link: a link to a folder will do; not where the folder is replaced as a whole.
    """
    own = tuple(names)
    with output_errors(folder):
        if (folder.exists() and not folder.is_dir()) or (folder.is_symlink() and not link):
            raise InputError("not a folder", file=folder, expected=f"a new folder, or {what}")
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    temporary = tuple(f".{name}." for name in own)
    others = [
        name
        for name in found
        if name not in (*own, LOCK)
        and not name.startswith(temporary)
        and not OF_SAFETENSORS.fullmatch(name)
    ]
    if not all(name in found for name in always):
        others += [name for name in found if name in own]
    if others:
        raise InputError(
            "the folder holds other files",
            file=folder,
            found=", ".join(others[:3]),
            expected=f"a new folder, or {what}",
            hint="Name a new folder (--out).",
        )


def refuse_overwriting(folder: Path, names: Iterable[str], marker: str) -> None:
    """Refuse a folder where writing `names` would replace a file that puid did not write.

    names: of files, or patterns such as `chart-*.png`. It did where `marker`, which it always
    writes, lies beside the file. Other files may be there, and stay.
    """
    taken = sorted(path.name for name in names for path in folder.glob(name))
    if taken and not (folder / marker).exists():
        raise InputError(
            "the folder holds a file that would be replaced",
            file=folder,
            found=taken[0],
            expected=f"a new folder, or one that holds {marker} as well",
            hint="Name a new folder (--out).",
        )


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Be the only process that writes a folder; another one is refused in one line.

    A lock (`filelock`) on the file `.NAME.lock` beside the folder: it ends with the process,
    however that ends. Where no file can be written there, it lies in the folder; where neither can
    be, the command goes on and says itself what it cannot write. None: nothing is written or
    locked. A thread that holds the lock may take it again, so that a command and a function that it
    calls can both ask.
    """
    if folder is None:
        yield
        return
    target = Path(os.path.realpath(folder))
    beside = target.parent / f".{target.name}.lock"
    made = [path for path in beside.parents if not os.path.exists(path)]  # noqa: PTH110 (asks no permission)
    try:
        lock = _lock(beside, Path(folder))
        if lock is None and os.path.isdir(target):  # noqa: PTH112 (asks no permission)
            lock = _lock(target / LOCK, Path(folder))
        try:
            yield
        finally:
            if lock is not None:
                if lock.lock_counter == 1:
                    # Removed while it is held: whoever opened it meanwhile sees that it is gone.
                    with contextlib.suppress(OSError):
                        Path(lock.lock_file).unlink()
                lock.release()
    finally:
        with contextlib.suppress(OSError):  # something was written there
            for path in made:
                path.rmdir()


LOCK = ".puid.lock"
"""The lock inside a folder, where none can lie beside it."""


def _lock(file: Path, folder: Path) -> BaseFileLock | None:
    """Take the lock; None where the file cannot be written."""
    lock = FileLock(file, timeout=0.2, is_singleton=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(poll_interval=0.02)
    except Timeout:
        raise _held(file, folder) from None
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a full disk: then nobody is told who holds the lock
        file.write_text(f"{os.getpid()} {time.strftime('%Y-%m-%d %H:%M:%S')}")
    return lock


def _held(file: Path, folder: Path) -> InputError:
    """The refusal, with what the holder wrote about itself."""
    try:
        with file.open("rb") as stream:
            text = stream.read(100).decode("ascii", "replace")
    except OSError:
        text = ""
    found = re.fullmatch(r"(\d{1,20}) ([\d :-]{19})", text)
    who = f"process {found[1]} has been" if found else "another process is"
    since = f" since {found[2]}" if found else ""
    hint = "Wait for it, or name another folder (--out)."
    return InputError(f"{who} writing there{since}; nothing was changed", file=folder, hint=hint)


OF_SAFETENSORS = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""Names of the temporary files that safetensors writes beside its target; a kill in that moment
leaves one behind."""


def _prefix(target: Path) -> str:
    """How names of temporary files begin: with the target's, and the process that writes them."""
    return f".{target.name}.{os.getpid()}-"


def sweep(folder: Path, names: Iterable[str]) -> None:
    """Remove what writers of these names left in a folder when they were killed; files of living
    processes stay."""
    for left in [
        path
        for path in folder.glob(".tmp*")
        if path.is_file() and OF_SAFETENSORS.fullmatch(path.name)
    ]:
        left.unlink(missing_ok=True)
    for left in [path for name in names for path in folder.glob(f".{glob.escape(name)}.*.tmp")]:
        writer = re.search(r"\.(\d{1,9})-[^.-]*\.tmp$", left.name)
        if writer is not None and int(writer[1]) != os.getpid() and _alive(int(writer[1])):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    """Whether a process of this number runs here, ours or another user's."""
    if os.name == "nt":  # signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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
    """Swap two names in one step, where the system can (Linux): a kill at any moment finds the old
    or the new."""
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
