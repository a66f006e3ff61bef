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
| `rd-*`, `puid-*` (`eq:puid-ips`, `eq:puid-dr`) | max over w in [a, b] of w k(s) | same | same |
| `brd-*`, `bpuid-*` (`eq:bpuid-ips`, `eq:bpuid-dr`, `eq:bpuid-dr-imp`) | \
… of w (k(s) − k⁰) | same | same |
| `signed-*`, `all-rank` | w (s − r)²/|O| − λ (s − m)²/|D∖O| | 1 | λ/|D∖O|, m |

k is e = (s − r)² or, with an imputation g, e − ê; k⁰ is a frozen benchmark's. Γ = 1 (a = b = 1/p)
gives IPS and DR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from puidrec.errors import InputError
from puidrec.scores.log import Column, Log, Row, exact_sum
from puidrec.scores.low_rank import LowRank

TargetKind = Literal["unit", "signed"]
Factors = tuple[Tensor, Tensor]
"""Of users (those of this process) and of items."""
WIDTH = 0.003
"""Distance of scores from a bend within which it is rounded off; ratings span 1 or 2."""
LEAST = 1e-30
"""Keeps quotients of 0 by 0 finite."""
GRAM_ROWS = 1024
"""Rows whose products are summed in float32 before float64 takes over."""


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

    def rounder(self, times: float) -> PairLoss:
        """The same with bends rounded off so many times as wide, nowhere below this one."""
        return self


class Parts(NamedTuple):
    """An error of the pairs at hand, its slope in s, and its curvature or a bound of it."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


class PairError:
    """e(s, t) of a score and a target (`eq:eui`), squared: (s − t)².

    Targets are *unit* (ratings scaled to [0, 1]) or *signed* (labels ±1, as in the paper). Squared
    and absolute errors compare numbers and do not care.
    """

    quadratic = True
    """Σ over all pairs has the Gram identity of `scores.low_rank`; other errors need tiles."""

    def parts(self, score: Tensor, target: Tensor) -> Parts:
        """e and its derivatives, pair by pair."""
        off = score - target
        return Parts(off.square(), 2.0 * off, torch.full_like(score, 2.0))

    def value(self, score: Tensor, target: Tensor) -> Tensor:
        """e alone."""
        return self.parts(score, target).value

    def to_target(self, score: Tensor) -> Tensor:
        """A score on the scale of targets: what a pseudo-label is, and what a prediction means."""
        return score


class AbsoluteError(PairError):
    """|s − t|, its bend rounded off within `WIDTH` as Huber has it (above it by at most half the
    width); the parabola above it touches it here."""

    quadratic = False

    def parts(self, score: Tensor, target: Tensor) -> Parts:
        """With size = max(|x|, width), (size + x²/size)/2 is |x| beyond the width."""
        off = score - target
        wide = off.abs().clamp_min(WIDTH)
        size = wide.clamp_min(LEAST)
        return Parts(0.5 * (wide + off.square() / size), off / size, 1.0 / size)


class CrossEntropyError(PairError):
    """−y log σ(s) − (1 − y) log(1 − σ(s)) = log(1 + eˢ) − y s: the score is a log-odds.

    y is the chance that a target stands for: of a signed one t it is (t + 1)/2, which turns this
    into the familiar log(1 + exp(−t·s)).
    """

    quadratic = False

    def __init__(self, kind: TargetKind) -> None:
        self.signed = kind == "signed"

    def parts(self, score: Tensor, target: Tensor) -> Parts:
        """Without overflow for any score; the curvature is at most ¼."""
        chance = 0.5 * (target + 1.0) if self.signed else target
        value = softplus(score, threshold=80.0) - chance * score
        return Parts(value, torch.sigmoid(score) - chance, torch.full_like(score, 0.25))

    def to_target(self, score: Tensor) -> Tensor:
        """The mean that a log-odds stands for."""
        return torch.tanh(0.5 * score) if self.signed else torch.sigmoid(score)


LOSSES = ("squared", "absolute", "cross-entropy")
"""The names a `loss=` option accepts."""


def pointwise_error(name: str, target: TargetKind = "unit") -> PairError:
    """Look an error up by the name of a loss and the kind of target."""
    if name not in LOSSES:
        raise InputError("unknown loss", found=name, expected=f"one of {', '.join(LOSSES)}")
    if name == "cross-entropy":
        return CrossEntropyError(target)
    return PairError() if name == "squared" else AbsoluteError()


HEADS = ("label", "label-squared", "residual", "direct")
"""What the output g of the imputation model means. With `label` and `label-squared` it is a
pseudo-label: ê = e(s, g), which moves with φ, as double robustness needs; they differ in what g is
fitted by. `residual`: r − s, s held constant (form of the public RD code), ê = e(s, s° + g).
`direct`: ê itself, as the paper prints it; then φ's gradient is that of IPS."""


class Coefficient(NamedTuple):
    """k of the pairs at hand with its derivatives, the |k| up to which its bend is rounded off, and
    max(|k|, width), above 0."""

    value: Tensor
    slope: Tensor
    curvature: Tensor
    width: Tensor
    size: Tensor


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
    wider: float = 1.0
    """How many times as wide as `WIDTH` bends are rounded off."""

    def rounder(self, times: float) -> RobustLoss:
        """The same with wider bends."""
        return replace(self, wider=times)

    @cached_property
    def quadratic(self) -> bool:  # type: ignore[override]
        """A square at a known weight, or at its worst, which is b; or a line at a known weight."""
        return self.error.quadratic and not self.bends and self.head in (None, "label")

    @cached_property
    def bends(self) -> bool:
        """Whether k may be negative, so that the worst weight changes with it."""
        return self.interval and (self.head is not None or self.benchmarked)

    def coefficient(self, s: Tensor, row: Row) -> Coefficient:
        """k(s) = e − ê − k⁰."""
        squares, width = self.error.quadratic, torch.zeros_like(s)
        k, slope, curvature = self.error.parts(s, row.r)
        if self.head == "direct":
            k = k - row.g
        elif self.head is not None:
            g, moved = row.g, self.head == "residual"
            if not squares:  # else scores are on the scale of targets as they are
                g = self.error.to_target(s if moved else g) + (g if moved else 0.0)
            elif moved:
                g = s + g
            imputed = self.error.parts(s, g)
            k = (g - row.r) * (2.0 * s - row.r - g) if squares else k - imputed.value
            slope = slope - imputed.slope
            if squares:  # else e's own bound: −ê may have no curvature at all
                curvature = curvature - imputed.curvature
        k = k - row.k0 if self.benchmarked else k
        if squares and self.head is not None:
            width = self.wider * WIDTH * slope.abs()
        elif squares and self.benchmarked:
            width = 2.0 * self.wider * WIDTH * row.k0.clamp_min(0.0).sqrt()
        size = torch.maximum(k.abs(), width).clamp_min_(LEAST) if self.bends else width
        return Coefficient(k, slope, curvature, width, size)

    def value(self, s: Tensor, row: Row) -> Tensor:
        """ā k + δ |k|; b k where k cannot be negative."""
        k, _, _, width, size = self.coefficient(s, row)
        if not self.bends:
            return row.b * k
        rounded = 0.5 * (torch.maximum(k.abs(), width) + k.square() / size)  # 0 at 0, as |k| is
        return 0.5 * ((row.a + row.b) * k + (row.b - row.a) * rounded)

    def slope(self, s: Tensor, row: Row) -> Tensor:
        """The worst weight, which moves from a to b within the width of the bend, times ∂k/∂s."""
        k, slope, _, _, size = self.coefficient(s, row)
        if not self.bends:
            return row.b * slope
        return 0.5 * ((row.a + row.b) + (row.b - row.a) * (k / size)) * slope

    def curvature(self, s: Tensor, row: Row) -> Tensor:
        """b ∂²k/∂s² (where k < 0 now, a step may reach where the worst weight is b), and what the
        bend adds."""
        _, slope, curvature, _, size = self.coefficient(s, row)
        if not self.bends:
            return row.b * curvature
        bend = 0.5 * (row.b - row.a) * slope.square() / size
        return (row.b * curvature).clamp_min(0.0) + bend


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
            imputed = self.error.value(row.s, self.error.to_target(own))
            k = self.error.value(row.s, row.r) - imputed
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
    """J along factors L + t ΔL, R + t ΔR, where scores of logged pairs are s0 + t s1 + t² s2."""

    s0: Column
    far: Column
    """Scores at t = reach: s1 is (far − s0)/reach − reach s2."""
    s2: Column
    reach: float
    smooth: np.ndarray
    """Coefficients of t⁰ … t⁴ of the part over D and of the penalty; t⁰ does not count."""
    above: np.ndarray
    """The same of J where f is quadratic; else of parabolas above it."""


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

    def value(self, s: Column, at: Factors) -> float:
        """J."""
        value = self.log.sum(lambda s, row: exact_sum(self.loss.value(s, row)), s, row=self.columns)
        total = self.scale * float(value) + self.constant
        if not self.v:
            return total
        left, right = (torch.cat(pair, 1) for pair in zip(at, self.pull, strict=True))
        return total + self.v * float((self.log.total(gram(left, left)) * gram(right, right)).sum())

    def curvature(self, s: Column) -> Column:
        """∂²f/∂s² of logged pairs, or a bound of it."""
        return self.log.map(self.loss.curvature, s, row=self.columns)

    def factor_slopes(self, s: Column, at: Factors) -> tuple[Factors, Factors]:
        """−½ ∂J/∂L and −½ ∂J/∂R; and LᵀL and RᵀR, which they need where there is a sum over D."""
        (left, right), squares = at, at
        slope, half = self.log.map(self.loss.slope, s, row=self.columns), -0.5 * self.scale
        users = self.log.to_users(slope, right).mul_(half)
        items = self.log.to_items(slope, left).mul_(half)
        if self.v:
            (m, n), squares = self.pull, (self.log.total(gram(left, left)), gram(right, right))
            for of_side, x, pull, others, pulls in (
                (users, left, m, squares[1], gram(n, right)),
                (items, right, n, squares[0], self.log.total(gram(m, left))),
            ):
                of_side.addmm_(x, others.to(x), alpha=-self.v)
                of_side.addmm_(pull, pulls.to(x), alpha=-self.v)
        return (users, items), squares

    def line(
        self, s: Column, at: Factors, squares: Factors, step: Factors, slope: float, bend: float
    ) -> Line:
        """The line from these scores along a step of the factors.

        slope: that of J + penalty in t where it starts. bend: coefficient of t² of the penalty.

        With s0 known, s1 follows from s2 and the scores of a point about as far away as the start
        is long: two sampled products instead of three, and no digits are lost where steps are
        short.
        """
        log, sides = self.log, list(zip(at, step, strict=True))
        lengths = torch.stack(
            [torch.linalg.vector_norm(x).square() for side in sides for x in side]
        )
        lengths[:2] = log.total(lengths[:2].clone())  # the same in all processes
        a, b, c, d = lengths.sqrt().cpu().tolist()
        reach = min((x / dx for x, dx in ((a, b), (c, d)) if min(x, dx) > 0.0), default=1.0)
        far = log.scores(*(torch.add(x, dx, alpha=reach) for x, dx in sides))
        s2 = log.scores(*step)

        def products(s: Tensor, far: Tensor, s2: Tensor, row: Row) -> Tensor:
            s1 = far.sub(s).div_(reach).sub_(s2, alpha=reach)
            own, half = self.loss.slope(s, row), 0.5 * self.loss.curvature(s, row)
            first, second = half * s1, half * s2
            pairs = ((own, s1), (own, s2), (first, s1), (first, s2), (second, s2))
            return torch.stack([exact_sum(x * y) for x, y in pairs])

        found = log.sum(products, s, far, s2, row=self.columns)
        a1, a2, c11, c12, c22 = (self.scale * found).cpu().tolist()
        smooth = self._everywhere(at, squares, step) if self.v else np.zeros(5)
        smooth[1], smooth[2] = slope - a1, smooth[2] + bend
        above = smooth + np.array([0.0, a1, a2 + c11, 2.0 * c12, c22])
        return Line(s, far, s2, reach, smooth, above)

    def along(self, line: Line, t: float, *, exact: bool = False) -> float:
        """The slope of J in t along a line; or (`exact`) its change from t = 0, in float64."""

        def sums(s: Tensor, far: Tensor, s2: Tensor, row: Row) -> Tensor:
            if exact:
                s, far, s2 = s.double(), far.double(), s2.double()
                row = Row(**{name: x.double() for name, x in vars(row).items()})
            s1 = far.sub(s).div_(line.reach).sub_(s2, alpha=line.reach)
            here = torch.add(s, torch.add(s1, s2, alpha=t), alpha=t)
            if exact:
                return (self.loss.value(here, row) - self.loss.value(s, row)).sum()
            return exact_sum(self.loss.slope(here, row) * torch.add(s1, s2, alpha=2.0 * t))

        logged = float(self.log.sum(sums, line.s0, line.far, line.s2, row=self.columns))
        powers = np.arange(1, 5)
        of_t = t**powers if exact else powers * t ** (powers - 1)
        return self.scale * logged + float(line.smooth[1:] @ of_t)

    @cached_property
    def pull(self) -> Factors:
        """Factors of −m for the users of this process, without columns of 0."""
        if self.m is None:
            like = torch.zeros(0, dtype=self.log.dtype, device=self.log.device)
            return like.new_zeros(self.log.n_users, 0), like.new_zeros(self.log.n_items, 0)
        m = self.m.without_zeros()
        return self.log.own(torch.cat(m.lefts, 1)), -torch.cat(m.rights, 1)

    def _everywhere(self, at: Factors, squares: Factors, step: Factors) -> np.ndarray:
        """v Σ_D (s − m)² along a line, coefficients of t² … t⁴; those of t⁰ and t¹ are left at 0.

        s − m = [L, M] [R, −N]ᵀ, and ⟨P Qᵀ, P' Q'ᵀ⟩ = ⟨PᵀP', QᵀQ'⟩: never a users × items matrix.
        """
        across, moves, pulls = list[Tensor](), list[Tensor](), list[Tensor]()
        for x, dx, m in zip(at, step, self.pull, strict=True):
            total = torch.clone if across else self.log.total
            across.append(total(gram(x, dx)))
            moves.append(total(gram(dx, dx)))
            pulls.append(total(gram(m, dx)))
        (l_dl, r_dr), (dl, dr), (m_dl, n_dr) = across, moves, pulls
        second = squares[0] * dr + dl * squares[1] + 2.0 * l_dl * (r_dr + r_dr.T)
        found = [
            second.sum() + 2.0 * (m_dl * n_dr).sum(),
            2.0 * (l_dl * dr + dl * r_dr).sum(),
            (dl * dr).sum(),
        ]
        return self.v * np.array([0.0, 0.0, *torch.stack(found).cpu().tolist()])


def gram(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in float64: float32 within `GRAM_ROWS` rows, so rounding errors do not add up."""
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
