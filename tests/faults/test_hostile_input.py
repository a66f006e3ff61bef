"""Inputs made to harm: paths that are no files, archives, endless lines. One line each; nothing is
written."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from puidrec import load_dataset
from puidrec.cli.options import read_toml
from puidrec.data.sources.kuairec import convert
from puidrec.errors import PuidError
from puidrec.model import Recommender

HEAD = b"user_id,item_id,rating\n"
ROWS = b"".join(b"u%d,%d,%d\n" % (k, j, 1 + (k + j) % 5) for k in range(8) for j in range(6))
pytestmark = pytest.mark.timeout(120)


def refused(call: Callable[[], object], *parts: str) -> str:
    """The one line of the refusal."""
    with pytest.raises(PuidError) as caught:
        call()
    line = str(caught.value)
    assert line.splitlines() == [line]
    assert len(line) < 1000
    for part in parts:
        assert part in line, line
    return line


def archive_zip(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, HEAD + ROWS)
    return stream.getvalue()


def archive_tar(*names: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(HEAD + ROWS)
            archive.addfile(entry, io.BytesIO(HEAD + ROWS))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
    return stream.getvalue()


CONTENT = {
    "no byte": b"",
    "spaces": b"  \n\n \t\n",
    "not UTF-8": HEAD + ROWS + b"\xff\xfe\x80,1,5\n",
    "a NUL in a number": HEAD + ROWS + b"u1,99,5\x00\n",
    "NULs only": bytes(4096),
    "one line of 10 MB": b"x" * 10_000_000,
    "a header of 10 MB": b"user_id,item_id,rating," + b"x" * 10_000_000 + b"\n" + ROWS,
    "a million columns": b"user_id,item_id,rating" + b"," * 1_000_000 + b"\n" + ROWS,
    "a cell of 10 MB": HEAD + ROWS + b"u1,99," + b"9" * 10_000_000 + b"\n",
    "an open quote": HEAD + b'"' + ROWS * 2000,
    "a zip that climbs out": archive_zip("../../escaped.csv", "/tmp/escaped.csv", "logged.csv"),
    "a tar that climbs out": archive_tar("../../escaped.csv", "/tmp/escaped.csv", "logged.csv"),
    "gzip in gzip": gzip.compress(gzip.compress(HEAD + ROWS)),
    "truncated gzip": gzip.compress(HEAD + ROWS)[:-9],
    "a Parquet file that ends at once": b"PAR1",
    "a Parquet file of nothing": b"PAR1" + bytes(64) + b"PAR1",
    "a Parquet footer of 2 GB": b"PAR1" + bytes(64) + b"\xff\xff\xff\x7fPAR1",
}


@pytest.mark.parametrize("key", ["logged", "uniform"])
@pytest.mark.parametrize("case", CONTENT)
def test_files_that_are_no_tables(case: str, key: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_bytes(HEAD + ROWS)
    bad.write_bytes(CONTENT[case])
    refused(lambda: load_dataset("files", **{"logged": good, key: bad}, scale=(1, 5)), "bad.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "good.csv"]


def test_a_gzip_bomb_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    path, stream = tmp_path / "bomb.csv.gz", io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=9) as zipped:
        zipped.write(HEAD)
        for _ in range(70):
            zipped.write(b"0" * 2**20)
    path.write_bytes(stream.getvalue())
    (tmp_path / "good.csv").write_bytes(HEAD + ROWS)
    for key in ("logged", "uniform"):
        files = {"logged": tmp_path / "good.csv", key: path}
        refused(
            lambda files=files: load_dataset("files", **files, scale=(1, 5)),
            "bomb.csv.gz",
            "200 times",
        )


@contextlib.contextmanager
def strange(kind: str, path: Path):
    """What is there but is no file to read to its end."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a loop":
        path.symlink_to(path)
    else:
        if not Path(kind).exists():
            pytest.skip(f"no {kind} here")
        path.symlink_to(kind)
    yield path
    path.rmdir() if kind == "a folder" else path.unlink()


STRANGE = ("a folder", "a pipe", "a loop", "/dev/zero", "/dev/null", "/proc/self/mem", "/proc/kmsg")


@pytest.mark.timeout(60)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("kind", STRANGE)
def test_paths_that_are_no_files(kind: str, tmp_path: Path) -> None:
    good = tmp_path / "good.csv"
    good.write_bytes(HEAD + ROWS)
    for suffix in (".csv", ".csv.gz", ".parquet"):
        with strange(kind, tmp_path / f"logged{suffix}") as path:
            refused(lambda path=path: load_dataset("files", logged=path, scale=(1, 5)), path.name)
            for key in ("uniform", "users", "items"):
                refused(
                    lambda path=path, key=key: load_dataset(
                        "files", logged=good, **{key: path}, scale=(1, 5)
                    ),
                    path.name,
                )
            refused(lambda: load_dataset("files", tmp_path, scale=(1, 5)))
    with strange(kind, tmp_path / "run.toml") as path:
        refused(lambda: read_toml(path), "run.toml")


@pytest.mark.timeout(60)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("kind", STRANGE)
def test_originals_that_are_no_files(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "original"
    source.mkdir()
    with strange(kind, source / "small_matrix.csv"):
        refused(lambda: convert(source, tmp_path / "compact"), "small_matrix.csv")
    (source / "small_matrix.csv").write_text("user_id,video_id,watch_ratio\n1,1,3\n1,2,0\n2,1,1\n")
    if kind != "a loop":  # a link to nothing is nothing, and this file may be absent
        with strange(kind, source / "user_features.csv"):
            refused(lambda: convert(source, tmp_path / "compact"), "user_features.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["original"]


@pytest.mark.parametrize("name", ["small_matrix.csv", "KuaiRec.zip", "data.tar.gz"])
def test_archives_are_not_unpacked(name: str, tmp_path: Path) -> None:
    source = tmp_path / "original"
    source.mkdir()
    (source / name).write_bytes(
        (archive_tar if "tar" in name else archive_zip)("../../escaped.csv", "small_matrix.csv")
    )
    refused(lambda: convert(source, tmp_path / "compact"))
    refused(lambda: convert(source / name, tmp_path / "compact"), name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["original", name])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("kind", ["a pipe", "a loop", "/dev/null", "/dev/zero"])
def test_outputs_that_are_no_folders(kind: str, tmp_path: Path) -> None:
    from puidrec.data.synthetic import simulate_to_parquet

    with strange(kind, tmp_path / "out") as out:
        refused(lambda: simulate_to_parquet(out, "mixed", n_users=8, n_items=6))
        refused(lambda: simulate_to_parquet(out / "deeper", "mixed", n_users=8, n_items=6))
        assert out.is_symlink() or out.is_fifo()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../../../etc",
        "/etc",
        "/proc/self",
        "a" * 300,
        "x\x00y",
        "new\nline",
        "\udcff",
    ],
)
def test_names_of_model_folders(name: str, tmp_path: Path) -> None:
    refused(lambda: Recommender.load(tmp_path / name))
    refused(lambda: Recommender.load(name or "nowhere"))
