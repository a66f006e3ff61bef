import pytest
import torch

from puidrec.errors import InputError
from puidrec.scores.low_rank import LowRank


def test_algebra_agrees_with_matrices(make_scores):
    s, t = make_scores(0, 3), make_scores(1, 4)
    a, b = torch.rand(s.n_users, dtype=torch.float64), torch.rand(s.n_items, dtype=torch.float64)
    torch.testing.assert_close(s.minus(t).tile(), s.tile() - t.tile())
    torch.testing.assert_close(s.scaled(a, b).tile(), a[:, None] * s.tile() * b)
    torch.testing.assert_close(s.tile(slice(3, 5), slice(1, 4)), s.tile()[3:5, 1:4])
    assert not s.detach().tile().requires_grad
    assert s.n_pairs == s.n_users * s.n_items


def test_factors_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="fit together"):
        LowRank.of(torch.zeros(3, 2), torch.zeros(4, 3))
    with pytest.raises(InputError, match="fit together"):
        LowRank((torch.zeros(3, 2), torch.zeros(4, 2)), (torch.zeros(5, 2), torch.zeros(5, 2)))


def test_columns_of_zeros_are_left_out_and_a_nan_is_not() -> None:
    left, right = torch.ones(3, 3), torch.ones(4, 3)
    right[:, 1] = 0.0
    right[2, 2] = float("nan")
    found = LowRank.of(left, right).without_zeros()
    assert found.rights[0].shape == (4, 2)
    torch.testing.assert_close(found.tile(), LowRank.of(left, right).tile(), equal_nan=True)
