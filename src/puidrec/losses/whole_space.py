"""Identity 2: sums over all pairs D without a users × items matrix.

With s_ui = ⟨p_u, q_i⟩, Σ_ui s_ui² = ⟨PᵀP, QᵀQ⟩: the cost is (users + items)·d², exact, in place of
users·items·d. Weights α_u β_i enter by `LowRank.scaled`. Gram matrices are summed in float64: Σ
over D∖O is a difference of large numbers, and float32 would lose the small one.

Errors without such an identity (absolute, cross-entropy) are summed tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from puidrec.errors import InputError
from puidrec.scores.low_rank import LowRank

TILE = (1024, 2048)
TileFunction = Callable[..., Tensor]
"""f(rows, columns, tile of scores₁, tile of scores₂, …) → values of the pairs of the tile (any
shape, summed)."""


def square_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui², as a float64 scalar (`eq:dr`, first term, with s = r̂ − g)."""
    return inner_sum(scores, scores)


def linear_sum(scores: LowRank) -> Tensor:
    """Σ_D s_ui = ⟨Σ_u l_u, Σ_i r_i⟩, as a float64 scalar: what an imputation model of ê itself
    needs."""
    left, right = _in_float64(scores)
    return left.sum(0) @ right.sum(0)


def inner_sum(scores: LowRank, others: LowRank) -> Tensor:
    """Σ_D s_ui t_ui = ⟨PᵀM, QᵀN⟩, as a float64 scalar."""
    (left, right), (other_left, other_right) = _in_float64(scores), _in_float64(others)
    return ((left.T @ other_left) * (right.T @ other_right)).sum()


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
