import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from puidrec.errors import InputError
from puidrec.objective.pointwise import LOSSES, pointwise_error
from puidrec.objective.sharp import histogram_interval, signed_end, unseen_interval, worst_end


def extreme_mean(share, levels, gamma, sign):
    """min/max E[ℓ r] over likelihood ratios 1/Γ ≤ ℓ ≤ Γ with E[ℓ] = 1, as a linear program."""
    solved = linprog(sign * share * levels, A_eq=share[None], b_eq=[1.0], bounds=[(1 / gamma, gamma)] * len(levels))
    return sign * solved.fun


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(1.0, 20.0))
def test_interval_of_a_binary_rating_is_the_linear_program(q, gamma):
    share, levels = np.array([1 - q, q]), np.array([0.0, 1.0])
    low, high = unseen_interval(torch.tensor(q, dtype=torch.float64), gamma)
    assert float(low) == pytest.approx(extreme_mean(share, levels, gamma, 1), abs=1e-8)
    assert float(high) == pytest.approx(extreme_mean(share, levels, gamma, -1), abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any), st.floats(1.0, 20.0))
def test_histogram_interval_is_the_linear_program(counts, gamma):
    levels = np.linspace(0, 1, 5)
    share = np.array(counts) / sum(counts)
    low, high = histogram_interval(torch.tensor([counts]), torch.tensor(levels), gamma)
    assert float(low) == pytest.approx(extreme_mean(share, levels, gamma, 1), abs=1e-8)
    assert float(high) == pytest.approx(extreme_mean(share, levels, gamma, -1), abs=1e-8)


def test_histogram_interval_lies_within_the_interval_of_the_mean():
    counts = torch.tensor(np.random.default_rng(0).integers(1, 9, (50, 5)))
    levels = torch.linspace(0, 1, 5, dtype=torch.float64)
    gamma = torch.linspace(1, 5, 50)
    mean = (counts * levels).sum(1) / counts.sum(1)
    inner, outer = histogram_interval(counts, levels, gamma), unseen_interval(mean, gamma)
    assert (inner[0] >= outer[0] - 1e-7).all()
    assert (inner[1] <= outer[1] + 1e-7).all()
    assert (inner[0][1:] < mean[1:]).all()


def test_gamma_one_leaves_the_mean():
    q = torch.tensor([0.0, 0.3, 1.0])
    for end in (*unseen_interval(q, 1.0), signed_end(q, 1.0), signed_end(q, 1.0, liked=False)):
        torch.testing.assert_close(end, q)


def test_signed_end_bounds_the_interval():
    q = torch.linspace(0, 1, 11)
    low, high = unseen_interval(q, 2.0)
    assert (signed_end(q, 2.0) <= low + 1e-7).all()
    assert (signed_end(q, 2.0, liked=False) >= high - 1e-7).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_worst_end_is_worst_on_a_grid(loss):
    error = pointwise_error(loss, "unit")
    prediction = torch.linspace(-2, 3, 41)
    low, high = torch.full((41,), 0.2), torch.full((41,), 0.7)
    worst = error(prediction, worst_end(prediction, low, high, error))
    grid = torch.stack([error(prediction, torch.full((41,), m)) for m in np.linspace(0.2, 0.7, 30)])
    torch.testing.assert_close(worst, grid.max(0).values)


def test_levels_must_increase():
    with pytest.raises(InputError, match="increase"):
        histogram_interval(torch.ones(1, 2), torch.tensor([1.0, 0.0]), 2.0)
