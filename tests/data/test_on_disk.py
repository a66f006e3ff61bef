"""Rows left out of a log on disk are those left out of one in memory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from puidrec.data import on_disk
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import Scratch, StoredInteractions, row_slices, shard_log
from puidrec.data.sources import load_dataset
from puidrec.data.split import get_protocol


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 16)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Dataset, Dataset]:
    """The same log in memory and on disk."""
    rng = np.random.default_rng(0)
    key = rng.permutation(np.flatnonzero(rng.random(30 * 11) < 0.4))
    log = pl.DataFrame(
        {"user_id": key // 11, "item_id": key % 11, "rating": rng.integers(1, 6, key.size)}
    )
    log.write_parquet(tmp_path / "log.parquet")
    return Dataset.from_frame(log), shard_log(
        tmp_path / "log.parquet", tmp_path / "s", Dataset.from_frame
    )


def frame(rows) -> pl.DataFrame:
    """All rows, wherever they are."""
    return pl.DataFrame(
        {name: np.asarray(getattr(rows, name)) for name in ("user", "item", "rating")}
    )


def test_rows_are_taken_left_out_and_dropped_as_in_memory(both) -> None:
    memory, disk = (data.logged for data in both)
    rng = np.random.default_rng(1)
    held = rng.permutation(len(memory))[:40]
    assert frame(disk.take(held)).equals(frame(memory.take(held)))
    less, more = disk.without(held), memory.without(held)
    assert frame(less).equals(frame(more))
    again = rng.permutation(len(more))[:30]
    assert frame(less.without(again)).equals(frame(more.without(again)))
    assert frame(less.take(again)).equals(frame(more.take(again)))
    keep = rng.random(len(more)) < 0.5
    assert frame(less.take(keep)).equals(frame(more.take(keep)))
    labelled, expected = (
        rows.without(again).labelled(get_protocol("paper")) for rows in (less, more)
    )
    assert len(expected) < len(more) - again.size  # three stars are dropped
    assert frame(labelled).equals(frame(expected))
    np.testing.assert_array_equal(labelled.label, expected.label)
    assert labelled.part(slice(3, 20)).frame.equals(
        expected.frame[3:20].select("user", "item", "rating", "label")
    )


def test_nothing_is_copied_where_nothing_goes(both) -> None:
    rows = both[1].logged
    assert rows.labelled(get_protocol("rd")).item is rows.item


def test_scratch_is_written_in_ranges_and_leaves_nothing_behind(tmp_path: Path) -> None:
    room = Scratch(tmp_path, 10, np.float32)
    room.write(4, np.arange(3.0))
    room.write(0, np.ones(2))
    np.testing.assert_array_equal(room.values, [1, 1, 0, 0, 0, 1, 2, 0, 0, 0])
    assert list(tmp_path.iterdir()) == []
    assert Scratch(tmp_path, 0).values.size == 0
    values = room.values
    del room
    assert values[6] == 2.0  # the numbers outlive their file
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 5.0


UNIFORM = pl.DataFrame({"user_id": [0, 1], "item_id": [0, 3], "rating": [2, 5]})


def log_of(n_users: int = 50, n_items: int = 12, seed: int = 0) -> pl.DataFrame:
    """Distinct pairs in random order."""
    rng = np.random.default_rng(seed)
    key = rng.permutation(np.flatnonzero(rng.random(n_users * n_items) < 0.4))
    return pl.DataFrame(
        {
            "user_id": key // n_items,
            "item_id": key % n_items,
            "rating": rng.integers(1, 6, key.size),
        }
    )


def builder(uniform: pl.DataFrame = UNIFORM, **options):
    return lambda logged: Dataset.from_frame(logged, uniform, **options)


def same(disk: Dataset, memory: Dataset) -> None:
    assert isinstance(disk.logged, StoredInteractions)
    assert len(disk.logged) == len(memory.logged)
    for name in ("user", "item", "rating"):
        np.testing.assert_array_equal(getattr(disk.logged, name), getattr(memory.logged, name))
    assert disk.user_ids.ids.equals(memory.user_ids.ids)
    assert disk.item_ids.ids.equals(memory.item_ids.ids)
    assert disk.scale == memory.scale


@pytest.mark.parametrize("batch_rows", [7, 10_000])
@pytest.mark.parametrize("shard_rows", [1, 25, 10_000])
def test_rows_are_those_of_the_log_in_memory(
    tmp_path: Path, monkeypatch, shard_rows: int, batch_rows: int
) -> None:
    monkeypatch.setattr(on_disk, "BATCH_ROWS", batch_rows)
    log = log_of()
    (tmp_path / "log").mkdir()
    log[:90].write_parquet(tmp_path / "log" / "1.parquet", row_group_size=11)
    log[90:].write_parquet(tmp_path / "log" / "2.parquet")
    disk = shard_log(tmp_path / "log", tmp_path / "shards", builder(), shard_rows=shard_rows)
    same(disk, Dataset.from_frame(log, UNIFORM))
    assert sorted(p.name for p in (tmp_path / "shards").iterdir()) == [
        "item.bin",
        "rating.bin",
        "shards.json",
        "user.bin",
    ]


def test_text_ids_and_renamed_columns(tmp_path: Path) -> None:
    log = log_of().with_columns(pl.format("u{}", "user_id").alias("user_id"))
    uniform = UNIFORM.with_columns(pl.format("u{}", "user_id").alias("user_id"))
    log.rename({"user_id": "uid", "rating": "stars"}).write_parquet(tmp_path / "log.parquet")
    uniform.rename({"user_id": "uid", "rating": "stars"}).write_parquet(
        tmp_path / "uniform.parquet"
    )
    files = {"logged": tmp_path / "log.parquet", "uniform": tmp_path / "uniform.parquet"}
    names = {"user_id": "uid", "rating": "stars"}
    same(
        load_dataset("files", **files, columns=names, shards=tmp_path / "s"),
        load_dataset("files", **files, columns=names),
    )


def test_a_range_of_rows_in_memory_has_labels(tmp_path: Path) -> None:
    log = log_of()
    log.write_parquet(tmp_path / "log.parquet")
    disk = shard_log(tmp_path / "log.parquet", tmp_path / "s", builder())
    rows = disk.logged.labelled(get_protocol("rd"))
    expected = Dataset.from_frame(log, UNIFORM).logged.labelled(get_protocol("rd"))
    assert rows.part(slice(10, 30)).frame.equals(
        expected.frame[10:30].select("user", "item", "rating", "label")
    )
    np.testing.assert_array_equal(rows.label, expected.label)
    assert rows.propensity is None
    assert (
        repr(rows)
        == f"StoredInteractions({len(rows):,} rows of 49 users × 12 items, ratings 1 to 5)"
    )


def test_ranges_cover_all_rows(monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 2)
    assert list(row_slices(5)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(row_slices(0)) == []


def test_a_folder_is_sorted_once_and_belongs_to_its_log(
    tmp_path: Path, monkeypatch, refusal
) -> None:
    log_of().write_parquet(tmp_path / "a.parquet")
    first = shard_log(tmp_path / "a.parquet", tmp_path / "s", builder())
    monkeypatch.setattr(on_disk, "sort_log", lambda *_: pytest.fail("sorted again"))
    again = shard_log(tmp_path / "a.parquet", tmp_path / "s", builder())
    assert again.sha256 == first.sha256
    log_of(seed=1).write_parquet(tmp_path / "b.parquet")
    refusal(lambda: shard_log(tmp_path / "b.parquet", tmp_path / "s", builder()), "another log")
    (tmp_path / "s" / "item.bin").write_bytes(b"123")
    refusal(lambda: shard_log(tmp_path / "a.parquet", tmp_path / "s", builder()), "damaged shards")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    refusal(
        lambda: shard_log(tmp_path / "a.parquet", tmp_path / "mine", builder()),
        "not a folder of shards",
    )
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("rating", lambda old: np.where(np.arange(old.size) == 7, np.nan, old)),
        ("item", lambda old: np.where(np.arange(old.size) == 7, 12, old)),
        ("item", lambda old: old[::-1]),
        ("user", lambda old: old[:-1]),
    ],
    ids=["nan", "item code", "order", "size"],
)
def test_shards_that_were_changed_on_disk_are_refused(
    tmp_path: Path, refusal, column, change
) -> None:
    log_of().write_parquet(tmp_path / "log.parquet")
    call = partial(shard_log, tmp_path / "log.parquet", tmp_path / "s", builder())
    call()
    file = tmp_path / "s" / f"{column}.bin"
    old = np.fromfile(file, on_disk.COLUMNS[column])
    change(old).astype(old.dtype).tofile(file)
    refusal(call, "damaged shards", "other rows", "made anew")
    old.tofile(file)
    call()


def test_a_log_that_changed_is_noticed_whatever_its_size_and_time_say(
    tmp_path: Path, refusal
) -> None:
    path, log = tmp_path / "log.parquet", log_of()
    log.write_parquet(path, compression="uncompressed", statistics=False)
    call = partial(shard_log, path, tmp_path / "s", builder())
    call()
    before = path.stat()
    os.utime(path, ns=(0, 0))
    call()  # a copy or a backup gives a file another time, and changes nothing
    log.with_columns(rating=6 - pl.col("rating")).write_parquet(
        path, compression="uncompressed", statistics=False
    )
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    refusal(call, "another log")


def test_the_digest_is_that_of_the_rows(tmp_path: Path) -> None:
    log = log_of()
    for name, rows in (
        ("a", log),
        ("b", log.reverse()),
        ("c", log.with_columns(rating=6 - pl.col("rating"))),
    ):
        rows.write_parquet(tmp_path / f"{name}.parquet")
    a, b, c = (shard_log(tmp_path / f"{k}.parquet", tmp_path / k, builder()).sha256 for k in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"rating": None}, ("row 201", "rating", "missing")),
        ({"rating": 9}, ("row 201", "rating", "out of range")),
        ({"user_id": None}, ("row 201", "user_id", "missing id")),
    ],
)
def test_bad_rows_are_named_as_ever(tmp_path: Path, monkeypatch, refusal, change, parts) -> None:
    monkeypatch.setattr(on_disk, "BATCH_ROWS", 50)
    log = log_of()
    bad = log.with_row_index().with_columns(
        [
            pl.when(pl.col("index") == 200).then(value).otherwise(pl.col(name)).alias(name)
            for name, value in change.items()
        ]
    )
    bad.drop("index").write_parquet(tmp_path / "log.parquet", row_group_size=64)
    refusal(
        lambda: shard_log(tmp_path / "log.parquet", tmp_path / "s", builder(), scale=(1, 5)), *parts
    )
    assert not (tmp_path / "s").exists()


def test_bad_files_are_one_line_and_leave_nothing(tmp_path: Path, refusal) -> None:
    log, path = log_of(), tmp_path / "log.parquet"
    call = lambda: shard_log(path, tmp_path / "s", builder())  # noqa: E731
    refusal(call, "no Parquet file")
    path.write_bytes(b"PAR1 nothing else")
    refusal(call, "log.parquet", "damaged")
    log.drop("rating").write_parquet(path)
    refusal(call, "missing column rating")
    log[:0].write_parquet(path)
    refusal(call, "empty")
    pl.concat([log, log[7:8]]).write_parquet(path)
    refusal(call, "rated twice", f"{log['user_id'][7]}, {log['item_id'][7]}")
    log.with_columns(rating=3).write_parquet(path)
    refusal(
        lambda: shard_log(path, tmp_path / "s", builder(UNIFORM.with_columns(rating=3))), "equal"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.parquet"]


def test_a_log_on_disk_wants_pairs_that_occur_once(tmp_path: Path, refusal) -> None:
    log_of().write_parquet(tmp_path / "log.parquet")
    given = {"logged": tmp_path / "log.parquet", "shards": tmp_path / "s"}
    refusal(lambda: load_dataset("files", **given, duplicates="first"), "occur once")
    assert load_dataset("files", **given).uniform is None


def test_a_skeleton_holds_every_id_and_no_pair_twice() -> None:
    for n_users, n_items in ((7, 3), (3, 7), (4, 4), (6, 4)):
        log = log_of(n_users, n_items)
        ids = (log[key].unique().sort() for key in ("user_id", "item_id"))
        skeleton = on_disk.skeleton(*ids, (1.0, 5.0))
        assert set(skeleton["user_id"]) == set(log["user_id"])
        assert set(skeleton["item_id"]) == set(log["item_id"])
        assert not skeleton.select("user_id", "item_id").is_duplicated().any()
        assert set(skeleton["rating"]) == {1.0, 5.0}
