from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from puidrec.data.on_disk import Scratch
from puidrec.data.row_matrix import RowMatrix
from puidrec.methods.baselines import closed_form


@pytest.fixture
def dense() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random((40, 13)) < 0.3, rng.standard_normal((40, 13)), 0.0)


@pytest.fixture
def matrices(dense, tmp_path: Path) -> tuple[RowMatrix, RowMatrix]:
    """One matrix in one part, and in many with values on disk; a user without a value and one with
    many included."""
    dense[[0, 17, 39]] = 0.0
    dense[20] = np.arange(1.0, 14.0)
    whole = RowMatrix.of(sp.csr_matrix(dense))
    room = lambda: Scratch(tmp_path, whole.nnz)  # noqa: E731
    return whole, RowMatrix(
        whole.row_start, whole.item, whole.values, 13, max_pairs=9, scratch=room
    )


def test_parts_are_the_matrix(dense, matrices) -> None:
    for matrix in matrices:
        parts = list(matrix.parts())
        np.testing.assert_array_equal(
            np.concatenate([part.matrix.toarray() for part in parts]), dense
        )
        for part in parts:
            np.testing.assert_array_equal(dense[part.user, part.item], part.values)
    assert len(list(matrices[1].parts())) > 8


def test_sums_products_and_changes(dense, matrices) -> None:
    x, y = (
        np.random.default_rng(1).standard_normal((13, 2)),
        np.random.default_rng(2).standard_normal((40, 2)),
    )
    for matrix in matrices:
        np.testing.assert_allclose(matrix.operator @ x, dense @ x)
        np.testing.assert_allclose(matrix.operator.H @ y, dense.T @ y)
        np.testing.assert_allclose(matrix.operator @ x[:, 0], dense @ x[:, 0])
        np.testing.assert_array_equal(matrix.item_count, (dense != 0).sum(0))
        np.testing.assert_allclose(
            matrix.sum_by_item(lambda part: part.values**2), (dense**2).sum(0)
        )
        half = matrix.map(lambda part: part.values / 2)
        np.testing.assert_array_equal(half.operator @ np.eye(13), dense / 2)
        assert matrix.any()
        assert not matrix.map(lambda part: 0.0 * part.values).any()
        strength = svds(matrix.operator, k=3, return_singular_vectors=False)
        np.testing.assert_allclose(np.sort(strength), np.linalg.svd(dense)[1][2::-1])


@pytest.mark.parametrize("name", ["item-rate", "bias", "pure-svd"])
def test_closed_forms_do_not_know_how_the_matrix_is_cut(name, matrices) -> None:
    one, many = (closed_form(name, matrix, 3, 0).tile().numpy() for matrix in matrices)
    np.testing.assert_allclose(many, one, atol=1e-6)


def test_sums_and_numbers_by_user_of_parts_with_users_without_rows() -> None:
    dense = np.array([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    matrix = RowMatrix.of(sp.csr_matrix(dense))
    for one in (matrix, replace(matrix, max_pairs=2)):
        assert np.concatenate([part.sum_by_user(part.values) for part in one.parts()]).tolist() == [
            3.0,
            0.0,
            3.0,
            0.0,
        ]
        own = np.concatenate([part.of_users(np.arange(4.0)) for part in one.parts()])
        assert own.tolist() == [0.0, 0.0, 2.0]
    empty = RowMatrix.of(sp.csr_matrix((2, 3)))
    assert [part.sum_by_user(part.values).tolist() for part in empty.parts()] == [[0.0, 0.0]]
