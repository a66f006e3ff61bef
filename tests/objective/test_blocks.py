import pytest
import torch

from puidrec.backbones import make_backbone
from puidrec.errors import InputError
from puidrec.objective.blocks import backward_in_blocks, user_blocks
from puidrec.objective.estimators import dr
from puidrec.objective.pointwise import pointwise_error
from puidrec.objective.terms import robust_mean


@pytest.mark.parametrize("max_pairs", [1, 7, 60, 10**6])
def test_blocks_cover_every_user_once_and_respect_the_limit(make_observed, max_pairs):
    observed, mask = make_observed(0)
    blocks = user_blocks(observed.pattern.crow, max_pairs)
    assert [u for start, stop in blocks for u in range(start, stop)] == list(range(len(mask)))
    for start, stop in blocks:
        assert stop == start + 1 or int(mask[start:stop].sum()) <= max_pairs


def test_gradient_in_blocks_is_the_gradient_of_all(make_observed):
    """An exact DR step: parameters behind the factors get the same gradient, whatever the blocks."""
    observed, mask = make_observed(0)
    phi, theta = (make_backbone("mf", *mask.shape, 4, rng=seed).double() for seed in (0, 1))
    error, other = pointwise_error("squared"), theta.factors().detach()
    whole = robust_mean(dr(observed, phi.factors(), other, error), observed.bounds, observed.n_pairs)
    whole.backward()
    expected = [p.grad.clone() for p in phi.parameters()]
    phi.zero_grad()

    def loss(start, stop, factors):
        part = observed.rows(start, stop)
        return robust_mean(dr(part, factors, other.rows(slice(start, stop)), error), part.bounds, observed.n_pairs)

    value = backward_in_blocks(phi.factors(), loss, user_blocks(observed.pattern.crow, 50))
    torch.testing.assert_close(value, whole.detach(), rtol=1e-12, atol=0)
    for parameter, gradient in zip(phi.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_factors_of_several_parts_are_refused(make_scores):
    scores = make_scores(0)
    with pytest.raises(InputError, match="one part"):
        backward_in_blocks(scores.minus(scores), lambda start, stop, f: f.tile().sum(), [(0, 3)])
