"""Which users a process works on, and how many at a time.

A step goes over a block of users. Its loss is a mean over the block's pairs, so it is the users' weighted sum of the
losses of any pieces of it: a block is cut among processes, and a process cuts its share into pieces whose logged pairs
fit in memory. Every process holds the ID parameters (and Adam's moments) of its own users, and a copy of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.base import Backbone
from puidrec.backbones.share import Share, Span
from puidrec.objective.blocks import backward_in_blocks, user_blocks
from puidrec.objective.low_rank import LowRank
from puidrec.train.distributed import ALONE, World
from puidrec.train.owned import HoldsUsers, own_axes
from puidrec.train.problem import BlockLoss, Problem, Step
from puidrec.train.validate import Validator, pair_scores

IN_MEMORY = 5_000_000
"""Logged pairs worked on at once: about 200 MB of temporaries. Vectors of 20 MB are given back to the allocator and
taken again; from 32 MiB on, glibc asks the system for new pages each time, which costs a quarter of an epoch."""
SENT = 262_144
"""Rows that travel at once."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Blocks of `block` users, cut among the processes of a world at equal numbers of logged pairs."""

    crow: np.ndarray
    """Logged pairs before each user, and all of them, [users + 1]."""
    block: int
    world: World = ALONE
    max_pairs: int = IN_MEMORY
    """Logged pairs worked on at once."""

    @classmethod
    def one_piece(cls, n_users: int, block: int = 0) -> Plan:
        """One process, and every block in one piece."""
        return cls(np.zeros(n_users + 1, np.int64), block or n_users)

    @property
    def n_users(self) -> int:
        """Users of all processes."""
        return self.crow.size - 1

    @cached_property
    def blocks(self) -> tuple[Span, ...]:
        """All blocks, in order of users."""
        return tuple((a, min(a + self.block, self.n_users)) for a in range(0, self.n_users, self.block))

    @cached_property
    def own(self) -> tuple[Span, ...]:
        """Our users, a span per block."""
        return self._spans(self.world.rank)

    @cached_property
    def share(self) -> Share | None:
        """Our users among all; None where they are all ours."""
        return Share(self.own, self.n_users) if self.world.size > 1 else None

    def whole(self, start: int, stop: int) -> bool:
        """Whether a block is one piece, and ours."""
        return self.world.size == 1 and int(self.crow[stop] - self.crow[start]) <= self.max_pairs

    def pieces(self, start: int, stop: int) -> list[Span]:
        """Our pieces of a block."""
        low, high = self.own[start // self.block]
        counts = torch.from_numpy(self.crow[low : high + 1] - self.crow[low])
        return [(low + a, low + b) for a, b in user_blocks(counts, self.max_pairs)] if high > low else []

    def descend(self, step: Step, start: int, stop: int) -> float:
        """The gradient of a block's loss and penalty, piece by piece; returns the loss of the whole block."""
        if self.whole(start, stop):
            loss = step.loss(start, stop)
            (loss + step.penalty()).backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())
        module, pieces, loss_of = step.module, self.pieces(start, stop), self._loss(step, start, stop)
        low, high = self.own[start // self.block]

        def part(a: int, b: int, factors: LowRank | None = None) -> Tensor:
            return loss_of(a, b, factors) * ((b - a) / (stop - start))

        if isinstance(module, Backbone):
            value = float(backward_in_blocks(module.factors(slice(low, high)), part, pieces, first=low))
        else:
            value = 0.0
            for a, b in pieces:
                piece = part(a, b)
                piece.backward()  # type: ignore[no-untyped-call]
                value += float(piece.detach())
        own = own_axes(module)
        self.world.sum_gradients(p for name, p in module.named_parameters() if name not in own)
        step.penalty().backward()  # type: ignore[no-untyped-call]
        return self.world.sum_number(value)

    @torch.no_grad()
    def total(self, step: Step) -> float:
        """The loss of a step over all users: the blocks' weighted mean."""
        value = 0.0
        for start, stop in self.blocks:
            loss = step.loss if self.whole(start, stop) else self._loss(step, start, stop)
            value += sum(float(loss(a, b)) * ((b - a) / self.n_users) for a, b in self.pieces(start, stop))
        return self.world.sum_number(value)

    @torch.no_grad()
    def gather(self, rows: Tensor, axis: int = 0) -> Tensor:
        """Everyone's rows in order of users, from the rows of each process's own."""
        if self.world.size == 1:
            return rows
        rows = rows.movedim(axis, 0)
        whole = rows.new_zeros((self.n_users, *rows.shape[1:]))
        for own, (start, stop) in zip(torch.split(rows, [b - a for a, b in self.own]), self.own, strict=True):
            whole[start:stop] = own
        return self.world.sum(whole).movedim(0, axis)

    @torch.no_grad()
    def collect(self, rows: Tensor, axis: int = 0) -> Tensor:
        """The same at the first process only, in its main memory, some rows at a time; others get their own back."""
        if self.world.size == 1:
            return rows
        own, parcels = rows.movedim(axis, 0).contiguous(), self._parcels(self.world.rank)
        parts = torch.split(own, [b - a for a, b in parcels])
        if not self.world.first:
            for part in parts:
                self.world.send(part)
            return rows
        whole = torch.empty((self.n_users, *own.shape[1:]), dtype=own.dtype)
        for (a, b), part in zip(parcels, parts, strict=True):
            whole[a:b] = part
        for rank in range(1, self.world.size):
            for a, b in self._parcels(rank):
                whole[a:b] = self.world.receive(own.new_empty((b - a, *own.shape[1:])), rank)
        return whole.movedim(0, axis)

    def cut(self, rows: Tensor, axis: int = 0) -> Tensor:
        """Our own users' rows of everyone's."""
        return rows if self.share is None else self.share.cut(rows, axis)

    @torch.no_grad()
    def factors(self, of: Callable[[slice], LowRank | None]) -> LowRank | None:
        """The scores of all users, made by the processes that hold them."""
        spans = [slice(None)] if self.world.size == 1 else [slice(a, b) for a, b in self.own]
        parts = [part.detach() for span in spans if (part := of(span)) is not None]
        if len(parts) <= 1 and self.world.size == 1:
            return parts[0] if parts else None
        lefts = [self.gather(torch.cat(left)) for left in zip(*(part.lefts for part in parts), strict=True)]
        return LowRank(tuple(lefts), parts[0].rights) if parts else None

    @torch.no_grad()
    def score(self, validator: Validator, of: Callable[[slice], LowRank]) -> float:
        """How good the scores are: each process scores the rows of its own users, all judge them together."""
        if self.world.size == 1:
            return validator.score(of(slice(None)))
        prediction = torch.zeros(validator.user.size, device=self.world.device)
        for a, b in self.own:
            rows = np.flatnonzero((validator.user >= a) & (validator.user < b))
            scores = pair_scores(of(slice(a, b)), validator.user[rows] - a, validator.item[rows])
            prediction[torch.from_numpy(rows).to(prediction.device)] = torch.from_numpy(scores).to(prediction.device)
        return validator.judge(self.world.sum(prediction).cpu().numpy())

    def localise(self, problem: Problem) -> None:
        """Keep the parameters of our own users only; call it once all of them are set."""
        for step in problem.steps:
            if self.share is not None and isinstance(step.module, HoldsUsers):
                step.module.keep_users(self.share)

    def _loss(self, step: Step, start: int, stop: int) -> BlockLoss:
        """The loss of pieces of a block."""
        if step.in_pieces is None:
            return step.loss
        return step.in_pieces(self.pieces(start, stop), stop - start, self.world.sum)

    def _spans(self, rank: int) -> tuple[Span, ...]:
        """A process's users, a span per block. A user weighs as many pairs as it has, and one: nobody is free."""
        spans = []
        for start, stop in self.blocks:
            load = self.crow[start : stop + 1] + np.arange(stop - start + 1)
            goals = load[0] + (load[-1] - load[0]) * np.arange(self.world.size + 1) / self.world.size
            cuts = start + np.searchsorted(load, goals)
            cuts[-1] = stop
            spans.append((int(cuts[rank]), int(cuts[rank + 1])))
        return tuple(spans)

    def _parcels(self, rank: int) -> list[Span]:
        """A process's users, as they travel."""
        return [(k, min(k + SENT, b)) for a, b in self._spans(rank) for k in range(a, b, SENT)]
