"""The certificate: what uniform ratings prove of hidden confounding, as a result that can show
itself; from arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from puidrec.errors import InputError
from puidrec.exposure.melding import LevelCertificate, UniformRows, certify_events
from puidrec.rng import Rng, generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS_MAX = 50
USER_GROUPS = 2_000
"""Most units of the bootstrap: of more users, random groups are resampled."""


@dataclass(frozen=True)
class Segments:
    """A partition of the users, or of the items."""

    side: Literal["user", "item"]
    codes: np.ndarray
    """Segment of every user (or item)."""
    names: tuple[str, ...]

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.names)

    def n_users(self, code: int, everyone: int | None) -> int | None:
        """Users whose rows may belong to a segment: its own, or everyone for a segment of items."""
        return int((self.codes == code).sum()) if self.side == "user" else everyone

    def of(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """The segment of every pair."""
        return self.codes[user if self.side == "user" else item]


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
        """Seen and unseen shares with the limit of each level, as a Matplotlib figure."""
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


def segment_certificates(
    seen: SeenSums,
    uniform: UniformRows,
    segments: Segments,
    codes: np.ndarray,
    *,
    alpha: float,
    rng: Rng = 0,
) -> list[SegmentCertificate]:
    """The certificate of every segment that has uniform rows; limits at level 1 − alpha each.

    codes: the segment of every uniform row.
    """
    found = []
    for code in np.unique(codes).tolist():
        own = codes == code
        part = uniform.take(own, segments.n_users(code, uniform.n_users))
        draw = generator(rng, "certify-segment", code)
        events, _ = certify_events(
            seen.weight[code], seen.rows[code], part, seen.levels, alpha, draw
        )
        if events:
            gamma, lower = (
                max(event.gamma for event in events),
                max(event.lower for event in events),
            )
            p_value = min(event.p_value for event in events)
            found.append(
                SegmentCertificate(
                    segments.side, segments.names[code], int(own.sum()), gamma, lower, p_value
                )
            )
    return found
