"""Identity 2: sums over all pairs D without visiting them.

With s_ui = ⟨p_u, q_i⟩, Σ_ui α_u β_i s_ui² = ⟨Pᵀ diag(α) P, Qᵀ diag(β) Q⟩: the cost is (users + items)·d², exact, in
place of users·items·d. Its gradient is as short: ∂P = 2 diag(α) P (Qᵀ diag(β) Q), and likewise for Q.

Gram matrices are summed in float64, a block of rows at a time: Σ over D∖O is a difference of large numbers, and
float32 would lose the small one. Weights are constants here, no gradient flows to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from puidrec.backbones.low_rank import LowRank
from puidrec.errors import InputError

ROW_BLOCK = 8192
"""Rows converted to float64 at a time: large enough for BLAS, small enough for cache."""
SLABS = 4
"""Pieces of a block whose products are computed side by side."""


def square_sum(scores: LowRank, user_weight: Tensor | None = None, item_weight: Tensor | None = None) -> Tensor:
    """Σ_D α_u β_i s_ui², as a float64 scalar (`eq:dr`, first term, with s = r̂ − g)."""
    for weight, length in ((user_weight, scores.n_users), (item_weight, scores.n_items)):
        if weight is not None and weight.shape != (length,):
            raise InputError("a weight per row is needed", found=tuple(weight.shape), expected=f"shape ({length},)")
    factors = (*scores.lefts, *scores.rights)
    value: Tensor = _SquareSum.apply(user_weight, item_weight, *factors)  # type: ignore[no-untyped-call]
    return value


def linear_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui = ⟨Σ_u l_u, Σ_i r_i⟩, as a float64 scalar: what an imputation model of ê itself needs."""
    parts = zip(scores.lefts, scores.rights, strict=True)
    sums = [left.sum(0, dtype=torch.float64) @ right.sum(0, dtype=torch.float64) for left, right in parts]
    return torch.stack(sums).sum()


def unseen_square_sum(scores: LowRank, observed: Tensor) -> Tensor:
    """Σ_{D∖O} s_ui² = Σ_D − Σ_O, given the same scores on the observed pairs."""
    return square_sum(scores) - torch.sum(observed.square(), dtype=torch.float64)


class _SquareSum(torch.autograd.Function):
    """Forward keeps two d × d Grams; backward multiplies the rows by them, only for parts that want a gradient."""

    @staticmethod
    def forward(ctx: Any, user_weight: Tensor | None, item_weight: Tensor | None, *factors: Tensor) -> Tensor:
        half = len(factors) // 2
        gram_left = _gram(factors[:half], user_weight)
        gram_right = _gram(factors[half:], item_weight)
        ctx.save_for_backward(user_weight, item_weight, gram_left, gram_right, *factors)
        return torch.dot(gram_left.flatten(), gram_right.flatten())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        user_weight, item_weight, gram_left, gram_right, *factors = ctx.saved_tensors
        half = len(factors) // 2
        wanted = ctx.needs_input_grad[2:]
        lefts = _times(factors[:half], 2.0 * upstream * gram_right, user_weight, wanted[:half])
        rights = _times(factors[half:], 2.0 * upstream * gram_left, item_weight, wanted[half:])
        return None, None, *lefts, *rights


def _gram(parts: Sequence[Tensor], weight: Tensor | None) -> Tensor:
    """Pᵀ diag(weight) P in float64, P = [part₁, part₂, …]: blocks above the diagonal, mirrored at the end."""
    cuts = _cuts(parts)
    gram = torch.zeros(cuts[-1].stop, cuts[-1].stop, dtype=torch.float64, device=parts[0].device)
    for start in range(0, parts[0].shape[0], ROW_BLOCK):
        rows = _block(parts, start, None)
        weighted = rows if weight is None else _block(parts, start, weight)
        for k, left in enumerate(rows):
            for m in range(k, len(rows)):
                gram[cuts[k], cuts[m]] += _transposed_product(left, weighted[m])
    for k, across in enumerate(cuts):
        for down in cuts[k + 1 :]:
            gram[down, across] = gram[across, down].T
    return gram


def _transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right for tall factors, as a sum over a few slabs of rows: BLAS shares out slabs, not one long sum."""
    slab = left.shape[0] // SLABS
    if slab == 0:
        return left.T @ right
    a, b = (x[: slab * SLABS].view(SLABS, slab, x.shape[1]) for x in (left, right))
    product = torch.bmm(a.transpose(1, 2), b).sum(0)
    rest = slice(slab * SLABS, None)
    return product.addmm_(left[rest].T, right[rest])


def _times(parts: Sequence[Tensor], gram: Tensor, weight: Tensor | None, wanted: Sequence[bool]) -> list[Tensor | None]:
    """diag(weight) P gram, split into parts; columns of parts that want no gradient are not computed."""
    outputs = [torch.empty_like(part) if want else None for part, want in zip(parts, wanted, strict=True)]
    cuts = _cuts(parts)
    for start in range(0, parts[0].shape[0] if any(wanted) else 0, ROW_BLOCK):
        rows = _block(parts, start, weight)
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


def _block(parts: Sequence[Tensor], start: int, weight: Tensor | None) -> list[Tensor]:
    """A block of rows of each part in float64, weighted if asked."""
    rows = [part[start : start + ROW_BLOCK].to(torch.float64) for part in parts]
    return rows if weight is None else [block * weight[start : start + ROW_BLOCK, None] for block in rows]
