from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data.sources.reading import is_parquet, read_arrays, read_matrix, read_parquet

TABLE = pl.DataFrame({"user_id": range(1000), "x": np.arange(1000.0)})


def test_parquet_and_the_columns_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "odd [*] name.parquet"
    TABLE.write_parquet(file)
    assert read_parquet(file).equals(TABLE)
    assert read_parquet(file, ["x", "absent"]).columns == ["x"]
    assert is_parquet(file)


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, -1, -8])
def test_a_truncated_parquet_file_is_refused(keep: float, tmp_path: Path, refusal) -> None:
    file = tmp_path / "log.parquet"
    TABLE.write_parquet(file)
    raw = file.read_bytes()
    file.write_bytes(raw[: int(keep * len(raw)) if 0 < keep < 1 else int(keep)])
    refusal(lambda: read_parquet(file), str(file), "expected a")


def test_parquet_that_is_not_there(tmp_path: Path, refusal) -> None:
    refusal(lambda: read_parquet(tmp_path / "no.parquet"), "no.parquet", "no such file")
    refusal(lambda: read_parquet(tmp_path), "a folder")


def test_matrices_in_text(tmp_path: Path) -> None:
    file = tmp_path / "m.ascii"
    file.write_bytes(b"\xef\xbb\xbf1 2.5e-1 0\r\n3 0 -4\r\n\r\n")
    np.testing.assert_array_equal(read_matrix(file), [[1, 0.25, 0], [3, 0, -4]])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("1 2\n3\n", ("row 2", "wrong number of values", "found 1", "2 as in row 1")),
        ("1 2\n3 x\n", ("row 2", "column '2'", "'x'", "a finite number")),
        ("1 nan\n3 4\n", ("row 1", "column '2'", "'nan'")),
        ("1 2\ninf 4\n", ("row 2", "column '1'", "'inf'")),
        ("\n", ("empty",)),
    ],
)
def test_broken_matrices(content: str, parts: tuple[str, ...], tmp_path: Path, refusal) -> None:
    file = tmp_path / "m.ascii"
    file.write_text(content)
    refusal(lambda: read_matrix(file), "m.ascii", *parts)


def test_archives_never_unpickle(tmp_path: Path, refusal) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, plain=np.arange(3), bad=np.array([{}, object], dtype=object))
    assert read_arrays(file, ["plain"], ["absent"]).keys() == {"plain"}
    refusal(lambda: read_arrays(file, ["bad"]), "a.npz", "unsafe", "no pickled objects")
    refusal(lambda: read_arrays(file, ["plain", "other"]), "missing array other", "plain, bad")


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", b"\x80\x04N."])
def test_broken_archives(content: bytes, tmp_path: Path, refusal) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(content)
    refusal(lambda: read_arrays(file, ["x"]), "a.npz")


def test_truncated_archives_and_plain_arrays(tmp_path: Path, refusal) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x=np.random.default_rng(0).random(1000))
    raw = file.read_bytes()
    for size in (30, 200, len(raw) // 2, len(raw) - 10):
        file.write_bytes(raw[:size])
        refusal(lambda: read_arrays(file, ["x"]), "a.npz", "damaged")
    flipped = bytearray(raw)
    flipped[len(raw) // 2] ^= 0xFF
    file.write_bytes(flipped)
    refusal(lambda: read_arrays(file, ["x"]), "a.npz", "damaged")
    np.save(tmp_path / "b.npy", np.arange(3))
    refusal(lambda: read_arrays(tmp_path / "b.npy", ["x"]), "missing array x", "no arrays")
