"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn the conclusion?

One call goes: `audit` → rows that no model has seen (`unseen`) → `AuditInputs` (scores, ranks, propensities, Γ) →
envelopes, tipping points, yardsticks, segments and diagnostics of these → verdicts and their sentence → `Audit`, whose
values are the content of `audit.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from puidrec.auditing.diagnostics import diagnose
from puidrec.auditing.envelope import (
    KINDS,
    Bootstrap,
    Curve,
    Kind,
    Pairs,
    Strength,
    band,
    gamma_grid,
    over_grid,
    over_kappa,
    personalised,
    sharp,
    simultaneous_band,
)
from puidrec.auditing.inputs import AuditArrays, AuditInputs, describe_limits
from puidrec.auditing.models import AuditedModel, check_comparable, names_of
from puidrec.auditing.ndcg import LikedRows
from puidrec.auditing.ranks import Recommended, recommended, seen_items
from puidrec.auditing.result import Audit
from puidrec.auditing.segments import SegmentSide, changes, largest, segment_side
from puidrec.auditing.tipping import PersonalTipping, Tipping, tipping_kappa, tipping_of, tipping_point
from puidrec.auditing.unseen import FOLDS, Asked, Progress, choose_rows, fit_parts
from puidrec.auditing.verdict import FLOOR, Lead, Yardsticks, judge, sentence, single_sentence
from puidrec.auditing.words import limits_of
from puidrec.auditing.yardsticks import benchmarks, replaced, scenarios, yardsticks_of
from puidrec.data.dataset import Dataset
from puidrec.data.protocol import Protocol
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.gamma import GammaSpec
from puidrec.rng import Rng

Metric = Literal["auto", "error", "ranking", "ndcg"]
"""auto: squared error, or ranking where scores are not on the scale of ratings."""
METRICS = ("error", "ranking", "ndcg")
LIMITS = (2.0, 3.0, 5.0, 10.0, 20.0)
"""Where a grid of Γ may end."""
PERSONAL = ("loss_gap", "model_loss", "dcg_gap", "model_dcg")
"""Quantities whose envelopes are also drawn over κ (the losses of both models of a comparison are not)."""
BAND_OF: Kind = "normalised"
N_KAPPA, FEW_KAPPA, MANY_ROWS = 21, 7, 2_000_000


def audit(
    model: Any,
    data: Dataset,
    against: Any = None,
    *,
    split: Split | None = None,
    rows: Any = None,
    unseen: bool = False,
    folds: int = FOLDS,
    metric: Metric = "auto",
    k: int = 10,
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
) -> Audit:
    """Bound what the log says of a model, or of its lead over another, if something hidden drove the log.

    model, against: a fitted `Recommender`, any object with `predict(users, items)`, a function of these, a table
    `user_id, item_id, score`, or the path of one. Their errors are judged by rows that none of them has seen:
    split: the one that both were trained with; by default that of their protocol, seed and `select`. Its held-out
    logged rows are used where it has some; else models of this package are trained again on all but one of `folds`
    parts of the log, in turn (folds=1: without one random part, once). rows: a table of logged pairs to judge by.
    unseen: your word that a model which cannot be trained again here has seen none of the logged ratings.
    metric: what `verdict` and `tipping_point` are about. k: where ranked lists are cut.
    gamma: the rule of the personalised shape Γ_ui. gamma_limit: the largest Γ looked at; by default wide enough for
    the tipping point and all yardsticks. groups: named groups of feature columns, each a yardstick. propensity,
    min_propensity: nominal propensities and where they are clipped (by default at 0.01, or a tenth of the overall rate
    where that is less). replicates: bootstrap draws of users for the bands; 0 draws none. names: what to call the two.
    """
    _check(replicates, level, gamma_limit, metric, k)
    models = tuple(AuditedModel.of(one, data) for one in (model, against) if one is not None)
    if len(models) > 1:
        check_comparable(models[0], models[1], split is not None)
    chosen = split or _split(models, data, protocol)
    judged = choose_rows(models, data, chosen, Asked(rows, unseen, folds, split is not None, rng))
    fits = [fit_parts(one, judged, data, progress) for one in models]
    inputs = AuditInputs(
        data, chosen, judged, fits[0], fits[1] if len(fits) > 1 else None, propensity, min_propensity, gamma, rng, k,
        groups, level,
    )  # fmt: skip
    called = names_of(models[0], models[1] if len(models) > 1 else None, names)
    return Audit(audit_values(inputs, called, Bootstrap(replicates, level, rng), gamma_limit, metric))


def _check(replicates: int, level: float, gamma_limit: float | None, metric: str, k: int) -> None:
    if not isinstance(replicates, int | np.integer) or replicates < 0:
        raise InputError("replicates must be a whole number", found=replicates, expected="0 or more")
    if not 0.0 < level < 1.0:
        raise InputError("confidence level out of range", found=level, expected="between 0 and 1")
    if metric not in ("auto", *METRICS):
        raise InputError("unknown metric of an audit", found=metric, expected=f"auto, {', '.join(METRICS)}")
    if not isinstance(k, int | np.integer) or k < 1:
        raise InputError("k must be a whole number", found=k, expected="1 or more")
    if gamma_limit is not None:
        gamma_grid(gamma_limit, 2)


def _split(models: tuple[AuditedModel, ...], data: Dataset, protocol: str | Protocol) -> Split:
    """The split that the models say they were trained with."""
    known = next((model for model in models if "select" in model.params), models[0])
    select = known.params.get("select", "uniform")
    return data.split(protocol, int(known.params.get("seed") or 0), select=select)


def audit_values(
    inputs: AuditInputs, names: tuple[str, str], bootstrap: Bootstrap, limit: float | None, metric: Metric = "auto"
) -> dict[str, Any]:
    """The content of `audit.json` in plain values: the first parts decide, the rest explain."""
    arrays, evidence = inputs.arrays, inputs.nominal.evidence
    certificate = inputs.certificate(bootstrap.rng)
    proved = certificate[0].lower if certificate is not None else 1.0
    rate = evidence.counts.rate
    yardsticks = yardsticks_of(evidence.calibration, inputs.group_calibration, rate, proved)
    asked = ("ranking" if inputs.mapped or inputs.one_outcome else "error") if metric == "auto" else metric
    leads = _leads(inputs, names) if arrays.against is not None else {}
    if asked not in leads:  # one model alone, or no liked row to rank
        asked = "error"
    star = leads[asked].tipping.gamma if leads else None
    kappa = None
    if leads:
        kappa = tipping_kappa(arrays.gaps, arrays.log_gamma, arrays.user, bootstrap)
    grid = gamma_grid(limit or _limit([lead.tipping for lead in leads.values()], yardsticks))
    listed = _recommended(inputs)
    shown = {name: _lead(lead, yardsticks, inputs) for name, lead in leads.items()}
    if leads:
        shown["error"]["tipping"] |= _kappa(kappa, arrays)
    values: dict[str, Any] = {
        "version": 2,
        **_conclusion(inputs, names, leads, asked, yardsticks),
        **{name: shown.get(name) for name in METRICS},
        "tipping": shown[asked]["tipping"] if leads else None,
        "model": inputs.model.own.describe(names[0]),
        "against": inputs.against.own.describe(names[1]) if inputs.against is not None else None,
        "data": _data(inputs),
        "rows": _rows(inputs, bootstrap),
        "leakage": _leakage(inputs, names),
        "gamma_grid": grid.tolist(),
        **_curves(inputs, grid, bootstrap),
        "benchmarks": benchmarks(evidence.calibration, star),
        "groups": benchmarks(inputs.group_calibration, star),
        "scenarios": scenarios(rate, star),
        "reference": {"words": yardsticks.largest.words, "gamma": yardsticks.largest.gamma},
        "certificate": _certificate(inputs, *certificate) if certificate is not None else None,
        "uniform": _uniform(inputs),
        "sequential": _sequential(inputs, names, bootstrap.rng),
        **_gamma(inputs),
        "segments": _segments(inputs, listed),
        "diagnostics": diagnose(
            arrays.item, arrays.propensity, inputs.nominal.seen_propensity, evidence.counts,
            inputs.nominal.propensity.predict, (inputs.data.n_users, inputs.data.n_items),
            about=inputs.nominal.propensity.describe(), rng=bootstrap.rng,
        ),
    }  # fmt: skip
    values["limits"] = limits_of(values, inputs.nominal.propensity.uses_uniform)
    return values


def _leads(inputs: AuditInputs, names: tuple[str, str]) -> dict[str, Lead]:
    """The lead by each metric, the one that error has first."""
    arrays, uniform, leak = inputs.arrays, inputs.uniform_differences, inputs.leak(names)
    n = 0 if inputs.uniform_test is None else len(inputs.uniform_test)
    tips = {"error": tipping_point(arrays.gaps, arrays.user, inputs.level)}
    if inputs.ranked.rows.size:
        tips["ranking"] = tipping_point(inputs.dcg, arrays.user[inputs.ranked.rows], inputs.level)
    liked = inputs.liked
    if liked.n_users:
        tips["ndcg"] = tipping_of(lambda gamma: liked.extreme(gamma, "low") / liked.n_users, inputs.level)
    words = {"error": "squared error", "ranking": f"DCG@{inputs.k}", "ndcg": f"NDCG@{inputs.k}"}
    gaps = {"error": "loss_gap", "ranking": "dcg_gap", "ndcg": "ndcg_gap"}
    return {
        name: Lead(words[name], tipping, uniform.get(gaps[name]), n, (name == "error" and inputs.one_outcome) or leak)
        for name, tipping in tips.items()
    }  # fmt: skip


def _conclusion(
    inputs: AuditInputs, names: tuple[str, str], leads: dict[str, Lead], asked: str, yardsticks: Yardsticks
) -> dict[str, Any]:
    """Verdict and sentence, of the metric asked for and beside it of the other one."""
    if leads:
        beside = "error" if asked != "error" else "ranking"
        others = (leads[beside],) if beside in leads else ()
        words = sentence(names, leads[asked], others, yardsticks)
        return {"sentence": words, "verdict": judge(leads[asked], yardsticks), "metric": asked}
    gamma, pairs = yardsticks.largest.gamma, inputs.arrays.main
    span = sharp(pairs, gamma)
    words = single_sentence(names[0], pairs.point, span.low, span.high, gamma)
    return {"sentence": words, "verdict": "single", "metric": asked}


def _lead(lead: Lead, yardsticks: Yardsticks, inputs: AuditInputs) -> dict[str, Any]:
    """A lead in plain values."""
    uniform = None if lead.uniform is None else {**describe_limits(lead.uniform), "n": lead.n_uniform}
    return {
        "metric": lead.metric, "verdict": judge(lead, yardsticks), "tipping": _tipping(lead.tipping),
        "lead": describe_limits(lead.tipping.lead), "uniform": uniform, "replaced": _replaced(lead, inputs),
    }  # fmt: skip


def _replaced(lead: Lead, inputs: AuditInputs) -> int | None:
    """Ratings whose replacement ends the lead, for the metrics that are means over pairs."""
    arrays = inputs.arrays
    if lead.metric == "squared error":
        return replaced(arrays.gaps.value, arrays.least_favourable, 1.0 / arrays.propensity)
    if lead.metric.startswith("DCG"):
        pairs, known = inputs.dcg, inputs.ranked.known * inputs.ranked.length
        return replaced(pairs.value, np.minimum(known, 0.0), 1.0 / pairs.propensity)
    return None


def _limit(tips: Sequence[Tipping], yardsticks: Yardsticks) -> float:
    """The smallest end of the Γ grid that shows the tipping points and every yardstick with room to spare."""
    marks = [yardsticks.largest.gamma]
    marks += [
        value for tip in tips for value in (tip.gamma, tip.sharp) if value is not None and value < LIMITS[-1]
    ]  # fmt: skip
    return next((limit for limit in LIMITS if limit >= 1.2 * max(marks)), LIMITS[-1])


def _recommended(inputs: AuditInputs) -> Recommended | None:
    """How recommendations of the models as they are differ; None where they cannot rank all items."""
    scorers = [fits.own.scorer(inputs.data) for fits in inputs.fits]
    if any(scorer is None for scorer in scorers):
        return None
    seen = seen_items(inputs.seen.user, inputs.seen.item, inputs.data.n_users)
    assert scorers[0] is not None  # noqa: S101 (looked at above)
    return recommended(
        inputs.ranked_users, seen, (scorers[0], scorers[1] if len(scorers) > 1 else None), inputs.data.n_items
    )


def _data(inputs: AuditInputs) -> dict[str, Any]:
    data, split = inputs.data, inputs.split
    return {
        "name": data.name, "sha256": data.sha256, "n_users": data.n_users, "n_items": data.n_items,
        "n_logged": len(inputs.seen), "n_uniform": 0 if inputs.uniform is None else len(inputs.uniform),
        "protocol": split.protocol.name, "seed": split.seed,
        "positive_rate": float(inputs.seen.label.mean()) if len(inputs.seen) else None,
    }  # fmt: skip


def _rows(inputs: AuditInputs, bootstrap: Bootstrap) -> dict[str, Any]:
    stratum = inputs.arrays.main.stratum
    return {
        "source": inputs.judged.source, "part": inputs.judged.words, "n": len(inputs.rows),
        "users": int(np.count_nonzero(np.bincount(inputs.rows.user))),
        "strata": 1 if stratum is None else int(stratum.max()) + 1,
        "outcome": "label" if inputs.model.own.target == "binary" else "rating, scaled to 0..1",
        "lists": inputs.ranked.lists, "mapped": inputs.mapped, "scales": ", ".join(inputs.scales),
        "replicates": int(bootstrap.replicates), "level": bootstrap.level,
    }  # fmt: skip


def _leakage(inputs: AuditInputs, names: tuple[str, str]) -> dict[str, Any]:
    """What each model explains of the ratings beyond user and item means, and whether that is too much."""
    shares = inputs.leaks
    return {
        "model": shares[0], "against": shares[1] if len(shares) > 1 else None, "words": inputs.leak(names),
    }  # fmt: skip


def _uniform(inputs: AuditInputs) -> dict[str, Any] | None:
    found = inputs.uniform_differences
    rows = inputs.uniform_test
    return {"n": len(rows), **{key: describe_limits(v) for key, v in found.items()}} if rows is not None else None


@dataclass(frozen=True)
class BoundedMean:
    """A mean over D that an audit bounds: its pairs, their users, and their log Γ."""

    pairs: Pairs
    user: np.ndarray
    log_gamma: np.ndarray


def bounded_means(inputs: AuditInputs) -> Iterator[tuple[str, BoundedMean]]:
    """The gap (or the loss of one model) first, then DCG, then what the gap is made of; one at a time, for memory."""
    arrays, rows = inputs.arrays, inputs.ranked.rows
    yield arrays.name, BoundedMean(arrays.main, arrays.user, arrays.log_gamma)
    if rows.size:
        name = "model_dcg" if arrays.against is None else "dcg_gap"
        yield name, BoundedMean(inputs.dcg, arrays.user[rows], arrays.log_gamma[rows])
    if arrays.against is not None:
        for name, prediction in (("model_loss", arrays.model), ("against_loss", arrays.against)):
            yield name, BoundedMean(arrays.losses(prediction), arrays.user, arrays.log_gamma)


def _curves(inputs: AuditInputs, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """Envelopes over Γ of every mean, and over κ (Γ_ui^κ) where Γ differs from pair to pair."""
    arrays = inputs.arrays
    kappas = kappa_grid(arrays.log_gamma, float(grid[-1])) if arrays.personal else None
    envelopes, personal = {}, {}
    for name, mean in bounded_means(inputs):
        curves = {kind: over_grid(mean.pairs, kind, grid) for kind in KINDS}
        envelopes[name] = _with_bands(mean, curves, [float(g) for g in grid], bootstrap)
        if kappas is not None and name in PERSONAL and (arrays.against is None or name.endswith("gap")):
            curves = over_kappa(mean.pairs, mean.log_gamma, kappas)
            strengths = [personalised(mean.log_gamma, float(k)) for k in kappas] if bootstrap.replicates else []
            personal[name] = _with_bands(mean, curves, strengths, bootstrap)
    if inputs.liked.n_users:
        envelopes["model_ndcg" if arrays.against is None else "ndcg_gap"] = _ndcg(inputs.liked, grid, bootstrap)
    shape = {"kappa_grid": kappas.tolist(), "envelopes": personal} if kappas is not None else None
    return {"envelopes": envelopes, "personal": shape}


def _ndcg(liked: LikedRows, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """The range of NDCG@K: one kind, since the weights of a user decide together."""
    ends = [np.stack([liked.extreme(float(gamma), end) for gamma in grid], axis=1) for end in ("low", "high")]
    found: dict[str, Any] = {"point": float(ends[0][:, 0].mean())}
    found["box"] = _ends(Curve(ends[0].mean(axis=0), ends[1].mean(axis=0)))
    if bootstrap.replicates:
        columns = []
        for values in ends:
            both = np.ones((values.shape[0], 2 * values.shape[1]))
            both[:, 0::2] = values
            columns.append(both)
        found["box"]["band"] = _ends(simultaneous_band(columns[0], columns[1], bootstrap))
        found |= {"band": found["box"]["band"], "band_of": "box"}
    return found


def kappa_grid(log_gamma: np.ndarray, limit: float) -> np.ndarray:
    """κ from 0 to where the mean Γ_ui^κ of the rows reaches the Γ limit, κ = 1 among them where it is below that."""
    mean = float(log_gamma.mean())
    top = max(1.0, float(np.log(limit)) / mean) if mean > 0.0 else 1.0
    grid = np.linspace(0.0, min(top, 20.0), N_KAPPA if log_gamma.size <= MANY_ROWS else FEW_KAPPA)
    grid[np.abs(grid - 1.0).argmin()] = 1.0
    return grid


def _with_bands(
    mean: BoundedMean, curves: dict[Kind, Curve], strengths: Sequence[Strength], bootstrap: Bootstrap
) -> dict[str, Any]:
    """The envelopes of a mean as plain values, each with its band over resampled users."""
    found: dict[str, Any] = {"point": mean.pairs.point}
    for kind, curve in curves.items():
        found[kind] = _ends(curve)
        if bootstrap.replicates:
            found[kind]["band"] = _ends(band(mean.pairs, kind, strengths, mean.user, bootstrap))
    if bootstrap.replicates:
        found |= {"band": found[BAND_OF]["band"], "band_of": BAND_OF}
    return found


def _ends(curve: Curve) -> dict[str, list[float]]:
    return {"low": curve.low.tolist(), "high": curve.high.tolist()}


def _tipping(tipping: Tipping) -> dict[str, Any]:
    """Γ* with its interval; what is infinite is null and flagged."""
    marks = {"gamma": tipping.gamma, "low": tipping.low, "high": tipping.high}
    if tipping.sharp is not None:
        marks["sharp"] = tipping.sharp
    found = {**_finite(marks), "no_lead": bool(tipping.gamma <= 1.0)}
    if tipping.sums is not None:
        found["closed_form"] = dict(zip(("T", "S_plus", "S_minus"), tipping.sums, strict=True))
    return found


def _kappa(kappa: PersonalTipping | None, arrays: AuditArrays) -> dict[str, Any]:
    if kappa is None or not arrays.personal:
        return {}
    mean = float(np.exp(kappa.kappa * arrays.log_gamma.mean()))
    return _finite(
        {"kappa": kappa.kappa, "kappa_low": kappa.low, "kappa_high": kappa.high, "kappa_mean_gamma": mean}
    )  # fmt: skip


def _finite(marks: Mapping[str, float]) -> dict[str, Any]:
    plain = {name: float(value) if np.isfinite(value) else None for name, value in marks.items()}
    return {**plain, **{f"{name}_infinite": bool(np.isinf(value)) for name, value in marks.items()}}


def _sequential(inputs: AuditInputs, names: tuple[str, str], rng: Rng) -> dict[str, Any] | None:
    """What the random ratings settle so far; None without them, or without another model."""
    found = inputs.settlement(rng)
    if found is None:
        return None
    return {
        "leader": found.leader, "settled_after": found.settled_after, "n": found.n, "more_needed": found.more_needed,
        "e_value": float(found.evidence[-1]), "difference": found.difference, "sentence": found.say(*names),
    }  # fmt: skip


def _certificate(inputs: AuditInputs, certificate: Certificate, kind: str) -> dict[str, Any]:
    assert inputs.uniform is not None  # noqa: S101 (no certificate without uniform rows)
    return {
        "low": certificate.lower, "kind": kind, "n_uniform": len(inputs.uniform),
        "confidence": certificate.confidence, "adjusted_by": inputs.propensity_name, "finding": certificate.finding,
        "sentence": certificate.sentence,
        "segments": [
            {"side": row.side, "name": row.name, "n_uniform": row.n_uniform, "low": row.lower, "p_value": row.p_value}
            for row in certificate.segments
        ],
    }  # fmt: skip


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
        labels.append(list(bins.labels[:n]) if own and bins is not None and len(bins.labels) >= n else plain)
    return {
        "gamma_map": {"user_bins": labels[0], "item_bins": labels[1], "values": mean.tolist()},
        "gamma": {
            "median": float(np.median(sample)), "p95": float(np.quantile(sample, 0.95)), "max": float(gamma.max),
            "rule": str(getattr(inputs.rule, "source", inputs.rule)),
        },
    }  # fmt: skip


def _segments(inputs: AuditInputs, listed: Recommended | None) -> dict[str, Any]:
    data, counts, gamma, arrays = inputs.data, inputs.nominal.evidence.counts, inputs.gamma, inputs.arrays
    sides = (
        SegmentSide("user", data.users, counts.user_degree, gamma.user_mean_log(), data.user_ids.ids),
        SegmentSide("item", data.items, counts.item_degree, gamma.item_mean_log(), data.item_ids.ids),
    )
    change = changes(listed, data.n_users) if listed is not None else ({}, {})
    strength = np.exp(arrays.log_gamma) if arrays.personal else FLOOR
    tables = [segment_side(side, arrays, strength, part) for side, part in zip(sides, change, strict=True)]
    return {
        "users": tables[0], "items": tables[1],
        "columns": sorted({row["column"] for table in tables for row in table}),
        "largest_users": largest(sides[0], arrays.user, change[0]),
        "largest_items": largest(sides[1], arrays.item, change[1]),
        "strength": "Γ per user and item" if arrays.personal else f"Γ = {FLOOR:g} for all",
        "ranked_users": int(inputs.ranked.users.size),
    }  # fmt: skip


__all__ = ["Audit", "Progress", "audit", "audit_values", "bounded_means", "kappa_grid"]
