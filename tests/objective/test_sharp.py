import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from puidrec.objective.sharp import unseen_interval, worst_square
from scipy.optimize import linprog

from puidrec.losses.signed import unseen_scores
from puidrec.scores.low_rank import LowRank


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


def low_rank(q):
    """A column of q as scores of one item."""
    return LowRank.of(q[:, None], torch.ones(1, 1, dtype=q.dtype))


def signed(q, gamma, *, liked=True):
    log = torch.full_like(q, float(np.log(gamma)))
    return unseen_scores(low_rank(q), log, torch.zeros(1), liked=liked).tile()[:, 0]


def test_gamma_one_leaves_the_mean():
    q = torch.tensor([0.0, 0.3, 1.0])
    for end in (*unseen_interval(q, 1.0), signed(q, 1.0), signed(q, 1.0, liked=False)):
        torch.testing.assert_close(end, q)


def test_signed_means_by_hand():
    q = torch.tensor([0.0, 0.4, 1.0])
    torch.testing.assert_close(signed(q, 2.0), q / 2)
    torch.testing.assert_close(signed(q, 2.0, liked=False), 1 - (1 - q) / 2)


def test_signed_means_bound_the_interval():
    q = torch.linspace(0, 1, 11)
    low, high = unseen_interval(q, 2.0)
    assert (signed(q, 2.0) <= low + 1e-7).all()
    assert (signed(q, 2.0, liked=False) >= high - 1e-7).all()


def test_the_worst_square_is_the_worst_on_a_grid():
    prediction, q = torch.linspace(-2, 3, 41), torch.full((41,), 0.4)
    low, high = unseen_interval(q[:1], 1.7)
    grid = torch.stack([(prediction - m).square() for m in np.linspace(float(low), float(high), 30)])
    torch.testing.assert_close(worst_square(prediction, q, 1.7), grid.max(0).values)
