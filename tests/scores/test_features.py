"""Matrices of features as tensors: products, rows and powers are those of the matrix."""

import numpy as np
import torch
from scipy import sparse

from puidrec.scores.features import Design


def dense(design):
    return (design @ torch.eye(design.n_columns)).numpy()


def test_rows_and_power_match_the_matrix():
    matrix = np.array([[0, 1.5, 0], [1, 0, 0], [0, 0, 0], [0.5, -1, 1]])
    design = Design.of(sparse.csr_array(matrix))
    assert (design.n_rows, design.n_columns) == matrix.shape
    np.testing.assert_allclose(dense(design), matrix)
    np.testing.assert_allclose(dense(design.rows(slice(1, 3))), matrix[1:3])
    np.testing.assert_allclose(design.column_power(), (matrix**2).mean(0), atol=1e-6)


def test_a_matrix_without_columns():
    assert Design.of(sparse.csr_array((4, 0))).n_columns == 0
