"""Values and labels as they read on a page."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.features.bins import bin_side
from puidrec.report.page import as_number, bin_values, clip_text, finite, short_labels, show


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (None, "", "–"),
        (math.nan, ".2f", "–"),
        (math.inf, ".2f", "∞"),
        (-math.inf, "", "−∞"),
        (True, "", "yes"),
        (np.bool_(False), "", "no"),
        (1234567, "", "1,234,567"),
        (np.int64(7), "", "7"),
        (3, ".2f", "3.00"),
        (3.0, ",d", "3"),
        (-0.5, ".2f", "−0.50"),
        (-0.0001, ".2f", "0.00"),
        (0.0004, "p", "< 0.001"),
        (0.25, "p", "0.250"),
        (-0.0001, "+.2f", "0.00"),
        (0.25, "+.1f", "+0.2"),
        (0.123, ".1%", "12.3%"),
        (1e-9, "", "1e-09"),
        (-2.5e-9, "", "−2.5e-09"),
        (np.float32(0.5), ".1f", "0.5"),
        ("<b>", ".2f", "<b>"),
    ],
)
def test_values_read_as_they_should(value: object, spec: str, text: str) -> None:
    assert show(value, spec) == text


@given(st.floats(-1e6, 1e6))
def test_a_shown_number_is_the_number(value: float) -> None:
    assert float(show(value, ".6f").replace("−", "-")) == pytest.approx(value, abs=5.1e-7)


@pytest.mark.parametrize("value", [None, "1", True, np.bool_(True), math.nan])
def test_what_is_no_number(value: object) -> None:
    assert as_number(value) is None
    assert finite(value) is None


def test_infinity_sorts_but_cannot_be_drawn() -> None:
    assert as_number(math.inf) == math.inf
    assert finite(math.inf) is None


WORD = st.text("ab=, ·", min_size=1, max_size=4)


@given(st.text(max_size=60), st.integers(1, 40))
def test_clipped_text_fits_and_starts_as_before(text: str, width: int) -> None:
    short = clip_text(text, width)
    assert len(short) <= width
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@given(
    st.lists(
        st.tuples(st.sampled_from(["age", "a.b", "x="]), st.text("ab c", max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_values_are_read_back(parts: list[tuple[str, str]]) -> None:
    label = ", ".join(f"{name}={value}" for name, value in parts)
    assert bin_values(label, [name for name, _ in parts]) == tuple(value for _, value in parts)


def test_a_label_of_other_columns_stays_whole() -> None:
    assert bin_values("all", ("age",)) == ("all",)


def test_columns_in_which_all_agree_are_left_out() -> None:
    labels = ["a=1, b=x, c=p", "a=1, b=y, c=p", "a=1, b=y, c=q"]
    assert short_labels(labels, ("a", "b", "c")) == (["x · p", "y · p", "y · q"], ["b", "c"])
    assert short_labels(["a=1, b=x"], ("a", "b")) == (["1"], ["a"])


@given(st.lists(WORD, min_size=1, max_size=30, unique=True), st.integers(8, 20))
def test_short_labels_are_distinct_and_fit(values: list[str], width: int) -> None:
    long = [f"name={'prefix ' * 5}{value}" for value in values]
    for columns in (("name",), ()):
        short, _ = short_labels(long, columns, width)
        assert len(set(short)) == len(values)
        assert max(map(len, short)) <= width + 1


def test_labels_of_real_bins() -> None:
    import polars as pl

    frame = pl.DataFrame(
        {"user_id": range(80), "age": ["old", "young"] * 40, "sex": ["f"] * 40 + ["m"] * 40}
    )
    bins = bin_side(frame, id_column="user_id")
    assert short_labels(bins.labels, bins.columns)[0] == [
        "old · f",
        "old · m",
        "young · f",
        "young · m",
    ]
