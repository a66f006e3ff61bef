"""Losses over a log as the solver sees them: blocks of logged pairs with their weights, quadratics, and losses that a
quadratic is lowered in place of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import CompletePattern
from puidrec.objective.majorise import Bent
from puidrec.objective.terms import Observed
from puidrec.objective.worst_case import Box
from puidrec.train.blocks import UserPartition
from puidrec.train.problem import BlockLoss, Log
from puidrec.train.quadratic import KEPT, Block, Line, Quadratic, best_step

T = TypeVar("T")
FEW_PAIRS, PAIRS_AT_ONCE = 4_000_000, 1_000_000
"""All pairs that are few enough to keep what is made of them (about 400 MB), and how many are worked on at a time."""
HALVINGS, SECANTS = 4, 6
"""Times that a step is halved; steps of a line search."""
FLAT, LEAP, INSIDE = 0.01, 5.0, 0.05
"""Share of the first slope at which a line search ends; how often a guess may be the last one; how far inside an
interval it lies."""
Weigh = Callable[[Observed, slice], tuple[Tensor | float, Tensor]]
"""(logged pairs of some users, which users) → weights c of s² and d of 2s."""


@dataclass(frozen=True, eq=False)
class LogBlocks:
    """The logged pairs of this process's users, some users at a time, as the solver numbers them."""

    log: Log
    partition: UserPartition

    @property
    def low(self) -> int:
        """The first user of this process: row 0 of the solver."""
        return self.partition.own[0][0]

    @property
    def users(self) -> slice:
        """All users of this process."""
        return slice(*self.partition.own[0])

    def own(self, scores: LowRank, users: slice) -> LowRank:
        """Some users of the solver's scores, which are those of this process's users."""
        return scores.rows(slice(users.start - self.low, users.stop - self.low))

    def spans(self) -> list[tuple[int, int]]:
        """Ranges of users."""
        return self.partition.parts(0, self.partition.n_users)

    @property
    def in_memory(self) -> bool:
        """Whether what is made of its pairs may be kept."""
        return isinstance(self.log, Observed)

    def blocks(self, weigh: Weigh) -> Callable[[], Iterable[Block]]:
        """Weighted blocks: kept for a log in memory, made again at each pass for a log on disk."""

        def one(start: int, stop: int) -> Block:
            observed = self.log.rows(start, stop)
            return Block(start - self.low, stop - self.low, observed.pattern, *weigh(observed, slice(start, stop)))

        if self.in_memory:
            kept = [one(*span) for span in self.spans()]
            return lambda: kept
        return lambda: (one(*span) for span in self.spans())

    def kept(self, make: Callable[[Block], T], blocks: Callable[[], Iterable[Block]]) -> Callable[[], Iterable[T]]:
        """What is made of each block: kept for a log in memory, made again at each pass for a log on disk."""
        if self.in_memory:
            found = [make(block) for block in blocks()]
            return lambda: found
        return lambda: (make(block) for block in blocks())

    def total(self, value: Callable[[Observed, slice], Tensor]) -> float:
        """Σ over all users of all processes."""
        parts = [value(self.log.rows(a, b), slice(a, b)).double() for a, b in self.spans()]
        return self.partition.world.sum_number(float(sum(parts, torch.zeros((), dtype=torch.float64))))

    def quadratic(
        self,
        weigh: Weigh,
        constant: float = 0.0,
        v: float = 0.0,
        pull: LowRank | None = None,
        *,
        same_matrix: bool = False,
    ) -> Quadratic:
        """Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant; `pull` (m) is of all users.

        same_matrix: c = 0 for every pair, as `weigh` knows; finding out would take a pass over the log.
        """
        own = None if pull is None else pull.rows(self.users).without_zeros()
        kept = len(self.log) if isinstance(self.log, Observed) else KEPT
        return Quadratic(self.blocks(weigh), v, own, constant, same_matrix, self.partition.world.sum, kept)


@dataclass(frozen=True, eq=False)
class EveryPair:
    """All pairs as if they were logged, for losses that have no identity over all pairs; what was rated is unknown."""

    like: LowRank
    """Scores of as many users and items."""

    def __len__(self) -> int:
        return self.like.n_pairs

    def rows(self, start: int, stop: int) -> Observed:
        """Those of users start..stop−1."""
        right = self.like.rights[0]
        pattern = CompletePattern(stop - start, self.like.n_items, right.device)
        nothing = right.new_zeros(1).expand(len(pattern))
        return Observed(pattern, nothing, Box(nothing, nothing))


class PairBlocks(LogBlocks):
    """All pairs of this process's users, some users at a time."""

    @property
    def in_memory(self) -> bool:
        """Whether all pairs are few."""
        return len(self.log) <= FEW_PAIRS

    def spans(self) -> list[tuple[int, int]]:
        """Ranges of users that have as many pairs as a process has in memory."""
        low, high = self.partition.own[0]
        step = max(1, PAIRS_AT_ONCE * self.partition.n_users // max(len(self.log), 1))
        return [(start, min(start + step, high)) for start in range(low, high, step)]


@dataclass(frozen=True, eq=False)
class Majorised:
    """A loss measured as the problem defines it and lowered by quadratics above it."""

    log: LogBlocks
    loss: BlockLoss
    above: Callable[[LowRank], Quadratic]
    """Scores of this process's users → a quadratic above the loss that touches it there."""

    def at(self, scores: LowRank) -> Quadratic:
        """The quadratic to lower next."""
        return self.above(scores)

    @torch.no_grad()
    def value(self, scores: LowRank) -> float:
        """The users' weighted mean of the losses of blocks."""
        log, n_users = self.log, self.log.partition.n_users
        parts = (float(self.loss(a, b, log.own(scores, slice(a, b)))) * (b - a) / n_users for a, b in log.spans())
        return log.partition.world.sum_number(sum(parts))

    def line_search(
        self, quadratic: Quadratic, scores: LowRank, step: LowRank, penalty: np.ndarray, known: Mapping[int, Tensor]
    ) -> tuple[float, float]:
        """The quadratic's best step, halved until the loss itself falls; 0 if it does not."""
        t, gain = quadratic.line_search(quadratic, scores, step, penalty, known)
        before = self.value(scores)
        for _ in range(HALVINGS):
            moved = LowRank.of(scores.lefts[0] + t * step.lefts[0], scores.rights[0] + t * step.rights[0])
            gain = self.value(moved) + float(np.polynomial.polynomial.polyval(t, penalty)) - before
            if gain < 0.0:
                return t, gain
            t *= 0.5
        return 0.0, 0.0


@dataclass(frozen=True, eq=False)
class WorstCase:
    """Σ_O of losses at their worst weights + v (Σ_D s² − 2 Σ_D s m) + constant: smooth, as their bends are rounded."""

    log: LogBlocks
    bent: Callable[[Observed, slice], Bent]
    """The losses of the logged pairs of some users."""
    scale: float = 1.0
    """What one pair's loss counts."""
    constant: float = 0.0
    v: float = 0.0
    pull: LowRank | None = None

    def at(self, scores: LowRank) -> Quadratic:
        """The quadratic to lower next: above the loss, and touching it at these scores."""

        def weigh(observed: Observed, rows: slice) -> tuple[Tensor, Tensor]:
            c, d = self.bent(observed, rows).above(observed.scores(self.log.own(scores, rows)))
            return c * self.scale, d * self.scale

        return self.log.quadratic(weigh, self.constant, self.v, self.pull)

    def value(self, scores: LowRank) -> float:
        """The loss."""

        def loss(observed: Observed, rows: slice) -> Tensor:
            y = observed.scores(self.log.own(scores, rows))
            return torch.sum(self.bent(observed, rows).loss(y), dtype=torch.float64)

        smooth = Quadratic(tuple, self.v, self.pull and self.pull.rows(self.log.users)).everywhere(scores)
        rest = self.log.partition.world.sum_number(float(smooth)) + self.constant
        return self.scale * self.log.total(loss) + rest

    def line_search(
        self, quadratic: Quadratic, scores: LowRank, step: LowRank, penalty: np.ndarray, known: Mapping[int, Tensor]
    ) -> tuple[float, float]:
        """Where the slope of the loss itself along the line is 0, by secants from the quadratic's best step."""
        first = quadratic.along(scores, step, known)
        first[: penalty.size] += penalty
        smooth = quadratic.reduce(quadratic.everywhere_along(scores, step)).cpu().numpy()
        smooth[: penalty.size] += penalty
        line = Line.of(scores, step)

        def moved(block: Block) -> tuple[Block, Tensor, Tensor, Tensor]:
            s0 = block.scores(scores)
            return block, s0, *block.change(line, s0)

        lines = self.log.kept(moved, quadratic.blocks)

        def at(t: float) -> tuple[float, float]:
            """Change of the loss from t = 0, and its slope, in float64."""
            total = torch.zeros(2, dtype=torch.float64, device=scores.lefts[0].device)
            for block, s0, s1, s2 in lines():
                rows = slice(block.start + self.log.low, block.stop + self.log.low)
                bent, start = self.bent(self.log.log.rows(rows.start, rows.stop), rows), s0.double()
                y = start + t * (s1 + t * s2)
                c, d = bent.above(y)
                total[0] += torch.sum(bent.loss(y) - bent.loss(start))
                total[1] += torch.sum(2.0 * (c * y - d) * (s1 + 2.0 * t * s2))
            change, slope = (self.scale * self.log.partition.world.sum(total).cpu()).tolist()
            polynomial = np.polynomial.polynomial.Polynomial(smooth)
            return change + float(polynomial(t) - polynomial(0.0)), slope + float(polynomial.deriv()(t))

        return secant_search(at, float(first[1]), best_step(first)[0])


def secant_search(at: Callable[[float], tuple[float, float]], slope: float, t: float) -> tuple[float, float]:
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
        t = float(np.clip(guess, ends[0] + INSIDE * (ends[1] - ends[0]), ends[1] - INSIDE * (ends[1] - ends[0])))
    return best
