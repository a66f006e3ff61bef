"""Baselines without training: what any table must show before it claims anything. Every process
computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import eigsh

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


def stages(prepared: Prepared) -> list[Stage]:
    """`item-rate`, `bias`, `pure-svd`."""
    settings = prepared.settings

    def build(done: Done) -> Fitted:
        ratings = prepared.log.ratings
        return Fitted(closed_form(settings.method, ratings, settings.dim_number, settings.seed))

    return [Stage("main", build)]


def popularity_stages(prepared: Prepared) -> list[Stage]:
    """`popularity`, the baseline of likes: s_ui is the share of users with item i in the log."""
    ratings = prepared.log.ratings
    share = item_count(ratings)[:, None] / max(ratings.shape[0], 1)
    return [Stage("main", lambda done: Fitted(_factors(np.ones((ratings.shape[0], 1)), share)))]


def ease_stages(prepared: Prepared) -> list[Stage]:
    """`ease`."""

    def build(done: Done) -> Fitted:
        scores, lost = ease(prepared.log.ratings, prepared.settings.seed)
        notes = {"rank": scores.lefts[0].shape[1], "lost_by_compression": round(lost, 6)}
        return Fitted(scores, notes=notes)

    return [Stage("main", build)]


def _factors(left: np.ndarray, right: np.ndarray) -> LowRank:
    return LowRank.of(*(torch.from_numpy(side).float().contiguous() for side in (left, right)))


def closed_form(name: str, ratings: csr_array, dim: int, seed: int) -> LowRank:
    """Scores of `item-rate`, `bias` or `pure-svd`, as factors [dim + 2] like any other model."""
    (n_users, n_items), mean = ratings.shape, float(ratings.data.mean())
    rows, count = np.diff(ratings.indptr), item_count(ratings)
    user_bias, item_bias = np.zeros(n_users), np.zeros(n_items)
    left, right = np.zeros((n_users, 0)), np.zeros((n_items, 0))
    for _ in range(1 if name == "item-rate" else SWEEPS):
        item_bias = centred(ratings, mean + user_bias).sum(0) / (count + SHRINK)
        if name != "item-rate":
            user_bias = centred(ratings, mean, item_bias).sum(1) / (rows + SHRINK)
    if name == "pure-svd":
        left, right = _truncated_svd(centred(ratings, mean + user_bias, item_bias), dim, seed)
    return _factors(
        np.column_stack([left, user_bias, np.ones(n_users)]),
        np.column_stack([right, np.ones(n_items), item_bias + mean]),
    )


def _truncated_svd(residual: csr_array, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Best fit of the residuals, zero where nothing was rated, by the first `dim` directions that
    rise above noise."""
    n_users, n_items = residual.shape
    rank = min(dim, min(residual.shape) - 1)
    if rank < 1 or not residual.data.any():  # nothing to decompose
        return np.zeros((n_users, 0)), np.zeros((n_items, 0))
    start = np.random.default_rng(seed).standard_normal(min(residual.shape))
    left, strength, right = leading_svd(residual, rank, start)
    kept = strength > noise_edge(residual, seed)
    root = np.sqrt(strength[kept])
    return left[:, kept] * root, right[kept].T * root


def ease(ratings: csr_array, seed: int) -> tuple[LowRank, float]:
    """EASE (Steck 2019): min ‖R − R B‖² + λ ‖B‖² with diag B = 0, R the ratings with 0 for unseen
    pairs.

    With P = (RᵀR + λ I)⁻¹, B_ij = −P_ij / P_jj. λ is the square of the largest singular value that
    chance alone would give R. Scores R B are kept as (R B V) Vᵀ, V the leading eigenvectors of
    BᵀRᵀR B: no other factors of this rank lose less of Σ_D s². Returns them and the share lost.
    """
    if ratings.shape[1] > EASE_ITEMS:
        raise InputError(
            "ease inverts an items × items matrix",
            found=f"{ratings.shape[1]:,} items",
            expected=f"at most {EASE_ITEMS:,}",
            hint="Use all-rank, which has no such limit.",
        )
    penalty = max((NOISE_SHARE * noise_edge(ratings, seed)) ** 2, 1e-6)
    gram = (ratings.T @ ratings).toarray()
    inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
    scale = 1.0 / np.diag(inverse)
    b = -inverse * scale
    np.fill_diagonal(b, 0.0)
    explained = gram + penalty * inverse * scale  # = RᵀR B, since RᵀR P = I − λ P
    explained[np.diag_indices_from(explained)] -= scale
    squares = b.T @ explained
    total = float(np.trace(squares))
    energy, axes = _leading_axes(squares, seed)
    lost = max(1.0 - float(energy.sum()) / total, 0.0) if total > 0.0 else 0.0
    return _factors(ratings @ (b @ axes), axes), lost


def _leading_axes(matrix: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of a positive matrix of which all but `EASE_LOST` is kept,
    `EASE_RANK` at most."""
    size = len(matrix)
    if size <= 4 * EASE_RANK:
        values, axes = np.linalg.eigh(matrix)
    else:
        start = np.random.default_rng(seed).standard_normal(size)
        values, axes = eigsh(matrix, k=EASE_RANK, v0=start, tol=1e-6)
    order = np.argsort(-values)
    values, axes = np.maximum(values[order], 0.0), axes[:, order]
    rest = 1.0 - np.cumsum(values) / max(float(values.sum()), 1e-300)
    kept = min(int(np.sum(rest > EASE_LOST)) + 1, EASE_RANK, size)
    axes = axes[:, :kept]
    largest = axes[np.abs(axes).argmax(0), np.arange(kept)]
    sign = np.where(largest < 0.0, -1.0, 1.0)  # else rounding may turn a direction round
    return values[:kept], axes * sign


def noise_edge(values: csr_array, seed: int) -> float:
    """The largest singular value of noise of the same size for each pair: signs flipped at random,
    whatever users and items are called, less what biases would fit."""
    bits, edges = row_hashes(values, seed), []
    rows, count = np.maximum(np.diff(values.indptr), 1), np.maximum(item_count(values), 1)
    for k in range(int(np.clip(FEW // max(values.nnz, 1), 1, FLIPS))):
        sign = np.where((bits >> np.uint64(k)) & np.uint64(1), 1.0, -1.0)
        noise = with_values(values, values.data * sign)
        for _ in range(4):
            noise = centred(noise, item=noise.sum(0) / count)
            noise = centred(noise, user=noise.sum(1) / rows)
        edges.append(_largest_singular_value(noise))
    return float(np.mean(edges))


def _largest_singular_value(matrix: csr_array) -> float:
    if not matrix.data.any():
        return 0.0
    if min(matrix.shape) < 4:
        return float(np.linalg.norm(matrix.toarray(), 2))
    start = np.random.default_rng(0).standard_normal(min(matrix.shape))
    return float(leading_svd(matrix, 1, start, tol=1e-3)[1][0])
