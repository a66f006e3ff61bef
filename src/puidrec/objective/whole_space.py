"""Identity 2: sums over all pairs D without visiting them.

With s_ui = ⟨p_u, q_i⟩, Σ_ui α_u β_i s_ui² = ⟨Pᵀ diag(α) P, Qᵀ diag(β) Q⟩: the cost is (users + items)·d², exact, in
place of users·items·d. Its gradient is as short: ∂P = 2 diag(α) P (Qᵀ diag(β) Q), and likewise for Q.

Gram matrices are summed in float64, a block of rows at a time: Σ over D∖O is a difference of large numbers, and
float32 would lose the small one. Weights are constants here, no gradient flows to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.objective.low_rank import LowRank

ROW_BLOCK = 2048
"""Rows converted to float64 at a time: large enough for BLAS, small enough for cache."""


def square_sum(scores: LowRank, user_weight: Tensor | None = None, item_weight: Tensor | None = None) -> Tensor:
    """Σ_D α_u β_i s_ui², as a float64 scalar (`eq:dr`, first term, with s = r̂ − g)."""
    for weight, length in ((user_weight, scores.n_users), (item_weight, scores.n_items)):
        if weight is not None and weight.shape != (length,):
            raise InputError("a weight per row is needed", found=tuple(weight.shape), expected=f"shape ({length},)")
    factors = (*scores.lefts, *scores.rights)
    value: Tensor = _SquareSum.apply(user_weight, item_weight, *factors)  # type: ignore[no-untyped-call]
    return value


def product_sum(first: LowRank, second: LowRank) -> Tensor:
    """Σ_D s_ui t_ui, by polarisation of `square_sum`; differences are taken in float64."""
    return 0.25 * (square_sum(first.plus(second)) - square_sum(first.minus(second)))


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
        return torch.vdot(gram_left.flatten(), gram_right.flatten())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        user_weight, item_weight, gram_left, gram_right, *factors = ctx.saved_tensors
        half = len(factors) // 2
        wanted = ctx.needs_input_grad[2:]
        lefts = _times(factors[:half], 2.0 * upstream * gram_right, user_weight, wanted[:half])
        rights = _times(factors[half:], 2.0 * upstream * gram_left, item_weight, wanted[half:])
        return None, None, *lefts, *rights


def _gram(parts: tuple[Tensor, ...], weight: Tensor | None) -> Tensor:
    """Pᵀ diag(weight) P in float64, P = [part₁, part₂, …]."""
    buffer = _buffer(parts)
    gram = torch.zeros(buffer.shape[1], buffer.shape[1], dtype=torch.float64, device=buffer.device)
    for start in range(0, parts[0].shape[0], ROW_BLOCK):
        rows = _fill(buffer, parts, start)
        weighted = rows if weight is None else rows * weight[start : start + ROW_BLOCK, None]
        gram.addmm_(rows.T, weighted)
    return gram


def _times(parts: list[Tensor], gram: Tensor, weight: Tensor | None, wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """diag(weight) P gram, split into parts; columns of parts that want no gradient are not computed."""
    outputs = [torch.empty_like(part) if want else None for part, want in zip(parts, wanted, strict=True)]
    if not any(wanted):
        return outputs
    buffer = _buffer(parts)
    columns = [column.contiguous() for column in torch.split(gram, [part.shape[1] for part in parts], 1)]
    for start in range(0, parts[0].shape[0], ROW_BLOCK):
        rows = _fill(buffer, parts, start)
        if weight is not None:
            rows.mul_(weight[start : start + ROW_BLOCK, None])
        for output, column in zip(outputs, columns, strict=True):
            if output is not None:
                output[start : start + ROW_BLOCK] = rows @ column
    return outputs


def _buffer(parts: Sequence[Tensor]) -> Tensor:
    """Room for one block of rows of all parts in float64, used again and again."""
    width = sum(part.shape[1] for part in parts)
    return torch.empty(min(ROW_BLOCK, parts[0].shape[0]), width, dtype=torch.float64, device=parts[0].device)


def _fill(buffer: Tensor, parts: Sequence[Tensor], start: int) -> Tensor:
    """Put a block of rows of [part₁, part₂, …] into the buffer."""
    rows = buffer[: min(ROW_BLOCK, parts[0].shape[0] - start)]
    for column, part in zip(torch.split(rows, [part.shape[1] for part in parts], 1), parts, strict=True):
        column.copy_(part[start : start + ROW_BLOCK])
    return rows
