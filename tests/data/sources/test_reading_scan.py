from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from puidrec.data.sources.reading import collect_columns, name_bad_cell, scan_columns

TYPES = {"id": pl.Int64, "x": pl.Float64, "name": pl.String}


def read(path: Path) -> pl.DataFrame:
    return collect_columns(scan_columns(path, TYPES), path, TYPES)


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
        ("id,x,name\n1,2,a\n1,2,a,b\n", ("cannot read the table",)),
        ("", ("cannot read the table",)),
    ],
)
def test_what_is_wrong_is_named(content: str, parts: tuple[str, ...], tmp_path: Path, refusal) -> None:
    file = tmp_path / "big.csv"
    file.write_text(content)
    refusal(lambda: read(file), str(file), *parts)


def test_required_cells(tmp_path: Path, refusal) -> None:
    file = tmp_path / "big.csv"
    file.write_text("id,x,name\n1,2,a\n2,,a\n")
    name_bad_cell(file, TYPES)
    refusal(lambda: name_bad_cell(file, TYPES, required=("x",)), "row 2", "column 'x'", "nothing")
    refusal(lambda: read(tmp_path / "no.csv"), "no such file")
