"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn
the conclusion?

One call goes: `audit` → rows that no model has seen (`rows`) → `AuditInputs` (scores, lists,
propensities, Γ) → envelopes and tipping points of the log, what uniform rows measure, yardsticks →
leads with their verdicts → `AuditResult`. Segments and diagnostics explain, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from puidrec.auditing.diagnostics import diagnose
from puidrec.auditing.envelope import (
    KINDS,
    Pairs,
    band,
    gamma_grid,
    over_grid,
    sharp,
    simultaneous_band,
)
from puidrec.auditing.estimates import Bootstrap, Curve, Limits
from puidrec.auditing.inputs import AuditInputs
from puidrec.auditing.measured import measure_error, measure_ndcg, measure_slots, settlement
from puidrec.auditing.models import AuditedModel, check_comparable, names_of
from puidrec.auditing.result import METRICS, AuditResult
from puidrec.auditing.rows import Asked, Judged, choose_rows, fit_parts
from puidrec.auditing.segments import SegmentSide, changes, largest, segment_side
from puidrec.auditing.slots import MAX_PAIRS, SlotLead
from puidrec.auditing.tipping import Tipping, tipping_of, tipping_point
from puidrec.auditing.verdict import Lead, single_sentence
from puidrec.auditing.yardsticks import Yardstick, benchmarks, deciding, replaced, scenarios
from puidrec.data.dataset import Dataset
from puidrec.data.protocol import Protocol
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluation.significance import resampled_sums
from puidrec.exposure import require_propensity
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.gamma import GammaSpec, resolve_gamma
from puidrec.exposure.tilt import SegmentTilt
from puidrec.rng import Rng, generator

Metric = Literal["auto", "error", "ranking", "precision", "ndcg"]
"""auto: squared error, or ranking where scores are not on the scale of ratings."""
LIMITS = (2.0, 3.0, 5.0, 10.0, 20.0)
"""Where a grid of Γ may end."""
SHOWN_GAMMA = 1.5
"""Γ at which ranges of segments, and of one model alone, are shown where nothing is known of Γ."""


def audit(
    model: Any,
    data: Dataset,
    against: Any = None,
    *,
    split: Split | None = None,
    rows: Any = None,
    unseen: bool = False,
    folds: int | None = None,
    metric: Metric = "auto",
    k: int = 10,
    believe: float | None = None,
    protocol: str | Protocol = "rd",
    gamma: GammaSpec = "information",
    gamma_limit: float | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    propensity: str = "two-way",
    min_propensity: float | None = None,
    replicates: int = 200,
    level: float = 0.95,
    rng: int = 0,
    names: tuple[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> AuditResult:
    """Bound what the log says of a model, or of its lead over another, if something hidden drove
    the log.

    model, against: a fitted `Recommender`, any object with `predict(users, items)`, a function of
    these, a table `user_id, item_id, score`, or the path of one. Their errors are judged by rows
    that none of them has seen:
    split: the one that both were trained with; by default that of their protocol, seed and
    `select`. Its held-out logged rows are used where it has some; else models of this package are
    trained again on all but one of five parts
    of the log, in turn. folds: train again in any case, in so many parts (1: without one random
    part, once).
    rows: a table of logged pairs to judge by. unseen: your word that a model which cannot be
    trained again here has seen none of the logged ratings.
    metric: what `verdict` and `tipping_point` are about. k: where lists are cut. believe: the
    largest Γ that you think possible here; a lead is called robust if it survives that. Without it,
    what uniform ratings or recorded features say of Γ decides, and where there are none the result
    is Γ*, and no adjective.
    gamma: the rule of the personalised shape Γ_ui. gamma_limit: the largest Γ looked at; by default
    wide enough for the tipping point and all yardsticks. groups: named groups of feature columns,
    each a yardstick. propensity,
    min_propensity: nominal propensities and where they are clipped (by default at 0.01, or a tenth
    of the overall rate where that is less). replicates: bootstrap draws of users for the bands; 0
    draws none. names: what to call the two.
    progress: told what is computed, first all of it with a guess of its time.
    """
    _check(replicates, level, gamma_limit, metric, k)
    deciding(believe, None, None)
    resolve_gamma(gamma)
    require_propensity(propensity)  # before any work
    models = tuple(AuditedModel.of(one, data) for one in (model, against) if one is not None)
    if len(models) > 1:
        check_comparable(models[0], models[1], split is not None)
    chosen = split or _split(models, data, protocol)
    judged = choose_rows(models, data, chosen, Asked(rows, unseen, folds, split is not None, rng))
    if progress is not None:
        progress(plan_of(models, judged, data))
    fits = tuple(fit_parts(one, judged, data, progress) for one in models)
    inputs = AuditInputs(
        data, chosen, judged, fits, propensity, min_propensity, gamma, rng, k, groups, level
    )
    called = names_of(models[0], models[1] if len(models) > 1 else None, names)
    return _result(inputs, called, Bootstrap(replicates, level, rng), gamma_limit, metric, believe)


def _check(replicates: int, level: float, gamma_limit: float | None, metric: str, k: int) -> None:
    if not isinstance(replicates, int | np.integer) or replicates < 0:
        raise InputError(
            "replicates must be a whole number", found=replicates, expected="0 or more"
        )
    if not 0.0 < level < 1.0:
        raise InputError("confidence level out of range", found=level, expected="between 0 and 1")
    if metric not in ("auto", *METRICS):
        raise InputError(
            "unknown metric of an audit", found=metric, expected=f"auto, {', '.join(METRICS)}"
        )
    if not isinstance(k, int | np.integer) or k < 1:
        raise InputError("k must be a whole number", found=k, expected="1 or more")
    if gamma_limit is not None:
        gamma_grid(gamma_limit, 2)


def _split(models: tuple[AuditedModel, ...], data: Dataset, protocol: str | Protocol) -> Split:
    """The split that the models say they were trained with."""
    known = next((model for model in models if "select" in model.params), models[0])
    select = known.params.get("select", "uniform")
    return data.split(protocol, int(known.params.get("seed") or 0), select=select)


def plan_of(models: tuple[AuditedModel, ...], judged: Judged, data: Dataset) -> str:
    """What will be computed, and about how long it takes beside training, on one core."""
    trained = sum(model.refits for model in models) * len(judged.trained_on) if judged.refit else 0
    listed = min(data.n_pairs, MAX_PAIRS) * len(models) * len(judged.trained_on)
    seconds = 2.0 + 4e-6 * len(data.logged) + 4e-6 * len(judged.rows) + 3e-7 * listed
    gib = 0.4 + 4e-7 * len(data.logged)
    training = f"{trained} fits to train" if trained else "nothing to train"
    return (
        f"judging by {len(judged.rows):,} rows, {training}, lists from {listed:,} pairs: about {seconds:.0f} s and "
        f"{gib:.1f} GiB" + (" beside training" if trained else "")
    )


def _result(
    inputs: AuditInputs,
    names: tuple[str, str],
    bootstrap: Bootstrap,
    limit: float | None,
    metric: Metric,
    believe: float | None,
) -> AuditResult:
    """The leads first, then what they rest on."""
    arrays, evidence = inputs.arrays, inputs.nominal.evidence
    certificate = inputs.certificate(bootstrap.rng)
    tilt = _tilt(inputs, bootstrap)
    known = deciding(believe, _proved(certificate, tilt), evidence.calibration)
    asked = (
        ("ranking" if inputs.mapped or inputs.one_outcome else "error")
        if metric == "auto"
        else metric
    )
    leads = leads_of(inputs, names, known) if inputs.two else {}
    if asked not in leads:  # one model alone, or nothing to rank
        asked = "error"
    star = leads[asked].tipping_point if leads else None
    shown = known.gamma if known is not None else SHOWN_GAMMA
    grid = gamma_grid(limit or _limit([lead.tipping for lead in leads.values()], shown))
    parts: dict[str, Any] = {
        "model": inputs.fits[0].own.describe(names[0]),
        "against": inputs.fits[1].own.describe(names[1]) if inputs.two else None,
        "data": _data(inputs),
        "rows": _rows(inputs, bootstrap),
        "leakage": _leakage(inputs, names),
        "control": _control(inputs),
        "gamma_grid": grid.tolist(),
        "envelopes": _curves(inputs, grid, bootstrap),
        "benchmarks": benchmarks(evidence.calibration, star),
        "groups": benchmarks(inputs.group_calibration, star),
        "scenarios": scenarios(evidence.counts.rate, star),
        "reference": None if known is None else {"words": known.words, "gamma": known.gamma},
        "believe": believe,
        "certificate": _certificate(inputs, *certificate) if certificate is not None else None,
        "tilt": None
        if tilt is None
        else {
            "slope": tilt.slope,
            "low": tilt.low,
            "high": tilt.high,
            "n_uniform": tilt.n_uniform,
            "sentence": f"Measured tilt: the odds of being seen change by a factor of {np.exp(tilt.slope):.2f} (95 % "
            f"{np.exp(tilt.low):.2f} to {np.exp(tilt.high):.2f}) from the lowest rating to the highest.",
        },
        "uniform": None if inputs.uniform_test is None else {"n": len(inputs.uniform_test)},
        "sequential": _sequential(inputs, names, bootstrap.rng),
        **_gamma(inputs),
        "segments": _segments(inputs, shown),
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
    alone = ""
    if not inputs.two:
        span = sharp(arrays.main, shown)
        alone = single_sentence(names[0], arrays.main.point, span.low, span.high, shown)
    return AuditResult(names, asked, leads, parts, alone)


def leads_of(
    inputs: AuditInputs, names: tuple[str, str], known: Yardstick | None
) -> dict[str, Lead]:
    """The lead by each metric, squared error first."""
    arrays, leak, level, k = inputs.arrays, inputs.leak(names), inputs.level, inputs.k
    tipping = tipping_point(arrays.gaps, arrays.user, level)
    ended = replaced(arrays.gaps.value, arrays.least_favourable, 1.0 / arrays.propensity)
    found = {
        "error": Lead(
            "squared error",
            tipping,
            measure_error(inputs),
            inputs.one_outcome or leak,
            known,
            ended,
        )
    }
    for name, words in (("ranking", "dcg"), ("precision", "precision")):
        log = inputs.slot_lead(words)
        title = f"{'DCG' if words == 'dcg' else words}@{k}"
        unsupported = log.gain.slots + log.loss.slots
        measured = measure_slots(inputs, words)
        found[name] = Lead(
            title, _slot_tipping(log, level), measured, leak, known, None, unsupported
        )
    ndcg = measure_ndcg(inputs)
    return found | ({"ndcg": Lead(f"NDCG@{k}", None, ndcg)} if ndcg is not None else {})


def _slot_tipping(log: SlotLead, level: float) -> Tipping:
    """Γ* of a lead by slots."""

    def worst(gamma: float) -> Limits:
        return log.at(gamma, "low").limits(level)

    low, high = worst(1.0).low, log.at(1.0, "high").limits(level).high
    return tipping_of(worst, Limits(log.point, low, high))


def _proved(
    certificate: tuple[Certificate, str] | None, tilt: SegmentTilt | None
) -> Yardstick | None:
    """What uniform ratings say of Γ: the limit they prove, or the most that the tilt they measure
    may be."""
    rows = []
    if certificate is not None and certificate[0].lower > 1.0:
        rows.append(
            Yardstick(
                "what uniform ratings prove to be hidden, or missed by the propensity",
                certificate[0].lower,
            )
        )
    if tilt is not None:
        most = float(np.exp(max(abs(tilt.low), abs(tilt.high))))
        rows.append(Yardstick("the most that the tilt measured by uniform ratings may be", most))
    return max(rows, key=lambda row: row.gamma, default=None)


def _tilt(inputs: AuditInputs, bootstrap: Bootstrap) -> SegmentTilt | None:
    """The tilt over all pairs with its interval."""
    if inputs.tilt is None or inputs.uniform is None:
        return None
    tail = 50.0 * (1.0 - inputs.level)
    low, high = np.percentile(inputs.tilt.draws(bootstrap.rng), [tail, 100.0 - tail], axis=0)[:, 0]
    slope = float(inputs.tilt.slope[0])
    return SegmentTilt(
        "all pairs", len(inputs.uniform), len(inputs.seen), slope, float(low), float(high)
    )


def _control(inputs: AuditInputs) -> dict[str, Any]:
    """Whether the range at Γ = 1 is the plain weighted mean, computed another way."""
    pairs = inputs.arrays.main
    weighted = float(np.average(pairs.value, weights=1.0 / pairs.propensity))
    span = sharp(pairs, 1.0)
    holds = bool(np.allclose([span.low, span.high], weighted, rtol=1e-6, atol=1e-9))
    sign = "=" if holds else "≠"
    words = f"Control: the range at Γ = 1 is the unadjusted weighted estimate, {span.low:.6g} {sign} {weighted:.6g}."
    return {"at_gamma_1": span.low, "weighted": weighted, "holds": holds, "words": words}


def _limit(tips: Sequence[Tipping | None], shown: float) -> float:
    """The smallest end of the Γ grid that shows the tipping points and the deciding yardstick with
    room to spare."""
    marks = [min(shown, LIMITS[-1])]
    marks += [
        value
        for tip in tips
        if tip is not None
        for value in (tip.gamma, tip.sharp)
        if value is not None and value < LIMITS[-1]
    ]
    return next((limit for limit in LIMITS if limit >= 1.2 * max(marks)), LIMITS[-1])


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
        "lists": inputs.slots.lists,
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
