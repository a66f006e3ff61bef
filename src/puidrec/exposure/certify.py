"""`certify`: what uniform ratings prove of a log, in whole and by segment, and whether it may be
misfit instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl

from puidrec.data.dataset import Dataset, Interactions
from puidrec.data.protocol import Protocol, get_protocol
from puidrec.data.schema import check_choice
from puidrec.errors import InputError
from puidrec.evaluation.significance import holm
from puidrec.exposure.certificate import (
    Certificate,
    SegmentCertificate,
    Segments,
    level_index,
    segment_certificates,
)
from puidrec.exposure.melding import UniformRows
from puidrec.exposure.nominal import NominalExposure, Outcome
from puidrec.exposure.placebo import placebo_certificate
from puidrec.exposure.sign_check import MeanGap, mean_gap
from puidrec.features.bins import bin_column
from puidrec.features.encode import feature_columns
from puidrec.rng import generator

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
    if data.uniform is None or not len(data.uniform):
        raise InputError(
            "a certificate needs uniform rows",
            found="none",
            expected="ratings of items drawn at random",
            hint="Load the data with uniform=…",
        )
    rule = all_labelled(get_protocol(protocol))
    nominal = NominalExposure(data, data.logged.labelled(rule), None, propensity, seed=rng)
    uniform = data.uniform.labelled(rule)
    by_level = nominal.certifies_levels(uniform) if outcome == "auto" else outcome == "rating"
    return certify_exposure(
        nominal, uniform, "rating" if by_level else "label", confidence=confidence, checks=checks
    )


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
        sums = nominal.seen_sums(outcome, levels, calibrate=True, segments=part, rng=nominal.seed)
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
    sums = nominal.seen_sums(outcome, levels, calibrate=True, rng=nominal.seed)
    whole = mean_gap(sums.weight[0], levels, value, rows.user, name="all pairs")
    if whole is None:
        return ()
    found = list[MeanGap]()
    for _, part, own, enough in _with_rows(nominal, rows):
        weight = nominal.seen_sums(
            outcome, levels, calibrate=True, segments=part, rng=nominal.seed
        ).weight
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
