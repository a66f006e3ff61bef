"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn
the conclusion?

One call goes: `audit` → rows that no model has seen (`rows`) → `AuditInputs` (scores, lists,
propensities, Γ) → envelopes and tipping points of the log, what uniform rows measure, yardsticks →
leads with their verdicts → `AuditResult`. Segments and diagnostics explain, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from puidrec.auditing.diagnostics import diagnose, gamma_of_groups, segments
from puidrec.auditing.envelope import (
    KINDS,
    Tipping,
    band,
    gamma_grid,
    over_grid,
    sharp,
    simultaneous_band,
    tipping_of,
    tipping_point,
)
from puidrec.auditing.estimates import Curve, Limits
from puidrec.auditing.inputs import AuditInputs
from puidrec.auditing.measured import measure_error, measure_ndcg, measure_slots, settlement
from puidrec.auditing.models import AuditedModel, check_comparable, names_of
from puidrec.auditing.result import METRICS, AuditResult
from puidrec.auditing.rows import Asked, Judged, choose_rows, fit_parts
from puidrec.auditing.slots import MAX_PAIRS, SlotLead
from puidrec.auditing.verdict import (
    Lead,
    Yardstick,
    benchmarks,
    deciding,
    group_calibration,
    replaced,
    scenarios,
    single_sentence,
)
from puidrec.data.dataset import Dataset
from puidrec.data.split import Protocol, Split
from puidrec.errors import InputError
from puidrec.evaluation.significance import checked_level, resampled_sums
from puidrec.exposure import require_propensity
from puidrec.exposure.gamma import GammaSpec, resolve_gamma
from puidrec.rng import generator

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
    protocol: str | Protocol | None = None,
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
    """Bound what the log says of a model, or of its lead over another, under hidden confounding.

    model, against: a fitted `Recommender`, any object with `predict(users, items)`, a function of
    these, a table `user_id, item_id, score`, or the path of one. Rows new to both judge them.
    split: the one that both were trained with; by default what the first model of this package says
    (`split_of`; protocol: another one in its place, `rd` where no model says any). Its held-out
    logged rows are used where it has some; else models of this package are trained again on all but
    one of five parts of the log, in turn. folds: train again in any case, in so many parts (1: only
    without one of them). rows: a table of logged pairs to judge by. unseen: your word that a model
    which cannot be trained again here has seen none of the logged ratings.
    metric: what `verdict` and `tipping_point` are about. k: where lists are cut. believe: the
    largest Γ that you think possible; a lead that survives it is called robust. Without it, what
    uniform ratings or recorded features say of Γ decides; if there are none, only Γ* is told.
    gamma: the rule of the personalised shape Γ_ui. gamma_limit: the largest Γ looked at; by default
    wide enough for the tipping point and all yardsticks. groups: named groups of feature columns,
    each a yardstick. propensity, min_propensity: nominal propensities and where they are clipped
    (by default at 0.01, or a tenth of the overall rate if less). replicates: bootstrap draws of
    users for the bands (0: none). names: what to call the two. progress: told what is computed.
    """
    _check(replicates, level, gamma_limit, metric, k, believe)
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
    how = propensity, min_propensity, gamma, rng, k, groups, level, replicates
    inputs = AuditInputs(data, chosen, judged, fits, *how)
    called = names_of(models[0], models[1] if len(models) > 1 else None, names)
    return _result(inputs, called, gamma_limit, metric, believe)


def _check(
    replicates: int,
    level: float,
    gamma_limit: float | None,
    metric: str,
    k: int,
    believe: float | None,
) -> None:
    """Refuse what cannot be asked, before any work."""
    for name, value, least in (("replicates", replicates, 0), ("k", k, 1)):
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(
                f"{name} must be a whole number", found=value, expected=f"{least} or more"
            )
    checked_level(level)
    if metric not in ("auto", *METRICS):
        raise InputError(
            "unknown metric of an audit", found=metric, expected=f"auto, {', '.join(METRICS)}"
        )
    if gamma_limit is not None:
        gamma_grid(gamma_limit, 2)
    deciding(believe, None, None)


def _split(
    models: tuple[AuditedModel, ...], data: Dataset, protocol: str | Protocol | None
) -> Split:
    """The split that a model says it was trained with, or by another protocol.

    Where every logged row trained, uniform rows are divided all the same: a model that learned from
    none of them is measured on those that test.
    """
    ours = next((one.model for one in models if hasattr(one.model, "split_of")), None)
    if ours is None:
        return data.split(protocol or "rd")
    own: Split = ours.split_of(data)
    if protocol is None if len(own.test) else own.selection == "logged":
        return own
    return data.split(protocol or "rd", own.seed, select=ours.settings.select)


def plan_of(models: tuple[AuditedModel, ...], judged: Judged, data: Dataset) -> str:
    """What will be computed, and about how long it takes beside training, on one core."""
    trained = sum(model.refits for model in models) * len(judged.trained_on) if judged.refit else 0
    listed = min(data.n_pairs, MAX_PAIRS) * len(models) * len(judged.trained_on)
    seconds = 2.0 + 4e-6 * len(data.logged) + 4e-6 * len(judged.rows) + 3e-7 * listed
    gib = 0.4 + 4e-7 * len(data.logged)
    training = f"{trained} fits to train" if trained else "nothing to train"
    return (
        f"judging by {len(judged.rows):,} rows, {training}, lists from {listed:,} pairs: about "
        f"{seconds:.0f} s and {gib:.1f} GiB" + (" beside training" if trained else "")
    )


def _result(
    inputs: AuditInputs,
    names: tuple[str, str],
    limit: float | None,
    metric: Metric,
    believe: float | None,
) -> AuditResult:
    """The leads first, then what they rest on, in plain values: the content of `audit.json`."""
    evidence = inputs.nominal.evidence
    known = deciding(believe, _proved(inputs), evidence.calibration)
    shown = known.gamma if known is not None else SHOWN_GAMMA
    leads = leads_of(inputs, names, known) if inputs.two else {}
    asked: str = metric
    if metric == "auto":
        asked = "ranking" if inputs.mapped or inputs.one_outcome else "error"
    if asked not in leads:  # one model alone, or nothing to rank
        asked = "error"
    lead = leads.get(asked)
    star = lead.tipping_point if lead is not None else None
    grid = gamma_grid(limit or _limit([one.tipping for one in leads.values()], shown))
    tilt = inputs.tilt_limits
    parts = {
        "model": inputs.fits[0].own.describe(names[0]),
        "against": inputs.fits[1].own.describe(names[1]) if inputs.two else None,
        "data": _data(inputs),
        "rows": _rows(inputs),
        "leakage": {
            "model": inputs.leaks[0],
            "against": inputs.leaks[1] if inputs.two else None,
            "words": inputs.leak(names),
        },
        "control": _control(inputs),
        "gamma_grid": grid.tolist(),
        "envelopes": _envelopes(inputs, grid),
        "benchmarks": benchmarks(evidence.calibration, star),
        "groups": benchmarks(group_calibration(evidence, inputs.groups), star),
        "scenarios": scenarios(evidence.counts.rate, star),
        "reference": None if known is None else asdict(known),
        "believe": believe,
        "certificate": _certificate(inputs),
        "tilt": None if tilt is None else tilt._asdict() | {"sentence": _tilt_words(*tilt[3:])},
        "uniform": None if inputs.uniform_test is None else {"n": len(inputs.uniform_test)},
        "sequential": _sequential(inputs, names),
        **gamma_of_groups(inputs),
        "segments": segments(inputs, shown),
        "diagnostics": diagnose(
            inputs.arrays.item,
            inputs.arrays.propensity,
            inputs.nominal.seen_propensity,
            evidence.counts,
            inputs.nominal.propensity.predict,
            about=inputs.nominal.propensity.describe(),
            rng=inputs.seed,
        ),
    }
    alone = ""
    if not inputs.two:
        pairs = inputs.arrays.main
        alone = single_sentence(names[0], pairs.point, *sharp(pairs, shown), shown)
    return AuditResult(names, asked, leads, parts, alone)


def leads_of(
    inputs: AuditInputs, names: tuple[str, str], known: Yardstick | None
) -> dict[str, Lead]:
    """The lead by each metric, squared error first."""
    arrays, leak, level, k = inputs.arrays, inputs.leak(names), inputs.level, inputs.k
    tipping = tipping_point(arrays.gaps, arrays.user, level)
    ended = replaced(arrays.gaps.value, arrays.least_favourable, 1.0 / arrays.propensity)
    nothing, measured = inputs.one_outcome or leak, measure_error(inputs)
    found = {"error": Lead("squared error", tipping, measured, nothing, known, ended)}
    for name, metric, title in (("ranking", "dcg", "DCG"), ("precision", "precision", "precision")):
        log, measured = inputs.slot_lead(metric), measure_slots(inputs, metric)
        tipping, empty = _slot_tipping(log, level), log.gain.slots + log.loss.slots
        found[name] = Lead(f"{title}@{k}", tipping, measured, leak, known, None, empty)
    ndcg = measure_ndcg(inputs)
    return found | ({"ndcg": Lead(f"NDCG@{k}", None, ndcg)} if ndcg is not None else {})


def _slot_tipping(log: SlotLead, level: float) -> Tipping:
    """Γ* of a lead by slots."""

    def worst(gamma: float) -> Limits:
        return log.at(gamma, "low").limits(level)

    low, high = worst(1.0).low, log.at(1.0, "high").limits(level).high
    return tipping_of(worst, Limits(log.point, low, high))


def _proved(inputs: AuditInputs) -> Yardstick | None:
    """What uniform ratings say of Γ: the limit they prove, or the most that the tilt they measure
    may be."""
    rows, certificate, tilt = [], inputs.certificate, inputs.tilt_limits
    if certificate is not None and certificate.lower > 1.0:
        words = "what uniform ratings prove to be hidden, or missed by the propensity"
        rows.append(Yardstick(words, certificate.lower))
    if tilt is not None:
        most = float(np.exp(max(abs(tilt.low), abs(tilt.high))))
        rows.append(Yardstick("the most that the tilt measured by uniform ratings may be", most))
    return max(rows, key=lambda row: row.gamma, default=None)


def _limit(tips: Sequence[Tipping | None], shown: float) -> float:
    """The smallest end of the Γ grid that shows the tipping points and the deciding yardstick with
    room to spare."""
    values = [value for tip in tips if tip is not None for value in (tip.gamma, tip.sharp or 1.0)]
    most = max([min(shown, LIMITS[-1]), *(value for value in values if value < LIMITS[-1])])
    return next((limit for limit in LIMITS if limit >= 1.2 * most), LIMITS[-1])


# What the leads rest on


def _control(inputs: AuditInputs) -> dict[str, Any]:
    """Whether the range at Γ = 1 is the plain weighted mean, computed another way."""
    pairs = inputs.arrays.main
    weighted = float(np.average(pairs.value, weights=1.0 / pairs.propensity))
    span = sharp(pairs, 1.0)
    holds = bool(np.allclose(span, weighted, rtol=1e-6, atol=1e-9))
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


def _rows(inputs: AuditInputs) -> dict[str, Any]:
    stratum = inputs.arrays.main.stratum
    return {
        "source": inputs.judged.source,
        "part": inputs.judged.words,
        "n": len(inputs.rows),
        "users": int(np.count_nonzero(np.bincount(inputs.rows.user))),
        "strata": 1 if stratum is None else int(stratum.max()) + 1,
        "outcome": "label" if inputs.target == "binary" else "rating, scaled to 0..1",
        "lists": "catalogue" if inputs.scorable else "rated",
        "listed_users": int(inputs.slots.n_lists // max(len(inputs.judged.trained_on), 1)),
        "log_users": int(np.count_nonzero(np.bincount(inputs.seen.user))),
        "rows_in_lists": int(inputs.slots.row.size),
        "k": inputs.k,
        "mapped": inputs.mapped,
        "scales": ", ".join(inputs.scales),
        "uses_uniform": inputs.nominal.propensity.uses_uniform,
        "replicates": int(inputs.replicates),
        "level": inputs.level,
    }


def _envelopes(inputs: AuditInputs, grid: np.ndarray) -> dict[str, Any]:
    """Ranges over Γ, with their bands: of every mean (the gap, or the loss of one model, first),
    then of every lead and value by slots, which have one kind: the exact one."""
    arrays, found = inputs.arrays, {}
    means = {arrays.name: arrays.main}
    if arrays.against is not None:
        means |= {
            "model_loss": arrays.losses(arrays.model),
            "against_loss": arrays.losses(arrays.against),
        }
    draw = inputs.replicates, inputs.level, inputs.seed
    for name, pairs in means.items():
        curves: dict[str, Any] = {"point": pairs.point}
        for kind in KINDS:
            outer = band(pairs, kind, grid, arrays.user, *draw) if inputs.replicates else None
            curves[kind] = _ends(over_grid(pairs, kind, grid), outer)
        found[name] = curves
    for metric in ("dcg", "precision"):
        if inputs.two:
            found[f"{metric}_gap"] = _slot_curve(inputs.slot_lead(metric), grid, inputs)
        for which, name in enumerate(("model", "against")[: len(inputs.fits)]):
            lead = inputs.slot_lead(metric, slots=inputs.slots.alone(which))
            found[f"{name}_{metric}"] = _slot_curve(lead, grid, inputs)
    return found


def _slot_curve(slots: SlotLead, grid: np.ndarray, inputs: AuditInputs) -> dict[str, Any]:
    """The range of a lead or a value by slots."""
    curve, outer = slots.curve(grid), None
    if inputs.replicates:
        draw = generator(inputs.seed, "slots")
        drawn = resampled_sums(slots.sums, inputs.replicates, draw)
        low, high = (
            (getattr(curve, end), slots.values(grid, end, drawn)) for end in ("low", "high")
        )
        outer = simultaneous_band(low, high, inputs.level)
    return {"point": slots.point, "most": slots.size, "normalised": _ends(curve, outer)}


def _ends(curve: Curve, outer: Curve | None) -> dict[str, Any]:
    found: dict[str, Any] = {"low": curve.low.tolist(), "high": curve.high.tolist()}
    return found if outer is None else found | {"band": _ends(outer, None)}


def _sequential(inputs: AuditInputs, names: tuple[str, str]) -> dict[str, Any] | None:
    """What the random ratings settle so far; None without them, or without another model."""
    found = settlement(inputs, inputs.seed)
    if found is None:
        return None
    kept = ("leader", "settled_after", "n", "more_needed", "difference")
    return {name: getattr(found, name) for name in kept} | {
        "e_value": float(found.evidence[-1]),
        "sentence": found.say(*names),
    }


def _tilt_words(*ends: float) -> str:
    factor, low, high = np.exp(ends)
    return (
        f"Measured tilt: the odds of being seen change by a factor of {factor:.2f} "
        f"(95 % {low:.2f} to {high:.2f}) from the lowest rating to the highest."
    )


def _certificate(inputs: AuditInputs) -> dict[str, Any] | None:
    found = inputs.certificate
    if found is None:
        return None
    kept = ("side", "name", "n_uniform", "p_value")
    return {
        "low": found.lower,
        "kind": "rating levels" if inputs.certified == "rating" else "labels",
        "adjusted_by": inputs.propensity_name,
        **{
            name: getattr(found, name)
            for name in ("n_uniform", "confidence", "finding", "sentence")
        },
        "segments": [
            {"low": row.lower} | {name: getattr(row, name) for name in kept}
            for row in found.segments
        ],
    }
