from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from puidrec.data.sources import reading
from puidrec.data.sources.reading import (
    data_folder,
    first_file,
    is_parquet,
    read_arrays,
    read_bytes,
    read_columns,
    read_delimited,
    read_parquet,
    typed_columns,
)

PLAIN = b"user_id,item_id,rating\n1,a,2\n3,b,4\n"
ROWS = [("1", "a", "2"), ("3", "b", "4")]
FORMS = {
    "plain": PLAIN,
    "no last newline": PLAIN.rstrip(),
    "blank lines at the end": PLAIN + b"\n\n",
    "byte-order mark": b"\xef\xbb\xbf" + PLAIN,
    "crlf": PLAIN.replace(b"\n", b"\r\n"),
    "mark and crlf": b"\xef\xbb\xbf" + PLAIN.replace(b"\n", b"\r\n"),
    "gzip": gzip.compress(PLAIN, mtime=0),
    "gzip of mark and crlf": gzip.compress(
        b"\xef\xbb\xbf" + PLAIN.replace(b"\n", b"\r\n"), mtime=0
    ),
    "semicolon": PLAIN.replace(b",", b";"),
    "tab": PLAIN.replace(b",", b"\t"),
    "bar": PLAIN.replace(b",", b"|"),
    "quotes": b'"user_id","item_id","rating"\n"1","a","2"\n3,"b",4\n',
    "spaces in the header": PLAIN.replace(b"item_id", b" item_id "),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_reads_the_same(form: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_bytes(FORMS[form])
    frame = read_delimited(file)
    assert frame.rows() == ROWS
    assert frame.columns == ["user_id", "item_id", "rating"]


def test_quoted_fields_may_hold_separators_quotes_and_newlines(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_bytes(b'a,b\n"x,""y""\nz",1\n')
    assert read_delimited(file).rows() == [('x,"y"\nz', "1")]


def test_a_field_of_a_megabyte_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_bytes(b"a,b,c\n1," + b"x" * 1_000_000 + b",\n2,y,\n")
    frame = read_delimited(file)
    assert frame["b"].str.len_bytes().to_list() == [1_000_000, 1]
    assert frame["c"].null_count() == 2


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("empty", "at least one row")),
        (b"\xef\xbb\xbf\r\n\r\n", ("empty",)),
        (gzip.compress(b"", mtime=0), ("empty",)),
        (gzip.compress(PLAIN, mtime=0)[:-9], ("damaged gzip",)),
        (gzip.compress(PLAIN, mtime=0)[:12] + b"junk" * 9, ("damaged gzip",)),
        (b"a,b\n1,2\n3,4,5\n", ("row 2", "wrong number of fields", "3 fields", "expected 2")),
        (b"a,b\n1,2\n3,4\n5\n", ("row 3", "wrong number of fields", "1 fields", "expected 2")),
        (b"a,b\n1,2\n\n5,6\n", ("row 2", "wrong number of fields", "0 fields")),
        (b'a,b\n1,2\n3,"4\n5,6\n', ("row 2", "broken quoting")),
        (b"a,b\n1,2\n3,\xff\n", ("row 2", "not utf-8", "0xff", "UTF-8")),
        (b"a,b,a\n1,2,3\n", ("column 'a'", "two columns")),
        (PLAIN.decode().encode("utf-16"), ("UTF-16",)),
        (b"PAR1" + b"\0" * 50, ("Parquet",)),
        (b"PK\x03\x04" + b"\0" * 50, ("zip",)),
        (b"\x28\xb5\x2f\xfd" + PLAIN, ("Zstandard", "Unpack it first", "zstd -d")),
        (bz2.compress(PLAIN), ("bzip2", "Unpack it first")),
        (lzma.compress(PLAIN), ("xz", "Unpack it first")),
    ],
)
def test_broken_tables_are_refused_with_their_place(
    content: bytes, parts: tuple[str, ...], tmp_path: Path, refusal
) -> None:
    file = tmp_path / "log.csv"
    file.write_bytes(content)
    refusal(lambda: read_delimited(file), str(file), *parts)


def test_files_without_a_header(tmp_path: Path, refusal) -> None:
    file = tmp_path / "u.data"
    file.write_bytes(b"1\t2\r\n3\t4\r\n")
    assert read_delimited(file, names=("a", "b")).rows() == [("1", "2"), ("3", "4")]
    refusal(lambda: read_delimited(file, names=("a", "b", "c")), "row 1", "2 fields", "expected 3")
    refusal(lambda: read_delimited(file, names=("a",)), "row 1", "2 fields", "expected 1")


def test_missing_files_folders_and_permissions(
    tmp_path: Path, refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal(lambda: read_bytes(tmp_path / "no.csv"), "no.csv", "no such file")
    refusal(lambda: read_bytes(tmp_path), str(tmp_path), "a folder, not a file")
    refusal(lambda: read_bytes(tmp_path / ("n" * 5000)), "cannot read")
    refusal(lambda: data_folder(None, "coat"), "coat", "--data-dir")
    refusal(lambda: data_folder(tmp_path / "no", "coat"), "no such folder")
    (tmp_path / "file").write_text("x")
    refusal(
        lambda: data_folder(tmp_path / "file", "coat"),
        "not a folder",
        "the folder of the coat files",
    )
    refusal(
        lambda: first_file(tmp_path, ("a.txt", "b.txt"), "coat"),
        str(tmp_path),
        "no coat files",
        "a.txt or b.txt",
    )

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    refusal(lambda: read_bytes(tmp_path / "file"), "file", "no permission to read")
    monkeypatch.setattr(Path, "is_dir", denied)
    refusal(lambda: data_folder(tmp_path, "coat"), str(tmp_path), "no permission to read")
    monkeypatch.setattr(Path, "exists", denied)
    refusal(lambda: first_file(tmp_path, ("a.txt",), "coat"), "a.txt", "no permission to read")


def test_types_are_those_of_whole_columns() -> None:
    frame = pl.DataFrame(
        {
            "user_id": ["1", "20", "-3"],
            "item_id": ["1.5", "2", "3"],
            "zip": ["007", "10", "20"],
            "age": ["1", "2.5", None],
            "name": ["1", "2", "x"],
            "kept": ["1", "2", "3"],
            "void": pl.Series([None, None, None], dtype=pl.String),
        }
    )
    kinds = typed_columns(frame, keep_text=["kept"]).schema
    assert kinds == {
        "user_id": pl.Int64,
        "item_id": pl.String,
        "zip": pl.Float64,
        "age": pl.Float64,
        "name": pl.String,
        "kept": pl.String,
        "void": pl.String,
    }
    padded = typed_columns(pl.DataFrame({"user_id": ["007", "10"]}))
    assert padded["user_id"].to_list() == ["007", "10"]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.lists(st.tuples(st.text(min_size=1), st.integers()), min_size=1, max_size=6),
    separator=st.sampled_from(reading.SEPARATORS),
)
def test_any_text_survives_a_round_trip(
    cells: list[tuple[str, int]], separator: str, tmp_path: Path
) -> None:
    clean = [(text.replace("\r", " "), str(number)) for text, number in cells]
    file = tmp_path / "table.csv"
    pl.DataFrame(clean, schema=["left", "right"], orient="row").write_csv(
        file, separator=separator, quote_style="always"
    )
    assert read_delimited(file).rows() == clean


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
    refusal(lambda: read_arrays(tmp_path / "b.npy", ["x"]), "unsafe")


TYPES = {"id": pl.Int64, "x": pl.Float64, "name": pl.String}


def read(path: Path) -> pl.DataFrame:
    return read_columns(path, TYPES)


def test_named_columns_with_their_types(tmp_path: Path) -> None:
    file = tmp_path / "odd [*].csv"
    file.write_bytes(b"\xef\xbb\xbfother,x,name,id\r\n-,1.5,007,3\r\n-,,,4\r\n")
    frame = read(file)
    assert frame.schema == TYPES
    assert frame.rows() == [(3, 1.5, "007"), (4, None, None)]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("id,x,name\n1,2,a\n1.5,2,a\n", ("row 2", "column 'id'", "'1.5'", "a whole number")),
        ("id,x,name\n1,2,a\n2,two,a\n", ("row 2", "column 'x'", "'two'", "a finite number")),
        ("id,name\n1,a\n", ("missing column x", "id, name")),
        ("id,x,name\n1,2,a\n1,2,a,b\n", ("row 2", "4 fields", "expected 3")),
        ("", ("the file is empty",)),
    ],
)
def test_what_is_wrong_is_named(
    content: str, parts: tuple[str, ...], tmp_path: Path, refusal
) -> None:
    file = tmp_path / "big.csv"
    file.write_text(content)
    refusal(lambda: read(file), str(file), *parts)


def test_required_cells(tmp_path: Path, refusal) -> None:
    file = tmp_path / "big.csv"
    file.write_text("id,x,name\n1,2,a\n2,,a\n")
    assert read_columns(file, TYPES)["x"].to_list() == [2.0, None]
    refusal(lambda: read_columns(file, TYPES, ("x",)), "row 2", "column 'x'", "nothing")
    refusal(lambda: read(tmp_path / "no.csv"), "no such file")


def test_a_small_parquet_file_of_very_many_rows_is_refused_before_it_is_unpacked(
    tmp_path: Path, refusal
) -> None:
    path, rows = tmp_path / "log.parquet", 12_000_000
    pl.select(pl.repeat(1, rows, dtype=pl.Int32).alias("user_id")).with_columns(
        item_id=pl.col("user_id"), rating=pl.col("user_id")
    ).write_parquet(path)
    size = path.stat().st_size
    assert size < 1_000_000
    refusal(
        lambda: read_parquet(path),
        "log.parquet",
        "12,000,000 rows",
        "at most 11,184,810 rows",
        "--shards",
    )
    assert read_parquet(path, ["rating"]).height == rows


def test_a_blank_first_line_and_a_list_of_json_are_named(tmp_path: Path, refusal) -> None:
    for name, content, words in (
        ("blank.csv", b"\nuser_id,item_id,rating\n1,2,3\n", "first line is blank"),
        ("list.ndjson", b'[\n{"user_id": 1},\n{"user_id": 2}]', "without a list around"),
        ("bytes.jsonl", b'{"user_id": 1}\n{"user_id": "\xff"}\n', "not utf-8 text"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        refusal(lambda path=path: reading.read_table(path), name, words)


@pytest.mark.parametrize("changed", [{"shape": [1e30, 2]}, {"format": np.array(b"\xff\xfe")}])
def test_a_matrix_of_impossible_shape_or_format_is_refused(tmp_path, refusal, changed) -> None:
    parts = {"indices": [0], "indptr": [0, 1], "shape": [1, 2], "data": [1.0], "format": b"csr"}
    np.savez(tmp_path / "m.npz", **{**parts, **changed})
    refusal(lambda: reading.read_table(tmp_path / "m.npz"), "m.npz")
