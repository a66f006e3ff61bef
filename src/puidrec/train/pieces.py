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
from puidrec.backbones.mf import IdTower
from puidrec.objective.blocks import backward_in_blocks, user_blocks
from puidrec.objective.low_rank import LowRank
from puidrec.train.distributed import ALONE, World
from puidrec.train.problem import Problem, Step
from puidrec.train.validate import Validator, pair_scores

Span = tuple[int, int]
"""Users start..stop−1."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Blocks of `block` users, cut among the processes of a world at equal numbers of logged pairs."""

    crow: np.ndarray
    """Logged pairs before each user, and all of them, [users + 1]."""
    block: int
    world: World = ALONE
    max_pairs: int = 10_000_000
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
        return tuple(self._share(start, stop) for start, stop in self.blocks)

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
        module, pieces = step.module, self.pieces(start, stop)
        low, high = self.own[start // self.block]

        def part(a: int, b: int, factors: LowRank) -> Tensor:
            return step.loss(a, b, factors) * ((b - a) / (stop - start))

        if isinstance(module, Backbone):
            value = float(backward_in_blocks(module.factors(slice(low, high)), part, pieces, first=low))
        else:
            value = 0.0
            for a, b in pieces:
                piece = step.loss(a, b) * ((b - a) / (stop - start))
                piece.backward()  # type: ignore[no-untyped-call]
                value += float(piece.detach())
        own = {id(p) for p in own_parameters(module)}
        self.world.sum_gradients(p for p in module.parameters() if id(p) not in own)
        step.penalty().backward()  # type: ignore[no-untyped-call]
        return self.world.sum_number(value)

    @torch.no_grad()
    def total(self, loss: Callable[[int, int], Tensor]) -> float:
        """A loss over all users."""
        pieces = [piece for block in self.blocks for piece in self.pieces(*block)]
        return self.world.sum_number(sum(float(loss(a, b)) * ((b - a) / self.n_users) for a, b in pieces))

    @torch.no_grad()
    def gather(self, rows: Tensor) -> Tensor:
        """Everyone's rows in order of users, from the rows of each process's own."""
        if self.world.size == 1:
            return rows
        whole = rows.new_zeros((self.n_users, *rows.shape[1:]))
        for own, (start, stop) in zip(torch.split(rows, [b - a for a, b in self.own]), self.own, strict=True):
            whole[start:stop] = own
        return self.world.sum(whole)

    def cut(self, rows: Tensor) -> Tensor:
        """Our own users' rows of everyone's."""
        return rows if self.world.size == 1 else torch.cat([rows[a:b] for a, b in self.own])

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
        """Keep the ID parameters of our own users only; call it once all of them are set."""
        if self.world.size == 1:
            return
        for step in problem.steps:
            if isinstance(step.module, Backbone):
                towers = step.module.user_towers
                for k, tower in enumerate(towers):
                    if isinstance(tower, IdTower):
                        towers[k] = OwnIds(tower, self)

    def _share(self, start: int, stop: int) -> Span:
        """Our users of a block. A user weighs as many pairs as it has, and one: nobody is free."""
        load = self.crow[start : stop + 1] + np.arange(stop - start + 1)
        goals = load[0] + (load[-1] - load[0]) * np.arange(self.world.size + 1) / self.world.size
        cuts = start + np.searchsorted(load, goals)
        cuts[-1] = stop
        return int(cuts[self.world.rank]), int(cuts[self.world.rank + 1])


class OwnIds(IdTower):
    """The free parameters of some of the users; users go by their numbers among all."""

    def __init__(self, tower: IdTower, plan: Plan) -> None:
        torch.nn.Module.__init__(self)
        self.__dict__.update({name: value for name, value in vars(tower).items() if not name.startswith("_")})
        for name, buffer in tower.named_buffers(recurse=False):
            self.register_buffer(name, buffer, persistent=False)
        self.weight = torch.nn.Parameter(plan.cut(tower.weight.detach()).clone())
        self._own = plan.own
        self._offset = np.cumsum([0, *(b - a for a, b in plan.own)])

    def forward(self, rows: slice) -> Tensor:
        """Parameters of a range of users, all of them our own and of one block."""
        start, stop, _ = rows.indices(self.n_rows)
        for (a, b), offset in zip(self._own, self._offset, strict=False):
            if a <= start and stop <= b:
                first = int(offset) + start - a
                own = self.weight if stop - start == len(self.weight) else self.weight[first : first + stop - start]
                return own if self.vectors else torch.nn.functional.pad(own, (self.dim, 0))
        raise IndexError(f"users {start} to {stop} belong to another process")


def own_parameters(module: torch.nn.Module) -> list[Tensor]:
    """Parameters that no other process holds."""
    return [part.weight for part in module.modules() if isinstance(part, OwnIds)]


def user_names(step: Step) -> list[str]:
    """What a checkpoint calls them: as parameters, now and at the best epoch, and as moments of Adam."""
    own = {id(p) for p in own_parameters(step.module)}
    found = [(k, name) for k, (name, p) in enumerate(step.module.named_parameters()) if id(p) in own]
    return [
        name
        for k, parameter in found
        for name in (
            f"{step.name}.{parameter}", f"now.{step.name}.{parameter}", f"best.{step.name}.{parameter}",
            f"adam.{step.name}.{k}",
        )
    ]  # fmt: skip
