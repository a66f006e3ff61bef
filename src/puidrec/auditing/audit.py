"""`puidrec.audit(model, data, against=other)`: how strong must hidden confounding be to overturn the conclusion?

One call goes: `audit` → `AuditInputs` (inputs: rows, predictions, propensities, Γ) → envelopes, tipping points, ranks,
segments and diagnostics of these → verdict and its sentence → `Audit`, whose values are the content of `audit.json`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json, write_text
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
)
from puidrec.auditing.inputs import AuditArrays, AuditedModel, AuditInputs, check_comparable, names_of, strata
from puidrec.auditing.ranks import Ranked, rank, sample_users
from puidrec.auditing.segments import SegmentSide, changes, largest, segment_side
from puidrec.auditing.tipping import PersonalTipping, Tipping, tipping_kappa, tipping_point
from puidrec.auditing.verdict import (
    FLOOR,
    Yardsticks,
    benchmarks,
    judge,
    limits,
    sentence,
    single_sentence,
    summary,
)
from puidrec.data.dataset import Dataset
from puidrec.data.protocol import Protocol
from puidrec.data.split import Split
from puidrec.errors import InputError
from puidrec.evaluation.evaluator import Predictor
from puidrec.rng import Rng
from puidrec.sensitivity.certify import Certificate
from puidrec.sensitivity.gamma import GammaSpec

FILES = ("audit.json", "summary.txt", "report.html")
LIMITS = (2.0, 3.0, 5.0, 10.0, 20.0)
"""Where a grid of Γ may end."""
PERSONAL = ("loss_gap", "model_loss", "dcg_gap", "model_dcg")
"""Quantities whose envelopes are also drawn over κ (the losses of both models of a comparison are not)."""
BAND_OF: Kind = "normalised"
N_KAPPA, FEW_KAPPA, MANY_ROWS = 21, 7, 2_000_000


@dataclass(frozen=True)
class Audit:
    """The result of `puidrec.audit(...)`; `to_dict()` is the content of `audit.json`."""

    values: dict[str, Any]

    @property
    def tipping_point(self) -> float | None:
        """Γ*: infinite where nothing could overturn the comparison, None where one model is audited alone."""
        tipping = self.values["tipping"]
        if tipping is None:
            return None
        return float("inf") if tipping["gamma_infinite"] else float(tipping["gamma"])

    @property
    def verdict(self) -> str:
        """`robust`, `fragile`, `overturned`, or `single` for one model alone."""
        return str(self.values["verdict"])

    def __repr__(self) -> str:
        tipping = self.tipping_point
        gamma = "" if tipping is None else f", Γ* = {tipping:.2f}"
        return f"<Audit on {self.values['data']['name']}: {self.verdict}{gamma}\n {self.values['sentence']}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; a copy."""
        return copy.deepcopy(self.values)

    def summary(self) -> str:
        """Text that starts with the conclusion in one sentence, then what it rests on and what it leaves open."""
        return summary(self.values)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as one self-contained page."""
        from puidrec.report.audit import audit_page
        from puidrec.report.html import write_page

        write_page(Path(path), audit_page(self.values))

    def save(self, folder: str | PathLike[str], *, html: bool = True) -> None:
        """Write `audit.json`, `summary.txt` and `report.html`; the folder appears whole or not at all."""
        target = Path(folder)
        with locked(target):
            check_target(target)
            with atomic_folder(target) as temporary:
                write_json(temporary / "audit.json", self.values)
                write_text(temporary / "summary.txt", self.summary())
                if html:
                    self.to_html(temporary / "report.html")


def check_target(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier audit, before any work is spent."""
    refuse_other_files(folder, FILES, "one that holds an audit", always=FILES[:2])


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
    first = AuditedModel.of(model, data)
    second = AuditedModel.of(against, data) if against is not None else None
    if second is not None:
        check_comparable(first, second, split is not None)
    chosen = split or _split(first, data, protocol)
    inputs = AuditInputs(data, chosen, first, second, propensity, min_propensity, gamma, rng)
    return Audit(audit_values(inputs, names_of(first, second, names), Bootstrap(replicates, level, rng), gamma_limit))


def _check(replicates: int, level: float, gamma_limit: float | None) -> None:
    if not isinstance(replicates, int | np.integer) or replicates < 0:
        raise InputError("replicates must be a whole number", found=replicates, expected="0 or more")
    if not 0.0 < level < 1.0:
        raise InputError("confidence level out of range", found=level, expected="between 0 and 1")
    if gamma_limit is not None:
        gamma_grid(gamma_limit, 2)


def _split(model: AuditedModel, data: Dataset, protocol: str | Protocol) -> Split:
    """The split that the model says it was trained with."""
    select = model.params.get("select", "uniform")
    return data.split(protocol, int(model.params.get("seed", 0)), select=select)


def audit_values(
    inputs: AuditInputs, names: tuple[str, str], bootstrap: Bootstrap, limit: float | None
) -> dict[str, Any]:
    """The content of `audit.json` in plain values: the first parts decide, the rest explain."""
    arrays, calibration = inputs.arrays, inputs.nominal.evidence.calibration
    certificate = inputs.certificate(bootstrap.replicates, bootstrap.rng)
    uniform = inputs.uniform_check()
    gap = uniform.get("loss_gap") if uniform is not None else None
    known = (gap["value"], gap["low"], gap["high"]) if gap is not None and gap["low"] is not None else None
    yardsticks = Yardsticks(calibration, certificate[0] if certificate is not None else None, known)
    tipping, kappa = None, None
    if arrays.against is not None:
        tipping = tipping_point(arrays.gaps, arrays.user, bootstrap)
        kappa = tipping_kappa(arrays.gaps, arrays.log_gamma, arrays.user, bootstrap)
    grid = gamma_grid(limit or _limit(tipping, yardsticks))
    ranked = _rank(inputs, bootstrap.rng)
    values: dict[str, Any] = {
        "version": 1,
        **_conclusion(arrays, names, tipping, yardsticks),
        "model": inputs.model.describe(names[0]),
        "against": inputs.against.describe(names[1]) if inputs.against is not None else None,
        "data": _data(inputs),
        "rows": _rows(inputs, bootstrap),
        "gamma_grid": grid.tolist(),
        **_curves(inputs, ranked, grid, bootstrap),
        "tipping": _tipping(tipping, kappa, arrays) if tipping is not None else None,
        "benchmarks": benchmarks(calibration, tipping.gamma if tipping is not None else None),
        "certificate": _certificate(inputs, *certificate) if certificate is not None else None,
        "uniform": uniform,
        **_gamma(inputs),
        "segments": _segments(inputs, ranked),
        "diagnostics": diagnose(
            arrays.item, arrays.propensity, inputs.nominal.seen_propensity, inputs.nominal.evidence.counts.item_degree,
            inputs.nominal.propensity.predict, (inputs.data.n_users, inputs.data.n_items),
            about=inputs.nominal.propensity.describe(), rng=bootstrap.rng,
        ),
    }  # fmt: skip
    values["limits"] = limits(values, inputs.nominal.propensity.uses_uniform)
    return values


def _limit(tipping: Tipping | None, yardsticks: Yardsticks) -> float:
    """The smallest end of the Γ grid that shows the tipping point and every yardstick with room to spare."""
    marks = [yardsticks.reference]
    if tipping is not None:
        marks += [value for value in (tipping.gamma, tipping.sharp) if np.isfinite(value) and value < LIMITS[-1]]
    return next((limit for limit in LIMITS if limit >= 1.2 * max(marks)), LIMITS[-1])


def _rank(inputs: AuditInputs, rng: Rng) -> Ranked:
    """Rank all items for the users of the rows, or for a sample of them."""
    data, seen, rows = inputs.data, inputs.seen, inputs.rows
    start = np.searchsorted(seen.user, np.arange(data.n_users + 1))
    scorers = inputs.model.scorer(data), inputs.against.scorer(data) if inputs.against is not None else None
    users = sample_users(rows.user, data.n_items, rng)
    return rank(users, rows.user, rows.item, (start, seen.item), scorers, data.n_items)


def _conclusion(
    arrays: AuditArrays, names: tuple[str, str], tipping: Tipping | None, yardsticks: Yardsticks
) -> dict[str, Any]:
    """Verdict and sentence."""
    if tipping is not None:
        words = sentence(names, tipping, yardsticks, arrays.main.point)
        return {"sentence": words, "verdict": judge(tipping, yardsticks)}
    gamma = yardsticks.reference
    span = sharp(arrays.main, gamma)
    words = single_sentence(names[0], arrays.main.point, span.low, span.high, gamma)
    return {"sentence": words, "verdict": "single"}


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
        "source": inputs.source, "part": inputs.part, "n": len(inputs.rows),
        "users": int(np.count_nonzero(np.bincount(inputs.rows.user))),
        "strata": 1 if stratum is None else int(stratum.max()) + 1,
        "outcome": "label" if inputs.model.target == "binary" else "rating, scaled to 0..1",
        "replicates": int(bootstrap.replicates), "level": bootstrap.level,
    }  # fmt: skip


@dataclass(frozen=True)
class BoundedMean:
    """A mean over D that an audit bounds: its pairs, their users, and their log Γ."""

    pairs: Pairs
    user: np.ndarray
    log_gamma: np.ndarray


def bounded_means(arrays: AuditArrays, ranked: Ranked, n_items: int) -> Iterator[tuple[str, BoundedMean]]:
    """The gap (or the loss of one model) first, then what it is made of, and DCG; one at a time, for memory."""
    yield arrays.name, BoundedMean(arrays.main, arrays.user, arrays.log_gamma)
    if arrays.against is not None:
        for name, prediction in (("model_loss", arrays.model), ("against_loss", arrays.against)):
            yield name, BoundedMean(arrays.losses(prediction), arrays.user, arrays.log_gamma)
    if ranked.rows.size:
        rows = ranked.rows
        known = ranked.credit if ranked.against_credit is None else ranked.credit - ranked.against_credit
        pairs = Pairs(arrays.label[rows] * known * n_items, arrays.propensity[rows], strata(known))
        name = "model_dcg" if ranked.against_credit is None else "dcg_gap"
        yield name, BoundedMean(pairs, arrays.user[rows], arrays.log_gamma[rows])


def _curves(inputs: AuditInputs, ranked: Ranked, grid: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """Envelopes over Γ of every mean, and over κ (Γ_ui^κ) where Γ differs from pair to pair."""
    arrays = inputs.arrays
    kappas = kappa_grid(arrays.log_gamma, float(grid[-1])) if arrays.personal else None
    envelopes, personal = {}, {}
    for name, mean in bounded_means(arrays, ranked, inputs.data.n_items):
        curves = {kind: over_grid(mean.pairs, kind, grid) for kind in KINDS}
        envelopes[name] = _with_bands(mean, curves, [float(g) for g in grid], bootstrap)
        if kappas is not None and name in PERSONAL and (arrays.against is None or name.endswith("gap")):
            curves = over_kappa(mean.pairs, mean.log_gamma, kappas)
            strengths = [personalised(mean.log_gamma, float(k)) for k in kappas] if bootstrap.replicates else []
            personal[name] = _with_bands(mean, curves, strengths, bootstrap)
    shape = {"kappa_grid": kappas.tolist(), "envelopes": personal} if kappas is not None else None
    return {"envelopes": envelopes, "personal": shape}


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


def _tipping(tipping: Tipping, kappa: PersonalTipping | None, arrays: AuditArrays) -> dict[str, Any]:
    """Γ* and κ* with their intervals; what is infinite is null and flagged."""
    marks = {"gamma": tipping.gamma, "low": tipping.low, "high": tipping.high, "sharp": tipping.sharp}
    if kappa is not None and arrays.personal:
        marks |= {"kappa": kappa.kappa, "kappa_low": kappa.low, "kappa_high": kappa.high}
        marks["kappa_mean_gamma"] = float(np.exp(kappa.kappa * arrays.log_gamma.mean()))
    plain = {name: float(value) if np.isfinite(value) else None for name, value in marks.items()}
    flags = {f"{name}_infinite": bool(np.isinf(value)) for name, value in marks.items()}
    form = {"T": tipping.T, "S_plus": tipping.S_plus, "S_minus": tipping.S_minus}
    return {**plain, **flags, "closed_form": form, "overturned": bool(tipping.gamma <= 1.0)}


def _certificate(inputs: AuditInputs, certificate: Certificate, kind: str) -> dict[str, Any]:
    assert inputs.uniform is not None  # noqa: S101 (no certificate without uniform rows)
    return {
        "gamma_min": certificate.gamma, "low": certificate.lower, "kind": kind, "n_uniform": len(inputs.uniform),
        "confidence": certificate.confidence, "adjusted_by": inputs.propensity_name,
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


def _segments(inputs: AuditInputs, ranked: Ranked) -> dict[str, Any]:
    data, counts, gamma, arrays = inputs.data, inputs.nominal.evidence.counts, inputs.gamma, inputs.arrays
    sides = (
        SegmentSide("user", data.users, counts.user_degree, gamma.user_mean_log(), data.user_ids.ids),
        SegmentSide("item", data.items, counts.item_degree, gamma.item_mean_log(), data.item_ids.ids),
    )
    change = changes(ranked, data.n_users)
    strength = np.exp(arrays.log_gamma) if arrays.personal else FLOOR
    tables = [segment_side(side, arrays, strength, part) for side, part in zip(sides, change, strict=True)]
    return {
        "users": tables[0], "items": tables[1],
        "columns": sorted({row["column"] for table in tables for row in table}),
        "largest_users": largest(sides[0], arrays.user, change[0]),
        "largest_items": largest(sides[1], arrays.item, change[1]),
        "strength": "Γ per user and item" if arrays.personal else f"Γ = {FLOOR:g} for all",
        "ranked_users": int(ranked.users.size),
    }  # fmt: skip
