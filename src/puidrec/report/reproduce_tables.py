"""The tables of a reproduction: the paper's figure, ours with its interval, and the difference, from plain rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puidrec.report.blocks import Cell, Table, Tone
from puidrec.report.numbers import Value

Row = Mapping[str, Any]
NAMES = {"coat": "Coat", "yahoo-r3": "Yahoo!R3", "kuairec": "KuaiRec", "ml-100k": "MovieLens 100K"}
METRIC = {"uauc": "UAUC", "ndcg@5": "NDCG@5", "ndcg@50": "NDCG@50"}
TONES: dict[str, Tone] = {"wins": "good", "loses": "bad"}
READING = (
    "Ours: mean over seeds [95 % interval, bootstrap over users]. Difference: ours minus the printed figure. "
    "Against: paired difference to the reference; it wins or loses where its 95 % interval over users excludes 0 and "
    "the p-value, adjusted for the number of methods (Holm), is at most 0.05."
)


@dataclass(frozen=True)
class Sheet:
    """A table with the words around it; it becomes a block of a page or Markdown."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value | Cell, ...], ...]

    def block(self) -> Table:
        """For the page."""
        return Table(self.columns, self.rows, f"{self.title}. {self.caption}")

    def markdown(self) -> str:
        """For people who read files."""
        lines = [self.columns, ("---",) * len(self.columns), *([_text(cell) for cell in row] for row in self.rows)]
        body = "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
        return f"**{self.title}.** {self.caption}\n\n{body}\n"


def _text(cell: Value | Cell) -> str:
    value = cell.text if isinstance(cell, Cell) and cell.text is not None else cell
    return "–" if value is None else str(value)


def by(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    """Rows in groups, in the order in which they come."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def comparison_sheets(summary: Mapping[str, Any], question: str) -> list[Sheet]:
    """RQ1 and the ablation: a table per data set, preset and protocol (and series)."""
    rows = [row for row in summary["tables"] if row["experiment"] == question]
    series = (lambda row: row["label"][0]) if question == "ablation" else (lambda row: "")
    groups = by(rows, lambda row: (row["source"], row["preset"], row["protocol"], series(row)))
    return [_comparison(part, summary["presets"]) for part in groups.values()]


def _comparison(rows: Sequence[Row], presets: Mapping[str, str]) -> Sheet:
    first = rows[0]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    reference = next((row["label"] for row in rows if row["is_reference"]), None)
    printed = any(row["paper"] is not None for row in rows)
    columns = ["method"]
    for metric in metrics:
        name = METRIC.get(metric, metric)
        columns += [f"{name}, paper", f"{name}, ours", "difference"] if printed else [f"{name}, ours"]
        columns += [f"against {reference}"] if reference else []
    body = [
        (label, *(cell for row in own for cell in _cells(row, printed, reference is not None)))
        for label, own in by(rows, lambda row: row["label"]).items()
    ]
    return Sheet(
        f"{NAMES.get(first['source'], first['source'])}, preset {first['preset']}, protocol {first['protocol']}",
        f"Settings: {presets[first['preset']]}. {_basis(rows)}",
        tuple(columns), tuple(body),
    )  # fmt: skip


def _basis(rows: Sequence[Row]) -> str:
    seeds = max(row["n_seeds"] for row in rows)
    rate = sum(row["positive_rate"] for row in rows) / len(rows)
    return f"{rate:.1%} of the test rows are positive; {seeds} seed{'s' if seeds > 1 else ''}."


def _cells(row: Row, printed: bool, compared: bool) -> list[Value | Cell]:
    cells: list[Value | Cell] = []
    if printed:
        cells.append(Cell(row["paper"], "–" if row["paper"] is None else f"{row['paper']:.4f}"))
    cells.append(Cell(row["mean"], f"{row['mean']:.4f}{_interval(row)}"))
    if printed:
        gap = row["paper_difference"]
        cells.append(Cell(gap, "–" if gap is None else f"{gap:+.4f}"))
    if compared:
        cells.append(_against(row))
    return cells


def _interval(row: Row) -> str:
    return "" if row["user_low"] is None else f" [{row['user_low']:.3f}, {row['user_high']:.3f}]"


def _against(row: Row) -> Cell:
    if row["is_reference"]:
        return Cell(0.0, "reference")
    if row["difference"] is None:
        return Cell(None, "–")
    verdict = row["verdict"] or ""
    return Cell(row["difference"], f"{row['difference']:+.4f} {verdict}".strip(), TONES.get(verdict))


def mask_sheets(summary: Mapping[str, Any]) -> list[Sheet]:
    """RQ2: a table per data set, preset, kind of mask and metric; a column per ratio."""
    rows = [row for row in summary["tables"] if row["experiment"] == "rq2"]
    groups = by(rows, lambda row: (row["source"], row["preset"], row["protocol"], row["mask"][0], row["metric"]))
    return [_masked(part) for part in groups.values()]


def _masked(rows: Sequence[Row]) -> Sheet:
    first = rows[0]
    ratios = sorted({row["mask"][1] for row in rows})
    printed = any(row["paper"] is not None for row in rows)
    columns = ["method"]
    for ratio in ratios:
        columns += [f"{ratio:.0%}: paper", "ours", "difference"] if printed else [f"{ratio:.0%}: ours"]
    body = []
    for label, own in by(rows, lambda row: row["label"]).items():
        at = {row["mask"][1]: row for row in own}
        body.append((label, *(cell for ratio in ratios for cell in _masked_cells(at.get(ratio), printed))))
    removed = "of all rows" if first["mask"][0] == "random" else "of the positive rows"
    name, metric = NAMES.get(first["source"], first["source"]), METRIC.get(first["metric"], first["metric"])
    return Sheet(
        f"{name}, {metric} after a share {removed} was removed",
        f"Preset {first['preset']}, protocol {first['protocol']}. {_basis(rows)}",
        tuple(columns), tuple(body),
    )  # fmt: skip


def _masked_cells(row: Row | None, printed: bool) -> list[Value | Cell]:
    if row is None:
        return [Cell(None, "–")] * (3 if printed else 1)
    return _cells(row, printed, compared=False)


def contrast_sheet(rows: Sequence[Row], title: str, caption: str) -> Sheet:
    """Paired comparisons, one per line."""
    columns = ("data", "preset", "protocol", "metric", "method", "against", "difference", "verdict")
    body = tuple(
        (
            NAMES.get(row["source"], row["source"]), row["preset"], row["protocol"],
            METRIC.get(row["metric"], row["metric"]), row["method"], row["against"],
            Cell(row["difference"], f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"),
            Cell(row["verdict"], row["verdict"], TONES.get(row["verdict"])),
        )
        for row in rows
    )  # fmt: skip
    return Sheet(title, caption, columns, body)
