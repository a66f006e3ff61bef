"""Baselines without training: what any table must show before it claims anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, svds

from puidrec.data.row_matrix import Part, RowMatrix, leading_svd, row_hashes
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
    """`popularity`, the baseline of likes: s_ui is the share of users who have item i in the log."""
    ratings = prepared.log.ratings
    share = torch.from_numpy(ratings.item_count / max(ratings.shape[0], 1)).float()
    return [
        Stage(
            "main", lambda done: Fitted(LowRank.of(torch.ones(ratings.shape[0], 1), share[:, None]))
        )
    ]


def closed_form(name: str, ratings: RowMatrix, dim: int, seed: int) -> LowRank:
    """Scores of `item-rate`, `bias` or `pure-svd`, as factors [dim + 2] like any other model."""
    shape = ratings.shape
    mean = sum(float(part.values.sum()) for part in ratings.parts()) / ratings.nnz
    user_bias, item_bias = np.zeros(shape[0]), np.zeros(shape[1])
    left, right = np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    if name == "item-rate":
        item_bias = _item_bias(ratings, mean, user_bias)
    else:
        for _ in range(SWEEPS):
            item_bias = _item_bias(ratings, mean, user_bias)
            user_bias = _user_bias(ratings, mean, item_bias)
    if name == "pure-svd":
        residual = ratings.map(
            lambda part: part.values - mean - part.of_users(user_bias) - item_bias[part.item]
        )
        left, right = _truncated_svd(residual, dim, seed)
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


def ease(ratings: RowMatrix, seed: int) -> tuple[LowRank, float]:
    """EASE (Steck 2019): min ‖R − R B‖² + λ ‖B‖² with diag B = 0, R the ratings with 0 for unseen
    pairs.

    With P = (RᵀR + λ I)⁻¹, B_ij = −P_ij / P_jj. λ is the square of the largest singular value that
    chance alone would give R (as for L2 elsewhere). Scores R B are kept as (R B V) Vᵀ, V the
    leading eigenvectors of BᵀRᵀR B: no other factors of this rank lose less of Σ_D s². Returns them
    and the share lost.
    """
    if ratings.n_items > EASE_ITEMS:
        raise InputError(
            "ease inverts an items × items matrix",
            found=f"{ratings.n_items:,} items",
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
    left = np.concatenate([part.matrix @ (b @ axes) for part in ratings.parts()])
    lost = max(1.0 - float(energy.sum()) / total, 0.0) if total > 0.0 else 0.0
    return LowRank.of(
        torch.from_numpy(left).float(), torch.from_numpy(axes).float().contiguous()
    ), lost


def item_gram(ratings: RowMatrix) -> np.ndarray:
    """RᵀR, some of its columns at a time: it takes Σ_u n_u² products, and no more memory than
    itself."""
    gram = np.zeros((ratings.n_items, ratings.n_items))
    for part in ratings.parts():
        turned, columns = part.matrix.T.tocsr(), part.matrix.tocsc()
        for start in range(0, ratings.n_items, GRAM_COLUMNS):
            some = slice(start, start + GRAM_COLUMNS)
            gram[:, some] += (turned @ columns[:, some]).toarray()
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


def _item_bias(ratings: RowMatrix, mean: float, user_bias: np.ndarray) -> np.ndarray:
    """Shrunk means of what users leave unexplained."""
    total = ratings.sum_by_item(lambda part: part.values - mean - part.of_users(user_bias))
    return total / (ratings.item_count + SHRINK)


def _user_bias(ratings: RowMatrix, mean: float, item_bias: np.ndarray) -> np.ndarray:
    """Shrunk means of what items leave unexplained; all rows of a user are in one part."""
    totals = [
        part.sum_by_user(part.values - mean - item_bias[part.item]) for part in ratings.parts()
    ]
    bias: np.ndarray = np.concatenate(totals) / (np.diff(ratings.row_start) + SHRINK)
    return bias


def _truncated_svd(residual: RowMatrix, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Best fit of the residuals, zero where nothing was rated, by the first `dim` directions that
    rise above noise."""
    shape = residual.shape
    rank = min(dim, min(shape) - 1)
    if rank < 1 or not residual.any():  # nothing to decompose
        return np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
    start = np.random.default_rng(seed).standard_normal(min(shape))
    left, strength, right = leading_svd(residual.operator, rank, start)
    kept = strength > np.mean(
        [largest_singular_value(noise) for noise in noise_like(residual, seed)]
    )
    root = np.sqrt(strength[kept])
    return left[:, kept] * root, right[kept].T * root


def noise_like(values: RowMatrix, seed: int) -> Iterator[RowMatrix]:
    """Noise of the same size for each pair: signs flipped at random, whatever users and items are
    called."""
    bits = row_hashes(values, seed)
    for k in range(int(np.clip(FEW // max(values.nnz, 1), 1, FLIPS))):
        sign = np.where((bits >> np.uint64(k)) & np.uint64(1), 1.0, -1.0)
        yield centred(values.map(lambda part, sign=sign: part.values * sign[part.rows]))  # type: ignore[misc]


def centred(values: RowMatrix) -> RowMatrix:
    """Values less their means by user and by item, which biases would fit."""
    for _ in range(4):
        mean = values.sum_by_item(lambda part: part.values) / np.maximum(values.item_count, 1)
        values = values.map(
            lambda part, mean=mean: _less_user_means(part, part.values - mean[part.item])  # type: ignore[misc]
        )
    return values


def _less_user_means(part: Part, values: np.ndarray) -> np.ndarray:
    count = np.diff(part.matrix.indptr)
    return np.asarray(values - np.repeat(part.sum_by_user(values) / np.maximum(count, 1), count))


def largest_singular_value(matrix: RowMatrix) -> float:
    """σ₁ of a sparse matrix."""
    if not matrix.any():
        return 0.0
    if min(matrix.shape) < 4:
        return float(
            np.linalg.norm(np.concatenate([part.matrix.toarray() for part in matrix.parts()]), 2)
        )
    start = np.random.default_rng(0).standard_normal(min(matrix.shape))
    return float(svds(matrix.operator, k=1, v0=start, tol=1e-3, return_singular_vectors=False)[0])
