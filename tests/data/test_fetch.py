"""Data sets from a publisher: here a server of this machine."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from puidrec.data import fetch as module
from puidrec.data.fetch import PUBLISHED, Published, fetch


class Publisher(ThreadingHTTPServer):
    """Serves `files`; `breaks_after` bytes it hangs up once; remembers the ranges that were asked
    for."""

    files: dict[str, bytes]
    breaks_after: int | None = None
    ranges: list[str | None]


class Answer(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        content, asked = self.server.files.get(self.path), self.headers.get("Range")
        self.server.ranges.append(asked)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop, self.server.breaks_after = self.server.breaks_after, None
        self.wfile.write(content[start:stop])

    def log_message(self, *words: object) -> None:
        """Nothing: the test's output is its own."""


def zipped(files: dict[str, str]) -> bytes:
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return room.getvalue()


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    server = Publisher(("127.0.0.1", 0), Answer)
    server.files, server.ranges = (
        {"/d.zip": zipped({"ml-100k/u.data": "1\t2\t3\n" * 9_999, "ml-100k/u.item": "x"})},
        [],
    )
    md5 = hashlib.md5(server.files["/d.zip"], usedforsecurity=False).hexdigest()
    monkeypatch.setitem(
        PUBLISHED,
        "ml-100k",
        Published("terms", f"http://127.0.0.1:{server.server_port}/d.zip", md5),
    )
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_data_set_is_fetched_checked_and_unpacked(publisher: Publisher, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    facts = fetch("ml-100k", tmp_path / "new" / "ml", progress=lambda *at: told.append(at))
    assert facts["files"] == ["u.data", "u.item"]
    assert facts["licence"] == "terms"
    assert (tmp_path / "new" / "ml" / "u.data").read_text() == "1\t2\t3\n" * 9_999
    assert told[-1][0] == told[-1][1] == len(publisher.files["/d.zip"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ml"]


def test_an_interrupted_download_goes_on(
    publisher: Publisher, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    publisher.breaks_after = 60
    refusal(lambda: fetch("ml-100k", tmp_path / "ml"), "stopped early", "60 of", "resumes")
    assert not (tmp_path / "ml").exists()
    fetch("ml-100k", tmp_path / "ml")
    assert publisher.ranges == [None, "bytes=60-"]
    assert (tmp_path / "ml" / "u.item").read_text() == "x"


def test_a_file_that_differs_is_not_kept(
    publisher: Publisher, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    publisher.files["/d.zip"] = zipped({"u.data": "other"})
    refusal(lambda: fetch("ml-100k", tmp_path / "ml"), "not the published one", "MD5")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_fetched_says_how(
    publisher: Publisher, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    refusal(lambda: fetch("yahoo-r3", tmp_path / "y"), "licence", "accept", "user.txt")
    refusal(lambda: fetch("netflix", tmp_path / "n"), "unknown value of data set", "ml-100k")
    refusal(lambda: fetch("ml-100k", tmp_path / "m", url="file:///etc/passwd"), "not an address")
    gone = f"http://127.0.0.1:{publisher.server_port}/gone.zip"
    refusal(lambda: fetch("ml-100k", tmp_path / "m", url=gone), "404")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refusal(lambda: fetch("ml-100k", tmp_path / "full"), "empty")
    refusal(lambda: fetch("ml-100k", tmp_path / "m", url="http://127.0.0.1:9/d.zip"), "no answer")


def test_an_archive_cannot_leave_its_folder(tmp_path: Path, refusal: Callable[..., str]) -> None:
    archive = tmp_path / "bad.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        entry = tarfile.TarInfo("../evil")
        entry.size = 1
        packed.addfile(entry, io.BytesIO(b"x"))
    (tmp_path / "out").mkdir()
    refusal(lambda: module._unpack(archive, tmp_path / "out", "d.tar.gz"), "cannot unpack")
    assert not (tmp_path / "evil").exists()
