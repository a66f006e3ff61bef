"""Is the difference real? Paired bootstrap over users, combined over seeds, with Holm's correction.

Two methods see the same users, so the difference is taken user by user and the users are resampled. A difference
in a table is the average over seeds of each seed's mean difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from puidrec.errors import InputError
from puidrec.evaluation.per_user import PerUser, checked_level
from puidrec.rng import Rng, generator

Resample = Literal["users", "users-per-seed", "hierarchical"]
"""What a replicate draws anew. `users` (default): one draw of users that all seeds share, since seeds re-split and
re-train but meet the same people; `users-per-seed`: a draw for each seed, as if each met new people (narrower);
`hierarchical`: the shared draw of users, and of seeds (wider: speaks of seeds not run as well)."""

Verdict = Literal["wins", "ties", "loses"]

CHUNK = 2**22
"""Entries of a resampling matrix held at a time (32 MiB)."""


@dataclass(frozen=True)
class Comparison:
    """A method against the reference: the mean difference (method − reference) and what speaks for it."""

    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided, from the bootstrap; adjusted where several methods were compared."""
    verdict: Verdict
    """`wins` where the method is better: interval without 0, and p-value (adjusted, if so) within the level."""
    n_users: int
    """Distinct users behind the difference."""
    n_seeds: int


def compare(
    method: Sequence[PerUser],
    reference: Sequence[PerUser],
    *,
    higher_is_better: bool = True,
    replicates: int = 2_000,
    level: float = 0.95,
    resample: Resample = "users",
    rng: Rng = 0,
) -> Comparison:
    """Compare two methods on one metric: one `PerUser` per seed each, in the same order of seeds."""
    return compare_all(
        {"method": method, "reference": reference},
        "reference",
        higher_is_better=higher_is_better,
        replicates=replicates,
        level=level,
        resample=resample,
        rng=rng,
    )["method"]


def compare_all(
    results: Mapping[str, Sequence[PerUser]],
    reference: str,
    *,
    higher_is_better: bool = True,
    replicates: int = 2_000,
    level: float = 0.95,
    resample: Resample = "users",
    rng: Rng = 0,
) -> dict[str, Comparison]:
    """Compare every method with the named reference on one metric, p-values adjusted for their number (Holm).

    results: method → one `PerUser` per seed, seeds in the same order. All methods share the replicates, which pairs
    them too. A user counts in a seed if every method has a value there.
    """
    alpha = 1.0 - checked_level(level)
    seeds = _check(results, reference, resample, replicates)
    others = [name for name in results if name != reference]
    paired = [_differences([results[name][s] for name in others], results[reference][s]) for s in range(seeds)]
    population, where = np.unique(np.concatenate([part.users for part in paired]), return_inverse=True)
    columns = np.split(where, np.cumsum([part.users.size for part in paired])[:-1])
    drawn = _replicates(paired, columns, population.size, replicates, resample, generator(rng, "bootstrap"))
    observed = np.mean([part.means(np.ones((1, part.users.size)))[0] for part in paired], axis=0)
    low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2], axis=0)
    p_value = holm(_two_sided(drawn))
    signs = np.sign(observed) * (1 if higher_is_better else -1)
    real = ((low > 0) | (high < 0)) & (p_value <= alpha)
    verdicts: dict[float, Verdict] = {1.0: "wins", -1.0: "loses", 0.0: "ties"}
    return {
        name: Comparison(
            float(observed[j]),
            float(low[j]),
            float(high[j]),
            float(p_value[j]),
            verdicts[float(signs[j] * real[j])],
            population.size,
            seeds,
        )
        for j, name in enumerate(others)
    }


def holm(p_value: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment: the k-th smallest of m p-values is multiplied by m − k + 1, kept in order, ≤ 1."""
    p = np.asarray(p_value, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return adjusted


@dataclass(frozen=True)
class _Paired:
    """Differences to the reference in one seed: [users, methods], and the size of each user."""

    users: np.ndarray
    weighted: np.ndarray
    """Difference × size."""
    size: np.ndarray

    def means(self, counts: np.ndarray) -> np.ndarray:
        """Mean difference of each method when user u is drawn counts[b, u] times: [replicates, methods]."""
        mass = counts @ self.size
        means: np.ndarray = (counts @ self.weighted) / np.where(mass > 0, mass, 1.0)[:, None]
        return means


def _check(results: Mapping[str, Sequence[PerUser]], reference: str, resample: str, replicates: int) -> int:
    """The number of seeds, once the table is sound."""
    if reference not in results or len(results) < 2:
        raise InputError(
            "no such reference", found=reference, expected=f"one of {', '.join(results)} and another method"
        )
    if resample not in ("users", "users-per-seed", "hierarchical"):
        raise InputError("unknown resampling", found=resample, expected="users, users-per-seed or hierarchical")
    if replicates < 100:
        raise InputError("too few replicates", found=replicates, expected="at least 100", hint="Try 2000.")
    seeds = {name: len(values) for name, values in results.items()}
    if len(set(seeds.values())) != 1 or seeds[reference] == 0:
        raise InputError("methods must have the same seeds, at least one", found=seeds)
    return seeds[reference]


def _differences(methods: Sequence[PerUser], reference: PerUser) -> _Paired:
    """Differences to the reference over the users that all share; sizes are the reference's."""
    users = reference.users
    for method in methods:
        if not np.array_equal(users, method.users):
            users = np.intersect1d(users, method.users, assume_unique=True)
    if users.size == 0:
        raise InputError("nothing to compare: no user has a value under every method", found="0 users")
    at = np.searchsorted(reference.users, users)
    size = np.ones(users.size) if reference.size is None else reference.size[at].astype(np.float64)
    gaps = [m.values[np.searchsorted(m.users, users)] - reference.values[at] for m in methods]
    return _Paired(users, np.stack(gaps, axis=1) * size[:, None], size)


def _replicates(
    paired: Sequence[_Paired],
    columns: Sequence[np.ndarray],
    n_users: int,
    replicates: int,
    resample: str,
    rng: np.random.Generator,
) -> np.ndarray:
    """Bootstrap distribution of the differences averaged over seeds: [replicates, methods]."""
    n_seeds, step = len(paired), max(1, CHUNK // n_users)
    drawn = np.empty((replicates, paired[0].weighted.shape[1]))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        counts = _draw(rows, n_users, rng)
        seeds = _draw(rows, n_seeds, rng) if resample == "hierarchical" else np.ones((rows, n_seeds))
        block = np.zeros((rows, drawn.shape[1]))
        for s, (part, column) in enumerate(zip(paired, columns, strict=True)):
            own = _draw(rows, column.size, rng) if resample == "users-per-seed" else counts[:, column]
            block += seeds[:, [s]] / n_seeds * part.means(own)
        drawn[first : first + rows] = block
    return drawn


def _draw(rows: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of n is met in n draws with replacement: [rows, n], rows add up to n."""
    drawn = rng.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _two_sided(drawn: np.ndarray) -> np.ndarray:
    """Twice the smaller share of replicates on either side of 0; never 0, since replicates are finite."""
    below, above = (drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0)
    p_value: np.ndarray = np.minimum(2.0 * (np.minimum(below, above) + 1) / (drawn.shape[0] + 1), 1.0)
    return p_value
