"""`certify`: what uniform ratings prove of a log, in whole and by segment, and whether it may be
misfit instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from scipy.special import logit

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.schema import check_choice
from puidrec.data.split import Protocol, get_protocol
from puidrec.errors import InputError
from puidrec.evaluation.significance import holm
from puidrec.exposure.base import clip
from puidrec.exposure.certificate import (
    Certificate,
    SeenSums,
    SegmentCertificate,
    UniformRows,
    certify_events,
    level_index,
)
from puidrec.exposure.estimate import NominalExposure, Outcome, estimate_exposure
from puidrec.exposure.evidence import SideName
from puidrec.features.bins import bin_column
from puidrec.features.encode import feature_columns
from puidrec.rng import Rng, generator

MIN_SEGMENT = 50
"""Fewest uniform rows of a segment that is certified on its own."""
SEGMENT_COLUMNS = 8
"""Most feature columns of a side that segments are made of, beside activity or popularity."""


def certify(
    data: Dataset,
    *,
    outcome: Literal["auto", "rating", "label"] = "auto",
    propensity: str = "two-way",
    protocol: str | Protocol = "rd",
    confidence: float = 0.95,
    checks: bool = True,
    rng: int = 0,
) -> Certificate:
    """The Γ that the uniform rows of a data set prove, around a propensity fitted to its log.

    The lower limit holds with the given confidence, whatever the number of uniform rows, if they
    were drawn at random and the propensity is right. Rows whose pair is in the log are left out.

    outcome: `rating` (every rating level is an event), `label` (liked or not, by the protocol), or
    `auto`: levels where there are 3 to 50 of them. checks: also certify segments of users and
    items, and repeat the certificate around boosted trees (a placebo: what vanishes there is misfit
    of the propensity).
    """
    check_choice("outcome", outcome, ("auto", "rating", "label"))
    nominal, uniform = beside_uniform(data, propensity, protocol, rng, "a certificate")
    by_level = nominal.certifies_levels(uniform) if outcome == "auto" else outcome == "rating"
    kind: Outcome = "rating" if by_level else "label"
    found = nominal.certificate(kind, uniform, confidence=confidence)
    return with_checks(found, nominal, uniform, kind) if checks else found


def beside_uniform(
    data: Dataset, propensity: str, protocol: str | Protocol, rng: int, what: str
) -> tuple[NominalExposure, Interactions]:
    """The exposure of the whole log, and the uniform rows, which `what` cannot do without."""
    if data.uniform is None or not len(data.uniform):
        raise InputError(
            f"{what} needs uniform rows",
            found="none",
            expected="ratings of items drawn at random",
            hint="Load the data with uniform=…",
        )
    rule = all_labelled(get_protocol(protocol))
    nominal = estimate_exposure(data, data.logged.labelled(rule), None, propensity, seed=rng)
    return nominal, data.uniform.labelled(rule)


def all_labelled(protocol: Protocol) -> Protocol:
    """The protocol with every rating either liked or not: shares of all pairs need all of them."""
    return replace(protocol, negative_to=float(np.nextafter(protocol.positive_from, -np.inf)))


def with_checks(
    found: Certificate, nominal: NominalExposure, uniform: Interactions, outcome: Outcome
) -> Certificate:
    """A certificate with its placebo, where it proves something, and its segments."""
    placebo = None
    if found.lower > 1.0:
        placebo = placebo_certificate(nominal, outcome, uniform, found.confidence)
    segments = _segments(nominal, uniform, outcome, found.confidence)
    return replace(found, segments=segments, placebo=placebo)


def _segments(
    nominal: NominalExposure, uniform: Interactions, outcome: Outcome, confidence: float
) -> tuple[SegmentCertificate, ...]:
    """Certificates of segments with enough uniform rows, limits and p-values adjusted for their
    number (Holm)."""
    segments, found = list(segments_of(nominal, uniform, outcome)), list[SegmentCertificate]()
    for k, segment in enumerate(segments):
        # users whose rows may belong to a segment of items: all
        n_users = segment.n if segment.side == "user" else nominal.data.n_users
        rows = UniformRows(level_index(segment.value, segment.levels), segment.user, n_users)
        alpha, draw = (1.0 - confidence) / len(segments), generator(nominal.seed, "segments", k)
        events, _ = certify_events(segment.weight, segment.rows, rows, segment.levels, alpha, draw)
        if events:
            gamma, lower = (max(getattr(e, name) for e in events) for name in ("gamma", "lower"))
            p_value = min(event.p_value for event in events)
            found.append(
                SegmentCertificate(
                    segment.side, segment.name, segment.value.size, gamma, lower, p_value
                )
            )
    adjusted = holm(np.array([row.p_value for row in found]), len(segments))
    rows_found = [replace(row, p_value=float(p)) for row, p in zip(found, adjusted, strict=True)]
    return tuple(sorted(rows_found, key=lambda row: (-row.lower, row.p_value)))


class Segment(NamedTuple):
    """Seen and uniform rows of the pairs of some users, or of some items."""

    side: SideName
    name: str
    n: int
    """Its users or items."""
    levels: np.ndarray
    weight: np.ndarray
    """Σ(1/p − 1) of the seen rows, [groups of users, levels]."""
    rows: np.ndarray
    """Seen rows by level."""
    value: np.ndarray
    """Labels or ratings of its uniform rows of unseen pairs."""
    user: np.ndarray


def segments_of(
    nominal: NominalExposure, uniform: Interactions, outcome: Outcome
) -> Iterator[Segment]:
    """Segments with enough uniform rows.

    Weights are calibrated: a segment has few rows of small propensity, and a curve that is wrong
    there sways it.
    """
    rows, levels = nominal.unseen(uniform), nominal.levels(uniform, outcome)
    value = getattr(rows, outcome).astype(np.float64)
    for part in partitions_of(nominal):
        own, n = part.of(rows.user, rows.item), len(part.names)
        enough = np.flatnonzero(np.bincount(own, minlength=n) >= MIN_SEGMENT)
        if not enough.size:
            continue
        sums = SeenSums(levels, nominal.data.n_users, n, nominal.seed)
        for seen, p in nominal.weighted():
            code = part.of(seen.user, seen.item)
            sums.add(getattr(seen, outcome).astype(np.float64), p, seen.user, code)
        for k in enough.tolist():
            yield Segment(
                part.side,
                part.names[k],
                int((part.codes == k).sum()),
                levels,
                sums.weight[k],
                sums.rows[k],
                value[own == k],
                rows.user[own == k],
            )


@dataclass(frozen=True)
class Partition:
    """Segments of the users, or of the items."""

    side: SideName
    codes: np.ndarray
    """Segment of every user (or item)."""
    names: tuple[str, ...]

    def of(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """The segment of every pair."""
        return self.codes[user if self.side == "user" else item]


def partitions_of(nominal: NominalExposure) -> Iterator[Partition]:
    """Users and items by each feature column, and by activity or popularity."""
    data, counts = nominal.data, nominal.evidence.counts
    sides: tuple[tuple[SideName, pl.DataFrame | None, np.ndarray, str], ...] = (
        ("user", data.users, counts.user_degree, "activity"),
        ("item", data.items, counts.item_degree, "popularity"),
    )
    for side, table, degree, word in sides:
        columns = feature_columns(table, f"{side}_id")[:SEGMENT_COLUMNS]
        for column in [*columns, pl.Series(f"{word} (logged ratings)", degree)]:
            bins = bin_column(column)
            if len(bins.labels) > 1:
                names = tuple(f"{bins.name}: {label}" for label in bins.labels)
                yield Partition(side, bins.codes.astype(np.int64), names)


# The placebo: the same certificate around a richer propensity.

FOLDS = 4
MAX_ROWS = 60_000
"""Seen rows that the trees learn from and are asked for; of more, a random sample."""
UNSEEN_PER_SEEN = 3
"""Pairs of D drawn at random for each seen row: trees learn odds, and the rate of drawing is taken
out again."""
MAX_COLUMNS = 64
"""Most feature columns of a side: the ones that vary most."""


def sample_of(rows: Interactions, rng: Rng) -> Interactions:
    """All seen rows, or `MAX_ROWS` of them at random; in memory."""
    chosen = np.arange(len(rows))
    if chosen.size > MAX_ROWS:
        draw = generator(rng, "placebo-rows")
        chosen = np.sort(draw.choice(chosen.size, MAX_ROWS, replace=False))
    return rows.take(chosen)


def tree_propensity(nominal: NominalExposure, rows: Interactions, rng: Rng = 0) -> np.ndarray:
    """Propensities of (a sample of) the seen rows by boosted trees that did not see the fold of the
    pair.

    A pair belongs to one fold by chance, seen or not, and is predicted by trees of the other folds.
    They tell seen rows from pairs of D drawn at random, so their odds are p · |D| / |O| · (seen
    rows / pairs drawn).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    draw = generator(rng, "placebo")
    data, n = nominal.data, len(rows)
    n_drawn = max(UNSEEN_PER_SEEN * n, 2_000)
    user = np.concatenate([rows.user, draw.integers(data.n_users, size=n_drawn)]).astype(np.int64)
    item = np.concatenate([rows.item, draw.integers(data.n_items, size=n_drawn)]).astype(np.int64)
    pair = np.unique(user * data.n_items + item, return_inverse=True)[1]
    fold = draw.integers(FOLDS, size=int(pair.max()) + 1)[pair]
    trees = HistGradientBoostingClassifier(
        max_iter=150,
        learning_rate=0.1,
        max_leaf_nodes=15,
        min_samples_leaf=40,
        l2_regularization=1.0,
        early_stopping=True,
        validation_fraction=0.15,
        n_iter_no_change=10,
        random_state=int(draw.integers(2**31 - 1)),
    )
    table, seen = _table(nominal, user, item), np.arange(user.size) < n
    shares = cross_val_predict(trees, table, seen, cv=PredefinedSplit(fold), method="predict_proba")
    share = shares[:n, 1]
    odds = share / np.maximum(1.0 - share, 1e-9) * nominal.exposure.rate * n_drawn / n
    return clip(np.clip(odds, 0.0, 1.0), min(0.01, 0.1 * nominal.exposure.rate))


def _table(nominal: NominalExposure, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Features of user and item, activity, popularity, and the log odds of the nominal propensity.

    Counts of all seen rows are the same for every pair of a user (or item), so no pair gives its
    own exposure away.
    """
    seen, columns = nominal.exposure, []
    for code, degree, features in (
        (user, seen.counts.user_degree, seen.user_features),
        (item, seen.counts.item_degree, seen.item_features),
    ):
        columns.append(np.log1p(degree)[code][:, None])
        if features is not None:
            dense = features.toarray().astype(np.float32)
            most = np.argsort(-dense.var(axis=0), kind="stable")[:MAX_COLUMNS]
            columns.append(dense[:, most][code])
    if not nominal.propensity.uses_uniform and nominal.propensity_name != "given":
        known = np.clip(nominal.propensity.predict(user, item), 1e-6, 1.0 - 1e-6)
        columns.append(logit(known)[:, None])
    return np.concatenate(columns, axis=1).astype(np.float32)


def placebo_certificate(
    nominal: NominalExposure, outcome: Outcome, uniform: Interactions, confidence: float
) -> Certificate:
    """The certificate around boosted trees."""
    rows = sample_of(nominal.seen, nominal.seed)
    parts = [(rows, tree_propensity(nominal, rows, nominal.seed))]
    found = nominal.certificate(outcome, uniform, confidence=confidence, parts=parts)
    return replace(found, propensity="boosted trees")
