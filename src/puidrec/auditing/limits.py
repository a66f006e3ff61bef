"""What an audit does not tell, in sentences for its reader."""

from __future__ import annotations

from typing import Any

SMALL_ESS = 100.0


def limits(values: dict[str, Any], uses_uniform: bool) -> list[str]:
    """What this audit cannot say; first what holds for it in particular, then what holds for all."""
    rows, found = values["rows"], values["diagnostics"]
    texts = []
    if rows["source"] == "training":
        texts.append(
            "The errors are of rows the models were trained on, since the split holds out no logged row. That flatters "
            'the model that fits them more closely. Train with select="observational" to audit on held-out rows.'
        )
    if rows["part"] == "validation":
        texts.append(
            "The held-out rows also chose the epoch at which training stopped, which flatters both models a little."
        )
    if found["ess"] < SMALL_ESS:
        texts.append(f"The weighted rows are worth only {found['ess']:.0f} equal ones: intervals are rough.")
    if found["calibration_error"] is not None and found["calibration_error"] > 0.25:
        texts.append("The propensities do not fit the log well (see calibration): what seems hidden may be a poor fit.")
    if uses_uniform:
        texts.append("The propensities were fitted with uniform rows, so the audit is not of the log alone.")
    ranked = values["segments"]["ranked_users"]
    if ranked < rows["users"]:
        texts.append(f"Rankings (DCG, recommendations) are of {ranked:,} users drawn from {rows['users']:,}.")
    return [
        *texts,
        "It does not say that anything is hidden, or how strong it is: only how strong it would have to be. "
        + ("Uniform ratings say more, and are used where they exist." if values["certificate"] else
           "Without ratings of randomly chosen items, no data here can say more."),
        "Γ bounds what is hidden for every pair at once. A few pairs may be far more confounded than the rest.",
        "All of it is relative to the nominal propensities. What they get wrong counts as hidden.",
        "The sharp range takes likelihood ratios to average to 1 within groups of equal predictions, as they do where "
        "the propensities are right there.",
        "Intervals and bands cover the chance of which users were logged. They do not cover how the models were "
        "trained, or the estimation of propensities and Γ.",
        "A lead in squared error, or in DCG over all items, is not a lead in what users would do with the "
        "recommendations.",
    ]  # fmt: skip
