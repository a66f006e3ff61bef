"""Values and labels as they read on a page."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puidrec.report.page import as_number, clip_text, finite, show


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


@given(st.text(max_size=60), st.integers(1, 40))
def test_clipped_text_fits_and_starts_as_before(text: str, width: int) -> None:
    short = clip_text(text, width)
    assert len(short) <= width
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))
