"""IPS and DR estimate the loss over all pairs without bias where p is right (or, for DR, where ê
is)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puidrec.data.synthetic import simulate
from puidrec.losses.pair_loss import Objective, RobustLoss
from puidrec.scores.log import Log
from puidrec.scores.low_rank import LowRank

N_USERS, N_ITEMS, DRAWS = 60, 50, 500


@pytest.fixture(scope="module")
def truth():
    return simulate(
        "pair", N_USERS, N_ITEMS, density=0.25, exposure_strength=2.0, rating_strength=1.0, rng=5
    ).truth


@pytest.fixture(scope="module")
def ratings(truth):
    return (truth.matrix("rating") - 1.0) / 4.0


@pytest.fixture(scope="module")
def phi():
    rng = np.random.default_rng(1)
    left, right = rng.normal(0, 0.2, (N_USERS, 4)), rng.normal(0, 0.2, (N_ITEMS, 4))
    left[:, 3], right[:, 3] = 1.0, 0.3
    return LowRank.of(torch.from_numpy(left), torch.from_numpy(right))


def as_factors(matrix):
    """A whole matrix as factors: M = M·I."""
    return LowRank.of(
        torch.from_numpy(np.ascontiguousarray(matrix, np.float64)),
        torch.eye(N_ITEMS, dtype=torch.float64),
    )


def estimates(estimator, ratings, chance, p, phi, theta=None):
    """The loss estimate in each of the draws of who sees what."""
    rng, values = np.random.default_rng(7), np.empty(DRAWS)
    for draw in range(DRAWS):
        mask = rng.random(chance.shape) < chance
        row_start = np.concatenate([[0], np.cumsum(mask.sum(1))])
        log = Log(row_start, np.nonzero(mask)[1], N_ITEMS, dtype=torch.float64)
        columns = {"r": log.filled(lambda rows, m=mask: ratings[m][rows])}
        columns["a"] = columns["b"] = log.filled(lambda rows, m=mask: (1.0 / p[m])[rows])
        objective = Objective(log, RobustLoss(), columns, 1 / log.n_pairs)
        if estimator == "dr":
            columns["g"] = log.scores_of(theta)
            objective = Objective(
                log, RobustLoss(head="label"), columns, 1 / log.n_pairs, 1 / log.n_pairs, theta
            )
        values[draw] = objective.value(log.scores_of(phi), (phi.lefts[0], phi.rights[0]))
    return values


def deviation(values, expected):
    """Distance of the mean from the truth, in standard errors."""
    return abs(values.mean() - expected) / (values.std(ddof=1) / np.sqrt(values.size))


@pytest.fixture(scope="module")
def full_loss(ratings, phi):
    return float(((phi.tile().numpy() - ratings) ** 2).mean())


@pytest.fixture(scope="module")
def wrong_imputation():
    rng = np.random.default_rng(3)
    return as_factors(0.8 + 0.1 * rng.normal(size=(N_USERS, N_ITEMS)))


def test_ips_with_the_true_propensity(truth, ratings, phi, full_loss) -> None:
    p = truth.matrix("true_propensity")
    assert deviation(estimates("ips", ratings, p, p, phi), full_loss) < 2


def test_ips_with_the_nominal_propensity_is_biased(truth, ratings, phi, full_loss) -> None:
    p, nominal = truth.matrix("true_propensity"), truth.matrix("propensity")
    assert deviation(estimates("ips", ratings, p, nominal, phi), full_loss) > 5


def test_dr_with_the_true_propensity_and_a_wrong_imputation(
    truth, ratings, phi, wrong_imputation, full_loss
) -> None:
    p = truth.matrix("true_propensity")
    assert deviation(estimates("dr", ratings, p, p, phi, wrong_imputation), full_loss) < 2


def test_dr_with_a_wrong_propensity_and_the_right_imputation(
    truth, ratings, phi, full_loss
) -> None:
    p, nominal = truth.matrix("true_propensity"), truth.matrix("propensity")
    values = estimates("dr", ratings, p, nominal, phi, as_factors(ratings))
    np.testing.assert_allclose(values, full_loss, rtol=1e-9)


def test_dr_with_an_imputation_right_on_average_and_a_wrong_propensity(truth, ratings, phi) -> None:
    p, rng = truth.matrix("true_propensity"), np.random.default_rng(11)
    noisy, wrong = ratings + rng.normal(0, 0.2, ratings.shape), np.full_like(p, 0.25)
    expected = float((0.2**2 + (phi.tile().numpy() - ratings) ** 2).mean())
    values = estimates("dr", noisy, p, wrong, phi, as_factors(noisy))
    np.testing.assert_allclose(values, ((phi.tile().numpy() - noisy) ** 2).mean(), rtol=1e-9)
    assert values[0] == pytest.approx(expected, rel=0.05)


def test_dr_with_both_parts_wrong_is_biased(
    truth, ratings, phi, wrong_imputation, full_loss
) -> None:
    p, nominal = truth.matrix("true_propensity"), truth.matrix("propensity")
    assert deviation(estimates("dr", ratings, p, nominal, phi, wrong_imputation), full_loss) > 5


def test_dr_varies_less_than_ips_where_the_imputation_is_good(truth, ratings, phi) -> None:
    p = truth.matrix("true_propensity")
    close = as_factors(ratings + 0.05)
    spread = [estimates(name, ratings, p, p, phi, close).std() for name in ("ips", "dr")]
    assert spread[1] < 0.5 * spread[0]
