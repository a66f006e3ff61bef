"""Rows left out of a log on disk are those left out of one in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.data import on_disk
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import KeptColumn, KeptRows, Scratch, row_slices, shard_log
from puidrec.data.protocol import get_protocol


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "CHUNK", 16)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Dataset, Dataset]:
    """The same log in memory and on disk."""
    rng = np.random.default_rng(0)
    key = rng.permutation(np.flatnonzero(rng.random(30 * 11) < 0.4))
    log = pl.DataFrame({"user_id": key // 11, "item_id": key % 11, "rating": rng.integers(1, 6, key.size)})
    log.write_parquet(tmp_path / "log.parquet")
    return Dataset.from_frame(log), shard_log(tmp_path / "log.parquet", tmp_path / "s", Dataset.from_frame)


def frame(rows) -> pl.DataFrame:
    """All rows, wherever they are."""
    return pl.DataFrame({name: np.asarray(getattr(rows, name)) for name in ("user", "item", "rating")})


@given(st.lists(st.booleans(), max_size=80), st.data())
def test_a_column_is_the_array_without_what_is_left_out(mask, data) -> None:
    values, kept = np.arange(100, 100 + len(mask)), np.array(mask, bool)
    column = KeptColumn(values, KeptRows.of(kept[rows] for rows in row_slices(kept.size)))
    expected = values[kept]
    assert (len(column), column.shape) == (expected.size, expected.shape)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, expected.size)] * 2)))
    np.testing.assert_array_equal(column[start:stop], expected[start:stop])
    np.testing.assert_array_equal(np.asarray(column), expected)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, max(expected.size - 1, 0))))), np.int64)
    if expected.size:
        np.testing.assert_array_equal(column[chosen], expected[chosen])


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
    labelled, expected = (rows.without(again).labelled(get_protocol("paper")) for rows in (less, more))
    assert len(expected) < len(more) - again.size  # three stars are dropped
    assert frame(labelled).equals(frame(expected))
    np.testing.assert_array_equal(labelled.label, expected.label)
    assert labelled.part(slice(3, 20)).frame.equals(expected.frame[3:20].select("user", "item", "rating", "label"))


def test_nothing_is_marked_where_nothing_goes(both) -> None:
    assert both[1].logged.labelled(get_protocol("rd")).kept is None


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
