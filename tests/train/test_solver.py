"""The solver against dense float64 oracles: normal equations, SciPy's minimiser, and its own promises."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from puidrec.objective import majorise
from puidrec.objective.majorise import Bent, BentInterval, BentLine, BentSquare
from puidrec.objective.sharp import unseen_interval, worst_square
from puidrec.objective.terms import Observed
from puidrec.train import preconditioner
from puidrec.train.blocks import UserPartition
from puidrec.train.columns import strengths
from puidrec.train.log_losses import LogBlocks, WorstCase, secant_search
from puidrec.train.quadratic import Block, Line, Quadratic, Rows
from puidrec.train.sides import UnsolvableError
from puidrec.train.solver import Features, Model, Point, Side, Sweep, best_step, solve, sweep
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import pad

from puidrec.errors import InputError, PuidError
from puidrec.losses.worst_case import Box
from puidrec.optimise.preconditioner import feature_axes, metric_of, precondition, similar_axes
from puidrec.scores.low_rank import LowRank
from puidrec.scores.sparse import LogPattern

DIM = 2


@dataclass
class World:
    """A tiny log and everything of it as dense float64 arrays."""

    user: np.ndarray
    item: np.ndarray
    n_users: int
    n_items: int
    rng: np.random.Generator

    @classmethod
    def draw(cls, seed: int, n_users: int = 9, n_items: int = 7, share: float = 0.4) -> World:
        rng = np.random.default_rng(seed)
        user, item = np.nonzero(rng.random((n_users, n_items)) < share)
        return cls(user, item, n_users, n_items, rng)

    def __len__(self) -> int:
        return self.user.size

    @property
    def pattern(self) -> LogPattern:
        return LogPattern.from_pairs(self.user, self.item, self.n_users, self.n_items)

    def numbers(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.from_numpy(self.rng.uniform(low, high, len(self)))

    def pull(self) -> LowRank:
        left, right = (torch.from_numpy(self.rng.normal(size=(n, 3))) for n in (self.n_users, self.n_items))
        return LowRank.of(left, right)


def penalty(n: int, l2: float = 0.1, vectors: float = 0.5) -> Tensor:
    values = torch.full((DIM + 1,), l2 * vectors / n, dtype=torch.float64)
    values[-1] = l2 / n
    return values


def model_of(world: World, l2: float = 0.1) -> Model:
    return Model(Side(penalty(world.n_users, l2)), Side(penalty(world.n_items, l2)))


def start_of(world: World, model: Model, seed: int = 0) -> Point:
    return model.start(world.n_users, world.n_items, 0.4, torch.Generator().manual_seed(seed))


def problems(world: World) -> dict[str, Quadratic]:
    """Every instance in the table of the module."""
    n, pairs, pattern = len(world), world.n_users * world.n_items, world.pattern
    r, w, pull = world.numbers(), world.numbers(1.0, 4.0), world.pull()
    m = pull.tile()[world.user, world.item]
    lam = 1.5
    unseen = max(pairs - n, 1)
    return {
        "naive": Quadratic.in_memory(pattern, 1.0 / n, r / n, constant=float((r**2).mean())),
        "ips": Quadratic.in_memory(pattern, w / pairs, w * r / pairs),
        "dr": Quadratic.in_memory(pattern, 0.0, w * (r - m) / pairs, v=1.0 / pairs, pull=pull),
        "signed": Quadratic.in_memory(
            pattern, w / n - lam / unseen, w * r / n - lam * m / unseen, v=lam / unseen, pull=pull
        ),
    }


def dense_value(quadratic: Quadratic, scores: Tensor) -> Tensor:
    """J's loss by its definition, pair by pair."""
    total = torch.tensor(quadratic.constant, dtype=torch.float64)
    for block in quadratic.blocks():
        s = scores[block.start : block.stop][block.pattern.user, block.pattern.col.long()]
        total = total + (block.c * s**2 - 2 * block.d * s).sum()
    if quadratic.v:
        m = quadratic.pull.tile() if quadratic.pull is not None else torch.zeros_like(scores)
        total = total + quadratic.v * (scores**2 - 2 * scores * m).sum()
    return total


def dense_objective(quadratic: Quadratic, model: Model, point: Point) -> Tensor:
    total = dense_value(quadratic, model.scores(point).tile())
    for name, side in (("user", model.users), ("item", model.items)):
        total = total + (side.cost * (point[f"{name}s"] - _centre(side)) ** 2).sum()
        if side.features is not None:
            total = total + (side.features.penalty * point[f"{name}_features"] ** 2).sum()
    return total


def gradient(quadratic: Quadratic, model: Model, point: Point) -> dict[str, Tensor]:
    """Of the dense objective; features enter by their dense design, since a design's values are constants here."""
    own = {name: value.clone().requires_grad_() for name, value in point.items()}
    sides = []
    for name, side in (("user", model.users), ("item", model.items)):
        rows = own[f"{name}s"] * side.free
        if side.features is not None:
            rows = rows + dense_design(side.features) @ own[f"{name}_features"]
        sides.append(rows)
    users, items = sides
    scores = users[:, :-1] @ items[:, :-1].T + users[:, -1:] + items[:, -1] + own["mean"]
    total = dense_value(quadratic, scores)
    for name, side in (("user", model.users), ("item", model.items)):
        total = total + (side.cost * (own[f"{name}s"] - _centre(side)) ** 2).sum()
        if side.features is not None:
            total = total + (side.features.penalty * own[f"{name}_features"] ** 2).sum()
    total.backward()
    return {name: value.grad for name, value in own.items()}


def _centre(side: Side) -> Tensor | float:
    return 0.0 if side.centre is None else side.centre


def dense_design(features: Features) -> Tensor:
    dense = torch.zeros(features.pattern.n_users, features.pattern.n_items, dtype=torch.float64)
    dense[features.pattern.user, features.pattern.col.long()] = features.values
    return dense


NAMES = ["naive", "ips", "dr", "signed"]


@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_the_sum_over_pairs(name: str) -> None:
    world = World.draw(1)
    quadratic, model = problems(world)[name], model_of(world)
    point = {k: torch.randn_like(v) for k, v in start_of(world, model).items()}
    expected = dense_objective(quadratic, model, point)
    scores = model.scores(point)
    assert quadratic.value(scores) + model.penalty(point) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_value_along_a_step_is_its_polynomial(name: str) -> None:
    world = World.draw(2)
    quadratic, model = problems(world)[name], model_of(world)
    point, step = ({k: torch.randn_like(v) for k, v in start_of(world, model).items()} for _ in range(2))
    polynomial = quadratic.along(model.scores(point), model.scores(step, step=True))
    polynomial[:3] += model.penalty_along(point, step)
    before = float(dense_objective(quadratic, model, point))
    for t in (-0.7, 0.3, 2.0):
        moved = {k: v + t * step[k] for k, v in point.items()}
        expected = float(dense_objective(quadratic, model, moved)) - before
        assert np.polynomial.polynomial.polyval(t, polynomial) == pytest.approx(expected, rel=1e-9)


def test_a_direction_of_zeros_is_no_step() -> None:
    assert best_step(np.array([3.0, 0.0, 0.0, 0.0, 0.0])) == (0.0, 0.0)


def test_the_best_step_is_the_lowest_stationary_point() -> None:
    t, change = best_step(np.array([3.0, -1.0, -2.0, 0.1, 1.0]))
    grid = np.linspace(-3, 3, 100_001)
    values = np.polynomial.polynomial.polyval(grid, [0.0, -1.0, -2.0, 0.1, 1.0])
    assert t == pytest.approx(grid[np.argmin(values)], abs=1e-4)
    assert change == pytest.approx(values.min(), abs=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_side_with_enough_steps_is_the_solution_of_its_normal_equations(name: str) -> None:
    world = World.draw(3)
    quadratic, model = problems(world)[name], model_of(world)
    point = {k: torch.randn_like(v) * 0.5 for k, v in start_of(world, model).items()}
    items = torch.cat([point["items"][:, :-1], torch.ones(world.n_items, 1)], 1).double()
    offset = point["items"][:, -1] + point["mean"]
    block = next(iter(quadratic.blocks()))
    c, d = (torch.zeros(world.n_users, world.n_items, dtype=torch.float64) for _ in range(2))
    c[world.user, world.item], d[world.user, world.item] = torch.as_tensor(block.c, dtype=torch.float64), block.d
    if quadratic.v:
        c, d = c + quadratic.v, d + quadratic.v * quadratic.pull.tile()
    expected = torch.stack([
        torch.linalg.solve(items.T @ (c[u, :, None] * items) + torch.diag(model.users.penalty),
                           items.T @ (d[u] - c[u] * offset))
        for u in range(world.n_users)
    ])  # fmt: skip
    found = sweep(quadratic, model, point, steps=DIM + 1)["users"]
    expected[:, -1] -= expected[:, -1].mean()  # what all biases share is the mean's
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_at_the_solution_is_zero_and_no_minimiser_finds_less(name: str) -> None:
    world = World.draw(4)
    quadratic, model = problems(world)[name], model_of(world, l2=0.05)
    found = solve(quadratic, model, start_of(world, model), tolerance=1e-14, max_sweeps=2000)
    slopes = gradient(quadratic, model, found.point)
    assert max(float(slope.abs().max()) for slope in slopes.values()) < 1e-6
    assert found.objective == pytest.approx(float(dense_objective(quadratic, model, found.point)), abs=1e-12)

    names, shapes = zip(*((k, v.shape) for k, v in found.point.items()), strict=True)

    def unpack(x: np.ndarray) -> Point:
        parts = torch.from_numpy(x).split([shape.numel() for shape in shapes])
        return {k: part.reshape(shape) for k, part, shape in zip(names, parts, shapes, strict=True)}

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = unpack(x)
        slopes = gradient(quadratic, model, point)
        return float(dense_objective(quadratic, model, point)), np.concatenate([slopes[k].flatten() for k in names])

    best = min(
        minimize(both, np.random.default_rng(seed).normal(0, 0.3, sum(s.numel() for s in shapes)), jac=True,
                 options={"maxiter": 3000, "gtol": 1e-9}).fun
        for seed in range(4)
    )  # fmt: skip
    assert found.objective <= best + 1e-7


def test_one_cholesky_for_all_rows_is_the_generic_solution() -> None:
    world = World.draw(5)
    quick = problems(world)["dr"]
    block = next(iter(quick.blocks()))
    zeros = Block(0, world.n_users, block.pattern, torch.zeros(len(world), dtype=torch.float64), block.d)
    generic = Quadratic(lambda: (zeros,), v=quick.v, pull=quick.pull)
    model = model_of(world)
    point = {k: torch.randn_like(v) for k, v in start_of(world, model).items()}
    a, b = (sweep(q, model, point, steps=DIM + 1) for q in (quick, generic))
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_the_objective_never_rises(name: str) -> None:
    world = World.draw(6, 30, 20)
    quadratic, model = problems(world)[name], model_of(world, 0.01)
    history: list[Sweep] = []
    solve(quadratic, model, start_of(world, model), tolerance=1e-12, max_sweeps=60, after=history.append)
    objectives = [step.objective for step in history]
    assert objectives == sorted(objectives, reverse=True)
    measured = [float(dense_objective(quadratic, model, model.padded(step.point))) for step in history]
    np.testing.assert_allclose(objectives, measured, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_user_blocks_give_the_solution_of_the_whole_log(name: str) -> None:
    world = World.draw(7, 12, 8)
    whole, model = problems(world)[name], model_of(world)
    block = next(iter(whole.blocks()))

    def cut() -> list[Block]:
        found = []
        for start, stop in ((0, 5), (5, 6), (6, 12)):
            pairs = block.pattern.pairs(start, stop)
            c = block.c if isinstance(block.c, float) else block.c[pairs]
            found.append(Block(start, stop, block.pattern.rows(start, stop), c, block.d[pairs]))
        return found

    cuts = Quadratic(cut, whole.v, whole.pull, whole.constant, whole.same_matrix)
    a, b = (solve(q, model, start_of(world, model), max_sweeps=30) for q in (whole, cuts))
    torch.testing.assert_close(a.point, b.point, rtol=1e-9, atol=1e-11)


def test_a_run_goes_on_from_a_sweep_to_the_same_bits() -> None:
    world = World.draw(8)
    quadratic, model = problems(world)["signed"], model_of(world)
    history: list[Sweep] = []
    end = solve(quadratic, model, start_of(world, model), tolerance=1e-10, after=history.append)
    again = solve(quadratic, model, history[3], tolerance=1e-10)
    assert (again.number, again.objective) == (end.number, end.objective)
    assert all(torch.equal(again.point[name], value) for name, value in end.point.items())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12), st.floats(0.0, 1.0), st.sampled_from(NAMES))
def test_any_shape_is_solved(seed: int, n_users: int, n_items: int, share: float, name: str) -> None:
    """Users or items without rows, one user, one item, full and nearly empty logs."""
    world = World.draw(seed, n_users, n_items, share)
    if len(world) in (0, n_users * n_items):
        return
    quadratic, model = problems(world)[name], model_of(world)
    found = solve(quadratic, model, start_of(world, model), tolerance=1e-10, max_sweeps=300)
    assert max(float(slope.abs().max()) for slope in gradient(quadratic, model, found.point).values()) < 1e-3
    if name == "naive":
        unseen = np.setdiff1d(np.arange(n_users), world.user)
        assert float(found.point["users"][unseen, :-1].abs().sum()) == pytest.approx(0.0, abs=1e-6)


def growing_model(world, seed: int = 0) -> Model:
    """L2 that grows with shares of the log, on both sides."""
    random = torch.Generator().manual_seed(seed)
    shares = [torch.rand(n, generator=random, dtype=torch.float64) * 2 for n in (world.n_users, world.n_items)]
    plain = model_of(world)
    both = zip((plain.users, plain.items), shares, strict=True)
    return Model(*(replace(side, share=share, growing=0.6) for side, share in both))


@pytest.mark.parametrize("name", ["naive", "ips", "dr", "signed"])
def test_l2_that_grows_with_rows_is_solved_to_its_optimum(name) -> None:
    """Its slope, by automatic differentiation of the loss over all pairs, is 0 where the solver ends."""
    world = World.draw(4)
    quadratic, model = problems(world)[name], growing_model(world)
    end = solve(quadratic, model, start_of(world, model), tolerance=1e-9, max_sweeps=2_000)
    point = {key: value.clone().requires_grad_() for key, value in end.point.items()}
    total = torch.zeros((), dtype=torch.float64)
    for key, side in (("users", model.users), ("items", model.items)):
        factor = 0.4 + 0.6 * side.share[:, None]
        total = total + (side.penalty[:-1] * factor * point[key][:, :-1] ** 2).sum()
        total = total + (side.penalty[-1] * point[key][:, -1] ** 2).sum()
    assert model.penalty(end.point) == pytest.approx(float(total.detach()), rel=1e-12)
    total = total + dense_value(quadratic, model.scores(point).tile())
    total.backward()
    assert float(total.detach()) == pytest.approx(end.objective, rel=1e-9)
    size = float(abs(end.objective))
    assert max(float(value.grad.abs().max()) for value in point.values()) < 1e-5 * size


@pytest.mark.parametrize("name", ["naive", "ips", "signed"])
def test_matrices_of_rows_are_those_of_each_row(name) -> None:
    world = World.draw(2)
    quadratic, model = problems(world)[name], model_of(world)
    scores = model.scores({k: torch.randn_like(v) for k, v in start_of(world, model).items()})
    for rows in (Rows.of_users(quadratic, scores), Rows.of_items(quadratic, scores)):
        found = rows.matrices()
        for z in torch.randn(3, len(rows.own), rows.width, dtype=torch.float64):
            torch.testing.assert_close(torch.bmm(found, z[:, :, None])[:, :, 0], rows.times(z))
        torch.testing.assert_close(found.diagonal(dim1=1, dim2=2), rows.diagonal())


@pytest.mark.parametrize("growing", [False, True])
def test_a_weak_l2_admits_no_column_below_the_edge_of_noise(growing) -> None:
    """Columns come by the edge, whatever L2 then takes off them: none between the two."""
    world = World.draw(5)
    quadratic, model = problems(world)["naive"], (growing_model if growing else model_of)(world)
    biases = solve(quadratic, model.narrowed(1), start_of(world, model.narrowed(1)))
    strength = strengths(quadratic, model, {k: v if v.ndim == 0 else pad(v, (DIM, 0)) for k, v in biases.point.items()})
    assert strength[0] > 1.0, "else there is no column to admit"
    for share, columns in ((0.9 / float(strength[0]), 0), (0.99, DIM)):
        end = solve(quadratic, replace(model, edge_share=share), model.padded(biases.point))
        used = int((end.point["users"][:, :-1].abs().amax(0) > 1e-6).sum())
        assert (used == 0) is (columns == 0)


def test_no_l2_for_an_unseen_user_is_refused() -> None:
    pattern = LogPattern.from_pairs(np.array([0, 1]), np.array([0, 1]), 3, 2)
    quadratic = Quadratic.in_memory(pattern, 0.5, torch.tensor([0.5, 0.5]).double())
    nothing = torch.zeros(DIM + 1, dtype=torch.float64)
    model = Model(Side(nothing), Side(nothing))
    with pytest.raises(PuidError, match="1 users or items have no rows and no L2"):
        solve(quadratic, model, model.start(3, 2, 0.5, torch.Generator().manual_seed(0)))


def test_numbers_that_are_not_finite_are_refused() -> None:
    world = World.draw(9)
    model = model_of(world)
    quadratic = Quadratic.in_memory(world.pattern, 1.0, torch.full((len(world),), float("nan"), dtype=torch.float64))
    with pytest.raises(PuidError, match="not a finite number"):
        solve(quadratic, model, start_of(world, model))


def test_weights_must_fit_the_log() -> None:
    world = World.draw(10)
    with pytest.raises(InputError, match="one weight and one pull"):
        Quadratic.in_memory(world.pattern, 1.0, torch.zeros(1))


def with_features(world: World, ids: bool) -> Model:
    """Items with three features each side's weights share, and IDs, or biases only."""
    sides = []
    for n in (world.n_users, world.n_items):
        design = world.rng.normal(size=(n, 3)) * (world.rng.random((n, 3)) < 0.7)
        row, column = np.nonzero(design)
        values = torch.from_numpy(design[row, column])
        power = torch.from_numpy((design**2).mean(0))[:, None]
        features = Features(LogPattern.from_pairs(row, column, n, 3), values, 0.02 * power.expand(3, DIM + 1))
        own = penalty(n)
        own[:-1] = own[:-1] if ids else float("inf")
        sides.append(Side(own, features))
    return Model(*sides)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_features_and_ids_are_solved_together(name: str, ids: bool) -> None:
    world = World.draw(11)
    quadratic, model = problems(world)[name], with_features(world, ids)
    found = solve(quadratic, model, start_of(world, model), tolerance=1e-14, max_sweeps=3000)
    slopes = gradient(quadratic, model, found.point)
    assert max(float(slope.abs().max()) for slope in slopes.values()) < 1e-6
    assert found.objective == pytest.approx(float(dense_objective(quadratic, model, found.point)), rel=1e-8)
    if not ids:
        assert float(found.point["users"][:, :-1].abs().max()) == 0.0


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_l2_may_pull_to_a_given_point(name: str, features: bool) -> None:
    """The optimum of that objective, of all columns of the point and no others; biases are pulled to 0."""
    world = World.draw(12)
    quadratic, plain = problems(world)[name], with_features(world, True) if features else model_of(world)
    start = start_of(world, plain, seed=3)
    start["users"] = 0.3 * torch.randn_like(start["users"])
    start["users"][:, 0] = start["items"][:, 0] = 0.0
    for key in ("user_features", "item_features"):
        if key in start:
            start[key][:, 0] = 0.0
    model = plain.around(start, 0.7)
    assert bool((model.users.centre[:, -1] == 0.0).all())
    torch.testing.assert_close(model.items.centre[:, :-1], 0.7 * start["items"][:, :-1])
    found = solve(quadratic, model, start, tolerance=1e-14, max_sweeps=2000)
    slopes = gradient(quadratic, model, found.point)
    kept = {k: v if v.ndim == 0 else v[:, 1:] for k, v in slopes.items()}
    assert max(float(slope.abs().max()) for slope in kept.values()) < 1e-6
    assert float(found.point["users"][:, 0].abs().max()) == 0.0
    assert found.objective == pytest.approx(float(dense_objective(quadratic, model, found.point)), rel=1e-8)


def test_an_l2_beyond_all_data_leaves_the_vectors_where_it_pulls_them() -> None:
    world = World.draw(13)
    quadratic, model = problems(world)["ips"], model_of(world, l2=1e5)
    start = start_of(world, model)
    start["users"] = torch.randn_like(start["users"])
    found = solve(quadratic, model.around(start), start, tolerance=1e-12, max_sweeps=500).point
    for name in ("users", "items"):
        torch.testing.assert_close(found[name][:, :-1], start[name][:, :-1], rtol=0.0, atol=1e-3)
        assert float(found[name][:, -1].abs().max()) < 1e-3


def in_proportion(name: str) -> tuple[World, Quadratic, Model]:
    """A log of all pairs with one weight: all rows of a side have the same matrix, so nothing is approximate."""
    world = World.draw(14, share=2.0)
    quadratic, model = problems(world)["dr" if name == "dr" else "naive"], with_features(world, True)
    if name == "features only":
        model = replace(model, users=replace(model.users, penalty=torch.full_like(model.users.penalty, torch.inf)))
    return world, quadratic, model


@pytest.mark.parametrize("name", ["naive", "dr", "features only"])
def test_where_all_rows_are_alike_a_preconditioned_slope_is_the_newton_step_of_a_side(name: str) -> None:
    world, quadratic, model = in_proportion(name)
    point = {k: torch.randn_like(v) for k, v in start_of(world, model).items()}
    rows, side = Rows.of_users(quadratic, model.scores(point)), model.users
    matrix = rows.matrices()[0]
    width, free = DIM + 1, side.free.bool()
    x = torch.cat([torch.eye(world.n_users, dtype=torch.float64), dense_design(side.features)], 1)
    l2 = torch.cat([side.cost.expand(world.n_users, -1), side.features.penalty])
    whole = torch.kron(x.T @ x, matrix) + torch.diag(l2.flatten())
    is_there = torch.cat([free.expand(world.n_users, -1), torch.ones(3, width, dtype=torch.bool)])
    slope = torch.randn(len(l2), width, dtype=torch.float64) * is_there
    at = is_there.flatten()
    expected = torch.zeros_like(slope).flatten()
    expected[at] = torch.linalg.solve(whole[at][:, at], slope.flatten()[at])
    metric = metric_of(rows, side, lambda total: total)
    own, weights = precondition(metric, rows, side, slope[:-3], slope[-3:], lambda total: total)
    torch.testing.assert_close(torch.cat([own, weights]), expected.reshape(slope.shape), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("columns", [0, 12])
@pytest.mark.parametrize("name", NAMES)
def test_the_preconditioner_is_symmetric_and_positive(name: str, columns: int, monkeypatch) -> None:
    monkeypatch.setattr(preconditioner, "NARROW", columns)
    monkeypatch.setattr(preconditioner, "FEW_COLUMNS", columns)
    world = World.draw(16)
    quadratic, model = problems(world)[name], with_features(world, True)
    scores = model.scores({k: torch.randn_like(v) for k, v in start_of(world, model).items()})
    rows, side = Rows.of_users(quadratic, scores), model.users
    metric = metric_of(rows, side, lambda total: total)
    assert ("inverse" in metric) == (columns > 0 and name != "dr")

    def turned(slope: Tensor) -> Tensor:
        return torch.cat(precondition(metric, rows, side, slope[:-3], slope[-3:], lambda total: total))

    a, b = (torch.randn(world.n_users + 3, DIM + 1, dtype=torch.float64) for _ in range(2))
    assert float((a * turned(b)).sum()) == pytest.approx(float((b * turned(a)).sum()), rel=1e-8)
    assert float((a * turned(a)).sum()) > 0.0


def test_weights_of_features_that_own_parameters_could_take_back_do_not_slow_the_solver() -> None:
    world = World.draw(17, n_users=60, n_items=40, share=0.5)
    quadratic, model = problems(world)["naive"], with_features(world, True)
    least = replace(model.users, penalty=1e-2 * model.users.penalty)
    found = solve(quadratic, replace(model, users=least), start_of(world, model), tolerance=1e-6, max_sweeps=400)
    assert found.settled >= 2
    assert found.number < 100


def test_of_many_features_only_their_own_weights_are_in_the_preconditioner(monkeypatch) -> None:
    world = World.draw(15)
    quadratic, model = problems(world)["naive"], with_features(world, True)
    whole = solve(quadratic, model, start_of(world, model), tolerance=1e-14, max_sweeps=3000)
    monkeypatch.setattr(preconditioner, "MANY_FEATURES", 2)
    rows = Rows.of_users(quadratic, model.scores(whole.point))
    assert feature_axes(rows, model.users, model.users.features, lambda x: x).features.ndim == 1
    apart = solve(quadratic, model, start_of(world, model), tolerance=1e-14, max_sweeps=3000)
    assert apart.objective == pytest.approx(whole.objective, rel=1e-9)


@dataclass
class Robust:
    """Σ_D (s − m)² + Σ_O max(a k, b k) with k = slope · (s − zero), or the second sum alone with k = (s − r)² − e⁰."""

    world: World
    kind: str

    def __post_init__(self) -> None:
        draw = self.world.numbers
        self.a, self.r, self.e0, self.slope, self.zero = draw(1, 2), draw(), draw(0, 0.3), draw(-2, 2), draw()
        self.b = self.a + draw(0, 3)
        self.m, self.pairs, self.pattern = (
            self.world.pull(),
            self.world.n_users * self.world.n_items,
            self.world.pattern,
        )

    def _seen(self, scores: LowRank) -> Tensor:
        return scores.tile()[self.world.user, self.world.item]

    @property
    def problem(self) -> WorstCase:
        """The same as the solver has it."""
        box = Box(self.a, self.b)
        line = BentLine.of(self.slope, self.zero, None, box)
        bent: Bent = BentSquare(self.r, self.e0, box) if self.kind == "square" else line
        log = LogBlocks(Observed(self.pattern, self.r, box), UserPartition.undivided(self.world.n_users))
        unit = 1.0 / self.pairs
        if self.kind == "square":
            return WorstCase(log, lambda *_: bent, unit)
        return WorstCase(log, lambda *_: bent, unit, float((self.m.tile() ** 2).sum()) * unit, unit, self.m)

    def value(self, scores: LowRank) -> float:
        s = self._seen(scores)
        k = (s - self.r) ** 2 - self.e0 if self.kind == "square" else self.slope * (s - self.zero)
        everywhere = 0.0 if self.kind == "square" else ((scores.tile() - self.m.tile()) ** 2).sum()
        return float((torch.maximum(self.a * k, self.b * k).sum() + everywhere) / self.pairs)


KINDS = pytest.mark.parametrize("kind", ["square", "line"])


@KINDS
def test_a_worst_case_loss_never_rises_and_ends_where_no_nearby_point_is_lower(kind: str) -> None:
    world = World.draw(12, 20, 12)
    robust, model = Robust(world, kind), model_of(world)
    problem, history = robust.problem, list[Sweep]()
    end = solve(problem, model, start_of(world, model), tolerance=1e-7, max_sweeps=500, after=history.append)
    objectives = [step.objective for step in history]
    assert objectives == sorted(objectives, reverse=True)
    assert end.number < 500
    assert end.objective == pytest.approx(problem.value(model.scores(end.point)) + model.penalty(end.point), abs=1e-10)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(50):
            near = {k: v + size * torch.randn(v.shape, generator=generator) for k, v in end.point.items()}
            assert problem.value(model.scores(near)) + model.penalty(near) > end.objective


@KINDS
def test_rounded_bends_are_above_the_worst_case_and_vanish_with_their_width(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.draw(12, 20, 12)
    robust, model = Robust(world, kind), model_of(world)
    point = start_of(world, model)
    point["users"].normal_(generator=torch.Generator().manual_seed(3))
    scores, gaps = model.scores(point), []
    for width in (0.1, 0.01, 0.001, 0.0):
        monkeypatch.setattr(majorise, "WIDTH", width)
        gaps.append(robust.problem.value(scores) - robust.value(scores))
    assert all(later <= earlier for earlier, later in itertools.pairwise(gaps))
    assert gaps[0] > 0.0
    assert gaps[-1] == pytest.approx(0.0, abs=1e-12)


@KINDS
@pytest.mark.parametrize("width", [0.0, 0.05])
def test_the_quadratic_lies_above_the_worst_case_and_touches_it(
    kind: str, width: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(majorise, "WIDTH", width)
    rng = np.random.default_rng(0)
    y, r, e0, slope = (
        torch.from_numpy(rng.uniform(low, high, 300)) for low, high in ((-1, 2), (0, 1), (0.01, 0.5), (-2, 2))
    )
    a = torch.from_numpy(rng.uniform(1, 3, 300))
    box = Box(a, a + torch.from_numpy(rng.uniform(0, 4, 300)))
    bent: Bent = BentSquare(r, e0, box) if kind == "square" else BentLine.of(slope, r, None, box)
    c, d = bent.above(y)
    grid = torch.linspace(-3, 4, 701, dtype=torch.float64)[:, None]
    slack = (c * grid**2 - 2 * d * grid) - (c * y**2 - 2 * d * y) - (bent.loss(grid) - bent.loss(y))
    assert float(slack.min()) > (-1e-10 if kind == "line" or not width else -0.2 * width)
    near = (c * (y + 1e-6) ** 2 - 2 * d * (y + 1e-6)) - (c * y**2 - 2 * d * y) - (bent.loss(y + 1e-6) - bent.loss(y))
    assert float(near.abs().median()) < 1e-9


@pytest.mark.parametrize("width", [0.0, 0.05])
def test_the_quadratic_of_an_interval_lies_above_its_worse_end(width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(majorise, "WIDTH", width)
    rng = np.random.default_rng(1)
    y, q, gamma = (torch.from_numpy(rng.uniform(low, high, 300)) for low, high in ((-1, 2), (0, 1), (1.01, 4)))
    low, high = unseen_interval(q, gamma)
    weight = torch.from_numpy(rng.uniform(0.1, 3, 300))
    bent: Bent = BentInterval(weight, 0.5 * (low + high), 0.5 * (high - low))
    grid = torch.linspace(-3, 4, 701, dtype=torch.float64)[:, None]
    rounded = bent.loss(grid) - weight * worst_square(grid, q, gamma)
    far = (grid - bent.middle).abs() >= width
    assert float(rounded.min()) > -1e-10
    assert float(rounded[far].max()) < 1e-10
    assert width == 0.0 or float(rounded[~far].max()) <= float((weight * bent.half).max()) * width
    c, d = bent.above(y)
    slack = (c * grid**2 - 2 * d * grid) - (c * y**2 - 2 * d * y) - (bent.loss(grid) - bent.loss(y))
    assert float(slack.min()) > -1e-10
    near = (c * (y + 1e-6) ** 2 - 2 * d * (y + 1e-6)) - (c * y**2 - 2 * d * y) - (bent.loss(y + 1e-6) - bent.loss(y))
    assert float(near.abs().median()) < 1e-9


def test_a_line_search_finds_where_a_bent_function_stops_falling() -> None:
    def bent(t: float) -> tuple[float, float]:
        """(t − 3)²/2 + |t − 2|, less its value at 0: flat at its bend, t = 2."""
        return 0.5 * (t - 3) ** 2 + abs(t - 2) - 6.5, (t - 3) + np.sign(t - 2)

    t, change = secant_search(bent, -4.0, 0.1)
    assert t == pytest.approx(2.0, abs=0.3)
    assert change == pytest.approx(bent(t)[0])
    t, change = secant_search(lambda t: ((t - 5) ** 2 - 25, 2 * (t - 5)), -10.0, 0.1)
    assert (t, change) == pytest.approx((5.0, -25.0), abs=1e-6)
    assert secant_search(lambda t: (t, 1.0), -1.0, 1.0) == (0.0, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_start_moved_by_a_ten_millionth_ends_at_the_same_scores(name: str) -> None:
    world = World.draw(13, 40, 30)
    quadratic = problems(world)[name]
    model = Model(Side(penalty(40).float()), Side(penalty(30).float()))
    block = next(iter(quadratic.blocks()))
    c = block.c if isinstance(block.c, float) else block.c.float()
    pull = quadratic.pull and LowRank.of(quadratic.pull.lefts[0].float(), quadratic.pull.rights[0].float())
    single = Quadratic.in_memory(world.pattern, c, block.d.float(), v=quadratic.v, pull=pull)
    first = start_of(world, model)
    generator = torch.Generator().manual_seed(1)
    moved = {k: v + 1e-7 * torch.randn(v.shape, generator=generator) for k, v in first.items()}
    ends = [model.scores(solve(single, model, start).point).tile() for start in (first, moved)]
    assert float((ends[0] - ends[1]).abs().max()) < 1e-4


def test_strong_l2_leaves_no_vectors_and_is_solved_in_a_few_sweeps() -> None:
    world = World.draw(14, 30, 20)
    model = model_of(world, 20.0)
    found = solve(problems(world)["naive"], model, start_of(world, model))
    assert found.number < 20
    scores = model.scores(found.point)
    assert float((scores.lefts[0][:, :DIM] @ scores.rights[0][:, :DIM].T).abs().max()) < 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_biases_are_solved_to_the_tolerance_where_no_column_is_worth_its_l2(name: str) -> None:
    world = World.draw(18, 30, 20)
    quadratic, model = problems(world)[name], model_of(world, 0.1)
    model = Model(
        *(Side(torch.cat([side.penalty[:-1] * 1e4, side.penalty[-1:]])) for side in (model.users, model.items))
    )
    found = solve(quadratic, model, start_of(world, model), tolerance=1e-7)
    assert float(found.point["users"][:, :-1].abs().max()) == 0.0
    assert max(float(slope.abs().max()) for slope in gradient(quadratic, model, found.point).values()) < 1e-7


def test_columns_that_l2_empties_are_left_out_without_changing_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.draw(17, 40, 30)
    left, right = world.rng.normal(size=40), world.rng.normal(size=30)
    r = torch.from_numpy(left[world.user] * right[world.item])  # one true column of eight
    quadratic = Quadratic.in_memory(world.pattern, 1.0 / len(world), r / len(world), constant=float((r**2).mean()))
    model = Model(*(Side(torch.full((9,), 0.3 / n, dtype=torch.float64)) for n in (40, 30)))
    widths: list[int] = []
    found = solve(
        quadratic, model, start_of(world, model), after=lambda step: widths.append(step.point["users"].shape[1])
    )
    monkeypatch.setattr("puidrec.train.solver.NARROW_FIRST", 10_000)
    monkeypatch.setattr("puidrec.train.solver.without_empty", lambda point, _: point)
    whole = solve(quadratic, model, start_of(world, model))
    assert widths[0] == 1
    assert 1 < widths[-1] < 9
    assert found.point["users"].shape == (40, 9)
    assert found.objective == pytest.approx(whole.objective, rel=1e-7)
    torch.testing.assert_close(model.scores(found.point).tile(), model.scores(whole.point).tile(), rtol=0, atol=1e-3)


def test_a_column_of_nothing_under_next_to_no_l2_is_not_singular() -> None:
    """Ten million likes have an L2 of 1e-23: rounding of an empty column is larger, and below 0 half of the time."""
    weights = torch.ones(4)

    def axes(cost: float, empty: float):
        rows = SimpleNamespace(
            gram=None, weights=lambda: (weights,), typical=lambda: torch.diag(torch.tensor([1.0, empty]).double())
        )
        return similar_axes(rows, Side(torch.full((2,), cost)))

    assert torch.isfinite(axes(9e-24, -1e-20).axes).all()
    with pytest.raises(UnsolvableError, match="singular"):
        axes(9e-24, -1e-6)


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1e-6, 1e-6), (1e-8, 1e-2), (1e-30, 1e-3), (0.0, 1e-4), (0.0, 0.0)])
def test_scores_along_a_line_keep_their_digits_however_short_the_step(sizes) -> None:
    world = World.draw(3)
    model = model_of(world)
    point = {k: torch.randn_like(v).float() for k, v in start_of(world, model).items()}
    step = {k: torch.randn_like(v) * (sizes[0] if k == "users" else sizes[1]) for k, v in point.items()}
    scores, along = model.scores(point), model.scores(step, step=True)
    block = next(iter(problems(world)["naive"].blocks()))
    s1, s2 = block.change(Line.of(scores, along), block.scores(scores))
    user, item = block.pattern.user, block.pattern.col.long()

    def dense(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left.double() @ right.double().T)[user, item]

    (left,), (right,), (dl,), (dr,) = scores.lefts, scores.rights, along.lefts, along.rights
    first, second = dense(dl, right) + dense(left, dr), dense(dl, dr)
    assert float((s1 - first).abs().max()) <= 1e-5 * float(first.abs().max())
    assert float((s2 - second).abs().max()) <= 1e-5 * float(second.abs().max())
