"""What was estimated on the way to a model: propensity, Γ and what set it, uniform rows; for metrics and reports."""

from __future__ import annotations

from typing import Any

import numpy as np

from puidrec.train.prepare import Prepared
from puidrec.train.strength import MILD, MIN_UNIFORM
from puidrec.train.trainer import Fitted


def training_facts(prepared: Prepared, fitted: Fitted, seconds: float) -> dict[str, Any]:
    """The facts of one training, in plain values."""
    spec = prepared.settings.spec
    facts: dict[str, Any] = {
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "seconds": round(seconds, 3),
    }
    if fitted.best_score is not None:
        facts["validation"] = fitted.best_score
    if spec.family == "grid" and spec.estimator != "naive":
        facts["propensity"] = prepared.propensity.describe()
    if spec.uncertainty != "none":
        sample = prepared.gamma.sample(10_000, prepared.settings.seed) ** fitted.strength
        median, high = np.quantile(sample, (0.5, 0.95))
        largest = prepared.gamma.max**fitted.strength
        facts["gamma"] = {"median": float(median), "p95": float(high), "max": float(largest)}
    if takes_strength(prepared):
        facts["gamma_set_by"] = gamma_set_by(prepared)
    facts["uniform_rows_used"] = uniform_use(prepared)
    return facts


def takes_strength(prepared: Prepared) -> bool:
    """Whether the strength of Γ was left to the data: methods that put a value on unseen ratings, unless told."""
    settings = prepared.settings
    return settings.spec.family == "unseen" and settings.gamma in ("auto", "certified")


def gamma_set_by(prepared: Prepared) -> str:
    """What set the strength of Γ where the caller did not: uniform ratings, or too few of them to say anything."""
    rows = prepared.uniform_target().size
    if rows >= MIN_UNIFORM:
        return f"{rows:,} uniform ratings set apart for it"
    found = "no uniform rating was" if rows == 0 else f"only {rows:,} uniform rating{'s were' if rows > 1 else ' was'}"
    return f"the mild default {MILD:g}: {found} set apart for it, and it takes {MIN_UNIFORM}"


def uniform_use(prepared: Prepared) -> str:
    """How uniform rows entered the model, in words."""
    uses = []
    if prepared.split.uniform_in_training:
        uses.append("training")
    if "propensity" in prepared.__dict__ and prepared.propensity.uses_uniform:
        uses.append("propensity")
    gamma, enough = prepared.settings.gamma, prepared.uniform_target().size >= MIN_UNIFORM
    calibrates = gamma == "certified" or (takes_strength(prepared) and enough)
    if calibrates and prepared.settings.spec.uncertainty != "none":
        uses.append("strength of Γ")
    chooses = prepared.settings.select != "none" and prepared.settings.spec.family != "closed"
    if chooses and prepared.split.selection == "uniform" and len(prepared.split.validation):
        uses.append("choice of the epoch")
    return ", ".join(uses) or "none"
