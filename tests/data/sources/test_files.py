"""Your own files, and logs in the forms of other tools: what comes in is the same data, what goes
out comes in again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from puidrec import Recommender, load_dataset
from puidrec.data.dataset import Dataset
from puidrec.data.sources.files import write_dataset

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
        refusal(lambda: load_dataset("files", tmp_path), ".csv", "no permission to read")


TIMED = pl.DataFrame(
    {
        "user_id": [196, 186, 22, 196],
        "item_id": [242, 302, 377, 302],
        "rating": [3.0, 3.0, 1.0, 5.0],
        "timestamp": [881250949, 891717742, 878887116, 881250950],
    }
)
FRESH = pl.DataFrame(
    {
        "user_id": [186, 22],
        "item_id": [377, 242],
        "rating": [4.0, 2.0],
        "timestamp": [891717800, 878887200],
    }
)
"""Pairs outside the log."""
HEADER = ["user_id", "item_id", "rating", "timestamp"]
ROWS = TIMED.with_columns(pl.col("rating").cast(pl.Int64)).rows()


def text(separator: str, *first: str) -> str:
    return "\n".join([*first, *(separator.join(map(str, row)) for row in ROWS)]) + "\n"


FORMS = {
    "u.data": (text("\t"), {"columns": HEADER}),
    "ratings.dat": (text("::"), {"columns": HEADER}),
    "ratings.txt": (text(" "), {"columns": HEADER}),
    "header.dat": (text("::", "::".join(HEADER)), {}),
    "ml.inter": (text("\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float"), {}),
    "log.jsonl": (
        "".join(json.dumps(dict(zip(HEADER, row, strict=True))) + "\n" for row in ROWS),
        {},
    ),
    "rectools.csv": (text(",", "user_id,item_id,weight,datetime"), {}),
    "lenskit.csv": (text(",", "user,item,rating,timestamp"), {}),
    "swapped.csv": (
        "\n".join(f"{i},x,{u},{t},{r}" for u, i, r, t in ROWS),
        {"columns": ["item_id", "-", "user_id", "timestamp", "rating"]},
    ),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_one_log_in_every_text_form(name: str, zipped: bool, tmp_path: Path) -> None:
    content, options = FORMS[name]
    file = tmp_path / (f"{name}.gz" if zipped else name)
    file.write_bytes(gzip.compress(content.encode(), mtime=0) if zipped else content.encode())
    assert load_dataset("files", logged=file, **options).sha256 == Dataset.from_frame(TIMED).sha256


@pytest.mark.parametrize("pattern", ["parts", "parts/part-*.parquet", "parts/part-?.parquet"])
def test_parquet_parts_of_a_folder_or_a_pattern(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_SUCCESS").touch()
    for k in range(4):
        TIMED[k : k + 1].write_parquet(tmp_path / "parts" / f"part-{k}.parquet")
    data = load_dataset("files", logged=tmp_path / pattern)
    assert data.sha256 == Dataset.from_frame(TIMED).sha256


def test_parts_must_agree(tmp_path: Path, refusal: Any) -> None:
    TIMED.write_parquet(tmp_path / "0.parquet")
    TIMED.drop("timestamp").write_parquet(tmp_path / "1.parquet")
    refusal(
        lambda: load_dataset("files", logged=tmp_path), "1.parquet", "other columns", "0.parquet"
    )
    TIMED.with_columns(pl.col("user_id").cast(pl.String)).write_parquet(tmp_path / "1.parquet")
    refusal(
        lambda: load_dataset("files", logged=tmp_path),
        "1.parquet",
        "user_id",
        "different types",
        "0.parquet",
    )
    refusal(
        lambda: load_dataset("files", logged=tmp_path / "x*.parquet"),
        "x*.parquet",
        "no file matches",
    )


def test_a_matrix_is_the_log_of_its_entries(tmp_path: Path) -> None:
    entries = sparse.coo_array(
        (TIMED["rating"], (TIMED["user_id"], TIMED["item_id"])), shape=(200, 400)
    )
    expected = Dataset.from_frame(TIMED.drop("timestamp"))
    for matrix in (entries, entries.tocsr(), entries.tocsc(), sparse.csr_matrix(entries)):
        assert Dataset.from_matrix(matrix).sha256 == expected.sha256
    sparse.save_npz(tmp_path / "log.npz", entries.tocsr())
    assert load_dataset("files", logged=tmp_path / "log.npz").sha256 == expected.sha256


def test_a_matrix_with_ids_and_stored_zeros() -> None:
    matrix = sparse.csr_array(([0.0, 1.0, 1.0], ([0, 0, 2], [0, 1, 1])), shape=(3, 2))
    data = Dataset.from_matrix(matrix, user_ids=["ann", "bob", "cem"], item_ids=["tea", "jam"])
    assert data.logged.to_frame().rows() == [
        ("ann", "jam", 1.0),
        ("ann", "tea", 0.0),
        ("cem", "jam", 1.0),
    ]
    again = Dataset.from_matrix(
        data.to_matrix(), user_ids=data.user_ids.ids, item_ids=data.item_ids.ids
    )
    assert again.sha256 == data.sha256


def test_no_matrix_is_one_line(tmp_path: Path, refusal: Any) -> None:
    matrix = sparse.csr_array(np.eye(3))
    refusal(lambda: Dataset.from_matrix(np.eye(3)), "not a sparse matrix", "ndarray")
    refusal(
        lambda: Dataset.from_matrix(matrix, user_ids=["a", "b"]),
        "found '2 different ids of 2'",
        "3, one per row",
    )
    refusal(
        lambda: Dataset.from_matrix(matrix, item_ids=["a", "b", "b"]),
        "item_id",
        "do not fit",
    )
    refusal(lambda: Dataset.from_matrix(matrix * 1j), "real numbers", "complex")
    file = tmp_path / "m.npz"
    np.savez(
        file,
        indices=np.array([7]),
        indptr=np.array([0, 1]),
        shape=(1, 2),
        data=np.ones(1),
        format=np.array("csr"),
    )
    refusal(lambda: load_dataset("files", logged=file), "m.npz", "damaged sparse matrix")
    sparse.save_npz(file, matrix.tocsc())
    refusal(lambda: load_dataset("files", logged=file), "m.npz", "csc", "csr")


@pytest.mark.parametrize(
    ("name", "content", "options", "parts"),
    [
        (
            "u.data",
            text("\t"),
            {},
            ("no header line", "196, 242, 3", "--columns user_id,item_id,rating,timestamp"),
        ),
        ("u.data", text("\t"), {"columns": HEADER[:3]}, ("row 1", "4 fields", "expected 3")),
        ("r.dat", text("::"), {"columns": HEADER[:3]}, ("row 1", "4 fields", "expected 3", "::")),
        (
            "u.data",
            text("\t"),
            {"columns": [*HEADER[:3], "time"]},
            ("unknown name of a column", "time", "- for"),
        ),
        (
            "u.data",
            text("\t"),
            {"columns": ["user_id", "user_id", "-", "-"]},
            ("named twice", "user_id"),
        ),
        (
            "u.data",
            text("\t", *["\t".join(HEADER)]),
            {"columns": HEADER},
            ("row 1", "column 'rating'", "'rating'"),
        ),
        (
            "a.inter",
            "user_id:token\titem_id:word\n1\t2\n",
            {},
            ("item_id:word", "token, token_seq, float"),
        ),
        (
            "a.inter",
            "user_id:token\titem_id:token\trating:float\n1\t2\tx\n",
            {},
            ("row 1", "column 'rating'", "'x'"),
        ),
        (
            "a.jsonl",
            '{"user_id": 1, "item_id": 2, "rating": 3}\n{"user_id": 1,\n',
            {},
            ("a.jsonl", "not JSON lines"),
        ),
        ("a.json", '[{"user_id": 1}]', {}, ("a.json", "JSON")),
        (
            "log.csv",
            text(","),
            {"columns": "user_id,item_id"},
            ("option columns", "user_id,item_id"),
        ),
    ],
)
def test_bad_input_of_every_form_is_one_line(
    name: str,
    content: str,
    options: dict[str, Any],
    parts: tuple[str, ...],
    tmp_path: Path,
    refusal: Any,
) -> None:
    (tmp_path / name).write_text(content)
    refusal(lambda: load_dataset("files", logged=tmp_path / name, **options), *parts)


def test_recbole_features_have_the_types_of_their_header(tmp_path: Path) -> None:
    (tmp_path / "ml.inter").write_text(FORMS["ml.inter"][0])
    (tmp_path / "ml.user").write_text(
        "user_id:token\tage:float\tzip:token\n196\t24\t00123\n186\t\t9\n22\t30\t7\n"
    )
    (tmp_path / "ml.item").write_text(
        "item_id:token\tclass:token_seq\temb:float_seq\n242\tDrama War\t.5 1\n302\t\t2 3\n"
        "377\tWar\t0 1\n"
    )
    data = load_dataset("recbole", tmp_path)
    assert data.users.rows() == [(22, 30.0, "7"), (186, None, "9"), (196, 24.0, "00123")]
    assert data.items["class"].to_list() == [["Drama", "War"], None, ["War"]]
    assert data.items["emb_0"].to_list() == [0.5, 2.0, 0.0]
    (tmp_path / "two.inter").write_text(FORMS["ml.inter"][0])
    with pytest.raises(Exception, match=r"one.*--logged|no single"):
        load_dataset("recbole", tmp_path)


@pytest.mark.parametrize("form", ["recbole", "csr", "rectools", "csv", "parquet", "jsonl"])
def test_what_goes_out_comes_in_again(form: str, tmp_path: Path) -> None:
    items = pl.DataFrame(
        {"item_id": [242, 302, 377], "genres": [["war"], ["love", "war"], ["sport"]]}
    )
    data = Dataset.from_frame(TIMED, FRESH, items=items)
    rows = write_dataset(data, form, tmp_path)
    assert sum(rows.values()) == len(data.logged) + 2 + (0 if form == "csr" else 3)
    names = {
        "recbole": ("log.inter", "uniform.inter", "log.item"),
        "csr": ("logged.npz", "uniform.npz", None),
    }
    suffix = {"rectools": "parquet"}.get(form, form)
    logged, uniform, side = names.get(
        form, (f"logged.{suffix}", f"uniform.{suffix}", f"items.{suffix}")
    )
    given = {"items": tmp_path / side} if side else {}
    options = {"multi_valued": ["genres"]} if form == "csv" else {}
    again = load_dataset(
        "files", logged=tmp_path / logged, uniform=tmp_path / uniform, **given, **options
    )
    assert again.logged.rating.tolist() == data.logged.rating.tolist()
    if form == "csr":
        assert json.loads((tmp_path / "user_ids.json").read_text()) == [22, 186, 196]
    elif form == "rectools":
        frame = pd.read_parquet(tmp_path / "logged.parquet")
        assert list(frame.columns) == ["user_id", "item_id", "weight", "datetime"]
        assert frame["datetime"].iloc[0].year == 1997
    else:
        assert again.sha256 == data.sha256


def test_text_that_recbole_cannot_hold_is_refused(tmp_path: Path, refusal: Any) -> None:
    data = Dataset.from_frame(TIMED.with_columns(user_id=pl.Series(["a\tb", "c", "d", "e"])))
    refusal(
        lambda: write_dataset(data, "recbole", tmp_path), "log.inter", "row 1", "user_id", "tabs"
    )


@pytest.mark.real_data
def test_movielens_as_it_comes_as_recbole_and_as_a_matrix_gives_the_same_model(
    data_root: Path, tmp_path: Path
) -> None:
    own = load_dataset(
        "files", logged=data_root / "ml-100k" / "u.data", columns=HEADER, scale=(1, 5)
    )
    write_dataset(own, "recbole", tmp_path)
    forms = [
        own,
        load_dataset("ml-100k", data_root / "ml-100k", features="none"),
        load_dataset("recbole", tmp_path, scale=(1, 5)),
        Dataset.from_matrix(
            own.to_matrix(), user_ids=own.user_ids.ids, item_ids=own.item_ids.ids, scale=(1, 5)
        ),
    ]
    models = [Recommender("mf", dim=8, l2=0.1, epochs=3, rng=0).fit(data) for data in forms]
    for model in models[1:]:
        np.testing.assert_array_equal(model.user_factors_, models[0].user_factors_)
        np.testing.assert_array_equal(model.item_factors_, models[0].item_factors_)
