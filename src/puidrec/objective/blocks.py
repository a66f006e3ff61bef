"""A large log in blocks of users: pair-sized temporaries for one block at a time, the gradient still that of all.

Representations are computed once per step and for everyone; only what is as long as the log comes in blocks. Each
block's gradient lands in its own rows of ∂L and in ∂R, and one pass back through the towers ends the step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from puidrec.errors import InputError
from puidrec.objective.low_rank import LowRank

BlockLoss = Callable[[int, int, LowRank], Tensor]
"""loss(start, stop, factors of users start..stop−1 against all items) → scalar; blocks are summed."""


def user_blocks(crow: Tensor, max_pairs: int) -> list[tuple[int, int]]:
    """Cut users into ranges of at most `max_pairs` logged pairs each (one user may exceed it alone)."""
    ends = crow.cpu()
    edges, last = [0], ends.numel() - 1
    while edges[-1] < last:
        limit = int(ends[edges[-1]]) + max_pairs
        stop = int(torch.searchsorted(ends, limit, right=True)) - 1
        edges.append(min(max(stop, edges[-1] + 1), last))
    return list(pairwise(edges))


def backward_in_blocks(factors: LowRank, loss: BlockLoss, blocks: list[tuple[int, int]], first: int = 0) -> Tensor:
    """Sum a loss over blocks of users and back-propagate it into whatever made the factors; returns the value.

    `first` is the number of the user in row 0 of the factors.
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
