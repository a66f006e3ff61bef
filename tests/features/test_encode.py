"""Every encoding of side tables by hand: for backbones, propensities, regressions on bins, and
single features."""

import json

import numpy as np
import polars as pl
import pytest

from puidrec.errors import InputError
from puidrec.features.encode import (
    CUT,
    DESIGN_BINS,
    MAX_LEVELS,
    MISSING,
    FeatureEncoder,
    binned_design,
    exposure_design,
    feature_codes,
)

TABLE = pl.DataFrame(
    {
        "item_id": [1, 2, 3, 4],
        "colour": ["red", "blue", None, "red"],
        "tags": pl.Series([["a", "b"], [], None, ["c", None, "a", "b"]], dtype=pl.List(pl.String)),
        "price": [1.0, 3.0, None, 5.0],
        "flat": [2.0, 2.0, 2.0, 2.0],
    }
)


def test_each_kind_of_column_by_hand():
    encoder = FeatureEncoder.fit(TABLE, "item_id")
    assert [(column.name, column.width) for column in encoder.columns] == [
        ("colour", 3),
        ("tags", 3),
        ("price", 2),
        ("flat", 1),
    ]
    assert [column.vocabulary for column in encoder.columns[:2]] == [
        ("blue", "red", MISSING),
        ("a", "b", "c"),
    ]
    expected = np.array(
        [
            [0, 1, 0, 1 / 2, 1 / 2, 0, -1, 0, 0],
            [1, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 1, 0, 0, 0, 0, 1, 0],
            [0, 1, 0, 1 / 3, 1 / 3, 1 / 3, 1, 0, 0],
        ]
    )
    np.testing.assert_allclose(encoder.encode(TABLE).toarray(), expected, atol=1e-6)


def test_new_entities_with_unknown_values():
    encoder = FeatureEncoder.fit(TABLE, "item_id")
    new = pl.DataFrame(
        {"colour": ["green"], "tags": [["z"]], "price": [1e9], "flat": [None]},
        schema=TABLE.drop("item_id").schema,
    )
    row = encoder.encode(new).toarray()[0]
    assert row[6] == CUT
    assert np.count_nonzero(row) == 1


def test_state_survives_json():
    encoder = FeatureEncoder.fit(TABLE, "item_id")
    again = FeatureEncoder.from_state(json.loads(json.dumps(encoder.state())))
    assert again == encoder
    np.testing.assert_array_equal(again.encode(TABLE).toarray(), encoder.encode(TABLE).toarray())


def test_a_table_of_ids_only_has_no_columns():
    encoder = FeatureEncoder.fit(TABLE.select("item_id"), "item_id")
    assert encoder.encode(TABLE).shape == (4, 0)
    assert encoder.width == 0


def test_missing_columns_are_named():
    with pytest.raises(InputError, match="missing feature column tags"):
        FeatureEncoder.fit(TABLE, "item_id").encode(TABLE.drop("tags"))


def test_a_million_rows_of_one_hot_encode_fast():
    rng = np.random.default_rng(0)
    big = pl.DataFrame(
        {"user_id": np.arange(200_000), "group": rng.integers(0, 50, 200_000).astype(str)}
    )
    design = FeatureEncoder.fit(big, "user_id").encode(big)
    assert design.nnz == 200_000


def test_each_kind_of_column_explains_exposure():
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
    np.testing.assert_allclose(exposure_design(frame, "user_id").toarray(), expected)


def test_no_features_is_none():
    assert exposure_design(None, "user_id") is None
    assert exposure_design(pl.DataFrame({"user_id": [1, 2]}), "user_id") is None
    assert exposure_design(pl.DataFrame({"user_id": [1, 2], "x": ["a", "a"]}), "user_id") is None


def test_only_frequent_levels_get_a_column():
    values = [f"rare {k}" for k in range(3 * MAX_LEVELS)] + ["often"] * 5
    frame = pl.DataFrame({"item_id": range(len(values)), "tag": values})
    design = exposure_design(frame, "item_id")
    assert design.shape == (len(values), MAX_LEVELS)
    assert design.sum(axis=0).max() == 5


def test_all_missing_numbers_add_nothing():
    frame = pl.DataFrame(
        {"user_id": [1, 2], "x": pl.Series([None, None], dtype=pl.Float64), "y": ["a", "b"]}
    )
    assert exposure_design(frame, "user_id").shape == (2, 2)


def test_binned_design_holds_bins_and_standardised_numbers():
    values = np.arange(40.0)
    frame = pl.DataFrame({"user_id": np.arange(40), "x": values, "sex": ["f", "m"] * 20})
    design = binned_design(frame, "user_id")
    assert design.shape == (40, DESIGN_BINS - 1 + 1 + 1)
    np.testing.assert_allclose(
        design[:, DESIGN_BINS - 1], (values - values.mean()) / values.std(ddof=1)
    )
    assert set(design[:, -1]) == {0.0, 1.0}
    assert (
        design[:, : DESIGN_BINS - 1].sum(axis=1) == (values >= 5)
    ).all()  # the first bin has no column
    assert (
        binned_design(frame.select("user_id"), "user_id") is binned_design(None, "user_id") is None
    )


def test_feature_codes_split_values_and_drop_what_does_not_vary():
    names, codes = feature_codes(TABLE, "item_id")
    assert names == ("colour", "tags=a", "tags=b", "tags=c", "price")
    assert codes[1].tolist() == [1, 0, 0, 1] or codes[1].tolist() == [0, 1, 1, 0]
    wide = pl.DataFrame({"id": [1, 2, 3], "job": ["a", "b", "c"]})
    assert feature_codes(wide, "id")[0] == ("job=a", "job=b", "job=c")
    with pytest.raises(InputError, match="no feature varies"):
        feature_codes(pl.DataFrame({"id": [1, 2], "flat": [1.0, 1.0]}), "id")
