"""Identity 2: sums over all pairs D without a users × items matrix.

With s_ui = ⟨p_u, q_i⟩, Σ_ui s_ui² = ⟨PᵀP, QᵀQ⟩: the cost is (users + items)·d², exact, in place of
users·items·d. Weights α_u β_i enter by `LowRank.scaled`. Gram matrices are summed in float64: Σ
over D∖O is a difference of large numbers, and float32 would lose the small one.

Errors without such an identity (absolute, cross-entropy) are summed tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from puidrec.errors import InputError
from puidrec.scores.low_rank import LowRank

ROW_BLOCK = 8192
"""Rows converted to float64 at a time: large enough for BLAS, small enough for cache."""
SLABS = 4
"""Parts of a block whose products are computed side by side."""
TILE = (1024, 2048)
TileFunction = Callable[..., Tensor]
"""f(rows, columns, tile of scores₁, tile of scores₂, …) → values of the pairs of the tile (any
shape, summed)."""


def square_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui², as a float64 scalar (`eq:dr`, first term, with s = r̂ − g)."""
    value: Tensor = _SquareSum.apply(*scores.lefts, *scores.rights)  # type: ignore[no-untyped-call]
    return value


def linear_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui = ⟨Σ_u l_u, Σ_i r_i⟩, as a float64 scalar: what an imputation model of ê itself
    needs."""
    left, right = _in_float64(scores)
    return left.sum(0) @ right.sum(0)


def inner_sum(scores: LowRank, others: LowRank) -> Tensor:
    """Σ_D s_ui t_ui = ⟨PᵀM, QᵀN⟩, as a float64 scalar."""
    (left, right), (other_left, other_right) = _in_float64(scores), _in_float64(others)
    return ((left.T @ other_left) * (right.T @ other_right)).sum()


class _SquareSum(torch.autograd.Function):
    """Forward keeps two d × d Grams; backward multiplies the rows by them, only for parts that want
    a gradient."""

    @staticmethod
    def forward(ctx: Any, *factors: Tensor) -> Tensor:
        half = len(factors) // 2
        gram_left, gram_right = _gram(factors[:half]), _gram(factors[half:])
        ctx.save_for_backward(gram_left, gram_right, *factors)
        return torch.dot(gram_left.flatten(), gram_right.flatten())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gram_left, gram_right, *factors = ctx.saved_tensors
        half, wanted = len(factors) // 2, ctx.needs_input_grad
        lefts = _times(factors[:half], 2.0 * upstream * gram_right, wanted[:half])
        rights = _times(factors[half:], 2.0 * upstream * gram_left, wanted[half:])
        return *lefts, *rights


def _gram(parts: Sequence[Tensor]) -> Tensor:
    """PᵀP in float64, P = [part₁, part₂, …]: blocks above the diagonal, mirrored at the end."""
    cuts = _cuts(parts)
    gram = torch.zeros(cuts[-1].stop, cuts[-1].stop, dtype=torch.float64, device=parts[0].device)
    for start in range(0, parts[0].shape[0], ROW_BLOCK):
        rows = _block(parts, start)
        for k, left in enumerate(rows):
            for m in range(k, len(rows)):
                gram[cuts[k], cuts[m]] += _transposed_product(left, rows[m])
    for k, across in enumerate(cuts):
        for down in cuts[k + 1 :]:
            gram[down, across] = gram[across, down].T
    return gram


def _transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right for tall factors, as a sum over a few slabs of rows: BLAS shares out slabs, not
    one long sum."""
    slab = left.shape[0] // SLABS
    if slab == 0:
        return left.T @ right
    a, b = (x[: slab * SLABS].view(SLABS, slab, x.shape[1]) for x in (left, right))
    product = torch.bmm(a.transpose(1, 2), b).sum(0)
    rest = slice(slab * SLABS, None)
    return product.addmm_(left[rest].T, right[rest])


def _times(parts: Sequence[Tensor], gram: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
    """P gram, split into parts; columns of parts that want no gradient are not computed."""
    outputs = [
        torch.empty_like(part) if want else None for part, want in zip(parts, wanted, strict=True)
    ]
    cuts = _cuts(parts)
    for start in range(0, parts[0].shape[0] if any(wanted) else 0, ROW_BLOCK):
        rows = _block(parts, start)
        for output, across in zip(outputs, cuts, strict=True):
            if output is not None:
                product = rows[0] @ gram[cuts[0], across]
                for down, block in zip(cuts[1:], rows[1:], strict=True):
                    product.addmm_(block, gram[down, across])
                output[start : start + ROW_BLOCK] = product
    return outputs


def _cuts(parts: Sequence[Tensor]) -> list[slice]:
    """Which columns of [part₁, part₂, …] belong to each part."""
    ends = list(accumulate(part.shape[1] for part in parts))
    return [slice(end - part.shape[1], end) for end, part in zip(ends, parts, strict=True)]


def _block(parts: Sequence[Tensor], start: int) -> list[Tensor]:
    """A block of rows of each part in float64."""
    return [part[start : start + ROW_BLOCK].to(torch.float64) for part in parts]


def _in_float64(scores: LowRank) -> tuple[Tensor, Tensor]:
    """P = [part₁, part₂, …] and Q."""
    left, right = (
        torch.cat([part.double() for part in parts], 1) for parts in (scores.lefts, scores.rights)
    )
    return left, right


def tiled_sum(function: TileFunction, *scores: LowRank, tile: tuple[int, int] = TILE) -> Tensor:
    """Σ over tiles of function(rows, columns, *tiles of scores), as a float64 scalar that can be
    differentiated in the factors of `scores`.

    `rows` and `columns` are the slices of users and items of the tile, so that Γ, p or weights can
    be evaluated for them from small tables. Tiles are made anew for the gradient: one is alive at a
    time.
    """
    if len({(s.n_users, s.n_items) for s in scores}) != 1:
        raise InputError(
            "tiles need scores of one shape", found=[(s.n_users, s.n_items) for s in scores]
        )
    users, items = scores[0].n_users, scores[0].n_items
    # split once: the gradient of a slice would be as large as all of its factor
    cut = [
        [
            [torch.split(x, n) for x in side]
            for side, n in zip((s.lefts, s.rights), tile, strict=True)
        ]
        for s in scores
    ]

    def values(k: int, m: int) -> Tensor:
        rows, columns = (slice(j * n, (j + 1) * n) for j, n in zip((k, m), tile, strict=True))
        tiles = (
            LowRank(tuple(x[k] for x in lefts), tuple(x[m] for x in rights)).tile()
            for lefts, rights in cut
        )
        return function(rows, columns, *tiles).sum(dtype=torch.float64)

    total = torch.zeros((), dtype=torch.float64, device=scores[0].lefts[0].device)
    for k in range(-(-users // tile[0])):
        for m in range(-(-items // tile[1])):
            total = total + checkpoint(values, k, m, use_reentrant=False, preserve_rng_state=False)
    return total
