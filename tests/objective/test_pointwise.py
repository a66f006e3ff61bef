import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from puidrec.errors import InputError
from puidrec.losses.pointwise import ERRORS, LOSSES, pointwise_error

REAL = st.floats(-30, 30)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_known_values():
    assert pointwise_error("squared")(scalar(3.0), scalar(1.0)) == 4.0
    assert pointwise_error("absolute")(scalar(-3.0), scalar(1.0)) == 4.0
    assert pointwise_error("cross-entropy", "unit")(scalar(0.0), scalar(1.0)) == pytest.approx(0.6931471805599453)


@given(logit=REAL, label=st.booleans())
def test_cross_entropy_is_bernoulli_log_likelihood(logit, label):
    chance = torch.sigmoid(scalar(logit if label else -logit))
    unit = pointwise_error("cross-entropy", "unit")(scalar(logit), scalar(float(label)))
    signed = pointwise_error("cross-entropy", "signed")(scalar(logit), scalar(1.0 if label else -1.0))
    assert float(unit) == pytest.approx(float(-chance.log()), rel=1e-9, abs=1e-9)
    assert float(signed) == pytest.approx(float(unit), rel=1e-9, abs=1e-9)


def test_cross_entropy_does_not_overflow():
    error = pointwise_error("cross-entropy", "signed")
    assert torch.isfinite(error(torch.tensor([1e4, -1e4]), torch.tensor([-1.0, 1.0]))).all()


@pytest.mark.parametrize("key", list(ERRORS))
def test_gradient_and_minimum(key):
    error = ERRORS[key]
    score = torch.tensor([-1.3, 0.2, 2.0], dtype=torch.float64, requires_grad=True)
    target = error.to_target(torch.tensor([0.4, -0.7, 1.1], dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: error(x, target), (score,))
    own = error.to_target(score.detach())
    best = error(score.detach(), own)
    assert (error(score.detach() + 0.1, own) > best).all()
    assert (error(score.detach() - 0.1, own) > best).all()


@pytest.mark.parametrize("key", list(ERRORS))
def test_gap_is_the_difference_of_two_errors(key):
    error = ERRORS[key]
    prediction, target, label = (torch.linspace(a, b, 9, dtype=torch.float64) for a, b in ((-2, 2), (1, -1), (0, 1)))
    expected = error(prediction, target) - error(prediction, label)
    torch.testing.assert_close(error.gap(prediction, target, label), expected)


def test_unknown_loss_names_the_choices():
    with pytest.raises(InputError, match="squared, absolute, cross-entropy"):
        pointwise_error("hinge")
    assert LOSSES == ("squared", "absolute", "cross-entropy")
