"""Least squares of low-rank scores, solved to the optimum by preconditioned conjugate gradients, matrix-free.

    minimise  J = Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant + penalty,   s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ

O are the logged pairs, D all pairs, m constant and of low rank. With one side fixed J is quadratic in the other:

    A_u = v FᵀF + Σ_{i∈O_u} c_ui f_i f_iᵀ + ρ,   f_i = (z_i, 1),

so these matrices, or what is typical of them, precondition the slope of J in all parameters at once
(`train.steps.joint_step`). Sides take turns instead where each can be solved exactly (c = 0 makes A the same for all
rows, and there are no features), at a start from 0 with features, and where no L2 determines the parameters.
Either way a *sweep* only proposes a direction: it is combined with the last one as in nonlinear conjugate gradients,
and J along it, a polynomial of degree four in the step, is minimised exactly. J therefore never rises.

Robust weights depend on the scores: such a problem gives, at the current scores, a quadratic that lies above its loss
and touches it there (`objective.majorise`); lowering one lowers the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.train.columns import filled, in_use, needed_axes, turned, widened, without_empty, without_padding
from puidrec.train.preconditioner import Metric, metric_width
from puidrec.train.quadratic import Objective, Quadratic, alone, best_step, exact_sum
from puidrec.train.sides import Features, Model, Point, Side, UnsolvableError, centred
from puidrec.train.steps import STEPS, joint_step, sweep

__all__ = ["Features", "Metric", "Model", "Point", "Side", "Sweep", "UnsolvableError", "best_step", "solve", "sweep"]

TOLERANCE = MappingProxyType({torch.float64: 3e-7, torch.float32: 1e-5})
"""Change of scores per sweep below which the solver ends: root mean square, as the objective weighs pairs, against that
of the residuals. Near the optimum its square is the gain over the objective, exact however users are divided. The
optimum of a small log can be flat: in double precision it is followed until no score is further than 1e-4 from it."""
JOINTLY = 2.0
"""Without features the optimum is less flat, and this times the tolerance does."""
SETTLED = 2
"""Sweeps in a row that must stay below the tolerance."""
ROUNDING = 1e-3
"""Share of the numbers' precision below which a gain of the objective is rounding."""
METRIC_FIRST = 5
"""The sweep after which matrices that precondition slopes are made again, twice as late where L2 pulls to a point near
the start; later as below."""
NARROW_FIRST = 8
"""The sweep after which needless columns are looked for; again after sweeps of twice its number, four times it, …"""
WIDEN_FIRST = 5
"""The sweep before which lacking columns are looked for; again as above, and at the end."""
COLD = 1e-3
"""Length of all users' vectors, against that of all items', below which a start is one from 0."""
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
    size: float = 0.0
    """Inner product of the last proposal and the slope it was made of, where all parameters moved at once."""
    metric: Mapping[str, Tensor] = MappingProxyType({})
    """What slopes became proposals by, where all parameters moved at once."""


def solve(
    problem: Objective,
    model: Model,
    start: Point | Sweep,
    *,
    tolerance: float | None = None,
    max_sweeps: int = 200,
    steps: int = STEPS,
    metric: Metric | None = None,
    after: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Minimise problem + penalty, until `SETTLED` sweeps in a row change scores by less than `tolerance`.

    tolerance: by precision where it is None (`TOLERANCE`).
    start: a point, or the sweep to go on from. metric: of a similar problem solved before, where it is known.
    after: called after every sweep, to keep a history or a checkpoint.
    Columns that L2 has shrunk to nothing are left out of the work (`Model.padded` puts them back); columns are added
    where they lower the objective, unless L2 pulls to given columns.
    """
    state = start if isinstance(start, Sweep) else _first(problem, model, start, metric or {})
    widens, narrow = not model.anchored, model
    tolerance = TOLERANCE[state.point["users"].dtype] if tolerance is None else tolerance
    while state.number < max_sweeps:
        done = state.settled >= SETTLED
        if done or (widens and _is_due(state.number + 1, WIDEN_FIRST)):
            wider = _widened(problem, model, state) if widens else None
            if wider is None and done:
                break
            state = wider or state
        if state.point["users"].shape[1] != narrow.users.penalty.numel():
            narrow = model.narrowed(state.point["users"].shape[1])
        state = _next(problem, narrow, state, tolerance, steps)
        if _is_due(state.number, NARROW_FIRST) and not model.anchored:
            state = _narrowed(problem, narrow, state)
        if after is not None:
            after(state)
    return state._replace(point=model.padded(state.point), direction={}, proposal={})


def _is_due(number: int, first: int) -> bool:
    """Whether a sweep's number is `first`, twice it, four times it, …"""
    turns, rest = divmod(number, first)
    return rest == 0 and turns.bit_count() == 1


def _widened(problem: Objective, model: Model, state: Sweep) -> Sweep | None:
    """The state with the columns that it lacks; None if it lacks none."""
    if not model.by_rows:
        return None
    point = without_empty(state.point, model.reduce)
    found = widened(problem, model, point, state.objective, WORTH * abs(state.objective))
    return found and Sweep(state.number, found[1], found[0], {}, {}, 0)


def _narrowed(problem: Objective, model: Model, state: Sweep) -> Sweep:
    """The state without columns that it does not need."""
    axes = needed_axes(problem, model, state.point, state.direction)
    if axes is None:
        return state
    point, narrow = turned(state.point, axes), model.narrowed(axes.shape[1] + 1)
    objective = problem.value(narrow.scores(point)) + narrow.penalty(point)
    if objective > state.objective * (1.0 + RISE):
        return state
    return state._replace(
        objective=min(objective, state.objective), point=point, direction=turned(state.direction, axes),
        proposal=turned(state.proposal, axes), metric={},
    )  # fmt: skip


def _first(problem: Objective, model: Model, point: Point, metric: Metric) -> Sweep:
    if model.anchored:
        point = without_padding(model, point)
    elif model.by_rows:
        point = filled(without_empty(point, model.reduce), model)
    elif model.edge_share < 1.0:  # where features share columns, those that L2 has emptied would be filled with noise
        point = in_use(model, point)
    model = model.narrowed(point["users"].shape[1])
    point = centred(model, {name: x.clone() for name, x in point.items()})
    objective = problem.value(model.scores(point)) + model.penalty(point)
    _check_finite(objective, "at the start")
    known = metric if metric_width(metric) == point["users"].shape[1] else {}
    return Sweep(0, objective, point, {}, {}, 0, metric=known)


def _next(problem: Objective, model: Model, state: Sweep, tolerance: float, steps: int) -> Sweep:
    """One sweep, the direction it gives, and the best step along it."""
    scores = model.scores(state.point)
    quadratic = problem.at(scores)
    due = _is_due(state.number, METRIC_FIRST * (1 + model.anchored))
    metric = {} if due else dict(state.metric)
    if _at_once(quadratic, model, state, scores):
        proposal, slope, known = joint_step(quadratic, model, state.point, scores, metric)
        size = _dot(model, slope, proposal)
        beta = (size - _dot(model, slope, state.proposal)) / state.size if state.proposal and state.size > 0.0 else 0.0
    else:
        proposal, known, size = _change(sweep(quadratic, model, state.point, steps), state.point), {}, 0.0
        beta = _beta(model, proposal, state)
    t, gain, direction = 0.0, 0.0, proposal
    for remains in (beta, 0.0) if beta > 0.0 else (0.0,):
        direction = _moved(proposal, state.direction, remains) if remains else proposal
        penalty = model.penalty_along(state.point, direction)
        t, gain = problem.line_search(quadratic, scores, model.scores(direction, step=True), penalty, known)
        if gain < 0.0:
            break
    _check_finite(gain, f"in sweep {state.number + 1}")
    point = _moved(state.point, direction, t) if gain < 0.0 else state.point
    objective = state.objective + min(gain, 0.0)
    rounding = ROUNDING * torch.finfo(state.point["users"].dtype).eps
    enough = (JOINTLY * tolerance if known and model.by_rows else tolerance) ** 2
    still = -gain <= max(enough, rounding) * abs(objective)
    settled = state.settled + 1 if still else 0
    return Sweep(state.number + 1, objective, point, direction, proposal, settled, size, metric)


def _at_once(quadratic: Quadratic, model: Model, state: Sweep, scores: LowRank) -> bool:
    """Whether all parameters move at once; where users' vectors are next to 0, those of items have no slope yet."""
    if model.by_rows:
        return not quadratic.same_matrix
    if not model.penalised or state.number > 0:
        return model.penalised
    squares = [exact_sum(side[:, :-2].square()) for side in (scores.lefts[0], scores.rights[0])]
    return bool(model.reduce(squares[0]) > COLD**2 * squares[1])


def _beta(model: Model, proposal: Point, state: Sweep) -> float:
    """What remains of the last direction (Polak–Ribière) where sides took turns, so that proposals are no slopes."""
    if not state.proposal:
        return 0.0
    before = _inner(model, state.proposal, state.proposal)
    return _inner(model, proposal, _change(proposal, state.proposal)) / before if before > 0.0 else 0.0


def _dot(model: Model, first: Point, second: Point) -> float:
    """Σ over all parameters of two points, of all processes."""
    own = model.reduce(exact_sum(first["users"] * second["users"]))
    shared = sum(exact_sum(x * second[name]) for name, x in first.items() if name not in ("users", "mean"))
    return float(own + shared) + float(first["mean"] * second["mean"])


def _inner(model: Model, first: Point, second: Point) -> float:
    """Mean product of the changes of users' rows plus that of items' rows."""
    means = []
    for name, side, reduce in (("user", model.users, model.reduce), ("item", model.items, alone)):
        a, b = (side.rows(point[f"{name}s"], point.get(f"{name}_features")) for point in (first, second))
        own = exact_sum(a * b)
        total, count = reduce(torch.stack([own, torch.full_like(own, len(a))]))
        means.append(float(total / count.clamp_min(1.0)))
    return sum(means)


def _moved(point: Point, step: Point, t: float) -> Point:
    return {name: torch.add(x, step[name], alpha=t) for name, x in point.items()}


def _change(after: Point, before: Point) -> Point:
    return {name: after[name] - x for name, x in before.items()}


def _check_finite(value: float, when: str) -> None:
    if not np.isfinite(value):
        raise UnsolvableError(
            f"the objective is not a finite number {when}; check the ratings and weights, or raise l2"
        )
