"""The page of `puid reproduce field`: findings that follow from the results, tables, published
figures, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from puidrec.comparing.summary import by, markdown_table
from puidrec.report.html import markdown_page
from puidrec.reproduce.field import FIELD_METRICS, PRINTED_GAIN, PUBLISHED, can_train

Row = Mapping[str, Any]
FAMILY = ("mrdr", "dr-mse", "tdr", "stable-dr", "d-dr", "dr-v2", "kernel-dr", "bal-dr", "res-dr")
"""Variants of DR."""


def field_text(
    summary: Mapping[str, Any], seconds: Mapping[str, Mapping[str, float]], command: str
) -> str:
    """The whole page as Markdown."""
    failed = [f"{row['label']} on {row['data']}: {row['error']}" for row in summary["failed"]]
    return markdown_page(
        "field",
        command=command,
        seeds=summary["seeds"],
        budgets=", ".join(f"{name} {count}" for name, count in summary["budgets"].items()),
        findings=findings(summary),
        metric=FIELD_METRICS[0],
        verdicts=_verdicts(summary),
        tables=[_section(group, summary) for group in by(summary["tables"]["mf"], _table).values()],
        times=_times(seconds),
        failed="; ".join(failed),
    )


def findings(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that follow from the rows."""
    lines = []
    against = {
        ref: {(*_table(r), r["label"], r["metric"]): r for r in rows}
        for ref, rows in summary["tables"].items()
    }
    for (data, protocol), group in by(summary["tables"]["mf"], _table).items():
        first = [row for row in group if row["metric"] == FIELD_METRICS[0]]
        best = max(first, key=lambda row: row["mean"])
        better, worse = (
            [row["label"] for row in first if row["verdict"] == word] for word in ("wins", "loses")
        )
        where = f"On {data} (protocol {protocol}, {FIELD_METRICS[0]})"
        lines.append(
            f"{where} the best mean is that of {best['label']} ({best['mean']:.3f}). Better than plain `mf` beyond "
            f"chance: {', '.join(better) or 'none'}, of {len(first) - 1} methods; worse: {', '.join(worse) or 'none'}."
        )
        to_dr = {
            label: row
            for (*table, label, metric), row in against["dr"].items()
            if table == [data, protocol]
            and metric == FIELD_METRICS[0]
            and row["difference"] is not None
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
    """Under the protocol of their papers: methods whose printed gain does not appear, with the
    interval."""
    absent = [
        f"{name} {_difference(row)} (printed: {PRINTED_GAIN[name][1]})"
        for name, row in to_dr.items()
        if row["data"] == "coat"
        and name in PRINTED_GAIN
        and row["protocol"] == PRINTED_GAIN[name][0]
        if row["verdict"] != "wins"
    ]
    return (
        [f"{where} the printed gain over DR does not appear for {'; '.join(absent)}."]
        if absent
        else []
    )


def _verdicts(summary: Mapping[str, Any]) -> str:
    """Per method, in how many tables it wins, ties and loses against each reference, by the first
    metric."""
    tables = {
        ref: by(
            [row for row in rows if row["metric"] == FIELD_METRICS[0] and row["verdict"]],
            lambda row: row["label"],
        )
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
        [
            f"`{name}`",
            *(
                "reference" if name == ref else " / ".join(map(str, counts(ref, name)))
                for ref in tables
            ),
        ]
        for name in labels
    ]
    return markdown_table(("method", *(f"against {ref}" for ref in tables)), body)


def _table(row: Row) -> tuple[str, str]:
    return row["data"], row["protocol"]


def _difference(row: Row) -> str:
    if row["difference"] is None:
        return "–"
    low, high = row["difference_low"], row["difference_high"]
    return f"{row['difference']:+.3f}" + (f" [{low:+.3f}, {high:+.3f}]" if low is not None else "")


def _section(group: Sequence[Row], summary: Mapping[str, Any]) -> dict[str, str]:
    """One table: every metric, the differences to mf and dr by the first metric, what uniform rows
    were used for."""
    data, protocol = _table(group[0])
    to_dr = {(*_table(r), r["label"], r["metric"]): r for r in summary["tables"]["dr"]}
    at = {(row["label"], row["metric"]): row for row in group}
    metrics = [metric for metric in FIELD_METRICS if any(key[1] == metric for key in at)]
    body = []
    for label in dict.fromkeys(row["label"] for row in group):
        first, other = at[label, metrics[0]], to_dr.get((data, protocol, label, metrics[0]))
        means = [f"{at[label, m]['mean']:.3f}" if (label, m) in at else "–" for m in metrics]
        body.append(
            [
                f"`{label}`",
                *means,
                "reference" if first["is_reference"] else _difference(first),
                "–"
                if other is None
                else "reference"
                if other["is_reference"]
                else _difference(other),
                _training_use(summary["uniform"].get(label, "")),
            ]
        )
    columns = (
        "method",
        *metrics,
        f"{metrics[0]} against mf",
        f"{metrics[0]} against dr",
        "uniform rows train",
    )
    absent = [f"`{name}`" for name in summary["uniform"] if not can_train(name, protocol)]
    printed = [p for p in PUBLISHED if (p.data, p.protocol) == (data, protocol)]
    return {
        "data": data,
        "protocol": protocol,
        "positive_rate": f"{group[0]['positive_rate']:.1%}",
        "figures": markdown_table(columns, body),
        "absent": ", ".join(absent),
        "printed": "; ".join(f"{p.method} {p.metric} {p.value:g}" for p in printed),
    }


def _training_use(words: str) -> str:
    """Uses beside the choice of L2 or of the epoch, which is the same for all."""
    same = ("choice of the epoch", "strength of L2", "none")
    uses = [use for use in words.split(", ") if use and use not in same]
    return ", ".join(uses) or "no"


def _times(seconds: Mapping[str, Mapping[str, float]]) -> str:
    methods = dict.fromkeys(name for rows in seconds.values() for name in rows)
    body = [
        [f"`{name}`", *(f"{rows[name]:.1f}" if name in rows else "–" for rows in seconds.values())]
        for name in methods
    ]
    return markdown_table(("method", *seconds), body)
