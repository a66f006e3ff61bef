"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn
the conclusion?

One call goes: `audit` → rows that no model has seen (`rows`) → `AuditInputs` (scores, lists,
propensities, Γ) → envelopes and tipping points of the log, what uniform rows measure, yardsticks →
leads with their verdicts → `AuditResult`. Segments and diagnostics explain, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from puidrec.auditing.envelope import (
    Tipping,
    gamma_grid,
    sharp,
    tipping_of,
    tipping_point,
)
from puidrec.auditing.estimates import Bootstrap, Limits
from puidrec.auditing.inputs import AuditInputs
from puidrec.auditing.measured import measure_error, measure_ndcg, measure_slots
from puidrec.auditing.models import AuditedModel, check_comparable, names_of
from puidrec.auditing.parts import Known, parts_of
from puidrec.auditing.result import METRICS, AuditResult
from puidrec.auditing.rows import Asked, Judged, choose_rows, fit_parts
from puidrec.auditing.slots import MAX_PAIRS, SlotLead
from puidrec.auditing.verdict import Lead, Yardstick, deciding, replaced, single_sentence
from puidrec.data.dataset import Dataset
from puidrec.data.split import Protocol, Split
from puidrec.errors import InputError
from puidrec.exposure import require_propensity
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.gamma import GammaSpec, resolve_gamma
from puidrec.exposure.tilt import SegmentTilt

Metric = Literal["auto", "error", "ranking", "precision", "ndcg"]
"""auto: squared error, or ranking where scores are not on the scale of ratings."""
LIMITS = (2.0, 3.0, 5.0, 10.0, 20.0)
"""Where a grid of Γ may end."""


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
    bootstrap: Bootstrap,
    limit: float | None,
    metric: Metric,
    believe: float | None,
) -> AuditResult:
    """The leads first, then what they rest on."""
    certificate, tilt = inputs.certificate(bootstrap.rng), _tilt(inputs)
    features = inputs.nominal.evidence.calibration
    yardstick = deciding(believe, _proved(certificate, tilt), features)
    known = Known(yardstick, believe, certificate, tilt)
    asked = (
        ("ranking" if inputs.mapped or inputs.one_outcome else "error")
        if metric == "auto"
        else metric
    )
    leads = leads_of(inputs, names, yardstick) if inputs.two else {}
    if asked not in leads:  # one model alone, or nothing to rank
        asked = "error"
    star = leads[asked].tipping_point if leads else None
    grid = gamma_grid(limit or _limit([lead.tipping for lead in leads.values()], known.shown))
    parts = parts_of(inputs, names, bootstrap, grid, known, star)
    alone = ""
    if not inputs.two:
        pairs, gamma = inputs.arrays.main, known.shown
        span = sharp(pairs, gamma)
        alone = single_sentence(names[0], pairs.point, span.low, span.high, gamma)
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


def _tilt(inputs: AuditInputs) -> SegmentTilt | None:
    """The tilt over all pairs with its interval."""
    if inputs.tilt is None or inputs.uniform is None:
        return None
    slope, (low, high) = float(inputs.tilt.slope[0]), inputs.tilt.limits(inputs.level)[:, 0]
    return SegmentTilt(
        "all pairs", len(inputs.uniform), len(inputs.seen), slope, float(low), float(high)
    )


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
