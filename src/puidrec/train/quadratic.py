"""A quadratic loss of low-rank scores over all pairs D, its value along a line, and its view from one side.

    Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant,   s_ui = ⟨l_u, r_i⟩

O are the logged pairs, m is constant and of low rank. Sums over O are sampled and sparse products on the log's pattern
(`backbones.sparse`), block of users by block; sums over D are d × d Gram matrices. Nothing has users × items cells.

| problem | c | d | v | m |
|---|---|---|---|---|
| naive | 1/|O| | r/|O| | 0 | |
| IPS | w/|D| | w r/|D| | 0 | |
| DR, imputation model g | w/|O| | w r/|O| | 0 | |
| DR, prediction model | 0 | w (r − g)/|D| | 1/|D| | g |
| signed | w/seen − λ/unseen | w r/seen − λ m/unseen | λ/unseen | q/Γ |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import LogPattern, permuted
from puidrec.errors import InputError

GRAM_ROWS, SUMMED = 1024, 64
"""Rows whose products, and numbers that, are summed in float32 before float64 takes over."""
Reduce = Callable[[Tensor], Tensor]
"""Sum over processes, each of which holds some of the users."""


def alone(total: Tensor) -> Tensor:
    """The sum over one process."""
    return total


@dataclass(frozen=True, eq=False)
class Block:
    """The logged pairs of users start..stop−1 (renumbered from 0 in the pattern), their weights and pulls."""

    start: int
    stop: int
    pattern: LogPattern
    c: Tensor | float
    """Weight of s², or one for all pairs."""
    d: Tensor
    """Weight of 2 s."""

    @cached_property
    def by_item(self) -> tuple[LogPattern, Tensor | float, Tensor]:
        """The same with items as rows; made once as long as the block is kept."""
        pattern, order = self.pattern.transpose
        c = self.c if isinstance(self.c, float) else permuted(self.c, order)
        return pattern, c, permuted(self.d, order)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant. In several processes, the sum over all of them."""

    blocks: Callable[[], Iterable[Block]]
    """The logged pairs, block by block: from memory, or read again at each pass."""
    v: float = 0.0
    pull: LowRank | None = None
    """m, for the users of this process."""
    constant: float = 0.0
    """Of all processes together, so that J is the loss itself."""
    same_matrix: bool = False
    """c = 0 everywhere: A is the same for all rows, and a side is solved exactly by one Cholesky factorisation."""
    reduce: Reduce = alone

    @classmethod
    def in_memory(cls, pattern: LogPattern, c: Tensor | float, d: Tensor, **rest: object) -> Quadratic:
        """A log as one block; `rest`: the other fields."""
        lengths = (len(pattern), d.numel(), len(pattern) if isinstance(c, float) else c.numel())
        if len(set(lengths)) != 1:
            raise InputError("one weight and one pull per logged pair", found=lengths)
        block = Block(0, pattern.n_users, pattern, c, d)
        zero = isinstance(c, float) and c == 0.0
        return cls(lambda: (block,), same_matrix=zero, **rest)  # type: ignore[arg-type]

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Σ c over the logged pairs of each user and of each item."""
        users, items = list[Tensor](), None
        for block in self.blocks():
            pattern, c, _ = block.by_item
            users.append(_row_sums(block.pattern, block.c, block.d))
            own = _row_sums(pattern, c, block.d)
            items = own if items is None else items + own
        if items is None:
            raise InputError("a log without blocks of users")
        return torch.cat(users), self.reduce(items)

    def at(self, scores: LowRank) -> Quadratic:
        """The quadratic to lower next: itself, whatever the scores."""
        return self

    def value(self, scores: LowRank) -> float:
        """The loss of given scores, without the penalty."""
        left, right = scores.lefts[0], scores.rights[0]
        total = torch.zeros((), dtype=torch.float64, device=left.device)
        for block in self.blocks():
            s = block.pattern.sample(left[block.start : block.stop], right)
            total += exact_sum(s * (block.c * s - 2.0 * block.d))
        if self.v:
            total += self.v * self._everywhere((left,), (right,))[0]
        return float(self.reduce(total)) + self.constant

    def along(self, scores: LowRank, step: LowRank) -> np.ndarray:
        """Coefficients of t⁰ … t⁴ of the loss at factors L + t ΔL, R + t ΔR, without the constant; sums in float64."""
        (left, right), (d_left, d_right) = (scores.lefts[0], scores.rights[0]), (step.lefts[0], step.rights[0])
        total = torch.zeros(5, dtype=torch.float64, device=left.device)
        for block in self.blocks():
            rows = slice(block.start, block.stop)
            own, moved = left[rows], d_left[rows]
            s0 = block.pattern.sample(own, right)
            s1 = block.pattern.sample(moved, right) + block.pattern.sample(own, d_right)
            total += _pair_polynomial(block, s0, s1, block.pattern.sample(moved, d_right))
        if self.v:
            total += self.v * self._everywhere((left, d_left), (right, d_right))
        return self.reduce(total).cpu().numpy()

    def _everywhere(self, lefts: tuple[Tensor, ...], rights: tuple[Tensor, ...]) -> Tensor:
        """Coefficients of Σ_D s² − 2 Σ_D s m: products of two polynomials of Gram matrices."""
        users, items = _gram_polynomial(*lefts), _gram_polynomial(*rights)
        total = users[0].new_zeros(5)
        for j, a in enumerate(users):
            for k, b in enumerate(items):
                total[j + k] += torch.sum(a * b)
        for m, n in zip(self.pull.lefts, self.pull.rights, strict=True) if self.pull else ():
            for j, a in enumerate(lefts):
                for k, b in enumerate(rights):
                    total[j + k] -= 2.0 * torch.sum(gram(a, m) * gram(b, n))
        return total


class Objective(Protocol):
    """A loss of scores to minimise: its value, and a quadratic that is lowered in its place near given scores."""

    def at(self, scores: LowRank) -> Quadratic:
        """The quadratic at these scores; best if it lies above the loss and touches it there."""

    def value(self, scores: LowRank) -> float:
        """The loss, without the penalty."""


class _Part(NamedTuple):
    """Logged pairs between some rows of the side that moves and some of the side that is fixed."""

    own: slice
    other: slice
    pattern: LogPattern
    c: Tensor | float
    d: Tensor


class Rows:
    """The loss as a function of one side's rows Z, with scores ⟨z, f⟩ + offset: its slope, and its matrices A."""

    def __init__(
        self,
        quadratic: Quadratic,
        parts: Callable[[], Iterable[_Part]],
        own: Tensor,
        other: Tensor,
        reduce: Reduce,
        *,
        own_users: bool,
    ) -> None:
        self.quadratic, self.parts, self.reduce = quadratic, parts, reduce
        self.own_users = own_users
        self.pulls: list[tuple[Tensor, Tensor]] = []
        self.own, self.other = own, other
        self.fixed = other[:, :-1].contiguous()
        self.gram = reduce(quadratic.v * gram(other, self.fixed)) if quadratic.v else None

    @classmethod
    def of_users(cls, quadratic: Quadratic, scores: LowRank) -> Rows:
        """Each user's pairs lie in one block: nothing is summed over blocks."""

        def parts() -> Iterable[_Part]:
            for block in quadratic.blocks():
                yield _Part(slice(block.start, block.stop), slice(None), block.pattern, block.c, block.d)

        rows = cls(quadratic, parts, scores.lefts[0], scores.rights[0], alone, own_users=True)
        if quadratic.pull is not None:
            rows.pulls = list(zip(quadratic.pull.lefts, quadratic.pull.rights, strict=True))
        return rows

    @classmethod
    def of_items(cls, quadratic: Quadratic, scores: LowRank) -> Rows:
        """An item's pairs lie in all blocks and with all processes."""

        def parts() -> Iterable[_Part]:
            for block in quadratic.blocks():
                yield _Part(slice(None), slice(block.start, block.stop), *block.by_item)

        left, right = scores.lefts[0], scores.rights[0]
        own = torch.cat([right[:, :-2], right[:, -1:], right[:, -2:-1]], 1)
        other = torch.cat([left[:, :-2], left[:, -1:], left[:, -2:-1]], 1)
        rows = cls(quadratic, parts, own, other, quadratic.reduce, own_users=False)
        if quadratic.pull is not None:
            rows.pulls = list(zip(quadratic.pull.rights, quadratic.pull.lefts, strict=True))
        return rows

    def weights(self) -> tuple[Tensor, Tensor]:
        """C = Σ_O c of the rows that move, and of those that are fixed; at least 0."""
        users, items = (total.clamp_min(0.0) for total in self.quadratic.weights)
        return (users, items) if self.own_users else (items, users)

    def typical(self) -> Tensor:
        """Σ C f fᵀ / Σ C over the fixed rows f, 0 where nothing has a weight."""
        fixed_weights = self.weights()[1]
        total = self.reduce(fixed_weights.sum(dtype=torch.float64))
        squares = self.reduce(gram(self.fixed, fixed_weights[:, None] * self.fixed))
        return squares / total.clamp_min(torch.finfo(torch.float32).tiny)

    def slope(self) -> Tensor:
        """−½ ∂loss/∂Z = Σ_O (d − c s) f + v Σ_D (m − s) f."""

        def pull(part: _Part) -> Tensor:
            if isinstance(part.c, float) and part.c == 0.0:
                return part.d
            return part.d - part.c * part.pattern.sample(self.own[part.own], self.other[part.other])

        total = self._sum(lambda part: part.pattern.matmul(pull(part), self.fixed[part.other]))
        if self.gram is None:
            return total
        total -= self.own @ self.gram.to(total)
        for mine, others in self.pulls:
            total += mine @ self.reduce(self.quadratic.v * gram(others, self.fixed)).to(total)
        return total

    def times(self, rows: Tensor) -> Tensor:
        """A z of each row = Σ_O c ⟨z, f⟩ f + v Σ_D ⟨z, f⟩ f."""

        def product(part: _Part) -> Tensor:
            fixed = self.fixed[part.other]
            return part.pattern.matmul(part.c * part.pattern.sample(rows[part.own], fixed), fixed)

        total = self._sum(product) if not self.quadratic.same_matrix else torch.zeros_like(rows)
        return total if self.gram is None else total.addmm_(rows, self.gram[:-1].to(rows))

    def diagonal(self) -> Tensor:
        """The diagonals of the rows' matrices A."""

        def product(part: _Part) -> Tensor:
            weights = torch.full_like(part.d, part.c) if isinstance(part.c, float) else part.c
            return part.pattern.matmul(weights, self.fixed[part.other].square())

        total = self._sum(product) if not self.quadratic.same_matrix else torch.zeros_like(self.own[:, :-1])
        return total if self.gram is None else total + self.gram[:-1].diagonal().to(total)

    def _sum(self, product: Callable[[_Part], Tensor]) -> Tensor:
        total = torch.zeros_like(self.own[:, :-1])
        for part in self.parts():
            total[part.own] += product(part)
        return self.reduce(total)


def exact_sum(values: Tensor) -> Tensor:
    """Σ in float64 of sums of `SUMMED` numbers in their own precision: a copy of all as float64 would take longer."""
    flat = values.reshape(-1)
    whole = flat.numel() // SUMMED * SUMMED
    return flat[:whole].view(-1, SUMMED).sum(1).sum(dtype=torch.float64) + flat[whole:].sum(dtype=torch.float64)


def _row_sums(pattern: LogPattern, values: Tensor | float, like: Tensor) -> Tensor:
    """Σ of the values of each row."""
    if isinstance(values, float):
        return values * pattern.row_start.diff().to(like)
    return pattern.matmul(values, like.new_ones(pattern.n_items, 1))[:, 0]


def gram(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in float64: float32 within `GRAM_ROWS` rows, whose rounding errors do not add up."""
    whole = left.shape[0] // GRAM_ROWS * GRAM_ROWS
    rest = left[whole:].double().T @ right[whole:].double()
    if not whole:
        return rest
    a, b = (x[:whole].reshape(-1, GRAM_ROWS, x.shape[1]) for x in (left, right))
    return rest + torch.bmm(a.transpose(1, 2), b).sum(0, dtype=torch.float64)


def _pair_polynomial(block: Block, s0: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
    """Coefficients of Σ c s² − 2 d s at s = s0 + t s1 + t² s2."""
    weighted, slope = block.c * s1, block.c * s0 - block.d
    terms = [
        s0 * (slope - block.d), 2.0 * s1 * slope, weighted * s1 + 2.0 * s2 * slope, 2.0 * weighted * s2,
        block.c * s2 * s2,
    ]  # fmt: skip
    return torch.stack([exact_sum(term) for term in terms])


def _gram_polynomial(rows: Tensor, step: Tensor | None = None) -> list[Tensor]:
    """Coefficients of (X + t Y)ᵀ (X + t Y)."""
    if step is None:
        return [gram(rows, rows)]
    cross = gram(rows, step)
    return [gram(rows, rows), cross + cross.T, gram(step, step)]
