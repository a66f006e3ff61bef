"""Sums over all pairs for errors without an identity (absolute, cross-entropy, the sharp worst
end): tile by tile.

One tile of scores is alive at a time, in the forward and in the backward sense: its gradient is
taken as soon as its value is known and added to the factors' gradients, so memory is (users +
items)·d plus one tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.scores.low_rank import LowRank

TILE = (1024, 2048)
TileFunction = Callable[..., Tensor]
"""f(rows, columns, tile of scores₁, tile of scores₂, …) → values of the pairs of the tile (any
shape, summed)."""


def tiled_sum(function: TileFunction, *scores: LowRank, tile: tuple[int, int] = TILE) -> Tensor:
    """Σ over tiles of function(rows, columns, *tiles of scores), as a float64 scalar with exact
    gradient.

    `rows` and `columns` are the slices of users and items of the tile, so that Γ, p or weights can
    be evaluated for them from small tables. Gradients flow to the factors of `scores`, not to what
    the function closes over.
    """
    if not scores or len({(s.n_users, s.n_items) for s in scores}) != 1 or min(tile) < 1:
        raise InputError(
            "tiles need scores of one shape", found=[(s.n_users, s.n_items) for s in scores]
        )
    factors = [factor for s in scores for factor in (*s.lefts, *s.rights)]
    value: Tensor = _TiledSum.apply(function, scores, tile, *factors)  # type: ignore[no-untyped-call]
    return value


class _TiledSum(torch.autograd.Function):
    """The output is a scalar, so gradients computed on the way only need scaling in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        function: TileFunction,
        scores: Sequence[LowRank],
        tile: tuple[int, int],
        *factors: Tensor,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[3:]
        gradients = [
            torch.zeros_like(f) if want else None for f, want in zip(factors, wanted, strict=True)
        ]
        total = torch.zeros((), dtype=torch.float64, device=factors[0].device)
        for start in range(0, scores[0].n_users, tile[0]):
            for left in range(0, scores[0].n_items, tile[1]):
                rows, columns = slice(start, start + tile[0]), slice(left, left + tile[1])
                spans = [
                    span
                    for s in scores
                    for span in (rows,) * len(s.lefts) + (columns,) * len(s.rights)
                ]
                total += _one_tile(function, scores, factors, spans, gradients)
        ctx.gradients = gradients
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if g is None else (g * upstream).to(g.dtype) for g in ctx.gradients]
        return None, None, None, *scaled


def _one_tile(
    function: TileFunction,
    scores: Sequence[LowRank],
    factors: Sequence[Tensor],
    spans: Sequence[slice],
    gradients: Sequence[Tensor | None],
) -> Tensor:
    """Value of a tile; its gradient is added to the rows of `gradients` it touches and to no
    others."""
    cuts = [factor.detach()[span] for factor, span in zip(factors, spans, strict=True)]
    leaves = [
        cut.requires_grad_()
        for cut, gradient in zip(cuts, gradients, strict=True)
        if gradient is not None
    ]
    rows, columns = spans[0], spans[len(scores[0].lefts)]
    with torch.enable_grad():
        value = function(rows, columns, *(s.tile() for s in _regroup(scores, cuts))).sum(
            dtype=torch.float64
        )
    if leaves and value.requires_grad:
        touched = [g[span] for g, span in zip(gradients, spans, strict=True) if g is not None]
        for touched_rows, part in zip(
            touched, torch.autograd.grad(value, leaves, allow_unused=True), strict=True
        ):
            if part is not None:
                touched_rows.add_(part)
    return value.detach()


def _regroup(scores: Sequence[LowRank], factors: Sequence[Tensor]) -> list[LowRank]:
    """Put factors back into the shape of the scores they came from."""
    groups, rest = [], iter(factors)
    for s in scores:
        lefts = tuple(next(rest) for _ in s.lefts)
        groups.append(LowRank(lefts, tuple(next(rest) for _ in s.rights)))
    return groups
