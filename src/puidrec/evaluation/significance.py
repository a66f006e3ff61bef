"""Values per user, their means and intervals, and whether a difference is real: a paired bootstrap
over users.

Every metric keeps its value per user (`PerUser`): means, intervals and paired tests all start from
these. Two methods see the same users, so a difference is taken user by user and the users are
resampled; a difference in a table is the average over seeds of each seed's mean difference, its
p-values adjusted by Holm's rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, cast, get_args

import numpy as np
from scipy.special import ndtri, stdtrit

from puidrec.data.schema import check_choice
from puidrec.errors import InputError
from puidrec.rng import Rng, bootstrap_counts, generator

Resample = Literal["users", "hierarchical"]
"""What a replicate draws anew. `hierarchical` (default): one draw of users that all seeds share,
since seeds re-split and re-train but meet the same people, and a draw of seeds: training again
gives other figures, and an interval must count that. `users`: users only (narrower: speaks of these
seeds, as one seed alone must)."""

Verdict = Literal["wins", "ties", "loses"]

CHUNK = 2**22
"""Entries of a resampling matrix in memory at a time (32 MiB)."""


@dataclass(frozen=True)
class PerUser:
    """One value per counted user. The metric is their mean, weighted by `size` if there is one."""

    users: np.ndarray
    """Codes or ids, sorted."""
    values: np.ndarray
    size: np.ndarray | None = None
    """Rows (or row weight) behind each value, for metrics that average over rows; None: every user
    counts alike."""

    def __post_init__(self) -> None:
        shapes = {
            np.shape(part) for part in (self.users, self.values, self.size) if part is not None
        }
        if len(shapes) != 1 or self.users.ndim != 1:
            raise InputError("users, values and sizes must be vectors of one length", found=shapes)

    def __len__(self) -> int:
        return self.users.size

    @property
    def weight(self) -> np.ndarray:
        """The share of each user in the mean; the shares add up to 1."""
        size = np.ones(len(self)) if self.size is None else self.size
        weight: np.ndarray = size / size.sum()
        return weight

    @property
    def mean(self) -> float:
        """The metric; NaN where no user counts, since no number would be true."""
        return float(np.sum(self.weight * self.values)) if len(self) else float("nan")


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error, and its interval at some level."""

    value: float
    low: float
    high: float
    standard_error: float
    n_users: int


def mean_interval(per_user: PerUser, level: float = 0.95) -> Estimate:
    """The mean and its normal interval with users as independent clusters, by the delta method.

    Σ s_u v_u / Σ s_u is a ratio when sizes vary (SNIPS is one), so its linearised residuals s_u
    (v_u − V) / Σ s carry the variance; with equal sizes this is the usual sd / √n. One user alone
    gives no interval (NaN).
    """
    share, n, value = checked_level(level), len(per_user), per_user.mean
    if n < 2:
        return Estimate(value, float("nan"), float("nan"), float("nan"), n)
    residual = per_user.weight * (per_user.values - value)
    error = float(np.sqrt(n / (n - 1) * np.sum(residual**2)))
    reach = NormalDist().inv_cdf(0.5 + share / 2) * error
    return Estimate(value, value - reach, value + reach, error, n)


def checked_level(level: float) -> float:
    """A confidence level lies strictly between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise InputError(
            "confidence level out of range", found=level, expected="0 < level < 1", hint="Try 0.95."
        )
    return level


def resampled_sums(sums: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Totals of per-user sums [users, columns] when as many users are drawn with replacement:
    [replicates, columns]."""
    step = max(1, CHUNK // sums.shape[0])
    totals = np.empty((replicates, sums.shape[1]))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        totals[first : first + rows] = bootstrap_counts(rows, sums.shape[0], rng) @ sums
    return totals


@dataclass(frozen=True)
class Comparison:
    """A method against the reference: the mean difference (method − reference), how sure it is."""

    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided, from the bootstrap; adjusted where several methods were compared."""
    verdict: Verdict
    """`wins` where the method is better: interval without 0, and p-value (adjusted, if so) within
    the level."""
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
    resample: Resample = "hierarchical",
    rng: Rng = 0,
) -> Comparison:
    """Compare two methods on one metric: a `PerUser` per seed each, in the same order of seeds."""
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
    resample: Resample = "hierarchical",
    rng: Rng = 0,
) -> dict[str, Comparison]:
    """Compare every method with the named reference on one metric, p-values adjusted for their
    number (Holm).

    results: method → one `PerUser` per seed, seeds in the same order. All methods share the
    replicates, which pairs them too. A user counts in a seed if every method has a value there.
    """
    alpha = 1.0 - checked_level(level)
    seeds = _check(results, reference, resample, replicates)
    others = [name for name in results if name != reference]
    paired = [
        _differences([results[name][s] for name in others], results[reference][s])
        for s in range(seeds)
    ]
    population = np.unique(np.concatenate([part.users for part in paired]))
    drawn = _replicates(paired, population, replicates, resample, generator(rng, "bootstrap"))
    observed = np.mean([part.means(np.ones((1, part.users.size)))[0] for part in paired], axis=0)
    low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2], axis=0)
    p_value, found = holm(_two_sided(drawn)), {}
    for k, name in enumerate(others):
        gap, verdict = float(observed[k]), "ties"
        if (low[k] > 0 or high[k] < 0) and p_value[k] <= alpha and gap != 0.0:
            verdict = "wins" if (gap > 0.0) == higher_is_better else "loses"
        ends = float(low[k]), float(high[k]), float(p_value[k])
        found[name] = Comparison(gap, *ends, cast("Verdict", verdict), population.size, seeds)
    return found


def holm(p_value: np.ndarray, n_tests: int | None = None) -> np.ndarray:
    """Holm's step-down adjustment: the k-th smallest of m p-values is multiplied by m − k + 1, kept
    in order, ≤ 1.

    n_tests: m, where more tests were planned than p-values are given; the others count as the
    largest.
    """
    p = np.asarray(p_value, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    most = p.size if n_tests is None else max(n_tests, p.size)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (most - np.arange(p.size))), 1.0)
    return adjusted


@dataclass(frozen=True)
class _Paired:
    """Differences to the reference in one seed: [users, methods], and the size of each user."""

    users: np.ndarray
    weighted: np.ndarray
    """Difference × size."""
    size: np.ndarray

    def means(self, counts: np.ndarray) -> np.ndarray:
        """Mean difference of each method when user u is drawn counts[b, u] times: [replicates,
        methods]."""
        mass = counts @ self.size
        means: np.ndarray = (counts @ self.weighted) / np.where(mass > 0, mass, 1.0)[:, None]
        return means


def _check(
    results: Mapping[str, Sequence[PerUser]], reference: str, resample: str, replicates: int
) -> int:
    """The number of seeds, once the table is sound."""
    if reference not in results or len(results) < 2:
        raise InputError(
            "no such reference",
            found=reference,
            expected=f"one of {', '.join(results)} and another method",
        )
    check_choice("resample", resample, get_args(Resample))
    if replicates < 100:
        raise InputError(
            "too few replicates", found=replicates, expected="at least 100", hint="Try 2000."
        )
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
        raise InputError(
            "nothing to compare: no user has a value under every method", found="0 users"
        )
    at = np.searchsorted(reference.users, users)
    size = np.ones(users.size) if reference.size is None else reference.size[at].astype(np.float64)
    gaps = [m.values[np.searchsorted(m.users, users)] - reference.values[at] for m in methods]
    return _Paired(users, np.stack(gaps, axis=1) * size[:, None], size)


def _replicates(
    paired: Sequence[_Paired],
    population: np.ndarray,
    replicates: int,
    resample: str,
    rng: np.random.Generator,
) -> np.ndarray:
    """Bootstrap distribution of the differences averaged over seeds: [replicates, methods]."""
    n_seeds, step = len(paired), max(1, CHUNK // population.size)
    columns = [np.searchsorted(population, part.users) for part in paired]
    drawn = np.empty((replicates, paired[0].weighted.shape[1]))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        counts = bootstrap_counts(rows, population.size, rng)
        seeds = (
            seed_weights(rows, n_seeds, rng)
            if resample == "hierarchical"
            else np.ones((rows, n_seeds))
        )
        block = np.zeros((rows, drawn.shape[1]))
        for s, (part, column) in enumerate(zip(paired, columns, strict=True)):
            block += seeds[:, [s]] / n_seeds * part.means(counts[:, column])
        drawn[first : first + rows] = block
    return drawn


def seed_weights(replicates: int, n_seeds: int, rng: np.random.Generator) -> np.ndarray:
    """How much each seed counts in each replicate, 1 on average: a bootstrap of seeds, widened for
    their small number.

    Deviations from 1 are stretched so that the interval of n seeds has its level. One seed counts
    1.
    """
    if n_seeds < 2:
        return np.ones((replicates, n_seeds))
    weights: np.ndarray = 1.0 + stretch_of_few(n_seeds) * (
        bootstrap_counts(replicates, n_seeds, rng) - 1.0
    )
    return weights


def stretch_of_few(n: int, tail: float = 0.025) -> float:
    """How much the bootstrap draws of n ≥ 2 things are widened about their mean.

    Draws vary less than the things do: by √((n − 1)/n), and as a normal law where Student's t
    holds.
    """
    return float(np.sqrt(n / (n - 1.0)) * stdtrit(n - 1, tail) / ndtri(tail))


def _two_sided(drawn: np.ndarray) -> np.ndarray:
    """Twice the smaller share of replicates on either side of 0; never 0, since replicates are
    finite."""
    below, above = (drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0)
    p_value: np.ndarray = np.minimum(
        2.0 * (np.minimum(below, above) + 1) / (drawn.shape[0] + 1), 1.0
    )
    return p_value
