import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from puidrec.errors import InputError
from puidrec.exposure.bounds import Bounds, bounds

propensities = hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(1e-12, 1.0))
gammas = st.floats(1.0, 1e6)


@given(p=propensities, gamma=gammas)
def test_the_interval_holds_the_nominal_weight(p, gamma):
    box = bounds(p, gamma)
    assert np.all(box.a <= 1 / p * (1 + 1e-12))
    assert np.all(1 / p <= box.b * (1 + 1e-12))
    assert np.all(box.a >= 1)
    assert box.contains(1 / p).all()


@given(p=hnp.arrays(np.float64, 5, elements=st.floats(1e-6, 1 - 1e-6)), gamma=st.floats(1.0, 1e3))
def test_ends_meet_the_odds_ratio_inequality_with_equality(p, gamma):
    box = bounds(p, gamma)
    for weight, ratio in ((box.a, gamma), (box.b, 1 / gamma)):
        odds_true, odds_nominal = 1 / (weight - 1), p / (1 - p)
        assert np.allclose(odds_true / odds_nominal, ratio, rtol=1e-6)


@given(p=propensities)
def test_gamma_one_collapses_to_the_inverse_propensity(p):
    box = bounds(p, 1.0)
    assert np.array_equal(box.a, box.b)
    assert np.allclose(box.a, 1 / p, rtol=1e-12)


@given(p=propensities, gamma=gammas, more=st.floats(1.0, 10.0))
def test_a_larger_gamma_only_widens(p, gamma, more):
    inner, outer = bounds(p, gamma), bounds(p, gamma * more)
    assert np.all(outer.a <= inner.a)
    assert np.all(outer.b >= inner.b)


def test_one_gamma_per_pair():
    box = bounds(np.array([0.5, 0.2]), np.array([1.0, 4.0]))
    assert box.a.tolist() == [2.0, 2.0]
    assert box.b.tolist() == [2.0, 17.0]
    assert np.log(box.b / box.a) == pytest.approx([0.0, np.log(8.5)])


@pytest.mark.parametrize(
    ("p", "gamma", "message"),
    [
        ([0.5, 0.2, 0.1], [1.0, 0.9, 0.4], "Γ in 2 of 3 pairs.*smallest 0.4"),
        ([0.5], 0.99, "Γ in 1 of 1"),
        ([0.5, 0.5], [np.nan, 1.0], "Γ in 1 of 2.*NaN"),
        ([0.5], np.inf, "Γ"),
        ([0.0, -1.0, 0.5], 2.0, "propensity in 2 of 3 pairs.*smallest -1"),
        ([1.5], 2.0, "propensity"),
        ([np.nan, 0.5], 2.0, "propensity in 1 of 2.*NaN"),
        ([0.5, 0.5], [1.0], "one Γ per propensity"),
    ],
)
def test_invalid_input_is_refused_with_count_and_size(p, gamma, message):
    with pytest.raises(InputError, match=message):
        bounds(np.array(p), np.array(gamma))


@pytest.mark.parametrize(
    ("a", "b"),
    [([2.0], [1.5]), ([0.5], [2.0]), ([np.nan], [2.0]), ([1.0], [np.inf]), ([1.0, 2.0], [3.0])],
)
def test_an_invalid_box_cannot_exist(a, b):
    with pytest.raises(InputError):
        Bounds(np.array(a), np.array(b))
