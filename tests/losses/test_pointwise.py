"""Errors of single pairs: known values, numeric derivatives, and bounds of their curvature."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.losses.pair_loss import LOSSES, WIDTH, AbsoluteError, pointwise_error

REAL = st.floats(-30, 30)
ERRORS = {
    "squared": pointwise_error("squared"),
    "absolute": pointwise_error("absolute"),
    "cross-entropy": pointwise_error("cross-entropy", "unit"),
    "cross-entropy, signed": pointwise_error("cross-entropy", "signed"),
}


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_known_values():
    assert ERRORS["squared"].value(scalar(3.0), scalar(1.0)) == 4.0
    assert ERRORS["absolute"].value(scalar(-3.0), scalar(1.0)) == 4.0
    assert ERRORS["cross-entropy"].value(scalar(0.0), scalar(1.0)) == pytest.approx(
        0.6931471805599453
    )


@given(logit=REAL, label=st.booleans())
def test_cross_entropy_is_bernoulli_log_likelihood(logit, label):
    chance = torch.sigmoid(scalar(logit if label else -logit))
    unit = ERRORS["cross-entropy"].value(scalar(logit), scalar(float(label)))
    signed = ERRORS["cross-entropy, signed"].value(scalar(logit), scalar(1.0 if label else -1.0))
    assert float(unit) == pytest.approx(float(-chance.log()), rel=1e-9, abs=1e-9)
    assert float(signed) == pytest.approx(float(unit), rel=1e-9, abs=1e-9)


def test_cross_entropy_does_not_overflow():
    error = ERRORS["cross-entropy, signed"]
    assert torch.isfinite(error.value(torch.tensor([1e4, -1e4]), torch.tensor([-1.0, 1.0]))).all()


@pytest.mark.parametrize("key", ERRORS)
def test_slope_and_minimum(key):
    error, h = ERRORS[key], 1e-6
    score = torch.tensor([-1.3, 0.2, 2.0], dtype=torch.float64)
    target = error.to_target(torch.tensor([0.4, -0.7, 1.1], dtype=torch.float64))
    numeric = (error.value(score + h, target) - error.value(score - h, target)) / (2 * h)
    torch.testing.assert_close(error.parts(score, target).slope, numeric, rtol=1e-6, atol=1e-8)
    own = error.to_target(score)
    best = error.value(score, own)
    assert (error.value(score + 0.1, own) > best).all()
    assert (error.value(score - 0.1, own) > best).all()


@pytest.mark.parametrize("key", ERRORS)
@given(score=st.floats(-4, 4), goal=st.floats(-2, 2), step=st.floats(-5, 5))
def test_a_parabola_of_this_curvature_is_above_the_error(key, score, goal, step):
    error, s = ERRORS[key], scalar(score)
    target = error.to_target(scalar(goal))
    parabola = (
        error.value(s, target)
        + error.parts(s, target).slope * step
        + 0.5 * error.parts(s, target).curvature * step**2
    )
    assert float(parabola - error.value(s + step, target)) > -1e-10


@given(REAL | st.floats(-2 * WIDTH, 2 * WIDTH))
def test_rounding_is_above_a_bend_by_half_the_width_at_most(x):
    gap = float(AbsoluteError().value(scalar(x), scalar(0.0))) - abs(x)
    assert -1e-12 <= gap <= 0.5 * WIDTH + 1e-12
    assert abs(x) < WIDTH or gap == pytest.approx(0.0, abs=1e-12)


def test_unknown_loss_names_the_choices():
    with pytest.raises(InputError, match="squared, absolute, cross-entropy"):
        pointwise_error("hinge")
    assert LOSSES == ("squared", "absolute", "cross-entropy")
