"""The solver against dense float64 oracles: SciPy's minimiser, gradients of zero, and its own
promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from puidrec.errors import PuidError
from puidrec.methods.dim_and_l2 import spectral_start
from puidrec.optimise import least_squares, preconditioner
from puidrec.optimise.least_squares import (
    REFRESH,
    LeastSquares,
    Outcome,
    State,
    best_step,
    grown,
    secant_search,
)
from puidrec.optimise.model import Model

NAMES = ["naive", "ips", "dr", "signed", "worst dr", "benchmarked ips"]
QUADRATIC = NAMES[:4]
EXACT = LeastSquares(1e-14, 3000)
DIM = 2


def tile(model: Model, point) -> torch.Tensor:
    """The scores of all pairs."""
    left, right = model.factors(point)
    return left @ right.T


def steepest(slopes) -> float:
    return max(float(slope.abs().max()) for slope in slopes.values())


def test_a_direction_of_zeros_is_no_step() -> None:
    assert best_step(np.array([3.0, 0.0, 0.0, 0.0, 0.0])) == (0.0, 0.0)


def test_the_best_step_is_the_lowest_stationary_point() -> None:
    t, change = best_step(np.array([3.0, -1.0, -2.0, 0.1, 1.0]))
    grid = np.linspace(-3, 3, 100_001)
    values = np.polynomial.polynomial.polyval(grid, [0.0, -1.0, -2.0, 0.1, 1.0])
    assert t == pytest.approx(grid[np.argmin(values)], abs=1e-4)
    assert change == pytest.approx(values.min(), abs=1e-8)


def test_a_line_search_finds_where_a_bent_function_stops_falling() -> None:
    def along(value, slope):
        return lambda t, exact=False: value(t) if exact else slope(t)

    def bent(t: float) -> float:
        """(t − 3)²/2 + |t − 2|, less its value at 0: flat at its bend, t = 2."""
        return 0.5 * (t - 3) ** 2 + abs(t - 2) - 6.5

    t, change = secant_search(along(bent, lambda t: (t - 3) + np.sign(t - 2)), -4.0, 0.1)
    assert t == pytest.approx(2.0, abs=0.3)
    assert change == pytest.approx(bent(t))
    square = along(lambda t: (t - 5) ** 2 - 25, lambda t: 2 * (t - 5))
    assert secant_search(square, -10.0, 0.1) == pytest.approx((5.0, -25.0), abs=1e-6)
    assert secant_search(along(lambda t: t, lambda t: 1.0), -1.0, 1.0) == (0.0, 0.0)


def test_where_secants_end_higher_the_lowest_point_of_the_parabola_above_is_taken() -> None:
    """Below 0 up to t = 1, far above beyond, with a slope that does not tell."""
    found = secant_search(
        lambda t, exact=False: (-t if t <= 1 else t) if exact else -1.0, -1.0, 0.5
    )
    assert found == (0.5, -0.5)


@pytest.mark.parametrize("features", [None, "with ids", "alone"])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_at_the_solution_is_zero(name: str, features: str | None, small) -> None:
    """Of the dense objective, by automatic differentiation; features and IDs are solved
    together."""
    world = small(4)
    objective = world.objective(name)
    model = world.model(0.05, features=features is not None, ids=features != "alone")
    found = EXACT.minimise(objective, model, world.point(model))
    assert steepest(world.gradient(objective, model, found.point)) < 1e-6
    assert found.objective == pytest.approx(
        float(world.dense(objective, model, found.point)), abs=1e-11
    )
    assert features != "alone" or float(found.point["users"][:, :-1].abs().max()) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_no_minimiser_finds_less(name: str, small) -> None:
    world = small(4)
    objective, model = world.objective(name), world.model(0.05)
    starts = [world.point(model, seed) for seed in range(3)]
    found = min(EXACT.minimise(objective, model, start).objective for start in starts)
    names, shapes = zip(*((k, v.shape) for k, v in starts[0].items()), strict=True)

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        parts = torch.from_numpy(x).split([shape.numel() for shape in shapes])
        point = {
            k: part.reshape(shape) for k, part, shape in zip(names, parts, shapes, strict=True)
        }
        slopes = world.gradient(objective, model, point)
        return float(world.dense(objective, model, point)), np.concatenate(
            [slopes[k].flatten() for k in names]
        )

    options = {"maxiter": 3000, "gtol": 1e-9}
    size = sum(shape.numel() for shape in shapes)
    for seed in range(4):
        start = np.random.default_rng(seed).normal(0, 0.3, size)
        assert found <= minimize(both, start, jac=True, options=options).fun + 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_the_objective_never_rises_and_is_what_it_says(name: str, small) -> None:
    world = small(6, 30, 20)
    objective, model, history = world.objective(name), world.model(0.01), list[State]()
    LeastSquares(1e-12, 60).minimise(objective, model, world.point(model), after=history.append)
    told = [state.objective for state in history]
    assert told == sorted(told, reverse=True)
    np.testing.assert_allclose(
        told, [float(world.dense(objective, model, s.point)) for s in history], atol=1e-9
    )


@pytest.mark.parametrize("name", ["worst dr", "benchmarked ips"])
def test_a_worst_case_ends_where_no_nearby_point_is_lower(name: str, small) -> None:
    world = small(12, 20, 12)
    objective, model = world.objective(name), world.model()
    end = LeastSquares(1e-7, 500).minimise(objective, model, world.point(model))
    assert end.outcome is Outcome.CONVERGED
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(50):
            near = {
                k: v + size * torch.randn(v.shape, generator=generator)
                for k, v in end.point.items()
            }
            assert float(world.dense(objective, model, near)) > end.objective


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_from_a_fresh_state_to_the_same_bits(name: str, small) -> None:
    world, solver = small(8, 20, 12), LeastSquares(1e-12, 60)
    objective, model, history = world.objective(name), world.model(0.01), list[State]()
    end = solver.minimise(objective, model, world.point(model), after=history.append)
    fresh = [state for state in history if state.fresh]
    assert [state.number for state in fresh] == list(range(REFRESH, end.sweeps + 1, REFRESH))
    again = solver.minimise(objective, model, fresh[0])
    assert (again.sweeps, again.objective, again.outcome) == (
        end.sweeps,
        end.objective,
        end.outcome,
    )
    assert all(torch.equal(again.point[key], value) for key, value in end.point.items())


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.integers(1, 12),
    st.floats(0.0, 1.0),
    st.sampled_from(QUADRATIC),
)
def test_any_shape_is_solved(
    small, seed: int, n_users: int, n_items: int, share: float, name: str
) -> None:
    """Users or items without rows, one user, one item, full and nearly empty logs."""
    world = small(seed, n_users, n_items, share)
    if len(world.log) in (0, n_users * n_items):
        return
    objective, model = world.objective(name), world.model()
    found = LeastSquares(1e-10, 300).minimise(objective, model, world.point(model))
    assert steepest(world.gradient(objective, model, found.point)) < 1e-3
    if name == "naive":
        unseen = ~world.mask.any(1)
        assert float(found.point["users"][unseen, :-1].abs().sum()) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("name", QUADRATIC)
def test_l2_may_pull_to_a_given_point(name: str, features: bool, small) -> None:
    world = small(12)
    objective, plain = world.objective(name), world.model(features=features)
    start = world.point(plain, 3)
    model = plain.around(start)
    found = EXACT.minimise(objective, model, start)
    assert steepest(world.gradient(objective, model, found.point)) < 1e-6
    assert found.objective == pytest.approx(
        float(world.dense(objective, model, found.point)), rel=1e-8
    )


def test_an_l2_beyond_all_data_leaves_the_vectors_where_it_pulls_them(small) -> None:
    world = small(13)
    objective, model = world.objective("ips"), world.model(1e5)
    start = world.point(model, size=1.0)
    found = LeastSquares(1e-12, 500).minimise(objective, model.around(start), start).point
    for name in ("users", "items"):
        torch.testing.assert_close(found[name][:, :-1], start[name][:, :-1], rtol=0.0, atol=1e-3)
        assert float(found[name][:, -1].abs().max()) < 1e-3


def test_strong_l2_leaves_no_vectors(small) -> None:
    world = small(14, 30, 20)
    objective, model = world.objective("naive"), world.model(20.0)
    found = LeastSquares().minimise(objective, model, world.point(model))
    assert found.outcome is Outcome.CONVERGED
    vectors = found.point["users"][:, :DIM] @ found.point["items"][:, :DIM].T
    assert float(vectors.abs().max()) < 1e-5


def test_without_l2_singular_matrices_are_not_inverted(small, monkeypatch) -> None:
    """A user with fewer ratings than columns has a singular matrix; its inverse would end the fit
    after two sweeps."""
    world = small(3, 20, 12, 0.2)
    objective, model = world.objective("naive"), world.model(0.0, dim=4)
    start = world.point(model)
    found = LeastSquares(1e-9, 200).minimise(objective, model, start)
    monkeypatch.setattr(preconditioner, "NARROW", 0)
    monkeypatch.setattr(preconditioner, "FEW_COLUMNS", 0)
    assert found.objective == pytest.approx(
        LeastSquares(1e-9, 200).minimise(objective, model, start).objective, abs=1e-9
    )
    assert found.sweeps > 2


@pytest.mark.parametrize("turn", [0, 1])
def test_bends_are_sharp_at_the_end_however_steps_are_made(turn: int, small, monkeypatch) -> None:
    """Where matrices of rows are too many, steps are by pairs and bends are wide at first; a state
    on the way goes on to the same bits."""
    world = small(12, 20, 12)
    objective, model = world.objective("worst dr"), world.model()
    end = LeastSquares(1e-7, 500).minimise(objective, model, world.point(model))
    monkeypatch.setattr(preconditioner, "NARROW", 0)
    monkeypatch.setattr(preconditioner, "FEW_COLUMNS", 0)
    history = list[State]()
    by_pairs = LeastSquares(1e-7, 500).minimise(
        objective, model, world.point(model), after=history.append
    )
    assert by_pairs.outcome is Outcome.CONVERGED
    assert by_pairs.objective == pytest.approx(end.objective, abs=1e-9)
    told = [state.objective for state in history]
    assert told == sorted(told, reverse=True)
    fresh = [state for state in history if state.fresh]
    again = LeastSquares(1e-7, 500).minimise(objective, model, fresh[turn])
    assert all(torch.equal(again.point[key], value) for key, value in by_pairs.point.items())


def test_too_few_sweeps_are_told_and_say_what_to_change(small) -> None:
    world = small(6, 30, 20)
    found = LeastSquares(max_sweeps=2).minimise(
        world.objective("ips"), world.model(), world.point(world.model())
    )
    assert found.outcome is Outcome.LIMIT
    assert "raise epochs or l2" in found.outcome.value


def test_numbers_that_are_not_finite_are_refused(small) -> None:
    world = small(9)
    world.r[0] = np.nan
    with pytest.raises(PuidError, match="not a finite number"):
        LeastSquares().minimise(world.objective("naive"), world.model(), world.point(world.model()))


@pytest.mark.parametrize("name", QUADRATIC)
def test_in_single_precision_a_moved_start_ends_at_the_same_scores(name: str, small) -> None:
    world = small(13, 40, 30, dtype=torch.float32)
    objective, model = world.objective(name), world.model(0.3)
    first = world.point(model)
    generator = torch.Generator().manual_seed(1)
    moved = {k: v + 1e-7 * torch.randn(v.shape, generator=generator) for k, v in first.items()}
    ends = [
        tile(model, LeastSquares().minimise(objective, model, start).point)
        for start in (first, moved)
    ]
    assert float((ends[0] - ends[1]).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["naive", "dr", "worst dr", "signed"])
def test_processes_together_find_the_solution_of_one(name: str, small, run_together) -> None:
    """Users' parameters live with their rows, items' are replicated. (With features:
    `methods/test_distributed`.)"""
    alone = small(7, 12, 8)
    model = alone.model()
    start, solver = alone.point(model), LeastSquares(1e-11, 500)
    expected = solver.minimise(alone.objective(name), model, start)

    def work(world):
        given = small(7, 12, 8, world=world)
        mine = {
            key: given.log.own(value).clone() if key == "users" else value.clone()
            for key, value in start.items()
        }
        return solver.minimise(given.objective(name), given.model(), mine)

    found = run_together(3, work)
    users = torch.cat([part.point["users"] for part in found])
    scores = tile(model, expected.point)
    for part in found:
        torch.testing.assert_close(
            tile(model, {**part.point, "users": users}), scores, rtol=0, atol=1e-5
        )
        assert part.objective == pytest.approx(expected.objective, abs=1e-9)


# where it starts


def narrowed(model: Model) -> Model:
    sides = [replace(side, penalty=side.penalty[-1:]) for side, _ in model.sides]
    return replace(model, users=sides[0], items=sides[1])


@pytest.mark.parametrize("name", QUADRATIC)
def test_new_columns_are_the_leading_directions_of_the_dense_slope(name: str, small) -> None:
    world = small(5, 40, 30)
    objective, model = world.objective(name), world.model(1e-4)
    narrow = narrowed(model)
    empty = {k: v if v.ndim == 0 else v[:, -1:] for k, v in world.point(model).items()}
    point = LeastSquares(1e-9).minimise(objective, narrow, empty).point
    scores = tile(narrow, point).requires_grad_()
    numbers = {key: column.values for key, column in objective.columns.items()}
    mask = torch.from_numpy(world.mask)
    total = objective.scale * least_squares_sum(objective, scores[mask], numbers)
    if objective.v:
        total = total + objective.v * (scores - objective.m.tile()).square().sum()
    (slope,) = torch.autograd.grad(total, scores)
    left, values, right = torch.linalg.svd(-0.5 * slope)
    found = grown(objective, model, point)
    for k in range(DIM):
        for side, vector in (("users", left[:, k]), ("items", right[k])):
            column = found[side][:, k]
            assert abs(float(column @ vector)) == pytest.approx(
                float(column.norm()), rel=2e-2 if values[k] > 1.2 * values[k + 1] else 1.0
            )
    before = float(world.dense(objective, narrow, point))
    assert float(world.dense(objective, model, found)) < before


def least_squares_sum(objective, s, numbers):
    from puidrec.losses.pair_loss import Row, pair_sum

    return pair_sum(objective.loss, s, Row(**numbers))


@pytest.mark.parametrize("name", NAMES)
def test_the_start_depends_neither_on_the_order_nor_on_the_names(name: str, small) -> None:
    """Users and items in another order: the same scores at the start, row by row and column by
    column."""
    world = small(5, 40, 30)
    objective, model = world.objective(name), world.model(1e-3)
    like = world.point(model)
    first = tile(model, spectral_start(objective, model, like))
    rng = np.random.default_rng(1)
    users, items = rng.permutation(40), rng.permutation(30)
    other = small(5, 40, 30)
    other.mask = world.mask[users][:, items]
    numbers = np.zeros((3, 40, 30))
    numbers[:, world.mask] = world.r, world.w, world.k0
    other.r, other.w, other.k0 = numbers[:, users][:, :, items][:, other.mask]
    row_start = np.concatenate([[0], np.cumsum(other.mask.sum(1))])
    other.log = replace(other.log, row_start=row_start, item=np.nonzero(other.mask)[1])
    other.m = type(world.m).of(world.m.lefts[0][users], world.m.rights[0][items])
    second = tile(model, spectral_start(other.objective(name), model, like))
    torch.testing.assert_close(second, first[users][:, items], rtol=0, atol=1e-6)


def test_more_columns_than_items_are_filled_with_zeros(small) -> None:
    world = small(2, 9, 3)
    objective, model = world.objective("naive"), world.model(dim=6)
    start = spectral_start(objective, model, world.point(model))
    assert start["users"].shape == (9, 7)
    assert torch.isfinite(torch.cat([start["users"].flatten(), start["items"].flatten()])).all()
    assert LeastSquares().minimise(objective, model, start).sweeps >= least_squares.SETTLED
