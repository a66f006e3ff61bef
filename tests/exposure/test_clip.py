import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from puidrec.errors import InputError
from puidrec.exposure.base import clip


def test_moves_what_is_outside_and_leaves_the_rest():
    p = np.array([0.0, 1e-12, 0.01, 0.5, 1.0, 1.5])
    np.testing.assert_array_equal(clip(p, 0.01), [0.01, 0.01, 0.01, 0.5, 1.0, 1.0])
    assert p[0] == 0.0, "the input stays as it was"


def test_nan_is_an_error_with_a_count():
    with pytest.raises(InputError, match="2 of 3 propensities are not a number"):
        clip(np.array([np.nan, 0.5, np.nan]), 0.1)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-0.1, 1.0), (0.5, 0.4), (0.1, 1.1), (float("nan"), 1.0)]
)
def test_limits_outside_the_unit_interval_are_refused(low, high):
    with pytest.raises(InputError, match="clipping limits"):
        clip(np.array([0.5]), low, high)


def test_nothing_in_nothing_out():
    assert clip(np.zeros(0), 0.1).size == 0


@given(arrays(np.float64, array_shapes(max_dims=1), elements=st.floats(-1, 2)), st.floats(1e-9, 1))
def test_values_end_inside_and_clipping_twice_moves_nothing(p, low):
    once = clip(p, low)
    assert ((once >= low) & (once <= 1)).all()
    np.testing.assert_array_equal(clip(once, low), once)
    inside = (p >= low) & (p <= 1)
    np.testing.assert_array_equal(once[inside], p[inside])
