"""Propensities that balance: dense sums over all pairs, logistic regression, and populations
without differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.linear_model import LogisticRegression

from puidrec.exposure import Exposure, balancing, make_propensity
from puidrec.exposure.balancing import BalanceProblem, PairColumns, gaussian_kernels
from puidrec.testing.propensity import all_pairs, small_exposure

DATA = small_exposure()
USERS, ITEMS = all_pairs(DATA)
SHAPE = (60, 40)


def seen() -> np.ndarray:
    o = np.zeros(SHAPE)
    o[DATA.log.user, DATA.log.item] = 1.0
    return o


def dense_moments(p: np.ndarray) -> np.ndarray:
    """mean_D (o/p − (1 − o)/(1 − p)) (x − x̄) pair by pair."""
    columns, o = PairColumns.of(DATA, "balanced"), seen()
    difference = o / p - (1 - o) / (1 - p)
    users, items = columns.users.toarray(), columns.items.toarray()
    both = difference.sum(1) @ (users - users.mean(0)), difference.sum(0) @ (items - items.mean(0))
    return np.concatenate(both) / o.size


def test_the_objective_is_a_sum_over_all_pairs_with_the_right_gradient(monkeypatch) -> None:
    monkeypatch.setattr(balancing, "RIDGE", 2.0)
    problem = BalanceProblem(PairColumns.of(DATA, "balanced"))
    problem.strength = 0.7
    point = np.random.default_rng(0).normal(0.0, 0.1, 1 + sum(problem.widths))
    point[0] = -1.5
    constant, user, item = problem.scores(point)
    p, o = 1.0 / (1.0 + np.exp(-(constant + user[:, None] + item))), seen()
    loss = np.mean(-o * np.log(p) - (1 - o) * np.log(1 - p)) + 0.7 * np.sum(dense_moments(p) ** 2)
    assert problem.value(point)[0] == pytest.approx(loss + point[1:] @ point[1:] / o.size)
    assert np.concatenate(problem.moments(constant, user, item)[0]) == pytest.approx(
        dense_moments(p)
    )
    slope = problem.value(point)[1]
    assert (
        check_grad(lambda x: problem.value(x)[0], lambda x: problem.value(x)[1], point)
        < 1e-5 * np.abs(slope).max()
    )


def test_without_strength_it_is_logistic_regression(monkeypatch) -> None:
    monkeypatch.setattr(balancing, "STRENGTH", 0.0)
    columns = PairColumns.of(DATA, "balanced")
    rows = np.hstack([columns.users.toarray()[USERS], columns.items.toarray()[ITEMS]])
    fitted = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(rows, seen().ravel())
    p = make_propensity("balanced", low=1e-6).fit(DATA).predict(USERS, ITEMS)
    assert p == pytest.approx(fitted.predict_proba(rows)[:, 1], rel=1e-3)


def test_strength_balances_what_likelihood_leaves(monkeypatch) -> None:
    left = []
    for strength in (0.0, 1.0, 100.0):
        monkeypatch.setattr(balancing, "STRENGTH", strength)
        p = make_propensity("balanced", low=1e-6).fit(DATA).predict(USERS, ITEMS)
        left.append(np.abs(dense_moments(p.reshape(SHAPE))).max())
    assert left[1] < 0.2 * left[0]
    assert left[2] < 0.1 * left[1]


def test_kernels_have_their_means_over_all_pairs() -> None:
    fitted = make_propensity("kernel", low=1e-6).fit(DATA)
    columns = PairColumns.of(DATA, "kernel")
    p = fitted.predict(columns.user, columns.item)
    kernels = fitted.user_kernel_[USERS] * fitted.item_kernel_[ITEMS]
    logged = fitted.user_kernel_[columns.user] * fitted.item_kernel_[columns.item]
    assert (p < 1.0).all()
    plain, balanced = (
        np.abs(np.average(logged, 0, w) - kernels.mean(0)) for w in (np.ones(p.size), 1.0 / p)
    )
    chance = kernels.std(0) / np.sqrt(p.size)
    assert balanced.max() < 0.2 * plain.max()
    assert (balanced < chance).all()


def test_a_kernel_is_one_at_its_anchor_and_falls_with_distance() -> None:
    columns = PairColumns.of(DATA, "kernel").users
    kernels, rows = gaussian_kernels(columns, np.array([3, 7])), columns.toarray()
    distance = np.sum((rows[:, None] - rows) ** 2, 2)
    assert kernels == pytest.approx(np.exp(-distance[:, [3, 7]] / distance.mean()))
    assert kernels[3, 0] == kernels[7, 1] == 1.0


@pytest.mark.parametrize("name", ["balanced", "kernel"])
def test_where_all_users_and_items_are_alike_the_propensity_is_constant(name) -> None:
    user, item = (x.ravel() for x in np.meshgrid(np.arange(12), np.arange(8), indexing="ij"))
    kept = (user + item) % 4 == 0  # everyone sees as much, everything is seen as often
    flat = Exposure.from_log(
        user[kept], item[kept], user_bin=np.zeros(12, np.int32), item_bin=np.zeros(8, np.int32)
    )
    p = make_propensity(name).fit(flat).predict(user, item)
    assert p == pytest.approx(np.full(96, 0.25), rel=0.01)


def test_counts_alone_are_refused(refusal) -> None:
    for name in ("balanced", "kernel"):
        refusal(
            lambda name=name: make_propensity(name).fit(replace(DATA, log=None)),
            "needs the log itself",
        )
