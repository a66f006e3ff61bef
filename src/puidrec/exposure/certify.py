"""`certify`: what uniform ratings prove of a log, in whole and by segment, and whether it may be
misfit instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl
from scipy import sparse

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
    Segments,
    all_levels,
    certificate,
    level_index,
    segment_certificates,
)
from puidrec.exposure.estimate import NominalExposure, Outcome, estimate_exposure
from puidrec.exposure.melding import UniformRows
from puidrec.exposure.sign_check import MeanGap, mean_gap
from puidrec.features.bins import bin_column
from puidrec.features.encode import exposure_design, feature_columns
from puidrec.rng import Rng, generator

__all__ = ["Certificate", "certify", "certify_exposure"]

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
    return certify_exposure(
        nominal, uniform, "rating" if by_level else "label", confidence=confidence, checks=checks
    )


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


def certify_exposure(
    nominal: NominalExposure,
    uniform: Interactions,
    outcome: Outcome,
    *,
    confidence: float = 0.95,
    checks: bool = True,
) -> Certificate:
    """`certify` for an exposure that is fitted already: training and studies share it."""
    found = nominal.certificate(outcome, uniform, confidence=confidence)
    return with_checks(found, nominal, uniform, outcome) if checks else found


def with_checks(
    found: Certificate, nominal: NominalExposure, uniform: Interactions, outcome: Outcome
) -> Certificate:
    """A certificate with its placebo, where it proves something, and its segments."""
    confidence = found.confidence
    placebo = (
        placebo_certificate(nominal, outcome, uniform, confidence) if found.lower > 1.0 else None
    )
    return replace(
        found, segments=_segments(nominal, uniform, outcome, confidence), placebo=placebo
    )


def _segments(
    nominal: NominalExposure, uniform: Interactions, outcome: Outcome, confidence: float
) -> tuple[SegmentCertificate, ...]:
    """Certificates of segments with enough uniform rows, limits and p-values adjusted for their
    number (Holm).

    Weights are calibrated: a segment has few rows of small propensity, and a curve that is wrong
    there sways it.
    """
    rows, value, levels = nominal.unseen_values(uniform, outcome)
    partitions = _with_rows(nominal, rows)
    n_segments = sum(int(enough.sum()) for *_, enough in partitions)
    index, found = level_index(value, levels), list[SegmentCertificate]()
    for number, part, own, enough in partitions:
        kept = enough[own]
        sums = nominal.seen_sums(outcome, levels, segments=part, rng=nominal.seed)
        drawn = UniformRows(index[kept], rows.user[kept], nominal.data.n_users)
        rng = generator(nominal.seed, "segments", number)
        alpha = (1.0 - confidence) / n_segments
        found += segment_certificates(sums, drawn, part, own[kept], alpha=alpha, rng=rng)
    adjusted = holm(np.array([row.p_value for row in found]), n_segments)
    rows_found = [replace(row, p_value=float(p)) for row, p in zip(found, adjusted, strict=True)]
    return tuple(sorted(rows_found, key=lambda row: (-row.lower, row.p_value)))


def sign_by_means(
    nominal: NominalExposure, uniform: Interactions, outcome: Outcome
) -> tuple[MeanGap, ...]:
    """Whether seen pairs are rated above unseen ones: over all pairs first, then in segments with
    enough uniform rows.

    Means of seen pairs are reweighted to the unseen ones by the propensity, with calibrated
    weights; p-values of segments are adjusted (Holm).
    """
    rows, value, levels = nominal.unseen_values(uniform, outcome)
    sums = nominal.seen_sums(outcome, levels, rng=nominal.seed)
    whole = mean_gap(sums.weight[0], levels, value, rows.user, name="all pairs")
    if whole is None:
        return ()
    found = list[MeanGap]()
    for _, part, own, enough in _with_rows(nominal, rows):
        weight = nominal.seen_sums(outcome, levels, segments=part, rng=nominal.seed).weight
        for code in np.flatnonzero(enough).tolist():
            kept = own == code
            gap = mean_gap(
                weight[code],
                levels,
                value[kept],
                rows.user[kept],
                name=part.names[code],
                side=part.side,
            )
            found += [gap] if gap is not None else []
    adjusted = holm(np.array([gap.p_value for gap in found])).tolist()
    segments = [gap._replace(p_value=p) for gap, p in zip(found, adjusted, strict=True)]
    return (whole, *sorted(segments, key=lambda gap: (gap.p_value, gap.name)))


def _with_rows(
    nominal: NominalExposure, rows: Interactions
) -> list[tuple[int, Segments, np.ndarray, np.ndarray]]:
    """Partitions that have a segment with enough of the rows: number, segments, that of each row,
    which have enough."""
    found = []
    for number, part in enumerate(partitions_of(nominal)):
        own = part.of(rows.user, rows.item)
        enough = np.bincount(own, minlength=part.n) >= MIN_SEGMENT
        found += [(number, part, own, enough)] if enough.any() else []
    return found


def partitions_of(nominal: NominalExposure) -> Iterator[Segments]:
    """Users and items by each feature column, and by activity or popularity."""
    data, counts = nominal.data, nominal.evidence.counts
    sides: tuple[tuple[Literal["user", "item"], pl.DataFrame | None, np.ndarray, str], ...] = (
        ("user", data.users, counts.user_degree, "activity"),
        ("item", data.items, counts.item_degree, "popularity"),
    )
    for side, table, degree, word in sides:
        columns = feature_columns(table, f"{side}_id")[:SEGMENT_COLUMNS]
        for column in [*columns, pl.Series(f"{word} (logged ratings)", degree)]:
            bins = bin_column(column)
            if len(bins.labels) > 1:
                names = tuple(f"{bins.name}: {label}" for label in bins.labels)
                yield Segments(side, bins.codes.astype(np.int64), names)


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
    if len(rows) <= MAX_ROWS:
        return rows.take(np.arange(len(rows)))
    return rows.take(
        np.sort(generator(rng, "placebo-rows").choice(len(rows), MAX_ROWS, replace=False))
    )


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
    return clip(np.clip(odds, 0.0, 1.0), min(0.01, 0.1 * nominal.exposure.rate)).values


def _design(features: sparse.csr_array | None) -> np.ndarray | None:
    if features is None:
        return None
    dense = features.toarray().astype(np.float32)
    return dense[:, np.argsort(-dense.var(axis=0), kind="stable")[:MAX_COLUMNS]]


def _table(nominal: NominalExposure, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Features of user and item, activity, popularity, and the log odds of the nominal propensity.

    Counts of all seen rows are the same for every pair of a user (or item), so no pair gives its
    own exposure away.
    """
    data, counts = nominal.data, nominal.exposure.counts
    sides = [
        _design(exposure_design(data.users, "user_id")),
        _design(exposure_design(data.items, "item_id")),
    ]
    columns = [
        side[code] for side, code in zip(sides, (user, item), strict=True) if side is not None
    ]
    for code, degree in ((user, counts.user_degree), (item, counts.item_degree)):
        columns.append(np.log1p(degree)[code][:, None])
    if not nominal.propensity.uses_uniform and nominal.propensity_name != "given":
        known = np.clip(nominal.propensity.predict(user, item), 1e-6, 1.0 - 1e-6)
        columns.append(np.log(known / (1.0 - known))[:, None])
    return np.concatenate(columns, axis=1).astype(np.float32)


def placebo_certificate(
    nominal: NominalExposure, outcome: Outcome, uniform: Interactions, confidence: float
) -> Certificate:
    """The certificate around boosted trees."""
    rows, drawn = sample_of(nominal.seen, nominal.seed), nominal.unseen(uniform)
    value, own = (getattr(part, outcome).astype(np.float64) for part in (drawn, rows))
    levels = all_levels(value, own)
    sums = SeenSums(levels, nominal.data.n_users, rng=nominal.seed)
    sums.add(own, tree_propensity(nominal, rows, nominal.seed), rows.user)
    unseen = UniformRows(level_index(value, levels), drawn.user, nominal.data.n_users)
    found = certificate(sums, unseen, adjusted=True, confidence=confidence, rng=nominal.seed)
    return replace(found, propensity="boosted trees")
