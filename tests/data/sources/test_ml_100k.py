from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from puidrec import load_dataset
from puidrec.data.sources.ml_100k import GENRES


def film(number: int, title: str, released: str, *genres: str) -> str:
    flags = "|".join(str(int(name in genres)) for name in GENRES)
    return f"{number}|{title}|{released}||http://x|{flags}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "u.data").write_text("1\t1\t5\t880\n1\t2\t3\t881\n2\t1\t1\t882\n3\t3\t4\t883\n")
    (tmp_path / "u.user").write_text(
        "1|24|M|technician|85711\n2|53|F|other|T8H1N\n3|30|M|writer|02139\n"
    )
    films = [
        film(1, 'Misérables, Les "I"', "01-Jan-1995", "Drama", "Musical"),
        film(2, "unknown", "", "unknown"),
        film(3, "Plain", "14-Feb-1996"),
    ]
    (tmp_path / "u.item").write_bytes("\n".join(films).encode("iso-8859-1"))
    return tmp_path


def test_features_and_times(folder: Path) -> None:
    data = load_dataset("ml-100k", folder)
    assert data.uniform is None
    assert data.logged.frame["timestamp"].to_list() == [880, 881, 882, 883]
    assert data.users.columns == ["user_id", "age", "gender", "occupation", "region"]
    assert data.users["age"].to_list() == [24, 53, 30]
    assert data.users["region"].to_list() == ["8", "other", "0"]
    assert data.items.columns == ["item_id", "release_year", "genres"]
    assert data.items["release_year"].to_list() == [1995, None, 1996]
    assert data.items["genres"].to_list() == [["Drama", "Musical"], ["unknown"], []]
    assert load_dataset("ml-100k", folder, features="none").items is None


@pytest.mark.parametrize(
    ("file", "content", "parts"),
    [
        ("u.data", "1\t1\t9\t1\n", ("u.data", "row 1", "column 'rating'")),
        ("u.data", "1\t1\t5\n", ("u.data", "row 1", "3 fields")),
        (
            "u.data",
            "1\t1\t5\tlate\n2\t2\t1\t5\n",
            ("u.data", "row 1", "column 'timestamp'", "'late'"),
        ),
        (
            "u.user",
            "1|old|M|x|1\n2|3|F|x|1\n3|1|M|x|1\n",
            ("u.user", "row 1", "column 'age'", "'old'"),
        ),
        ("u.user", "1|3|M|x|1\n", ("u.user", "column 'user_id'", "found 2")),
        ("u.item", "1|a|b\n", ("u.item", "row 1", "3 fields", "expected 24")),
    ],
)
def test_wrong_rows_are_named(
    file: str, content: str, parts: tuple[str, ...], folder: Path, refusal
) -> None:
    (folder / file).write_text(content)
    refusal(lambda: load_dataset("ml-100k", folder), *parts)


@pytest.mark.parametrize("file", ["u.data", "u.user", "u.item"])
def test_missing_files_are_named(file: str, folder: Path, refusal) -> None:
    (folder / file).unlink()
    refusal(lambda: load_dataset("ml-100k", folder), file)


@pytest.mark.real_data
def test_the_published_counts(data_root: Path) -> None:
    data = load_dataset("ml-100k", data_root / "ml-100k")
    assert (data.n_users, data.n_items, len(data.logged)) == (943, 1682, 100_000)
    assert np.bincount(data.logged.rating.astype(int)).tolist() == [
        0,
        6110,
        11370,
        27145,
        34174,
        21201,
    ]
    assert data.users["occupation"].n_unique() == 21
    assert data.items["genres"].list.len().min() == 1
    assert data.items["release_year"].null_count() == 1
