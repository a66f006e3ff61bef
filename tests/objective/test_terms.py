import pytest
import torch

from puidrec.objective.estimators import dr, imputation, ips
from puidrec.objective.heads import HEADS
from puidrec.objective.pointwise import LOSSES, pointwise_error
from puidrec.objective.terms import Terms, dr_terms, ips_terms, robust_mean
from puidrec.objective.worst_case import Box


@pytest.mark.parametrize("normalise", [False, True])
def test_gamma_one_is_ips_and_dr(normalise):
    """a = b = 1/p: `eq:ips` and `eq:dr` by hand."""
    p = torch.tensor([0.5, 0.25], dtype=torch.float64)
    error, imputed = torch.tensor([1.0, 4.0]).double(), torch.tensor([2.0, 1.0]).double()
    box = Box.exactly(1 / p)
    total = float((1 / p).sum()) if normalise else 10.0
    assert float(robust_mean(ips_terms(error), box, 10, normalise=normalise)) == pytest.approx(18.0 / total)
    terms = dr_terms(error - imputed, torch.tensor(7.0).double())
    assert float(robust_mean(terms, box, 10, normalise=normalise)) == pytest.approx(0.7 + 10.0 / total)


def test_a_wider_box_never_lowers_the_loss(make_scores, make_observed):
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error("squared")
    losses = []
    for gamma in (1.0, 1.5, 3.0):
        observed, _ = make_observed(0, gamma=gamma)
        losses.append(robust_mean(dr(observed, phi, theta, error), observed.bounds, observed.n_pairs).item())
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("normalise", [False, True])
def test_gradient_is_that_of_the_maximum(make_scores, make_observed, normalise):
    """Danskin: weights held constant give the derivative of the robust loss itself (finite differences)."""
    observed, _ = make_observed(0)
    phi, error = make_scores(0), pointwise_error("squared")

    def loss():
        return robust_mean(ips(observed, phi, error), observed.bounds, observed.n_pairs, normalise=normalise)

    loss().backward()
    step = 1e-6 * torch.randn(phi.lefts[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slope = float((phi.lefts[0].grad * step).sum())
    with torch.no_grad():
        phi.lefts[0].add_(step)
        up = float(loss())
        phi.lefts[0].sub_(2 * step)
        down = float(loss())
    assert (up - down) / 2 == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("head", list(HEADS))
def test_benchmark_loss_is_zero_at_the_benchmark(make_scores, make_observed, loss, head, normalise):
    observed, _ = make_observed(0)
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error(loss, "signed")
    for terms in (
        ips(observed, phi, error),
        dr(observed, phi, theta, error, HEADS[head]),
        imputation(observed, phi, theta, error, HEADS[head]),
    ):
        value = robust_mean(terms.against(terms.detach()), observed.bounds, observed.n_pairs, normalise=normalise)
        assert abs(value.item()) < 1e-12


def test_benchmark_changes_the_worst_weights():
    """A pair that improved on the benchmark gets its smallest weight, one that got worse its largest."""
    box = Box(torch.tensor([1.0, 1.0]), torch.tensor([3.0, 5.0]))
    terms = Terms(torch.tensor(0.0), torch.tensor([1.0, 2.0])).against(
        Terms(torch.tensor(0.0), torch.tensor([4.0, 1.0]))
    )
    assert float(robust_mean(terms, box, 1)) == -3.0 * 1.0 + 1.0 * 5.0
