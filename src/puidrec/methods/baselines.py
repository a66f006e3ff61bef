"""Baselines without training: what any table must show before it claims anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, eigsh, svds

from puidrec.data.row_matrix import centred, item_count, leading_svd, row_hashes, with_values
from puidrec.errors import InputError
from puidrec.methods.problem import Done, Fitted, Stage
from puidrec.scores.low_rank import LowRank

if TYPE_CHECKING:
    from puidrec.methods.prepare import Prepared

SHRINK = 10.0
"""Ratings a mean is worth before it has any of its own."""
SWEEPS = 10
NOISE_SHARE = 0.8
"""What counts as above noise, as a share of the largest singular value that chance alone gives."""
FLIPS, FEW = 5, 500_000
"""Random signs to average over, and the ratings that make one of them enough."""
EASE_ITEMS = 20_000
"""Items up to which `ease` is computed: its matrices have items × items cells, 3 GB each here."""
EASE_RANK, EASE_LOST = 256, 1e-4
"""Most factors that its scores are kept as, and the share of their squares that fewer of them may
lose."""
GRAM_COLUMNS = 1024


def stages(prepared: Prepared) -> list[Stage]:
    """A single stage that needs no training; every process computes it."""
    settings = prepared.settings
    return [
        Stage(
            "main",
            lambda done: Fitted(
                closed_form(
                    settings.method, prepared.log.ratings, settings.dim_number, settings.seed
                )
            ),
        )
    ]


def popularity_stages(prepared: Prepared) -> list[Stage]:
    """`popularity`, the baseline of likes: s_ui is the share of users with item i in the log."""
    ratings = prepared.log.ratings
    share = torch.from_numpy(item_count(ratings) / max(ratings.shape[0], 1)).float()
    return [
        Stage(
            "main", lambda done: Fitted(LowRank.of(torch.ones(ratings.shape[0], 1), share[:, None]))
        )
    ]


def closed_form(name: str, ratings: csr_array, dim: int, seed: int) -> LowRank:
    """Scores of `item-rate`, `bias` or `pure-svd`, as factors [dim + 2] like any other model."""
    shape, mean = ratings.shape, float(ratings.data.mean())
    rows, count = np.diff(ratings.indptr), item_count(ratings)
    user_bias, item_bias = np.zeros(shape[0]), np.zeros(shape[1])
    left, right = np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    for _ in range(1 if name == "item-rate" else SWEEPS):
        item_bias = centred(ratings, mean + user_bias).sum(0) / (count + SHRINK)
        if name != "item-rate":
            user_bias = centred(ratings, mean, item_bias).sum(1) / (rows + SHRINK)
    if name == "pure-svd":
        left, right = _truncated_svd(centred(ratings, mean + user_bias, item_bias), dim, seed)
    ones = (np.ones(shape[0]), np.ones(shape[1]))
    lefts = np.column_stack([left, user_bias, ones[0]])
    rights = np.column_stack([right, ones[1], item_bias + mean])
    return LowRank.of(torch.from_numpy(lefts).float(), torch.from_numpy(rights).float())


def ease_stages(prepared: Prepared) -> list[Stage]:
    """`ease` in closed form; every process computes it."""

    def build(done: Done) -> Fitted:
        scores, lost = ease(prepared.log.ratings, prepared.settings.seed)
        return Fitted(
            scores, notes={"rank": scores.lefts[0].shape[1], "lost_by_compression": round(lost, 6)}
        )

    return [Stage("main", build)]


def ease(ratings: csr_array, seed: int) -> tuple[LowRank, float]:
    """EASE (Steck 2019): min ‖R − R B‖² + λ ‖B‖² with diag B = 0, R the ratings with 0 for unseen
    pairs.

    With P = (RᵀR + λ I)⁻¹, B_ij = −P_ij / P_jj. λ is the square of the largest singular value that
    chance alone would give R (as for L2 elsewhere). Scores R B are kept as (R B V) Vᵀ, V the
    leading eigenvectors of BᵀRᵀR B: no other factors of this rank lose less of Σ_D s². Returns them
    and the share lost.
    """
    if ratings.shape[1] > EASE_ITEMS:
        raise InputError(
            "ease inverts an items × items matrix",
            found=f"{ratings.shape[1]:,} items",
            expected=f"at most {EASE_ITEMS:,}",
            hint="Use all-rank, which has no such limit.",
        )
    edge = NOISE_SHARE * float(
        np.mean([largest_singular_value(noise) for noise in noise_like(ratings, seed)])
    )
    penalty = max(edge**2, 1e-6)
    gram = item_gram(ratings)
    inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
    scale = 1.0 / np.diag(inverse)
    b = -inverse * scale
    np.fill_diagonal(b, 0.0)
    explained = gram + penalty * inverse * scale  # = RᵀR B, since RᵀR P = I − λ P
    explained[np.diag_indices_from(explained)] -= scale
    total = float(np.sum(b * explained))
    energy, axes = _leading_axes(lambda x: b.T @ (gram @ (b @ x)), len(gram), seed)
    left = ratings @ (b @ axes)
    lost = max(1.0 - float(energy.sum()) / total, 0.0) if total > 0.0 else 0.0
    return LowRank.of(
        torch.from_numpy(left).float(), torch.from_numpy(axes).float().contiguous()
    ), lost


def item_gram(ratings: csr_array) -> np.ndarray:
    """RᵀR, some of its columns at a time: it takes Σ_u n_u² products, and no more memory than
    itself."""
    gram = np.zeros((ratings.shape[1], ratings.shape[1]))
    turned, columns = ratings.T.tocsr(), ratings.tocsc()
    for start in range(0, ratings.shape[1], GRAM_COLUMNS):
        some = slice(start, start + GRAM_COLUMNS)
        gram[:, some] = (turned @ columns[:, some]).toarray()
    return gram


def _leading_axes(
    times: Callable[[np.ndarray], np.ndarray], size: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of a positive matrix of which all but `EASE_LOST` is kept,
    `EASE_RANK` at most."""
    if size <= 4 * EASE_RANK:
        values, axes = np.linalg.eigh(times(np.eye(size)))
    else:
        operator = LinearOperator((size, size), matvec=times, matmat=times, dtype=np.float64)
        values, axes = eigsh(
            operator, k=EASE_RANK, v0=np.random.default_rng(seed).standard_normal(size), tol=1e-6
        )
        order = np.argsort(values)
        values, axes = values[order], axes[:, order]
    values, axes = np.maximum(values[::-1], 0.0), axes[:, ::-1]
    rest = 1.0 - np.cumsum(values) / max(float(values.sum()), 1e-300)
    kept = min(int(np.sum(rest > EASE_LOST)) + 1, EASE_RANK, size)
    values, axes = values[:kept], axes[:, :kept]
    largest = axes[np.abs(axes).argmax(0), np.arange(kept)]
    return values, axes * np.where(
        largest < 0.0, -1.0, 1.0
    )  # else rounding may turn a direction round


def _truncated_svd(residual: csr_array, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Best fit of the residuals, zero where nothing was rated, by the first `dim` directions that
    rise above noise."""
    shape = residual.shape
    rank = min(dim, min(shape) - 1)
    if rank < 1 or not residual.data.any():  # nothing to decompose
        return np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    start = np.random.default_rng(seed).standard_normal(min(shape))
    left, strength, right = leading_svd(residual, rank, start)
    kept = strength > np.mean(
        [largest_singular_value(noise) for noise in noise_like(residual, seed)]
    )
    root = np.sqrt(strength[kept])
    return left[:, kept] * root, right[kept].T * root


def noise_like(values: csr_array, seed: int) -> Iterator[csr_array]:
    """Noise of the same size for each pair: signs flipped at random, whatever users and items are
    called."""
    bits = row_hashes(values, seed)
    for k in range(int(np.clip(FEW // max(values.nnz, 1), 1, FLIPS))):
        sign = np.where((bits >> np.uint64(k)) & np.uint64(1), 1.0, -1.0)
        yield without_means(with_values(values, values.data * sign))


def without_means(values: csr_array) -> csr_array:
    """Values less their means by user and by item, which biases would fit."""
    rows, count = np.maximum(np.diff(values.indptr), 1), np.maximum(item_count(values), 1)
    for _ in range(4):
        values = centred(values, item=values.sum(0) / count)
        values = centred(values, user=values.sum(1) / rows)
    return values


def largest_singular_value(matrix: csr_array) -> float:
    """σ₁ of a sparse matrix."""
    if not matrix.data.any():
        return 0.0
    if min(matrix.shape) < 4:
        return float(np.linalg.norm(matrix.toarray(), 2))
    start = np.random.default_rng(0).standard_normal(min(matrix.shape))
    return float(svds(matrix, k=1, v0=start, tol=1e-3, return_singular_vectors=False)[0])
