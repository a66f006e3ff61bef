"""`puid data fetch`: public data sets from their publisher, with their licence and a checksum."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from puidrec.atomic import atomic_folder, refuse_other_files
from puidrec.data.schema import check_choice
from puidrec.errors import InputError, OutputError

CHUNK = 2**20


@dataclass(frozen=True)
class Published:
    """Where a data set comes from, and under which terms."""

    licence: str
    url: str = ""
    md5: str = ""
    by_hand: str = ""
    """How to get it where it cannot be fetched: a licence to accept, or nothing to check the file
    against."""


PUBLISHED = {
    "ml-100k": Published(
        "GroupLens: research use with acknowledgement, no redistribution, no commercial use",
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        "0e33842e24a9c977be4e0107933c0723",
    ),
    "kuairand": Published(
        "CC BY-SA 4.0 (Gao et al., CIKM 2022)",
        "https://zenodo.org/records/10439422/files/KuaiRand-Pure.tar.gz",
        "0820331067a3784d9691136f772b35a7",
    ),
    "yahoo-r3": Published(
        "Yahoo! Webscope: research use, no redistribution; each user accepts the licence",
        by_hand="Ask for R3 at webscope.sandbox.yahoo.com, accept its licence, and put user.txt "
        "and random.txt into a "
        "folder.",
    ),
    "kuairec": Published(
        "CC BY-SA 4.0 (Gao et al., CIKM 2022)",
        by_hand="Download KuaiRec from github.com/chongminggao/KuaiRec, then run puid data "
        "convert kuairec.",
    ),
    "coat": Published(
        "none stated; published for research by the authors",
        by_hand="Download it from www.cs.cornell.edu/~schnabts/mnar and unpack it.",
    ),
}


def fetch(
    name: str,
    out: Path,
    *,
    url: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, object]:
    """Download a data set into a new folder; an interrupted download goes on where it stopped.

    url: another address of the same file; its checksum must be the published one.
    """
    check_choice("data set to fetch", name, tuple(PUBLISHED))
    row = PUBLISHED[name]
    if row.by_hand:
        problem, found = f"{name} cannot be fetched for you", f"licence: {row.licence}"
        raise InputError(problem, found=found, hint=row.by_hand)
    refuse_other_files(out, (), "a new or empty one", always=())
    address = url or row.url
    if not address.startswith(("https://", "http://")):
        raise InputError("not an address of a file", found=address, expected="https://…")
    part = out.with_name(f"{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _download(address, part, progress)
        _check(part, row.md5, address)
        with atomic_folder(out) as folder:
            files = _unpack(part, folder, address)
        part.unlink()
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise OutputError(f"{out}: cannot write ({error.strerror})") from error
    return {"name": name, "licence": row.licence, "url": address, "md5": row.md5, "files": files}


def _download(url: str, part: Path, progress: Callable[[int, int | None], None] | None) -> None:
    """Append to what is there, if the server can; else from the start."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 (checked)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            resumed = have > 0 and answer.status == 206
            size = answer.headers.get("Content-Length")
            done = have if resumed else 0
            total = None if size is None else done + int(size)
            with part.open("ab" if resumed else "wb") as file:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code == 416 and have:
                return  # all of it is there; the checksum says whether it is right
        found, hint = f"{url} ({error})", "Repeat the command: it resumes."
        raise InputError("no answer from the publisher", found=found, hint=hint) from error
    if total is not None and done < total:
        raise InputError(
            "the download stopped early",
            found=f"{done:,} of {total:,} bytes",
            hint="Repeat the command: it resumes.",
        )


def _check(part: Path, md5: str, url: str) -> None:
    """Compare with the published checksum; a file that differs is removed."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise InputError(
            "the file is not the published one", file=url, found=f"MD5 {found}", expected=md5
        )


def _unpack(archive: Path, folder: Path, url: str) -> list[str]:
    """Unpack plain files into the folder, without the archive's outermost one; no path may lead
    outside."""
    inner = folder / ".unpacked"
    try:
        if url.endswith(".zip"):
            shutil.unpack_archive(archive, inner, "zip")  # drops absolute paths and ..
        else:
            shutil.unpack_archive(archive, inner, "gztar", filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise InputError("cannot unpack the archive", file=url, found=str(error)[:80]) from error
    top = list(inner.iterdir())
    source = top[0] if len(top) == 1 and top[0].is_dir() else inner
    for path in list(source.iterdir()):
        shutil.move(path, folder / path.name)
    shutil.rmtree(inner)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
