"""Summaries as tables for people: one table per data set, preset and protocol, in Markdown or as plain cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from puidrec.experiments.summary import SummaryRow

NOTES = (
    "±: 95 % t-interval over seeds. [ ]: 95 % interval of the difference, from a paired bootstrap over users. "
    "A method wins or loses where that interval excludes 0 and the p-value, corrected for the number of methods "
    "(Holm), is at most 0.05; else it ties. A seed changes split and initialisation."
)


@dataclass(frozen=True)
class Table:
    """One table as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(rows: Sequence[SummaryRow], metrics: Sequence[str], reference: str) -> Iterator[Table]:
    """A table per data set, preset and protocol: the mean of each metric, and its difference to the reference."""
    groups: dict[tuple[str, str, str], dict[str, dict[str, SummaryRow]]] = {}
    for row in rows:
        group = groups.setdefault((row.data, row.preset, row.protocol), {})
        group.setdefault(row.label, {})[row.metric] = row
    for labels in groups.values():
        columns = ("method", *(part for metric in metrics for part in (metric, f"against {reference}")))
        body = tuple(
            (label, *(text for metric in metrics for text in _texts(by_metric.get(metric))))
            for label, by_metric in labels.items()
        )
        yield Table(title([row for by_metric in labels.values() for row in by_metric.values()]), columns, body)


def markdown(rows: Sequence[SummaryRow], metrics: Sequence[str], reference: str, failures: Sequence[str] = ()) -> str:
    """All tables as one page of Markdown; cells that failed are named at its end."""
    parts = []
    for table in tables(rows, metrics, reference):
        lines = [table.columns, ("---",) * len(table.columns), *table.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
        parts.append(f"## {table.title}\n\n{body}\n")
    parts.append(NOTES + "\n")
    if failures:
        parts.append("Not finished:\n\n" + "\n".join(f"* {failure}" for failure in failures) + "\n")
    return "\n".join(parts)


def title(rows: Sequence[SummaryRow]) -> str:
    """The data set of one table and what its figures stand under."""
    return f"{rows[0].data}, {conditions(rows)}"


def conditions(rows: Sequence[SummaryRow]) -> str:
    """Protocol, positive rate, seeds and preset: without them no figure can be compared with another."""
    first, seeds = rows[0], max(row.n_seeds for row in rows)
    return (
        f"protocol {first.protocol}, {first.positive_rate:.1%} of test rows positive, "
        f"{seeds} seed{'s' if seeds != 1 else ''}, {first.preset} settings"
    )


def figure(row: SummaryRow) -> str:
    """The mean with its interval over seeds."""
    if row.seed_high is None:
        return f"{row.mean:.4f}"
    return f"{row.mean:.4f} ± {row.seed_high - row.mean:.4f}"


def difference(row: SummaryRow) -> str:
    """The difference to the reference with its interval and verdict, as far as they are known."""
    if row.is_reference:
        return "reference"
    if row.difference is None:
        return "–"
    return " ".join(part for part in (f"{row.difference:+.4f}", interval(row), row.verdict) if part)


def interval(row: SummaryRow) -> str:
    """The interval of the difference; nothing where there is none."""
    if row.difference_low is None or row.difference_high is None:
        return ""
    return f"[{row.difference_low:+.4f}, {row.difference_high:+.4f}]"


def _texts(row: SummaryRow | None) -> tuple[str, str]:
    return ("–", "–") if row is None else (figure(row), difference(row))
