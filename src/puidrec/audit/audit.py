"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn the conclusion?"""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.audit.case import Case
from puidrec.audit.curves import Bootstrap, kappa_grid, over_gammas, over_kappas, quantities
from puidrec.audit.diagnostics import diagnose
from puidrec.audit.envelope import gamma_grid, sharp
from puidrec.audit.gather import Gathered, audit_rows
from puidrec.audit.limits import limits
from puidrec.audit.models import Audited, Predictor, check_comparable, names_of
from puidrec.audit.ranks import Ranked, rank, sample_users
from puidrec.audit.result import Audit
from puidrec.audit.segments import Side, changes, largest, segment_side
from puidrec.audit.tipping import PersonalTipping, Tipping, tipping_kappa, tipping_point
from puidrec.audit.verdict import FLOOR, Yardsticks, benchmarks, judge, sentence, single_sentence
from puidrec.data.dataset import Dataset
from puidrec.data.protocol import Protocol
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.sensitivity.certify import Certificate
from puidrec.sensitivity.gamma import GammaSpec, resolve_gamma

LIMITS = (2.0, 3.0, 5.0, 10.0, 20.0)
MAX_MAP = 64


def audit(
    model: Predictor,
    data: Dataset,
    against: Predictor | None = None,
    *,
    split: Split | None = None,
    protocol: str | Protocol = "rd",
    gamma: GammaSpec = "information",
    gamma_limit: float | None = None,
    propensity: str = "two-way",
    min_propensity: float | None = None,
    replicates: int = 200,
    level: float = 0.95,
    rng: int = 0,
    names: tuple[str, str] | None = None,
) -> Audit:
    """Bound what the log says of a model, or of its lead over another, if something hidden drove the log.

    split: the one that both were trained with; by default that of their protocol, seed and `select`. Held-out logged
    rows are used where it has some, else its training rows (and the audit says so).
    gamma: the rule of the personalised shape Γ_ui. gamma_limit: the largest Γ looked at; by default wide enough for
    the tipping point and all yardsticks. propensity, min_propensity: nominal propensities and where they are clipped
    (by default at 0.01, or a tenth of the overall rate where that is less). replicates: of the bootstrap over users; 0
    draws none. names: what to call the two.
    """
    _check(replicates, level, gamma_limit)
    first = Audited.of(model, data)
    second = Audited.of(against, data) if against is not None else None
    if second is not None:
        check_comparable(first, second, split is not None)
    chosen = split or _split(first, data, protocol)
    rows, source = audit_rows(chosen)
    if not len(rows):
        raise InputError("no logged row to audit with", found=f"protocol {chosen.protocol.name}", expected="some")
    gathered = Gathered(data, chosen, rows, source, propensity, min_propensity, gamma, rng)
    case = gathered.case(first, second)
    bootstrap = Bootstrap(replicates, level, rng)
    return Audit(_values(gathered, case, (first, second), names_of(first, second, names), bootstrap, gamma_limit))


def _check(replicates: int, level: float, gamma_limit: float | None) -> None:
    if not isinstance(replicates, int | np.integer) or replicates < 0:
        raise InputError("replicates must be a whole number", found=replicates, expected="0 or more")
    if not 0.0 < level < 1.0:
        raise InputError("confidence level out of range", found=level, expected="between 0 and 1")
    if gamma_limit is not None:
        gamma_grid(gamma_limit, 2)


def _split(model: Audited, data: Dataset, protocol: str | Protocol) -> Split:
    """The split that the model says it was trained with."""
    select = model.params.get("select", "uniform")
    return data.split(protocol, int(model.params.get("seed", 0)), select=select)


def _values(
    gathered: Gathered,
    case: Case,
    models: tuple[Audited, Audited | None],
    names: tuple[str, str],
    bootstrap: Bootstrap,
    limit: float | None,
) -> dict[str, Any]:
    """The content of audit.json."""
    calibration = gathered.evidence.calibration
    proof = gathered.certificate(models[0].target, bootstrap.replicates, bootstrap.rng)
    uniform = gathered.uniform_check(*models)
    gap = uniform.get("loss_gap") if uniform is not None else None
    known = (gap["value"], gap["low"], gap["high"]) if gap is not None and gap["low"] is not None else None
    yardsticks = Yardsticks(calibration, proof[0] if proof else None, known)
    tipping, kappa = _tip(case, bootstrap)
    grid = gamma_grid(limit or _limit(tipping, yardsticks))
    ranked = _rank(gathered, models, bootstrap)
    found = quantities(case, ranked, gathered.data.n_items)
    personal = bool(case.log_gamma.max() > 1e-9)
    kappas = kappa_grid(case.log_gamma, float(grid[-1])) if personal else None
    headline = [name for name in found if name in (case.name, "dcg_gap")]
    values: dict[str, Any] = {
        "version": 1,
        **_conclusion(case, names, tipping, yardsticks),
        "model": models[0].describe(names[0]),
        "against": models[1].describe(names[1]) if models[1] is not None else None,
        "data": _data(gathered),
        "rows": {
            "source": gathered.source, "n": len(gathered.rows), "users": int(np.unique(case.user).size),
            "strata": int(case.main.stratum.max()) + 1 if case.main.stratum is not None else 1,
            "outcome": "label" if models[0].target == "binary" else "rating, scaled to 0..1",
            "replicates": bootstrap.replicates, "level": bootstrap.level,
        },
        "gamma_grid": grid.tolist(),
        "envelopes": {name: over_gammas(quantity, grid, bootstrap) for name, quantity in found.items()},
        "personal": {
            "kappa_grid": kappas.tolist(),
            "envelopes": {name: over_kappas(found[name], kappas, bootstrap) for name in headline},
        } if kappas is not None else None,
        "tipping": _tipping(tipping, kappa, case, personal) if tipping is not None else None,
        "benchmarks": benchmarks(calibration, tipping.gamma if tipping is not None else None),
        "certificate": _certificate(gathered, *proof) if proof else None,
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


def _tipping(tipping: Tipping, kappa: PersonalTipping | None, case: Case, personal: bool) -> dict[str, Any]:
    """Γ* and κ* with their intervals; what is infinite is null and flagged."""
    marks = {"gamma": tipping.gamma, "low": tipping.low, "high": tipping.high, "sharp": tipping.sharp}
    if kappa is not None and personal:
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
    mean = np.exp(gamma.cell_mean_log())[:MAX_MAP, :MAX_MAP]
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
    flat = case.log_gamma.max() <= 1e-9
    strength = FLOOR if flat else np.exp(case.log_gamma)
    tables = [segment_side(side, case, strength, part) for side, part in zip(sides, change, strict=True)]
    return {
        "users": tables[0], "items": tables[1],
        "columns": sorted({row["column"] for table in tables for row in table}),
        "largest_users": largest(sides[0], case.user, change[0]),
        "largest_items": largest(sides[1], case.item, change[1]),
        "strength": f"Γ = {FLOOR:g} for all" if flat else "Γ per user and item",
        "ranked_users": int(ranked.users.size),
    }  # fmt: skip
