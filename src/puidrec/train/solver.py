"""Least squares of low-rank scores, solved to the optimum: sides take turns, each by matrix-free conjugate gradients.

    minimise  J = Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant + penalty,   s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ

O are the logged pairs, D all pairs, m constant and of low rank. With one side fixed J is quadratic in the other:

    A_u = v FᵀF + Σ_{i∈O_u} c_ui f_i f_iᵀ + ρ,   f_i = (z_i, 1),

so a *sweep* (users, then items, a few steps of conjugate gradients each, then the mean) lowers it. Sweeps alone have a
long tail. So the sweep only proposes a direction: it is combined with the last one as in nonlinear conjugate gradients,
and J along it, a polynomial of degree four in the step, is minimised exactly. J therefore never rises.

Robust weights depend on the scores: such a problem gives, at the current scores, a quadratic that lies above its loss
and touches it there (`objective.majorise`); lowering one lowers the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from puidrec.train.columns import needed_axes, turned, widened, without_empty
from puidrec.train.quadratic import Objective, Quadratic, alone, exact_sum
from puidrec.train.sides import STEPS, Features, Model, Point, Side, UnsolvableError, sweep

__all__ = ["Features", "Model", "Point", "Side", "Sweep", "UnsolvableError", "best_step", "solve", "sweep"]

TOLERANCE = 1e-5
"""Change of scores per sweep below which the solver ends: root mean square, as the objective weighs pairs, against that
of the residuals. Near the optimum its square is the gain over the objective, exact however users are divided."""
SETTLED = 2
"""Sweeps in a row that must stay below the tolerance."""
ROUNDING = 1e-3
"""Share of the numbers' precision below which a gain of the objective is rounding."""
HALVINGS = 4
NARROW_EVERY, WIDEN_EVERY = 2, 10
"""Sweeps after which needless, and lacking columns are looked for."""
RISE = 1e-8
"""Share of the objective that leaving a column out may cost, which is the rounding error of the objective itself."""
WORTH = 1e-8
"""Share of the objective that a further column must gain."""


class Sweep(NamedTuple):
    """Where the solver stands after a sweep: enough to go on to the same bits on the same machine."""

    number: int
    objective: float
    point: Point
    direction: Point
    proposal: Point
    """What the last sweep alone would have changed."""
    settled: int
    """Sweeps in a row that changed scores by less than the tolerance."""


def solve(
    problem: Objective,
    model: Model,
    start: Point | Sweep,
    *,
    tolerance: float = TOLERANCE,
    max_sweeps: int = 200,
    steps: int = STEPS,
    after: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Minimise problem + penalty, until `SETTLED` sweeps in a row change scores by less than `tolerance`.

    start: a point, or the sweep to go on from. after: called after every sweep, to keep a history or a checkpoint.
    Columns that L2 has shrunk to nothing are left out of the work (`Model.padded` puts them back).
    """
    state = start if isinstance(start, Sweep) else _first(problem, model, start)
    while state.number < max_sweeps:
        done = state.settled >= SETTLED
        if done or state.number % WIDEN_EVERY == WIDEN_EVERY - 1:
            wider = _widened(problem, model, state)
            if wider is None and done:
                break
            state = wider or state
        width = state.point["users"].shape[1]
        state = _next(problem, model.narrowed(width), state, tolerance, steps)
        if state.number % NARROW_EVERY == 0:
            state = _narrowed(problem, model.narrowed(width), state)
        if after is not None:
            after(state)
    return state._replace(point=model.padded(state.point), direction={}, proposal={})


def _widened(problem: Objective, model: Model, state: Sweep) -> Sweep | None:
    """The state with the columns that it lacks; None if it lacks none."""
    if not model.by_rows:
        return None
    found = widened(problem, model, state.point, state.objective, WORTH * abs(state.objective))
    return found and Sweep(state.number, found[1], found[0], {}, {}, 0)


def _narrowed(problem: Objective, model: Model, state: Sweep) -> Sweep:
    """The state without columns that it does not need."""
    axes = needed_axes(model, state.point, state.direction)
    if axes is None:
        return state
    point, narrow = turned(state.point, axes), model.narrowed(axes.shape[1] + 1)
    objective = problem.value(narrow.scores(point)) + narrow.penalty(point)
    if objective > state.objective * (1.0 + RISE):
        return state
    return state._replace(
        objective=min(objective, state.objective), point=point, direction=turned(state.direction, axes),
        proposal=turned(state.proposal, axes),
    )  # fmt: skip


def _first(problem: Objective, model: Model, point: Point) -> Sweep:
    if model.by_rows:
        point = without_empty(point)
        model = model.narrowed(point["users"].shape[1])
    objective = problem.value(model.scores(point)) + model.penalty(point)
    _check_finite(objective, "at the start")
    return Sweep(0, objective, point, {}, {}, 0)


def _next(problem: Objective, model: Model, state: Sweep, tolerance: float, steps: int) -> Sweep:
    """One sweep, the direction it gives, and the best step along it."""
    scores = model.scores(state.point)
    quadratic = problem.at(scores)
    proposal = _change(sweep(quadratic, model, state.point, steps), state.point)
    t, gain, direction = 0.0, 0.0, proposal
    for direction in (_direction(model, proposal, state), proposal):
        polynomial = quadratic.along(scores, model.scores(direction, step=True))
        polynomial[:3] += model.penalty_along(state.point, direction)
        t, gain = best_step(polynomial)
        if gain < 0.0:
            break
    if not isinstance(problem, Quadratic):
        t, gain = _guarded(problem, model, state, direction, t)
    _check_finite(gain, f"in sweep {state.number + 1}")
    point = {name: x + t * direction[name] for name, x in state.point.items()} if gain < 0.0 else state.point
    objective = state.objective + min(gain, 0.0)
    rounding = ROUNDING * torch.finfo(state.point["users"].dtype).eps
    still = -gain <= max(tolerance**2, rounding) * abs(objective)
    return Sweep(state.number + 1, objective, point, direction, proposal, state.settled + 1 if still else 0)


def _guarded(problem: Objective, model: Model, state: Sweep, direction: Point, t: float) -> tuple[float, float]:
    """The step, halved until the loss itself (not only the quadratic in its place) falls; 0 if it does not."""
    for _ in range(HALVINGS):
        point = {name: x + t * direction[name] for name, x in state.point.items()}
        gain = problem.value(model.scores(point)) + model.penalty(point) - state.objective
        if gain < 0.0:
            return t, gain
        t *= 0.5
    return 0.0, 0.0


def _direction(model: Model, proposal: Point, state: Sweep) -> Point:
    """The sweep's proposal plus what remains of the last direction (Polak–Ribière, never negative)."""
    if not state.proposal:
        return proposal
    difference = {name: x - state.proposal[name] for name, x in proposal.items()}
    before = _inner(model, state.proposal, state.proposal)
    beta = max(_inner(model, proposal, difference) / before, 0.0) if before > 0.0 else 0.0
    return {name: x + beta * state.direction[name] for name, x in proposal.items()} if beta else proposal


def _inner(model: Model, first: Point, second: Point) -> float:
    """Mean product of the changes of users' rows plus that of items' rows."""
    means = []
    for name, side, reduce in (("user", model.users, model.reduce), ("item", model.items, alone)):
        a, b = (side.rows(point[f"{name}s"], point.get(f"{name}_features")) for point in (first, second))
        own = exact_sum(a * b)
        total, count = reduce(torch.stack([own, torch.full_like(own, len(a))]))
        means.append(float(total / count.clamp_min(1.0)))
    return sum(means)


def best_step(polynomial: np.ndarray) -> tuple[float, float]:
    """argmin over t of Σ p_k t^k (degree four at most), and the change of value from t = 0."""
    gains = np.concatenate([[0.0], polynomial[1:]])
    if not np.isfinite(gains).all():
        return 0.0, float("nan")
    slope = np.trim_zeros(np.polynomial.polynomial.polyder(gains), "b")
    if slope.size == 0:  # nothing to move: the step is 0 everywhere
        return 0.0, 0.0
    roots = np.polynomial.polynomial.polyroots(slope)
    real = [0.0, *(float(root.real) for root in np.atleast_1d(roots) if abs(root.imag) <= 1e-6 * (1 + abs(root)))]
    values = np.polynomial.polynomial.polyval(np.array(real), gains)
    best = int(np.argmin(values))
    return real[best], float(values[best])


def _change(after: Point, before: Point) -> Point:
    return {name: after[name] - x for name, x in before.items()}


def _check_finite(value: float, when: str) -> None:
    if not np.isfinite(value):
        raise UnsolvableError(
            f"the objective is not a finite number {when}; check the ratings and weights, or raise l2"
        )
