"""The solver by numeric derivative, by scipy's own minimiser, and from starts where a full Newton step overshoots."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from puidrec.propensity.additive import AdditiveProblem, Parameters, Ridge, Side, centred, minimise

RIDGE = Ridge(0.7, 1.3, 2.0, 0.1)


def problem(seed=0, features=True, scale=1.0):
    """A table of classes with sizes, bins, offsets and (for users) features, and counts drawn from a model on it."""
    random = np.random.default_rng(seed)
    user_bin, item_bin = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 0])
    size, item_size = random.integers(1, 40, 5).astype(float), random.integers(1, 30, 4).astype(float)
    logit = random.normal(-1, scale, (5, 4))
    seen = random.binomial(np.multiply.outer(size, item_size).astype(int), expit(logit)).astype(float)
    cells = np.zeros((3, 2))
    np.add.at(cells, (user_bin[:, None], item_bin), seen)
    design = sparse.csr_array(random.normal(size=(5, 2))) if features else None
    users = Side(size, seen.sum(axis=1), user_bin, 3, design, random.normal(size=5))
    items = Side(item_size, seen.sum(axis=0), item_bin, 2, offset=random.normal(size=4))
    start = Parameters(np.full((3, 2), -1.0), np.zeros(2 if features else 5), np.zeros(4))
    return AdditiveProblem(users, items, cells, -1.0), start


def objective(vector, task, start, ridge):
    """The penalised negative log-likelihood, written out; a second, slow implementation."""
    at = start.unpack(vector)
    u, i = task.users, task.items
    user, item = (at.user if u.design is None else u.design.toarray() @ at.user), at.item
    logit = at.cell[np.ix_(u.bin, i.bin)] + (user + u.offset)[:, None] + item + i.offset
    value = (np.multiply.outer(u.size, i.size) * np.logaddexp(0, logit)).sum()
    value -= (u.observed * user).sum() + (i.observed * item).sum() + (task.cells * at.cell).sum()
    value += 0.5 * ridge.user * (u.weight * at.user**2).sum() + 0.5 * ridge.item * (i.weight * at.item**2).sum()
    return (
        value
        + 0.5 * ridge.interaction * (centred(at.cell) ** 2).sum()
        + 0.5 * ridge.cell * ((at.cell - task.centre) ** 2).sum()
    )


@pytest.mark.parametrize("features", [True, False])
def test_gradient_and_curvature_are_the_derivatives(features):
    task, start = problem(1, features)
    random = np.random.default_rng(2)
    point, step = start.pack() + random.normal(0, 0.5, start.pack().size), 1e-5
    state = task.state(start.unpack(point), RIDGE)
    basis = np.eye(point.size) * step
    slope = [
        (objective(point + e, task, start, RIDGE) - objective(point - e, task, start, RIDGE)) / (2 * step)
        for e in basis
    ]
    np.testing.assert_allclose(state.gradient.pack(), slope, rtol=1e-5, atol=1e-4)
    product = np.array([state.hessian(start.unpack(e / step)).pack() for e in basis])
    ahead, behind = (
        np.array([task.state(start.unpack(point + sign * e), RIDGE).gradient.pack() for e in basis]) for sign in (1, -1)
    )
    np.testing.assert_allclose(product, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(state.diagonal().user, np.diag(product)[6 : 6 + start.user.size])


@pytest.mark.parametrize("features", [True, False])
def test_the_minimum_is_that_of_a_general_minimiser(features):
    task, start = problem(3, features)
    point, _ = minimise(task, start, RIDGE)
    oracle = minimize(objective, start.pack(), args=(task, start, RIDGE), method="BFGS", options={"gtol": 1e-4})
    assert objective(point.pack(), task, start, RIDGE) <= oracle.fun + 1e-7
    np.testing.assert_allclose(point.pack(), oracle.x, atol=1e-3)


@pytest.mark.parametrize("far", [-9.0, -4.0, 4.0, 9.0])
def test_a_start_that_overshoots_reaches_the_same_minimum(far):
    task, start = problem(4, False)
    weak = Ridge(1e-3, 1e-3, 1e-3, 1e-3)
    near, _ = minimise(task, start, weak)
    point, state = minimise(task, Parameters(np.full((3, 2), far), start.user, start.item), weak)
    assert np.isfinite(point.pack()).all()
    np.testing.assert_allclose(
        objective(point.pack(), task, start, weak), objective(near.pack(), task, start, weak), rtol=1e-8
    )
    assert np.abs(state.gradient.pack()).max() < 1e-2


def test_interactions_are_what_rows_and_columns_leave():
    random = np.random.default_rng(5)
    table = random.normal(size=(4, 3))
    inner = centred(table)
    assert np.abs(inner.sum(axis=0)).max() < 1e-12
    assert np.abs(inner.sum(axis=1)).max() < 1e-12
    np.testing.assert_allclose(centred(random.normal(size=4)[:, None] + random.normal(size=3)), 0, atol=1e-12)
    np.testing.assert_allclose(centred(inner), inner)
