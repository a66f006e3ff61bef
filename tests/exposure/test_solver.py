"""The solver by numeric derivative, by scipy's own minimiser, from far starts; and levels of
scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from puidrec.exposure import additive
from puidrec.exposure.additive import (
    AdditiveProblem,
    Levels,
    Ridge,
    Side,
    State,
    centred,
    minimise,
)
from puidrec.exposure.base import calibrating_shift

RIDGE = Ridge(0.7, 1.3, 2.0, 0.1)


def side(size, seen, bins, offset=0.0):
    """Every kind has an effect of its own, equal within the kind."""
    offset = np.broadcast_to(offset, size.shape)
    return Side(bins, size, seen, offset, sparse.eye_array(size.size, format="csr"), size)


def problem(seed=0, features=True, scale=1.0):
    """A table of classes with sizes, bins, offsets and (for users) features, and counts drawn from
    a model on it."""
    random = np.random.default_rng(seed)
    user_bin, item_bin = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 0])
    size, item_size = (
        random.integers(1, 40, 5).astype(float),
        random.integers(1, 30, 4).astype(float),
    )
    logit = random.normal(-1, scale, (5, 4))
    seen = random.binomial(np.multiply.outer(size, item_size).astype(int), expit(logit)).astype(
        float
    )
    cells = np.zeros((3, 2))
    np.add.at(cells, (user_bin[:, None], item_bin), seen)
    design = sparse.csr_array(random.normal(size=(5, 2))) if features else None
    observed, offset = seen.sum(axis=1), random.normal(size=5)
    users = (
        side(size, observed, user_bin, offset)
        if design is None
        else Side(user_bin, size, observed, offset, design, np.ones(2))
    )
    items = side(item_size, seen.sum(axis=0), item_bin, random.normal(size=4))
    start = np.append(np.full(6, -1.0), np.zeros((2 if features else 5) + 4))
    return AdditiveProblem(users, items, cells, -1.0), start


def objective(vector, task, ridge):
    """The penalised negative log-likelihood, written out; a second, slow implementation."""
    u, i = task.users, task.items
    cell, a, b = vector[:6].reshape(3, 2), vector[6:-4], vector[-4:]
    user, item = u.design.toarray() @ a, b
    logit = cell[np.ix_(u.bin, i.bin)] + (user + u.offset)[:, None] + item + i.offset
    value = (np.multiply.outer(u.size, i.size) * np.logaddexp(0, logit)).sum()
    value -= (u.seen * user).sum() + (i.seen * item).sum() + (task.cells * cell).sum()
    value += 0.5 * ridge.user * (u.weight * a**2).sum() + 0.5 * ridge.item * (i.weight * b**2).sum()
    return (
        value
        + 0.5 * ridge.interaction * (centred(cell) ** 2).sum()
        + 0.5 * ridge.cell * ((cell - task.centre) ** 2).sum()
    )


@pytest.mark.parametrize("features", [True, False])
def test_gradient_and_curvature_are_the_derivatives(features):
    task, start = problem(1, features)
    random = np.random.default_rng(2)
    point, step = start + random.normal(0, 0.5, start.size), 1e-5
    state = State(task, point, RIDGE)
    basis = np.eye(point.size) * step
    slope = [
        (objective(point + e, task, RIDGE) - objective(point - e, task, RIDGE)) / (2 * step)
        for e in basis
    ]
    np.testing.assert_allclose(state.gradient, slope, rtol=1e-5, atol=1e-4)
    product = np.array([state.hessian(e / step) for e in basis])
    ahead, behind = (
        np.array([State(task, point + sign * e, RIDGE).gradient for e in basis]) for sign in (1, -1)
    )
    np.testing.assert_allclose(product, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-3)
    direction = state.newton_direction()
    np.testing.assert_allclose(state.hessian(direction), -state.gradient, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("features", [True, False])
def test_the_minimum_is_that_of_a_general_minimiser(features):
    task, start = problem(3, features)
    point, _ = minimise(task, start, RIDGE)
    oracle = minimize(objective, start, args=(task, RIDGE), method="BFGS", options={"gtol": 1e-4})
    assert objective(point, task, RIDGE) <= oracle.fun + 1e-7
    np.testing.assert_allclose(point, oracle.x, atol=1e-3)


@pytest.mark.parametrize("far", [-9.0, -4.0, 4.0, 9.0])
def test_a_start_that_overshoots_reaches_the_same_minimum(far):
    task, start = problem(4, False)
    weak = Ridge(1e-3, 1e-3, 1e-3, 1e-3)
    near, _ = minimise(task, start, weak)
    point, state = minimise(task, np.append(np.full(6, far), start[6:]), weak)
    assert np.isfinite(point).all()
    np.testing.assert_allclose(
        objective(point, task, weak),
        objective(near, task, weak),
        rtol=1e-8,
    )
    assert np.abs(state.gradient).max() < 1e-2


def test_interactions_are_what_rows_and_columns_leave():
    random = np.random.default_rng(5)
    table = random.normal(size=(4, 3))
    inner = centred(table)
    assert np.abs(inner.sum(axis=0)).max() < 1e-12
    assert np.abs(inner.sum(axis=1)).max() < 1e-12
    np.testing.assert_allclose(
        centred(random.normal(size=4)[:, None] + random.normal(size=3)), 0, atol=1e-12
    )
    np.testing.assert_allclose(centred(inner), inner)


def drawn(seed, n=3000, n_bins=4):
    random = np.random.default_rng(seed)
    bins, size = random.integers(0, n_bins, n), random.integers(1, 4, n).astype(float)
    return side(size, size, bins), random.normal(0, 2, n).round(random.integers(1, 6))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(4, 4000))
def test_levels_keep_bins_and_totals(seed, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "LEVELS", most)
        kinds, score = drawn(seed)
        levels = Levels.cut(kinds, score)
    assert levels.value.size <= max(most, 4)
    np.testing.assert_array_equal(levels.bin[levels.of], kinds.bin)
    for weight in (np.ones(kinds.size.size), kinds.size, kinds.size * np.exp(score)):
        total = np.bincount(kinds.bin, weight)
        by_level = np.bincount(levels.of, weight)
        np.testing.assert_allclose(levels.bins.T @ by_level, total)
    rare = levels.size * np.exp(levels.value)
    np.testing.assert_allclose(rare.sum(), (kinds.size * np.exp(score)).sum())


def test_few_scores_are_levels_of_their_own():
    kinds, score = drawn(0)
    levels = Levels.cut(kinds, score.round(1))
    np.testing.assert_allclose(levels.shift, 0.0, atol=1e-12)
    assert levels.value.size == len(set(zip(kinds.bin, score.round(1), strict=True)))


@pytest.mark.parametrize("centre", [-6.0, -2.0, 0.0])
def test_expected_pairs_of_a_level_follow_its_slope(centre, monkeypatch):
    """Against sums over all pairs, at any density of exposure."""
    monkeypatch.setattr(additive, "LEVELS", 100)
    random = np.random.default_rng(1)
    score = random.normal(centre, 1.0, 900), random.normal(0.0, 1.0, 700)
    sides = [side(np.ones(x.size), np.zeros(x.size), np.zeros(x.size, int), x) for x in score]
    task = AdditiveProblem(*sides, np.zeros((1, 1)), 0.0)
    state = State(task, np.zeros(1 + 900 + 700), Ridge(0.0, 0.0, 0.0, 0.0))
    p = expit(np.add.outer(*score))
    exact = np.concatenate([[p.sum()], p.sum(1), p.sum(0)])
    np.testing.assert_allclose(state.gradient, exact, rtol=2e-3)
    np.testing.assert_allclose(state.users.information, (p * (1 - p)).sum(1), rtol=0.06)


@given(st.integers(0, 1000), st.floats(1e-6, 0.999), st.floats(0.1, 8.0))
def test_the_shift_meets_the_total(seed, share, spread):
    random = np.random.default_rng(seed)
    log_odds, pairs = random.normal(-3, spread, (5, 4)), random.uniform(1, 1e6, (5, 4))
    wanted = share * pairs.sum()
    shift = calibrating_shift(log_odds, pairs, wanted)
    assert (pairs * expit(log_odds + shift)).sum() == pytest.approx(wanted, rel=1e-9)


def test_a_calibrated_table_is_left_alone():
    log_odds, pairs = np.array([-1.0, 2.0]), np.array([10.0, 30.0])
    assert calibrating_shift(
        log_odds, pairs, float((pairs * expit(log_odds)).sum())
    ) == pytest.approx(0, abs=1e-12)
