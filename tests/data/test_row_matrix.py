from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

from puidrec.data import row_matrix
from puidrec.data.dataset import Dataset
from puidrec.data.on_disk import shard_log
from puidrec.data.row_matrix import (
    centred,
    entity_keys,
    item_count,
    leading_svd,
    row_hashes,
    user_blocks,
    with_values,
)


@pytest.fixture
def dense() -> np.ndarray:
    """Users without a value, and one with all."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((40, 13)) < 0.3, rng.standard_normal((40, 13)), 0.0)
    dense[[0, 17, 39]] = 0.0
    dense[20] = np.arange(1.0, 14.0)
    return dense


def test_values_change_and_pairs_stay(dense) -> None:
    matrix, there = sp.csr_array(dense), dense != 0
    np.testing.assert_array_equal(item_count(matrix), there.sum(0))
    np.testing.assert_array_equal(with_values(matrix, matrix.data / 2).toarray(), dense / 2)
    user, item = np.arange(40.0), np.arange(13.0) / 10
    less = np.where(there, dense - user[:, None] - item, 0.0)
    np.testing.assert_allclose(centred(matrix, user, item).toarray(), less)
    np.testing.assert_allclose(centred(matrix, 0.5).toarray(), np.where(there, dense - 0.5, 0.0))
    zeros = with_values(matrix, 0.0 * matrix.data)
    assert zeros.nnz == matrix.nnz, "values of 0 stay pairs"


def test_leading_directions_are_those_of_the_dense_matrix(dense) -> None:
    left, strength, right = leading_svd(sp.csr_array(dense), 3, np.ones(13))
    np.testing.assert_allclose(strength, np.linalg.svd(dense)[1][:3])
    np.testing.assert_allclose(dense @ right.T, left * strength, atol=1e-9)
    assert (right[np.arange(3), np.abs(right).argmax(1)] > 0).all()


def test_blocks_cover_all_users_and_keep_the_limit(dense) -> None:
    start = sp.csr_array(dense).indptr
    blocks = user_blocks(start, 9)
    assert [blocks[0][0], *(stop for _, stop in blocks)] == [
        0,
        *(first for first, _ in blocks[1:]),
        40,
    ]
    rows = [start[stop] - start[first] for first, stop in blocks]
    assert max(rows) == 13, "one user alone may exceed it"
    assert sorted(rows)[-2] <= 9


def test_hashes_do_not_know_how_many_users_are_looked_at_together(dense, monkeypatch) -> None:
    matrix = sp.csr_array(dense)
    keys, hashes = entity_keys(matrix, 3), row_hashes(matrix, 3)
    monkeypatch.setattr(row_matrix, "PAIRS", 9)
    for one, other in zip(keys, entity_keys(matrix, 3), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(row_hashes(matrix, 3), hashes)


def test_hashes_follow_rows_whatever_users_and_items_are_called(dense) -> None:
    rng = np.random.default_rng(1)
    users, items = rng.permutation(40), rng.permutation(13)
    hashes = with_values(sp.csr_array(dense), row_hashes(sp.csr_array(dense), 0).astype(float))
    moved = sp.csr_array(dense[users][:, items])
    own = with_values(moved, row_hashes(moved, 0).astype(float))
    np.testing.assert_array_equal(own.toarray(), hashes.toarray()[users][:, items])
    assert np.unique(hashes.data).size > 0.99 * hashes.nnz
    assert (row_hashes(sp.csr_array(dense), 1) != row_hashes(sp.csr_array(dense), 0)).all()


def test_the_matrix_of_a_log_on_disk_stays_there(tmp_path: Path) -> None:
    key = np.flatnonzero(np.random.default_rng(0).random(30 * 11) < 0.4)
    log = pl.DataFrame({"user_id": key // 11, "item_id": key % 11, "rating": key % 5 + 1})
    log.write_parquet(tmp_path / "log.parquet")
    data = shard_log(tmp_path / "log.parquet", tmp_path / "s", Dataset.from_frame)
    stored, memory = data.logged.to_matrix(), Dataset.from_frame(log).to_matrix()
    np.testing.assert_array_equal(stored.toarray(), memory.toarray())
    assert np.shares_memory(stored.indices, data.logged.item)
    assert np.shares_memory(stored.data, data.logged.rating)
    np.testing.assert_array_equal(row_hashes(stored, 0), row_hashes(memory, 0))
