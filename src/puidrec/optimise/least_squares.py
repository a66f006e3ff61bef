"""Low-rank scores solved to the optimum: nonlinear conjugate gradients, preconditioned,
matrix-free.

    minimise  J(s) + penalty,   s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ

A sweep makes the slope of J in all parameters in one pass over the log, turns it into a step by
what is typical of the curvature of each side (`optimise.preconditioner`), combines that with the
last direction, and goes to the lowest point of the line. J never rises.

What differs from the textbook (Nocedal & Wright, "Numerical Optimization", algorithm 5.4):

1. The line search is exact. Scores along a line are s0 + t s1 + t² s2, so that a quadratic J is a
   polynomial of degree four in t; a J that bends is followed by secants of its own slope.
2. β is that of Polak and Ribière in the norm of the preconditioner, and 0 where that would make J
   rise.
3. The preconditioner is made anew from time to time.
4. Columns that L2 has emptied leave, and the end is only where none is missing
   (`optimise.model`).
5. Where many pairs lie on bends these are rounded off widely at first, then more and more
   sharply, and steps solve for pairs (`optimise.preconditioner.step_by_pairs`).

The vectors start from the leading singular directions of the slope at the biases alone, so that
neither the order nor the names of users and items choose where the solver ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from puidrec.losses.pair_loss import Objective
from puidrec.optimise.model import Metric, Model, Point, emptied, grown, misses_a_column, padded
from puidrec.optimise.preconditioner import (
    UnsolvableError,
    by_pairs,
    metric_of,
    metric_width,
    step_by_pairs,
)
from puidrec.scores.log import Column

TOLERANCE = MappingProxyType({torch.float64: 3e-7, torch.float32: 5e-5})
"""Change of scores per sweep below which the solver ends: root mean square, as the objective weighs
pairs, against that of the residuals. Near the optimum its square is the gain over the objective.
The optimum of a small log can be flat: in double precision it is followed until no score is further
than 1e-4 from it; in single precision, of large logs, their root mean square is."""
BENT_TOLERANCE = 3e-3
"""The same where bends at many pairs make the optimum flat: 400 sweeps more lower `puid-dr` on
Yahoo!R3 by .0004 of itself."""
SETTLED = 2
"""Sweeps in a row that must stay below the tolerance."""
ROUNDING = 1e-3
"""Share of the numbers' precision below which a gain of the objective is rounding."""
METRIC_FIRST = 5
"""The sweep after which the preconditioner is made again; later after sweeps of twice its number,
four times it, …"""
REFRESH = 10
"""Sweeps after which logged scores are computed anew, rather than moved along: a checkpoint may be
taken there."""
LOOKED_AT = range(2 * REFRESH, 10 * REFRESH + 1, REFRESH)
"""Sweeps after which empty columns leave."""
EMPTY, NOTHING = 1e-3, 1e-6
"""Share of the L2 of the largest column up to which a column is empty, on the way and at the end.
"""
WIDEST = 100.0
"""How many times as wide as at the end bends are rounded off at first; half as wide after every
`REFRESH` sweeps. Sharp from the first sweep on, `puid-dr` with 64 columns is further from its
optimum after 300 sweeps than so after 70."""
NOT_FINITE = "the objective is not a finite number {}; check the ratings and weights, or raise l2"
SECANTS = 6
"""Steps of a line search where J bends."""
FLAT, LEAP, INSIDE = 0.01, 5.0, 0.05
"""Share of the first slope at which a line search ends; how often a guess may be the last one; how
far inside an interval it lies."""


class Outcome(Enum):
    """How a fit ended, in words that say what to change."""

    CONVERGED = "converged"
    LIMIT = "stopped at the limit of sweeps before the optimum; raise epochs or l2"


class State(NamedTuple):
    """Where the solver stands after a sweep: enough to go on to the same bits on this machine."""

    number: int
    objective: float
    point: Point
    direction: Point
    proposal: Point
    """What the last slope alone would have changed."""
    settled: int
    """Sweeps in a row that changed scores by less than the tolerance."""
    size: float = 0.0
    """Inner product of the last proposal and the slope it was made of."""
    metric: Metric = MappingProxyType({})

    @property
    def fresh(self) -> bool:
        """Whether the next sweep computes all it needs from the parameters alone: what a checkpoint
        may hold."""
        return self.number % REFRESH == 0

    def turned(self, turn: Callable[[Point], Point]) -> State:
        """The same with other columns."""
        point, direction, proposal = map(turn, (self.point, self.direction, self.proposal))
        return self._replace(point=point, direction=direction, proposal=proposal)


class Solution(NamedTuple):
    """The parameters at the end, the objective there, and how it ended."""

    point: Point
    objective: float
    sweeps: int
    outcome: Outcome
    metric: Metric


@dataclass(frozen=True)
class LeastSquares:
    """How far to go: `tolerance` (None: by precision), and the most sweeps."""

    tolerance: float | None = None
    max_sweeps: int = 300

    @torch.no_grad()
    def minimise(
        self,
        objective: Objective,
        model: Model,
        start: Point | State,
        *,
        metric: Metric | None = None,
        after: Callable[[State], None] | None = None,
    ) -> Solution:
        """Lower J + penalty until `SETTLED` sweeps in a row change scores by less than the
        tolerance.

        start: parameters, or a state to go on from. metric: the preconditioner of a similar problem
        solved before.
        after: called after every sweep.
        """
        whole, scores, sharp = model, objective.log.scores, objective
        objective = _rounded(sharp, whole, start.number if isinstance(start, State) else 0)
        state = start if isinstance(start, State) else _begin(objective, whole, start, metric or {})
        state, model = _less(objective, state, whole, whole, 0.0)
        dtype = state.point["users"].dtype
        usual = BENT_TOLERANCE if by_pairs(objective, model) else TOLERANCE[dtype]
        least = usual if self.tolerance is None else self.tolerance
        enough = least = max(least**2, ROUNDING * torch.finfo(dtype).eps)
        s = scores(*model.factors(state.point))
        while state.number < self.max_sweeps and state.settled < SETTLED:
            if state.fresh:
                if state.number in LOOKED_AT:
                    state, model = _less(objective, state, model, whole, EMPTY)
                at = model.factors(state.point)
                s = scores(*at)
                if objective is not sharp:
                    objective = _rounded(sharp, whole, state.number)
                    value = objective.value(s, at) + model.penalty(state.point)
                    state = state._replace(objective=value, proposal={}, metric={}, settled=0)
                enough = least * max(abs(state.objective), model.penalty(state.point))
            stiff = by_pairs(objective, model)
            state, s = _sweep(objective, model, state, s, enough, stiff)
            if objective is not sharp and state.settled >= SETTLED:
                state = state._replace(number=-(-state.number // REFRESH) * REFRESH, settled=0)
            if state.settled >= SETTLED:
                state, model = _less(objective, state, model, whole, NOTHING)
                if model.dim < whole.dim and misses_a_column(objective, model, state.point):
                    more = grown(objective, whole, state.point)
                    state, model = _begin(objective, whole, more, {}, state.number), whole
                    s = scores(*model.factors(state.point))
            if after is not None:
                after(state.turned(partial(padded, dim=whole.dim)))
        outcome = Outcome.CONVERGED if state.settled >= SETTLED else Outcome.LIMIT
        point = padded(state.point, whole.dim)
        return Solution(point, state.objective, state.number, outcome, state.metric)


def _rounded(objective: Objective, model: Model, number: int) -> Objective:
    """The objective with its bends as round as they are after so many sweeps."""
    times = WIDEST * 0.5 ** (number // REFRESH)
    if times <= 1.0 or not by_pairs(objective, model):
        return objective
    return replace(objective, loss=objective.loss.rounder(times))


def _begin(
    objective: Objective, model: Model, start: Point, metric: Metric, number: int = 0
) -> State:
    point = model.centred({name: x.clone() for name, x in start.items()})
    turn = emptied(model, point, 0.0)
    if turn is not None:
        few = turn(point)
        narrow = model.narrowed(few["users"].shape[1] - 1)
        if misses_a_column(objective, narrow, few):
            point = grown(objective, model, few)
    at = model.factors(point)
    value = objective.value(objective.log.scores(*at), at) + model.penalty(point)
    if not np.isfinite(value):
        raise UnsolvableError(NOT_FINITE.format("at the start"))
    known = metric if metric_width(metric) == model.dim + 1 else {}
    return State(number, value, point, {}, {}, 0, metric=known)


def _less(
    objective: Objective, state: State, model: Model, whole: Model, least: float
) -> tuple[State, Model]:
    """The state and the model without columns that are empty but for `least`."""
    turn = emptied(model, state.point, least)
    if turn is None:
        return state, model
    state = state.turned(turn)
    width = state.point["users"].shape[1]
    model = whole.narrowed(width - 1)
    if metric_width(state.metric) != width:
        state = state._replace(metric={})
    if least:
        at = model.factors(state.point)
        value = objective.value(objective.log.scores(*at), at) + model.penalty(state.point)
        state = state._replace(metric={}, objective=value)
    return state, model


def _sweep(
    objective: Objective, model: Model, state: State, s: Column, enough: float, stiff: bool
) -> tuple[State, Column]:
    """The slope, the direction it gives, and the best step along it. enough: a gain of J that is
    none. stiff: whether pairs are solved for themselves."""
    point, at = state.point, model.factors(state.point)
    slopes, squares = objective.factor_slopes(s, at)
    slope = model.slopes(point, *slopes)
    metric, (turns, rest) = state.metric, divmod(state.number, METRIC_FIRST)
    if stiff:
        proposal = model.centred(step_by_pairs(objective, model, s, at, slope))
    else:
        if not metric or (rest == 0 and turns.bit_count() == 1):
            metric = metric_of(objective, model, s, at)
        proposal = model.step(metric, slope)
    size, beta = model.dot(slope, proposal), 0.0
    if state.proposal and state.size > 0.0:
        beta = (size - model.dot(slope, state.proposal)) / state.size
    for share in (beta, 0.0) if beta > 0.0 else (0.0,):
        last, direction = state.direction, proposal
        if share:
            direction = {
                name: torch.add(x, last[name], alpha=share) for name, x in proposal.items()
            }
        costly = {name: cost * direction[name] for name, cost in model.costs.items()}
        along = -2.0 * model.dot(slope, direction), model.dot(costly, direction)
        line = objective.line(s, at, squares, model.factors(direction, step=True), *along)
        t, gain = best_step(line.above)
        if not objective.loss.quadratic and np.isfinite(gain):
            t, gain = secant_search(partial(objective.along, line), float(line.above[1]), t)
        if gain < 0.0:
            break
    if not np.isfinite(gain):
        raise UnsolvableError(NOT_FINITE.format(f"in sweep {state.number + 1}"))
    if gain < 0.0:
        point = {name: torch.add(x, direction[name], alpha=t) for name, x in point.items()}
        share = t / line.reach
        ahead = objective.log.map(partial(torch.lerp, weight=share), s, line.far)
        s = objective.log.map(partial(torch.add, alpha=t * (t - line.reach)), ahead, line.s2)
    settled = state.settled + 1 if -gain <= enough else 0
    value = state.objective + min(gain, 0.0)
    return State(state.number + 1, value, point, direction, proposal, settled, size, metric), s


def best_step(polynomial: np.ndarray) -> tuple[float, float]:
    """argmin over t of Σ p_k t^k (degree four at most), and the change of value from t = 0."""
    gains = np.concatenate([[0.0], polynomial[1:]])
    if not np.isfinite(gains).all():
        return 0.0, float("nan")
    # none if there is nothing to move
    roots = np.roots((gains[1:] * np.arange(1, gains.size))[::-1])
    real = [0.0, *(float(root.real) for root in roots if abs(root.imag) <= 1e-6 * (1 + abs(root)))]
    # a root is next to infinity where t⁴ has next to no coefficient
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.nan_to_num(np.polyval(gains[::-1], real), nan=np.inf)
    best = int(np.argmin(values))
    return real[best], float(values[best])


def secant_search(along: Callable[..., float], slope: float, first: float) -> tuple[float, float]:
    """A t > 0 near which a function stops falling, and its change from 0; (0, 0) if none lowers it.

    along: t → its slope, or (`exact`) its change from 0. slope: at 0. first: a guess.
    """
    t, low, high, last, slope_last = first, 0.0, float("inf"), 0.0, slope
    for _ in range(SECANTS):
        here = along(t)
        if abs(here) <= FLAT * abs(slope) or t == last or not np.isfinite(here):
            break
        low, high = (t, high) if here < 0.0 else (low, t)
        guess = t - here * (t - last) / (here - slope_last) if here != slope_last else t
        last, slope_last = t, here
        ends = (low, LEAP * low) if high == float("inf") else (low, high)
        room = INSIDE * (ends[1] - ends[0])
        t = float(np.clip(guess, ends[0] + room, ends[1] - room))
    for best in (t, first):  # the first one is where a parabola above the function is lowest
        change = along(best, exact=True)
        if not change >= 0.0:
            return best, change
    return 0.0, 0.0


__all__ = ["LeastSquares", "Outcome", "Solution", "State", "grown"]
