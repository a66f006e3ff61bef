"""The scale of Γ: what uniform ratings ask for, or a mild default."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puidrec.data.tables import Overlap
from puidrec.errors import InputError
from puidrec.exposure.bounds import TableGamma
from puidrec.losses.signed import (
    DEFAULT_GAMMA,
    calibrated_scale,
    default_scale,
    raise_to_default_gamma,
    require_uniform,
    unseen_mean_for_shared_model,
    unseen_scores,
)
from puidrec.scores.low_rank import LowRank


def population(seed: int = 0) -> tuple[LowRank, torch.Tensor, torch.Tensor]:
    """q of a 40 × 30 population within (0, 1), and the parts of a log Γ."""
    rng = np.random.default_rng(seed)
    left, right = rng.uniform(0.3, 0.9, (40, 1)), rng.uniform(0.4, 1.0, (30, 1))
    parts = (rng.uniform(0.0, 0.4, 40), rng.uniform(0.0, 0.2, 30))
    q = LowRank.of(torch.from_numpy(left), torch.from_numpy(right))
    return q, torch.from_numpy(parts[0]), torch.from_numpy(parts[1])


@pytest.mark.parametrize("liked", [True, False])
@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.5])
def test_the_calibrated_scale_is_the_one_that_made_the_unseen_ratings(
    kappa: float, liked: bool
) -> None:
    q, users, items = population()
    dense = q.tile().numpy()
    shrink = np.exp(-kappa * (users.numpy()[:, None] + items.numpy()))
    unseen = dense * shrink if liked else 1 - (1 - dense) * shrink
    rng = np.random.default_rng(1)
    seen = rng.random(dense.shape) < 0.1
    target = np.full(int(seen.sum()), 0.5)
    mean = (target.sum() + unseen.mean() * (dense.size - target.size)) / dense.size
    unseen_mean = Overlap("keep").unseen_mean(mean, float(target.mean()), target.size / dense.size)
    found = calibrated_scale(q, users, items, unseen_mean, liked=liked)
    assert found == pytest.approx(kappa, abs=1e-3)


def test_no_strength_where_uniform_ratings_are_no_lower() -> None:
    q, users, items = population()
    assert calibrated_scale(q, users, items, 0.99) == 0.0
    assert calibrated_scale(q, 0 * users, 0 * items, 0.1) == 0.0


def test_the_strength_is_bounded_where_uniform_ratings_are_all_zero() -> None:
    q, users, items = population()
    strength = calibrated_scale(q, users, items, 0.0)
    assert np.exp(strength * float(users.mean() + items.mean())) == pytest.approx(20.0)


@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_a_model_that_settles_between_seen_and_unseen_settles_at_the_uniform_mean(
    weight: float,
) -> None:
    unseen = unseen_mean_for_shared_model(0.6, 0.5, weight)
    assert (0.6 + weight * unseen) / (1 + weight) == pytest.approx(0.5)
    assert unseen_mean_for_shared_model(0.9, 0.1, 0.5) == 0.0


def test_the_mild_default_has_the_mild_mean() -> None:
    assert np.exp(default_scale(0.7) * 0.7) == pytest.approx(DEFAULT_GAMMA)
    assert default_scale(0.0) == 0.0


def test_certified_without_uniform_rows_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"certified.*needs uniform ratings"):
        require_uniform(3, "tiny")
    require_uniform(50, "enough")


@pytest.mark.parametrize(
    ("mean_log", "raised"), [(0.0, False), (0.001, True), (0.05, True), (0.3, False)]
)
def test_a_rule_that_sees_next_to_nothing_is_raised_for_all_pairs_alike(
    mean_log: float, raised: bool
) -> None:
    cell = mean_log * np.array([[0.0, 2.0], [1.0, 1.0]])
    gamma = TableGamma.make((np.array([0, 1, 1, 0]), np.array([0, 1])), cell, cap=20.0)
    higher = raise_to_default_gamma(gamma)
    added = higher.cell - gamma.cell
    assert bool(added.min() > 0) is raised
    np.testing.assert_allclose(added, added[0, 0], atol=1e-12)  # the shape is the rule's own
    assert higher.mean_log == pytest.approx(np.log(DEFAULT_GAMMA) if raised else mean_log)
    if raised:
        assert default_scale(higher.mean_log) == pytest.approx(1.0)


def column(q: torch.Tensor, gamma: float, *, liked: bool = True) -> torch.Tensor:
    """Unseen means of a column of q as scores of one item."""
    scores = LowRank.of(q[:, None], torch.ones(1, 1, dtype=q.dtype))
    return unseen_scores(
        scores, torch.full_like(q, float(np.log(gamma))), torch.zeros(1), liked=liked
    ).tile()[:, 0]


def test_unseen_means_by_hand() -> None:
    q = torch.tensor([0.0, 0.4, 1.0])
    torch.testing.assert_close(column(q, 2.0), q / 2)
    torch.testing.assert_close(column(q, 2.0, liked=False), 1 - (1 - q) / 2)
    for liked in (True, False):
        torch.testing.assert_close(column(q, 1.0, liked=liked), q)


@pytest.mark.parametrize("gamma", [1.0, 1.7, 6.0])
def test_unseen_means_bound_what_gamma_allows(gamma: float) -> None:
    """Outside the interval of a binary rating's mean under likelihood ratios in [1/Γ, Γ], or at its
    end."""
    q = torch.linspace(0, 1, 11)
    low, high = (
        torch.maximum(q / gamma, 1 - gamma * (1 - q)),
        torch.minimum(gamma * q, 1 - (1 - q) / gamma),
    )
    assert (column(q, gamma) <= low + 1e-6).all()
    assert (column(q, gamma, liked=False) >= high - 1e-6).all()
