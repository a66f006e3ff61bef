"""What was estimated on the way to a model: propensity, Γ and what set it, uniform rows; for metrics and reports."""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.methods import GAMMA_SCALE
from puidrec.objective.signed import DEFAULT_GAMMA, MIN_UNIFORM
from puidrec.train.prepare import Prepared
from puidrec.train.problem import Fitted


def training_report(prepared: Prepared, fitted: Fitted, seconds: float) -> dict[str, Any]:
    """What is worth knowing of one training, in plain values."""
    spec = prepared.settings.spec
    report: dict[str, Any] = {
        "solver": fitted.solver or "closed form",
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "seconds": round(seconds, 3),
    }
    if fitted.best_score is not None:
        report["validation"] = fitted.best_score
    if spec.uses_propensity is True:
        report["propensity"] = prepared.log.nominal.propensity.describe()
    if spec.uncertainty != "none":
        sample = prepared.gamma.sample(10_000, prepared.settings.seed) ** fitted.gamma_scale
        median, high = np.quantile(sample, (0.5, 0.95))
        largest = prepared.gamma.max**fitted.gamma_scale
        report["gamma"] = {"median": float(median), "p95": float(high), "max": float(largest)}
    if calibrates_gamma(prepared):
        report["gamma_set_by"] = gamma_set_by(prepared)
    report["uniform_rows_used"] = uniform_use(prepared, fitted)
    return report | dict(fitted.notes)


def calibrates_gamma(prepared: Prepared) -> bool:
    """Whether the scale of Γ was left to the data: methods that put a value on unseen ratings, unless Γ is given."""
    settings = prepared.settings
    return settings.spec.calibrates_gamma and settings.gamma in ("auto", "certified")


def gamma_set_by(prepared: Prepared) -> str:
    """What set the scale of Γ where the caller did not: uniform ratings, or a default where there are too few."""
    rows = prepared.uniform_target().size
    if rows >= MIN_UNIFORM:
        return f"{rows:,} uniform ratings held out for calibration"
    found = "no uniform rating" if rows == 0 else f"only {rows:,} uniform rating{'s' if rows > 1 else ''}"
    return f"the default {DEFAULT_GAMMA:g}: {found} held out for calibration, at least {MIN_UNIFORM} are needed"


def uniform_use(prepared: Prepared, fitted: Fitted) -> str:
    """How uniform rows entered the model, in words."""
    uses = []
    if prepared.split.uniform_in_training:
        uses.append("training")
    propensity = prepared.log.nominal.fitted_propensity
    if propensity is not None and propensity.uses_uniform:
        uses.append("propensity")
    gamma, enough = prepared.settings.gamma, prepared.uniform_target().size >= MIN_UNIFORM
    calibrates = gamma == "certified" or (calibrates_gamma(prepared) and enough)
    if calibrates and prepared.settings.spec.uncertainty != "none":
        uses.append(GAMMA_SCALE)
    if prepared.settings.spec.uses_uniform not in ("", GAMMA_SCALE):
        uses.append(prepared.settings.spec.uses_uniform)
    chooses = prepared.settings.select != "none" and "adam" in fitted.solver
    if chooses and prepared.split.selection == "uniform" and len(prepared.split.validation):
        uses.append("choice of the epoch")
    return ", ".join(uses) or "none"
