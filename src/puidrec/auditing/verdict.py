"""The verdict of an audit and its words: the concluding sentence, the summary, and what the audit cannot tell.

overturned  the log does not show the model ahead even if nothing is hidden (the interval of Γ* reaches down to 1), or
            uniform ratings show it behind, or they prove more hidden confounding than the sharp set needs to tip the
            comparison, and do not themselves show the model ahead
robust      even the lower end of Γ* is beyond every yardstick: 1.5, the strongest recorded feature (were it hidden),
            and the Γ that uniform ratings certify
fragile     anything between
single      one model alone: nothing to overturn
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from puidrec.auditing.tipping import Tipping
from puidrec.sensitivity.calibrate import Calibration
from puidrec.sensitivity.certify import Certificate

AuditVerdict = Literal["robust", "fragile", "overturned", "single"]
FLOOR = 1.5
"""No conclusion is called robust that a Γ of this size overturns: the classic data sets prove as much of themselves."""


SMALL_ESS = 100.0
"""An effective sample size below which intervals are called rough."""


@dataclass(frozen=True)
class Yardsticks:
    """What a Γ can be measured by; None where the data hold nothing of the kind."""

    calibration: Calibration | None = None
    certificate: Certificate | None = None
    uniform_gap: tuple[float, float, float] | None = None
    """The gap on uniform test rows, which needs no Γ: value, and 95 % interval."""

    @property
    def strongest(self) -> tuple[str, float] | None:
        """The feature whose hiding moves the odds of exposure most, and how far."""
        rows = self.calibration.rows if self.calibration is not None else ()
        best = max(rows, key=lambda row: row.gamma_mean, default=None)
        return (best.feature, best.gamma_mean) if best is not None and best.gamma_mean > 1.0 else None

    @property
    def reference(self) -> float:
        """The Γ that a robust conclusion must survive."""
        feature = self.strongest[1] if self.strongest else 1.0
        proved = self.certificate.gamma if self.certificate is not None else 1.0
        return max(FLOOR, feature, proved)

    @property
    def confirmed(self) -> bool:
        """Whether the uniform test rows show the model ahead."""
        return self.uniform_gap is not None and self.uniform_gap[1] > 0.0

    @property
    def refuted(self) -> bool:
        """Whether the uniform test rows show the model behind."""
        return self.uniform_gap is not None and self.uniform_gap[2] < 0.0

    @property
    def proved(self) -> float:
        """The Γ that the uniform ratings prove at least; 1 without them."""
        return self.certificate.lower if self.certificate is not None else 1.0


def judge(tipping: Tipping, yardsticks: Yardsticks) -> AuditVerdict:
    """The verdict of a comparison."""
    explained = yardsticks.proved > 1.0 and yardsticks.proved >= tipping.sharp and not yardsticks.confirmed
    if tipping.gamma <= 1.0 or tipping.low <= 1.0 or yardsticks.refuted or explained:
        return "overturned"
    return "robust" if tipping.low > yardsticks.reference else "fragile"


def sentence(names: tuple[str, str], tipping: Tipping, yardsticks: Yardsticks, point: float) -> str:
    """The conclusion in one plain sentence."""
    model, against = names
    verdict = judge(tipping, yardsticks)
    ahead = "; the uniform ratings do show it ahead" if yardsticks.confirmed else ""
    uniform = "; the uniform ratings show it behind" if yardsticks.refuted else ahead
    if tipping.gamma <= 1.0:
        less = "no better than" if point == 0.0 else "behind"
        return (
            f"The log does not show {model} ahead of {against}: weighted by exposure, {model} is {less} "
            f"{against}{uniform}."
        )
    if tipping.low <= 1.0:
        return (
            f"The log does not show {model} ahead of {against} beyond chance: resampling its users can tip the "
            f"comparison without any hidden confounding (Γ* = {_gamma(tipping.gamma)}, 95 % {_span(tipping)}){uniform}."
        )
    if yardsticks.refuted:
        return (
            f"The log shows {model} ahead of {against}, but the uniform ratings show it behind: what is hidden has "
            f"overturned the comparison already (Γ* = {_gamma(tipping.gamma)})."
        )
    if verdict == "overturned":
        return (
            f"The lead of {model} over {against} in the log proves nothing: hidden confounding of Γ = "
            f"{_gamma(tipping.sharp)} could produce it, and the uniform ratings prove Γ of at least "
            f"{_gamma(yardsticks.proved)}."
        )
    if np.isinf(tipping.gamma):
        return f"{model} does better than {against} on every logged pair, so no hidden confounding can overturn that."
    compared = "; the uniform ratings confirm the lead" if yardsticks.confirmed else ""
    if yardsticks.strongest is not None:
        feature, shift = yardsticks.strongest
        times = times_as_strong(tipping.gamma, shift)
        compared = f", {times:.1f} × as strong as hiding the feature {feature}{compared}"
    return (
        f"The lead of {model} over {against} is {verdict}: it could be overturned if something hidden changed the odds "
        f"of being seen by a factor of {_gamma(tipping.gamma)} (95 % {_span(tipping)}){compared}."
    )


def single_sentence(model: str, point: float, low: float, high: float, gamma: float) -> str:
    """One model alone: how far its error may be off."""
    return (
        f"The mean squared error of {model} over all pairs is {point:.4f} if nothing is hidden, and lies between "
        f"{low:.4f} and {high:.4f} if something hidden changes the odds of being seen by up to Γ = {gamma:.2f}."
    )


def benchmarks(calibration: Calibration | None, gamma: float | None) -> list[dict[str, Any]]:
    """Every recorded feature as a yardstick for Γ: what hiding it does, and how much stronger Γ* is."""
    rows = sorted(calibration.rows, key=lambda row: -row.gamma_mean) if calibration is not None else []
    return [
        {
            "feature": row.feature, "side": row.side, "gamma": row.gamma_mean, "gamma_90": row.gamma_90,
            "times_hidden": times_as_strong(gamma, row.gamma_mean),
        }
        for row in rows
    ]  # fmt: skip


def times_as_strong(gamma: float | None, shift: float) -> float | None:
    """log Γ* / log shift: how many features like it, hidden together, reach Γ* (log odds add up).

    None where no number of them would.
    """
    if gamma is None or not np.isfinite(gamma) or shift <= 1.0:
        return None
    return max(0.0, float(np.log(gamma) / np.log(shift)))


def _gamma(value: float) -> str:
    return "∞" if np.isinf(value) else f"{value:.2f}"


def _span(tipping: Tipping) -> str:
    return f"{_gamma(tipping.low)} to {_gamma(tipping.high)}"


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
        texts.append(f"The effective sample size is only {found['ess']:.0f} rows: intervals are rough.")
    if found["calibration_error"] is not None and found["calibration_error"] > 0.25:
        texts.append("The propensities fit the log poorly (see calibration): part of Γ may only make up for that.")
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
        "One Γ bounds hidden confounding for all pairs. A few pairs may be far more confounded than the rest.",
        "Γ is measured from the estimated propensities: errors in these count as hidden confounding.",
        "The sharp range assumes that propensities are right on average among pairs with similar predictions.",
        "Intervals and bands cover the chance of which users are in the log. They do not cover how the models were "
        "trained, or the estimation of propensities and Γ.",
        "A lead in squared error, or in DCG over all items, is not a lead in what users would do with the "
        "recommendations.",
    ]  # fmt: skip


def summary(values: dict[str, Any]) -> str:
    """The content of `summary.txt`: the conclusion in one sentence, then what it rests on and what it leaves open."""
    lines = [values["sentence"], "", _rows_line(values), *_range_lines(values), *_yardstick_lines(values)]
    lines += ["", "What this does not tell you:", *(f"- {text}" for text in values["limits"])]
    return "\n".join(lines) + "\n"


def _rows_line(values: dict[str, Any]) -> str:
    data, rows, found = values["data"], values["rows"], values["diagnostics"]
    return (
        f"Rows: {rows['n']:,} {rows['source']} rows of {data['n_logged']:,} logged ones on {data['name']} "
        f"({data['n_users']:,} users, {data['n_items']:,} items, protocol {data['protocol']}); "
        f"effective size {found['ess']:,.0f}, {found['share_clipped']:.1%} of propensities clipped."
    )


def _range_lines(values: dict[str, Any]) -> list[str]:
    grid = values["gamma_grid"]
    shown = [k for k in (0, len(grid) // 4, len(grid) // 2, len(grid) - 1) if k < len(grid)]
    words = {
        "loss_gap": "lead in squared error", "dcg_gap": "lead in DCG", "model_loss": "squared error of the model",
        "against_loss": "squared error of the other", "model_dcg": "DCG of the model",
    }  # fmt: skip
    lines = ["Range of the mean over all pairs (sharp) by Γ:"]
    for name, curves in values["envelopes"].items():
        low, high = curves["sharp"]["low"], curves["sharp"]["high"]
        spans = ", ".join(f"{grid[k]:.2f}: {low[k]:.4f} to {high[k]:.4f}" for k in shown)
        lines.append(f"  {words.get(name, name)}: {spans}")
    return lines


def _yardstick_lines(values: dict[str, Any]) -> list[str]:
    lines = []
    tipping, certificate, uniform = values["tipping"], values["certificate"], values["uniform"]
    if tipping is not None:
        ends = {key: "∞" if tipping[f"{key}_infinite"] else f"{tipping[key]:.2f}" for key in ("gamma", "sharp")}
        lines.append(f"Tipping point: Γ* = {ends['gamma']} (box and normalised range), {ends['sharp']} (sharp range).")
    for row in values["benchmarks"][:3]:
        times = f"; Γ* is {row['times_hidden']:.1f} × as strong" if row["times_hidden"] is not None else ""
        lines.append(f"Hiding {row['feature']} ({row['side']}s): Γ = {row['gamma']:.2f}{times}.")
    if certificate is not None:
        lines.append(
            f"{certificate['n_uniform']:,} uniform ratings: Γ of at least {certificate['low']:.2f} (95 % confidence; "
            f"best estimate {certificate['gamma_min']:.2f}, by {certificate['kind']})."
        )
    if uniform is not None and "loss_gap" in uniform:
        gap = uniform["loss_gap"]
        span = f" (95 % {gap['low']:.4f} to {gap['high']:.4f})" if gap["low"] is not None else ""
        lines.append(f"On {uniform['n']:,} uniform test rows the lead in squared error is {gap['value']:.4f}{span}.")
    return lines
