import numpy as np
import polars as pl
import pytest

from puidrec.errors import InputError
from puidrec.features.counts import ExposureCounts
from puidrec.features.stream import counts_from_parquet

USER_BIN, ITEM_BIN = np.arange(50, dtype=np.int32) % 4, np.arange(30, dtype=np.int32) % 3


@pytest.fixture
def log():
    seen = np.random.default_rng(0).random((50, 30)) < 0.3
    user, item = (codes.astype(np.int32) for codes in np.nonzero(seen))
    return pl.DataFrame({"user_id": user, "item_id": item, "rating": np.ones(user.size)})


def same(counts, log):
    direct = ExposureCounts.from_pairs(log["user_id"].to_numpy(), log["item_id"].to_numpy(), USER_BIN, ITEM_BIN)
    assert np.array_equal(counts.by_item, direct.by_item)
    assert np.array_equal(counts.user_degree, direct.user_degree)


@pytest.mark.parametrize("batch_rows", [7, 1000])
def test_parts_and_batches_equal_the_log_in_memory(tmp_path, log, batch_rows):
    folder = tmp_path / "logged"
    folder.mkdir()
    log[:100].write_parquet(folder / "part-0.parquet")
    log[100:].write_parquet(folder / "part-1.parquet", row_group_size=50)
    same(counts_from_parquet(folder, USER_BIN, ITEM_BIN, batch_rows=batch_rows), log)
    same(counts_from_parquet(sorted(folder.iterdir()), USER_BIN, ITEM_BIN, batch_rows=batch_rows), log)


def test_ids_of_any_type_are_mapped(tmp_path, log):
    users, items = pl.Series([f"u{k:03d}" for k in range(50)]), pl.Series(np.arange(30) * 10 + 5)
    named = log.with_columns(user_id=users.gather(log["user_id"]), item_id=items.gather(log["item_id"]))
    named.write_parquet(tmp_path / "log.parquet")
    call = {"user_ids": users, "item_ids": items, "batch_rows": 64}
    same(counts_from_parquet(tmp_path / "log.parquet", USER_BIN, ITEM_BIN, **call), log)
    with pytest.raises(InputError, match="unknown id"):
        counts_from_parquet(tmp_path / "log.parquet", USER_BIN, ITEM_BIN, user_ids=users[:-1], item_ids=items)
    with pytest.raises(InputError, match="no codes"):
        counts_from_parquet(tmp_path / "log.parquet", USER_BIN, ITEM_BIN)


def test_bad_files_are_refused_in_one_line(tmp_path, log):
    path = tmp_path / "log.parquet"
    with pytest.raises(InputError, match="no Parquet file"):
        counts_from_parquet(path, USER_BIN, ITEM_BIN)
    with pytest.raises(InputError, match="no Parquet file"):
        counts_from_parquet([], USER_BIN, ITEM_BIN)
    path.write_bytes(b"not parquet")
    with pytest.raises(InputError, match="cannot read"):
        counts_from_parquet(path, USER_BIN, ITEM_BIN)
    log.drop("item_id").write_parquet(path)
    with pytest.raises(InputError, match="missing column"):
        counts_from_parquet(path, USER_BIN, ITEM_BIN)
    log.with_columns(user_id=pl.lit(None, pl.Int32)).write_parquet(path)
    with pytest.raises(InputError, match="missing id"):
        counts_from_parquet(path, USER_BIN, ITEM_BIN)
    log.with_columns(user_id=pl.lit(50, pl.Int32)).write_parquet(path)
    with pytest.raises(InputError, match="out of range"):
        counts_from_parquet(path, USER_BIN, ITEM_BIN)
