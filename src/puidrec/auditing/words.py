"""An audit in words: what to know about its figures, and what it does not claim; from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMALL_ESS = 100.0
"""An effective sample size below which intervals are called rough."""
POOR_CALIBRATION = 0.25
THIN_SUPPORT = 0.01
SOURCES = {
    "held-out": "held-out", "cross-fitted": "cross-fitted", "hold-out": "held-out", "given": "unseen",
    "claimed": "logged",
}  # fmt: skip
"""What to call the rows of each source."""


def not_claimed(parts: Mapping[str, Any]) -> list[str]:
    """What no audit says."""
    found = [
        "That anything is hidden, or how strong it is: Γ* says how strong it would have to be.",
        "That a lead in squared error, or in slots of a list, is a lead in what users would do with recommendations.",
        "Anything about users and items that are not in the data, or once the new model changes what people see.",
    ]
    if parts["uniform"] is not None:
        found[0] = (
            "More of what is hidden than uniform ratings prove; the adjusted lead assumes that log odds of being seen "
            "are linear in the rating."
        )
    return found


def limits_of(parts: Mapping[str, Any]) -> list[str]:
    """What to know about the figures; first what holds for this audit in particular, then what holds for all."""
    return [
        *_about_rows(parts["rows"], parts["leakage"]), *_about_log(parts),
        "One Γ bounds hidden confounding for all pairs. A few pairs may be far more confounded than the rest.",
        "Γ is measured from the estimated propensities: errors in these count as hidden confounding.",
        "The sharp range assumes that propensities are right on average among pairs with similar predictions.",
        "Intervals and bands cover the chance of which users are in the log. They do not cover how the models were "
        "trained, or the estimation of propensities and Γ.",
    ]  # fmt: skip


def _about_rows(rows: Mapping[str, Any], leakage: Mapping[str, Any]) -> list[str]:
    """Which rows the models were judged by, and by whose word these are unseen."""
    texts = []
    if leakage["words"]:
        texts.append(f"{leakage['words'][0].upper()}{leakage['words'][1:]}.")
    if rows["source"] == "held-out":
        texts.append("The models were judged as they are: nothing was trained again.")
    if rows["source"] == "claimed":
        texts.append(
            "That the models were not trained on these rows is the caller's word (unseen=True). If it is not so, the "
            "one that fits them more closely is favoured."
        )
    if rows["source"] == "given":
        texts.append("That the models were not trained on these rows is the caller's word, who named them.")
    if rows["source"] in ("cross-fitted", "hold-out"):
        texts.append(
            "The models were trained again with their own settings, each time without the rows they are judged by. So "
            "it is the methods that are compared, with a little less to learn from, rather than these very fits."
        )
    if rows["part"].startswith("validation"):
        texts.append("The held-out rows also chose settings or the epoch, which flatters both models a little.")
    if rows["mapped"]:
        texts.append(
            "Scores of at least one model are not on the scale of ratings. Rankings take them as they are; for squared "
            "error, both models' scores were mapped to ratings by isotonic regressions, each fitted on other rows."
        )
    return texts


def _about_log(parts: Mapping[str, Any]) -> list[str]:
    found, rows, texts = parts["diagnostics"], parts["rows"], []
    if found["ess"] < SMALL_ESS:
        texts.append(f"The effective sample size is only {found['ess']:.0f} rows: intervals are rough.")
    if found["calibration_error"] is not None and found["calibration_error"] > POOR_CALIBRATION:
        texts.append("The propensities fit the log poorly (see calibration): part of Γ may only make up for that.")
    if found["share_without_support"] > THIN_SUPPORT:
        texts.append(
            f"{found['share_without_support']:.1%} of all pairs are in groups of users and items without a single "
            "logged row: of these no finite Γ says anything."
        )
    if rows["uses_uniform"]:
        texts.append("The propensities were fitted with uniform rows, so the audit is not of the log alone.")
    if rows["lists"] == "rated":
        texts.append(
            "Rankings are of each user's rated items, since scores of all pairs are not known. How the rated items "
            "would rank among all others is not measured."
        )
    if rows["lists"] == "catalogue" and rows["listed_users"] < rows["log_users"]:
        texts.append(f"Lists are of {rows['listed_users']:,} users drawn from {rows['log_users']:,}.")
    return texts
