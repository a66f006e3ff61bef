import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from puidrec.errors import InputError
from puidrec.losses.worst_case import (
    Box,
    normalised_worst_case_weights,
    ratio_sums,
    weighted_mean,
    worst_case_weights,
    worst_ratio,
)


def normalised_worst_case_by_sorting(coef, bounds):
    """argmax_w Σ coef·w / Σ w over the box, by trying every threshold of the sorted coefficients:
    the oracle."""
    order = torch.argsort(coef, descending=True)
    c, a, b = (x[order].double() for x in (coef, bounds.a, bounds.b))
    zero = torch.zeros(1, dtype=torch.float64)
    numerator = (a * c).sum() + torch.cat([zero, torch.cumsum((b - a) * c, 0)])
    denominator = a.sum() + torch.cat([zero, torch.cumsum(b - a, 0)])
    raised = order[: int(torch.argmax(numerator / denominator))]
    weights = bounds.a.clone()
    weights[raised] = bounds.b[raised]
    return weights


def problem(seed, n):
    rng = np.random.default_rng(seed)
    coef = np.round(rng.normal(size=n), 1 if seed % 3 else 6)
    a = rng.uniform(1, 5, n)
    return torch.tensor(coef), Box(
        torch.tensor(a), torch.tensor(a + rng.uniform(0, 5, n) * (rng.random(n) < 0.9))
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_plain_worst_case_is_the_linear_program(seed, n):
    coef, box = problem(seed, n)
    oracle = linprog(-coef.numpy(), bounds=list(zip(*(x.tolist() for x in box), strict=True)))
    weights = worst_case_weights(coef, box)
    assert float(coef @ weights) == pytest.approx(-oracle.fun, abs=1e-9)
    assert ((weights >= box.a) & (weights <= box.b)).all()


def fractional_program(coef, box):
    """Charnes-Cooper: maximise Σ c·y with a·t ≤ y ≤ b·t, Σ y = 1."""
    n = coef.size
    upper = np.hstack([np.eye(n), -box.b.numpy()[:, None]])
    lower = np.hstack([-np.eye(n), box.a.numpy()[:, None]])
    total = np.append(np.ones(n), 0.0)[None]
    solved = linprog(
        np.append(-coef, 0.0), np.vstack([upper, lower]), np.zeros(2 * n), total, [1.0]
    )
    return -solved.fun


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_normalised_worst_case_is_the_linear_fractional_program(seed, n):
    coef, box = problem(seed, n)
    oracle = fractional_program(coef.numpy(), box)
    for solve in (normalised_worst_case_weights, normalised_worst_case_by_sorting):
        weights = solve(coef, box)
        assert float(weighted_mean(coef, weights)) == pytest.approx(oracle, abs=1e-9)
        assert ((weights == box.a) | (weights == box.b)).all()


def test_sorting_and_dinkelbach_agree_on_a_large_log():
    coef, box = problem(1, 100_000)
    coef, box = coef.float() ** 2, Box(box.a.float(), box.b.float())
    first, second = (
        normalised_worst_case_weights(coef, box),
        normalised_worst_case_by_sorting(coef, box),
    )
    assert float(weighted_mean(coef, first)) == pytest.approx(
        float(weighted_mean(coef, second)), rel=1e-7
    )
    assert float(weighted_mean(coef, first)) > float(weighted_mean(coef, box.b)) * 1.05


def test_gamma_one_leaves_no_choice():
    weight = torch.tensor([2.0, 3.0])
    for solve in (
        worst_case_weights,
        normalised_worst_case_weights,
        normalised_worst_case_by_sorting,
    ):
        assert torch.equal(solve(torch.tensor([-1.0, 1.0]), Box.exactly(weight)), weight)


def test_one_global_gamma_leaves_ips_as_it_is_but_not_normalised():
    """e ≥ 0 makes the plain worst case b everywhere: IPS up to scale (with equal p)."""
    error = torch.tensor([0.0, 1.0, 4.0])
    box = Box(torch.full((3,), 2.0), torch.full((3,), 8.0))
    assert torch.equal(worst_case_weights(error, box), box.b)
    assert torch.equal(normalised_worst_case_weights(error, box), torch.tensor([2.0, 2.0, 8.0]))


def test_weights_carry_no_gradient():
    coef = torch.tensor([1.0, -1.0], requires_grad=True)
    box = Box(torch.ones(2), torch.full((2,), 2.0))
    assert not worst_case_weights(coef, box).requires_grad
    assert not normalised_worst_case_weights(coef, box).requires_grad


def test_shapes_are_checked():
    with pytest.raises(InputError, match="one length"):
        worst_case_weights(torch.ones(3), Box(torch.ones(2), torch.ones(2)))


def test_the_worst_ratio_of_pieces_is_that_of_all_and_of_nothing_is_nothing():
    coef, box = problem(3, 500)
    cuts = [slice(0, 1), slice(1, 300), slice(300, 300), slice(300, 500)]
    parts = [(coef[cut], box.rows(cut)) for cut in cuts]
    ratio = worst_ratio(lambda at: tuple(sum(ratio_sums(c, b, at) for c, b in parts).tolist()))
    weights = normalised_worst_case_weights(coef, box)
    assert torch.equal(torch.where(coef > ratio.threshold, box.b, box.a), weights)
    assert ratio.weight == pytest.approx(float(weights.sum()))
    passes = []
    assert worst_ratio(lambda at: passes.append(at) or (0.0, 0.0)).weight == 0.0
    assert len(passes) == 1
