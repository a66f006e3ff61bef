"""One formula, one home: every loss here is a function of logged scores plus one quadratic over
*all* pairs,

    J(s) = scale · Σ_O f(s_ui) + v Σ_D (s_ui − m_ui)²,   m of low rank.

A `PairLoss` gives f of each logged pair: value, slope, and a bound of its curvature. Least squares
takes slope and curvature, Adam value and slope (`pair_sum`), both of the same f. The sum over D is
exact through Gram matrices.

| row | f(s) | scale | v, m |
|---|---|---|---|
| `mf` (`eq:naive`) | (s − r)² | 1/|O| | 0 |
| `ips` (`eq:ips`) | w (s − r)² | 1/|D| | 0 |
| `dr` (`eq:dr`) | w [(s − r)² − (s − g)²] | 1/|D| | 1/|D|, g |
| its θ (`eq:puid-dr-imp`) | w (g − r)² | 1/Σ_O w | 0 |
| `rd-*`, `puid-*` (`eq:puid-ips`, `eq:puid-dr`) | max over w in [a, b] of w k(s) | the same | the same |
| `brd-*`, `bpuid-*` (`eq:bpuid-ips`, `eq:bpuid-dr`, `eq:bpuid-dr-imp`) | … of w (k(s) − k⁰) | the same | the same |
| `signed-*`, `all-rank` | w (s − r)²/|O| − λ (s − m)²/|D∖O| | 1 | λ/|D∖O|, m |

k is e = (s − r)² or, with an imputation g, e − ê; k⁰ is a frozen benchmark's. Γ = 1 (a = b = 1/p)
gives IPS and DR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.losses.pointwise import WIDTH, PairError, rounded
from puidrec.scores.log import Column, Log, exact_sum
from puidrec.scores.low_rank import LowRank

GRAM_ROWS = 1024
"""Rows whose products are summed in float32 before float64 takes over."""


class Row(SimpleNamespace):
    """The numbers of some logged pairs by name: `r` ratings, `a` and `b` bounds of weights, and
    what a loss adds."""

    r: Tensor
    a: Tensor
    b: Tensor
    g: Tensor
    k0: Tensor
    m: Tensor
    s: Tensor


class PairLoss:
    """f of a logged pair, as a function of its score s and of the pair's numbers `row`.

    Write `value`, `slope` and `curvature` (a bound of the second derivative), and both solvers
    train it.
    """

    quadratic = False
    """Whether slopes are linear in s and curvatures exact: then a line search is one polynomial."""

    def value(self, s: Tensor, row: Row) -> Tensor:
        """f."""
        raise NotImplementedError

    def slope(self, s: Tensor, row: Row) -> Tensor:
        """∂f/∂s."""
        raise NotImplementedError

    def curvature(self, s: Tensor, row: Row) -> Tensor:
        """∂²f/∂s², or that of a parabola above f that touches it at s."""
        raise NotImplementedError


class Coefficient(NamedTuple):
    """k of the pairs at hand with its derivatives, and the |k| up to which its bend is rounded off."""

    value: Tensor
    slope: Tensor
    curvature: Tensor
    width: Tensor


@dataclass(frozen=True)
class RobustLoss(PairLoss):
    """max over w in [a, b] of w k(s): the inner problem of every robust row (`eq:w_p`), in closed
    form.

    The worst weight is b where k ≥ 0 and a elsewhere, so that f = ā k + δ |k| with ā = (a + b)/2, δ
    = (b − a)/2. f bends where k changes sign. Weights that jump there would leave a solver stepping
    back and forth, so |k| is rounded off where the score is within `WIDTH` of the bend; f is then
    above the worst case by at most δ·width/2.
    """

    error: PairError = field(default_factory=PairError)
    head: str | None = None
    """What the imputation's output `row.g` means, where there is one; None: k = e."""
    interval: bool = False
    """Whether a < b for any pair."""
    benchmarked: bool = False
    """Whether k is measured against a benchmark's, `row.k0`."""

    @property
    def quadratic(self) -> bool:  # type: ignore[override]
        """A square at a known weight, or at its worst, which is b; or a line at a known weight."""
        return self.error.quadratic and not self._bends and self.head in (None, "label")

    @property
    def _bends(self) -> bool:
        return self.interval and (self.head is not None or self.benchmarked)

    def coefficient(self, s: Tensor, row: Row) -> Coefficient:
        """k(s) = e − ê − k⁰."""
        e, width = self.error, torch.zeros_like(s)
        k, slope, curvature = (e.value(s, row.r), e.slope(s, row.r), e.curvature(s, row.r))
        if self.head is not None:
            imputed = HEADS[self.head](e, s, row.g)
            k = imputed.gap(s, row.r, k)
            slope = slope - imputed.slope
            if e.quadratic:  # else e's own bound: −ê may have no curvature at all
                curvature = curvature - imputed.curvature
            width = WIDTH * slope.abs() if e.quadratic else width
        elif self.benchmarked:
            width = 2.0 * WIDTH * row.k0.clamp_min(0.0).sqrt() if e.quadratic else width
        return Coefficient(k - row.k0 if self.benchmarked else k, slope, curvature, width)

    def value(self, s: Tensor, row: Row) -> Tensor:
        """ā k + δ |k|; b k where k cannot be negative."""
        k, _, _, width = self.coefficient(s, row)
        if not self._bends:
            return row.b * k
        return 0.5 * ((row.a + row.b) * k + (row.b - row.a) * rounded(k, width))

    def slope(self, s: Tensor, row: Row) -> Tensor:
        """The worst weight times ∂k/∂s."""
        k = self.coefficient(s, row)
        return self._weight(k, row) * k.slope

    def curvature(self, s: Tensor, row: Row) -> Tensor:
        """b ∂²k/∂s² (where k < 0 now, a step may reach where the worst weight is b), and what the
        bend adds."""
        k = self.coefficient(s, row)
        bent = row.b * k.curvature
        if not self._bends:
            return bent
        return bent.clamp_min(0.0) + 0.5 * (row.b - row.a) * k.slope.square() / self._size(k)

    def _size(self, k: Coefficient) -> Tensor:
        return torch.maximum(k.value.abs(), k.width).clamp_min(torch.finfo(k.value.dtype).eps ** 2)

    def _weight(self, k: Coefficient, row: Row) -> Tensor:
        """argmax_w w k over the box, moving from a to b within the width of the bend."""
        if not self._bends:
            return row.b
        return 0.5 * ((row.a + row.b) + (row.b - row.a) * (k.value / self._size(k)))


class Imputed(NamedTuple):
    """ê of the pairs at hand, its derivatives in s, and e − ê."""

    value: Tensor
    slope: Tensor
    curvature: Tensor
    gap: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(s, r, e) → e − ê."""


def _label(error: PairError, s: Tensor, g: Tensor) -> Imputed:
    """g is a pseudo-label: ê = e(s, g), which moves with φ, as double robustness needs."""
    t = error.to_target(g)
    return Imputed(
        error.value(s, t),
        error.slope(s, t),
        error.curvature(s, t),
        lambda s, r, e: error.gap(s, r, t),
    )


def _residual(error: PairError, s: Tensor, g: Tensor) -> Imputed:
    """g is the residual r − s, s held constant (form of the public RD code): ê = e(s, s° + g)."""
    t = error.to_target(s) + g
    value = error.value(s, t)
    return Imputed(value, error.slope(s, t), error.curvature(s, t), lambda s, r, e: e - value)


def _direct(error: PairError, s: Tensor, g: Tensor) -> Imputed:
    """g is ê itself, as the paper prints it; then φ's gradient is that of IPS."""
    zero = torch.zeros_like(s)
    return Imputed(g, zero, zero, lambda s, r, e: e - g)


HEADS: dict[str, Callable[[PairError, Tensor, Tensor], Imputed]] = {
    "label": _label,
    "label-squared": _label,
    "residual": _residual,
    "direct": _direct,
}
"""What the output g of the imputation model means. `label-squared` differs in what g is fitted by.
"""


def imputation_target(head: str, error: PairError, s: Tensor, r: Tensor) -> Tensor:
    """What g is fitted to: ratings, residuals, or errors of the prediction s."""
    if head == "direct":
        return error.value(s, r)
    return r - error.to_target(s) if head == "residual" else r


class PrintedImputation(PairLoss):
    """b ((s − g)² − (s − r)²)² as a function of g, φ's score `row.s` held constant:
    `eq:puid-dr-imp` as printed.

    It is 0 at g = r and at its mirror image 2s − r, which pushes φ away from r: expect it to be
    unsteady.
    """

    def __init__(self, error: PairError) -> None:
        self.error = error

    def _mismatch(self, g: Tensor, row: Row) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            own = g.detach().requires_grad_()
            k = self.error.gap(row.s, row.r, self.error.to_target(own))
            (slope,) = torch.autograd.grad(k.sum(), own)
        return k.detach(), slope

    def value(self, s: Tensor, row: Row) -> Tensor:
        """The square."""
        return row.b * self._mismatch(s, row)[0].square()

    def slope(self, s: Tensor, row: Row) -> Tensor:
        """Its slope in g."""
        k, slope = self._mismatch(s, row)
        return 2.0 * row.b * k * slope


@dataclass(frozen=True)
class UnseenLoss(PairLoss):
    """w (s − r)²/|O| − λ (s − m)²/|D∖O|: a seen pair, less what the sum over D counts of it as
    unseen."""

    quadratic = True
    seen: float = 1.0
    """1/|O|."""
    unseen: float = 0.0
    """λ/|D∖O|."""

    def value(self, s: Tensor, row: Row) -> Tensor:
        """f."""
        return self.seen * row.b * (s - row.r).square() - self.unseen * (s - row.m).square()

    def slope(self, s: Tensor, row: Row) -> Tensor:
        """∂f/∂s."""
        return 2.0 * (self.seen * row.b * (s - row.r) - self.unseen * (s - row.m))

    def curvature(self, s: Tensor, row: Row) -> Tensor:
        """Constant."""
        return 2.0 * (self.seen * row.b - self.unseen) * torch.ones_like(s)


class Line(NamedTuple):
    """Scores along factors L + t ΔL, R + t ΔR: s0 + t s1 + t² s2 of logged pairs; J's part over D
    as a polynomial."""

    s0: Column
    s1: Column
    s2: Column
    everywhere: Tensor
    """Coefficients of t⁰ (0) … t⁴."""


@dataclass(frozen=True, eq=False)
class Objective:
    """J(s) of the module's head, on a log; `columns` are the numbers that f reads."""

    log: Log
    loss: PairLoss
    columns: Mapping[str, Column]
    scale: float = 1.0
    v: float = 0.0
    m: LowRank | None = None
    """Of all users."""
    constant: float = 0.0

    def on_rows(self, function: Callable[[Tensor, Row], Tensor]) -> Callable[..., Tensor]:
        """A function of scores and of the numbers of pairs, as one of parts of columns."""
        names = tuple(self.columns)
        return lambda s, *parts: function(s, Row(**dict(zip(names, parts, strict=True))))

    def value(self, s: Column, factors: LowRank) -> float:
        """J."""
        f = self.on_rows(lambda s, row: exact_sum(self.loss.value(s, row)))
        logged = self.scale * float(self.log.sum(f, s, *self.columns.values()))
        return (
            logged
            + float(self._everywhere((factors.lefts[0],), (factors.rights[0],))[0])
            + self.constant
        )

    def slope(self, s: Column) -> Column:
        """−½ ∂J/∂s of logged pairs, without the part over D."""
        half = -0.5 * self.scale
        f = self.on_rows(lambda s, row: self.loss.slope(s, row).mul(half))
        return self.log.map(f, s, *self.columns.values())

    def curvature(self, s: Column) -> Column:
        """½ ∂²J/∂s² of logged pairs, or a bound of it, without the part over D."""
        half = 0.5 * self.scale
        f = self.on_rows(lambda s, row: self.loss.curvature(s, row).mul(half))
        return self.log.map(f, s, *self.columns.values())

    def factor_slopes(self, s: Column, factors: LowRank) -> tuple[Tensor, Tensor]:
        """−½ ∂J/∂L and −½ ∂J/∂R."""
        left, right = factors.lefts[0], factors.rights[0]
        slope = self.slope(s)
        users, items = self.log.to_users(slope, right), self.log.to_items(slope, left)
        if self.v:
            for m, n, sign in [(left, right, -1.0), *((m, n, 1.0) for m, n in self.pulls())]:
                users += m @ (sign * self.v * gram(n, right)).to(m)
                items += n @ (sign * self.v * self.log.total(gram(m, left))).to(n)
        return users, items

    def gram_of_users(self, left: Tensor) -> Tensor | None:
        """v LᵀL: what the sum over D adds to the curvature of every item."""
        return self.v * self.log.total(gram(left, left)) if self.v else None

    def gram_of_items(self, right: Tensor) -> Tensor | None:
        """v RᵀR."""
        return self.v * gram(right, right) if self.v else None

    def line(self, s: Column, factors: LowRank, step: LowRank) -> Line:
        """The line from these scores along a step of the factors.

        With s0 known, s1 follows from s2 and the scores of a point about as far away as the start
        is long: two sampled products instead of three, and no digits are lost where steps are
        short.
        """
        sides = [(factors.lefts[0], step.lefts[0]), (factors.rights[0], step.rights[0])]
        reach = self._reach(sides)
        s2 = self.log.scores(step.lefts[0], step.rights[0])
        far = self.log.scores(*(torch.add(x, dx, alpha=reach) for x, dx in sides))
        s1 = self.log.map(lambda f, a, b: f.sub(a).div_(reach).sub_(b, alpha=reach), far, s, s2)
        return Line(s, s1, s2, self._everywhere(*sides))

    def _reach(self, sides: list[tuple[Tensor, Tensor]]) -> float:
        """How far to go so that a step is about as long as where it starts; the same in all
        processes."""
        squares = torch.stack(
            [torch.stack([exact_sum(x.square()) for x in side]) for side in sides]
        )
        squares[0] = self.log.total(squares[0].clone())
        lengths = squares.sqrt().cpu().tolist()
        return min((own / moved for own, moved in lengths if min(own, moved) > 0.0), default=1.0)

    def polynomial(self, line: Line) -> Tensor:
        """Coefficients of t¹ … t⁴ of J along a line, after a 0; where f is not quadratic, of
        parabolas above it."""
        names = tuple(self.columns)

        def sums(s: Tensor, s1: Tensor, s2: Tensor, *parts: Tensor) -> Tensor:
            row = Row(**dict(zip(names, parts, strict=True)))
            slope, half = self.loss.slope(s, row), 0.5 * self.loss.curvature(s, row)
            first, second = half * s1, half * s2
            return torch.stack(
                [
                    exact_sum(slope * s1),
                    exact_sum(slope * s2),
                    exact_sum(first * s1),
                    exact_sum(first * s2),
                    exact_sum(second * s2),
                ]
            )

        a1, a2, c11, c12, c22 = self.scale * self.log.sum(
            sums, line.s0, line.s1, line.s2, *self.columns.values()
        )
        return line.everywhere + torch.stack([torch.zeros_like(a1), a1, a2 + c11, 2.0 * c12, c22])

    def along(self, line: Line, t: float) -> tuple[float, float]:
        """Change of J from t = 0 along a line, and its slope in t, without the part over D; in
        float64."""
        names = tuple(self.columns)

        def sums(s: Tensor, s1: Tensor, s2: Tensor, *parts: Tensor) -> Tensor:
            row = Row(**dict(zip(names, (part.double() for part in parts), strict=True)))
            start = s.double()
            here = start + t * (s1 + t * s2)
            change = self.loss.value(here, row) - self.loss.value(start, row)
            slope = self.loss.slope(here, row) * (s1 + 2.0 * t * s2)
            return torch.stack([change.sum(), slope.sum()])

        found = self.scale * self.log.sum(sums, line.s0, line.s1, line.s2, *self.columns.values())
        change, slope = found.cpu().tolist()
        return change, slope

    def moved(self, line: Line, t: float) -> Column:
        """Logged scores at t."""
        return self.log.map(
            lambda a, b, c: torch.add(a, torch.add(b, c, alpha=t), alpha=t), *line[:3]
        )

    def pulls(self) -> list[tuple[Tensor, Tensor]]:
        """Factors of m for the users of this process."""
        if self.m is None:
            return []
        return [(self.log.own(m), n) for m, n in zip(self.m.lefts, self.m.rights, strict=True)]

    def _everywhere(self, lefts: tuple[Tensor, ...], rights: tuple[Tensor, ...]) -> Tensor:
        """v Σ_D (s − m)² at (L + t ΔL, R + t ΔR), coefficients of t⁰ … t⁴: polynomials of Gram
        matrices.

        Without a step only t⁰ is there, and it is the value; with one t⁰ is left at 0.
        """
        total = torch.zeros(5, dtype=torch.float64, device=lefts[0].device)
        if not self.v:
            return total
        parts = [(lefts, rights, 1.0), *(((m,), (n,), -1.0) for m, n in self.pulls())]
        for j, (a, b, sign) in enumerate(parts):
            for k, (c, d, other) in enumerate(parts):
                if k < j or (len(lefts) > 1 and j and k):
                    continue  # symmetric; and what does not move does not matter along a line
                twice = 1.0 if j == k else 2.0
                users, items = _products(a, c), _products(b, d)
                for x, p in enumerate(users):
                    for y, q in enumerate(items):
                        total[x + y] += twice * sign * other * torch.sum(p * q)
        total = self.log.total(self.v * total)
        if len(lefts) > 1:
            total[0] = 0.0
        return total


def _products(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> list[Tensor]:
    """Coefficients of (X + t ΔX)ᵀ (Y + t ΔY)."""
    found: list[Tensor] = []
    for x, a in enumerate(first):
        for y, b in enumerate(second):
            product = gram(a, b)
            if x + y == len(found):
                found.append(product)
            else:
                found[x + y] = found[x + y] + product
    return found


def gram(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in float64: float32 within `GRAM_ROWS` rows, whose rounding errors do not add up."""
    whole = left.shape[0] // GRAM_ROWS * GRAM_ROWS
    rest = left[whole:].double().T @ right[whole:].double()
    if not whole:
        return rest
    a, b = (x[:whole].reshape(-1, GRAM_ROWS, x.shape[1]) for x in (left, right))
    return rest + torch.bmm(a.transpose(1, 2), b).sum(0, dtype=torch.float64)


def pair_sum(loss: PairLoss, s: Tensor, row: Row) -> Tensor:
    """Σ f(s) as a float64 scalar whose gradient is f's own slope: what Adam lowers."""
    total: Tensor = _PairSum.apply(s, loss, row)  # type: ignore[no-untyped-call]
    return total


class _PairSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, loss: PairLoss, row: Row) -> Tensor:
        ctx.save_for_backward(loss.slope(s, row))
        return loss.value(s, row).sum(dtype=torch.float64)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return (slope * upstream).to(slope), None, None


def head_named(name: str) -> str:
    """The name of a head, checked."""
    if name not in HEADS:
        raise InputError(
            "unknown imputation head", found=name, expected=f"one of {', '.join(HEADS)}"
        )
    return name
