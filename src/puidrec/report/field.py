"""The page of `puid reproduce field`: findings that follow from the results, tables, published figures, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from puidrec.comparing.summary import by, markdown_table
from puidrec.reproduce.field import FIELD_METRICS, PRINTED_GAIN, PUBLISHED, can_train

Row = Mapping[str, Any]
FAMILY = ("mrdr", "dr-mse", "tdr", "stable-dr", "d-dr", "dr-v2", "kernel-dr", "bal-dr", "res-dr")
"""Variants of DR."""
INTRODUCTION = """# The field's methods, side by side

Published tables of debiasing methods disagree by more than the gains they claim: protocols, tuning and seeds differ.
Here every method has the same data, protocol and tuning budget, and every difference has an interval. What each method
minimises, and what was assumed where its paper leaves room, is in its docstring; [equations](equations.md) lists them.
"""
ASSUMED = (
    (
        "`mrdr`",
        "imputation weighted by (1 − p)/p²: least variance of DR",
        "weights scaled to the mean of 1/p, so that L2 means the same",
    ),
    (
        "`dr-mse`",
        "imputation between least bias, (1 − p)²/p³, and least variance; `bias_share`",
        "the same",
    ),
    (
        "`tdr`",
        "every imputed error is moved by ε(1/p − 1), ε from the log",
        "1/p for seen and unseen pairs; then it is DR with calibrated weights",
    ),
    (
        "`stable-dr`",
        "normalised IPS, weights balanced so that imputed errors have their mean over all pairs",
        "weights move by a tilt, one cycle",
    ),
    (
        "`d-ips`, `d-dr`",
        "a power of each propensity for bias and variance",
        "none; below p = 0.12 the weight is about 5 whatever p is",
    ),
    (
        "`dcf`",
        "reconstructed exposure beside the score, one coefficient per user",
        "exposure by least squares instead of Poisson factors",
    ),
    (
        "`idcf`",
        "users described by exposure factors, given their features",
        "linear Gaussian model instead of a variational autoencoder",
    ),
    (
        "`bal-ips`, `bal-dr`",
        "weights under which the log's loss is that of uniform rows",
        "entropy relative to 1/p; slack by sampling error",
    ),
    (
        "`res-ips`, `res-dr`",
        "residuals of propensity and imputation learned from uniform rows",
        "residuals additive in users and items",
    ),
    (
        "`auto-debias`",
        "weights and imputed values learned so that a step on the log lowers the error of uniform rows",
        "weights by activity and label instead of one-hot codes; the step is one of users",
    ),
    (
        "`ips-v2`, `dr-v2`",
        "propensity `balanced`: likelihood, and balance of the features of pairs",
        "features and log activity are what is balanced",
    ),
    (
        "`kernel-ips`, `kernel-dr`",
        "propensity `kernel`: weights of most entropy that balance kernels",
        "random anchors; slack by sampling error",
    ),
    (
        "`cvib`",
        "cross-entropy, and an information term between the means of logged and unseen pairs",
        "means over all pairs, exact; entropy of both outcomes",
    ),
)
"""Methods, what is new in them, and what was assumed here where a paper leaves room."""
UNIFORM_TRAINS = """`auto-debias`, `bal-*` and `res-*` train on uniform rows beside the log, and every report says so.
These are the uniform rows that the protocol holds out for propensities; rows that validate or test are never among
them. They need at least 50."""
SAME_MODEL = """`ips` and `dr` are nearly one method here. At the optimum of an imputation model g that has the form,
the weights and the L2 of the prediction model, s = g has gradient 0 in the loss of DR too: what DR adds lies in
stopping early, in other forms or in other weights of g. Variants of DR that keep the weights cannot differ much from
`ips`.
"""


def field_text(summary: Mapping[str, Any], seconds: Mapping[str, Mapping[str, float]], command: str) -> str:
    """The whole page as Markdown."""
    budgets = ", ".join(f"{name} {count}" for name, count in summary["budgets"].items())
    seeds = summary["seeds"]
    made = (
        f"Made by `{command}`: {seeds} seed{'s' if seeds != 1 else ''}; settings tried per method and seed, chosen by "
        f"validation rows: {budgets}. Intervals of differences are 95 %, paired, over seeds and users; p-values are "
        "adjusted for the number of methods (Holm). Uniform rows whose pair is in the log are left out.\n"
    )
    parts = [INTRODUCTION, made, "## What follows from it\n", *(f"* {line}" for line in findings(summary)), ""]
    parts += [SAME_MODEL, "## How often it helps\n", _verdicts(summary), ""]
    for group in by(summary["tables"]["mf"], _table).values():
        parts += [_section(group, summary), ""]
    parts += ["## How long a method took\n", _times(seconds), ""]
    table = markdown_table(("method", "what is new in it", "what is assumed here"), ASSUMED)
    parts += ["## What was assumed\n", table, "", UNIFORM_TRAINS]
    if summary["failed"]:
        parts.append(
            "Not finished: " + "; ".join(f"{r['label']} on {r['data']}: {r['error']}" for r in summary["failed"])
        )
    return "\n".join(parts).rstrip() + "\n"


def findings(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that follow from the rows."""
    lines = []
    against = {ref: {(*_table(r), r["label"], r["metric"]): r for r in rows} for ref, rows in summary["tables"].items()}
    for (data, protocol), group in by(summary["tables"]["mf"], _table).items():
        first = [row for row in group if row["metric"] == FIELD_METRICS[0]]
        best = max(first, key=lambda row: row["mean"])
        better, worse = ([row["label"] for row in first if row["verdict"] == word] for word in ("wins", "loses"))
        where = f"On {data} (protocol {protocol}, {FIELD_METRICS[0]})"
        lines.append(
            f"{where} the best mean is that of {best['label']} ({best['mean']:.3f}). Better than plain `mf` beyond "
            f"chance: {', '.join(better) or 'none'}, of {len(first) - 1} methods; worse: {', '.join(worse) or 'none'}."
        )
        to_dr = {
            label: row
            for (*table, label, metric), row in against["dr"].items()
            if table == [data, protocol] and metric == FIELD_METRICS[0] and row["difference"] is not None
        }
        lines += [*_variants(where, to_dr), *_printed(where, to_dr)]
    return lines


def _variants(where: str, to_dr: Mapping[str, Row]) -> list[str]:
    """Which variants of DR improve on DR."""
    found = [name for name in FAMILY if name in to_dr]
    better = [name for name in found if to_dr[name]["verdict"] == "wins"]
    text = f"{where} {', '.join(better) or 'none'} of the {len(found)} variants of DR improve on `dr` beyond chance."
    return [text] if found else []


def _printed(where: str, to_dr: Mapping[str, Row]) -> list[str]:
    """Under the protocol of their papers: methods whose printed gain does not appear, with the interval."""
    absent = [
        f"{name} {_difference(row)} (printed: {PRINTED_GAIN[name][1]})"
        for name, row in to_dr.items()
        if row["data"] == "coat" and name in PRINTED_GAIN and row["protocol"] == PRINTED_GAIN[name][0]
        if row["verdict"] != "wins"
    ]
    return [f"{where} the printed gain over DR does not appear for {'; '.join(absent)}."] if absent else []


def _verdicts(summary: Mapping[str, Any]) -> str:
    """Per method, in how many tables it wins, ties and loses against each reference, by the first metric."""
    tables = {
        ref: by([row for row in rows if row["metric"] == FIELD_METRICS[0] and row["verdict"]], lambda row: row["label"])
        for ref, rows in summary["tables"].items()
    }

    def counts(ref: str, label: str) -> list[int]:
        words = [row["verdict"] for row in tables[ref].get(label, [])]
        return [words.count(word) for word in ("wins", "ties", "loses")]

    def order(label: str) -> tuple[int, int]:
        wins, _, losses = counts("mf", label)
        return losses - wins, losses

    labels = sorted(dict.fromkeys(row["label"] for row in summary["tables"]["mf"]), key=order)
    body = [
        [f"`{name}`", *("reference" if name == ref else " / ".join(map(str, counts(ref, name))) for ref in tables)]
        for name in labels
    ]
    text = markdown_table(("method", *(f"against {ref}" for ref in tables)), body)
    what = f"Tables in which a method wins / ties / loses by {FIELD_METRICS[0]}"
    return f"{what}; p-values are adjusted within a table.\n\n{text}"


def _table(row: Row) -> tuple[str, str]:
    return row["data"], row["protocol"]


def _difference(row: Row) -> str:
    if row["difference"] is None:
        return "–"
    low, high = row["difference_low"], row["difference_high"]
    return f"{row['difference']:+.3f}" + (f" [{low:+.3f}, {high:+.3f}]" if low is not None else "")


def _section(group: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """One table: every metric, the differences to mf and dr by the first metric, what uniform rows were used for."""
    data, protocol = _table(group[0])
    to_dr = {(*_table(r), r["label"], r["metric"]): r for r in summary["tables"]["dr"]}
    at = {(row["label"], row["metric"]): row for row in group}
    metrics = [metric for metric in FIELD_METRICS if any(key[1] == metric for key in at)]
    body = []
    for label in dict.fromkeys(row["label"] for row in group):
        first, other = at[label, metrics[0]], to_dr.get((data, protocol, label, metrics[0]))
        means = [f"{at[label, m]['mean']:.3f}" if (label, m) in at else "–" for m in metrics]
        body.append([
            f"`{label}`", *means, "reference" if first["is_reference"] else _difference(first),
            "–" if other is None else "reference" if other["is_reference"] else _difference(other),
            _training_use(summary["uniform"].get(label, "")),
        ])  # fmt: skip
    columns = ("method", *metrics, f"{metrics[0]} against mf", f"{metrics[0]} against dr", "uniform rows train")
    share = f"{group[0]['positive_rate']:.1%} of test rows positive"
    parts = [f"## {data}, protocol {protocol}\n", f"{share}.\n", markdown_table(columns, body)]
    absent = [f"`{name}`" for name in summary["uniform"] if not can_train(name, protocol)]
    if absent:
        parts.append(
            f"\nNot here: {', '.join(absent)}. They train on uniform rows, which this protocol keeps for other uses."
        )
    printed = [p for p in PUBLISHED if (p.data, p.protocol) == (data, protocol)]
    if printed:
        words = "; ".join(f"{p.method} {p.metric} {p.value:g}" for p in printed)
        parts.append(f"\nIn print, under the protocol that each paper calls by this name: {words}.")
    return "\n".join(parts)


def _training_use(words: str) -> str:
    """Uses beside the choice of L2 or of the epoch, which is the same for all."""
    same = ("choice of the epoch", "strength of L2", "none")
    uses = [use for use in words.split(", ") if use and use not in same]
    return ", ".join(uses) or "no"


def _times(seconds: Mapping[str, Mapping[str, float]]) -> str:
    methods = dict.fromkeys(name for rows in seconds.values() for name in rows)
    body = [
        [f"`{name}`", *(f"{rows[name]:.1f}" if name in rows else "–" for rows in seconds.values())] for name in methods
    ]
    text = markdown_table(("method", *seconds), body)
    return f"Seconds of a job, its search included, mean over seeds and worlds, one thread.\n\n{text}"
