"""How much hidden confounding do some uniform ratings prove? The statistics of one comparison, on
sums.

If the ratio of unseen to seen rating distributions lies within [1/Γ, Γ] given what the propensity
knows, so does the ratio of every event's probability. With q the share of an event among seen
pairs, reweighted by 1/p − 1 to what unseen pairs should look like, and q₀ its share among unseen
pairs, of which the uniform rows are a sample,

    Γ ≥ max(q/q₀, q₀/q, (1 − q)/(1 − q₀), (1 − q₀)/(1 − q)).

Events are the rating levels {r = c}, and {r ≥ c}: a preference that rises with the rating moves the
latter most.

The limit holds at its level in small samples: q₀ by Clopper–Pearson draws with the sample size that
clustered rows are worth, q by a bootstrap over users, melded (Fay, Proschan and Brittain 2015): the
lower limit of a function that rises in q and falls in q₀ is a low quantile of it over draws of q
and upper draws of q₀. Quantiles are order statistics, taken outward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit, stdtrit

from puidrec.errors import InputError
from puidrec.evaluation.significance import holm, resampled_sums, stretch_of_few

DRAWS = 4_000
"""Fewest draws; more where a limit lies further out than they reach."""
MIN_EXPECTED = 5.0
"""Neighbouring levels are joined until the log leads one to expect this many uniform rows of each.
"""


@dataclass(frozen=True)
class LevelCertificate:
    """What one event says: a rating level, or neighbours joined for want of uniform rows."""

    level: float
    """The lowest rating of the event."""
    seen: float
    """q: its share among seen pairs, reweighted to unseen pairs by 1/p − 1 where adjusted."""
    unseen: float
    """q₀: its share among unseen pairs, as in the uniform rows."""
    gamma: float
    """Γ at these shares: biased upward, since chance alone moves it away from 1. Shown, and used
    for nothing."""
    lower: float
    """Lower confidence limit of Γ, simultaneous over the levels; 1 where nothing is proved."""
    p_value: float = 1.0
    """Of Γ = 1 for this event, adjusted for the number of levels (Holm)."""
    highest: float | None = None
    """The highest rating of the event, where levels were joined."""

    @property
    def name(self) -> str:
        """`rating 2`, or `ratings 1 to 3`."""
        joined = self.highest is not None and self.highest != self.level
        return f"ratings {self.level:g} to {self.highest:g}" if joined else f"rating {self.level:g}"


@dataclass(frozen=True)
class UniformRows:
    """Uniform rows of unseen pairs as arrays: index of the level, code of the user."""

    level: np.ndarray
    user: np.ndarray
    n_users: int | None = None
    """Users of the population that they were drawn from; None: far more than were drawn."""

    def take(self, rows: np.ndarray, n_users: int | None) -> UniformRows:
        """Some of the rows, of a population of so many users."""
        return UniformRows(self.level[rows], self.user[rows], n_users)


def certify_events(
    weight: np.ndarray,
    rows: np.ndarray,
    uniform: UniformRows,
    levels: np.ndarray,
    alpha: float,
    draw: np.random.Generator,
) -> tuple[list[LevelCertificate], float]:
    """Every event with its limits, simultaneous at level 1 − alpha, and the effective number of
    uniform rows."""
    count, total = np.bincount(uniform.level, minlength=levels.size), weight.sum()
    if not total > 0.0 or not count.sum():
        return [], 0.0
    expected = joined_levels(weight.sum(axis=0) / total * count.sum(), rows)
    starts = without_empty(expected, count)
    if starts.size < 2:
        return [], float(count.sum())
    planned = len(ranges_of(expected.size))
    tail = alpha / (2 * planned)
    own = (np.searchsorted(starts, np.arange(levels.size), side="right") - 1)[uniform.level]
    events = ranges_of(starts.size)
    member = np.array(
        [[low <= k < high for k in range(starts.size)] for low, high in events], dtype=np.float64
    )
    q0, size = uniform_shares(own, uniform, member, tail)
    mass = np.add.reduceat(weight, starts, axis=1) @ member.T
    q = mass.sum(axis=0) / total
    drawn = _seen_draws(mass, weight.sum(axis=1), 0.5 / rows.sum(), tail, draw)
    edge = [*starts, levels.size]
    found = []
    for k, (low, high) in enumerate(events):
        lower, p_value = _melded(drawn[:, k], q0[k], size[k], tail, draw)
        near = np.clip(q0[k : k + 1], 0.5 / size[k], 1.0 - 0.5 / size[k])
        gamma = float(np.exp(np.abs(log_gamma(q[k : k + 1], near)))[0])
        first, last = float(levels[edge[low]]), float(levels[edge[high] - 1])
        found.append(
            LevelCertificate(first, float(q[k]), float(q0[k]), gamma, lower, p_value, highest=last)
        )
    adjusted = holm(np.array([row.p_value for row in found]), planned)
    return [replace(row, p_value=float(p)) for row, p in zip(found, adjusted, strict=True)], float(
        size.min()
    )


def ranges_of(n: int) -> list[tuple[int, int]]:
    """The events of n joined levels, as half-open ranges: every level, then {r ≥ c} for what is not
    one of them.

    {r ≥ 2nd} is all but the first level, and {r ≥ last} the last one; of two levels one says all.
    """
    if n == 2:
        return [(1, 2)]
    return [(k, k + 1) for k in range(n)] + [(k, n) for k in range(2, n - 1)]


def joined_levels(expected: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Where events start: neighbouring levels are joined until enough rows of each are expected.

    What is expected comes from the log alone, so that the number of tests does not depend on what
    was drawn.
    """
    starts, uniform, seen = [0], 0.0, 0.0
    for k in range(expected.size):
        if uniform >= MIN_EXPECTED and seen >= MIN_EXPECTED:
            starts, uniform, seen = [*starts, k], 0.0, 0.0
        uniform, seen = uniform + expected[k], seen + rows[k]
    if len(starts) > 1 and (uniform < MIN_EXPECTED or seen < MIN_EXPECTED):
        starts.pop()
    return np.array(starts)


def without_empty(starts: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The starts of events once each without a uniform row has joined the event below it (the
    first: above it)."""
    filled = np.add.reduceat(count, starts) > 0
    first = int(np.argmax(filled))
    kept = filled & (np.arange(starts.size) > first)
    return np.array([0, *starts[kept]])


def uniform_shares(
    level: np.ndarray, uniform: UniformRows, member: np.ndarray, tail: float
) -> tuple[np.ndarray, np.ndarray]:
    """Share of every event among the uniform rows, and the number of independent rows that it is
    worth.

    level: joined level of each row. member: which of these an event holds, [events, levels]. Rows
    of one user may be alike. With ρ their intraclass correlation (of the event or, if larger, over
    all levels), m the size-weighted mean number of rows per user and f the share of all users that
    were asked, n rows are worth n / (1 + ((1 − f) m − 1) ρ): where every user was asked, who was
    asked adds no error. With few users ρ is uncertain, which Student's t accounts for (Korn and
    Graubard 1998). ρ = 1 counts every user once, and is the worst.
    """
    n, (n_events, n_levels) = level.size, member.shape
    _, code, size = np.unique(uniform.user, return_inverse=True, return_counts=True)
    table = np.bincount(code * n_levels + level, minlength=size.size * n_levels).reshape(
        size.size, n_levels
    )
    plain = table.sum(axis=0) / n
    share = member @ plain
    asked = min(size.size / uniform.n_users, 1.0) if uniform.n_users else 0.0
    excess = (1.0 - asked) * float((size**2).sum()) / n - 1.0
    if size.max() == 1 or excess <= 0.0:
        return share, np.full(n_events, float(n))
    pairs = float((size * (size - 1)).sum()) / n

    def spread(counts: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ_u (Σ_rows residual)² beyond that of independent rows, and what it would be if all of a
        user were alike."""
        own = n * mean * (1.0 - mean)
        return ((counts - size[:, None] * mean) ** 2).sum(axis=0) - own, own * pairs

    more, most = spread(table @ member.T, share)
    every, all_most = (float(part.sum()) for part in spread(table, plain))
    rho = np.clip(
        np.maximum(more / np.maximum(most, 1e-12), every / max(all_most, 1e-12)), 0.0, 1.0
    )
    few = (
        float(stdtrit(size.size - 1, tail) / stdtrit(n - 1, tail)) ** 2 if size.size > 1 else np.inf
    )
    worst = 1.0 + excess
    return share, n / np.clip(np.minimum((1.0 + excess * rho) * few, worst), 1.0, worst)


def log_gamma(q: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """The larger of log q/q₀ and log (1 − q₀)/(1 − q): rises in q, falls in q₀, and is above 0
    where q is above q₀.

    The larger of log q₀/q and log (1 − q)/(1 − q₀) is this of (1 − q, 1 − q₀); at q = q₀ both are
    0.
    """
    up = np.maximum(np.log(q / q0), np.log((1.0 - q0) / (1.0 - q)))
    down = np.maximum(np.log((1.0 - q) / (1.0 - q0)), np.log(q0 / q))
    return np.where(q >= q0, up, -down)


def _seen_draws(
    mass: np.ndarray, whole: np.ndarray, floor: float, tail: float, draw: np.random.Generator
) -> np.ndarray:
    """Bootstrap draws of every event's seen share, [draws, events]; users (or groups of them) are
    resampled.

    mass, whole: weight of each user's rows in every event, and in all. Deviations on the logit
    scale are widened where users are few.
    """
    sums = np.concatenate([mass, whole[:, None]], axis=1)[whole > 0.0]
    m = sums.shape[0]
    if m < 2:
        raise InputError("a certificate needs logged rows of at least two users", found=f"{m} user")
    total, drawn = sums.sum(axis=0), resampled_sums(sums, DRAWS, draw)
    q, share = (
        np.clip(one[..., :-1] / one[..., -1:], floor, 1.0 - floor) for one in (total, drawn)
    )
    return expit(logit(q) + stretch_of_few(m, tail) * (logit(share) - logit(q)))


def _melded(
    seen: np.ndarray, q0: float, size: float, tail: float, draw: np.random.Generator
) -> tuple[float, float]:
    """The lower limit of Γ from both directions and the two-sided p-value of Γ = 1, by event."""
    n = max(DRAWS, int(np.ceil(5.0 / tail)))
    seen = np.resize(seen, n)
    hits = q0 * size
    upper = draw.beta(hits + 1.0, size - hits, n) if hits < size else np.ones(n)
    lower = draw.beta(hits, size - hits + 1.0, n) if hits > 0.0 else np.zeros(n)
    tiny = np.finfo(float).tiny
    above = log_gamma(seen, np.clip(upper, tiny, 1.0 - 1e-15))
    below = -log_gamma(seen, np.clip(lower, tiny, 1.0 - 1e-15))
    rank = max(int(np.floor(tail * (n + 1))), 1) - 1  # outward: never above the quantile
    limit = max(float(np.partition(side, rank)[rank]) for side in (above, below))
    share = min(float((side <= 0.0).sum() + 1) for side in (above, below)) / (n + 1)
    return float(np.exp(max(limit, 0.0))), min(1.0, 2.0 * share)
