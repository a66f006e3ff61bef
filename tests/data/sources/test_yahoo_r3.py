from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec import load_dataset
from puidrec.data.sources.yahoo_r3 import WEBSCOPE

PARTS = {"train": "user.txt", "test": "random.txt"}


def made(
    n_users: int, n_items: int, n_logged: int, n_asked: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Triples of the published shape: every user and song logged, ten random songs for the first
    `n_asked` users."""
    rng = np.random.default_rng(seed)
    base = np.arange(n_users) * n_items + rng.integers(0, n_items, n_users)
    songs = np.arange(n_items)
    must = np.unique(np.concatenate([base, songs % n_users * n_items + songs]))
    rest = np.setdiff1d(rng.choice(n_users * n_items, 2 * n_logged, replace=False), must)[
        : n_logged - must.size
    ]
    logged = rng.permutation(np.concatenate([must, rest]))
    asked = rng.permuted(np.tile(songs, (n_asked, 1)), axis=1)[:, :10]
    uniform = (np.arange(n_asked)[:, None] * n_items + asked).ravel()
    return {
        name: np.column_stack([key // n_items, key % n_items, rng.integers(1, 6, key.size)])
        for name, key in (("train", logged), ("test", uniform))
    }


def write(folder: Path, triples: dict[str, np.ndarray], *, webscope: bool) -> None:
    for part, rows in triples.items():
        name = f"{WEBSCOPE}-{part}.txt" if webscope else PARTS[part]
        shifted = rows + np.array([1, 1, 0]) if webscope else rows
        pl.DataFrame(shifted).write_csv(
            folder / name, include_header=False, separator="\t" if webscope else ","
        )


@pytest.mark.parametrize("webscope", [True, False])
def test_both_forms_keep_the_ids_of_their_files(webscope: bool, tmp_path: Path) -> None:
    triples = made(60, 40, 500, 20)
    write(tmp_path, triples, webscope=webscope)
    data = load_dataset("yahoo-r3", tmp_path, overlap="keep")
    first = int(webscope)
    assert data.user_ids.ids.to_list() == list(range(first, 60 + first))
    assert (data.n_items, len(data.logged), len(data.uniform)) == (40, 500, 200)
    expected = {tuple(row) for row in (triples["train"] + [first, first, 0]).tolist()}
    assert {(u, i, int(r)) for u, i, r in data.logged.to_frame().rows()} == expected
    assert data.users is None
    assert data.notes["ids"] == f"from {first}"


def test_the_full_shape(tmp_path: Path) -> None:
    write(tmp_path, made(15_400, 1_000, 311_704, 5_400), webscope=True)
    data = load_dataset("yahoo-r3", tmp_path, overlap="keep")
    assert (data.n_users, data.n_items, len(data.logged), len(data.uniform)) == (
        15_400,
        1_000,
        311_704,
        54_000,
    )


def test_pseudo_features_come_from_the_log_alone(tmp_path: Path) -> None:
    triples = made(60, 40, 500, 20)
    write(tmp_path, triples, webscope=False)
    first = load_dataset("yahoo-r3", tmp_path, features="pseudo", dim=5)
    assert first.users.shape == (60, 6)
    triples["test"][:, 2] = 6 - triples["test"][:, 2]
    write(tmp_path, triples, webscope=False)
    second = load_dataset("yahoo-r3", tmp_path, features="pseudo", dim=5)
    assert first.users.equals(second.users)
    assert first.items.equals(second.items)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("1\t2\t3\n0\t1\t2\n", ("row 2", "column 'user_id'", "found 0", "[1, inf]", "Ids from 0")),
        ("1\t2\t3\nx\t1\t2\n", ("row 2", "column 'user_id'", "'x'", "a whole number")),
        ("1\t2\t3\n1\t\t2\n", ("row 2", "column 'item_id'", "nothing")),
        ("1\t2\t3\n1\t3\t6\n", ("row 2", "column 'rating'", "6", "[1, 5]")),
        ("1\t2\t3\n1\t2\t4\n", ("row 2", "rated twice")),
        ("1,2,3\n1,2,4\n", ("row 1", "1 fields", "expected 3")),
        ("1\t2\t3\n1\t2\n", ("row 2", "2 fields", "expected 3")),
        ("", ("empty",)),
    ],
)
def test_wrong_rows_are_named(
    content: str, parts: tuple[str, ...], tmp_path: Path, refusal
) -> None:
    write(tmp_path, made(60, 40, 500, 20), webscope=True)
    (tmp_path / f"{WEBSCOPE}-train.txt").write_text(content)
    refusal(lambda: load_dataset("yahoo-r3", tmp_path), f"{WEBSCOPE}-train.txt", *parts)


def test_missing_or_mixed_files(tmp_path: Path, refusal) -> None:
    refusal(
        lambda: load_dataset("yahoo-r3", tmp_path),
        "no yahoo-r3 files",
        f"{WEBSCOPE}-train.txt or user.txt",
    )
    write(tmp_path, made(60, 40, 500, 20), webscope=True)
    write(tmp_path, made(60, 40, 500, 20), webscope=False)
    (tmp_path / f"{WEBSCOPE}-test.txt").unlink()
    refusal(
        lambda: load_dataset("yahoo-r3", tmp_path), "two forms", f"{WEBSCOPE}-train.txt, random.txt"
    )
