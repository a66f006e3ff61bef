"""The content of `audit.json`: everything an audit finds, in plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.auditing.case import Case
from puidrec.auditing.curves import Bootstrap, kappa_grid, over_gammas, over_kappas, quantities
from puidrec.auditing.diagnostics import diagnose
from puidrec.auditing.envelope import gamma_grid, sharp
from puidrec.auditing.gather import Gathered
from puidrec.auditing.limits import limits
from puidrec.auditing.models import Audited
from puidrec.auditing.ranks import Ranked, rank, sample_users
from puidrec.auditing.segments import Side, changes, largest, segment_side
from puidrec.auditing.tipping import PersonalTipping, Tipping, tipping_kappa, tipping_point
from puidrec.auditing.verdict import FLOOR, Yardsticks, benchmarks, judge, sentence, single_sentence
from puidrec.sensitivity.certify import Certificate
from puidrec.sensitivity.gamma import resolve_gamma

LIMITS = (2.0, 3.0, 5.0, 10.0, 20.0)
"""Where a grid of Γ may end."""
PERSONAL = ("loss_gap", "model_loss", "dcg_gap", "model_dcg")
"""Quantities whose envelopes are also drawn over κ (the losses of both models of a comparison are not)."""


def audit_values(
    gathered: Gathered,
    case: Case,
    models: tuple[Audited, Audited | None],
    names: tuple[str, str],
    bootstrap: Bootstrap,
    limit: float | None,
) -> dict[str, Any]:
    """All parts; the first ones decide, the rest explain."""
    calibration = gathered.evidence.calibration
    certificate = gathered.certificate(models[0].target, bootstrap.replicates, bootstrap.rng)
    uniform = gathered.uniform_check(*models)
    gap = uniform.get("loss_gap") if uniform is not None else None
    known = (gap["value"], gap["low"], gap["high"]) if gap is not None and gap["low"] is not None else None
    yardsticks = Yardsticks(calibration, certificate[0] if certificate is not None else None, known)
    tipping, kappa = _tip(case, bootstrap)
    grid = gamma_grid(limit or _limit(tipping, yardsticks))
    ranked = _rank(gathered, models, bootstrap)
    values: dict[str, Any] = {
        "version": 1,
        **_conclusion(case, names, tipping, yardsticks),
        "model": models[0].describe(names[0]),
        "against": models[1].describe(names[1]) if models[1] is not None else None,
        "data": _data(gathered),
        "rows": _rows(gathered, case, models[0], bootstrap),
        "gamma_grid": grid.tolist(),
        **_curves(gathered, case, ranked, grid, bootstrap),
        "tipping": _tipping(tipping, kappa, case) if tipping is not None else None,
        "benchmarks": benchmarks(calibration, tipping.gamma if tipping is not None else None),
        "certificate": _certificate(gathered, *certificate) if certificate is not None else None,
        "uniform": uniform,
        **_gamma(gathered),
        "segments": _segments(gathered, case, ranked),
        "diagnostics": diagnose(
            case.item, case.propensity, gathered.seen_propensity, gathered.evidence.counts.item_degree,
            gathered.propensity.predict, (gathered.data.n_users, gathered.data.n_items),
            about=gathered.propensity.describe(), rng=bootstrap.rng,
        ),
    }  # fmt: skip
    values["limits"] = limits(values, gathered.propensity.uses_uniform)
    return values


def _curves(gathered: Gathered, case: Case, ranked: Ranked, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """Envelopes over Γ of every quantity, and over κ where Γ differs from pair to pair."""
    kappas = kappa_grid(case.log_gamma, float(grid[-1])) if case.personal else None
    envelopes, personal = {}, {}
    for name, quantity in quantities(case, ranked, gathered.data.n_items):
        envelopes[name] = over_gammas(quantity, grid, bootstrap)
        if kappas is not None and name in PERSONAL and (case.against is None or name.endswith("gap")):
            personal[name] = over_kappas(quantity, kappas, bootstrap)
    shape = {"kappa_grid": kappas.tolist(), "envelopes": personal} if kappas is not None else None
    return {"envelopes": envelopes, "personal": shape}


def _rows(gathered: Gathered, case: Case, model: Audited, bootstrap: Bootstrap) -> dict[str, Any]:
    stratum = case.main.stratum
    return {
        "source": gathered.source, "part": gathered.part, "n": len(gathered.rows),
        "users": int(np.count_nonzero(np.bincount(case.user))),
        "strata": 1 if stratum is None else int(stratum.max()) + 1,
        "outcome": "label" if model.target == "binary" else "rating, scaled to 0..1",
        "replicates": int(bootstrap.replicates), "level": bootstrap.level,
    }  # fmt: skip


def _conclusion(case: Case, names: tuple[str, str], tipping: Tipping | None, yardsticks: Yardsticks) -> dict[str, Any]:
    """Verdict and sentence."""
    if tipping is None:
        gamma = yardsticks.reference
        span = sharp(case.main, gamma)
        return {
            "sentence": single_sentence(names[0], case.main.point, span.low, span.high, gamma),
            "verdict": "single",
        }
    return {
        "sentence": sentence(names, tipping, yardsticks, case.main.point),
        "verdict": judge(tipping, yardsticks),
    }


def _tip(case: Case, bootstrap: Bootstrap) -> tuple[Tipping | None, PersonalTipping | None]:
    if case.against is None:
        return None, None
    options = {"replicates": bootstrap.replicates, "level": bootstrap.level}
    return (
        tipping_point(case.gaps, case.user, rng=bootstrap.rng, **options),  # type: ignore[arg-type]
        tipping_kappa(case.gaps, case.log_gamma, case.user, rng=bootstrap.rng, **options),  # type: ignore[arg-type]
    )


def _limit(tipping: Tipping | None, yardsticks: Yardsticks) -> float:
    """The smallest limit that shows the tipping point and every yardstick with room to spare."""
    marks = [yardsticks.reference]
    if tipping is not None:
        marks += [value for value in (tipping.gamma, tipping.sharp) if np.isfinite(value) and value < LIMITS[-1]]
    return next((limit for limit in LIMITS if limit >= 1.2 * max(marks)), LIMITS[-1])


def _rank(gathered: Gathered, models: tuple[Audited, Audited | None], bootstrap: Bootstrap) -> Ranked:
    """Rank all items for the users of the rows, or for a sample of them."""
    data, seen = gathered.data, gathered.seen
    users = sample_users(gathered.rows.user, data.n_items, bootstrap.rng)
    start = np.searchsorted(seen.user, np.arange(data.n_users + 1))
    scorers = models[0].scorer(data), models[1].scorer(data) if models[1] is not None else None
    return rank(users, gathered.rows.user, gathered.rows.item, (start, seen.item), scorers, data.n_items)


def _data(gathered: Gathered) -> dict[str, Any]:
    data, split = gathered.data, gathered.split
    return {
        "name": data.name, "sha256": data.sha256, "n_users": data.n_users, "n_items": data.n_items,
        "n_logged": len(gathered.seen), "n_uniform": 0 if gathered.uniform is None else len(gathered.uniform),
        "protocol": split.protocol.name, "seed": split.seed,
        "positive_rate": float(gathered.seen.label.mean()) if len(gathered.seen) else None,
    }  # fmt: skip


def _tipping(tipping: Tipping, kappa: PersonalTipping | None, case: Case) -> dict[str, Any]:
    """Γ* and κ* with their intervals; what is infinite is null and flagged."""
    marks = {"gamma": tipping.gamma, "low": tipping.low, "high": tipping.high, "sharp": tipping.sharp}
    if kappa is not None and case.personal:
        marks |= {"kappa": kappa.kappa, "kappa_low": kappa.low, "kappa_high": kappa.high}
        marks["kappa_mean_gamma"] = float(np.exp(kappa.kappa * case.log_gamma.mean()))
    plain = {name: float(value) if np.isfinite(value) else None for name, value in marks.items()}
    flags = {f"{name}_infinite": bool(np.isinf(value)) for name, value in marks.items()}
    form = {"T": tipping.T, "S_plus": tipping.S_plus, "S_minus": tipping.S_minus}
    return {**plain, **flags, "closed_form": form, "overturned": bool(tipping.gamma <= 1.0)}


def _certificate(gathered: Gathered, certificate: Certificate, kind: str) -> dict[str, Any]:
    assert gathered.uniform is not None  # noqa: S101 (no certificate without uniform rows)
    return {
        "gamma_min": certificate.gamma, "low": certificate.lower, "kind": kind, "n_uniform": len(gathered.uniform),
        "confidence": certificate.confidence, "adjusted_by": gathered.propensity_name,
    }  # fmt: skip


def _gamma(gathered: Gathered) -> dict[str, Any]:
    """How the rule spreads Γ over pairs, and by group of users and items."""
    gamma, evidence = gathered.gamma, gathered.evidence
    sample = gamma.sample(10_000, gathered.seed)
    mean = np.exp(gamma.cell_mean_log())
    labels = []
    for k, bins in enumerate((evidence.user_bins, evidence.item_bins)):
        own = bins is not None and np.array_equal(bins.codes, (gamma.user_bin, gamma.item_bin)[k])
        n = mean.shape[k]
        plain = ["all"] if n == 1 else [f"class {j + 1}" for j in range(n)]
        labels.append(list(bins.labels[:n]) if own and bins is not None and len(bins.labels) >= n else plain)
    rule = resolve_gamma(gathered.rule)
    return {
        "gamma_map": {"user_bins": labels[0], "item_bins": labels[1], "values": mean.tolist()},
        "gamma": {
            "median": float(np.median(sample)), "p95": float(np.quantile(sample, 0.95)), "max": float(gamma.max),
            "rule": str(gathered.rule) if not hasattr(gathered.rule, "source") else rule.source,
        },
    }  # fmt: skip


def _segments(gathered: Gathered, case: Case, ranked: Ranked) -> dict[str, Any]:
    data, counts, gamma = gathered.data, gathered.evidence.counts, gathered.gamma
    sides = (
        Side("user", data.users, counts.user_degree, gamma.user_mean_log(), data.user_ids.ids),
        Side("item", data.items, counts.item_degree, gamma.item_mean_log(), data.item_ids.ids),
    )
    change = changes(ranked, data.n_users)
    strength = np.exp(case.log_gamma) if case.personal else FLOOR
    tables = [segment_side(side, case, strength, part) for side, part in zip(sides, change, strict=True)]
    return {
        "users": tables[0], "items": tables[1],
        "columns": sorted({row["column"] for table in tables for row in table}),
        "largest_users": largest(sides[0], case.user, change[0]),
        "largest_items": largest(sides[1], case.item, change[1]),
        "strength": "Γ per user and item" if case.personal else f"Γ = {FLOOR:g} for all",
        "ranked_users": int(ranked.users.size),
    }  # fmt: skip
