"""The solver by numeric derivative, by scipy's own minimiser, from far starts; classes of equal
degree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from puidrec.exposure.additive import (
    AdditiveProblem,
    ClassSide,
    Ridge,
    calibrating_shift,
    centred,
    minimise,
)
from puidrec.exposure.two_way import DegreeClasses, Strata, fit_budget

RIDGE = Ridge(0.7, 1.3, 2.0, 0.1)


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
        ClassSide.of_members(size, observed, user_bin, offset)
        if design is None
        else ClassSide(size, observed, user_bin, design, np.ones(2), offset)
    )
    items = ClassSide.of_members(item_size, seen.sum(axis=0), item_bin, random.normal(size=4))
    start = np.append(np.full(6, -1.0), np.zeros((2 if features else 5) + 4))
    return AdditiveProblem(users, items, cells, -1.0), start


def objective(vector, task, ridge):
    """The penalised negative log-likelihood, written out; a second, slow implementation."""
    u, i = task.users, task.items
    cell, a, b = vector[:6].reshape(3, 2), vector[6:-4], vector[-4:]
    user, item = u.design.toarray() @ a, b
    logit = cell[np.ix_(u.bin, i.bin)] + (user + u.offset)[:, None] + item + i.offset
    value = (np.multiply.outer(u.size, i.size) * np.logaddexp(0, logit)).sum()
    value -= (u.observed * user).sum() + (i.observed * item).sum() + (task.cells * cell).sum()
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
    state = task.state(point, RIDGE)
    basis = np.eye(point.size) * step
    slope = [
        (objective(point + e, task, RIDGE) - objective(point - e, task, RIDGE)) / (2 * step)
        for e in basis
    ]
    np.testing.assert_allclose(state.gradient, slope, rtol=1e-5, atol=1e-4)
    product = np.array([state.hessian(e / step) for e in basis])
    ahead, behind = (
        np.array([task.state(point + sign * e, RIDGE).gradient for e in basis]) for sign in (1, -1)
    )
    np.testing.assert_allclose(product, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(state.diagonal()[6:], np.diag(product)[6:])


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


def drawn(seed, n=3000, n_bins=4, offset=False):
    random = np.random.default_rng(seed)
    bins = random.integers(0, n_bins, n, dtype=np.int32)
    degree = random.poisson(np.exp(random.normal(3, 1, n)))
    strata = Strata.build(bins, random.normal(size=n).round(1) if offset else None)
    return DegreeClasses.build(strata, degree), bins, degree


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(20, 400), st.booleans())
def test_grouping_keeps_the_totals_of_every_bin(seed, limit, offset):
    classes, bins, degree = drawn(seed, offset=offset)
    side = classes.at_most(limit).side()
    np.testing.assert_allclose(np.bincount(side.bin, weights=side.size), np.bincount(bins))
    np.testing.assert_allclose(
        np.bincount(side.bin, weights=side.observed), np.bincount(bins, weights=degree)
    )


def test_the_limit_is_kept_down_to_one_class_per_stratum():
    classes, _, _ = drawn(0)
    assert classes.n_classes > 400
    assert classes.at_most(10**6).n_classes == classes.n_classes
    for limit in (200, 50, 4):
        assert classes.at_most(limit).n_classes <= limit
    assert classes.at_most(1).n_classes == 4


def test_values_return_to_entities_exactly_or_on_a_smooth_curve():
    classes, _, degree = drawn(1)
    side = classes.side()
    np.testing.assert_allclose(
        classes.to_entities(np.log1p(side.observed / side.size)), np.log1p(degree)
    )
    coarse = classes.at_most(80)
    side = coarse.side()
    curve = lambda d: np.sqrt(np.log1p(d) + 1)  # noqa: E731
    found = coarse.to_entities(curve(side.observed / side.size))
    np.testing.assert_allclose(found, curve(degree), atol=0.02)


def test_budget_keeps_the_smaller_side_whole():
    large, small = drawn(2, 5000)[0], drawn(3, 60, 1)[0]
    users, items = fit_budget(large, small, 10_000)
    assert users.n_classes * items.n_classes <= 10_000
    assert items.n_classes == small.n_classes
    assert fit_budget(large, small, 10**9) == (large, small)


def test_strata_split_offsets_within_bins_and_never_equal_ones():
    random = np.random.default_rng(4)
    bins, offset = random.integers(0, 3, 900, dtype=np.int32), random.normal(size=900).round(1)
    strata = Strata.build(bins, offset)
    np.testing.assert_array_equal(strata.bin[strata.of], bins)
    pairs = {}
    for key, stratum in zip(zip(bins, offset, strict=True), strata.of, strict=True):
        assert pairs.setdefault(key, stratum) == stratum
    assert np.mean((strata.offset[strata.of] - offset) ** 2) < 0.01, "means of narrow levels"
    assert np.isclose(np.average(strata.offset, weights=np.bincount(strata.of)), offset.mean())


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
