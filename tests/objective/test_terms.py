import numpy as np
import pytest
import torch
from puidrec.objective.terms import Alternating, Observed, Terms, dr, dr_terms, imputation, ips, ips_terms, robust_mean

from puidrec.errors import InputError
from puidrec.losses.pair_loss import HEADS
from puidrec.losses.pointwise import LOSSES, pointwise_error
from puidrec.losses.worst_case import Box
from puidrec.scores import make_backbone
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import LogPattern


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


def dense(observed, mask, values):
    full = torch.zeros(mask.shape, dtype=values.dtype)
    full[mask] = values
    return full


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", LOSSES)
def test_dr_loss_and_gradient_equal_brute_force_over_all_pairs(make_scores, make_observed, loss, dtype):
    """`eq:puid-dr` written out over D with a dense mask."""
    observed, mask = make_observed(0, dtype=dtype)
    phi, theta, error = make_scores(0, dtype=dtype), make_scores(1, dtype=dtype), pointwise_error(loss, "signed")
    value = robust_mean(dr(observed, phi, theta, error), observed.bounds, observed.n_pairs)
    target, a, b = (dense(observed, mask, x).double() for x in (observed.target, *observed.bounds))
    r, g = phi.tile().double(), theta.detach().tile().double()
    imputed = error(r, error.to_target(g))
    coef = error(r, target) - imputed
    brute = (imputed + mask * coef * torch.where(coef.detach() >= 0, b, a)).mean()
    factors = [*phi.lefts, *phi.rights]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    assert float(value.detach()) == pytest.approx(float(brute.detach()), rel=tolerance)
    for mine, theirs in zip(torch.autograd.grad(value, factors), torch.autograd.grad(brute, factors), strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < tolerance


@pytest.mark.parametrize("head", list(HEADS))
def test_the_step_of_phi_leaves_theta_alone(make_scores, make_observed, head):
    observed, _ = make_observed(0)
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error("squared")
    known = observed.scores(theta)
    for output in (None, known):
        terms = dr(observed, phi, theta, error, HEADS[head], output=output)
        robust_mean(terms, observed.bounds, observed.n_pairs).backward()
    assert theta.lefts[0].grad is None
    assert phi.lefts[0].grad.abs().sum() > 0


@pytest.mark.parametrize("head", list(HEADS))
def test_imputation_loss_is_over_the_log_and_trains_theta_only(make_scores, make_observed, head):
    """`eq:puid-dr-imp`."""
    observed, mask = make_observed(0)
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error("squared")
    terms = imputation(observed, phi, theta, error, HEADS[head])
    r, g = phi.tile()[mask].detach(), theta.tile()[mask]
    mismatch = {
        "label": g - observed.target,
        "label-squared": (r - g) ** 2 - (r - observed.target) ** 2,
        "residual": g - (observed.target - r),
        "direct": g - (r - observed.target) ** 2,
    }[head]
    torch.testing.assert_close(terms.coef, mismatch**2)
    robust_mean(terms, observed.bounds, len(observed.pattern)).backward()
    assert phi.lefts[0].grad is None
    assert theta.lefts[0].grad.abs().sum() > 0


def test_direct_head_gives_dr_the_gradient_of_ips(make_scores, make_observed):
    """With known weights ê = g does not move with φ, so DR only shifts the loss."""
    observed, _ = make_observed(0, gamma=1)
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error("squared")
    losses = [ips(observed, phi, error), dr(observed, phi, theta, error, HEADS["direct"])]
    first, second = (
        torch.autograd.grad(robust_mean(x, observed.bounds, 1), phi.lefts[0], retain_graph=True)[0] for x in losses
    )
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("estimator", ["ips", "dr"])
def test_blocks_of_users_add_up(make_scores, make_observed, estimator):
    observed, _ = make_observed(0)
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error("squared")

    def total(part, rows):
        args = (phi.rows(rows), error) if estimator == "ips" else (phi.rows(rows), theta.rows(rows), error)
        terms = ips(part, *args) if estimator == "ips" else dr(part, *args)
        return robust_mean(terms, part.bounds, 1)

    blocks = [(start, min(start + 10, phi.n_users)) for start in range(0, phi.n_users, 10)]
    by_block = sum(total(observed.rows(*block), slice(*block)) for block in blocks)
    whole = total(observed, slice(None))
    torch.testing.assert_close(by_block, whole, rtol=1e-12, atol=0)
    for mine, theirs in zip(
        torch.autograd.grad(by_block, phi.rights), torch.autograd.grad(whole, phi.rights), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_known_scores_are_used_as_they_are(make_scores, make_observed):
    """Passing r̂ and g on O saves sampled products and changes nothing."""
    observed, _ = make_observed(0)
    phi, theta, error = make_scores(0), make_scores(1), pointwise_error("squared")
    known = {"prediction": observed.scores(phi), "output": observed.scores(theta)}
    for estimator in (dr, imputation):
        first, second = estimator(observed, phi, theta, error), estimator(observed, phi, theta, error, **known)
        torch.testing.assert_close(first.coef, second.coef)


def train(models, observed, remember):
    """Four epochs of alternating gradient steps, with or without remembered scores."""
    error, kept = pointwise_error("squared"), Alternating(observed, models[0].factors, models[1].factors)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    for _ in range(4):
        for which, terms, name in ((0, kept.prediction_terms, "phi"), (1, kept.imputation_terms, "theta")):
            if not remember:
                kept.moved("phi")
                kept.moved("theta")
            optimisers[which].zero_grad()
            robust_mean(terms(error), observed.bounds, observed.n_pairs).backward()
            optimisers[which].step()
            kept.moved(name)
    return [p.detach() for m in models for p in m.parameters()]


def test_alternating_steps_are_the_same_with_remembered_scores(make_observed, monkeypatch):
    observed, mask = make_observed(0)
    results, calls = [], []
    plain = LogPattern.sample
    monkeypatch.setattr(LogPattern, "sample", lambda *args: calls.append(1) or plain(*args))
    for remember in (True, False):
        models = [make_backbone("mf", *mask.shape, 3, rng=seed).double() for seed in (0, 1)]
        results.append(train(models, observed, remember))
        calls.append("|")
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert (calls.index("|"), len(calls) - calls.index("|") - 2) == (4 * 2 + 1, 4 * 4)


def simulate(seed, n_users=60, n_items=40):
    """A population with known propensities and fixed ratings: one draw after another of what is observed."""
    rng = np.random.default_rng(seed)
    rating = rng.choice([-1.0, 1.0], (n_users, n_items))
    chance = 1 / (1 + np.exp(-(rng.normal(-1.0, 0.7, (n_users, 1)) + 0.8 * rating)))
    prediction, label = (LowRank.of(*(torch.tensor(rng.normal(size=(n, 3))) for n in rating.shape)) for _ in range(2))
    return rng, rating, chance, prediction, label


@pytest.mark.parametrize("wrong", ["nothing", "imputation", "propensity"])
def test_unbiased_over_500_draws(wrong):
    """IPS with true propensities, and DR with either part wrong, within 2 standard errors of the truth."""
    rng, rating, chance, phi, label = simulate({"nothing": 3, "imputation": 1, "propensity": 2}[wrong])
    error = pointwise_error("squared")
    truth = float(error(phi.tile(), torch.tensor(rating)).mean())
    theta = label
    if wrong == "propensity":  # then the pseudo-labels are the ratings: a full-rank factorisation
        theta = LowRank.of(torch.eye(len(rating), dtype=torch.float64), torch.tensor(rating.T.copy()))
    used = np.full_like(chance, 0.5) if wrong == "propensity" else chance
    ips_draws, dr_draws = [], []
    for _ in range(500):
        user, item = np.nonzero(rng.random(rating.shape) < chance)
        weight = torch.tensor(1 / used[user, item])
        observed = Observed(
            LogPattern.from_pairs(user, item, *rating.shape), torch.tensor(rating[user, item]), Box.exactly(weight)
        )
        ips_draws.append(float(robust_mean(ips(observed, phi, error), observed.bounds, observed.n_pairs)))
        dr_draws.append(float(robust_mean(dr(observed, phi, theta, error), observed.bounds, observed.n_pairs)))
    for draws, must_hold in ((ips_draws, wrong != "propensity"), (dr_draws, True)):
        gap = abs(np.mean(draws) - truth)
        within = gap <= 2 * np.std(draws) / np.sqrt(500) + 1e-9
        assert within == must_hold


def test_lengths_are_checked(make_observed):
    observed, _ = make_observed(0)
    with pytest.raises(InputError, match="one target"):
        Observed(observed.pattern, observed.target[1:], observed.bounds)


def test_the_benchmark_is_a_constant():
    value, reference = torch.tensor([3.0], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    terms = Terms(value.sum(), value).against(Terms(reference.sum(), reference))
    (terms.base + terms.coef.sum()).backward()
    assert value.grad == 2.0
    assert reference.grad is None


def test_a_benchmark_of_other_pairs_is_refused():
    with pytest.raises(InputError, match="same pairs"):
        Terms(torch.zeros(()), torch.ones(3)).against(Terms(torch.zeros(()), torch.ones(2)))
