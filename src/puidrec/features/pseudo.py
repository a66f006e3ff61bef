"""Pseudo-features for data with ids only: factors of the log's ratings, each dimension cut into
k-means bins.

They are made from logged rows alone: uniform rows would leak what evaluation asks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from scipy.sparse import csr_array

from puidrec.data.dataset import Dataset, IdMap
from puidrec.data.row_matrix import leading_svd
from puidrec.errors import InputError
from puidrec.rng import Rng, generator

DAMPING = 5.0
"""Ratings' worth of weight that pulls a user's or item's mean to the overall mean."""
MAX_RUNS, SWEEPS = 512, 100


def pseudo_features(
    user: np.ndarray,
    item: np.ndarray,
    rating: np.ndarray,
    n_users: int,
    n_items: int,
    dim: int,
    rng: Rng,
) -> tuple[np.ndarray, np.ndarray]:
    """User [n_users, dim] and item [n_items, dim] factors: the best rank-`dim` fit of the centred
    ratings.

    Ratings are centred by damped user and item means, pairs outside the log count as average, and
    the truncated SVD A ≈ U S Vᵀ is shared out as U √S and V √S. The SVD has no local optima, so a
    seed changes nothing but rounding; signs are fixed by making the largest entry of each column of
    V positive.
    """
    if not 1 <= dim < min(n_users, n_items):
        raise InputError(
            "too many pseudo-features for this data",
            found=dim,
            expected=f"1 to {min(n_users, n_items) - 1}, below the number of users and of items",
            hint="Give a smaller dim.",
        )
    residual = _centred(user, item, np.asarray(rating, np.float64), n_users, n_items)
    table = csr_array((residual, (user, item)), shape=(n_users, n_items))
    if not table.count_nonzero():
        return np.zeros((n_users, dim)), np.zeros((n_items, dim))
    start = generator(rng, "pseudo-features").standard_normal(min(n_users, n_items))
    left, strength, right = leading_svd(table, dim, start)
    size = np.sqrt(strength)
    return left * size, right.T * size


def _centred(
    user: np.ndarray, item: np.ndarray, rating: np.ndarray, n_users: int, n_items: int
) -> np.ndarray:
    """Ratings minus overall mean, minus damped item means, minus damped user means of the rest."""
    rest: np.ndarray = rating - rating.mean()
    for code, size in ((item, n_items), (user, n_users)):
        mean = np.bincount(code, rest, size) / (np.bincount(code, minlength=size) + DAMPING)
        rest = rest - mean[code]
    return rest


def kmeans_bins(matrix: np.ndarray, k: int = 4) -> np.ndarray:
    """Bin each column by its own one-dimensional k-means; codes 0..k−1 (int32) rise with the value.

    A column of fewer than k distinct values gets a bin per value. The optimum is found, so there is
    nothing random.
    """
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise InputError(
            "k-means bins need a matrix of finite numbers", found=f"shape {matrix.shape}"
        )
    if k < 1:
        raise InputError("number of bins out of range", found=k, expected="at least 1")
    codes = np.empty(matrix.shape, np.int32)
    for column in range(matrix.shape[1]):
        codes[:, column] = np.searchsorted(
            _cuts(matrix[:, column], k), matrix[:, column], side="right"
        )
    return codes


def _cuts(values: np.ndarray, k: int) -> np.ndarray:
    """The lower ends of bins 1..k−1 of the k-means partition of some values.

    In one dimension clusters are runs of the sorted values, so the best partition is a shortest
    path: minimise Σ cost(edge_c, edge_{c+1}) over k edges, where cost is the squared deviation of a
    run, from prefix sums. Beyond `MAX_RUNS` distinct values, neighbours in rank and value share a
    run and Lloyd's algorithm polishes the edges.
    """
    x = np.sort(values)
    starts = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
    if starts.size <= k:
        return x[starts[1:]]
    exact = starts.size <= MAX_RUNS
    if not exact:
        by_rank = starts[np.linspace(0, starts.size - 1, MAX_RUNS // 2).astype(int)]
        by_value = np.searchsorted(x, np.linspace(x[0], x[-1], MAX_RUNS // 2))
        starts = np.union1d(by_rank, by_value)
    scaled = (x - x.mean()) / (x[-1] - x[0])
    total = np.concatenate([[0.0], np.cumsum(scaled)])
    edges = _shortest_path(
        np.append(starts, x.size), total, np.concatenate([[0.0], np.cumsum(scaled**2)]), k
    )
    return x[(edges if exact else _lloyd(scaled, total, edges))[1:-1]]


def _shortest_path(at: np.ndarray, total: np.ndarray, square: np.ndarray, k: int) -> np.ndarray:
    """The k + 1 edges, among `at`, of the k runs with the least squared deviation."""
    size = np.maximum(at - at[:, None], 1)
    cost = square[at] - square[at][:, None] - (total[at] - total[at][:, None]) ** 2 / size
    cost[np.tril_indices(at.size)] = np.inf
    best, back = cost[0], []
    for _ in range(k - 1):
        through = best[:, None] + cost
        back.append(through.argmin(axis=0))
        best = through.min(axis=0)
    path = [at.size - 1]
    for step in reversed(back):
        path.append(int(step[path[-1]]))
    return at[[0, *reversed(path)]]


def _lloyd(x: np.ndarray, total: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Move the edges of runs of sorted values to the midpoints of their means until they rest."""
    for _ in range(SWEEPS):
        means = np.diff(total[edges]) / np.diff(edges)
        inner = np.searchsorted(x, (means[1:] + means[:-1]) / 2)
        moved = np.concatenate([[0], inner, [x.size]])
        if (moved == edges).all() or (np.diff(moved) == 0).any():
            break
        edges = moved
    return edges


def with_pseudo_features(data: Dataset, dim: int, bins: int = 4, rng: Rng = 0) -> Dataset:
    """The data set with categorical columns f0 … f{dim−1} added to its user and item tables."""
    log = data.logged
    factors = pseudo_features(log.user, log.item, log.rating, data.n_users, data.n_items, dim, rng)
    users, items = (kmeans_bins(matrix, bins) for matrix in factors)
    notes = {
        **data.notes,
        "pseudo_features": {"dim": dim, "bins": bins, "from": "logged rows only"},
    }
    return replace(
        data,
        users=_added(data.users, data.user_ids, "user_id", users),
        items=_added(data.items, data.item_ids, "item_id", items),
        notes=notes,
    )


def _added(table: pl.DataFrame | None, ids: IdMap, key: str, codes: np.ndarray) -> pl.DataFrame:
    table = ids.ids.to_frame(key) if table is None else table
    made = [pl.Series(f"f{k}", codes[:, k]).cast(pl.String) for k in range(codes.shape[1])]
    taken = [column.name for column in made if column.name in table.columns]
    if taken:
        raise InputError(
            "the side table has a column of this name already", column=taken[0], hint="Rename it."
        )
    return table.hstack(made)
