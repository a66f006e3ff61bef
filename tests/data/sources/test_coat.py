from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset
from puidrec.data.dataset import Dataset
from puidrec.data.tables import Overlap

MAPS = {
    "user": ["gender:men", "gender:women", "age:young", "age:20-30", "age:old"],
    "item": ["color:red", "color:blue"],
}


def write_matrix(path: Path, matrix: np.ndarray, newline: str = "\r\n") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("".join(" ".join(f"{v:g}" for v in row) + newline for row in matrix).encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, share in (("train", 0.5), ("test", 0.4)):
        write_matrix(
            tmp_path / f"{name}.ascii", rng.integers(1, 6, (8, 6)) * (rng.random((8, 6)) < share)
        )
    write_matrix(tmp_path / "propensities.ascii", rng.uniform(0.01, 0.9, (8, 6)))
    features = tmp_path / "user_item_features"
    write_matrix(
        features / "user_features.ascii",
        np.hstack([np.eye(2)[[0, 1] * 4], np.eye(3)[[0, 1, 2, 2] * 2]]),
    )
    write_matrix(features / "item_features.ascii", np.eye(2)[[0, 1, 0, 0, 1, 1]])
    for entity, names in MAPS.items():
        (features / f"{entity}_features_map.txt").write_text("\n".join(names))
    return tmp_path


def cells(path: Path) -> dict[tuple[int, int], float]:
    matrix = np.loadtxt(path)
    return {(int(u), int(i)): matrix[u, i] for u, i in np.argwhere(matrix)}


def rows(data: Dataset, part: str) -> dict[tuple[int, int], float]:
    frame = getattr(data, part).to_frame()
    return {(u, i): r for u, i, r in frame.select("user_id", "item_id", "rating").rows()}


def test_matrices_become_rows_and_one_hot_groups_columns(folder: Path) -> None:
    data = load_dataset("coat", folder, overlap="keep")
    assert rows(data, "logged") == cells(folder / "train.ascii")
    assert rows(data, "uniform") == cells(folder / "test.ascii")
    assert (data.n_users, data.n_items) == (8, 6)
    assert (data.scale.low, data.scale.high) == (1, 5)
    assert data.users["gender"].to_list() == ["men", "women"] * 4
    assert data.users["age"].to_list() == ["young", "20-30", "old", "old"] * 2
    assert data.items["color"].to_list() == ["red", "blue", "red", "red", "blue", "blue"]
    matrix = np.loadtxt(folder / "propensities.ascii")
    np.testing.assert_allclose(data.logged.propensity, matrix[data.logged.user, data.logged.item])


def test_triples_give_the_same_rows(folder: Path) -> None:
    expected = load_dataset("coat", folder)
    for matrix, triples in (("train.ascii", "user.txt"), ("test.ascii", "random.txt")):
        lines = [f"{u},{i},{r:g}" for (u, i), r in cells(folder / matrix).items()]
        (folder / triples).write_text("\n".join(lines))
        (folder / matrix).unlink()
    assert load_dataset("coat", folder).sha256 == expected.sha256


def test_options(folder: Path, refusal) -> None:
    bare = load_dataset("coat", folder, features="none")
    assert bare.users is None
    pseudo = load_dataset("coat", folder, features="pseudo", dim=3)
    assert pseudo.users.columns == ["user_id", "f0", "f1", "f2"]
    assert set(pseudo.items["f0"]) <= {"0", "1", "2", "3"}
    refusal(
        lambda: load_dataset("coat", folder, features="fake"),
        "features",
        "'fake'",
        "real, pseudo, none",
    )
    refusal(lambda: load_dataset("coat", folder, colour=1), "coat", "colour")


@pytest.mark.parametrize(
    ("file", "matrix", "parts"),
    [
        (
            "train.ascii",
            np.full((8, 6), 6),
            ("row 1", "column 'rating'", "out of range", "found 6.0", "[1, 5]"),
        ),
        ("test.ascii", np.full((8, 6), -1), ("row 1", "column 'rating'", "found -1.0")),
        ("train.ascii", np.zeros((8, 6)), ("empty", "0 rows")),
        ("propensities.ascii", np.full((2, 2), 0.5), ("2 x 2 matrix", "Remove the file")),
        ("propensities.ascii", np.zeros((8, 6)), ("column 'propensity'", "(0, 1]")),
        (
            "user_item_features/user_features.ascii",
            np.ones((8, 5)),
            ("row 1", "column 'gender'", "not one-hot", "'1 1'"),
        ),
        (
            "user_item_features/user_features.ascii",
            np.ones((8, 4)),
            ("found 4", "expected 5 as in the map"),
        ),
        (
            "user_item_features/item_features.ascii",
            np.eye(2),
            ("column 'item_id'", "no row for 4 rated id(s)"),
        ),
    ],
)
def test_wrong_matrices_are_refused(
    file: str, matrix: np.ndarray, parts: tuple[str, ...], folder: Path, refusal
) -> None:
    write_matrix(folder / file, matrix)
    refusal(lambda: load_dataset("coat", folder), str(folder), *parts)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("1 2\n3\n", "row 2"),
        ("1 2\n3 x\n", "'x'"),
        ("1 nan\n3 4\n", "finite"),
        ("1 2\ninf 4\n", "finite"),
        ("\n", "empty"),
    ],
)
def test_files_that_are_no_matrices(content: str, part: str, folder: Path, refusal) -> None:
    (folder / "train.ascii").write_text(content)
    refusal(lambda: load_dataset("coat", folder), "train.ascii", part)


@pytest.mark.parametrize(
    "file", ["train.ascii", "test.ascii", "user_item_features/item_features_map.txt"]
)
def test_missing_files_are_named(file: str, folder: Path, refusal) -> None:
    (folder / file).unlink()
    refusal(lambda: load_dataset("coat", folder), str(folder), Path(file).name)


@pytest.mark.real_data
def test_the_published_counts(data_root: Path) -> None:
    fresh = load_dataset("coat", data_root / "coat")
    assert (len(fresh.uniform), fresh.overlap) == (4274, Overlap("drop", 4640, 366))
    data = load_dataset("coat", data_root / "coat", overlap="keep")
    assert (data.n_users, data.n_items, len(data.logged), len(data.uniform)) == (
        290,
        300,
        6960,
        4640,
    )
    assert data.sha256 == fresh.sha256
    assert np.bincount(data.logged.rating.astype(int)).tolist() == [0, 1901, 1437, 1717, 1275, 630]
    assert np.bincount(data.uniform.rating.astype(int)).tolist() == [0, 1879, 899, 1002, 641, 219]
    assert [data.users.width, data.items.width] == [5, 5]
    assert data.items["jackettype"].n_unique() == 16
    triples = pl.read_csv(
        data_root / "coat" / "user.txt", has_header=False, new_columns=["u", "i", "r"]
    )
    np.testing.assert_array_equal(data.logged.rating, triples.sort("u", "i")["r"])
