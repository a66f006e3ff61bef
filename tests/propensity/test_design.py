import numpy as np
import polars as pl

from puidrec.propensity.design import MAX_LEVELS, design_matrix


def test_each_kind_of_column_becomes_the_right_columns():
    frame = pl.DataFrame(
        {
            "user_id": [1, 2, 3, 4],
            "sex": ["f", "m", None, "f"],
            "age": [20.0, 40.0, None, 30.0],
            "likes": [["a", "b"], ["b", "b"], [], None],
            "constant": [5.0, 5.0, 5.0, 5.0],
        }
    )
    z = 10 / np.std([20, 40, 30, 30])
    expected = [[1, 0, -z, 0, 1, 1], [0, 1, z, 0, 0, 1], [0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    np.testing.assert_allclose(design_matrix(frame, "user_id").toarray(), expected)


def test_no_features_is_none():
    assert design_matrix(None, "user_id") is None
    assert design_matrix(pl.DataFrame({"user_id": [1, 2]}), "user_id") is None
    assert design_matrix(pl.DataFrame({"user_id": [1, 2], "x": ["a", "a"]}), "user_id") is None


def test_only_frequent_levels_get_a_column():
    values = [f"rare {k}" for k in range(3 * MAX_LEVELS)] + ["often"] * 5
    frame = pl.DataFrame({"item_id": range(len(values)), "tag": values})
    design = design_matrix(frame, "item_id")
    assert design.shape == (len(values), MAX_LEVELS)
    assert design.sum(axis=0).max() == 5


def test_all_missing_numbers_add_nothing():
    frame = pl.DataFrame({"user_id": [1, 2], "x": pl.Series([None, None], dtype=pl.Float64), "y": ["a", "b"]})
    assert design_matrix(frame, "user_id").shape == (2, 2)
