"""The tables and charts of a reproduction, from the plain rows of summary.json: as printed, ours,
the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from puidrec.comparing.summary import by, markdown_table
from puidrec.report.blocks import Cell, Table, Tone
from puidrec.report.charts import BLUE, COLOURS, DARK, GREY, panels_of
from puidrec.report.formatting import Value

Row = Mapping[str, Any]
TONES: dict[str, Tone] = {"wins": "good", "loses": "bad"}


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
        body = markdown_table(self.columns, [[_text(cell) for cell in row] for row in self.rows])
        return f"**{self.title}.** {self.caption}\n\n{body}\n"


def _text(cell: Value | Cell) -> str:
    value = cell.text if isinstance(cell, Cell) and cell.text is not None else cell
    return "–" if value is None else str(value)


def data_name(data: str) -> str:
    """A data set's name for people."""
    return {
        "coat": "Coat",
        "yahoo-r3": "Yahoo!R3",
        "kuairec": "KuaiRec",
        "ml-100k": "MovieLens 100K",
    }.get(data, data)


def metric_name(metric: str) -> str:
    """A metric's name for people."""
    return metric.upper()


def _number(value: float | None, form: str) -> Cell:
    """A number to sort by, and how it reads."""
    return Cell(value, "–" if value is None else format(value, form))


def sheets(summary: Mapping[str, Any], question: str) -> list[Sheet]:
    """The tables of a question."""
    if question == "rq3":
        rq3 = summary["rq3"]
        return (
            [_ratio_sheet(rq3), *(_combination_sheet(rq3, ratio) for ratio in RATIOS)]
            if rq3
            else []
        )
    if question == "rq4":
        return [_rise_sheet(summary["rq4"])] if summary["rq4"] else []
    own = _mask_sheets(summary) if question == "rq2" else _comparison_sheets(summary, question)
    contrasts = [row for row in summary["contrasts"] if row["experiment"] == question]
    personalised = [row for row in contrasts if row["kind"].startswith("personalised")]
    return [*own, _contrast_sheet(personalised)] if personalised else own


def data_sheets(facts: Sequence[Row]) -> list[Sheet]:
    """The tables about the data: Γ as the paper prints it, and what chance scores."""
    return [sheet for sheet in (_gamma_sheet(facts), _chance_sheet(facts)) if sheet.rows]


def _comparison_sheets(summary: Mapping[str, Any], question: str) -> list[Sheet]:
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
        name = metric_name(metric)
        columns += (
            [f"{name}, paper", f"{name}, ours", "difference"] if printed else [f"{name}, ours"]
        )
        columns += [f"against {reference}"] if reference else []
    body = [
        (label, *(cell for row in own for cell in _cells(row, printed, reference is not None)))
        for label, own in by(rows, lambda row: row["label"]).items()
    ]
    return Sheet(
        f"{data_name(first['source'])}, preset {first['preset']}, protocol {first['protocol']}",
        f"Settings: {presets[first['preset']]}. {_basis(rows)}",
        tuple(columns),
        tuple(body),
    )


def _basis(rows: Sequence[Row]) -> str:
    seeds = max(row["n_seeds"] for row in rows)
    rate = sum(row["positive_rate"] for row in rows) / len(rows)
    return f"{rate:.1%} of the test rows are positive; {seeds} seed{'s' if seeds > 1 else ''}."


def _cells(row: Row, printed: bool, compared: bool) -> list[Value | Cell]:
    interval = (
        "" if row["user_low"] is None else f" [{row['user_low']:.3f}, {row['user_high']:.3f}]"
    )
    cells: list[Value | Cell] = [Cell(row["mean"], f"{row['mean']:.4f}{interval}")]
    if printed:
        cells = [_number(row["paper"], ".4f"), *cells, _number(row["paper_difference"], "+.4f")]
    return [*cells, _against(row)] if compared else cells


def _against(row: Row) -> Cell:
    if row["is_reference"]:
        return Cell(0.0, "reference")
    if row["difference"] is None:
        return Cell(None, "–")
    verdict = row["verdict"] or ""
    return Cell(
        row["difference"], f"{row['difference']:+.4f} {verdict}".strip(), TONES.get(verdict)
    )


def _mask_sheets(summary: Mapping[str, Any]) -> list[Sheet]:
    """RQ2: a table per data set, preset, kind of mask and metric; a column per ratio."""
    rows = [row for row in summary["tables"] if row["experiment"] == "rq2"]
    groups = by(
        rows,
        lambda row: (row["source"], row["preset"], row["protocol"], row["mask"][0], row["metric"]),
    )
    return [_masked(part) for part in groups.values()]


def _masked(rows: Sequence[Row]) -> Sheet:
    first = rows[0]
    ratios = sorted({row["mask"][1] for row in rows})
    printed = any(row["paper"] is not None for row in rows)
    columns = ["method"]
    for ratio in ratios:
        columns += (
            [f"{ratio:.0%}: paper", "ours", "difference"] if printed else [f"{ratio:.0%}: ours"]
        )
    body = []
    for label, own in by(rows, lambda row: row["label"]).items():
        at = {row["mask"][1]: row for row in own}
        body.append(
            (label, *(cell for ratio in ratios for cell in _masked_cells(at.get(ratio), printed)))
        )
    removed = "of all rows" if first["mask"][0] == "random" else "of the positive rows"
    name, metric = data_name(first["source"]), metric_name(first["metric"])
    return Sheet(
        f"{name}, {metric} after a share {removed} was removed",
        f"Preset {first['preset']}, protocol {first['protocol']}. {_basis(rows)}",
        tuple(columns),
        tuple(body),
    )


def _masked_cells(row: Row | None, printed: bool) -> list[Value | Cell]:
    if row is None:
        return [Cell(None, "–")] * (3 if printed else 1)
    return _cells(row, printed, compared=False)


def _contrast_sheet(rows: Sequence[Row]) -> Sheet:
    """Paired comparisons, one per line."""
    columns = ("data", "preset", "protocol", "metric", "method", "against", "difference", "verdict")
    body = tuple(
        (
            data_name(row["source"]),
            row["preset"],
            row["protocol"],
            metric_name(row["metric"]),
            row["method"],
            row["against"],
            Cell(
                row["difference"],
                f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]",
            ),
            Cell(row["verdict"], row["verdict"], TONES.get(row["verdict"])),
        )
        for row in rows
    )
    caption = "Paired over users; p-values adjusted for the number of pairs of a kind (Holm)."
    return Sheet("Personalised Γ against one Γ, random Γ and none", caption, columns, body)


KINDS = ("plugin", "noise", "permutation")
SIDES = ("user", "item")
RATIOS = {"ratio_user": "user", "ratio_item": "item"}
SHARES = ("1/2", "1/3", "1/4", "1/5")
RATIO_MAPS = (
    ("none", "plugin", "plug-in (the paper)"),
    ("none", "miller-madow", "Miller–Madow"),
    ("none", "permutation", "minus noise, equal bins"),
    ("permuted", "plugin", "plug-in, rows of features permuted"),
)
"""Control, estimator, and what it is called: the ratios of RQ3 that are shown."""


def _gamma_sheet(facts: Sequence[Row]) -> Sheet:
    """Γ as printed, and the gains it is made of."""
    columns = (
        "data",
        "features",
        "H(o)",
        "gain of users",
        "beyond noise",
        "gain of items",
        "beyond noise ",
        "Γ as printed",
        "pairs below 1",
        "mean Γ as exp",
    )
    body = tuple(
        (
            data_name(row["data"]),
            row["features"],
            *(
                _number(value, ".5f")
                for value in (
                    row["H"],
                    row["gain_user"]["plugin"],
                    row["gain_user"]["permutation"],
                    row["gain_item"]["plugin"],
                    row["gain_item"]["permutation"],
                    row["value"],
                )
            ),
            _number(row["share_below_one"], ".1%"),
            _number(row["mean_gamma"], ".4f"),
        )
        for row in facts
        if row["experiment"] == "gamma"
    )
    caption = (
        "Information gains in nats: plug-in, and after subtracting the gain of permuted feature rows. Γ as printed "
        "is 2 · gain of users + 5 · gain of items; the last column takes the same sum as log Γ of each pair's own bins."
    )
    return Sheet("The printed equation for Γ", caption, columns, body)


def _chance_sheet(facts: Sequence[Row]) -> Sheet:
    """What a random order scores under each protocol."""
    body = []
    for row in (row for row in facts if row["experiment"] == "chance"):
        metric = next(name for name in ("ndcg@5", "ndcg@50") if name in row)
        body.append(
            (
                data_name(row["data"]),
                row["protocol"],
                _number(row["test_rows"], ","),
                _number(row["positive_rate"], ".1%"),
                _number(row["uauc"], ".3f"),
                metric_name(metric),
                _number(row[metric], ".3f"),
            )
        )
    columns = ("data", "protocol", "test rows", "positive", "UAUC of chance", "metric", "of chance")
    return Sheet(
        "What a random order scores",
        "The level depends on the protocol alone.",
        columns,
        tuple(body),
    )


def _ratio_sheet(rq3: Mapping[str, Any]) -> Sheet:
    """RQ3: gains by step, with and without information."""
    words = {
        "x_u": "observed user features",
        "x_i": "observed item features",
        "h_u": "hidden user features",
        "h_i": "hidden item features",
    }
    body = tuple(
        (
            words[row["step"]],
            "permuted rows" if row["control"] == "permuted" else "as recorded",
            *(_number(row[name], ".5f") for name in KINDS),
            _number(row["artefact"], ".0%"),
            _number(row["beyond_chance"], ".0%"),
        )
        for row in rq3["gains"]
    )
    columns = (
        "step of the chain",
        "features",
        "plug-in gain",
        "gain of noise",
        "left",
        "artefact",
        "beyond chance",
    )
    caption = (
        f"Nats, means over 16 combinations and {rq3['orders']} random orders. Noise: the step's values permuted "
        "among users (items) that agree in all features used before."
    )
    return Sheet("RQ3: what each step of the chain gains", caption, columns, body)


def _combination_sheet(rq3: Mapping[str, Any], ratio: str) -> Sheet:
    """RQ3: a ratio for each of the 16 combinations, by estimator, and for permuted feature rows."""
    rows = [row for row in rq3["ratios"] if row["ratio"] == ratio]
    columns = {
        "plug-in": ("none", "plugin"),
        "Miller–Madow": ("none", "miller-madow"),
        "minus noise": ("none", "permutation"),
        "plug-in, permuted rows": ("permuted", "plugin"),
    }
    at = {
        (row["share_user"], row["share_item"], row["control"], row["estimator"]): row
        for row in rows
    }
    shares = dict.fromkeys((row["share_user"], row["share_item"]) for row in rows)
    body: tuple[tuple[Value | Cell, ...], ...] = tuple(
        (
            f"1/{u}",
            f"1/{i}",
            *(_mean(at[u, i, *key], 2) for key in columns.values()),
            Cell(
                at[u, i, "none", "permutation"]["n"],
                f"{at[u, i, 'none', 'permutation']['n']} of {rq3['orders']}",
            ),
        )
        for u, i in shares
    )
    caption = (
        f"Mean over {rq3['orders']} random orders [95 % interval]. Minus noise: over the orders, counted in the last "
        "column, in which both gains are beyond chance. Rows of features permuted: nothing is known, and ratios remain."
    )
    head = ("users observed", "items observed", *columns, "beyond chance")
    return Sheet(f"RQ3: gain of observed over hidden {RATIOS[ratio]} features", caption, head, body)


def _ratios(
    rq3: Mapping[str, Any], ratio: str, control: str, estimator: str
) -> list[list[float | None]]:
    """A ratio by share of users and of items observed; None where fewer than half of the orders
    have one."""
    wanted = (ratio, control, estimator)
    rows = [
        row for row in rq3["ratios"] if (row["ratio"], row["control"], row["estimator"]) == wanted
    ]
    at = {
        (f"1/{row['share_user']}", f"1/{row['share_item']}"): row
        for row in rows
        if row["n"] * 2 >= row["of"]
    }
    return [[at[u, i]["mean"] if (u, i) in at else None for i in SHARES] for u in SHARES]


def _rise_sheet(rq4: Mapping[str, Any]) -> Sheet:
    """RQ4: gains when all features of a side are hidden, and how often they rise on the way."""
    body: tuple[tuple[Value | Cell, ...], ...] = tuple(
        (
            f"{side} features ({facts['features']})",
            *(_mean(facts["final"][name]) for name in KINDS),
            _number(facts["artefact_at_the_end"], ".0%"),
            *(_number(facts["rising"][name], ".0%") for name in KINDS),
        )
        for side, facts in ((side, rq4["sides"][side]) for side in SIDES)
    )
    columns = (
        "hidden",
        "plug-in gain",
        "gain of noise",
        "left",
        "artefact",
        "plug-in rises",
        "noise rises",
        "rest rises",
    )
    caption = (
        f"Gains in nats when all features of the side are hidden, {rq4['orders']} random orders [95 % interval]; then "
        "the share of steps, one feature more each, at which a gain does not fall."
    )
    return Sheet("RQ4: the gain of hidden features", caption, columns, body)


def _mean(facts: Mapping[str, Any], digits: int = 4) -> Cell:
    """A mean with its interval."""
    mean, low, high = (_number(facts[name], f".{digits}f") for name in ("mean", "low", "high"))
    return mean if low.value is None else Cell(mean.value, f"{mean.text} [{low.text}, {high.text}]")


ORANGE = "#c96a16"
STYLES = ((BLUE, "o"), (ORANGE, "s"), (DARK, "^"), (GREY, "D"), ("#6a8d3a", "v"))
FEWEST = 3
"""Orders below which an interval would hide the chart."""


def all_charts(summary: Mapping[str, Any]) -> dict[str, Callable[[], Figure]]:
    """File name → how to draw it, for everything that the summary holds; in the order of the
    questions."""
    charts: dict[str, Callable[[], Figure]] = {}
    for question, draw in (("rq1", dots), ("ablation", dots), ("rq2", mask_lines)):
        own = [row for row in summary["tables"] if row["experiment"] == question]
        for key, part in by(
            own, lambda row: (row["source"], row["preset"], row["protocol"])
        ).items():
            charts["-".join((question, *key)) + ".png"] = partial(draw, part)
    if summary["rq3"]:
        for name in RATIOS:
            charts[f"rq3-{name.replace('_', '-')}.png"] = partial(ratio_maps, summary["rq3"], name)
    if summary["rq4"]:
        charts["rq4.png"] = partial(rising_gains, summary["rq4"])
    return charts


def dots(rows: Sequence[Row]) -> Figure:
    """Ours with intervals over users, the paper's figures beside them; one panel per metric, best
    on top."""
    first, metrics = rows[0], list(dict.fromkeys(row["metric"] for row in rows))
    labels = list(by(rows, lambda row: row["label"]))
    title = f"{data_name(first['source'])}: preset {first['preset']}, protocol {first['protocol']}"
    caption = "Dots: ours, with 95 % intervals over users. Diamonds: as printed in the paper."
    figure, panels = panels_of(len(metrics), 1.9 + 0.26 * len(labels), title, caption, share_y=True)
    at = {label: -k for k, label in enumerate(labels)}
    for axes, metric in zip(panels, metrics, strict=True):
        for row in (row for row in rows if row["metric"] == metric):
            low, high = (
                (row["user_low"], row["user_high"])
                if row["user_low"] is not None
                else (row["mean"],) * 2
            )
            axes.hlines(at[row["label"]], low, high, color=BLUE, linewidth=1.4)
            axes.plot(row["mean"], at[row["label"]], "o", color=BLUE, markersize=5)
            if row["paper"] is not None:
                axes.plot(
                    row["paper"],
                    at[row["label"]],
                    "D",
                    markerfacecolor="none",
                    color=ORANGE,
                    markersize=5,
                )
        axes.set_xlabel(metric_name(metric))
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    panels[0].set_yticks(list(at.values()), labels, fontsize=8)
    return figure


def mask_lines(rows: Sequence[Row]) -> Figure:
    """The first metric against the share removed: a panel per kind of mask, a line per method;
    dashed as printed."""
    first = rows[0]
    metric = str(first["metric"])
    kinds = by([row for row in rows if row["metric"] == metric], lambda row: row["mask"][0])
    title = f"{data_name(first['source'])}: {metric_name(metric)} when the log loses rows"
    caption = f"Preset {first['preset']}, protocol {first['protocol']}. Lines: ours. Dashed: as printed in the paper."
    figure, panels = panels_of(len(kinds), 4.8, title, caption, share_y=True)
    for axes, (kind, part) in zip(panels, kinds.items(), strict=True):
        for k, (label, found) in enumerate(by(part, lambda row: row["label"]).items()):
            colour, mark = STYLES[k % len(STYLES)]
            own = sorted(found, key=lambda row: float(row["mask"][1]))
            fill_style = "full" if k < len(STYLES) else "none"
            axes.plot(
                [row["mask"][1] for row in own],
                [row["mean"] for row in own],
                color=colour,
                marker=mark,
                fillstyle=fill_style,
                markersize=5,
                linewidth=1.2,
                label=label,
            )
            told = [row for row in own if row["paper"] is not None]
            axes.plot(
                [r["mask"][1] for r in told],
                [r["paper"] for r in told],
                "--",
                color=colour,
                linewidth=0.8,
            )
        axes.set_xlabel(
            "share of all rows removed" if kind == "random" else "share of positive rows removed"
        )
        axes.grid(color="#dddddd", linewidth=0.6)
    panels[0].set_ylabel(metric_name(metric))
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def ratio_maps(rq3: Mapping[str, Any], name: str) -> Figure:
    """A ratio over the 16 combinations: by estimator, and with permuted feature rows; blank where
    undefined."""
    title = f"RQ3, {RATIOS[name]} side: gain of observed over gain of hidden features ({data_name(rq3['data'])})"
    caption = (
        f"Means over {rq3['orders']} random orders of the features. Blank: fewer than half of the orders have a ratio "
        "(gains within chance). A positive ratio means nothing where permuted rows give one too."
    )
    figure, panels = panels_of(4, 4.3, title, caption, width=13.0)
    tables = [np.array(_ratios(rq3, name, *key), np.float64) for *key, _ in RATIO_MAPS]
    values = np.concatenate([table[np.isfinite(table) & (table > 0)] for table in tables])
    low, high = (float(values.min()), float(values.max())) if values.size else (1.0, 10.0)
    norm = LogNorm(low, high if high > low * 1.001 else low * 1.1)
    for axes, (_, _, words), table in zip(panels, RATIO_MAPS, tables, strict=True):
        axes.imshow(np.ma.masked_invalid(table), cmap=COLOURS, norm=norm, aspect="auto")
        axes.set_xticks(range(4), SHARES)
        axes.set_yticks(range(4), SHARES)
        axes.set_title(words, fontsize=9, color=DARK)
        axes.set_xlabel("items: share observed")
        for row, column in zip(*np.nonzero(np.isfinite(table)), strict=True):
            light = float(np.asarray(norm(max(table[row, column], low)))) > 0.55
            axes.text(
                column,
                row,
                f"{table[row, column]:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="black" if light else "white",
            )
    panels[0].set_ylabel("users: share observed")
    return figure


def rising_gains(rq4: Mapping[str, Any]) -> Figure:
    """Gains against the number of hidden features: plug-in, noise with as many bins, the
    difference, with bands."""
    title = f"RQ4: the gain of hidden features, and of noise with equally many bins ({data_name(rq4['data'])})"
    caption = (
        f"Means over {rq4['orders']} random orders, with 95 % intervals. Plug-in gains rise with the number of bins, "
        "whatever the features know."
    )
    figure, panels = panels_of(2, 4.4, title, caption, width=11.0)
    words_of = ("plug-in (the paper)", "noise with equally many bins", "difference")
    lines = list(zip(KINDS, words_of, STYLES, strict=False))
    for axes, side in zip(panels, SIDES, strict=True):
        steps = [row for row in rq4["steps"] if row["side"] == side]
        x = [row["hidden"] for row in steps]
        for key, words, (colour, mark) in lines:
            mean = [row[key]["mean"] for row in steps]
            axes.plot(
                x, mean, color=colour, marker=mark, markersize=3.5, linewidth=1.3, label=words
            )
            ends = [(row[key]["low"], row[key]["high"]) for row in steps]
            if rq4["orders"] >= FEWEST and all(low is not None for low, _ in ends):
                axes.fill_between(x, *np.array(ends).T, color=colour, alpha=0.15, linewidth=0)
        axes.axhline(0.0, color=DARK, linewidth=0.6)
        axes.set_xlabel(f"hidden {side} features")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#dddddd", linewidth=0.6)
    panels[0].set_ylabel("information gain (nats)")
    panels[0].legend(fontsize=8, frameon=False)
    return figure
