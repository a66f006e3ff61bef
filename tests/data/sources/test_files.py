from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from puidrec import load_dataset
from puidrec.data.dataset import Dataset

LOG = pl.DataFrame(
    {"user_id": [1, 1, 2, 3], "item_id": [10, 11, 10, 11], "rating": [1.0, 5.0, 4.0, 2.0]}
)
UNIFORM = pl.DataFrame({"user_id": [2, 3], "item_id": [11, 10], "rating": [3.0, 1.0]})
USERS = pl.DataFrame({"user_id": [1, 2, 3], "age": [20.0, None, 40.0], "sex": ["f", "m", None]})
ITEMS = pl.DataFrame({"item_id": [10, 11], "genres": ["war|love", "love"]})
TABLES = {"logged": LOG, "uniform": UNIFORM, "users": USERS, "items": ITEMS}


def write(folder: Path, suffix: str) -> dict[str, Path]:
    files = {key: folder / f"{key}{suffix}" for key in TABLES}
    for key, file in files.items():
        if suffix == ".parquet":
            TABLES[key].write_parquet(file)
        else:
            text = TABLES[key].write_csv().encode()
            file.write_bytes(gzip.compress(text, mtime=0) if suffix.endswith(".gz") else text)
    return files


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_paths_and_folders_in_every_format(suffix: str, tmp_path: Path) -> None:
    files = write(tmp_path, suffix)
    expected = Dataset.from_frame(
        LOG, UNIFORM, USERS, ITEMS.with_columns(pl.col("genres").str.split("|"))
    )
    options = {"multi_valued": ["genres"]}
    assert load_dataset("files", tmp_path, **options).sha256 == expected.sha256
    assert load_dataset("files", **files, **options).sha256 == expected.sha256


def test_text_stays_categorical_unless_named_a_list(tmp_path: Path) -> None:
    write(tmp_path, ".csv")
    assert load_dataset("files", tmp_path).items["genres"].to_list() == ["war|love", "love"]


def test_numbers_named_categorical_are_categories(tmp_path: Path) -> None:
    write(tmp_path, ".csv")
    (tmp_path / "users.csv").write_text("user_id,zip\n1,10\n2,20\n3,10\n")
    assert load_dataset("files", tmp_path).users["zip"].dtype == pl.Float64
    assert load_dataset("files", tmp_path, categorical=["zip"]).users["zip"].to_list() == [
        "10",
        "20",
        "10",
    ]


def test_columns_are_renamed_and_others_ignored(tmp_path: Path) -> None:
    file = tmp_path / "ratings.csv"
    file.write_text(
        "uid;movie;stars;rating;note\n1;10;1;bad;x\n1;11;5;bad;y\n2;10;4;bad;z\n3;11;2;bad;\n"
    )
    columns = {"user_id": "uid", "item_id": "movie", "rating": "stars"}
    assert (
        load_dataset("files", logged=file, columns=columns).sha256 == Dataset.from_frame(LOG).sha256
    )


def test_a_path_given_by_name_wins_over_the_folder(tmp_path: Path) -> None:
    write(tmp_path, ".csv")
    other = tmp_path / "other.csv"
    other.write_text("user_id,item_id,rating\n1,10,1\n2,11,5\n3,10,3\n")
    assert len(load_dataset("files", tmp_path, logged=other, overlap="keep").logged) == 3


@pytest.mark.parametrize(
    ("key", "content", "parts"),
    [
        (
            "logged",
            "user_id,item_id,stars\n1,2,3\n",
            ("missing column rating", "user_id, item_id, stars"),
        ),
        ("logged", "user_id item_id rating\n1 2 3\n", ("missing column", "separator")),
        ("logged", "user_id,item_id,rating\n", ("empty", "0 rows")),
        ("logged", "", ("empty",)),
        (
            "logged",
            "user_id,item_id,rating\n1,10,1\n1,11,good\n",
            ("row 2", "column 'rating'", "'good'", "a number"),
        ),
        (
            "logged",
            "user_id,item_id,rating\n1,10,1\n1,11,NaN\n",
            ("row 2", "column 'rating'", "finite"),
        ),
        (
            "logged",
            "user_id,item_id,rating\n1,10,1\n1,11,inf\n",
            ("row 2", "column 'rating'", "finite"),
        ),
        ("logged", "user_id,item_id,rating\n1,10,1\n1,11,\n", ("row 2", "column 'rating'")),
        (
            "logged",
            "user_id,item_id,rating\n1,10,1\n1,11,7\n",
            ("row 2", "column 'rating'", "7.0", "[1, 5]"),
        ),
        (
            "logged",
            "user_id,item_id,rating\n1,10,1\n1,10,2\n",
            ("row 2", "rated twice", "1, 10", "data.duplicates"),
        ),
        ("logged", "user_id,item_id,rating\n1,10,1\n1,11,2\n", ("one user only", "at least two")),
        (
            "logged",
            "user_id,item_id,rating\n1,10,2\n2,11,2\n",
            ("all ratings are equal", "2 in every row"),
        ),
        (
            "logged",
            "user_id,item_id,rating\n1,10,1\n,11,2\n",
            ("row 2", "column 'user_id'", "missing id"),
        ),
        (
            "logged",
            "user_id,item_id,rating\n1,10," + "9" * 1_000_000 + "\n2,11,2\n",
            ("row 1", "column 'rating'"),
        ),
        (
            "logged",
            "user_id,item_id,rating\nx,10,1\ny,11,2\n",
            ("ids of another type", "Int64", "String"),
        ),
        (
            "users",
            "user_id,age\n1,1\n2,1\n3,1\n9,1\n",
            ("row 4", "column 'user_id'", "found 9", "data.unknown_ids"),
        ),
        ("users", "user_id,age\n1,1\n2,1\n", ("column 'user_id'", "found 3")),
        ("users", "user_id,age\n1,1\n2,inf\n3,1\n", ("row 2", "column 'age'", "inf")),
        ("items", "genres\nwar\n", ("missing column item_id",)),
        ("items", "item_id,genres\n10,a\n10,b\n11,c\n", ("row 2", "column 'item_id'", "twice")),
    ],
)
def test_bad_input_is_one_line_that_names_its_place(
    key: str, content: str, parts: tuple[str, ...], tmp_path: Path, refusal
) -> None:
    file = write(tmp_path, ".csv")[key]
    file.write_text(content)
    where = tmp_path / "uniform.csv" if "another type" in parts[0] else file
    message = refusal(lambda: load_dataset("files", tmp_path, scale=(1, 5)), str(where), *parts)
    assert len(message) < 600


def test_missing_doubled_or_misnamed(tmp_path: Path, refusal) -> None:
    refusal(lambda: load_dataset("files"), "no log of interactions", "--logged")
    refusal(
        lambda: load_dataset("files", tmp_path),
        str(tmp_path),
        "logged.parquet or logged.csv or logged.csv.gz",
    )
    refusal(lambda: load_dataset("files", logged=tmp_path / "no.csv"), "no.csv", "no such file")
    refusal(lambda: load_dataset("files", logged=tmp_path), "a folder")
    files = write(tmp_path, ".csv")
    refusal(
        lambda: load_dataset("files", tmp_path, columns={"user": "u"}),
        "'user'",
        "user_id, item_id, rating",
    )
    refusal(
        lambda: load_dataset("files", tmp_path, multi_valued=["genre"]),
        "column 'genre'",
        "no such column",
    )
    refusal(lambda: load_dataset("files", tmp_path, scale=(5, 1)), "scale")
    LOG.write_parquet(tmp_path / "logged.parquet")
    refusal(
        lambda: load_dataset("files", tmp_path),
        "two files for logged",
        "logged.parquet, logged.csv",
    )
    (tmp_path / "logged.parquet").write_bytes((tmp_path / "logged.parquet").read_bytes()[:-20])
    refusal(
        lambda: load_dataset("files", logged=tmp_path / "logged.parquet"),
        "logged.parquet",
        "damaged Parquet",
    )
    assert load_dataset("files", **files).n_users == 3


def test_no_permission(tmp_path: Path, refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ".csv")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", denied)
        refusal(lambda: load_dataset("files", tmp_path), str(tmp_path), "no permission to read")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        refusal(lambda: load_dataset("files", tmp_path), "logged.csv", "no permission to read")
