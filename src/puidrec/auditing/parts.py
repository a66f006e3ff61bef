"""What the leads of an audit rest on, in plain values: the content of `audit.json` beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from puidrec.auditing.diagnostics import SegmentSide, changes, diagnose, largest, segment_side
from puidrec.auditing.envelope import KINDS, Pairs, band, over_grid, sharp, simultaneous_band
from puidrec.auditing.estimates import Bootstrap, Curve
from puidrec.auditing.inputs import AuditInputs
from puidrec.auditing.measured import settlement
from puidrec.auditing.slots import SlotLead
from puidrec.auditing.verdict import Yardstick, benchmarks, group_calibration, scenarios
from puidrec.evaluation.significance import resampled_sums
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.tilt import SegmentTilt
from puidrec.rng import Rng, generator

SHOWN_GAMMA = 1.5
"""Γ at which ranges of segments, and of one model alone, are shown where nothing is known of Γ."""


@dataclass(frozen=True)
class Known:
    """What is known of Γ here: the yardstick that decides, and what uniform ratings say."""

    yardstick: Yardstick | None
    believe: float | None
    certificate: tuple[Certificate, str] | None
    tilt: SegmentTilt | None

    @property
    def shown(self) -> float:
        """Γ at which ranges are shown."""
        return self.yardstick.gamma if self.yardstick is not None else SHOWN_GAMMA


def parts_of(
    inputs: AuditInputs,
    names: tuple[str, str],
    bootstrap: Bootstrap,
    grid: np.ndarray,
    known: Known,
    star: float | None,
) -> dict[str, Any]:
    """All of them. grid: the Γ of the envelopes; star: Γ* of the metric asked for."""
    arrays, evidence = inputs.arrays, inputs.nominal.evidence
    return {
        "model": inputs.fits[0].own.describe(names[0]),
        "against": inputs.fits[1].own.describe(names[1]) if inputs.two else None,
        "data": _data(inputs),
        "rows": _rows(inputs, bootstrap),
        "leakage": _leakage(inputs, names),
        "control": _control(inputs),
        "gamma_grid": grid.tolist(),
        "envelopes": _curves(inputs, grid, bootstrap),
        "benchmarks": benchmarks(evidence.calibration, star),
        "groups": benchmarks(group_calibration(evidence, inputs.groups), star),
        "scenarios": scenarios(evidence.counts.rate, star),
        **_known(inputs, known),
        "uniform": None if inputs.uniform_test is None else {"n": len(inputs.uniform_test)},
        "sequential": _sequential(inputs, names, bootstrap.rng),
        **_gamma(inputs),
        "segments": _segments(inputs, known.shown),
        "diagnostics": diagnose(
            arrays.item,
            arrays.propensity,
            inputs.nominal.seen_propensity,
            evidence.counts,
            inputs.nominal.propensity.predict,
            (inputs.data.n_users, inputs.data.n_items),
            about=inputs.nominal.propensity.describe(),
            rng=bootstrap.rng,
        ),
    }


def _control(inputs: AuditInputs) -> dict[str, Any]:
    """Whether the range at Γ = 1 is the plain weighted mean, computed another way."""
    pairs = inputs.arrays.main
    weighted = float(np.average(pairs.value, weights=1.0 / pairs.propensity))
    span = sharp(pairs, 1.0)
    holds = bool(np.allclose([span.low, span.high], weighted, rtol=1e-6, atol=1e-9))
    sign = "=" if holds else "≠"
    words = (
        f"Control: the range at Γ = 1 is the unadjusted weighted estimate, {span.low:.6g} "
        f"{sign} {weighted:.6g}."
    )
    return {"at_gamma_1": span.low, "weighted": weighted, "holds": holds, "words": words}


def _data(inputs: AuditInputs) -> dict[str, Any]:
    data, split = inputs.data, inputs.split
    return {
        "name": data.name,
        "sha256": data.sha256,
        "n_users": data.n_users,
        "n_items": data.n_items,
        "n_logged": len(inputs.seen),
        "n_uniform": 0 if inputs.uniform is None else len(inputs.uniform),
        "protocol": split.protocol.name,
        "seed": split.seed,
        "positive_rate": float(inputs.seen.label.mean()) if len(inputs.seen) else None,
    }


def _rows(inputs: AuditInputs, bootstrap: Bootstrap) -> dict[str, Any]:
    stratum = inputs.arrays.main.stratum
    return {
        "source": inputs.judged.source,
        "part": inputs.judged.words,
        "n": len(inputs.rows),
        "users": int(np.count_nonzero(np.bincount(inputs.rows.user))),
        "strata": 1 if stratum is None else int(stratum.max()) + 1,
        "outcome": "label" if inputs.target == "binary" else "rating, scaled to 0..1",
        "lists": "rated" if inputs.lists is None else "catalogue",
        "listed_users": int(inputs.slots.n_lists // max(len(inputs.judged.trained_on), 1)),
        "log_users": int(np.count_nonzero(np.bincount(inputs.seen.user))),
        "rows_in_lists": int(inputs.slots.row.size),
        "k": inputs.k,
        "mapped": inputs.mapped,
        "scales": ", ".join(inputs.scales),
        "uses_uniform": inputs.nominal.propensity.uses_uniform,
        "replicates": int(bootstrap.replicates),
        "level": bootstrap.level,
    }


def _leakage(inputs: AuditInputs, names: tuple[str, str]) -> dict[str, Any]:
    """What each model explains of the ratings beyond user and item means, and whether that is too
    much."""
    shares = inputs.leaks
    return {
        "model": shares[0],
        "against": shares[1] if len(shares) > 1 else None,
        "words": inputs.leak(names),
    }


def bounded_means(inputs: AuditInputs) -> Iterator[tuple[str, Pairs]]:
    """The gap (or the loss of one model) first, then what the gap is made of; one at a time, for
    memory."""
    arrays = inputs.arrays
    yield arrays.name, arrays.main
    if arrays.against is not None:
        for name, prediction in (("model_loss", arrays.model), ("against_loss", arrays.against)):
            yield name, arrays.losses(prediction)


def slot_ranges(inputs: AuditInputs) -> Iterator[tuple[str, SlotLead]]:
    """The leads by slots, and the values of each model's lists."""
    for metric in ("dcg", "precision"):
        if inputs.two:
            yield f"{metric}_gap", inputs.slot_lead(metric)
        for which, name in enumerate(("model", "against")[: len(inputs.fits)]):
            yield f"{name}_{metric}", inputs.slot_lead(metric, slots=inputs.slots.alone(which))


def _curves(inputs: AuditInputs, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """Envelopes over Γ of every mean, and of every lead and value by slots."""
    user, strengths = inputs.arrays.user, [float(gamma) for gamma in grid]
    found: dict[str, dict[str, Any]] = {}
    for name, pairs in bounded_means(inputs):
        found[name] = {"point": pairs.point}
        for kind in KINDS:
            found[name][kind] = _ends(over_grid(pairs, kind, grid))
            if bootstrap.replicates:
                found[name][kind]["band"] = _ends(band(pairs, kind, strengths, user, bootstrap))
    return found | {
        name: _slot_curve(slots, grid, bootstrap) for name, slots in slot_ranges(inputs)
    }


def _slot_curve(slots: SlotLead, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """The range of a lead or a value by slots: one kind, the exact one."""
    curve = slots.curve(grid)
    found: dict[str, Any] = {"point": slots.point, "most": slots.size, "normalised": _ends(curve)}
    if bootstrap.replicates:
        drawn = resampled_sums(slots.sums, bootstrap.replicates, generator(bootstrap.rng, "slots"))
        low, high = (
            (getattr(curve, end), slots.values(grid, end, drawn)) for end in ("low", "high")
        )
        outer = simultaneous_band(low, high, bootstrap.level)
        found["normalised"]["band"] = _ends(outer)
    return found


def _ends(curve: Curve) -> dict[str, list[float]]:
    return {"low": curve.low.tolist(), "high": curve.high.tolist()}


def _sequential(inputs: AuditInputs, names: tuple[str, str], rng: Rng) -> dict[str, Any] | None:
    """What the random ratings settle so far; None without them, or without another model."""
    found = settlement(inputs, rng)
    if found is None:
        return None
    return {
        "leader": found.leader,
        "settled_after": found.settled_after,
        "n": found.n,
        "more_needed": found.more_needed,
        "e_value": float(found.evidence[-1]),
        "difference": found.difference,
        "sentence": found.say(*names),
    }


def _known(inputs: AuditInputs, known: Known) -> dict[str, Any]:
    """What is known of Γ."""
    yardstick, tilt, found = known.yardstick, known.tilt, known.certificate
    return {
        "reference": None if yardstick is None else asdict(yardstick),
        "believe": known.believe,
        "certificate": None if found is None else _certificate(inputs, *found),
        "tilt": None if tilt is None else tilt._asdict() | {"sentence": _tilt_words(tilt)},
    }


def _tilt_words(tilt: SegmentTilt) -> str:
    factor, low, high = np.exp([tilt.slope, tilt.low, tilt.high])
    return (
        f"Measured tilt: the odds of being seen change by a factor of {factor:.2f} "
        f"(95 % {low:.2f} to {high:.2f}) from the lowest rating to the highest."
    )


def _certificate(inputs: AuditInputs, certificate: Certificate, kind: str) -> dict[str, Any]:
    return {
        "low": certificate.lower,
        "kind": kind,
        "n_uniform": certificate.n_uniform,
        "confidence": certificate.confidence,
        "adjusted_by": inputs.propensity_name,
        "finding": certificate.finding,
        "sentence": certificate.sentence,
        "segments": [
            {
                "side": row.side,
                "name": row.name,
                "n_uniform": row.n_uniform,
                "low": row.lower,
                "p_value": row.p_value,
            }
            for row in certificate.segments
        ],
    }


def _gamma(inputs: AuditInputs) -> dict[str, Any]:
    """How the rule spreads Γ over pairs, and by group of users and items."""
    gamma, evidence = inputs.gamma, inputs.nominal.evidence
    sample = gamma.sample(10_000, inputs.seed)
    mean = np.exp(gamma.cell_mean_log())
    labels = []
    for k, bins in enumerate((evidence.user_bins, evidence.item_bins)):
        own = bins is not None and np.array_equal(bins.codes, (gamma.user_bin, gamma.item_bin)[k])
        n = mean.shape[k]
        plain = ["all"] if n == 1 else [f"class {j + 1}" for j in range(n)]
        labels.append(
            list(bins.labels[:n]) if own and bins is not None and len(bins.labels) >= n else plain
        )
    return {
        "gamma_map": {"user_bins": labels[0], "item_bins": labels[1], "values": mean.tolist()},
        "gamma": {
            "median": float(np.median(sample)),
            "p95": float(np.quantile(sample, 0.95)),
            "max": float(gamma.max),
            "rule": str(getattr(inputs.rule, "source", inputs.rule)),
        },
    }


def _segments(inputs: AuditInputs, shown: float) -> dict[str, Any]:
    data, counts, gamma, arrays = (
        inputs.data,
        inputs.nominal.evidence.counts,
        inputs.gamma,
        inputs.arrays,
    )
    sides = (
        SegmentSide(
            "user", data.users, counts.user_degree, gamma.user_mean_log(), data.user_ids.ids
        ),
        SegmentSide(
            "item", data.items, counts.item_degree, gamma.item_mean_log(), data.item_ids.ids
        ),
    )
    change: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
    if inputs.lists is not None:
        change = changes(inputs.listed_users, inputs.lists[0], data.n_users, data.n_items)
    tables = [
        segment_side(side, arrays, shown, part) for side, part in zip(sides, change, strict=True)
    ]
    return {
        "users": tables[0],
        "items": tables[1],
        "columns": sorted({row["column"] for table in tables for row in table}),
        "largest_users": largest(sides[0], arrays.user, change[0]),
        "largest_items": largest(sides[1], arrays.item, change[1]),
        "strength": f"Γ = {shown:.3g}",
    }
