"""What slopes become steps by: exact where it can be, symmetric and positive everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from puidrec.optimise import preconditioner
from puidrec.optimise.least_squares import LeastSquares
from puidrec.optimise.model import Side
from puidrec.optimise.preconditioner import (
    UnsolvableError,
    feature_axes,
    metric_of,
    metric_width,
    similar_axes,
    step_by_pairs,
    views,
)

NAMES = ["naive", "ips", "dr", "signed", "worst dr", "benchmarked ips"]
DIM = 2


def at(given, objective, model, seed: int = 0):
    """Factors and logged scores of a random point."""
    factors = model.factors(given.point(model, seed, 1.0))
    return objective.log.scores(*factors), factors


@pytest.mark.parametrize("name", NAMES)
def test_matrices_of_rows_are_those_of_each_row(name: str, small) -> None:
    """A_u = v FᵀF + Σ c f fᵀ, against second derivatives of the dense objective in one user's
    parameters."""
    given = small(2)
    objective, model = given.objective(name), given.model(0.0)
    s, factors = at(given, objective, model)
    users, items = views(objective, model, s, factors)
    c = torch.zeros(given.mask.shape, dtype=torch.float64)
    c[torch.from_numpy(given.mask)] = 0.5 * objective.scale * objective.curvature(s).values
    for view, weight in ((users, c), (items, c.T)):
        f = view.fixed
        expected = torch.einsum("ui,ia,ib->uab", weight, f, f) + objective.v * (f.T @ f)
        torch.testing.assert_close(view.matrices(), expected)


def in_proportion(name: str, small):
    """A log of all pairs with one weight: all rows of a side have the same matrix, so nothing is
    approximate."""
    given = small(14, share=2.0)
    objective, model = given.objective("naive"), given.model(features=True)
    if name == "features only":
        model = replace(
            model,
            users=replace(model.users, penalty=torch.full_like(model.users.penalty, torch.inf)),
        )
    return given, objective, model


@pytest.mark.parametrize("name", ["naive", "features only"])
def test_where_all_rows_are_alike_a_step_is_the_newton_step_of_a_side(
    name: str, small, monkeypatch
) -> None:
    monkeypatch.setattr(preconditioner, "NARROW", 0)
    monkeypatch.setattr(preconditioner, "FEW_COLUMNS", 0)
    given, objective, model = in_proportion(name, small)
    s, factors = at(given, objective, model)
    view, side, width = views(objective, model, s, factors)[0], model.users, DIM + 1
    matrix, free = view.matrices()[0], model.users.free.bool()
    design = torch.zeros(given.n_users, 3, dtype=torch.float64)
    design[side.features.pattern.user, side.features.pattern.col.long()] = side.features.values
    x = torch.cat([torch.eye(given.n_users, dtype=torch.float64), design], 1)
    l2 = torch.cat([side.cost.expand(given.n_users, -1), side.features.penalty.expand(3, width)])
    whole = torch.kron(x.T @ x, matrix) + torch.diag(l2.flatten())
    is_there = torch.cat([free.expand(given.n_users, -1), torch.ones(3, width, dtype=torch.bool)])
    slope = torch.randn(len(l2), width, dtype=torch.float64) * is_there
    where = is_there.flatten()
    expected = torch.zeros_like(slope).flatten()
    expected[where] = torch.linalg.solve(whole[where][:, where], slope.flatten()[where])
    expected = expected.reshape(slope.shape)
    still = {"mean": torch.zeros(()).double(), "items": torch.zeros(given.n_items, width).double()}
    still["item_features"] = torch.zeros(3, width).double()
    metric = metric_of(objective, model, s, factors)
    found = model.step(metric, {**still, "users": slope[:-3], "user_features": slope[-3:]})
    shared = (
        expected[:-3, -1].mean() * side.free[-1]
    )  # biases are centred, the mean takes what they share
    expected[:-3, -1] -= shared
    torch.testing.assert_close(
        torch.cat([found["users"], found["user_features"]]), expected, rtol=1e-6, atol=1e-7
    )
    assert float(found["mean"]) == pytest.approx(float(shared))


@pytest.mark.parametrize("columns", [0, 12])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_symmetric_and_positive(name: str, columns: int, small, monkeypatch) -> None:
    monkeypatch.setattr(preconditioner, "NARROW", columns)
    monkeypatch.setattr(preconditioner, "FEW_COLUMNS", columns)
    given = small(16)
    objective, model = given.objective(name), given.model(features=True)
    monkeypatch.setattr(
        type(model), "centred", lambda self, point: point
    )  # the mean is not part of M
    metric = metric_of(objective, model, *at(given, objective, model))
    assert ("user.inverse" in metric) == (columns > 0)
    assert metric_width(metric) == DIM + 1
    a, b = ({**given.point(model, seed, 1.0), "mean": torch.zeros(()).double()} for seed in (1, 2))
    assert model.dot(a, model.step(metric, b)) == pytest.approx(
        model.dot(b, model.step(metric, a)), rel=1e-8
    )
    assert model.dot(a, model.step(metric, a)) > 0.0


def test_features_that_own_parameters_could_take_back_do_not_slow_the_solver(small) -> None:
    given = small(17, 60, 40, 0.5)
    objective, model = given.objective("naive"), given.model(features=True)
    weak = replace(model, users=replace(model.users, penalty=1e-2 * model.users.penalty))
    found = LeastSquares(1e-6, 400).minimise(objective, weak, given.point(weak))
    assert found.sweeps < 100


def test_of_many_features_only_their_own_weights_are_in_it(small, monkeypatch) -> None:
    given, solver = small(15), LeastSquares(1e-14, 3000)
    objective, model = given.objective("naive"), given.model(features=True)
    whole = solver.minimise(objective, model, given.point(model))
    monkeypatch.setattr(preconditioner, "MANY_FEATURES", 2)
    view = views(objective, model, *at(given, objective, model))[0]
    assert feature_axes(view, model.users.features).features.ndim == 1
    apart = solver.minimise(objective, model, given.point(model))
    assert apart.objective == pytest.approx(whole.objective, rel=1e-9)


def test_a_column_of_nothing_under_next_to_no_l2_is_not_singular(small) -> None:
    """Ten million likes have an L2 of 1e-23: rounding of an empty column is larger, and below 0
    half of the time."""
    given = small(1)
    objective, model = given.objective("naive"), given.model(dim=1)
    view = views(objective, model, *at(given, objective, model))[0]

    def axes(cost: float, empty: float) -> dict[str, Tensor]:
        own = replace(view, side=Side("user", torch.full((2,), cost).double()))
        own.__dict__["typical"] = torch.diag(torch.tensor([1.0, empty]).double())
        return similar_axes(own)

    assert torch.isfinite(axes(9e-24, -1e-20)["axes"]).all()
    with pytest.raises(UnsolvableError, match="singular"):
        axes(9e-24, -1e-6)


def test_a_step_by_pairs_is_that_of_the_curvature_of_rows_and_pairs(small, monkeypatch) -> None:
    """B + Jᵀ C J of all parameters formed and inverted."""
    monkeypatch.setattr(preconditioner, "PAIR_STEPS", 200)
    given = small(5)
    objective, model = given.objective("worst dr"), given.model(0.2)
    s, (left, right) = at(given, objective, model)
    c = 0.5 * objective.scale * objective.curvature(s).values
    user, item = (torch.from_numpy(x) for x in given.mask.nonzero())
    n, m, width = given.n_users, given.n_items, DIM + 1
    of_users, of_items = right[:, :-1], torch.cat([left[:, :-2], left[:, -1:]], 1)
    moved = torch.zeros(len(user), n + m, width, dtype=torch.float64)
    rows = torch.arange(len(user))
    moved[rows, user], moved[rows, n + item] = of_users[item], of_items[user]
    moved = moved.flatten(1)
    whole = moved.T @ (c[:, None] * moved)
    for k, (side, f) in enumerate(((model.users, of_users), (model.items, of_items))):
        block = objective.v * (f.T @ f) + torch.diag(side.cost)
        place = slice(0, n * width) if k == 0 else slice(n * width, None)
        whole[place, place] += torch.kron(torch.eye(n if k == 0 else m).double(), block)
    slope = given.point(model, 1, 1.0)
    expected = torch.linalg.solve(whole, torch.cat([slope["users"], slope["items"]]).flatten())
    found = step_by_pairs(objective, model, s, (left, right), slope)
    step = torch.cat([found["users"], found["items"]])
    torch.testing.assert_close(step, expected.reshape(step.shape), rtol=1e-6, atol=1e-8)
