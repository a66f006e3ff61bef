"""Do people pick what they like, and how strongly? What uniform ratings, or a log alone, can say.

The sign is an assumption wherever unseen ratings are put below seen ones. Uniform rows show it by
their means: those of seen pairs, reweighted to the unseen ones, less those of unseen pairs. Without
them, held-out logged rows can support it: where people pick what they like, ratings rise with how
much others like them were exposed to the item, beyond what a rating model, activity and popularity
say. A clear positive t licenses Γ > 1. Nothing else in a log does: where taste varies from pair to
pair, t is about 0 whichever the sign.

Measured tilt: how exposure depends on the rating itself, beyond the propensity. If the odds of
being seen are p/(1 − p) · exp(a_s + b_s r), with r the rating scaled to 0..1 and s a segment of
users or items, then logged rows against uniform rows of unseen pairs are a logistic regression with
the offset logit p:

    logit P(logged | r, s) = logit p + (a_s + what the sampling adds) + b_s r.

b_s > 0: people see what they like, more than the propensity explains; exp|b_s| is the Γ between
both ends of the scale. A certificate proves that something is hidden; a tilt says in which
direction and how much, if its form is right. Intervals have users as clusters, each with logged and
uniform rows together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy.sparse import csr_array
from scipy.special import expit, logit, ndtr, ndtri, stdtrit

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.row_matrix import item_count
from puidrec.data.split import Protocol
from puidrec.errors import InputError
from puidrec.evaluation.significance import holm
from puidrec.exposure.certificate import SeenSums
from puidrec.exposure.certify import Partition, beside_uniform, partitions_of, segments_of
from puidrec.exposure.estimate import NominalExposure, Outcome
from puidrec.rng import generator

CLEAR_T = 3.1
"""t from which the sign is taken to be shown: a false one in a thousand logs of either sign."""
FEW_USERS = 20
LIKED, DISLIKED, OPEN = (
    "people pick what they like",
    "people pick what they dislike",
    "the sign is not shown",
)


class SignCheck(NamedTuple):
    """Whether held-out ratings rise with exposure."""

    slope: float
    """Change of the rating (in [0, 1]) per standard deviation of the exposure factor."""
    t: float
    """Its t statistic, with errors that may be correlated within a user."""
    rows: int

    @property
    def liked(self) -> bool:
        """Whether the rows show clearly that people pick what they like."""
        return self.t > CLEAR_T

    @property
    def disliked(self) -> bool:
        """Whether they show clearly that people pick what they dislike."""
        return self.t < -CLEAR_T

    @property
    def finding(self) -> str:
        """What the rows say, in words."""
        return LIKED if self.liked else DISLIKED if self.disliked else OPEN


class MeanGap(NamedTuple):
    """Mean rating of seen pairs, reweighted to the unseen ones, less that of uniform rows of unseen
    pairs."""

    name: str
    side: str
    """`user` or `item` for a segment; empty for the whole."""
    seen: float
    unseen: float
    low: float
    """95 % interval of seen − unseen, with errors that may be correlated within a user."""
    high: float
    p_value: float
    n_uniform: int

    @property
    def finding(self) -> str:
        """What the two means say, in words."""
        return OPEN if self.p_value >= 0.05 else LIKED if self.seen > self.unseen else DISLIKED


def mean_gap(
    weight: np.ndarray,
    levels: np.ndarray,
    rating: np.ndarray,
    user: np.ndarray,
    *,
    name: str,
    side: str = "",
) -> MeanGap | None:
    """The gap of the means; None where fewer than `FEW_USERS` users or groups of users have
    ratings.

    weight: Σ(1/p − 1) of the seen rows, [groups of users, levels]. rating, user: of the uniform
    rows.
    """
    total, of_group = weight.sum(), weight.sum(axis=1)
    code = np.unique(user, return_inverse=True)[1]
    n_users, n_groups = int(code.max(initial=-1)) + 1, int((of_group > 0.0).sum())
    if min(n_users, n_groups) < FEW_USERS:
        return None
    seen, unseen = float(weight.sum(axis=0) @ levels / total), float(rating.mean())
    by_group, by_user = weight @ levels - seen * of_group, np.bincount(code, rating - unseen)
    variance = (by_group @ by_group) / total**2 * n_groups / (n_groups - 1)
    variance += (by_user @ by_user) / rating.size**2 * n_users / (n_users - 1)
    error, gap = float(np.sqrt(variance)), seen - unseen
    reach = float(ndtri(0.975)) * error
    p_value = float(2.0 * ndtr(-abs(gap) / error)) if error > 0.0 else float(gap == 0.0)
    return MeanGap(name, side, seen, unseen, gap - reach, gap + reach, p_value, rating.size)


def sign_by_means(
    nominal: NominalExposure, uniform: Interactions, outcome: Outcome
) -> tuple[MeanGap, ...]:
    """Whether seen pairs are rated above unseen ones: over all pairs first, then in segments with
    enough uniform rows.

    Means of seen pairs are reweighted to the unseen ones by the propensity, with calibrated
    weights; p-values of segments are adjusted (Holm).
    """
    rows, levels = nominal.unseen(uniform), nominal.levels(uniform, outcome)
    sums = SeenSums(levels, nominal.data.n_users, rng=nominal.seed)
    for seen, p in nominal.weighted():
        sums.add(getattr(seen, outcome).astype(np.float64), p, seen.user)
    value = getattr(rows, outcome).astype(np.float64)
    whole = mean_gap(sums.weight[0], levels, value, rows.user, name="all pairs")
    if whole is None:
        return ()
    gaps = [
        mean_gap(part.weight, levels, part.value, part.user, name=part.name, side=part.side)
        for part in segments_of(nominal, uniform, outcome)
    ]
    found = [gap for gap in gaps if gap is not None]
    adjusted = holm(np.array([gap.p_value for gap in found])).tolist()
    segments = [gap._replace(p_value=p) for gap, p in zip(found, adjusted, strict=True)]
    return (whole, *sorted(segments, key=lambda gap: (gap.p_value, gap.name)))


def log_controls(ratings: csr_array, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Activity and popularity of pairs in a log, as `sign_check` takes them."""
    activity, popularity = np.log1p(np.diff(ratings.indptr)), np.log1p(item_count(ratings))
    return np.column_stack([activity[user], popularity[item]])


def sign_check(
    rating: np.ndarray,
    prediction: np.ndarray,
    exposure: np.ndarray,
    user: np.ndarray,
    controls: np.ndarray,
) -> SignCheck:
    """Regress held-out logged ratings on a model's predictions, controls and one exposure factor;
    user-clustered t.

    rating: in [0, 1]. prediction, exposure: made without these rows; the leading exposure factor,
    which is activity times popularity, taken off. controls: [rows, any], such as log activity and
    log popularity. user: codes.
    """
    sizes = {x.shape[0] for x in (rating, prediction, exposure, user, controls)}
    if len(sizes) != 1:
        raise InputError("one value per held-out row", found=sorted(sizes))
    n_users = np.unique(user).size
    if n_users < FEW_USERS or np.ptp(exposure) == 0.0:
        return SignCheck(0.0, 0.0, rating.size)
    x = np.column_stack(
        [np.ones(rating.size), prediction, controls, exposure / exposure.std()]
    ).astype(np.float64)
    inverse = np.linalg.pinv(x.T @ x)
    coefficient = inverse @ (x.T @ rating)
    scores = x * (rating - x @ coefficient)[:, None]
    code = np.unique(user, return_inverse=True)[1]
    sums = np.stack([np.bincount(code, column) for column in scores.T], axis=1)
    variance = (inverse @ (sums.T @ sums) @ inverse)[-1, -1] * n_users / (n_users - 1)
    slope = float(coefficient[-1])
    return SignCheck(
        slope, slope / float(np.sqrt(variance)) if variance > 0.0 else 0.0, rating.size
    )


# The measured tilt

MIN_ROWS = 30
"""Fewest uniform rows of a segment whose tilt is measured."""
MAX_LOGGED = 1_000_000
"""Logged rows that are regressed on; of more, a random sample."""
STEPS = 30


class TiltRows(NamedTuple):
    """Logged rows first, then uniform ones."""

    rating: np.ndarray
    """Scaled to 0..1."""
    offset: np.ndarray
    """logit p."""
    logged: np.ndarray
    """1 or 0."""
    user: np.ndarray
    segment: np.ndarray


@dataclass(frozen=True)
class TiltFit:
    """Intercepts and slopes of the segments, and what each user adds to their scores and
    curvatures."""

    intercept: np.ndarray
    slope: np.ndarray
    sums: np.ndarray
    """[users, segments, 5]: two scores, three entries of the curvature."""

    @property
    def influence(self) -> np.ndarray:
        """What each user moves the slopes by, [users, segments]."""
        return _step(self.sums[..., :2], self.sums[..., 2:].sum(axis=0))[1]

    def limits(self, confidence: float) -> np.ndarray:
        """Confidence limits of the slopes, [2, segments]: users are independent clusters, and a few
        that move a slope most count as few (Student's t)."""
        moved = self.influence
        variance = (moved**2).sum(axis=0)
        users = np.abs(moved).sum(axis=0) ** 2 / np.maximum(variance, 1e-300)
        degrees = np.maximum(users - 1.0, 1.0)
        reach = stdtrit(degrees, 0.5 + confidence / 2.0) * np.sqrt(variance * (1.0 + 1.0 / degrees))
        return np.stack([self.slope - reach, self.slope + reach])


def fit_tilt(rows: TiltRows, n_users: int, n_segments: int = 1) -> TiltFit:
    """The regression of every segment, all at once: they share nothing."""
    a, b = np.zeros(n_segments), np.zeros(n_segments)
    sums = np.zeros(0)
    for _ in range(STEPS):
        sums = _sums(rows, a, b, n_segments, rows.segment, n_segments)
        steps = _step(sums[:, :2], sums[:, 2:])
        a, b = a + np.clip(steps[0], -2.0, 2.0), b + np.clip(steps[1], -2.0, 2.0)
        if max(np.abs(steps[0]).max(), np.abs(steps[1]).max()) < 1e-9:
            break
    place = rows.user.astype(np.int64) * n_segments + rows.segment
    own = _sums(rows, a, b, n_segments, place, n_users * n_segments).reshape(n_users, n_segments, 5)
    return TiltFit(a, b, own)


def _sums(
    rows: TiltRows, a: np.ndarray, b: np.ndarray, n_segments: int, place: np.ndarray, n: int
) -> np.ndarray:
    """Scores and curvatures at a and b, summed by place, [n, 5]."""
    r = rows.rating
    eta = rows.offset + a[rows.segment] + b[rows.segment] * r
    chance = expit(eta)
    left, bent = rows.logged - chance, chance * (1.0 - chance)
    parts = (left, left * r, bent, bent * r, bent * r * r)
    return np.stack([np.bincount(place, part, n) for part in parts], axis=-1)


def _step(score: np.ndarray, curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """curvature⁻¹ · score of 2 × 2 systems; no step where nothing is known."""
    one, mixed, two = curve[..., 0], curve[..., 1], curve[..., 2]
    det = one * two - mixed**2
    safe = np.where(det > 1e-12, det, np.inf)
    return (two * score[..., 0] - mixed * score[..., 1]) / safe, (
        one * score[..., 1] - mixed * score[..., 0]
    ) / safe


def tilt_rows(
    nominal: NominalExposure,
    uniform_user: np.ndarray,
    uniform_item: np.ndarray,
    uniform_rating: np.ndarray,
    segments: Partition | None = None,
) -> TiltRows:
    """The rows of a regression: seen rows, and uniform rows of unseen pairs; ratings are scaled
    here."""
    seen, scale = nominal.seen, nominal.data.scale
    chosen = np.arange(len(seen))
    if chosen.size > MAX_LOGGED:
        chosen = np.sort(
            generator(nominal.seed, "tilt-rows").choice(chosen, MAX_LOGGED, replace=False)
        )
    logged = seen.take(chosen)
    user = np.concatenate([logged.user, uniform_user]).astype(np.int64)
    item = np.concatenate([logged.item, uniform_item]).astype(np.int64)
    rating = scale.unit(np.concatenate([logged.rating, uniform_rating])).astype(np.float64)
    p = np.clip(nominal.propensity.predict(user, item, None), 1e-9, 1.0 - 1e-9)
    code = np.zeros(user.size, np.int64) if segments is None else segments.of(user, item)
    return TiltRows(rating, logit(p), (np.arange(user.size) < chosen.size) * 1.0, user, code)


class SegmentTilt(NamedTuple):
    """The tilt of one segment."""

    segment: str
    n_uniform: int
    n_logged: int
    slope: float
    """Log odds of being seen, from the lowest to the highest rating, beyond the propensity."""
    low: float
    high: float

    @property
    def gamma(self) -> float:
        """exp|slope|."""
        return float(np.exp(abs(self.slope)))

    @property
    def direction(self) -> str:
        """`liked is seen`, `disliked is seen`, or `open`."""
        return (
            "liked is seen" if self.low > 0.0 else "disliked is seen" if self.high < 0.0 else "open"
        )


@dataclass(frozen=True)
class Tilt:
    """What `puidrec.measure_tilt(data, by=…)` finds: a slope per segment, with its interval."""

    rows: tuple[SegmentTilt, ...]
    by: str | None
    propensity: str
    confidence: float
    fit: TiltFit

    @property
    def sentence(self) -> str:
        """The first row in words."""
        row = self.rows[0]
        where = "" if self.by is None else f" in {row.segment}"
        return (
            f"From the lowest rating to the highest, the odds of being seen change by a factor of "
            f"{np.exp(row.slope):.2f}{where} ({self.confidence:.0%} {np.exp(row.low):.2f} to "
            f"{np.exp(row.high):.2f}) beyond the {self.propensity} propensity: {row.direction}."
        )

    def __repr__(self) -> str:
        return f"Tilt by {self.by or 'nothing'}: {len(self.rows)} segments\n  {self.sentence}"

    def to_frame(self) -> pl.DataFrame:
        """A row per segment."""
        return pl.DataFrame(
            [{**row._asdict(), "gamma": row.gamma, "direction": row.direction} for row in self.rows]
        )


def measure_tilt(
    data: Dataset,
    by: str | None = None,
    *,
    propensity: str = "two-way",
    protocol: str | Protocol = "rd",
    confidence: float = 0.95,
    rng: int = 0,
) -> Tilt:
    """How exposure depends on the rating beyond the propensity, from the log and its uniform rows.

    by: a feature column of users or items, `activity` or `popularity`: a slope for each of its
    segments with at least 30 uniform rows; None: one for all pairs. Uniform rows whose pair is in
    the log are left out. It assumes that log odds are linear in the rating; a certificate assumes
    no form, and says less.
    """
    nominal, uniform = beside_uniform(data, propensity, protocol, rng, "a tilt")
    drawn = nominal.unseen(uniform)
    segments = None if by is None else _segments(nominal, by)
    rows = tilt_rows(nominal, drawn.user, drawn.item, drawn.rating, segments)
    names = ("all pairs",) if segments is None else segments.names
    fit = fit_tilt(rows, data.n_users, len(names))
    ends = fit.limits(confidence)
    counts = [np.bincount(rows.segment[rows.logged == o], minlength=len(names)) for o in (0.0, 1.0)]
    found = [
        SegmentTilt(
            name, int(counts[0][k]), int(counts[1][k]), float(fit.slope[k]), *map(float, ends[:, k])
        )
        for k, name in enumerate(names)
        if counts[0][k] >= MIN_ROWS and counts[1][k] >= MIN_ROWS
    ]
    if not found:
        raise InputError(
            "too few uniform rows to measure a tilt",
            found=len(drawn),
            expected=f"{MIN_ROWS} in a segment",
        )
    return Tilt(tuple(found), by, propensity, confidence, fit)


def _segments(nominal: NominalExposure, by: str) -> Partition:
    """The partition by a column, or by activity or popularity."""
    found = {part.names[0].split(":")[0].split(" (")[0]: part for part in partitions_of(nominal)}
    if by not in found:
        raise InputError("no such segments", found=by, expected=", ".join(found))
    return found[by]
