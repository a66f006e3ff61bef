import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from puidrec.propensity.calibration import calibrating_shift


@given(st.integers(0, 1000), st.floats(1e-6, 0.999), st.floats(0.1, 8.0))
def test_the_shift_meets_the_total(seed, share, spread):
    random = np.random.default_rng(seed)
    log_odds, pairs = random.normal(-3, spread, (5, 4)), random.uniform(1, 1e6, (5, 4))
    wanted = share * pairs.sum()
    shift = calibrating_shift(log_odds, pairs, wanted)
    assert (pairs * expit(log_odds + shift)).sum() == pytest.approx(wanted, rel=1e-9)


def test_a_calibrated_table_is_left_alone():
    log_odds, pairs = np.array([-1.0, 2.0]), np.array([10.0, 30.0])
    assert calibrating_shift(log_odds, pairs, float((pairs * expit(log_odds)).sum())) == pytest.approx(0, abs=1e-12)
