"""Low-rank scores solved to the optimum: nonlinear conjugate gradients, preconditioned,
matrix-free.

    minimise  J(s) + penalty,   s_ui = ⟨z_u, z_i⟩ + b_u + b_i + μ

A sweep makes the slope of J in all parameters in one pass over the log, turns it into a step by
what is typical of the curvature of each side (`optimise.preconditioner`), combines that with the
last direction, and goes to the lowest point of the line. Along a line scores are s0 + t s1 + t² s2
and a quadratic J is a polynomial of degree four in t, minimised exactly; a J that bends is followed
by secants of its own slope. J never rises.

The vectors start from the leading singular directions of the slope at the biases alone, so that
neither the order nor the names of users and items choose where the solver ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from puidrec.losses.pair_loss import Line, Objective, gram
from puidrec.optimise.model import Model, Point
from puidrec.optimise.preconditioner import UnsolvableError, metric_of, metric_width, precondition
from puidrec.scores.log import Column
from puidrec.scores.low_rank import LowRank

TOLERANCE = MappingProxyType({torch.float64: 3e-7, torch.float32: 1e-5})
"""Change of scores per sweep below which the solver ends: root mean square, as the objective weighs
pairs, against that of the residuals. Near the optimum its square is the gain over the objective.
The optimum of a small log can be flat: in double precision it is followed until no score is further
than 1e-4 from it."""
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
SECANTS = 6
"""Steps of a line search where J bends."""
FLAT, LEAP, INSIDE = 0.01, 5.0, 0.05
"""Share of the first slope at which a line search ends; how often a guess may be the last one; how
far inside an interval it lies."""
POWER_STEPS, SPARE = 4, 8
"""Products with EᵀE for the leading directions of a slope E, and directions looked for beyond those
wanted."""
KEPT_NUMBERS = 5_000_000
"""Where vectors of all products have at most so many numbers, the directions are sought among all
of them (a Krylov space) and not among the last ones alone: then they hardly depend on the random
vectors begun with."""
EMPTY, EMPTIED, PAYS = 1e-3, (20, 100), 1e-4
"""Share of the largest column's L2 up to which a column is left out; the sweeps between which that
is looked at; how much above its price the slope of a column must be for it to come back."""
FAINT = 0.02
"""Length of a new column, against the strongest, where the slope gives it none: L2 will settle it.
"""


class Outcome(Enum):
    """How a fit ended, in words that say what to change."""

    CONVERGED = "converged"
    LIMIT = "stopped at the limit of sweeps before the optimum; raise epochs or l2"


class State(NamedTuple):
    """Where the solver stands after a sweep: enough to go on to the same bits on the same machine."""

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
    metric: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def fresh(self) -> bool:
        """Whether the next sweep computes all it needs from the parameters alone: what a checkpoint
        may hold."""
        return self.number % REFRESH == 0


class Solution(NamedTuple):
    """The parameters at the end, the objective there, and how it ended."""

    point: Point
    objective: float
    sweeps: int
    outcome: Outcome
    metric: Mapping[str, Tensor]


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
        metric: Mapping[str, Tensor] | None = None,
        after: Callable[[State], None] | None = None,
    ) -> Solution:
        """Lower J + penalty until `SETTLED` sweeps in a row change scores by less than the
        tolerance.

        start: parameters, or a state to go on from. metric: the preconditioner of a similar problem
        solved before.
        after: called after every sweep.
        """
        whole = model
        if isinstance(start, State):
            state = start
        else:
            state = _begin(objective, whole, start, metric or {})
        state, model = _without_empty(state, whole)
        tolerance = (
            TOLERANCE[state.point["users"].dtype] if self.tolerance is None else self.tolerance
        )
        s = _logged(objective, model.factors(state.point))
        while state.number < self.max_sweeps and state.settled < SETTLED:
            if state.fresh:
                if EMPTIED[0] <= state.number <= EMPTIED[1]:
                    state, model = _without_empty(state, model, EMPTY)
                s = _logged(objective, model.factors(state.point))
            state, s = _sweep(objective, model, state, s, tolerance)
            if state.settled >= SETTLED and model.dim < whole.dim:
                point = _with_missing(objective, whole, model, state.point)
                if point is not state.point:
                    state, model = _begin(objective, whole, point, {}, state.number), whole
                    s = _logged(objective, model.factors(state.point))
            if after is not None:
                after(_padded(state, whole))
        outcome = Outcome.CONVERGED if state.settled >= SETTLED else Outcome.LIMIT
        point = _padded(state, whole).point
        return Solution(point, state.objective, state.number, outcome, state.metric)


def _begin(
    objective: Objective,
    model: Model,
    start: Point,
    metric: Mapping[str, Tensor],
    number: int = 0,
) -> State:
    point = model.centred({name: x.clone() for name, x in start.items()})
    if bool((point["items"] == 0.0).all(0)[:-1].any()):
        state, narrow = _without_empty(State(0, 0.0, point, {}, {}, 0), model)
        if narrow.dim < model.dim:
            point = _with_missing(objective, model, narrow, state.point)
            point = _padded(state._replace(point=point), model).point
    factors = model.factors(point)
    value = objective.value(_logged(objective, factors), factors) + model.penalty(point)
    _check_finite(value, "at the start")
    known = metric if metric_width(metric) == model.dim + 1 else {}
    return State(number, value, point, {}, {}, 0, metric=known)


def _without_empty(state: State, model: Model, least: float = 0.0) -> tuple[State, Model]:
    """The state and the model without columns that L2 has emptied: turned to their principal axes,
    which changes neither scores nor L2, and less those of at most `least` of the largest one's L2."""
    point = state.point
    if not model.dim or any(
        side.features is not None or side.centre is not None or not bool(side.free.all())
        for side, _ in model.sides
    ):
        return state, model
    total = torch.zeros(model.dim, model.dim, dtype=torch.float64, device=point["items"].device)
    for side, complete in model.sides:
        own = point[f"{side.name}s"][:, :-1]
        total += float(side.cost[0]) * complete(gram(own, own))
    if least:
        share, axes = torch.linalg.eigh(total)
        axes = axes[:, share > least * share[-1:]].flip(1)
    else:  # exactly: what was left out before, of a state that goes on
        axes = torch.eye(model.dim).to(total)[:, total.diagonal() > 0.0]
    if axes.shape[1] == model.dim:
        return state, model

    def turned(old: Point) -> Point:
        return {
            name: x if x.ndim == 0 else torch.cat([x[:, :-1] @ axes.to(x), x[:, -1:]], 1)
            for name, x in old.items()
        }

    parts = {name: turned(getattr(state, name)) for name in ("point", "direction", "proposal")}
    metric = state.metric if metric_width(state.metric) == axes.shape[1] + 1 else {}
    return state._replace(**parts, metric=metric), _narrowed(model, axes.shape[1] + 1)


def _padded(state: State, model: Model) -> State:
    """The state with columns of 0 where some were left out."""
    lacking = model.dim + 1 - state.point["users"].shape[1]
    if not lacking:
        return state

    def wide(old: Point) -> Point:
        return {
            name: x
            if x.ndim == 0
            else torch.cat([x[:, :-1], x.new_zeros(len(x), lacking), x[:, -1:]], 1)
            for name, x in old.items()
        }

    return state._replace(
        point=wide(state.point), direction=wide(state.direction), proposal=wide(state.proposal)
    )


def _with_missing(objective: Objective, whole: Model, narrow: Model, point: Point) -> Point:
    """The point with all columns again where one that was left out would lower J; else as it is."""
    factors = narrow.factors(point)
    s = _logged(objective, factors)
    _, sigma, _, _ = _leading(objective, s, factors, point["items"][:, :-1], 1)
    price = float(whole.users.cost[0] * whole.items.cost[0]) ** 0.5
    return grown(objective, whole, point) if float(sigma[0]) > (1.0 + PAYS) * price else point


def _logged(objective: Objective, factors: LowRank) -> Column:
    return objective.log.scores(factors.lefts[0], factors.rights[0])


def _sweep(
    objective: Objective, model: Model, state: State, s: Column, tolerance: float
) -> tuple[State, Column]:
    """The slope, the direction it gives, and the best step along it."""
    factors = model.factors(state.point)
    slope = model.slopes(state.point, *objective.factor_slopes(s, factors))
    metric = state.metric
    if not metric or _is_due(state.number):
        metric = metric_of(objective, model, s, factors)
    proposal = precondition(metric, model, slope)
    size = model.dot(slope, proposal)
    beta = 0.0
    if state.proposal and state.size > 0.0:
        beta = (size - model.dot(slope, state.proposal)) / state.size
    t, gain, direction, line, penalty = 0.0, 0.0, proposal, None, np.zeros(3)
    for remains in (beta, 0.0) if beta > 0.0 else (0.0,):
        direction = _moved(proposal, state.direction, remains) if remains else proposal
        line = objective.line(s, factors, model.factors(direction, step=True))
        penalty = model.penalty_along(state.point, direction)
        t, gain = _line_search(objective, line, penalty)
        if gain < 0.0:
            break
    _check_finite(gain, f"in sweep {state.number + 1}")
    point, value = state.point, state.objective
    if gain < 0.0 and line is not None:
        point, value, s = _moved(point, direction, t), value + gain, objective.moved(line, t)
    reference = max(abs(value), float(np.polynomial.polynomial.polyval(t, penalty)))
    enough = max(tolerance**2, ROUNDING * torch.finfo(slope["users"].dtype).eps)
    settled = state.settled + 1 if -gain <= enough * reference else 0
    return State(state.number + 1, value, point, direction, proposal, settled, size, metric), s


def _is_due(number: int) -> bool:
    """Whether a sweep's number is `METRIC_FIRST`, twice it, four times it, …"""
    turns, rest = divmod(number, METRIC_FIRST)
    return rest == 0 and turns.bit_count() == 1


def _line_search(objective: Objective, line: Line, penalty: np.ndarray) -> tuple[float, float]:
    """The t that lowers J + penalty most along a line, and the change of value there; (0, 0) if
    none does."""
    polynomial = objective.polynomial(line).cpu().numpy()
    polynomial[1:3] += penalty[1:]
    t, gain = best_step(polynomial)
    if objective.loss.quadratic:
        return t, gain
    smooth = line.everywhere.cpu().numpy()
    smooth[1:3] += penalty[1:]
    rest = np.polynomial.polynomial.Polynomial(smooth)

    def at(t: float) -> tuple[float, float]:
        change, slope = objective.along(line, t)
        return change + float(rest(t) - rest(0.0)), slope + float(rest.deriv()(t))

    return secant_search(at, float(polynomial[1]), t)


def best_step(polynomial: np.ndarray) -> tuple[float, float]:
    """argmin over t of Σ p_k t^k (degree four at most), and the change of value from t = 0."""
    gains = np.concatenate([[0.0], polynomial[1:]])
    if not np.isfinite(gains).all():
        return 0.0, float("nan")
    roots = np.roots(
        (gains[1:] * np.arange(1, gains.size))[::-1]
    )  # none if there is nothing to move
    real = [0.0, *(float(root.real) for root in roots if abs(root.imag) <= 1e-6 * (1 + abs(root)))]
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # a root next to infinity, where t⁴ has next to no coefficient
        values = np.nan_to_num(np.polyval(gains[::-1], real), nan=np.inf)
    best = int(np.argmin(values))
    return real[best], float(values[best])


def secant_search(
    at: Callable[[float], tuple[float, float]], slope: float, t: float
) -> tuple[float, float]:
    """A t > 0 near which a function stops falling, and its change from 0; (0, 0) if none lowers it.

    at: t → change of value, slope. slope: at 0. t: the first guess.
    """
    if not np.isfinite(t) or not np.isfinite(slope):
        return 0.0, float("nan")
    best, low, high = (0.0, 0.0), 0.0, float("inf")
    last, slope_last = 0.0, slope
    for _ in range(SECANTS):
        change, here = at(t)
        if not np.isfinite(change):
            return 0.0, float("nan")
        if change < best[1]:
            best = t, change
        if abs(here) <= FLAT * abs(slope) or t == last:
            break
        low, high = (t, high) if here < 0.0 else (low, t)
        guess = t - here * (t - last) / (here - slope_last) if here != slope_last else t
        last, slope_last = t, here
        ends = (low, LEAP * low) if high == float("inf") else (low, high)
        t = float(
            np.clip(
                guess,
                ends[0] + INSIDE * (ends[1] - ends[0]),
                ends[1] - INSIDE * (ends[1] - ends[0]),
            )
        )
    return best


def _moved(point: Point, step: Point, t: float) -> Point:
    return {name: torch.add(x, step[name], alpha=t) for name, x in point.items()}


def _check_finite(value: float, when: str) -> None:
    if not np.isfinite(value):
        raise UnsolvableError(
            f"the objective is not a finite number {when}; check the ratings and weights, or raise l2"
        )


@torch.no_grad()
def grown(objective: Objective, model: Model, point: Point) -> Point:
    """The point with as many columns as the model has: new ones along the leading directions of the
    slope E.

    A new column t p qᵀ (|p| = |q| = 1, sides balanced) changes J by −2 t (σ − √(ρ_u ρ_i)) + t² κ, κ
    its curvature.
    """
    width = point["users"].shape[1]
    count = model.dim + 1 - width
    if count <= 0:
        return point
    narrow = _narrowed(model, width)
    factors = narrow.factors(point)
    s = _logged(objective, factors)
    p, sigma, q, kappa = _leading(objective, s, factors, point["items"][:, :-1], count)
    prices = [float(side.cost[:-1].mean()) if model.dim else 0.0 for side, _ in model.sides]
    price = (prices[0] * prices[1]) ** 0.5
    profit = torch.maximum(
        sigma - price, FAINT * sigma[:1].clamp_min(torch.finfo(sigma.dtype).tiny)
    )
    size = (profit / kappa).sqrt()
    balance = (prices[1] / prices[0]) ** 0.25 if min(prices) > 0.0 else 1.0
    vectors = {"user": p * (size * balance), "item": q * (size / balance)}
    wider = {"mean": point["mean"]}
    for side, total in model.sides:
        new, own = vectors[side.name], point[f"{side.name}s"]
        free = side.free[:-1].any() if model.dim else True
        columns = new if bool(free) else torch.zeros_like(new)
        wider[f"{side.name}s"] = torch.cat([columns.to(own), own], 1)
        if side.features is not None:
            weights = point[f"{side.name}_features"]
            shared = weights.new_zeros(len(weights), count)
            if not bool(
                free
            ):  # no vectors of its own: features take the direction as far as they can
                turned = total(side.features.transposed(new.to(weights)))
                made = side.features.times(turned)
                lengths = [
                    total(exact.square().sum(0, dtype=torch.float64)).sqrt()
                    for exact in (new, made)
                ]
                shared = turned * (lengths[0] / lengths[1].clamp_min(1e-12)).to(turned)
            wider[f"{side.name}_features"] = torch.cat([shared, weights], 1)
    return wider


def _narrowed(model: Model, width: int) -> Model:
    """The same model with vectors of `width` − 1 columns; the penalty does not tell one from
    another."""
    sides = [replace(side, penalty=side.penalty[-width:], centre=None) for side, _ in model.sides]
    return replace(model, users=sides[0], items=sides[1])


def _leading(
    objective: Objective, s: Column, factors: LowRank, columns: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Leading singular vectors p, values σ, vectors q of E = −½ ∂J/∂s, away from items' columns,
    and κ of each."""
    log, slope = objective.log, objective.slope(s)

    def times(items: Tensor) -> Tensor:
        return log.to_users(slope, items) + _everywhere_times(
            objective, factors, items, by_user=False
        )

    def transposed(users: Tensor) -> Tensor:
        return log.to_items(slope, users) + _everywhere_times(
            objective, factors, users, by_user=True
        )

    wide = min(count + SPARE, log.n_items)
    used = torch.linalg.qr(columns.double())[0].to(columns)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(log.n_items, wide, generator=generator).to(columns)
    keep = (log.all_users + log.n_items) * wide * (POWER_STEPS + 1) <= KEPT_NUMBERS
    kept: list[Tensor] = []
    for _ in range(POWER_STEPS):
        q = torch.linalg.qr((q - used @ (used.T @ q)).double())[0].to(columns)
        kept += [q] if keep else []
        q = transposed(times(q))
    q = torch.cat([*kept, torch.linalg.qr(q.double())[0].to(columns)], 1)
    q = torch.linalg.qr((q - used @ (used.T @ q)).double())[0].to(columns)
    p = times(q)
    squares, axes = torch.linalg.eigh(log.total(gram(p, p)))
    sigma = squares.clamp_min(torch.finfo(p.dtype).tiny).sqrt().flip(0)[:count]
    axes = axes.flip(1)[:, :count]
    p, q = p @ (axes / sigma).to(p), q @ axes.to(q)
    if (lacking := count - q.shape[1]) > 0:  # more columns than items
        p, q = (torch.nn.functional.pad(x, (0, lacking)) for x in (p, q))
        sigma = torch.nn.functional.pad(sigma, (0, lacking))
    curvature = log.to_users(objective.curvature(s), q.square()) + objective.v * q.square().sum(0)
    kappa = log.total((p.square() * curvature).sum(0, dtype=torch.float64))
    return p, sigma.to(p), q, kappa.to(p).clamp_min(torch.finfo(p.dtype).eps)


def _everywhere_times(
    objective: Objective, factors: LowRank, vectors: Tensor, *, by_user: bool
) -> Tensor:
    """v (m − s) over all pairs times vectors of items, or its transpose times vectors of users."""
    pairs = [(factors.lefts[0], factors.rights[0], -1.0)]
    pairs += [(m, n, 1.0) for m, n in objective.pulls()]
    rows = factors.rights[0] if by_user else factors.lefts[0]
    found = vectors.new_zeros(len(rows), vectors.shape[1])
    for m, n, sign in pairs if objective.v else ():
        mine, others = (n, m) if by_user else (m, n)
        product = gram(others, vectors)
        product = objective.log.total(product) if by_user else product
        found += mine @ (sign * objective.v * product).to(mine)
    return found
