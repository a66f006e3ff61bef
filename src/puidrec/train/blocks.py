"""Blocks of users: which users a process works on, how many at a time, and what of a model belongs to them.

A step goes over a block of users. Its loss is a mean over the block's pairs, so it is the users' weighted mean of the
losses of any parts of it: a block is divided among processes, and each process goes over its own users in parts whose
logged pairs fit in memory. Every process holds the ID parameters (and Adam's moments) of its own users, and a copy of
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from puidrec.backbones.base import Backbone, RowShard, Span
from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.shared_heads import SharedHeads
from puidrec.data.row_matrix import user_blocks
from puidrec.errors import InputError
from puidrec.train.distributed import ALONE, World
from puidrec.train.problem import BlockLoss, Problem, Step
from puidrec.train.stopping import Validator, pair_scores

PAIRS_IN_MEMORY = 5_000_000
"""Logged pairs worked on at once: about 200 MB of temporaries. Vectors of 20 MB are given back to the allocator and
taken again; from 32 MiB on, glibc asks the system for new pages each time, which costs a quarter of an epoch."""
SENT_ROWS = 262_144
"""Rows that are sent at once."""


@dataclass(frozen=True, eq=False)
class UserPartition:
    """Blocks of `block` users, each divided among the processes so that all have about as many logged pairs."""

    row_start: np.ndarray
    """Logged pairs before each user, and all of them, [users + 1]."""
    block: int
    world: World = ALONE
    max_pairs: int = PAIRS_IN_MEMORY
    """Logged pairs worked on at once."""

    @classmethod
    def undivided(cls, n_users: int, block: int = 0) -> UserPartition:
        """One process, and every block at once."""
        return cls(np.zeros(n_users + 1, np.int64), block or n_users)

    @property
    def n_users(self) -> int:
        """Users of all processes."""
        return self.row_start.size - 1

    @cached_property
    def blocks(self) -> tuple[Span, ...]:
        """All blocks, in order of users."""
        return tuple((a, min(a + self.block, self.n_users)) for a in range(0, self.n_users, self.block))

    @cached_property
    def own(self) -> tuple[Span, ...]:
        """The users of this process, a span per block."""
        return self._spans(self.world.rank)

    @cached_property
    def shard(self) -> RowShard | None:
        """The rows of this process's users; None where it has them all."""
        return RowShard(self.own, self.n_users) if self.world.size > 1 else None

    def whole(self, start: int, stop: int) -> bool:
        """Whether this process takes a block alone and at once."""
        return self.world.size == 1 and int(self.row_start[stop] - self.row_start[start]) <= self.max_pairs

    def parts(self, start: int, stop: int) -> list[Span]:
        """The parts of a block that this process goes over."""
        low, high = self.own[start // self.block]
        counts = self.row_start[low : high + 1] - self.row_start[low]
        return [(low + a, low + b) for a, b in user_blocks(counts, self.max_pairs)] if high > low else []

    def backward(self, step: Step, start: int, stop: int) -> float:
        """The gradient of a block's loss and penalty, part by part; returns the loss of the whole block."""
        if self.whole(start, stop):
            loss = step.loss(start, stop)
            (loss + step.penalty()).backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())
        module, parts, loss_of = step.module, self.parts(start, stop), self._loss(step, start, stop)
        low, high = self.own[start // self.block]

        def part(a: int, b: int, factors: LowRank | None = None) -> Tensor:
            return loss_of(a, b, factors) * ((b - a) / (stop - start))

        if isinstance(module, Backbone):
            value = float(backward_in_blocks(module.factors(slice(low, high)), part, parts, first=low))
        else:
            value = 0.0
            for a, b in parts:
                value_of_part = part(a, b)
                value_of_part.backward()  # type: ignore[no-untyped-call]
                value += float(value_of_part.detach())
        own = entity_axes(module)
        self.world.sum_gradients(p for name, p in module.named_parameters() if name not in own)
        step.penalty().backward()  # type: ignore[no-untyped-call]
        return self.world.sum_number(value)

    @torch.no_grad()
    def total(self, step: Step) -> float:
        """The loss of a step over all users: the blocks' weighted mean."""
        value = 0.0
        for start, stop in self.blocks:
            loss = step.loss if self.whole(start, stop) else self._loss(step, start, stop)
            value += sum(float(loss(a, b)) * ((b - a) / self.n_users) for a, b in self.parts(start, stop))
        return self.world.sum_number(value)

    @torch.no_grad()
    def gather(self, rows: Tensor, axis: int = 0) -> Tensor:
        """The rows of all users, from those that each process holds; every process gets all of them."""
        if self.world.size == 1:
            return rows
        rows = rows.movedim(axis, 0)
        whole = rows.new_zeros((self.n_users, *rows.shape[1:]))
        for own, (start, stop) in zip(torch.split(rows, [b - a for a, b in self.own]), self.own, strict=True):
            whole[start:stop] = own
        return self.world.sum(whole).movedim(0, axis)

    @torch.no_grad()
    def gather_to_first(self, rows: Tensor, axis: int = 0) -> Tensor:
        """The rows of all users at the first process, in its main memory; other processes get their own rows back."""
        if self.world.size == 1:
            return rows
        own, spans = rows.movedim(axis, 0).contiguous(), self._sent_spans(self.world.rank)
        parts = torch.split(own, [b - a for a, b in spans])
        if not self.world.first:
            for part in parts:
                self.world.send(part)
            return rows
        whole = torch.empty((self.n_users, *own.shape[1:]), dtype=own.dtype)
        for (a, b), part in zip(spans, parts, strict=True):
            whole[a:b] = part
        for rank in range(1, self.world.size):
            for a, b in self._sent_spans(rank):
                whole[a:b] = self.world.receive(own.new_empty((b - a, *own.shape[1:])), rank)
        return whole.movedim(0, axis)

    def take_own(self, rows: Tensor, axis: int = 0) -> Tensor:
        """The rows of this process's users, out of those of all users."""
        return rows if self.shard is None else self.shard.take(rows, axis)

    def take_own_parameters(self, step: Step, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters of a step as this process holds them, from those of all users."""
        return change_user_rows(parameters, stored_axes(step), self.take_own)

    @torch.no_grad()
    def factors(self, of: Callable[[slice], LowRank | None]) -> LowRank | None:
        """The scores of all users, computed by the processes that hold their parameters."""
        spans = [slice(None)] if self.world.size == 1 else [slice(a, b) for a, b in self.own]
        parts = [part.detach() for span in spans if (part := of(span)) is not None]
        if len(parts) <= 1 and self.world.size == 1:
            return parts[0] if parts else None
        lefts = [self.gather(torch.cat(left)) for left in zip(*(part.lefts for part in parts), strict=True)]
        return LowRank(tuple(lefts), parts[0].rights) if parts else None

    @torch.no_grad()
    def score(self, validator: Validator, of: Callable[[slice], LowRank]) -> float:
        """The validation score: each process scores the rows of its own users, then all compute the metric together."""
        if self.world.size == 1:
            return validator.score(of(slice(None)))
        prediction = torch.zeros(validator.user.size, device=self.world.device)
        for a, b in self.own:
            rows = np.flatnonzero((validator.user >= a) & (validator.user < b))
            scores = pair_scores(of(slice(a, b)), validator.user[rows] - a, validator.item[rows])
            prediction[torch.from_numpy(rows).to(prediction.device)] = torch.from_numpy(scores).to(prediction.device)
        return validator.judge(self.world.sum(prediction).cpu().numpy())

    def drop_other_users(self, problem: Problem) -> None:
        """Drop the parameters of users of other processes; call it once all of them are set."""
        for step in problem.steps:
            if self.shard is not None and isinstance(step.module, Backbone | SharedHeads):
                step.module.keep_users(self.shard)

    def _loss(self, step: Step, start: int, stop: int) -> BlockLoss:
        """The loss of parts of a block."""
        if step.split is None:
            return step.loss
        return step.split(self.parts(start, stop), stop - start, self.world.sum)

    def _spans(self, rank: int) -> tuple[Span, ...]:
        """A process's users, a span per block. A user costs as many pairs as it has, and one for itself."""
        spans = []
        for start, stop in self.blocks:
            load = self.row_start[start : stop + 1] + np.arange(stop - start + 1)
            goals = load[0] + (load[-1] - load[0]) * np.arange(self.world.size + 1) / self.world.size
            cuts = start + np.searchsorted(load, goals)
            cuts[-1] = stop
            spans.append((int(cuts[rank]), int(cuts[rank + 1])))
        return tuple(spans)

    def _sent_spans(self, rank: int) -> list[Span]:
        """A process's users, in the ranges in which their rows are sent."""
        return [(k, min(k + SENT_ROWS, b)) for a, b in self._spans(rank) for k in range(a, b, SENT_ROWS)]


def backward_in_blocks(
    factors: LowRank, loss: Callable[[int, int, LowRank], Tensor], blocks: list[Span], first: int = 0
) -> Tensor:
    """Sum a loss over blocks of users and back-propagate it into whatever made the factors; returns the value.

    Representations are computed once and for all users; only what is as long as the log comes in blocks. Each block's
    gradient lands in its own rows of ∂L and in ∂R, and one pass back through the towers ends the step.

    loss: (start, stop, factors of users start..stop−1 against all items) → scalar. first: the user in row 0 of factors.
    """
    if len(factors.lefts) != 1:
        raise InputError("blocks need factors of one part", found=len(factors.lefts), expected="1")
    left, right = factors.lefts[0], factors.rights[0]
    grad_left = torch.zeros_like(left)
    leaf_right = right.detach().requires_grad_()
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for start, stop in blocks:
        leaf = left.detach()[start - first : stop - first].requires_grad_()
        value = loss(start, stop, LowRank.of(leaf, leaf_right))
        value.backward()  # type: ignore[no-untyped-call]
        total += value.detach()
        if leaf.grad is not None:
            grad_left[start - first : stop - first] = leaf.grad
    grad_right = torch.zeros_like(right) if leaf_right.grad is None else leaf_right.grad
    torch.autograd.backward([left, right], [grad_left, grad_right])
    return total


def entity_axes(module: nn.Module) -> dict[str, int]:
    """Parameters that are divided among processes by user: name → axis of the users."""
    found: dict[str, int] = {}
    for prefix, part in module.named_modules():
        axes: dict[str, int] = part.entity_axes() if hasattr(part, "entity_axes") else {}
        found |= {f"{prefix}.{name}" if prefix else name: axis for name, axis in axes.items()}
    return found


def stored_axes(step: Step) -> dict[str, int]:
    """The tensors of a checkpoint that are divided so: parameters, now and at the best epoch, and Adam's moments."""
    own, name = entity_axes(step.module), step.name
    axes: dict[str, int] = {}
    for k, (parameter, _) in enumerate(step.module.named_parameters()):
        if parameter in own:
            stored = [f"{prefix}{name}.{parameter}" for prefix in ("", "now.", "best.")]
            moments = [f"adam.{name}.{k}.{moment}" for moment in ("exp_avg", "exp_avg_sq")]
            axes |= dict.fromkeys([*stored, *moments], own[parameter])
    return axes


def change_user_rows(
    tensors: Mapping[str, Tensor], axes: Mapping[str, int], change: Callable[[Tensor, int], Tensor]
) -> dict[str, Tensor]:
    """Tensors by name, those that are divided by user changed."""
    return {name: change(t, axes[name]) if name in axes else t for name, t in tensors.items()}
