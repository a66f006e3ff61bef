"""The certificate: how much hidden confounding do some uniform ratings prove? From arrays.

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

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.special import expit, logit, stdtrit

from puidrec.errors import InputError
from puidrec.evaluation.significance import holm, resampled_sums, stretch_of_few
from puidrec.rng import Rng, generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS_MAX = 50
USER_GROUPS = 2_000
"""Most units of the bootstrap: of more users, random groups are resampled."""
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
class SegmentCertificate:
    """The same of the pairs of some users, or of some items."""

    side: str
    """`user` or `item`."""
    name: str
    n_uniform: int
    gamma: float
    """Biased upward, as that of a level."""
    lower: float
    """Lower limit, simultaneous over all segments shown."""
    p_value: float
    """Adjusted for the number of segments and levels (Holm)."""


@dataclass(frozen=True)
class Certificate:
    """The smallest Γ that agrees with the uniform ratings: the largest over the levels. `lower` is
    what is proved."""

    gamma: float
    """Point estimate, biased upward (nothing hidden and 50 uniform rows give 1.5 to 2). Use
    `lower`."""
    lower: float
    adjusted: bool
    """Whether what the propensity explains was taken out (weights 1/p − 1)."""
    confidence: float
    levels: tuple[LevelCertificate, ...]
    n_uniform: int = 0
    """Uniform rows used; those whose pair is in the log are left out."""
    n_effective: float = 0.0
    """Independent rows that they are worth: fewer, where users with several rows answer alike."""
    propensity: str | None = None
    segments: tuple[SegmentCertificate, ...] = ()
    placebo: Certificate | None = field(default=None, repr=False)
    """The same around a richer propensity (boosted trees); what vanishes there is misfit."""

    @property
    def finding(self) -> str:
        """`nothing proved`, `misfit` (the limit vanishes around the richer propensity), or `hidden
        or missed`."""
        if self.lower <= 1.0:
            return "nothing proved"
        return (
            "misfit"
            if self.placebo is not None and self.placebo.lower <= 1.0
            else "hidden or missed"
        )

    @property
    def sentence(self) -> str:
        """What is proved, what it assumes, and what it may be instead."""
        around = f" around the {self.propensity} propensity" if self.propensity is not None else ""
        rows = f"{self.n_uniform:,} uniform ratings"
        level = f"{100 * self.confidence:g} % confidence"
        if self.finding == "nothing proved":
            return (
                f"{rows} do not prove that anything is hidden{around} ({level}); that is no "
                "proof of the contrary."
            )
        proved = f"{rows} prove Γ ≥ {self.lower:.2f}{around} ({level})"
        if self.finding == "misfit":
            return (
                f"{proved}, but not around a richer one of boosted trees: features, activity and "
                "popularity explain it, in a form that the propensity misses (misfit). Nothing "
                "hidden is proved."
            )
        also = (
            f", and Γ ≥ {self.placebo.lower:.2f} around one of boosted trees"
            if self.placebo is not None
            else ""
        )
        return (
            f"{proved}{also}: something that drives both choices and ratings is hidden, or "
            "missed by the propensity."
        )

    def __repr__(self) -> str:
        return f"Certificate: Γ ≥ {self.lower:.3f}, {self.finding}\n  {self.sentence}"

    def to_frame(self) -> pl.DataFrame:
        """One row for the whole, one per level, one per segment."""
        numbers = dict.fromkeys(("seen", "unseen", "gamma", "lower", "p_value"), pl.Float64)
        columns = {"part": pl.String, "name": pl.String, **numbers, "n_uniform": pl.Int64}

        def shown(part: str, row: object) -> dict[str, Any]:
            known = {name: getattr(row, name) for name in columns if hasattr(row, name)}
            return {"part": part, "name": "any rating", **known}

        rows = [
            shown("whole", self),
            *(shown("level", row) for row in self.levels),
            *(shown(f"{row.side} segment", row) for row in self.segments),
        ]
        return pl.DataFrame(rows, schema=columns)

    def plot(self) -> Figure:
        """The limit of Γ that each event proves, and its estimate, as a Matplotlib figure."""
        from puidrec.report.gamma import certificate_figure

        return certificate_figure(self)

    def _repr_html_(self) -> str:
        from puidrec.report.gamma import certificate_view

        return certificate_view(self)


class SeenSums:
    """Σ(1/p − 1) of the seen rows by segment, group of users and level: one pass over a log, maybe
    in parts."""

    def __init__(self, levels: np.ndarray, n_users: int, n_segments: int = 1, rng: Rng = 0) -> None:
        self.levels = levels
        n_groups = min(n_users, USER_GROUPS)
        order = (
            generator(rng, "certify-groups").permutation(n_users)
            if n_groups < n_users
            else np.arange(n_users)
        )
        self._group = (order % n_groups).astype(np.int64)
        self.weight = np.zeros((n_segments, n_groups, levels.size))
        self.rows = np.zeros((n_segments, levels.size))
        """Seen rows by segment and level, unweighted."""

    def add(
        self,
        value: np.ndarray,
        propensity: np.ndarray | None,
        user: np.ndarray,
        segment: np.ndarray | None = None,
    ) -> None:
        """Count some rows; without propensities each counts once."""
        check_rows(value, propensity)
        _, n_groups, n_levels = self.weight.shape
        place = np.zeros(value.size, np.int64) if segment is None else segment.astype(np.int64)
        level = level_index(value, self.levels)
        cell = (place * n_groups + self._group[user]) * n_levels + level
        weight = np.ones(value.size) if propensity is None else 1.0 / propensity - 1.0
        self.weight += np.bincount(cell, weight, minlength=self.weight.size).reshape(
            self.weight.shape
        )
        self.rows += np.bincount(place * n_levels + level, minlength=self.rows.size).reshape(
            self.rows.shape
        )


def level_index(value: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The position of each value among the levels."""
    index = np.minimum(np.searchsorted(levels, value), levels.size - 1)
    if not (levels[index] == value).all():
        raise InputError(
            "a rating that is no level",
            found=value[levels[index] != value][0],
            expected="a known level",
        )
    return index


def check_rows(value: np.ndarray, propensity: np.ndarray | None) -> None:
    """Refuse values and propensities that no share can be computed from."""
    if not np.isfinite(value).all():
        raise InputError("ratings must be finite numbers", found="NaN or infinite values")
    if propensity is not None:
        if propensity.shape != value.shape:
            raise InputError(
                "one propensity per logged rating",
                found=propensity.shape,
                expected=f"{value.shape}",
            )
        if not ((propensity > 0.0) & (propensity <= 1.0)).all():
            raise InputError(
                "propensity out of range", expected="in (0, 1]", hint="Clip the propensities first."
            )


def all_levels(*values: np.ndarray) -> np.ndarray:
    """The distinct values of some ratings, sorted; too many are refused."""
    found = np.unique(np.concatenate([np.unique(value) for value in values])).astype(np.float64)
    if found.size > LEVELS_MAX:
        raise InputError(
            "too many rating levels to certify", found=found.size, expected=f"at most {LEVELS_MAX}"
        )
    return found


def certify_values(
    logged_value: np.ndarray,
    uniform_value: np.ndarray,
    *,
    logged_user: np.ndarray | None = None,
    uniform_user: np.ndarray | None = None,
    logged_propensity: np.ndarray | None = None,
    confidence: float = 0.95,
    rng: Rng = 0,
) -> Certificate:
    """The smallest Γ that fits values of seen pairs and of uniformly drawn *unseen* pairs: labels,
    or rating levels.

    Rows without users count as independent; with users, those of both samples are the population.
    Without `logged_propensity` nothing is adjusted for.
    """
    if logged_value.size == 0 or uniform_value.size == 0:
        raise InputError(
            "a certificate needs logged and uniform ratings",
            found=(logged_value.size, uniform_value.size),
        )
    if (logged_user is None) != (uniform_user is None):
        raise InputError("give the users of both samples, or of neither")
    with_users = logged_user is not None
    if logged_user is None or uniform_user is None:
        logged_user, uniform_user = np.arange(logged_value.size), np.arange(uniform_value.size)
    check_rows(uniform_value, None)
    levels = all_levels(logged_value, uniform_value)
    everyone, own = np.unique(logged_user, return_inverse=True)
    sums = SeenSums(levels, everyone.size, rng=rng)
    sums.add(logged_value, logged_propensity, own)
    n_users = np.union1d(logged_user, uniform_user).size
    uniform = UniformRows(
        level_index(uniform_value, levels), uniform_user, n_users if with_users else None
    )
    return certificate(
        sums, uniform, adjusted=logged_propensity is not None, confidence=confidence, rng=rng
    )


def certificate(
    seen: SeenSums, uniform: UniformRows, *, adjusted: bool, confidence: float = 0.95, rng: Rng = 0
) -> Certificate:
    """The certificate of the whole, all segments of `seen` together."""
    if not 0.0 < confidence < 1.0:
        raise InputError(
            "confidence out of range",
            found=confidence,
            expected="between 0 and 1",
            hint="Try 0.95.",
        )
    draw = generator(rng, "certify")
    weight, rows = seen.weight.sum(axis=0), seen.rows.sum(axis=0)
    events, effective = certify_events(weight, rows, uniform, seen.levels, 1.0 - confidence, draw)
    top = max((event.gamma for event in events), default=1.0)
    return Certificate(
        top,
        max((event.lower for event in events), default=1.0),
        adjusted,
        confidence,
        tuple(events),
        n_uniform=uniform.level.size,
        n_effective=effective,
    )


@dataclass(frozen=True)
class UniformRows:
    """Uniform rows of unseen pairs as arrays: index of the level, code of the user."""

    level: np.ndarray
    user: np.ndarray
    n_users: int | None = None
    """Users of the population that they were drawn from; None: far more than were drawn."""


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
    starts = joined_levels(weight.sum(axis=0) / total * count.sum(), rows)
    if starts.size < 2:
        return [], float(count.sum())
    events = ranges_of(starts.size)
    tail = alpha / (2 * len(events))
    own = np.searchsorted(starts, uniform.level, side="right") - 1
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
    adjusted = holm(np.array([row.p_value for row in found]))
    found = [replace(row, p_value=float(p)) for row, p in zip(found, adjusted, strict=True)]
    return found, float(size.min())


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
