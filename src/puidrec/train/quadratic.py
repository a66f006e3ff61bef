"""A quadratic loss of low-rank scores over all pairs D, its value along a line, and its view from one side.

    Σ_O (c s² − 2 d s) + v (Σ_D s² − 2 Σ_D s m) + constant,   s_ui = ⟨l_u, r_i⟩

O are the logged pairs, m is constant and of low rank. Sums over O are sampled and sparse products on the log's pattern
(`backbones.sparse`), block of users by block; sums over D are d × d Gram matrices. Nothing has users × items cells, but
where a loss without such identities takes all pairs for O, some users at a time (`log_losses.PairBlocks`).

| problem | c | d | v | m |
|---|---|---|---|---|
| naive | 1/|O| | r/|O| | 0 | |
| IPS | w/|D| | w r/|D| | 0 | |
| DR, imputation model g | w/|O| | w r/|O| | 0 | |
| DR, prediction model | 0 | w (r − g)/|D| | 1/|D| | g |
| signed | w/seen − λ/unseen | w r/seen − λ m/unseen | λ/unseen | q/Γ |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.backbones.sparse import LogPattern
from puidrec.errors import InputError

GRAM_ROWS, SUMMED = 1024, 64
"""Rows whose products, and numbers that, are summed in float32 before float64 takes over."""
IN_CACHE = 131_072
"""Logged pairs whose products are summed at a time: what is made of them on the way stays in the cache."""
KEPT = 20_000_000
"""Logged pairs whose scores are kept from one half of a step to the other (80 MB), where the log itself is not."""
Reduce = Callable[[Tensor], Tensor]
"""Sum over processes, each of which holds some of the users."""


def alone(total: Tensor) -> Tensor:
    """The sum over one process."""
    return total


class Line(NamedTuple):
    """Factors L + t ΔL, R + t ΔR, and a point on the line about as far away as its start is long.

    Scores along it are s0 + t s1 + t² s2. With s0 known, s1 follows from s2 and the scores of that point: two sampled
    products instead of three, and no digits are lost where steps are short.
    """

    step: LowRank
    far: LowRank
    reach: float

    @classmethod
    def of(cls, scores: LowRank, step: LowRank) -> Line:
        """The line from these scores along a step."""
        sides = [(scores.lefts[0], step.lefts[0]), (scores.rights[0], step.rights[0])]
        lengths = [[float(torch.linalg.vector_norm(x)) for x in side] for side in sides]
        reach = min((own / moved for own, moved in lengths if min(own, moved) > 0.0), default=1.0)
        return cls(step, LowRank.of(*(torch.add(*side, alpha=reach) for side in sides)), reach)


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

    def scores(self, scores: LowRank) -> Tensor:
        """Scores of the block's pairs."""
        return self.pattern.sample(scores.lefts[0][self.start : self.stop], scores.rights[0])

    def change(self, line: Line, s0: Tensor) -> tuple[Tensor, Tensor]:
        """What t and t² bring to the pairs' scores s0 at factors L + t ΔL, R + t ΔR."""
        rows = slice(self.start, self.stop)
        s2 = self.pattern.sample(line.step.lefts[0][rows], line.step.rights[0])
        far = self.pattern.sample(line.far.lefts[0][rows], line.far.rights[0])
        return far.sub_(s0).div_(line.reach).sub_(s2, alpha=line.reach), s2

    @cached_property
    def by_item(self) -> tuple[LogPattern, Tensor | float, Tensor]:
        """The same with items as rows; made once as long as the block is kept."""
        c = self.c if isinstance(self.c, float) else self.pattern.transposed(self.c)
        return self.pattern.transpose, c, self.pattern.transposed(self.d)


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
    kept: int = KEPT
    """Logged pairs whose scores may be kept from one half of a step to the other."""

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

    def curvature(self, items: Tensor) -> Tensor:
        """Σ_i (o c + v) x_i² of each user and each column x of the items' vectors."""
        squares = items.square()
        total = (self.v * squares.sum(0, dtype=torch.float64)).to(items)
        if self.same_matrix:
            return total[None]
        parts = []
        for block in self.blocks():
            weights = torch.full_like(block.d, block.c) if isinstance(block.c, float) else block.c
            parts.append(block.pattern.matmul(weights, squares))
        return torch.cat(parts).add_(total)

    def at(self, scores: LowRank) -> Quadratic:
        """The quadratic to lower next: itself, whatever the scores."""
        return self

    def value(self, scores: LowRank) -> float:
        """The loss of given scores, without the penalty."""
        total = self.everywhere(scores)
        for block in self.blocks():
            s = block.scores(scores)
            total += exact_sum(s * (block.c * s - 2.0 * block.d))
        return float(self.reduce(total)) + self.constant

    def everywhere(self, scores: LowRank) -> Tensor:
        """v (Σ_D s² − 2 Σ_D s m) of the users of this process."""
        left, right = scores.lefts[0], scores.rights[0]
        if not self.v:
            return torch.zeros((), dtype=torch.float64, device=left.device)
        return self.v * self._everywhere((left,), (right,))[0]

    def along(self, scores: LowRank, step: LowRank, known: Mapping[int, Tensor] | None = None) -> np.ndarray:
        """Coefficients of t¹ … t⁴ of the loss at factors L + t ΔL, R + t ΔR, after a 0 for t⁰; sums in float64.

        known: scores of the logged pairs of a block, by its first user, where they were computed before.
        """
        total = torch.zeros(5, dtype=torch.float64, device=scores.lefts[0].device)
        line = Line.of(scores, step)
        for block in self.blocks():
            s0 = (known or {}).get(block.start)
            s0 = block.scores(scores) if s0 is None else s0
            total += _pair_polynomial(block, s0, *block.change(line, s0))
        polynomial = self.reduce(total + self.everywhere_along(scores, step)).cpu().numpy()
        polynomial[0] = 0.0
        return polynomial

    def everywhere_along(self, scores: LowRank, step: LowRank) -> Tensor:
        """The part of `along` that is over all pairs, of the users of this process."""
        lefts, rights = (scores.lefts[0], step.lefts[0]), (scores.rights[0], step.rights[0])
        return (
            self.v * self._everywhere(lefts, rights)
            if self.v
            else torch.zeros(5, dtype=torch.float64).to(lefts[0].device)
        )

    def line_search(
        self, quadratic: Quadratic, scores: LowRank, step: LowRank, penalty: np.ndarray, known: Mapping[int, Tensor]
    ) -> tuple[float, float]:
        """The lowest point of loss + penalty on a line, and the change of value there (`Objective.line_search`)."""
        polynomial = self.along(scores, step, known)
        polynomial[: penalty.size] += penalty
        return best_step(polynomial)

    def _everywhere(self, lefts: tuple[Tensor, ...], rights: tuple[Tensor, ...]) -> Tensor:
        """Coefficients of Σ_D s² − 2 Σ_D s m: products of two polynomials of Gram matrices."""
        users, items = _gram_polynomial(*lefts), _gram_polynomial(*rights)
        total = users[0].new_zeros(5)
        for j, a in enumerate(users):
            for k, b in enumerate(items):
                total[j + k] += torch.sum(a * b)
        for m, n in zip(self.pull.lefts, self.pull.rights, strict=True) if self.pull else ():
            pulled = [gram(a, m) for a in lefts], [gram(b, n) for b in rights]
            for j, a in enumerate(pulled[0]):
                for k, b in enumerate(pulled[1]):
                    total[j + k] -= 2.0 * torch.sum(a * b)
        return total


class Objective(Protocol):
    """A loss of scores to minimise: its value, and a quadratic that is lowered in its place near given scores."""

    def at(self, scores: LowRank) -> Quadratic:
        """The quadratic at these scores; best if it lies above the loss and touches it there."""

    def value(self, scores: LowRank) -> float:
        """The loss, without the penalty."""

    def line_search(
        self, quadratic: Quadratic, scores: LowRank, step: LowRank, penalty: np.ndarray, known: Mapping[int, Tensor]
    ) -> tuple[float, float]:
        """The t that lowers loss + penalty at factors L + t ΔL, R + t ΔR, and the change of value.

        quadratic: the one at the scores. penalty: coefficients of t⁰, t¹, t². known: as of `Quadratic.along`.
        """


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

    @cached_property
    def gram(self) -> Tensor | None:
        """v times what all fixed rows make of the whole row that moves, [width + 1, width]."""
        return self.reduce(self.quadratic.v * gram(self.other, self.fixed)) if self.quadratic.v else None

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

        return self._with_everywhere(self._sum(lambda part: part.pattern.matmul(pull(part), self.fixed[part.other])))

    def _with_everywhere(self, total: Tensor) -> Tensor:
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

        total = self._weighted_sum(torch.square, self.width)
        return total if self.gram is None else total + self.gram[:-1].diagonal().to(total)

    def _weighted_sum(self, make: Callable[[Tensor], Tensor], width: int) -> Tensor:
        """Σ_O c x of each row, x what is made of the fixed rows, `width` numbers each."""

        def product(part: _Part) -> Tensor:
            weights = torch.full_like(part.d, part.c) if isinstance(part.c, float) else part.c
            return part.pattern.matmul(weights, make(self.fixed[part.other]))

        if self.quadratic.same_matrix:
            return self.own.new_zeros(len(self.own), width)
        return self._sum(product, width)

    def matrices(self) -> Tensor:
        """The rows' matrices A themselves, [n, width, width]."""
        a, b = torch.triu_indices(self.width, self.width, device=self.own.device)
        total = self._weighted_sum(lambda fixed: fixed[:, a] * fixed[:, b], len(a))
        matrices = total.new_empty(len(total), self.width, self.width)
        matrices[:, a, b] = matrices[:, b, a] = total
        return matrices if self.gram is None else matrices + self.gram[:-1].to(matrices)

    def at_residuals(self, total: Tensor) -> Tensor:
        """The slope, given its sum over the logged pairs of this process."""
        return self._with_everywhere(self.reduce(total))

    @property
    def width(self) -> int:
        """Numbers of a row that move: its vector and its bias."""
        return self.fixed.shape[1]

    def _sum(self, product: Callable[[_Part], Tensor], width: int | None = None) -> Tensor:
        total = self.own.new_zeros(len(self.own), width or self.width)
        for part in self.parts():
            total[part.own] += product(part)
        return self.reduce(total)


class Slopes:
    """E = −½ ∂loss/∂scores at given scores: products with it and with its transpose, of vectors of any width."""

    def __init__(self, quadratic: Quadratic, scores: LowRank) -> None:
        self.quadratic, self.scores = quadratic, scores
        self._known: dict[int, Tensor] = {}
        self._kept = 0

    def times(self, items: Tensor) -> Tensor:
        """E times vectors of items, for the users of this process."""
        parts = [block.pattern.matmul(self._residual(block), items) for block in self.quadratic.blocks()]
        return torch.cat(parts) + self._everywhere(items, by_user=False)

    def transposed(self, users: Tensor) -> Tensor:
        """Eᵀ times vectors of users, summed over processes."""
        total = self._everywhere(users, by_user=True)
        for block in self.quadratic.blocks():
            total += block.pattern.matmul_transposed(self._residual(block), users[block.start : block.stop])
        return self.quadratic.reduce(total)

    def _residual(self, block: Block) -> Tensor:
        """d − c s of the block's pairs, kept where they are few enough."""
        if block.start in self._known:
            return self._known[block.start]
        residual = block.d - block.c * block.scores(self.scores)
        self._kept += residual.numel()
        if self._kept <= self.quadratic.kept:
            self._known[block.start] = residual
        return residual

    def _everywhere(self, vectors: Tensor, *, by_user: bool) -> Tensor:
        """v (m − s) times the vectors."""
        left, right = self.scores.lefts[0], self.scores.rights[0]
        products = [(left, right, -self.quadratic.v)]
        if self.quadratic.pull is not None:
            pulls = zip(self.quadratic.pull.lefts, self.quadratic.pull.rights, strict=True)
            products += [(m, n, self.quadratic.v) for m, n in pulls]
        total = vectors.new_zeros(len(right if by_user else left), vectors.shape[1])
        for m, n, factor in products if self.quadratic.v else ():
            mine, others = (n, m) if by_user else (m, n)
            total += mine @ (factor * gram(others, vectors)).to(vectors)
        return total


def both_slopes(
    quadratic: Quadratic, users: Rows, items: Rows, scores: LowRank
) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Slopes of both sides in one pass over the log; and the scores of its pairs, where they are few enough to keep."""
    totals = torch.zeros_like(users.own[:, :-1]), torch.zeros_like(items.own[:, :-1])
    known: dict[int, Tensor] = {}
    kept = 0
    for block in quadratic.blocks():
        s = block.scores(scores)
        kept += s.numel()
        if kept <= quadratic.kept:
            known[block.start] = s
        residual = block.d - block.c * s
        rows = slice(block.start, block.stop)
        totals[0][rows] = block.pattern.matmul(residual, users.fixed)
        totals[1].add_(block.pattern.matmul_transposed(residual, items.fixed[rows]))
    return users.at_residuals(totals[0]), items.at_residuals(totals[1]), known


def best_step(polynomial: np.ndarray) -> tuple[float, float]:
    """argmin over t of Σ p_k t^k (degree four at most), and the change of value from t = 0."""
    gains = np.concatenate([[0.0], polynomial[1:]])
    if not np.isfinite(gains).all():
        return 0.0, float("nan")
    roots = np.roots((gains[1:] * np.arange(1, gains.size))[::-1])  # none if there is nothing to move
    real = [0.0, *(float(root.real) for root in roots if abs(root.imag) <= 1e-6 * (1 + abs(root)))]
    values = np.polyval(gains[::-1], real)
    best = int(np.argmin(values))
    return real[best], float(values[best])


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
    """Coefficients of t¹ … t⁴ of Σ c s² − 2 d s at s = s0 + t s1 + t² s2, after a 0 for t⁰."""
    total = torch.zeros(2, 3, dtype=torch.float64, device=s0.device)
    for start in range(0, s0.numel(), IN_CACHE):
        part = slice(start, start + IN_CACHE)
        c = block.c if isinstance(block.c, float) else block.c[part]
        moves = torch.stack([s1[part], s2[part]])
        others = torch.stack([c * s0[part] - block.d[part], *(c * moves)])
        total += gram(moves.T, others.T)
    (first, square, cross), (second, _, fourth) = total
    return torch.stack([torch.zeros_like(first), 2.0 * first, square + 2.0 * second, 2.0 * cross, fourth])


def _gram_polynomial(rows: Tensor, step: Tensor | None = None) -> list[Tensor]:
    """Coefficients of (X + t Y)ᵀ (X + t Y)."""
    if step is None:
        return [gram(rows, rows)]
    cross = gram(rows, step)
    return [gram(rows, rows), cross + cross.T, gram(step, step)]
