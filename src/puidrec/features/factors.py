"""Factors of a log: what exposure says of users (`ExposureFactors`), and pseudo-features.

**Exposure factors**: what the rows that users chose to see say of the users, whatever they rated.

    o_ui ≈ d_u d_i/|O| + Σ_k σ_k a_uk b_ik

d are numbers of seen pairs; the first term is what exposure would be if users and items met by
their activity alone. The rest is a truncated SVD, of which only directions are kept that rise above
chance: above the largest singular value of logs of the same degrees in which users and items are
paired at random. Nothing of |users| × |items| is made.

A confounder that drives both exposure and rating leaves its mark in exposure, where it can be read
off before any
rating is looked at: the idea of the deconfounded recommender (Wang, Liang, Charlin, Blei, "Causal
inference for recommender systems", RecSys 2020; its Poisson factors are replaced by least squares
here) and of iDCF (Zhang et al., "Debiasing recommendation by learning identifiable latent
confounders", KDD 2023).

**Pseudo-features** for data with ids only: factors of the log's ratings, each dimension cut into
k-means bins. They are made from logged rows alone: uniform rows would leak what evaluation asks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator, lsqr, svds

from puidrec.data.dataset import Dataset, IdMap
from puidrec.data.row_matrix import item_count, leading_svd
from puidrec.errors import InputError
from puidrec.rng import generator

NULLS = 5
"""Logs paired at random, the largest singular value of which is the edge of chance."""
REPAIRED = 20
"""Times that rows are paired anew where a pair was met twice."""
PRIOR_USERS = 10.0
"""Users that the absence of an effect of a feature is worth."""


@dataclass(frozen=True, eq=False)
class ExposureFactors:
    """A low-rank reconstruction of who saw what."""

    user_rate: np.ndarray
    """d_u/√|O| of each user."""
    item_rate: np.ndarray
    users: np.ndarray
    """√σ_k a_uk, [users, k]; k may be 0."""
    items: np.ndarray
    """√σ_k b_ik, [items, k]."""

    @classmethod
    def fit(cls, exposure: sp.csr_array, dim: int, seed: int) -> ExposureFactors:
        """Decompose a matrix of ones at the seen pairs into at most `dim` directions."""
        root = np.sqrt(max(exposure.nnz, 1))
        user, item = np.diff(exposure.indptr) / root, item_count(exposure) / root
        shape, rank = exposure.shape, min(dim, min(exposure.shape) - 1)
        if rank < 1:
            return cls(user, item, np.zeros((shape[0], 0)), np.zeros((shape[1], 0)))
        start = generator(seed, "exposure factors").standard_normal(min(shape))
        left, strength, right = leading_svd(_less_rates(exposure, user, item), rank, start)
        kept = strength > _edge(user * root, item * root, seed)
        size = np.sqrt(strength[kept])
        return cls(user, item, left[:, kept] * size, right[kept].T * size)

    @property
    def reconstruction(self) -> tuple[np.ndarray, np.ndarray]:
        """â as factors, [users, k + 1] and [items, k + 1]."""
        return (
            np.column_stack([self.user_rate, self.users]),
            np.column_stack([self.item_rate, self.items]),
        )

    @cached_property
    def noise(self) -> np.ndarray:
        """Variance of each user factor that chance alone would give, [k]: that of Σ_i b_ik o_ui for
        independent o."""
        squares = self.items**2 / np.maximum(np.sum(self.items**2, 0), 1e-300)
        chance = self.item_rate * float(self.user_rate.mean())
        variance: np.ndarray = (chance * np.maximum(1.0 - chance, 0.0)) @ squares
        return variance / np.maximum(np.sum(self.items**2, 0), 1e-300)

    def given_features(self, features: sp.csr_array | None) -> np.ndarray:
        """User factors given exposure and features: the posterior mean of z_u ~ N(B x_u, λ), ẑ_u |
        z_u ~ N(z_u, ν).

        z = B x + λ/(λ + ν) (ẑ − B x), direction by direction, with ν of `noise` and λ the variance
        that is left. A user of few rows is so described by features as far as these predict the
        factors: the role of the proxies in iDCF, whose variational autoencoder has the same two
        ingredients (a prior given features, a likelihood of the exposure row). Without features B =
        0.
        """
        prior = np.zeros_like(self.users)
        if features is not None and features.shape[1]:
            for k in range(self.users.shape[1]):
                prior[:, k] = (
                    features @ lsqr(features, self.users[:, k], damp=np.sqrt(PRIOR_USERS))[0]
                )
        rest = self.users - prior
        signal = np.maximum(np.mean(rest**2, 0) - self.noise, 0.0)
        return prior + rest * (signal / np.maximum(signal + self.noise, 1e-300))


def _less_rates(exposure: sp.csr_array, user: np.ndarray, item: np.ndarray) -> LinearOperator:
    """O − user itemᵀ, by products with vectors and blocks of them."""
    outer = aslinearoperator(user[:, None]) @ aslinearoperator(item[None])
    return aslinearoperator(exposure) - outer


def _edge(user_degree: np.ndarray, item_degree: np.ndarray, seed: int) -> float:
    """The largest singular value of logs with these degrees, paired at random."""
    found = []
    for k in range(NULLS):
        null = _random_log(user_degree, item_degree, generator(seed, "exposure null", k))
        root = np.sqrt(max(null.nnz, 1))
        rates = null.sum(1) / root, null.sum(0) / root
        start = np.random.default_rng(0).standard_normal(min(null.shape))
        whole = _less_rates(null, *rates)
        found.append(float(svds(whole, k=1, v0=start, tol=1e-3, return_singular_vectors=False)[0]))
    return max(found)


def _random_log(
    user_degree: np.ndarray, item_degree: np.ndarray, rng: np.random.Generator
) -> sp.csr_array:
    """Rows of users and of items paired at random; what meets a pair again is paired anew, a few
    times."""
    degrees = (np.rint(degree).astype(np.int64) for degree in (user_degree, item_degree))
    users, items = (np.repeat(np.arange(degree.size), degree) for degree in degrees)
    n_items, pairs = item_degree.size, np.zeros(0, np.int64)
    for _ in range(REPAIRED):
        drawn = users * n_items + rng.permutation(items)
        fresh = np.unique(drawn, return_index=True)[1]
        if pairs.size:
            place = np.minimum(np.searchsorted(pairs, drawn[fresh]), pairs.size - 1)
            fresh = fresh[pairs[place] != drawn[fresh]]
        pairs = np.sort(
            np.concatenate([pairs, drawn[fresh]]), kind="stable"
        )  # two runs, merged in one pass
        again = np.delete(drawn, fresh)
        users, items = np.divmod(again, n_items)
        if not users.size:
            break
    shape = (user_degree.size, item_degree.size)
    return sp.csr_array((np.ones(pairs.size), np.divmod(pairs, n_items)), shape=shape)


DAMPING = 5.0
"""Ratings' worth of weight that pulls a user's or item's mean to the overall mean."""


def pseudo_features(
    user: np.ndarray,
    item: np.ndarray,
    rating: np.ndarray,
    n_users: int,
    n_items: int,
    dim: int,
) -> tuple[np.ndarray, np.ndarray]:
    """User [n_users, dim] and item [n_items, dim] factors: the best rank-`dim` fit of the centred
    ratings.

    Ratings are centred by damped user and item means, pairs outside the log count as average, and
    the truncated SVD A ≈ U S Vᵀ is shared out as U √S and V √S. Signs are fixed by making the
    largest entry of each column of V positive.
    """
    if not 1 <= dim < min(n_users, n_items):
        raise InputError(
            "too many pseudo-features for this data",
            found=dim,
            expected=f"1 to {min(n_users, n_items) - 1}, below the number of users and of items",
            hint="Give a smaller dim.",
        )
    residual = _centred(user, item, np.asarray(rating, np.float64), n_users, n_items)
    table = sp.csr_array((residual, (user, item)), shape=(n_users, n_items))
    if not table.count_nonzero():
        return np.zeros((n_users, dim)), np.zeros((n_items, dim))
    start = generator(0, "pseudo-features").standard_normal(min(n_users, n_items))
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

    A column of at most k distinct values gets a bin per value.
    """
    from sklearn.cluster import KMeans  # as slow to import as torch
    from sklearn.exceptions import ConvergenceWarning

    codes = np.empty(matrix.shape, np.int32)
    for column, values in enumerate(matrix.T):
        distinct, of_value = np.unique(values, return_inverse=True)
        if distinct.size > k:
            with warnings.catch_warnings():  # values that only rounding tells apart share a bin
                warnings.simplefilter("ignore", ConvergenceWarning)
                found = KMeans(k, n_init=3, random_state=0).fit(values[:, None])
            centres = np.sort(found.cluster_centers_[:, 0])
            of_value = np.searchsorted((centres[1:] + centres[:-1]) / 2.0, values)
        codes[:, column] = of_value
    return codes


def with_pseudo_features(data: Dataset, dim: int) -> Dataset:
    """The data set with categorical columns f0 … f{dim−1} added to its user and item tables."""
    log = data.logged
    factors = pseudo_features(log.user, log.item, log.rating, data.n_users, data.n_items, dim)
    users, items = (kmeans_bins(matrix) for matrix in factors)
    notes = {
        **data.notes,
        "pseudo_features": {"dim": dim, "from": "logged rows only"},
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
    taken = next((column.name for column in made if column.name in table.columns), None)
    if taken is not None:
        raise InputError("a name that is to be given is taken", column=taken, hint="Rename it.")
    return table.hstack(made)
