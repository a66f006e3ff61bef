from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puidrec.features.bins import correlation_groups, pearson, select_representatives


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), hidden=st.floats(0, 0.4), offset=st.sampled_from([0.0, 1e6]))
def test_correlations_are_those_of_pandas(seed: int, hidden: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 5)) + offset
    values[rng.random(values.shape) < hidden] = np.nan
    names, r = pearson(pl.DataFrame(values, schema=list("abcde")))
    assert names == list("abcde")
    np.testing.assert_allclose(r, pd.DataFrame(values).corr(), atol=1e-8)


def test_constant_columns_correlate_with_nothing() -> None:
    frame = pl.DataFrame(
        {"a": [1.0, 2, 3], "b": [5.1, 5.1, 5.1], "c": [None, None, None]},
        schema_overrides={"c": pl.Float64},
    )
    _, r = pearson(frame)
    np.testing.assert_array_equal(r, np.diag([1.0, 0, 0]))


def test_groups_chain_ignore_signs_and_text() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 500))
    frame = pl.DataFrame(
        {
            "a": x,
            "t": ["k"] * 500,
            "b": -x + 0.3 * y,
            "c": -x + 0.6 * y,
            "alone": rng.standard_normal(500),
        }
    )
    _, r = pearson(frame)
    assert abs(r[0, 2]) < 0.9 < abs(r[1, 2])
    assert correlation_groups(frame, 0.9) == [["a", "b", "c"]]
    assert correlation_groups(frame, 0.99) == []
    assert select_representatives(frame, 0.9) == ["a", "t", "alone"]
    assert select_representatives(frame, 0.9, prefer=["alone", "c", "b"]) == ["t", "c", "alone"]


def test_no_numbers_no_groups() -> None:
    frame = pl.DataFrame({"t": ["a", "b"]})
    assert correlation_groups(frame, 0.5) == []
    assert select_representatives(frame, 0.5) == ["t"]


def test_wrong_arguments(refusal) -> None:
    frame = pl.DataFrame({"a": [1.0, 2.0]})
    for threshold in (-0.1, 1.0, float("nan")):
        refusal(lambda t=threshold: correlation_groups(frame, t), "threshold")
    refusal(lambda: select_representatives(frame, 0.5, ["z"]), "column 'z'")


@pytest.mark.parametrize("threshold", [0.7, 0.9])
def test_representatives_are_not_redundant(threshold: float) -> None:
    rng = np.random.default_rng(1)
    base = rng.standard_normal((300, 6))
    values = np.hstack([base, base + rng.uniform(0.1, 2, 6) * rng.standard_normal((300, 6))])
    frame = pl.DataFrame(values)
    kept = select_representatives(frame, threshold)
    assert correlation_groups(frame.select(kept), threshold) == []
