"""An audit in words: what it rests on, what it leaves open, and its summary; from the plain values of `audit.json`."""

from __future__ import annotations

from typing import Any

from puidrec.auditing.verdict import number

SMALL_ESS = 100.0
"""An effective sample size below which intervals are called rough."""
POOR_CALIBRATION = 0.25
THIN_SUPPORT = 0.01
SOURCES = {
    "held-out": "held-out", "cross-fitted": "cross-fitted", "hold-out": "held-out", "given": "unseen",
    "claimed": "logged",
}  # fmt: skip
"""What to call the rows of each source."""
QUANTITIES = {
    "loss_gap": "lead in squared error", "dcg_gap": "lead in DCG", "ndcg_gap": "lead in NDCG",
    "model_loss": "squared error of the model", "against_loss": "squared error of the other",
    "model_dcg": "DCG of the model", "model_ndcg": "NDCG of the model",
}  # fmt: skip


def limits_of(values: dict[str, Any], uses_uniform: bool) -> list[str]:
    """What this audit cannot say; first what holds for it in particular, then what holds for all."""
    return [
        *_about_rows(values["rows"], values["leakage"]), *_about_log(values, uses_uniform),
        "It does not say that anything is hidden, or how strong it is: only how strong it would have to be. "
        + ("Uniform ratings say more, and are used where they exist." if values["certificate"] else
           "Without ratings of randomly chosen items, no data here can say more."),
        "One Γ bounds hidden confounding for all pairs. A few pairs may be far more confounded than the rest.",
        "Γ is measured from the estimated propensities: errors in these count as hidden confounding.",
        "The sharp range assumes that propensities are right on average among pairs with similar predictions.",
        "Intervals and bands cover the chance of which users are in the log. They do not cover how the models were "
        "trained, or the estimation of propensities and Γ.",
        "A lead in squared error, or in DCG over all items, is not a lead in what users would do with the "
        "recommendations.",
    ]  # fmt: skip


def _about_rows(rows: dict[str, Any], leakage: dict[str, Any]) -> list[str]:
    """Which rows the models were judged by, and by whose word these are unseen."""
    texts = []
    if leakage["words"]:
        texts.append(f"{leakage['words'][0].upper()}{leakage['words'][1:]}.")
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
        texts.append(
            "The held-out rows also chose the epoch at which training stopped, which flatters both models a little."
        )
    if rows["mapped"]:
        texts.append(
            "Scores of at least one model are not on the scale of ratings. Rankings take them as they are; for squared "
            "error, both models' scores were mapped to ratings by isotonic regressions, each fitted on other rows."
        )
    return texts


def _about_log(values: dict[str, Any], uses_uniform: bool) -> list[str]:
    found, rows, texts = values["diagnostics"], values["rows"], []
    if found["ess"] < SMALL_ESS:
        texts.append(f"The effective sample size is only {found['ess']:.0f} rows: intervals are rough.")
    if found["calibration_error"] is not None and found["calibration_error"] > POOR_CALIBRATION:
        texts.append("The propensities fit the log poorly (see calibration): part of Γ may only make up for that.")
    if found["share_without_support"] > THIN_SUPPORT:
        texts.append(
            f"{found['share_without_support']:.1%} of all pairs are in groups of users and items without a single "
            "logged row: of these no finite Γ says anything."
        )
    if uses_uniform:
        texts.append("The propensities were fitted with uniform rows, so the audit is not of the log alone.")
    if rows["lists"] == "rated":
        texts.append(
            "Rankings are of each user's rated items, since scores of all pairs are not known. How the rated items "
            "would rank among all others is not measured."
        )
    ranked = values["segments"]["ranked_users"]
    if ranked < rows["users"]:
        texts.append(f"Rankings (DCG, recommendations) are of {ranked:,} users drawn from {rows['users']:,}.")
    return texts


def summary(values: dict[str, Any]) -> str:
    """The content of `summary.txt`: the conclusion in one sentence, then what it rests on and what it leaves open."""
    lines = [values["sentence"], "", _rows_line(values), *_lead_lines(values), *_range_lines(values)]
    lines += [*_yardstick_lines(values), "", "What this does not tell you:"]
    return "\n".join([*lines, *(f"- {text}" for text in values["limits"])]) + "\n"


def _rows_line(values: dict[str, Any]) -> str:
    data, rows, found = values["data"], values["rows"], values["diagnostics"]
    return (
        f"Rows: {rows['n']:,} {SOURCES[rows['source']]} rows of {data['n_logged']:,} logged ones on {data['name']} "
        f"({data['n_users']:,} users, {data['n_items']:,} items, protocol {data['protocol']}): {rows['part']}; "
        f"effective size {found['ess']:,.0f}, {found['share_clipped']:.1%} of propensities clipped."
    )


def _lead_lines(values: dict[str, Any]) -> list[str]:
    """A line per metric: verdict, Γ*, the lead if nothing is hidden, and what uniform ratings show."""
    lines = []
    for lead in (values["error"], values["ranking"], values["ndcg"]):
        if lead is None:
            continue
        tipping, found, uniform = lead["tipping"], lead["lead"], lead["uniform"]
        sharp = f", {_gamma(tipping, 'sharp')} of the sharp range" if "sharp" in tipping else ""
        line = (
            f"{lead['metric'][0].upper()}{lead['metric'][1:]}: {lead['verdict']}; Γ* = {_gamma(tipping, 'gamma')} "
            f"(95 % {_gamma(tipping, 'low')} to {_gamma(tipping, 'high')}{sharp}); lead {_limits(found)} if nothing is "
            "hidden"
        )
        if lead["replaced"] is not None:
            line += f"; {lead['replaced']:,} of {values['rows']['n']:,} ratings replaced would end it"
        if uniform is not None:
            line += f"; {_limits(uniform)} on {uniform['n']:,} uniform test rows"
        lines.append(f"{line}.")
    return lines


def _limits(found: dict[str, Any]) -> str:
    span = "" if found["low"] is None else f" (95 % {number(found['low'])} to {number(found['high'])})"
    return f"{number(found['value'])}{span}"


def _gamma(tipping: dict[str, Any], key: str) -> str:
    return "∞" if tipping[f"{key}_infinite"] else f"{tipping[key]:.2f}"


def _range_lines(values: dict[str, Any]) -> list[str]:
    grid = values["gamma_grid"]
    shown = [k for k in (0, len(grid) // 4, len(grid) // 2, len(grid) - 1) if k < len(grid)]
    lines = ["Range of the mean over all pairs by Γ (the sharp one, where there is one):"]
    for name, curves in values["envelopes"].items():
        curve = curves.get("sharp") or curves["box"]
        spans = ", ".join(f"{grid[k]:.2f}: {curve['low'][k]:.4f} to {curve['high'][k]:.4f}" for k in shown)
        lines.append(f"  {QUANTITIES.get(name, name)}: {spans}")
    return lines


def _yardstick_lines(values: dict[str, Any]) -> list[str]:
    lines, certificate = [], values["certificate"]
    for row in [*values["benchmarks"][:3], *values["groups"]]:
        times = f"; Γ* is {row['times_hidden']:.1f} × as strong" if row["times_hidden"] is not None else ""
        side = "" if row["feature"].startswith("all ") else f" ({row['side']}s)"
        lines.append(f"Hiding {row['feature']}{side}: Γ = {row['gamma']:.2f}{times}.")
    first = values["scenarios"][0]
    lines.append(f"{first['scenario'][0].upper()}{first['scenario'][1:]}: Γ = {first['gamma']:.2f}.")
    if certificate is not None:
        what = (
            "misfit of the propensity" if certificate["finding"] == "misfit" else "hidden or missed by the propensity"
        )
        lines.append(
            f"{certificate['n_uniform']:,} uniform ratings: Γ of at least {certificate['low']:.2f} (95 % confidence, "
            f"by {certificate['kind']}), {what}."
        )
    return lines
