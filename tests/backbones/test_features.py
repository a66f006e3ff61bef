import json

import numpy as np
import polars as pl
import pytest
import torch

from puidrec.backbones.features import CUT, FeatureEncoder
from puidrec.errors import InputError

TABLE = pl.DataFrame(
    {
        "item_id": [1, 2, 3, 4],
        "colour": ["red", "blue", None, "red"],
        "tags": pl.Series([["a", "b"], [], None, ["c", None, "a", "b"]], dtype=pl.List(pl.String)),
        "price": [1.0, 3.0, None, 5.0],
        "flat": [2.0, 2.0, 2.0, 2.0],
    }
)


def dense(design):
    return (design @ torch.eye(design.n_columns)).numpy()


def test_each_kind_of_column_by_hand():
    encoder = FeatureEncoder.fit(TABLE, "item_id")
    assert encoder.names == (
        *("colour=blue", "colour=red", "colour=missing", "tags=a", "tags=b", "tags=c"),
        *("price", "price is missing", "flat"),
    )
    expected = np.array(
        [
            [0, 1, 0, 1 / 2, 1 / 2, 0, -1, 0, 0],
            [1, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 1, 0, 0, 0, 0, 1, 0],
            [0, 1, 0, 1 / 3, 1 / 3, 1 / 3, 1, 0, 0],
        ]
    )
    np.testing.assert_allclose(dense(encoder.encode(TABLE)), expected, atol=1e-6)


def test_new_entities_with_unknown_values():
    encoder = FeatureEncoder.fit(TABLE, "item_id")
    new = pl.DataFrame(
        {"colour": ["green"], "tags": [["z"]], "price": [1e9], "flat": [None]}, schema=TABLE.drop("item_id").schema
    )
    row = dense(encoder.encode(new))[0]
    assert row[6] == CUT
    assert np.count_nonzero(row) == 1


def test_state_survives_json():
    encoder = FeatureEncoder.fit(TABLE, "item_id")
    again = FeatureEncoder.from_state(json.loads(json.dumps(encoder.state())))
    assert again == encoder
    np.testing.assert_array_equal(dense(again.encode(TABLE)), dense(encoder.encode(TABLE)))


def test_rows_and_power_match_the_matrix():
    design = FeatureEncoder.fit(TABLE, "item_id").encode(TABLE)
    matrix = dense(design)
    np.testing.assert_allclose(dense(design.rows(slice(1, 3))), matrix[1:3])
    np.testing.assert_allclose(design.column_power(), (matrix**2).mean(0), atol=1e-6)


def test_a_table_of_ids_only_has_no_columns():
    encoder = FeatureEncoder.fit(TABLE.select("item_id"), "item_id")
    assert encoder.encode(TABLE).n_columns == encoder.width == 0


def test_missing_columns_are_named():
    with pytest.raises(InputError, match="missing feature column tags"):
        FeatureEncoder.fit(TABLE, "item_id").encode(TABLE.drop("tags"))


def test_a_million_rows_of_one_hot_encode_fast():
    rng = np.random.default_rng(0)
    big = pl.DataFrame({"user_id": np.arange(200_000), "group": rng.integers(0, 50, 200_000).astype(str)})
    design = FeatureEncoder.fit(big, "user_id").encode(big)
    assert design.values.numel() == 200_000
