from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from puidrec.errors import InputError
from puidrec.losses import pair_loss
from puidrec.methods.robust import _fold_codes, normalised_worst_case_weights
from puidrec.methods.stages import Run, stages_of, train_stages
from puidrec.model import Recommender

PLAIN = ["mf", "ips", "dr", "rd-ips", "rd-dr", "puid-ips", "puid-dr"]
BENCHMARKED = ["brd-ips", "brd-dr", "bpuid-ips", "bpuid-dr"]


def total_loss(problem, step=0):
    """The prediction loss; that of the imputation with step 1."""
    return float(problem.steps[step].loss().detach())


@pytest.fixture
def sharp_bends(monkeypatch):
    """Losses without rounded bends, as they are printed; what rounding adds at most is tested with
    the losses."""
    monkeypatch.setattr(pair_loss, "WIDTH", 0.0)


@pytest.fixture
def main_problem(problem_after):
    """The method's own problem at its start, and the benchmark it was given."""
    return problem_after


@pytest.mark.usefixtures("sharp_bends")
@pytest.mark.parametrize("loss", ["squared", "absolute", "cross-entropy"])
@pytest.mark.parametrize("target", ["rating", "binary"])
@pytest.mark.parametrize("method", PLAIN)
def test_losses_equal_brute_force_over_all_pairs(
    method, target, loss, prepare, oracle, main_problem
) -> None:
    prepared = prepare(method, target=target, loss=loss, gamma=2.0 if "rd" in method else "auto")
    problem, _ = main_problem(prepared)
    expected = oracle(prepared).prediction_loss(problem.factors(), problem.imputation())
    assert total_loss(problem) == pytest.approx(expected, rel=2e-6)
    if problem.theta is not None:
        assert total_loss(problem, 1) == pytest.approx(
            oracle(prepared).imputation_loss(problem.imputation()), rel=2e-6
        )


@pytest.mark.usefixtures("sharp_bends")
@pytest.mark.parametrize("method", BENCHMARKED)
def test_benchmarked_losses_equal_brute_force(method, prepare, oracle, main_problem) -> None:
    prepared = prepare(method, warm_start=False)
    problem, done = main_problem(prepared)
    base = done["benchmark"]
    expected = oracle(prepared).prediction_loss(
        problem.factors(), problem.imputation(), (base.phi, base.theta)
    )
    assert total_loss(problem) == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 1e-3


@pytest.mark.parametrize(
    ("robust", "plain"),
    [("rd-ips", "ips"), ("rd-dr", "dr"), ("puid-ips", "ips"), ("puid-dr", "dr")],
)
def test_gamma_one_is_the_plain_estimator(robust, plain, prepare, world, main_problem) -> None:
    (one, _), (other, _) = main_problem(prepare(robust, gamma=1.0)), main_problem(prepare(plain))
    assert total_loss(one) == pytest.approx(total_loss(other), abs=1e-6)
    options = {"epochs": 15, "dim": 3, "l2": 0.1, "propensity": "cells"}
    first = Recommender(robust, gamma=1.0, **options).fit(world(1))
    second = Recommender(plain, **options).fit(world(1))
    np.testing.assert_allclose(first.user_factors_, second.user_factors_, atol=1e-6)
    np.testing.assert_allclose(first.item_factors_, second.item_factors_, atol=1e-6)
    wider = Recommender(robust, gamma=3.0, **options).fit(world(1))
    assert not np.allclose(wider.user_factors_, second.user_factors_, atol=1e-4)


@pytest.mark.parametrize("suffix", ["ips", "dr"])
@pytest.mark.parametrize("prefix", ["", "b"])
def test_a_constant_rule_makes_puid_rd(prefix, suffix, world) -> None:
    options = {"gamma": 1.8, "epochs": 15, "dim": 3, "l2": 0.1, "propensity": "cells"}
    first = Recommender(f"{prefix}puid-{suffix}", **options).fit(world(2))
    second = Recommender(f"{prefix}rd-{suffix}", **options).fit(world(2))
    np.testing.assert_array_equal(first.user_factors_, second.user_factors_)
    np.testing.assert_array_equal(first.item_factors_, second.item_factors_)


@pytest.mark.usefixtures("sharp_bends")
@pytest.mark.parametrize("backbone", ["mf", "mf-linear", "mf-mlp"])
@pytest.mark.parametrize("head", ["label", "residual", "direct"])
@pytest.mark.parametrize("method", BENCHMARKED)
def test_the_loss_at_the_benchmark_is_exactly_zero(
    method, head, backbone, prepare, main_problem
) -> None:
    problem, _ = main_problem(prepare(method, head=head, backbone=backbone, epochs=3, gamma=2.0))
    assert total_loss(problem) == 0.0
    assert problem.loss.benchmarked
    if problem.theta is not None:
        assert total_loss(problem, 1) == 0.0


@pytest.mark.parametrize("method", BENCHMARKED)
def test_a_benchmark_passes_its_own_test_though_bends_are_rounded(
    method, prepare, main_problem
) -> None:
    problem, _ = main_problem(prepare(method, epochs=300, gamma=2.0))
    assert abs(problem.excess()) < 1e-12
    rounded, objective = total_loss(problem), problem.phi_objective()
    exact = replace(objective, loss=replace(objective.loss, wider=0.0))
    moved = problem.factors().scaled(torch.tensor([1.05]), torch.tensor([1.0])).detach()
    s, at = objective.log.scores_of(moved), (moved.lefts[0], moved.rights[0])
    assert objective.value(s, at) >= exact.value(s, at) > 1e-6
    assert rounded >= 0.0


@pytest.mark.parametrize(("seed", "warm_start"), [(0, True), (1, False), (2, True)])
@pytest.mark.parametrize("method", BENCHMARKED)
def test_training_never_ends_above_the_benchmark(
    method, seed, warm_start, prepare, oracle, main_problem
) -> None:
    prepared = prepare(method, seed, warm_start=warm_start, epochs=40, gamma=1.5)
    base = main_problem(prepared)[1]["benchmark"]
    fitted = train_stages(prepared)
    assert (
        oracle(prepared).prediction_loss(fitted.phi, fitted.theta, (base.phi, base.theta)) <= 1e-7
    )


def test_a_benchmarked_method_can_gain_on_its_benchmark(prepare, oracle, main_problem) -> None:
    """On one that does not minimise the nominal loss: its own exact benchmark is a minimum of the
    benchmarked loss."""
    prepared = prepare(
        "brd-ips", 1, epochs=300, gamma=1.05, l2=1e-4, l2_features=1e-4, benchmark="mf"
    )
    base = main_problem(prepared)[1]["benchmark"]
    assert (
        oracle(prepared).prediction_loss(train_stages(prepared).phi, None, (base.phi, None)) < -1e-4
    )


def test_a_cross_fitted_imputation_has_not_seen_the_rows_it_corrects(prepare, dense_scores) -> None:
    prepared = prepare("dr", cross_fit=3)
    run, (*folds, main) = Run(prepared), stages_of(prepared)
    for stage in folds:
        run.train(stage)
    problem, rows = main.build(run.done), prepared.rows
    g, everywhere = problem.imputed
    fold = prepared.log.operator.map(lambda code: code, _fold_codes(prepared)).values.numpy()
    models = [dense_scores(run.done[stage.name].phi) for stage in folds]
    expected = np.choose(fold.astype(int), [model[rows.user, rows.item] for model in models])
    np.testing.assert_allclose(g.values.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(dense_scores(everywhere), np.mean(models, 0), atol=1e-6)
    target = prepared.log.target(rows)
    for k, model in enumerate(models):  # worse on the rows it has not seen
        errors = np.square(model[rows.user, rows.item] - target)
        assert errors[fold == k].mean() > 1.2 * errors[fold != k].mean()


def test_cross_fitting_makes_dr_another_method_than_ips(prepare, dense_scores) -> None:
    ips, dr, crossed = (
        dense_scores(train_stages(prepare(name, epochs=300, **own)).phi)
        for name, own in (("ips", {}), ("dr", {}), ("dr", {"cross_fit": 3}))
    )
    np.testing.assert_allclose(dr, ips, atol=2e-3)  # Σ_O w is not quite |D|, so L2 is not either
    assert np.abs(crossed - ips).max() > 0.02


@pytest.mark.parametrize("given", [{"cross_fit": 1}, {"cross_fit": 3, "head": "residual"}])
def test_cross_fitting_refuses_what_it_cannot_do(given, prepare) -> None:
    with pytest.raises(InputError, match="cross_fit needs two folds"):
        stages_of(prepare("dr", **given))


@pytest.mark.parametrize("method", ["rd-ips", "rd-dr"])
def test_normalised_worst_cases_survive_users_without_rows(method, prepare, world) -> None:
    data = world(0)
    busy = data.logged.take(data.logged.user >= 10)
    data = type(data)(
        **{**{f: getattr(data, f) for f in data.__dataclass_fields__}, "logged": busy}
    )
    model = Recommender(method, normalise=True, l2=0.1, epochs=4, dim=3).fit(data)
    assert np.isfinite(model.user_factors_).all()


def test_normalising_gives_a_global_gamma_something_to_do(prepare, main_problem) -> None:
    def gradient(**options):
        problem, _ = main_problem(prepare("rd-ips", backbone="mf", **options))
        problem.steps[0].loss().backward()
        grad = problem.phi.user_towers[0].weight.grad.flatten().double()
        return (grad / grad.norm()).numpy()

    plain = [gradient(gamma=gamma, min_propensity=0.001) for gamma in (50.0, 500.0)]
    normalised = [gradient(gamma=gamma, normalise=True) for gamma in (50.0, 1.0)]
    assert plain[0] @ plain[1] > 0.9999
    assert normalised[0] @ normalised[1] < 0.99


def normalised_worst_case_by_sorting(k, a, b):
    """argmax over w in [a, b] of Σ w·k / Σ w, by trying every threshold of the sorted k: the
    oracle."""
    order = torch.argsort(k, descending=True)
    c, low, high = (x[order].double() for x in (k, a, b))
    zero = torch.zeros(1, dtype=torch.float64)
    numerator = (low * c).sum() + torch.cat([zero, torch.cumsum((high - low) * c, 0)])
    denominator = low.sum() + torch.cat([zero, torch.cumsum(high - low, 0)])
    raised = order[: int(torch.argmax(numerator / denominator))]
    weights = a.clone()
    weights[raised] = b[raised]
    return weights


def fractional_program(k, a, b):
    """Charnes-Cooper: maximise Σ k·y with a·t ≤ y ≤ b·t, Σ y = 1."""
    n = k.size
    upper = np.hstack([np.eye(n), -b[:, None]])
    lower = np.hstack([-np.eye(n), a[:, None]])
    total = np.append(np.ones(n), 0.0)[None]
    solved = linprog(np.append(-k, 0.0), np.vstack([upper, lower]), np.zeros(2 * n), total, [1.0])
    return -solved.fun


def box(seed, n):
    rng = np.random.default_rng(seed)
    k = np.round(rng.normal(size=n), 1 if seed % 3 else 6)
    a = rng.uniform(1, 5, n)
    b = a + rng.uniform(0, 5, n) * (rng.random(n) < 0.9)
    return [torch.tensor(x) for x in (k, a, b)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_normalised_worst_case_is_the_linear_fractional_program(seed, n):
    k, a, b = box(seed, n)
    oracle = fractional_program(*(x.numpy() for x in (k, a, b)))
    for solve in (normalised_worst_case_weights, normalised_worst_case_by_sorting):
        weights = solve(k, a, b)
        assert float((weights * k).sum() / weights.sum()) == pytest.approx(oracle, abs=1e-9)
        assert ((weights == a) | (weights == b)).all()


def test_sorting_and_dinkelbach_agree_on_a_large_log():
    k, a, b = (x.float() for x in box(1, 100_000))
    k = k.square()
    first, second = (
        float((w * k.double()).sum() / w.double().sum())
        for w in (normalised_worst_case_weights(k, a, b), normalised_worst_case_by_sorting(k, a, b))
    )
    assert first == pytest.approx(second, rel=1e-7)
    assert first > float((b * k).double().sum() / b.double().sum()) * 1.05


def test_one_global_gamma_moves_normalised_weights_alone():
    """e ≥ 0 makes the plain worst case b everywhere: IPS up to scale (with equal p)."""
    k, a, b = (
        torch.tensor([0.0, 1.0, 4.0], requires_grad=True),
        torch.full((3,), 2.0),
        torch.full((3,), 8.0),
    )
    weights = normalised_worst_case_weights(k, a, b)
    assert torch.equal(weights, torch.tensor([2.0, 2.0, 8.0]))
    assert not weights.requires_grad
    assert torch.equal(normalised_worst_case_weights(k, a, a), a)
